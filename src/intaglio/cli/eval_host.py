"""Where another framework asks: a server of ours, for as long as it is needed, or one that runs already."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from intaglio.errors import UserError
from intaglio.serving.beside import served

if TYPE_CHECKING:
    from intaglio.cli.eval_request import Asked

__all__ = ["Host", "check_tokens", "host"]

_NAME = "measured"
"""What the model, or its adapter, is called at the server that we start."""


@dataclass(frozen=True)
class Host:
    """Where the model can be asked.

    Attributes:
        url: of the server, without `/v1`.
        model: its name there.
        tokenizer: a directory that transformers opens; None where only the server knows the tokenizer.
        bos: whether that puts a BOS before every text.
        longest: tokens of prompt and answer.
        facts: what a repeat needs.
        key: of the server.
    """

    url: str
    model: str
    tokenizer: Path | None
    bos: bool
    longest: int
    facts: Mapping[str, Any]
    key: str | None = None


@contextmanager
def host(asked: "Asked", folder: Path) -> Iterator[Host]:
    """Serves the model, if it is here, and says where it is.

    Args:
        asked: the options of `intaglio eval`.
        folder: for a tokenizer that is no directory yet.

    Raises:
        UserError: the server does not start, or there is none.
    """
    if asked.is_url:
        yield _there(asked)
        return
    options = ["--served-model-name", _NAME if asked.adapter is None else "base"]
    options += [] if asked.adapter is None else ["--adapter", f"{_NAME}={asked.adapter}"]
    for name, value in (("--dtype", asked.dtype), ("--device", asked.device), ("--threads", asked.threads)):
        options += [] if value is None else [name, str(value)]
    with served(asked.model, *options) as url:
        yield _here(asked, url, folder)


def _here(asked: "Asked", url: str, folder: Path) -> Host:
    """A server of ours."""
    from intaglio.adapters.merge import tokenizer_of
    from intaglio.checkpoints.models import find_model, load_tokenizer
    from intaglio.evaluation.subjects.identity import files_hash, template_hash

    path = find_model(asked.model)
    facts: dict[str, Any] = {"name": path.name, "model": asked.model, "model_hash": files_hash(path)}
    tokenizer, owner = load_tokenizer(path), path
    if asked.adapter is not None:
        own, whose = tokenizer_of(asked.model, asked.adapter)
        tokenizer, owner = own or tokenizer, asked.adapter if whose == "adapter" else path
        adapter = {"adapter": str(asked.adapter), "adapter_hash": files_hash(asked.adapter), "merged": False}
        facts |= {**adapter, "name": f"{path.name}+{asked.adapter.name}"}
    if not owner.is_dir():  # a GGUF file
        owner = folder / "tokenizer"
        tokenizer.save(owner)
    facts |= {"dtype": asked.dtype, "device": asked.device, "template_hash": template_hash(tokenizer)}
    return Host(url, _NAME, owner.absolute(), tokenizer.adds_bos, _card(url, _NAME, None)[1], facts)


def _there(asked: "Asked") -> Host:
    """A server that runs already."""
    from intaglio.checkpoints.models import find_model, load_tokenizer
    from intaglio.evaluation.subjects.asking import Asker

    key = asked.key
    facts, longest = _card(asked.model, asked.served, key)
    url = Asker(asked.model, key).url
    if asked.tokenizer is None:
        return Host(url, facts["name"], None, False, longest, facts, key)
    path = find_model(asked.tokenizer)
    return Host(url, facts["name"], path.absolute(), load_tokenizer(path).adds_bos, longest, facts, key)


def _card(url: str, name: str | None, key: str | None) -> tuple[dict[str, Any], int]:
    """What a server says of itself, and how much it reads: lm-eval's own 2,048 tokens where it does not say."""
    from intaglio.evaluation.subjects.asking import Asker
    from intaglio.evaluation.subjects.remote import RemoteSubject

    facts = RemoteSubject(Asker(url, key), name).identity()
    return facts, int(facts.get("max_model_len") or 2048)


def check_tokens(host: Host) -> None:
    """Whether lm-eval can count tokens: it asks a server for them without what the tokenizer adds.

    Raises:
        UserError: it cannot, or would leave out a BOS.
    """
    if host.tokenizer is not None:
        return
    from intaglio.evaluation.subjects.asking import Asker, RefusedError
    from intaglio.evaluation.subjects.subject import SubjectGoneError

    asker, mend = Asker(host.url, host.key), "give --tokenizer DIR, the model's own"
    try:
        asker.get("/tokenizer_info")
        body = {"model": host.model, "prompt": "a"}
        with_it, without = (
            asker.post("/tokenize", {**body, "add_special_tokens": adds})["tokens"] for adds in (True, False)
        )
    except (UserError, RefusedError, SubjectGoneError, KeyError) as error:
        raise UserError("the server does not tell how it tokenises", where=host.url, mend=mend) from error
    if with_it != without:
        raise UserError("lm-eval would leave out the BOS that this model's texts begin with", where=host.url, mend=mend)
