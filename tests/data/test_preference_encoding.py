"""The ids of preferences: prompt and answers put together are the whole, cut fairly, masked by position."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intaglio.data.examples import Counts, MaskPolicy, encode_sample
from intaglio.data.formats import Format, to_sample
from intaglio.data.preference_encoding import (
    CompletionExample,
    PairExample,
    encode_judged,
    encode_preference,
    encode_prompt,
    encode_prompts,
    fitting,
)
from intaglio.data.preferences import Judged, judged_of, preferences_of, prompt_of
from intaglio.data.readers import Row
from intaglio.errors import UserError
from intaglio.text.chat import ChatTemplate, render_chat
from intaglio.text.chat_templates import load_template, template_names
from intaglio.text.tokenizer import Tokenizer, add_border_tokens
from toy_tokenizers import CHATML_TOKENS, FAMILY_TOKENS, byte_level, sentencepiece

SPECIAL = (*CHATML_TOKENS, "<s>", "</s>", *FAMILY_TOKENS)
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}  # pad == EOS, as so often

R1 = (
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>{{ m.content }}{% else %}"
    "<|im_end|>{{ m.content.split('</think>')[-1] }}</s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_end|><think>\n{% endif %}"
)
"""What DeepSeek-R1 does: a prompt ends with a mark that is gone once an answer follows."""

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if loop.last and '</think>' not in m.content and m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
"""What Qwen3 does: an answer without thoughts is given empty ones, so that the sides share less than the prompt."""


JOINED = {"llama3"}
"""Templates whose prompt ends in two line breaks, which GPT-2's pattern joins at the end and parts before a word."""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


ASKED = [user("hi </s> there"), assistant("hello"), user("thanks")]
GOOD, BAD = [assistant("the answer </s> is 42")], [assistant("你好")]
CHAT = {"prompt": ASKED, "chosen": GOOD, "rejected": BAD}
TEXTS = {"prompt": "the user", "chosen": " says hi", "rejected": " says hello there</s>"}


def tokenizer(template: str = "chatml", bos: bool = False) -> Tokenizer:
    backend = byte_level(special=SPECIAL)
    if bos:
        add_border_tokens(backend, bos="<s>")
    return Tokenizer(backend, NAMED, chat_templates=load_template(template))


def pair(value: dict[str, Any], ours: Tokenizer, policy: MaskPolicy | None = None) -> PairExample:
    (preference,) = preferences_of(Row(value, "f:7"))
    return encode_preference(preference, ours, policy or MaskPolicy())


def text(ids: np.ndarray, ours: Tokenizer) -> str:
    return ours.decode(ids.tolist(), skip_special_tokens=False)


def counting(example: PairExample, ours: Tokenizer) -> list[str]:
    return [text(ids[mask], ours) for ids, mask in zip(example.completions, example.masks, strict=True)]


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize("name", template_names())
def test_prompt_and_side_are_the_ids_of_the_whole_chat_and_the_prompt_those_of_generation(name: str, bos: bool) -> None:
    ours = tokenizer(name, bos)
    example = pair(CHAT, ours)
    for side, ids in ((GOOD, example.chosen), (BAD, example.rejected)):
        whole = render_chat(ours, [*ASKED, *side]).ids
        assert [*example.prompt, *ids] == whole[: len(example.prompt) + len(ids)]
        assert not text(np.array(whole[len(example.prompt) + len(ids) :]), ours).strip()
    asked = render_chat(ours, ASKED, add_generation_prompt=True).ids
    assert example.prompt.tolist() == (asked[:-1] if name in JOINED else asked)
    assert example.border_moved is (name in JOINED)
    assert {example.prompt.dtype, example.chosen.dtype} == {np.dtype(np.int32)}


@pytest.mark.parametrize("name", template_names())
def test_what_counts_of_an_answer_is_what_fine_tuning_learns_of_it(name: str) -> None:
    ours = tokenizer(name)
    sample = to_sample(Row({"prompt": ASKED, "completion": GOOD}, "f"), Format.PROMPT_COMPLETION)
    learned = encode_sample(sample, ours, MaskPolicy())
    example = pair(CHAT, ours)
    assert example.chosen[example.masks[0]].tolist() == learned.ids[learned.supervised].tolist()
    assert encode_judged(Judged("f", tuple(ASKED), tuple(GOOD), True), ours, MaskPolicy()).completion.tolist() == (
        example.chosen.tolist()
    )


def test_a_chat_says_what_the_reference_says() -> None:
    from transformers import PreTrainedTokenizerFast
    from trl.data_utils import apply_chat_template

    ours = tokenizer()
    theirs = PreTrainedTokenizerFast(tokenizer_object=ours.backend, **NAMED)
    theirs.chat_template = ours.chat_templates["default"]
    expected, example = apply_chat_template(CHAT, theirs), pair(CHAT, ours)
    assert text(example.prompt, ours) == expected["prompt"]
    # what stands behind the end of a turn is no part of an answer here: an engine stops before it
    assert text(example.chosen, ours) == expected["chosen"].rstrip()
    assert text(example.rejected, ours) == expected["rejected"].rstrip()


@pytest.mark.parametrize("bos", [False, True])
def test_texts_are_encoded_apart_and_each_side_ends_in_one_eos(bos: bool) -> None:
    ours = tokenizer(bos=bos)
    example, eos = pair(TEXTS, ours), ours.eos_token_id
    assert example.prompt.tolist() == ours.encode("the user")
    assert example.chosen.tolist() == [*ours.encode(" says hi", add_special_tokens=False), eos]
    assert example.rejected.tolist() == ours.encode(" says hello there</s>", add_special_tokens=False)
    assert example.rejected[-2:].tolist().count(eos) == 1
    assert example.chosen_mask is example.rejected_mask is None
    assert len(example) == len(example.prompt) + len(example.chosen) + len(example.rejected)


def test_a_mark_that_ends_the_prompt_and_is_gone_with_an_answer_moves_the_border_back() -> None:
    ours = tokenizer()
    policy = MaskPolicy(template=ChatTemplate(R1, ours.special_tokens))
    example = pair({**CHAT, "prompt": ASKED[:1]}, ours, policy)
    assert text(example.prompt, ours) == "<|im_start|>hi </s> there<|im_end|>"
    assert counting(example, ours) == ["the answer </s> is 42</s>", "你好</s>"]
    assert example.border_moved


def test_sides_that_share_less_than_the_prompt_keep_all_they_say() -> None:
    ours = tokenizer()
    policy = MaskPolicy(template=ChatTemplate(THINKING, ours.special_tokens))
    sides = [assistant("<think>\nhm\n</think>\n\nyes")], [assistant("no")]
    example = pair({"prompt": [user("hi")], "chosen": sides[0], "rejected": sides[1]}, ours, policy)
    for side, ids in zip(sides, example.completions, strict=True):
        whole = render_chat(ours, [user("hi"), *side], template=policy.template)
        assert [*example.prompt, *ids] == whole.ids[: len(example.prompt) + len(ids)]
        assert text(np.concatenate([example.prompt, ids]), ours) == whole.text.rstrip()
    assert text(example.prompt, ours).startswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>")
    good, bad = (text(ids, ours) for ids in example.completions)
    assert good.endswith("hm\n</think>\n\nyes<|im_end|>")
    assert bad.endswith("</think>\n\nno<|im_end|>")


def test_what_others_say_between_an_assistants_answers_does_not_count() -> None:
    ours = tokenizer()
    long = [assistant("one"), user("and </s>?"), assistant("two")]
    example = pair({"prompt": ASKED, "chosen": long, "rejected": BAD}, ours)
    assert text(example.chosen, ours).count("<|im_end|>") == 3
    assert counting(example, ours) == ["one<|im_end|>two<|im_end|>", "你好<|im_end|>"]
    assert example.rejected_mask is None


def test_sides_may_begin_with_the_user() -> None:
    ours = tokenizer()
    example = pair({"prompt": ASKED[:2], "chosen": [user("a"), *GOOD], "rejected": [user("b"), *BAD]}, ours)
    assert text(example.prompt, ours).endswith("hello<|im_end|>\n")
    assert counting(example, ours) == ["the answer </s> is 42<|im_end|>", "你好<|im_end|>"]


def test_nothing_stands_before_the_first_token_of_an_empty_prompt() -> None:
    bare, begun = (pair({**TEXTS, "prompt": ""}, tokenizer(bos=bos)) for bos in (False, True))
    assert len(bare.prompt) == 0
    assert [mask.tolist() for mask in bare.masks] == [[False] + [True] * (len(ids) - 1) for ids in bare.completions]
    assert (len(begun.prompt), begun.chosen_mask) == (1, None)


def fitted(example: PairExample, length: int | None, over_long: Any = "truncate") -> tuple[PairExample | None, Counts]:
    counts = Counts()
    return next(fitting([example], counts, length, over_long), None), counts


def kept(example: PairExample, length: int | None) -> tuple[PairExample, Counts]:
    """What is there after fitting."""
    found, counts = fitted(example, length)
    assert found is not None
    return found, counts


def test_truncation_bounds_the_prompt_with_its_longer_side_and_keeps_the_beginning() -> None:
    example = pair(TEXTS, tokenizer())
    prompt, chosen, rejected = len(example.prompt), len(example.chosen), len(example.rejected)
    assert chosen < rejected
    same, counts = kept(example, prompt + rejected)
    assert (len(same), counts) == (len(example), Counts(1, 1))
    shorter, counts = kept(example, prompt + chosen)
    assert (len(shorter.chosen), len(shorter.rejected)) == (chosen, chosen)
    assert shorter.rejected.tolist() == example.rejected[:chosen].tolist()  # without an EOS of our own
    assert counts == Counts(1, 1, truncated=1)
    least, counts = kept(example, prompt + 1)
    assert (len(least.chosen), len(least.rejected), counts.kept) == (1, 1, 1)


def test_a_pair_that_loses_a_side_is_left_out_and_counted() -> None:
    example = pair(TEXTS, tokenizer())
    assert fitted(example, len(example.prompt)) == (None, Counts(1, dropped_long=1))
    assert fitted(example, len(example.prompt) - 1) == (None, Counts(1, dropped_long=1))
    assert fitted(example, len(example.prompt) + 1, "drop") == (None, Counts(1, dropped_long=1))
    first_only = replace(example, rejected_mask=np.arange(len(example.rejected)) > 1)
    assert fitted(first_only, len(example.prompt) + 2) == (None, Counts(1, dropped_empty=1))
    assert fitted(replace(example, chosen=example.chosen[:0]), None) == (None, Counts(1, dropped_empty=1))


def test_masks_are_cut_with_their_ids_and_forgotten_where_all_counts() -> None:
    example = pair({**TEXTS, "prompt": ""}, tokenizer())
    shorter, _ = kept(example, 3)
    assert [mask.tolist() for mask in shorter.masks] == [[False, True, True]] * 2
    full, _ = kept(replace(example, chosen_mask=np.ones(len(example.chosen), dtype=bool)), None)
    assert full.chosen_mask is None


def test_rows_go_through_and_are_counted() -> None:
    ours, counts = tokenizer(), Counts()
    ranking = preferences_of(Row({"prompt": ASKED, "answers": ["hi", "hello", "the"]}, "f:1"))
    examples = list(fitting((encode_preference(one, ours, MaskPolicy()) for one in ranking), counts))
    assert [example.weight for example in examples] == [1 / 3] * 3
    assert counts == Counts(3, 3)
    judged = [judged_of(Row({"prompt": "the", "completion": " user", "label": i == 0}, f"f:{i}")) for i in range(2)]
    answered = (encode_judged(one, ours, MaskPolicy()) for one in judged)
    found = list(fitting(answered, counts := Counts(), max_length=2))
    assert [(example.label, len(example.completion)) for example in found] == [(True, 1), (False, 1)]
    assert counts == Counts(2, 2, truncated=2)


def test_a_moved_border_is_counted() -> None:
    ours = tokenizer()
    policy = MaskPolicy(template=ChatTemplate(R1, ours.special_tokens))
    counts = Counts()
    list(fitting([encode_preference(preferences_of(Row(CHAT, "f"))[0], ours, policy)], counts))
    assert counts == Counts(1, 1, border_moved=1)


def test_a_judged_answer_is_a_prompt_with_one_side() -> None:
    ours = tokenizer()
    example = encode_judged(
        judged_of(Row({"prompt": ASKED, "completion": GOOD, "label": 0}, "f:7")), ours, MaskPolicy()
    )
    both = pair(CHAT, ours)
    assert example.prompt.tolist() == both.prompt.tolist()
    assert example.completion.tolist() == both.chosen.tolist()
    assert (example.label, example.where, len(example)) == (False, "f:7", len(both.prompt) + len(both.chosen))
    (cut,) = fitting([example], Counts(), len(example.prompt) + 2)
    assert isinstance(cut, CompletionExample)
    assert len(cut.completion) == 2
    assert not list(fitting([example], Counts(), len(example.prompt)))


def test_prompts_are_what_the_engine_is_given_and_never_cut() -> None:
    ours, counts = tokenizer(bos=True), Counts()
    rows = [Row({"prompt": ASKED, "answer": 42}, "f:1"), Row({"prompt": "the user"}, "f:2")]
    chat, plain = (encode_prompt(prompt_of(row), ours, MaskPolicy()) for row in rows)
    assert chat.prompt.tolist() == render_chat(ours, ASKED, add_generation_prompt=True).ids
    assert (chat.columns, chat.source, chat.where) == ({"answer": 42}, tuple(ASKED), "f:1")
    assert plain.prompt.tolist() == ours.encode("the user")
    kept = list(encode_prompts(map(prompt_of, rows), ours, MaskPolicy(), counts, max_length=len(plain.prompt)))
    assert [example.where for example in kept] == ["f:2"]
    assert counts == Counts(2, 1, dropped_long=1)
    with pytest.raises(UserError, match="f:9: prompt: ends with an answer"):
        encode_prompt(prompt_of(Row({"prompt": ASKED[:2]}, "f:9")), ours, MaskPolicy())


def test_what_cannot_be_encoded_names_its_row() -> None:
    ours = tokenizer()
    with pytest.raises(UserError, match=r"^f:7: supervise=all means nothing for preferences"):
        pair(TEXTS, ours, MaskPolicy("all"))
    with pytest.raises(UserError, match=r"^f:7: the tokenizer has no EOS"):
        pair(TEXTS, Tokenizer(byte_level(), {}))
    with pytest.raises(UserError, match=r"^f:7: the tokenizer has no chat template"):
        pair(CHAT, Tokenizer(byte_level(special=SPECIAL), NAMED))


SAID = st.lists(st.sampled_from(["hi", "the", "\n", " ", "</s>", "你", "<|im_end|>", "<"]), min_size=1).map("".join)


@settings(max_examples=40)
@given(st.lists(SAID, min_size=3, max_size=3))
def test_whatever_is_said_the_pieces_are_the_whole(said: list[str]) -> None:
    pieces = Tokenizer(sentencepiece(special=CHATML_TOKENS), NAMED, chat_templates=load_template("chatml"))
    for ours in (tokenizer(bos=True), pieces):
        example = pair(
            {"prompt": [user(said[0])], "chosen": [assistant(said[1])], "rejected": [assistant(said[2])]}, ours
        )
        for answer, ids, mask in zip(said[1:], example.completions, example.masks, strict=True):
            whole = render_chat(ours, [user(said[0]), assistant(answer)])
            assert [*example.prompt, *ids] == whole.ids[: len(example.prompt) + len(ids)]
            assert mask.tolist() == whole.assistant_mask[len(example.prompt) : len(example.prompt) + len(ids)]
            assert not any(whole.assistant_mask[len(example.prompt) + len(ids) :])
            assert not any(whole.assistant_mask[: len(example.prompt)])
