"""What is asked: random words of a length in tokens, or the rows of a file.

Random words are single tokens of the model, so that their number is a prompt's length: of the tokenizer that the user
gives, or else of the server's `/tokenize` (vLLM's and ours, or llama.cpp's). A server that has none is sent as many
words as tokens were asked for, and its usage says how many tokens that was. For completions the prompt is token ids and
exact; a chat's template adds its own tokens.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.data.readers import Row, read_rows
from intaglio.data.turns import messages_of_sharegpt
from intaglio.errors import UserError
from intaglio.evaluation.load.conversations import Conversation, Turn, turns_of
from intaglio.evaluation.load.lengths import Lengths
from intaglio.evaluation.load.target import Endpoint, Prompt, Target, ask
from intaglio.files import read_text

if TYPE_CHECKING:
    import httpx2

__all__ = ["FilePrompts", "Prompts", "RandomPrompts", "Vocabulary", "read_prompts", "words_of"]

_WORDS = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body "
    "information back parent face others level office door health person art war history party result change morning "
    "reason research girl guy moment air teacher force education"
).split()
_USUAL, _ONE = Lengths.fixed(128), Lengths.fixed(1)
_AT_ONCE = 8  # words that are asked about


@dataclass(frozen=True)
class Vocabulary:
    """Words to make prompts of.

    Attributes:
        words: each with a blank before it.
        ids: the token that each of them is; nothing where nobody says.
    """

    words: tuple[str, ...]
    ids: tuple[int, ...] = ()

    def prompt(self, places: Sequence[int], endpoint: Endpoint) -> Prompt:
        """The words at these places, one after the other."""
        if endpoint == "completions" and self.ids:
            return [self.ids[place] for place in places]
        return "".join(self.words[place] for place in places)


async def words_of(client: "httpx2.AsyncClient", target: Target) -> Vocabulary:
    """The words that are one token of the target's model each; all words, without ids, where nobody says.

    Raises:
        UserError: the tokenizer knows none of our words as a token.
    """
    words = tuple(f" {word}" for word in _WORDS)
    if target.tokenizer is None:
        rows = await _asked(client, target, words)
    else:
        rows = target.tokenizer.encode_batch(words, add_special_tokens=False)
    if rows is None:
        return Vocabulary(words)
    found = {word: row[0] for word, row in zip(words, rows, strict=True) if len(row) == 1}
    if len(found) < 2:
        raise UserError("the words that we know are no tokens of this model", where=target.url, mend="give --prompts")
    return Vocabulary(tuple(found), tuple(found.values()))


async def _asked(client: "httpx2.AsyncClient", target: Target, words: Sequence[str]) -> list[list[int]] | None:
    """The ids of each word, as the server has them; None where it does not tokenise."""
    rows: dict[str, list[int]] = {}
    left = iter(words)

    async def one_after_another() -> None:
        for word in left:
            asked = {"model": target.model, "prompt": word, "content": word, "add_special_tokens": False}
            rows[word] = (await ask(client, target, "POST", "/tokenize", asked))["tokens"]

    try:
        await asyncio.gather(*(one_after_another() for _ in range(_AT_ONCE)))
    except (UserError, KeyError):
        return None
    return [rows[word] for word in words]


@dataclass(frozen=True)
class RandomPrompts:
    """Conversations of random words.

    Attributes:
        input_tokens: of what is said in a turn.
        output_tokens: of an answer.
        shared: of a first turn's tokens, those that all conversations have in common.
        prefixes: how many such beginnings there are; the conversations take them in turn.
        turns: how many turns a conversation has.
        seed: of everything.
    """

    input_tokens: Lengths = _USUAL
    output_tokens: Lengths = _USUAL
    shared: int = 0
    prefixes: int = 1
    turns: Lengths = _ONE
    seed: int = 0

    @property
    def multi_turn(self) -> bool:
        """Whether any conversation has more than one turn."""
        return self.turns.said != "1"

    def conversations(self, vocabulary: Vocabulary, endpoint: Endpoint, fresh: str) -> Iterator[Conversation]:
        """Without end; the shared beginnings hang on the seed alone, the rest on `fresh` too."""
        places = range(len(vocabulary.words))
        dice = random.Random(self.seed)
        starts = [dice.choices(places, k=self.shared) for _ in range(self.prefixes)]
        dice.seed(f"{self.seed} {fresh}")
        for number in count():
            start = starts[number % self.prefixes]
            turns = []
            for _ in range(self.turns.draw(dice)):
                length = max(self.input_tokens.draw(dice), len(start))
                row = [*start, *dice.choices(places, k=length - len(start))]
                turns.append(Turn(vocabulary.prompt(row, endpoint), self.output_tokens.draw(dice)))
                start = []
            yield tuple(turns)


@dataclass(frozen=True)
class FilePrompts:
    """The rows of a file, over and over.

    Attributes:
        rows: conversations; answers of 0 tokens are as long as `output_tokens` says.
        output_tokens: of an answer.
        seed: of the lengths.
    """

    rows: tuple[Conversation, ...]
    output_tokens: Lengths = _USUAL
    seed: int = 0

    @property
    def multi_turn(self) -> bool:
        """Whether any conversation has more than one turn."""
        return any(len(row) > 1 for row in self.rows)

    def conversations(self, vocabulary: Vocabulary, endpoint: Endpoint, fresh: str) -> Iterator[Conversation]:
        """Without end, in the order of the file."""
        dice = random.Random(f"{self.seed} {fresh}")
        for row in cycle(self.rows):
            yield tuple(replace(turn, max_tokens=turn.max_tokens or self.output_tokens.draw(dice)) for turn in row)


Prompts = RandomPrompts | FilePrompts


def read_prompts(file: Path, multi_turn: bool = False) -> tuple[Conversation, ...]:
    """The prompts of a file: of text a prompt a line, else a row each, in any format that rows of data come in.

    A row has `prompt` (a text or messages), `messages`, ShareGPT's `conversations`, `question` or `text`, and may have
    `max_tokens`. Of messages, what the assistant says last is left out; of several turns, all that it says.

    Args:
        file: `.txt`, `.jsonl`, `.json`, `.csv` or `.parquet`.
        multi_turn: whether messages are told turn by turn, each after the model's answer to the one before.

    Raises:
        UserError: no such file, no prompts, or a row that has none.
    """
    rows: tuple[Conversation, ...]
    if file.suffix == ".txt":
        lines = filter(None, map(str.strip, read_text(file).splitlines()))
        rows = tuple((Turn(line, 0),) for line in lines)
    else:
        rows = tuple(_conversation(row, multi_turn) for row in read_rows(file))
    if not rows:
        raise UserError("there are no prompts", where=str(file))
    return rows


def _conversation(row: Row, multi_turn: bool) -> Conversation:
    value: dict[str, Any] = row.value if isinstance(row.value, dict) else {"text": row.value}
    said = next((value[key] for key in ("prompt", "messages", "question", "text") if value.get(key)), None)
    if said is None and value.get("conversations"):
        said = messages_of_sharegpt(value["conversations"], row.where)
    limit = value.get("max_tokens") or 0
    if isinstance(said, str):
        return (Turn(said, limit),)
    if not isinstance(said, list) or not all(isinstance(message, dict) for message in said):
        raise UserError("no `prompt`, `messages`, `conversations`, `question` or `text`", where=row.where)
    if multi_turn:
        return tuple(Turn(turn, limit) for turn in turns_of(said))
    while said and said[-1].get("role") == "assistant":
        said = said[:-1]
    return (Turn(said, limit),)
