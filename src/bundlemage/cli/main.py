"""The program `bundlemage`: all commands, and the conversion of errors to messages and exit codes."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bundlemage import __version__
from bundlemage.cli.ask import complete, recommend, recommend_all
from bundlemage.cli.campaign import campaign
from bundlemage.cli.commands import add
from bundlemage.cli.compare import compare, models, reproduce
from bundlemage.cli.data import app as data
from bundlemage.cli.design import design, explain, score_bundle
from bundlemage.cli.serve import keys, retrain, serve
from bundlemage.cli.train import evaluate, train, tune
from bundlemage.errors import BundleMageError, ConfigError, DataError, worst_first

MOVED = {
    "data --engine": "'bundlemage data' always runs on this machine, in bounded memory: leave --engine out",
}
"""Maps each removed "command option" to an error message that says what to use instead."""


class _Commands(TyperGroup):
    """Runs a command. An error prints one message on stderr; --debug also shows the traceback."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        for moved, hint in MOVED.items():
            command, option = moved.split()
            if args[:1] == [command] and option in args:
                raise ConfigError(hint)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (BundleMageError, OSError, KeyboardInterrupt) as error:
            if ctx.params.get("debug") or isinstance(error, BrokenPipeError):
                raise
            message, code = str(error), 2
            if isinstance(error, OSError):
                message = f"{error.filename or 'the system'}: {error.strerror or error}"
            elif isinstance(error, KeyboardInterrupt):
                message, code = "interrupted", 130
            if isinstance(error, DataError):
                lines = [(problem.severity, str(problem)) for problem in worst_first(error.problems)]
            else:
                lines = [("error", line) for line in message.splitlines()]
            for severity, line in lines:
                if severity != "note":
                    print(f"{severity}: {line}", file=sys.stderr)
            ctx.exit(code)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # joins the lines of a paragraph
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Recommend a shop's bundles to its users, complete partial bundles and design new ones.",
)


def _version(requested: bool) -> None:
    if requested:
        print(f"bundlemage {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


app.add_typer(data, name="data")
app.add_typer(keys, name="keys")
add(app, train, tune, evaluate, recommend, recommend_all, complete, design, explain, score_bundle, campaign)
add(app, serve, retrain, compare, models, reproduce)


def main() -> None:
    # Threads that spin while they wait make training several times slower on a machine with other work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    app(prog_name="bundlemage")
