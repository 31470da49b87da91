"""A headless Chromium, driven over its debugging pipe: clicks, keys, pictures; no driver and no library of its own.

The protocol: https://chromedevtools.github.io/devtools-protocol/; one JSON message after the other, each ended by a 0.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 30.0  # seconds; a busy machine is no finding
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-extensions",
    "--hide-scrollbars",
    "--no-first-run",
    "--no-proxy-server",
    "--remote-debugging-pipe",
    # a mouse that points and hovers
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2,primaryPointerType=4,availablePointerTypes=4",
)
KEYS = {"Enter": ("\r", 13), "Escape": ("", 27), "ArrowRight": ("", 39), "ArrowLeft": ("", 37), "Tab": ("", 9)}
SHIFT = 8


def find_chromium() -> str | None:
    """Where a Chromium is on this machine, if anywhere."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromium:
    """The browser's process and its pipe."""

    def __init__(self, program: str, profile: Path) -> None:
        orders, self._orders = os.pipe()
        self._answers, answers = os.pipe()

        def as_three_and_four() -> None:
            for end, wanted in [(os.dup(orders), 3), (os.dup(answers), 4)]:
                os.dup2(end, wanted)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}"],
            preexec_fn=as_three_and_four,
            close_fds=False,
            stderr=subprocess.DEVNULL,
        )
        os.close(orders)
        os.close(answers)
        self._rest = b""
        self._count = 0
        self._inbox: list[dict[str, Any]] = []
        self._page: Page | None = None

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """What the browser answers to `method`; its complaint is an `AssertionError`."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        os.write(self._orders, json.dumps({**message, **({"sessionId": session} if session else {})}).encode() + b"\0")
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            answer = self._receive(ends - time.monotonic())
            if answer and answer.get("id") == self._count:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._inbox += [answer] if answer else []
        raise AssertionError(f"Chromium does not answer {method}")

    def _receive(self, seconds: float) -> dict[str, Any] | None:
        while b"\0" not in self._rest:
            if not select.select([self._answers], [], [], max(0.0, seconds))[0]:
                return None
            more = os.read(self._answers, 1 << 20)
            assert more, "Chromium ended"
            self._rest += more
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def events(self, session: str) -> list[dict[str, Any]]:
        """What the browser said unasked about `session` since it started."""
        while message := self._receive(0):
            self._inbox.append(message)
        return [message for message in self._inbox if message.get("sessionId") == session]

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        os.close(self._orders)
        os.close(self._answers)

    @contextmanager
    def page(
        self,
        *,
        language: str = "en-GB",
        dark: bool = False,
        size: tuple[int, int] = (1280, 800),
        downloads: Path | None = None,
    ) -> Iterator["Page"]:
        """The one tab, which is new to every address that it has not seen, with a folder for what it saves."""
        self._inbox.clear()
        self._page = self._page or Page(self)
        self._page.look(dark=dark, size=size)
        self._page.call("Emulation.setUserAgentOverride", userAgent="Test", acceptLanguage=language)
        if downloads:
            self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
        yield self._page
        self._page.call("Page.navigate", url="about:blank")


class Page:
    """One tab: what a person does with it, and what is on it."""

    def __init__(self, browser: Chromium) -> None:
        self._browser = browser
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """See `Chromium.call`."""
        return self._browser.call(method, self._session, **parameters)

    def look(self, *, dark: bool = False, size: tuple[int, int] = (1280, 800)) -> None:
        """Sets the colours that the system prefers and the size of the window."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        width, height = size
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, address: str) -> None:
        """Loads `address`; returns when its scripts have run."""
        self.call("Page.navigate", url=address)
        self.wait(f"document.readyState === 'complete' && location.href === {json.dumps(address)}")

    def reload(self) -> None:
        """Loads the page again, as a reader would."""
        self.run("window.stale = true")
        self.call("Page.reload")
        self.wait("!window.stale && document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait(self, condition: str) -> Any:
        """Waits until a JavaScript expression is true, or finds an element; returns its value."""
        ends = time.monotonic() + PATIENCE
        while time.monotonic() < ends:
            if value := self.run(f"((found) => found instanceof Node || found)({condition})"):
                return value
            time.sleep(0.02)
        raise AssertionError(f"never true: {condition}\nerrors: {self.errors()}\n{self.run('document.body.innerText')}")

    def text(self, selector: str) -> str:
        """The text of the first element that fits."""
        return self.run(f"document.querySelector({json.dumps(selector)}).innerText")

    def count(self, selector: str) -> int:
        """How many elements fit."""
        return self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    def centre(self, selector: str) -> tuple[float, float]:
        """Where the first visible element that fits is, once there is one and nothing lies over it."""
        found = f"""(() => {{
            const shown = [...document.querySelectorAll({json.dumps(selector)})].find((e) => e.getClientRects().length);
            shown?.scrollIntoView({{ block: "nearest" }});
            const box = shown?.getClientRects()[0];
            const [x, y] = box ? [box.x + box.width / 2, box.y + box.height / 2] : [];
            return box && shown.contains(document.elementFromPoint(x, y)) && [x, y];
        }})()"""
        x, y = self.wait(found)
        return x, y

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """`mouseMoved`, `mousePressed` or `mouseReleased` at a point of the window."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def hover(self, selector: str) -> None:
        """Points at an element."""
        self.mouse("mouseMoved", *self.centre(selector))

    def click(self, selector: str) -> None:
        """Clicks on an element where it is."""
        x, y = self.centre(selector)
        self.mouse("mouseMoved", x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Types into whatever has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str, modifiers: int = 0) -> None:
        """Presses one of `KEYS`."""
        text, code = KEYS[key]
        more = {"key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers}
        self.call("Input.dispatchKeyEvent", type="keyDown", **more, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **more)

    def errors(self) -> list[str]:
        """Exceptions that nobody caught, and what the browser logged as an error, as a breach of the page's policy."""
        found = []
        for event in self._browser.events(self._session):
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(event["params"]["exceptionDetails"]))
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found

    def picture(self, file: Path) -> None:
        """Writes what is seen to a PNG file."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
