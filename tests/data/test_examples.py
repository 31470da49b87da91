"""Token ids and the mask of what is learned: by position, on real templates, token by token."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from intaglio.data.examples import Counts, Example, MaskPolicy, encode_sample, encode_samples
from intaglio.data.formats import detect, to_sample
from intaglio.data.readers import Row
from intaglio.errors import UserError
from intaglio.text.chat import ChatTemplate, render_chat
from intaglio.text.chat_templates import load_template, template_names
from intaglio.text.tokenizer import Tokenizer, add_border_tokens
from toy_tokenizers import CHATML_TOKENS, FAMILY_TOKENS, byte_level, sentencepiece

SPECIAL = (*CHATML_TOKENS, "<s>", "</s>", *FAMILY_TOKENS)
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
MERGES = [("a", "b"), ("x", "ab")]
CHAT = [
    {"role": "user", "content": "hi </s> there"},
    {"role": "assistant", "content": "hello 你好 user"},
    {"role": "user", "content": "thanks"},
    {"role": "assistant", "content": "the answer </s> is 42"},
]


def tokenizer(template: str = "chatml", build: Any = byte_level, bos: bool = False) -> Tokenizer:
    backend = build(special=SPECIAL)
    if bos:
        add_border_tokens(backend, bos="<s>")
    return Tokenizer(backend, NAMED, chat_templates=load_template(template))


def toy_bpe() -> Tokenizer:
    """Merges a and b to ab, and x and ab to xab."""
    vocab = {token: i for i, token in enumerate(["</s>", "<pad>", "a", "b", "x", "y", "ab", "xab"])}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(backend, {"eos_token": "</s>"})


def encode(value: Any, ours: Tokenizer, policy: MaskPolicy | None = None) -> Example:
    row = Row(value, "f:7")
    return encode_sample(to_sample(row, detect(row)), ours, policy or MaskPolicy())


def learned(example: Example, ours: Tokenizer) -> str:
    return ours.decode(example.ids[example.supervised].tolist(), skip_special_tokens=False)


def tokens(example: Example, ours: Tokenizer) -> list[str | None]:
    return [ours.token(int(i)) for i in example.ids]


ENDS = {
    "chatml": "<|im_end|>",
    "qwen": "<|im_end|>",
    "gemma": "<end_of_turn>",
    "llama3": "<|eot_id|>",
    "phi3": "<|end|>",
}


@pytest.mark.parametrize("name", template_names())
def test_what_is_learned_is_the_answers_and_the_ends_of_their_turns(name: str) -> None:
    ours = tokenizer(name)
    end = ENDS.get(name, "</s>")
    answers = [message["content"] + end for message in CHAT if message["role"] == "assistant"]
    every, last = encode({"messages": CHAT}, ours), encode({"messages": CHAT}, ours, MaskPolicy("last_assistant"))
    padded = {"llama2": " {}", "mistral": " {}"}.get(name, "{}")  # these put a space before an answer
    assert learned(every, ours).replace(" </s>", "</s>") == "".join(map(padded.format, answers)).replace(
        " </s>", "</s>"
    )
    assert learned(last, ours).replace(" </s>", "</s>") == padded.format(answers[1]).replace(" </s>", "</s>")
    assert every.ids.tolist() == last.ids.tolist() == render_chat(ours, CHAT).ids
    assert (every.ids.dtype.name, every.supervised.dtype.name, every.where) == ("int32", "bool", "f:7")


def test_the_end_of_turn_is_learned_where_it_is_not_the_eos() -> None:
    """axolotl#3754: Gemma's <end_of_turn> after the answer, not after the question."""
    ours = tokenizer("gemma")
    example = encode({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hi"}]}, ours)
    ends = np.flatnonzero(example.ids == ours.token_id("<end_of_turn>"))
    assert example.supervised[ends].tolist() == [False, True]
    assert ours.decode(example.ids[ends[1] + 1 :].tolist()) == "\n"
    assert not example.supervised[ends[1] + 1 :].any()


@pytest.mark.parametrize("plain", [False, True])
def test_flags_and_conversational_completions(plain: bool) -> None:
    """With the template's marks and, when they are gone, by prefixes."""
    source = load_template("chatml")
    if plain:
        source = source.replace("{%- generation -%}", "").replace("{%- endgeneration -%}", "")
    ours = Tokenizer(byte_level(SPECIAL), NAMED, chat_templates=source)
    first, second = (CHAT[i]["content"] + "<|im_end|>" for i in (1, 3))
    for unlearned, rest in ((1, second), (3, first)):
        messages = [{**message, "train": False} if i == unlearned else message for i, message in enumerate(CHAT)]
        assert learned(encode({"messages": messages}, ours), ours) == rest
    assert learned(encode({"prompt": CHAT[:3], "completion": CHAT[3:]}, ours), ours) == second
    parted = {"prompt": CHAT[:1], "completion": CHAT[1:]}
    assert learned(encode(parted, ours, MaskPolicy("completion")), ours) == first + second
    whole = encode({"prompt": CHAT[:3], "completion": CHAT[3:]}, ours, MaskPolicy("all"))
    assert whole.supervised.tolist() == [False] + [True] * (len(whole.ids) - 1)


def test_a_flag_holds_for_all_tokens_too() -> None:
    ours = tokenizer()
    messages = [CHAT[0], {**CHAT[1], "train": False}, *CHAT[2:]]
    flagged, not_flagged = encode({"messages": messages}, ours, MaskPolicy("all")), encode({"messages": CHAT}, ours)
    assert flagged.ids.tolist() == not_flagged.ids.tolist()  # the template does not see the flag
    out = ours.decode(flagged.ids[~flagged.supervised].tolist(), skip_special_tokens=False)
    assert out == "<|im_start|>" + CHAT[1]["content"] + "<|im_end|>"


def test_what_tools_say_is_never_learned() -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "K"}}}]}
    said = {"role": "tool", "content": "12 degrees"}
    ours = tokenizer("qwen")
    text = learned(encode({"messages": [CHAT[0], call, said, CHAT[3]]}, ours), ours)
    assert '"weather"' in text
    assert "12 degrees" not in text
    assert text.endswith(CHAT[3]["content"] + "<|im_end|>")


def test_a_template_that_does_not_part_the_answers_cannot_choose_among_them() -> None:
    source = "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}{% endgeneration %}"
    policy = MaskPolicy("last_assistant", ChatTemplate(source))
    with pytest.raises(UserError, match=r"^f:7: the template marks 1 stretches for 2 answers"):
        encode({"messages": CHAT}, tokenizer(), policy)


def test_a_span_that_begins_at_the_first_token() -> None:
    """transformers#47325: answer, then question, one token each; the mask must not run on."""
    source = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
    source += "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    messages = [{"role": "assistant", "content": "A"}, {"role": "user", "content": "B"}]
    for bos, mask in ((False, [False, False]), (True, [False, True, False])):
        ours = Tokenizer(tokenizer(bos=bos).backend, NAMED, chat_templates=source)
        assert render_chat(ours, messages).assistant_mask[-2:] == [True, False]
        example = encode({"messages": messages}, ours)
        assert example.supervised.tolist() == mask  # a document's first token has nothing before it


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("build", [byte_level, sentencepiece])
def test_a_text_is_learned_but_for_its_first_token_and_ends_once(build: Any, bos: bool) -> None:
    ours = tokenizer(build=build, bos=bos)
    for text in ("the user says hi", "the user says hi</s>"):
        example = encode(text, ours)
        assert ours.decode(example.ids.tolist()) == "the user says hi"
        assert tokens(example, ours).count("</s>") == 1
        assert tokens(example, ours)[-1] == "</s>"
        assert tokens(example, ours).count("<s>") == bos
        assert example.supervised.tolist() == [False] + [True] * (len(example.ids) - 1)


def test_prompt_and_completion_are_encoded_apart() -> None:
    """ColossalAI#4490: BPE would merge the prompt's tail with the answer's head."""
    ours = toy_bpe()
    assert [ours.token(i) for i in ours.encode("xaby")] == ["xab", "y"]
    example = encode({"prompt": "xa", "completion": "by"}, ours)
    assert tokens(example, ours) == ["x", "a", "b", "y", "</s>"]
    assert example.supervised.tolist() == [False, False, True, True, True]
    assert example.ids[:2].tolist() == ours.encode("xa")  # what generation begins with
    everything = encode({"prompt": "xa", "completion": "by"}, ours, MaskPolicy("all"))
    assert everything.supervised.tolist() == [False, True, True, True, True]
    assert tokens(encode({"prompt": "xa", "completion": "by</s>"}, ours), ours)[-2:] == ["y", "</s>"]


@given(prompt=st.text("abxy ", max_size=8), completion=st.text("abxy", min_size=1, max_size=8))
def test_each_character_of_a_completion_is_learned_and_none_of_its_prompt(prompt: str, completion: str) -> None:
    ours = toy_bpe()
    example = encode({"prompt": prompt, "completion": completion}, ours)
    spelt = "".join(str(ours.token(int(i))) for i in example.ids[example.supervised])
    first = ours.token(int(example.ids[0])) if not prompt.strip() else ""  # nothing stands before it
    assert f"{first}{spelt}" == completion + "</s>"


def test_an_eos_is_learned_though_it_is_the_padding_too() -> None:
    """trl#6357: padding is found by the mask, never by its id."""
    ours = tokenizer()
    eos = ours.eos_token_id
    assert eos == ours.pad_token_id
    example = encode({"input_ids": [5, eos, 6, eos, eos, eos], "attention_mask": [1, 1, 1, 1, 0, 0]}, ours)
    assert example.ids.tolist() == [5, eos, 6, eos]
    assert example.supervised.tolist() == [False, True, True, True]


def test_labels_are_the_mask() -> None:
    example = encode({"input_ids": [5, 6, 7], "labels": [5, -100, 7]}, tokenizer())
    assert example.supervised.tolist() == [False, False, True]
    with pytest.raises(UserError, match="input_ids: id 9999 is beyond the tokenizer's"):
        encode({"input_ids": [5, 9999]}, tokenizer())


def samples(values: Sequence[Any]) -> list[Any]:
    rows = [Row(value, f"f:{i}") for i, value in enumerate(values)]
    return [to_sample(row, detect(row)) for row in rows]


def test_over_long_rows_are_cut_or_dropped_and_counted() -> None:
    ours = toy_bpe()
    rows = samples([{"prompt": "x x x", "completion": "y y y"}, {"prompt": "x", "completion": "y"}, "x", "y y"])
    counts = Counts()
    cut = list(encode_samples(rows, ours, MaskPolicy(), counts, max_length=4))
    assert [tokens(example, ours) for example in cut] == [
        ["x", "x", "x", "y"],
        ["x", "y", "</s>"],
        ["x", "</s>"],
        ["y", "y", "</s>"],
    ]
    assert cut[0].supervised.tolist() == [False, False, False, True]  # and no EOS that was never there
    assert counts == Counts(read=4, kept=4, truncated=1)
    counts = Counts()
    assert [e.where for e in encode_samples(rows, ours, MaskPolicy(), counts, 4, "drop")] == ["f:1", "f:2", "f:3"]
    assert counts == Counts(read=4, kept=3, dropped_long=1)
    counts = Counts()
    assert [e.where for e in encode_samples(rows, ours, MaskPolicy(), counts, 3)] == ["f:1", "f:2", "f:3"]
    assert counts == Counts(read=4, kept=3, dropped_empty=1)  # nothing but the prompt was left of it


def test_rows_with_nothing_to_learn_are_dropped_and_counted() -> None:
    counts = Counts()
    rows = samples([{"messages": CHAT[:1]}, {"input_ids": [5, 6], "labels": [-100, -100]}, {"input_ids": []}])
    assert list(encode_samples(rows, tokenizer(), MaskPolicy(), counts)) == []
    assert counts == Counts(read=3, dropped_empty=3)


def test_the_masks_of_rows_put_end_to_end() -> None:
    """trl#3728: nothing of a mask is lost; six of these twelve tokens are learned."""
    masks = [[0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1]]
    rows = samples([{"input_ids": [9] * 6, "labels": [9 if on else -100 for on in mask]} for mask in masks])
    examples = list(encode_samples(rows, tokenizer(), MaskPolicy(), Counts()))
    assert np.concatenate([example.supervised for example in examples]).tolist() == [bool(x) for m in masks for x in m]


@pytest.mark.parametrize(
    ("value", "supervise", "message"),
    [
        ("a text", "completion", "supervise=completion means nothing for a text row; take all"),
        ({"messages": CHAT}, "completion", "means nothing for a chat row; take assistant or last_assistant or all"),
        ({"prompt": "a", "completion": "b"}, "assistant", "means nothing for a completion row"),
        ({"input_ids": [1]}, "last_assistant", "means nothing for a tokens row"),
    ],
)
def test_a_policy_that_means_nothing_is_refused(value: Any, supervise: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        encode(value, tokenizer(), MaskPolicy(supervise))


def test_what_cannot_be_encoded_names_its_row() -> None:
    bare = Tokenizer(byte_level(SPECIAL), {})
    with pytest.raises(UserError, match=r"^f:7: the tokenizer has no EOS"):
        encode({"prompt": "a", "completion": "b"}, bare)
    with pytest.raises(UserError, match=r"^f:7: the tokenizer has no chat template"):
        encode({"messages": CHAT}, bare)
    assert encode("ab", bare).ids.tolist() == bare.encode("ab")
