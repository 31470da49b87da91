"""What supervised fine-tuning learns of a chat: the tokens of a rendered conversation, those with a loss filled.

Rendered and masked by what training itself calls; the tokenizer is made from the Python manual, so that nothing has to
be fetched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

from intaglio.atlas.charts import head
from intaglio.atlas.figure import Figure, Say, Words
from intaglio.atlas.small_runs import prose_bytes
from intaglio.atlas.svg import Canvas, text_width
from intaglio.data.examples import MaskPolicy, encode_sample
from intaglio.data.formats import Sample
from intaglio.text.chat import render_chat
from intaglio.text.chat_templates import load_template, tokens_of_template
from intaglio.text.tokenizer import Tokenizer
from intaglio.text.train import train_on

__all__ = ["SupervisedTokens"]

_CHAT: Final = (
    ("system", "Answer in one sentence."),
    ("user", "What is a list?"),
    ("assistant", "A list is a sequence that can be changed in place."),
    ("user", "And a tuple?"),
    ("assistant", "A tuple is a sequence that cannot be changed."),
)
_POLICIES: Final[tuple[Literal["assistant", "last_assistant"], ...]] = ("assistant", "last_assistant")
_TITLES: Final = {
    "assistant": Words("supervise: assistant (what chats have untold)", "supervise: assistant（对话的默认）"),
    "last_assistant": Words("supervise: last_assistant", "supervise: last_assistant"),
}
_SIZE: Final = 11.0
_TALL: Final = 19.0


@dataclass(frozen=True)
class SupervisedTokens(Figure):
    """See above.

    Attributes:
        template: of ours, by its name.
        vocab_size: tokens of the tokenizer.
    """

    name: ClassVar[str] = "sft-mask"
    title: ClassVar[Words] = Words("SFT: which tokens have a loss", "SFT：哪些词元计入损失")
    claim: ClassVar[Words] = Words(
        "Fine-tuning on demonstrations learns the answers, the token that ends each among them, and never what the "
        "user or the system said.",
        "在示范上微调，学的是回答，包括结束它的词元；用户与系统说的话从不计入。",
    )
    template: str = "chatml"
    vocab_size: int = 800

    def data(self) -> Any:
        source = load_template(self.template)
        text = bytes(prose_bytes().tolist()).decode("utf-8")
        tokenizer = train_on([text], self.vocab_size).with_template(source, tokens_of_template(source) or ())
        messages = tuple({"role": role, "content": said} for role, said in _CHAT)
        rendered = render_chat(tokenizer, messages)
        sample = Sample("chat", self.name, messages=messages)
        return {
            "tokens": [rendered.text[start:end] for start, end in rendered.offsets],
            "masks": {policy: _mask(sample, tokenizer, policy) for policy in _POLICIES},
        }

    def caption(self, data: Any) -> Words:
        every = len(data["tokens"])
        whole, last = (sum(data["masks"][policy]) for policy in _POLICIES)
        answers = sum(role == "assistant" for role, _ in _CHAT)
        return Words(
            f"{len(_CHAT)} messages in the template {self.template}, {every} tokens, · a space and ↵ a line break. Of "
            f"these {whole} have a loss (filled): the {answers} answers with the mark that ends each, not the line "
            f"break behind it and not the words that announce an answer, which a prompt gives. With the last answer "
            f"alone it is {last}. A token is filled where it is the target: its loss is computed one place earlier.",
            f"用模板 {self.template} 渲染的 {len(_CHAT)} 条消息，共 {every} 个词元，· 为空格，↵ 为换行。其中 {whole} 个"
            f"计入损失（填色）：{answers} 个回答连同各自的结束标记，不含其后的换行，也不含宣告回答开始的词，那是提示给"
            f"出的。只学最后一个回答时为 {last} 个。填色的词元是目标：它的损失在前一个位置计算。",
        )

    def draw(self, data: Any, say: Say) -> Sequence[Canvas]:
        return [_flow(say(*_TITLES[policy]), data["tokens"], mask, say) for policy, mask in data["masks"].items()]


def _mask(sample: Sample, tokenizer: Tokenizer, policy: Literal["assistant", "last_assistant"]) -> list[int]:
    return [int(on) for on in encode_sample(sample, tokenizer, MaskPolicy(policy)).supervised]


def _flow(title: str, tokens: Sequence[str], mask: Sequence[int], say: Say, width: float = 440) -> Canvas:
    """Tokens as boxes from left to right; what follows a line break begins a new line."""
    canvas = Canvas(width, 0)
    y = _key(canvas, head(canvas, title), say)
    x = 12.0
    for place, (token, on) in enumerate(zip(tokens, mask, strict=True)):
        shown = token.replace(" ", "·").replace("\n", "↵")
        wide = text_width(shown, _SIZE) + 7
        if x + wide > width - 8 or (place and tokens[place - 1].endswith("\n")):
            x, y = 12.0, y + _TALL + 3
        _token(canvas, shown, x, y, wide, bool(on))
        x += wide + 2
    canvas.height = y + _TALL + 8
    return canvas


def _token(canvas: Canvas, shown: str, x: float, y: float, wide: float, on: bool) -> None:
    canvas.rect(x, y, wide, _TALL, "b0" if on else "box", round_by=3)
    canvas.text(x + wide / 2, y + 13.5, shown, "on0" if on else "ink", size=_SIZE, anchor="middle")


def _key(canvas: Canvas, top: float, say: Say) -> float:
    """What a box means; returns the y under it."""
    x = 12.0
    for on, words in ((True, say("has a loss", "计入损失")), (False, say("only read", "只读不学"))):
        canvas.rect(x, top + 4, 16, 12, "b0" if on else "box", round_by=3)
        x += 30 + canvas.text(x + 21, top + 14, words, "faint", size=_SIZE) + 12
    return top + 26
