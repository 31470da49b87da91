"""`intaglio serve`: a model behind an OpenAI-style API, on our engine or on vLLM's."""

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from intaglio.cli import options, tokenizing
from intaglio.errors import UserError

if TYPE_CHECKING:
    from intaglio.retrieval.answer import Grounding
    from intaglio.text.jinja import ChatTemplate
    from intaglio.text.tokenizer import Tokenizer

_GIB = 2**30
_MAX_WAITING = 2048


def serve(
    model: options.Model,
    host: Annotated[str, typer.Option(help="Address to listen at; 0.0.0.0: from other machines too.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8000,
    api_key: Annotated[
        list[str] | None, typer.Option(help=f"Ask clients for this key; several may be given. Or in {options.API_KEY}.")
    ] = None,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="What clients call the model; several may be given.")
    ] = None,
    engine: Annotated[Literal["intaglio", "vllm"], typer.Option(help="vllm hands the model to vLLM.")] = "intaglio",
    adapter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="Serve a PEFT directory under a name of its own; several may be given."),
    ] = None,
    adapter_folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Let requests load adapters from this folder; default: none may.")
    ] = None,
    dtype: options.Dtype = None,
    device: options.Device = "cpu",
    threads: options.Threads = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Tokens of prompt and answer at most; default: the model's context.")
    ] = None,
    max_sequences: Annotated[int, typer.Option(min=1, help="Sequences that run at once.")] = 256,
    max_tokens_per_step: Annotated[int, typer.Option(min=1, help="Tokens in one forward.")] = 512,
    kv_memory: Annotated[
        float | None, typer.Option(min=0, help="GiB for keys and values; default: a share of what is free.")
    ] = None,
    num_blocks: Annotated[int | None, typer.Option(min=1, help="Blocks for keys and values, instead.")] = None,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens in a block.")] = 16,
    prefix_caching: Annotated[bool, typer.Option(help="Share what prompts have in common.")] = True,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Greedy answers do not depend on what else runs.")
    ] = False,
    policy: Annotated[Literal["fcfs", "priority"], typer.Option(help="Who goes first.")] = "fcfs",
    weights: Annotated[Literal["int8", "int4"] | None, typer.Option(help="Weights in fewer bits.")] = None,
    chat_template: Annotated[
        str | None, typer.Option(help="A template of ours, or a Jinja file, in place of the model's own.")
    ] = None,
    trust_templates: Annotated[
        bool, typer.Option("--trust-templates", help="Let requests bring a chat template.")
    ] = False,
    pooling: Annotated[Literal["mean", "last"], typer.Option(help="How embeddings are made.")] = "mean",
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Sequences that run or wait at most; then HTTP 429.")
    ] = _MAX_WAITING,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Pages of this origin may ask from a browser; *: all.")
    ] = None,
    drain_timeout: Annotated[float, typer.Option(min=0, help="Seconds for what runs when the server is to end.")] = 30,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Write prompts to the log.")] = False,
    rag: Annotated[
        Path | None, typer.Option(metavar="INDEX", help="Answer chats from documents: what `intaglio rag index` made.")
    ] = None,
    rag_budget: Annotated[
        int, typer.Option(min=1, help="Tokens of a prompt with sources at most.")
    ] = options.RAG_BUDGET,
) -> None:
    """Serve a model: chat, completions, embeddings, and a chat page for the browser."""
    from intaglio.engine.interface import EngineConfig
    from intaglio.serving.remote import ProcessEngine

    if rag is None and rag_budget != options.RAG_BUDGET:
        raise UserError("there are no documents to take sources from", where="--rag-budget", mend="give --rag too")
    if adapter_folder is not None and not adapter_folder.is_dir():
        raise UserError("no folder", where=f"--adapter-folder {adapter_folder}")
    adapters = _adapters(adapter or [])

    config = EngineConfig(
        block_size=block_size,
        num_blocks=num_blocks,
        kv_memory_bytes=None if kv_memory is None else int(kv_memory * _GIB),
        max_model_len=max_model_len,
        max_sequences=max_sequences,
        max_tokens_per_step=max_tokens_per_step,
        prefix_caching=prefix_caching,
        deterministic=deterministic,
        policy=policy,
        weights=weights,
    )
    process = ProcessEngine(model, config, dtype=dtype, device=device, threads=threads, adapters=adapters)
    if engine == "intaglio":
        process.spawn()  # it needs the longest, and does not wait for what follows
    from intaglio.checkpoints.models import find_model, load_tokenizer
    from intaglio.engine.generation_config import stated_fields

    path, names, origins = find_model(model), tuple(served_model_name or [model]), tuple(cors_origin or ())
    keys = tuple(api_key or filter(None, [os.environ.get(options.API_KEY)]))
    tokenizer = load_tokenizer(path)
    template = None if chat_template is None else tokenizing.chat_template(chat_template, tokenizer)
    if engine == "vllm":
        from intaglio.serving.vllm import Handover
        from intaglio.text.chat_templates import template_file

        _refuse_ours(device=device != "cpu", trust_templates=trust_templates, pooling=pooling != "mean")
        _refuse_ours(max_waiting=max_waiting != _MAX_WAITING, rag=rag is not None)
        _refuse_ours(adapter_folder=adapter_folder is not None)
        Handover(
            path,
            names,
            config,
            host,
            port,
            api_keys=keys,
            dtype=dtype,
            threads=threads,
            chat_template=None if chat_template is None else template_file(chat_template),
            tool_parser=_tool_parser(tokenizer, template),
            cors_origins=origins,
            drain_s=drain_timeout,
            log_prompts=log_prompts,
            adapters=adapters,
        ).run()
    from intaglio.serving.app import create_app
    from intaglio.serving.client import EngineUnavailable
    from intaglio.serving.limits import Limits
    from intaglio.serving.metrics import MeasuredEngine, Metrics
    from intaglio.serving.server import Server, listen
    from intaglio.serving.service import Service

    sock = listen(host, port)
    metrics = Metrics(names[0])
    process.on_step = metrics.step_tokens.observe
    service = Service(
        MeasuredEngine(process, metrics),
        tokenizer,
        names,
        root=str(path),
        defaults=stated_fields(path),
        limits=Limits(sequences=max_waiting),
        template=template,
        trust_templates=trust_templates,
        pooling=pooling,
        log_prompts=log_prompts,
        grounding=None if rag is None else _grounding(rag, rag_budget),
        adapter_folder=adapter_folder,
    )
    for name, folder in adapters.items():
        service.admit_adapter(name, Path(folder))
    app = create_app(service, api_keys=keys, cors_origins=origins)
    app.router.routes.append(metrics.route(process))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        Server(app, process, drain_timeout).run(sock)
    except EngineUnavailable as error:  # the log has said more
        print(f"intaglio: {error}", file=sys.stderr)
        raise typer.Exit(1) from error


def _adapters(given: list[str]) -> dict[str, str]:
    """The directories by name."""
    chosen: dict[str, str] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        if not (name and equals and folder):
            raise UserError("NAME=DIR is expected", where=f"--adapter {one}")
        if name in chosen:
            raise UserError(f"there are two adapters {name!r}", where="--adapter", mend="give each a name of its own")
        chosen[name] = folder
    return chosen


def _grounding(index: Path, budget: int) -> "Grounding":
    """What finds sources; the first question does not wait for anything to be measured."""
    from intaglio.retrieval.answer import Grounding
    from intaglio.retrieval.search import Searcher
    from intaglio.retrieval.threshold import threshold

    searcher = Searcher.open(index)
    threshold(searcher)
    return Grounding(searcher, budget)


def _refuse_ours(**asked: bool) -> None:
    for name in (name for name, is_asked in asked.items() if is_asked):
        raise UserError("vLLM has no such option", where=f"--{name.replace('_', '-')}", mend="leave it out")


def _tool_parser(tokenizer: "Tokenizer", template: "ChatTemplate | None") -> str | None:
    """vLLM's name for the way in which the model writes calls; None where it was shown none."""
    from intaglio.serving.tools import TaggedCalls, parser_of
    from intaglio.text.chat import chat_template_of

    try:
        form = parser_of(template or chat_template_of(tokenizer, []))
    except UserError:
        return None
    return "hermes" if form is TaggedCalls else "llama3_json"
