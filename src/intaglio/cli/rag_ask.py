"""`intaglio rag search`, `ask`, `eval` and `questions`: from a question to its answer, and how good that is."""

import json as json_module
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from intaglio.cli import options
from intaglio.errors import UserError
from intaglio.files import write_json_lines

if TYPE_CHECKING:
    from intaglio.retrieval.answer import Answer
    from intaglio.retrieval.answerers import Answerer
    from intaglio.retrieval.search import Hit, Reranker

_DEFAULT_MODEL = "smollm2-135m-instruct"
_LLM = "llm"

IndexPath = Annotated[Path, typer.Argument(metavar="INDEX", help="What `intaglio rag index` made.")]
Asked = Annotated[str, typer.Argument(metavar="QUESTION", help="In your own words.")]
Passages = Annotated[int, typer.Option("-k", "--passages", min=1, help="Passages that are found.")]
Dense = Annotated[bool, typer.Option(help="Search by meaning.")]
Sparse = Annotated[bool, typer.Option(help="Search by words.")]
Rerank = Annotated[
    str | None, typer.Option(help=f"Order what was found anew: a cross-encoder's directory or hub id, or {_LLM!r}.")
]
Model = Annotated[
    str | None, typer.Option(help=f"What answers: a pulled name, a directory, a GGUF file. Default: {_DEFAULT_MODEL}.")
]
Url = Annotated[str | None, typer.Option(help="An OpenAI-style server that answers instead; --model is its model.")]
ApiKey = Annotated[str | None, typer.Option(help=f"The server's key. Or in {options.API_KEY}.")]
CountWith = Annotated[
    str | None, typer.Option("--tokenizer", help="Whose tokens are counted, for a server that does not count them.")
]
Budget = Annotated[int, typer.Option(min=1, help="Tokens of the prompt at most, sources and all.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of the answer at most.")]
_MAX_TOKENS, _PASSAGES = 256, 5


def search(
    index: IndexPath,
    question: Asked,
    passages: Passages = _PASSAGES,
    dense: Dense = True,
    sparse: Sparse = True,
    rerank: Rerank = None,
    model: Model = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: options.Json = False,
) -> None:
    """Find the passages that answer a question, with their files and lines."""
    from intaglio.retrieval.search import Searcher

    _refuse_idle(rerank == _LLM, model=model, url=url, api_key=api_key)
    with Searcher.open(index) as searcher:
        judge = _reranker(rerank, model, url, api_key, None)
        hits = searcher.search(question, passages, dense=dense, sparse=sparse, rerank=judge)
    if json:
        print(json_module.dumps({"question": question, "hits": [_plain(hit) for hit in hits]}, ensure_ascii=False))
    else:
        _show_hits(hits)


def ask(
    index: IndexPath,
    question: Asked,
    passages: Passages = _PASSAGES,
    rerank: Rerank = None,
    model: Model = None,
    url: Url = None,
    api_key: ApiKey = None,
    tokenizer: CountWith = None,
    budget: Budget = options.RAG_BUDGET,
    max_tokens: MaxTokens = _MAX_TOKENS,
    json: options.Json = False,
) -> None:
    """Answer a question from the documents, and say where the answer stands."""
    from intaglio.retrieval.answer import Grounding, answer
    from intaglio.retrieval.search import Searcher

    with Searcher.open(index) as searcher:
        writer = _answerer(model, url, api_key, tokenizer)
        judge = _reranker(rerank, model, url, api_key, writer)
        grounding = Grounding(searcher, budget, passages, judge)
        made = answer(grounding, question, writer, max_tokens, _silent if json else _say)
    if json:
        print(json_module.dumps(_plain_answer(question, made), ensure_ascii=False))
    else:
        _show_citations(made)


def evaluate(
    index: IndexPath,
    questions: Annotated[Path, typer.Argument(help=".jsonl: `question`, `files` and maybe `answers` a line.")],
    passages: Passages = _PASSAGES,
    dense: Dense = True,
    sparse: Sparse = True,
    rerank: Rerank = None,
    answers: Annotated[
        bool, typer.Option("--answers", help="Have the questions answered, and judge that too.")
    ] = False,
    model: Model = None,
    url: Url = None,
    api_key: ApiKey = None,
    tokenizer: CountWith = None,
    budget: Budget = options.RAG_BUDGET,
    max_tokens: MaxTokens = _MAX_TOKENS,
    json: options.Json = False,
) -> None:
    """Measure retrieval, and answers where asked for, on questions whose files are known."""
    from intaglio.retrieval.answer import Grounding
    from intaglio.retrieval.evaluate import evaluate_answers, evaluate_search
    from intaglio.retrieval.questions import read_questions
    from intaglio.retrieval.search import Searcher

    asked = read_questions(questions)
    _refuse_idle(answers or rerank == _LLM, model=model, url=url, api_key=api_key)
    _refuse_idle(answers, tokenizer=tokenizer)
    with Searcher.open(index) as searcher:
        writer = _answerer(model, url, api_key, tokenizer) if answers else None
        judge = _reranker(rerank, model, url, api_key, writer)
        found = evaluate_search(searcher, asked, passages, dense=dense, sparse=sparse, rerank=judge)
        if writer:
            grounding = Grounding(searcher, budget, passages, judge)
            found["answered"] = evaluate_answers(grounding, asked, writer, max_tokens)
    if json:
        print(json_module.dumps(found, ensure_ascii=False))
    else:
        _show_measures(found)


def questions(
    page: Annotated[Path, typer.Argument(help="The index that Sphinx has made: genindex-all.html.")],
    out: Annotated[Path, typer.Option(help="The .jsonl file to write.")],
    count: Annotated[int, typer.Option(min=1, help="Questions.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the draw.")] = 0,
) -> None:
    """Make questions from a documentation's own index: what each entry is, and where it leads."""
    from intaglio.retrieval.questions import index_questions

    made = index_questions(page, count, seed)
    write_json_lines(out, ({"question": one.question, "files": one.files} for one in made))
    print(f"{len(made)} questions: {out}")


def _refuse_idle(used: bool, **given: str | None) -> None:
    """Refuses what would say which model answers where none is asked."""
    for name in (name for name, value in given.items() if value is not None and not used):
        raise UserError("no model is asked", where=f"--{name.replace('_', '-')}", mend="leave it out")


def _answerer(model: str | None, url: str | None, api_key: str | None, tokenizer: str | None) -> "Answerer":
    """What answers: a model in this process, or the one behind the URL."""
    if url is not None:
        from intaglio.checkpoints.models import find_model, load_tokenizer
        from intaglio.retrieval.remote import UrlAnswerer

        counter = load_tokenizer(find_model(tokenizer)) if tokenizer else None
        return UrlAnswerer(url, model, api_key or os.environ.get(options.API_KEY), counter)
    if api_key or tokenizer:
        raise UserError("is for a server", where="--api-key" if api_key else "--tokenizer", mend="give --url too")
    from intaglio.retrieval.answerers import LocalAnswerer

    return LocalAnswerer(options.load_llm(model or _DEFAULT_MODEL, None, "cpu", None))


def _reranker(
    name: str | None, model: str | None, url: str | None, api_key: str | None, answerer: "Answerer | None"
) -> "Reranker | None":
    """What orders anew: the model that answers (or would), or a cross-encoder."""
    if name is None:
        return None
    from intaglio.retrieval.rerank import CrossEncoderReranker, LLMReranker

    if name == _LLM:
        return LLMReranker(answerer or _answerer(model, url, api_key, None))
    return CrossEncoderReranker(name)


def _silent(piece: str) -> None:
    """What is printed whole at the end is not printed in pieces."""


def _say(piece: str) -> None:
    print(piece, end="", flush=True)


def _plain(hit: "Hit") -> dict[str, Any]:
    about = {"score": hit.score, "ranks": hit.ranks, "cosine": hit.cosine, "share": hit.share}
    return {**asdict(hit.chunk), **{name: _rounded(value) for name, value in about.items()}}


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _plain_answer(question: str, made: "Answer") -> dict[str, Any]:
    return {
        "question": question,
        "answer": made.text,
        "found": made.found,
        "citations": [asdict(one) for one in made.citations],
        "prompt_tokens": made.prompt.tokens if made.prompt else 0,
        "hits": [_plain(hit) for hit in made.hits],
    }


def _show_hits(hits: "list[Hit]") -> None:
    for number, hit in enumerate(hits, 1):
        ranks = ", ".join(f"{way} {rank}" for way, rank in hit.ranks.items())
        print(f"{number}. {hit.chunk.place}  {hit.chunk.title}  ({ranks})")
        print("   " + " ".join(hit.chunk.text.split())[:200])


def _show_citations(made: "Answer") -> None:
    print()
    for one in made.citations:
        by = "" if one.by == "model" else ", by the words in common"
        print(f"[{one.number}] {one.place}  {one.title} ({one.state}{by})")


def _show_measures(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("measure", "value")
    answered = {f"answers: {name}": value for name, value in found.get("answered", {}).items() if name != "answers"}
    for name, value in {**found, **answered}.items():
        if name not in ("misses", "answered"):
            table.add_row(name, _shown(value))
    console = Console()
    console.print(table)
    for question in found["misses"]:
        console.print(f"not found: {question}", markup=False)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {seconds * 1000:.0f} ms" for name, seconds in value.items())
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
