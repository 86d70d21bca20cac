"""Running the command line inside a test."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

from typer.testing import CliRunner, Result

from bundlemage.cli.main import app

TINY = ["--set", "embedding_dim=8", "--set", "batch_size=64", "--epochs", "2", "--device", "cpu"]


def run(*arguments: object, code: int = 0) -> Result:
    """Run a command in this process and check its exit code."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, f"{result.output}\n{result.exception!r}"
    return result


def run_json(*arguments: object) -> Any:
    """The JSON on stdout; whatever goes to stderr must not disturb it."""
    return json.loads(run(*arguments, "--json").stdout)


def start(*arguments: object) -> subprocess.Popen[str]:
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "bundlemage", *(str(argument) for argument in arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


_STOPPING = """
import fnmatch, os, sys
from bundlemage.data import folders

pattern, left, how = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
del sys.argv[1:4]
put = folders.into_place

def into_place(temporary, path):
    global left
    put(temporary, path)
    if fnmatch.fnmatch(path.name, pattern):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), how)

folders.into_place = into_place
from bundlemage.cli.main import main
main()
"""


def stopped(
    file: str, times: int, *arguments: object, how: signal.Signals = signal.SIGKILL
) -> subprocess.CompletedProcess[str]:
    """Run a command that gets a signal as soon as it has written so many files of this name.

    The command sends it to itself, so it stops at the same place on any machine, however busy.
    """
    command = [sys.executable, "-c", _STOPPING, file, str(times), str(int(how)), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == (130 if how is signal.SIGINT else -how), done.stderr
    return done


def finish(process: subprocess.Popen[str]) -> str:
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    return stdout
