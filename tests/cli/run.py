"""Running the command line inside a test."""

from __future__ import annotations

import json
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


def finish(process: subprocess.Popen[str]) -> str:
    stdout, stderr = process.communicate(timeout=240)
    assert process.returncode == 0, stderr
    return stdout
