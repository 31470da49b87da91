"""`intaglio template`: see what a chat template writes, check it against a model or data, put it on a base model."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from intaglio.cli import options
from intaglio.cli.tokenizing import tokenizer_of
from intaglio.errors import UserError
from intaglio.files import read_json

if TYPE_CHECKING:
    from intaglio.text.chat import Rendered
    from intaglio.text.tokenizer import Tokenizer

_SPECIAL, _LEARNED = "bold magenta", "green underline"

app = typer.Typer(help="Chat templates: look at one, check it, choose one for a base model.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Chat templates: look at one, check it, choose one for a base model."""


@app.command("list")
def list_templates(as_json: options.Json = False) -> None:
    """The templates that ship with us, and the special tokens they need."""
    from intaglio.text.chat_templates import about_template, load_template, template_names, tokens_of_template

    sources = {name: load_template(name) for name in template_names()}
    rows = [
        {"name": name, "tokens": tokens_of_template(source), "about": about_template(source)}
        for name, source in sources.items()
    ]
    if as_json:
        typer.echo(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    table = Table("name", "special tokens", "what it is", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(
            Text(str(row["name"]), style="bold"), Text(" ".join(row["tokens"] or ())), Text(str(row["about"]))
        )
    Console(highlight=False).print(table)


@app.command()
def show(
    template: Annotated[str, typer.Argument(help="A template of ours, a Jinja file, or a model with a template.")],
    model: Annotated[str | None, typer.Option(help="Whose tokens; default: one token a byte.")] = None,
    messages: Annotated[Path | None, typer.Option(help="A JSON list of messages; default: a short chat.")] = None,
    generation_prompt: Annotated[
        bool, typer.Option("--generation-prompt", help="End with what comes before an answer.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """A conversation as the template writes it: special tokens in magenta, what is learned underlined in green."""
    from intaglio.text.chat import ChatTemplate, render_chat

    tokenizer, source = _tokenizer_and_source(template, model)
    chat = _conversation(messages)
    compiled = ChatTemplate(source, tokenizer.special_tokens, name=template)
    rendered = render_chat(tokenizer, chat, add_generation_prompt=generation_prompt, template=compiled)
    spans, reason = _spans(rendered)
    if as_json:
        typer.echo(json.dumps(_as_data(template, rendered, spans, reason, tokenizer), ensure_ascii=False, indent=2))
        return
    console = Console(highlight=False)
    console.print(_coloured(rendered, spans, tokenizer), soft_wrap=True)
    learned = sum(rendered.mask(spans or []))
    legend = ("special", _SPECIAL), " ", ("learned", _LEARNED)
    console.print(Text.assemble(f"\n{len(rendered.ids)} tokens, {learned} of them learned; ", *legend))
    if reason:
        console.print(Text(reason, style="yellow"), soft_wrap=True)


@app.command()
def check(
    target: Annotated[str, typer.Argument(help="A model, or a data file, folder or glob.")],
    model: Annotated[str | None, typer.Option(help="For data: the model that is to learn from it.")] = None,
    template: Annotated[str | None, typer.Option(help="For data: a template of ours, or a file.")] = None,
    as_json: options.Json = False,
) -> None:
    """Whether template, tokenizer and model fit each other, or data the template; status 1 where something does not."""
    from intaglio.cli.template_report import check_data, check_model

    if model is None:
        if template is not None:
            raise UserError("is for data", where="--template", mend="say with --model which model is to learn from it")
        problems, notes = check_model(target)
    else:
        problems, notes = check_data(target, model, template)
    if as_json:
        typer.echo(json.dumps({"problems": problems, "notes": notes}, ensure_ascii=False, indent=2))
    else:
        console = Console(highlight=False, markup=False)
        for problem in problems:
            console.print(problem, style="bold red", soft_wrap=True)
        for note in notes:
            console.print(note, style="yellow", soft_wrap=True)
        if not problems:
            console.print("They fit.", style="green")
    raise typer.Exit(1 if problems else 0)


@app.command()
def apply(
    model: options.Model,
    out: Annotated[Path, typer.Argument(help="The folder to write; must not exist.")],
    template: Annotated[
        str | None, typer.Option(help="One of ours, or a file; default: the one whose tokens the model has, or chatml.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Put it over the template that the model has.")] = False,
    as_json: options.Json = False,
) -> None:
    """Give a base model a chat template: its special tokens, mean embeddings for new ones, where to stop."""
    from dataclasses import asdict

    from intaglio.checkpoints.apply_template import apply_template

    if out.exists():
        raise UserError("exists already", where=str(out), mend="choose another folder or remove it")
    done = apply_template(model, out, template, replace)
    if as_json:
        typer.echo(json.dumps({"path": str(out), **asdict(done)}, ensure_ascii=False))
        return
    new = ", ".join(f"{token} ({i})" for token, i in done.added_tokens.items()) or "none"
    before, after = done.vocab_size
    rows = f"{before:,} to {after:,} rows" if after > before else f"{before:,} rows, enough"
    for line in (f"template {done.template}; answers end in {done.ends}", f"new tokens: {new}", f"embeddings: {rows}"):
        typer.echo(line)
    typer.echo(out)


def _tokenizer_and_source(template: str, model: str | None) -> "tuple[Tokenizer, str]":
    """Whose ids, and which template: a model's own, unless `template` is one of ours or a file."""
    from intaglio.text.chat import chat_template_source
    from intaglio.text.chat_templates import find_template, stand_in_tokenizer, template_names

    if template in template_names() or template.endswith(".jinja"):
        source = find_template(template)
        return (stand_in_tokenizer(source) if model is None else tokenizer_of(model)), source
    own = tokenizer_of(template)
    return (own if model is None else tokenizer_of(model)), chat_template_source(own)


def _conversation(file: Path | None) -> list[dict[str, Any]]:
    from intaglio.text.messages import check_messages
    from intaglio.text.template_checks import SAMPLES

    if file is None:
        return [dict(message) for message in SAMPLES[1]]
    messages = read_json(file)
    try:
        check_messages(messages)
    except UserError as error:
        raise UserError(error.what, where=f"{file}: {error.where}", mend=error.mend) from error
    return messages


def _spans(rendered: "Rendered") -> tuple[list[tuple[int, int]] | None, str]:
    """What the assistant wrote, or None and why there is no telling."""
    try:
        return rendered.assistant_spans, ""
    except UserError as error:
        return None, str(error)


def _as_data(
    name: str, rendered: "Rendered", spans: list[tuple[int, int]] | None, reason: str, tokenizer: "Tokenizer"
) -> dict[str, Any]:
    mask = [None] * len(rendered.ids) if spans is None else rendered.mask(spans)
    return {
        "template": name,
        "text": rendered.text,
        "learned": spans,
        "why_not": reason or None,
        "tokens": [
            {"id": i, "token": tokenizer.token(i), "special": i in tokenizer.special_token_ids, "learned": on}
            for i, on in zip(rendered.ids, mask, strict=True)
        ],
    }


def _coloured(rendered: "Rendered", spans: list[tuple[int, int]] | None, tokenizer: "Tokenizer") -> Text:
    """The text itself, styled by places in it: a token may be half of a character."""
    text = Text(rendered.text)
    for start, end in spans or []:
        text.stylize(_LEARNED, start, end)
    for start, end in _special_places(rendered, tokenizer):
        text.stylize(_SPECIAL, start, end)
    return text


def _special_places(rendered: "Rendered", tokenizer: "Tokenizer") -> Iterator[tuple[int, int]]:
    pairs = zip(rendered.ids, rendered.offsets, strict=True)
    return (place for i, place in pairs if i in tokenizer.special_token_ids)
