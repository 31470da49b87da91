"""`intaglio VERB`: one file per verb; each imports what it needs when it runs, so that `--help` stays quick."""

import os
import sys
from typing import Any

import typer

from intaglio.cli import (
    advise,
    atlas,
    chat,
    convert,
    data,
    demo,
    diff,
    eval,
    export,
    generate,
    ladder,
    launch,
    lineage,
    load,
    merge,
    plan,
    pull,
    rag,
    serve,
    show,
    template,
    tokenizer,
    train,
)
from intaglio.errors import UserError

__all__ = ["app", "main"]

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # click's; typer gives it no name of its own

app = typer.Typer(
    help="The history of language models as running code, and the whole life of any model in it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(lineage.lineage)
app.command()(show.show)
app.command()(diff.diff)
app.command()(pull.pull)
app.command()(convert.convert)
app.command()(export.export)
app.add_typer(tokenizer.app, name="tokenizer")
app.add_typer(template.app, name="template")
app.add_typer(data.app, name="data")
app.command()(train.train)
app.command()(launch.launch)
app.command()(plan.plan)
app.add_typer(ladder.app, name="ladder")
app.command()(atlas.atlas)
app.command()(merge.merge)
app.command()(generate.generate)
app.command()(chat.chat)
app.command()(serve.serve)
app.add_typer(rag.app, name="rag")
app.command()(advise.advise)
app.command()(load.load)
app.command("eval")(eval.eval_)
app.command()(demo.demo)


def main() -> None:
    """Runs the command line. A user's mistake is one line on standard error and exit status 2."""
    try:
        status = app(prog_name="intaglio", standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status)
    except UserError as error:
        print(f"intaglio: {error}", file=sys.stderr)
        sys.exit(2)
    except _UsageError as error:
        _say_usage(error)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader has left, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:  # a full disk, a folder that must not be read: the machine's word for it will do
        print(f"intaglio: {UserError(error.strerror or str(error), where=str(error.filename or ''))}", file=sys.stderr)
        sys.exit(2)


def _say_usage(error: Any) -> None:
    """One line about options and arguments that do not fit; nothing where a group without a verb has shown its help."""
    message = error.format_message().rstrip(".")
    if message:
        command = error.ctx.command_path if error.ctx else "intaglio"
        print(f"intaglio: {UserError(message, mend=f'see `{command} --help`')}", file=sys.stderr)


if __name__ == "__main__":
    main()
