"""The command line: the app, its commands, and how errors are shown.

A command is a function of its own module, registered here; it imports what it needs when it runs, so that `--help`
and a slip in an argument answer at once.
"""

import sys

import typer

from jaxrank._compare_command import compare_runs
from jaxrank._evaluate_command import evaluate
from jaxrank._info_command import info
from jaxrank._train_command import score, train
from jaxrank.data import DataError

app = typer.Typer(
    name="jaxrank",
    help="NDCG@K: how good a ranking is, from 0 to 1, looking at its first K results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (evaluate, train, score, info):
    app.command()(command)
app.command("compare")(compare_runs)


def run(arguments: list[str] | None = None) -> None:
    """Runs the command line; bad input ends it with one line on standard error and exit code 2."""
    try:
        app(arguments, prog_name="python -m jaxrank")
    except (DataError, OSError) as error:
        print(f"jaxrank: error: {message_of(error)}", file=sys.stderr)
        sys.exit(2)
    except ImportError as error:
        print(f"jaxrank: error: {error}", file=sys.stderr)
        sys.exit(1)


def message_of(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)
