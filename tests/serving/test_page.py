"""The chat page, used as a person uses it, in a headless Chromium; skipped where there is none."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chromium import PATIENCE, SHIFT, Chromium, Page, find_chromium
from intaglio.data.formats import Format, detect
from intaglio.data.readers import read_rows
from intaglio.serving.page import files
from scripted_chat import ScriptedChat, scripted_chat, slowly

SOURCES = {path: file.read_text(encoding="utf-8") for path, (file, _) in files().items()}
LONG = [f"word{number} " for number in range(2000)]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for all tests of this file."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    chromium = Chromium(program, tmp_path_factory.mktemp("profile"))
    yield chromium
    chromium.close()


@pytest.fixture
def server() -> Iterator[ScriptedChat]:
    """See `ScriptedChat`."""
    with scripted_chat() as chat:
        yield chat


@pytest.fixture
def page(browser: Chromium, server: ScriptedChat) -> Iterator[Page]:
    """The page, open and ready, in English; no error may be left in the console."""
    with browser.page() as page:
        opened(page, server)
        yield page
        assert page.errors() == []


def opened(page: Page, server: ScriptedChat) -> Page:
    """Opens the chat page and waits for the server's models."""
    page.open(server.address)
    page.wait("document.querySelector('#model').options.length")
    return page


def ask(page: Page, text: str) -> None:
    """Sends a message and waits until its answer has ended."""
    page.click("#prompt")
    page.type(text)
    page.press("Enter")
    ended(page)


def ended(page: Page) -> None:
    """Waits until no answer is being made."""
    page.wait("!document.querySelector('#send').hidden")


def answer(page: Page) -> str:
    """The text of the last turn."""
    return page.text(".turn:last-child .body")


def test_sources_of_an_answer_are_shown_and_stay(page: Page, server: ScriptedChat) -> None:
    found = {
        "file": "guide/ink.md",
        "title": "Ink",
        "text": "Ink <b>dries</b>\nslowly.",
        "by": "model",
        "state": "verified",
    }
    scan = {**found, "file": "scan.pdf", "title": "", "number": 3, "page": 7, "line": 1, "last_line": 1}
    server.citations = [{**found, "number": 1, "page": None, "line": 12, "last_line": 15}, scan]
    ask(page, "How does ink dry?")
    summaries = "[...document.querySelectorAll('.sources summary')].map((one) => one.textContent)"
    shown = ["[1] guide/ink.md, lines 12–15 · Ink", "[3] scan.pdf, page 7"]
    assert page.run(summaries) == shown
    page.click(".sources summary")
    assert page.text(".sources blockquote") == "Ink <b>dries</b>\nslowly."  # text, never elements
    page.reload()
    assert page.run(summaries) == shown
    server.citations = []
    ask(page, "And without any?")
    assert page.count(".turn:last-child .sources") == 0


def test_an_answer_streams_and_outlives_a_reload(page: Page, server: ScriptedChat) -> None:
    page.click("#prompt")
    page.type("Hello")
    page.click("#send")
    ended(page)
    assert answer(page) == "Good day."
    assert re.match(r"3 tokens, [\d.,]+ tokens/s, first after \d+\.\d\d s", page.text(".figures"))
    assert page.text("#room") == "23 of 8,192 tokens"
    page.reload()
    assert page.text(".turn.user .body") == "Hello"
    assert answer(page) == "Good day."
    assert page.text("#conversations a") == "Hello"
    assert server.requests[0]["messages"] == [{"role": "user", "content": "Hello"}]


def test_enter_sends_unless_shift_or_an_input_method_has_it(page: Page, server: ScriptedChat) -> None:
    page.click("#prompt")
    page.type("one")
    page.press("Enter", SHIFT)
    composing = "new KeyboardEvent('keydown', { key: 'Enter', isComposing: true })"
    page.run(f"document.querySelector('#prompt').dispatchEvent({composing})")
    assert not server.requests
    page.type("two")
    page.press("Enter")
    ended(page)
    assert server.requests[0]["messages"][0]["content"] == "one\ntwo"


def test_stopping_leaves_what_came_and_the_server_hears_of_it(page: Page, server: ScriptedChat) -> None:
    server.script = lambda request: slowly(LONG)
    page.click("#prompt")
    page.type("Talk")
    page.press("Enter")
    page.wait("document.querySelectorAll('.token').length > 3")
    page.click("#stop")
    ended(page)
    assert server.gone.wait(10)
    assert answer(page).startswith("word0 word1 word2")
    assert page.text(".turn:last-child .note") == "Stopped."
    server.script = lambda request: ["Yes."]
    ask(page, "Go on")
    assert [message["role"] for message in server.requests[-1]["messages"]] == ["user", "assistant", "user"]


def test_an_answer_that_a_reload_cuts_is_kept_as_far_as_it_came(page: Page, server: ScriptedChat) -> None:
    server.script = lambda request: slowly(LONG)
    page.click("#prompt")
    page.type("Talk")
    page.press("Enter")
    page.wait("document.querySelectorAll('.token').length > 3")
    page.reload()
    assert answer(page).startswith("word0 word1")
    assert page.text(".turn:last-child .note") == "Stopped."


def test_answering_again_keeps_both_answers(page: Page, server: ScriptedChat) -> None:
    ask(page, "Hello")
    server.script = lambda request: ["Another."]
    page.click(".turn.assistant [aria-label='Answer again']")
    page.wait("document.querySelector('.place')")
    ended(page)
    assert (answer(page), page.text(".place")) == ("Another.", "2 of 2")
    page.click("[aria-label='Earlier version']")
    assert (answer(page), page.text(".place")) == ("Good day.", "1 of 2")
    assert server.requests[0]["messages"] == server.requests[1]["messages"]


def test_an_edited_message_is_answered_and_the_old_one_kept(page: Page, server: ScriptedChat) -> None:
    ask(page, "Hello")
    ask(page, "More")
    page.click(".turn.user [aria-label='Edit']")
    page.run("document.querySelector('.editing textarea').select()")
    page.type("Goodbye")
    page.press("Enter")
    page.wait("document.querySelector('.place')")
    ended(page)
    assert server.requests[-1]["messages"] == [{"role": "user", "content": "Goodbye"}]
    assert page.count(".turn") == 2
    page.click("[aria-label='Earlier version']")
    assert page.count(".turn") == 4


def test_an_edited_answer_is_what_the_model_is_told_it_said(page: Page, server: ScriptedChat) -> None:
    ask(page, "Hello")
    page.click(".turn.assistant [aria-label='Edit']")
    page.run("document.querySelector('.editing textarea').select()")
    page.type("Aye.")
    page.click(".turn.assistant button.main")
    ask(page, "More")
    assert server.requests[-1]["messages"][1] == {"role": "assistant", "content": "Aye."}


def test_pointing_at_a_token_shows_its_probability_and_the_others(page: Page) -> None:
    ask(page, "Hello")
    page.hover(".token")
    assert re.sub(r"\s+", " ", page.text("#card")) == "Good 90.0 % log p −0.105 Good 90.0 % ␣other 8.21 %"
    page.hover(".token:nth-of-type(3)")
    assert page.text("#card .chosen code") == "."
    assert page.text("#card li:first-child code") == "␣other"  # it was likelier than what was drawn
    page.hover("#prompt")
    assert page.run("document.querySelector('#card').hidden")


def test_arrow_keys_walk_through_the_tokens(page: Page) -> None:
    ask(page, "Hello")
    page.run("document.querySelector('.turn.assistant .body').focus()")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert page.text("#card code") == "␣day"
    assert "␣day" in page.run("document.querySelector('#status').textContent")
    page.press("ArrowLeft")
    assert page.text("#card code") == "Good"
    page.press("Escape")
    assert page.run("document.querySelector('#card').hidden")


def test_tokens_that_share_a_character_are_shown_together(page: Page, server: ScriptedChat) -> None:
    server.script = lambda request: ["好", b"\xe5", b"\xa5\xbd", "!"]
    ask(page, "Hello")
    assert answer(page) == "好好!"
    page.hover(".token:nth-of-type(2)")
    assert page.count("#card > div") == 2


def test_text_of_a_model_is_never_html(page: Page, server: ScriptedChat) -> None:
    text = "<img src=x onerror='window.pwned=1'> **<script>window.pwned=1</script>** [a](javascript:alert(1))"
    server.script = lambda request: [text]
    ask(page, "<b>Hello</b>")
    assert page.text(".turn.user .body") == "<b>Hello</b>"
    assert page.text(".body strong") == "<script>window.pwned=1</script>"
    assert page.count(".body :is(img, script, a, b)") == 0
    assert page.run("window.pwned") is None


def test_formatting_is_shown_and_can_be_left_out(page: Page, server: ScriptedChat) -> None:
    text = "# Plan\n\nA **bold** and *slanted* `word`, 2 * 3 * 4.\n\n3. one\n4. two\n   - inner\n\n"
    text += "```py\nif a:\n    b()\n```\nend"
    server.script = lambda request: [text[at : at + 3] for at in range(0, len(text), 3)]
    ask(page, "Hello")
    tags = "[...document.querySelectorAll('.assistant .body > *')].map((e) => e.tagName + '.' + e.className).join(' ')"
    assert page.run(tags) == "P.heading P. OL. FIGURE.code P."
    assert page.text(".assistant .body p:nth-of-type(2)") == "A bold and slanted word, 2 * 3 * 4."
    assert page.run("[...document.querySelectorAll('.body li')].map((e) => e.value)") == [3, 4, 0]
    assert page.text("pre") == "if a:\n    b()"
    page.click("#settings-open")
    page.click("#field-markdown")
    assert answer(page) == text


def test_odd_text_is_shown_in_good_time(page: Page) -> None:
    texts = ["`" * 30000, "* **a " * 5000, "- *x\\n" * 3000, "**" * 20000, "# \\n> " * 3000]
    for text in texts:
        seconds = page.run(f"""import('/page/markdown.js').then(({{ render }}) => {{
            const start = performance.now();
            render(document.createElement('div'), "{text}", (start, end) => ["{text}".slice(start, end)]);
            return (performance.now() - start) / 1000;
        }})""")
        assert seconds < 5, text[:12]


def test_the_sampling_panel_fills_the_request(page: Page, server: ScriptedChat) -> None:
    page.click("#settings-open")
    for name, value in {"system_prompt": "Be brief.", "temperature": "0.7", "top_k": "40", "max_tokens": "3"}.items():
        page.click(f"#field-{name}")
        page.type(value)
    ask(page, "Hello")
    request = server.requests[0]
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (request["temperature"], request["top_k"], request["max_tokens"]) == (0.7, 40, 3)
    assert "top_p" not in request
    assert page.text(".turn:last-child .note") == "Cut at the length limit."
    page.click("#new")
    assert page.run("document.querySelector('#field-temperature').value") == "0.7"
    page.click("#field-logprobs")
    ask(page, "Hello")
    assert "logprobs" not in server.requests[1]


def test_a_value_out_of_range_is_not_sent(page: Page, server: ScriptedChat) -> None:
    page.click("#settings-open")
    page.click("#field-top_p")
    page.type("7")
    page.click("#prompt")
    page.type("Hello")
    page.press("Enter")
    assert "out of range" in page.text("#toast")
    assert page.run("document.activeElement.id") == "field-top_p"
    assert not server.requests


def test_the_model_chosen_is_the_one_asked(page: Page, server: ScriptedChat) -> None:
    page.run("document.querySelector('#model').value = 'press-360m'")
    page.run("document.querySelector('#model').dispatchEvent(new Event('change'))")
    ask(page, "Hello")
    assert server.requests[0]["model"] == "press-360m"
    assert page.text(".turn.assistant .who") == "press-360m"


def test_the_page_asks_for_the_key(browser: Chromium, server: ScriptedChat) -> None:
    server.key = "copper"
    with browser.page() as page:
        page.open(server.address)
        page.wait("document.querySelector('#key').open")
        page.type("brass")
        page.press("Enter")
        page.wait("document.querySelector('#key-why').innerText === 'The server refused this key.'")
        page.type("copper")
        page.press("Enter")
        page.wait("document.querySelector('#model').options.length")
        ask(page, "Hello")
        assert answer(page) == "Good day."
        assert page.run("localStorage.getItem('intaglio.key')") is None  # only kept when the reader says so
        page.reload()
        page.wait("document.querySelector('#model').options.length")


def test_without_the_key_the_page_says_so(browser: Chromium, server: ScriptedChat) -> None:
    server.key = "copper"
    with browser.page() as page:
        page.open(server.address)
        page.wait("document.querySelector('#key').open")
        page.press("Escape")
        page.wait("!document.querySelector('#toast').hidden")
        assert "The server asks for an API key." in page.text("#toast")


def test_a_refusal_is_shown_and_can_be_tried_again(browser: Chromium, server: ScriptedChat) -> None:
    too_long = "the prompt has 9000 tokens, the model takes 8192"
    refusals: dict[str, tuple[int, str, dict[str, str]]] = {
        "The server is busy. Try again in 7 s.": (429, "full", {"Retry-After": "7"}),
        "The server is not ready: draining": (503, "draining", {}),
        too_long: (400, too_long, {}),
    }
    with browser.page() as page:
        opened(page, server)
        for words, refusal in refusals.items():
            server.refusal = refusal
            ask(page, "Hello")
            assert page.text(".turn:last-child [role=alert]") == words
        server.refusal = None
        page.click(".turn:last-child footer > button")
        page.wait("document.querySelector('.turn:last-child .figures')")
        ended(page)
        assert answer(page) == "Good day."
        assert server.requests[-1]["messages"] == [{"role": "user", "content": "Hello\n\nHello\n\nHello"}]


def test_an_answer_that_breaks_off_is_said_to(page: Page, server: ScriptedChat) -> None:
    server.broken = True
    ask(page, "Hello")
    assert answer(page) == "Good day."
    assert page.text(".turn:last-child [role=alert]") == "The connection ended before the answer did."


def test_conversations_are_answered_side_by_side_and_can_be_deleted(page: Page, server: ScriptedChat) -> None:
    server.script = lambda request: slowly(["Slow"] * 30, 0.05)
    page.click("#prompt")
    page.type("First")
    page.press("Enter")
    page.wait("document.querySelector('.token')")
    page.click("#new")
    server.script = lambda request: ["Quick"]
    ask(page, "Second")
    assert answer(page) == "Quick"
    page.click("#conversations li:nth-child(2) a")
    page.wait("document.querySelector('.turn.user .body').innerText === 'First'")
    ended(page)
    assert answer(page) == "Slow" * 30
    page.click("[aria-label='Delete “First”']")
    page.wait("document.querySelectorAll('#conversations a').length === 1")
    assert page.count(".turn") == 0
    page.click("#toast button")
    page.wait("document.querySelectorAll('#conversations a').length === 2")
    assert answer(page) == "Slow" * 30


def test_a_conversation_is_saved_as_a_row_that_trains(browser: Chromium, server: ScriptedChat, tmp_path: Path) -> None:
    with browser.page(downloads=tmp_path) as page:
        opened(page, server)
        ask(page, "Hello")
        page.click("#save")
        ends = time.monotonic() + PATIENCE
        while not (tmp_path / "Hello.jsonl").exists() and time.monotonic() < ends:
            time.sleep(0.02)
    assert json.loads((tmp_path / "Hello.jsonl").read_text(encoding="utf-8")) == {
        "messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day."}]
    }
    assert [detect(row) for row in read_rows(tmp_path / "Hello.jsonl")] == [Format.MESSAGES]


def test_the_page_speaks_chinese_to_who_reads_it(browser: Chromium, server: ScriptedChat) -> None:
    with browser.page(language="zh-CN,zh;q=0.9,en;q=0.5") as page:
        opened(page, server)
        server.script = lambda request: ["你", "好", "。"]
        ask(page, "你好")
        assert answer(page) == "你好。"
        assert page.text(".turn.user .who") == "你"
        assert page.text(".figures").startswith("3 个词元")
        assert page.run("document.documentElement.lang") == "zh-Hans"
        page.click("#language")
        assert page.text("#new") == "New conversation"
        page.reload()
        assert page.text(".turn.user .who") == "You"
        assert page.errors() == []


def test_nothing_sticks_out_at_any_width(page: Page, server: ScriptedChat) -> None:
    server.script = lambda request: ["x" * 300, "\n```\n", "y" * 300, "\n```\n"]
    ask(page, "z" * 300)
    outside = """[...document.querySelectorAll('.turn, #composer, .code, main > header')]
        .map((e) => e.getBoundingClientRect()).some(({ left, right }) => left < 0 || right > innerWidth)"""
    scroll = "document.querySelector('#scroll')"
    for width in (360, 768, 1280, 1920):
        page.look(size=(width, 700))
        assert not page.run(f"{outside} || {scroll}.scrollWidth > {scroll}.clientWidth"), width


def test_drawers_lie_over_a_narrow_page_and_escape_closes_them(browser: Chromium, server: ScriptedChat) -> None:
    with browser.page(size=(360, 700)) as page:
        opened(page, server)
        for name in ("sidebar", "settings"):
            hidden = f"document.querySelector('#{name}').hidden"
            assert page.run(hidden)
            page.click(f"#{name}-open")
            assert not page.run(hidden)
            page.press("Escape")
            assert page.run(f"{hidden} && document.activeElement.id === '{name}-open'")


def test_everything_that_can_be_used_has_a_name(page: Page) -> None:
    ask(page, "Hello")
    page.click("#settings-open")
    nameless = """[...document.querySelectorAll("button, input, textarea, select")]
        .filter((e) => !e.ariaLabel && !e.labels?.length && !e.textContent.trim()).map((e) => e.outerHTML)"""
    assert page.run(nameless) == []


def test_light_and_dark_follow_the_system_until_the_reader_chooses(browser: Chromium, server: ScriptedChat) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    with browser.page(dark=True) as page:
        opened(page, server)
        dark = page.run(paper)
        page.click("#theme")
        light = page.run(paper)
        assert dark != light
        page.reload()
        assert page.run(paper) == light


def luminance(colour: str) -> float:
    """WCAG's relative luminance of `#rrggbb`."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_text_stands_out_from_its_ground() -> None:
    pairs = re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", SOURCES["/page/page.css"])
    for scheme in (1, 2):
        colours = {entry[0]: luminance(entry[scheme]) for entry in pairs}
        for ground in ("paper", "sheet"):
            for text in ("ink", "faint", "copper"):
                dim, bright = sorted((colours[ground], colours[text]))
                assert (bright + 0.05) / (dim + 0.05) >= 4.5, (scheme, ground, text)


def test_both_languages_say_everything() -> None:
    words = SOURCES["/page/words.js"]
    english, chinese = (
        dict(re.findall(r'^  (\w+): "(.*)",$', words.split(f"const {name} = {{")[1].split("\n};")[0], re.MULTILINE))
        for name in ("ENGLISH", "CHINESE")
    )
    assert english.keys() == chinese.keys()
    places = re.compile(r"\{\w+\}")
    assert {key: set(places.findall(text)) for key, text in english.items()} == {
        key: set(places.findall(text)) for key, text in chinese.items()
    }
    everything = "".join(text for path, text in SOURCES.items() if path != "/page/words.js")
    assert [key for key in english if not re.search(rf"\b{key.removesuffix('Hint')}\b", everything)] == []
    assert set(re.findall(r'data-(?:t|label|placeholder)="(\w+)"|\bsay\("(\w+)"', everything)) >= {("send", "")}
    used = {one or two for one, two in re.findall(r'data-(?:t|label|placeholder)="(\w+)"|\bsay\("(\w+)"', everything)}
    assert used - english.keys() == set()


def test_nothing_is_parsed_as_html_or_loaded_from_elsewhere() -> None:
    everything = "".join(SOURCES.values())
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", everything) == []
    reached = re.findall(r"(?:src|href|url|import|fetch)\W+(?:https?:)?//[^\"'\s)]+", everything)
    assert reached == []
    parts = set(re.findall(r'(?:from|import|src=|href=) ?"(?:\./|page/)([\w.]+)"', everything))
    assert {f"/page/{name}" for name in parts} == SOURCES.keys() - {"/"}


def test_the_page_is_part_of_the_package() -> None:
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    for suffix in ("html", "css", "js"):
        assert f'"**/*.{suffix}"' in pyproject
