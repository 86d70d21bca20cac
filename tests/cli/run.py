"""Running the command line inside a test."""

from __future__ import annotations

import json
import os
import signal
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from typer.testing import CliRunner, Result

from bundlemage.cli.main import app
from bundlemage.data import folders
from tests.forked import run_forked

TINY = ["--set", "embedding_dim=8", "--set", "batch_size=64", "--epochs", "2", "--device", "cpu"]
"""Settings with which training takes a moment."""
BUNDLEMAGE = ["--model", "bundlemage", *TINY]
"""The same, for `train`: the tests that are not about `auto` train BundleMage alone."""


def run(*arguments: object, code: int = 0) -> Result:
    """Run a command in this process and check its exit code."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def run_json(*arguments: object) -> Any:
    """The JSON on stdout; whatever goes to stderr must not disturb it."""
    return json.loads(run(*arguments, "--json").stdout)


def run_apart(*arguments: object) -> str:
    """Run a command in a process of its own. Return what it prints on stdout."""
    done = run_forked(arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def stopped(file: str, times: int, *arguments: object, how: int = signal.SIGKILL) -> CompletedProcess[str]:
    """Run a command that gets a signal as soon as it has written so many files of this name.

    The command sends it to itself, so it stops at the same place on any machine, however busy.
    """
    done = run_forked(arguments, before=partial(_stop_at, file, times, how))
    assert done.returncode == (130 if how == signal.SIGINT else -how), done.stderr
    return done


def _stop_at(pattern: str, times: int, how: int) -> None:
    put, left = folders.into_place, times

    def into_place(temporary: Path, path: Path) -> None:
        nonlocal left
        put(temporary, path)
        if fnmatch(path.name, pattern):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), how)

    vars(folders)["into_place"] = into_place
