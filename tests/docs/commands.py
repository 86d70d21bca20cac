"""Runs `bundlemage` commands in processes that are forked from one that has imported PyTorch already.

A command spends most of its time on imports. A forked process has its own memory, folder, environment and
output, as one that a shell starts.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

_PLAIN = re.compile(r"bundlemage [^|&;<>$`\n]*")
_IMPORTED = ["bundlemage.cli.main", "bundlemage.recommender", "bundlemage.readers.load", "rich.table"]


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def run_forked(command: str, folder: Path, environment: Mapping[str, str]) -> tuple[int, str] | None:
    """Run a command in `folder`. Return its exit code and what it printed on both streams.

    Return None if the command needs a shell, such as one with a pipe, or is not `bundlemage`.
    """
    if not _PLAIN.fullmatch(command):
        return None
    arguments = shlex.split(command, comments=True)
    with tempfile.NamedTemporaryFile(prefix="bundlemage-page-") as output:
        process = _context().Process(
            target=_main, args=(arguments, str(folder), dict(environment), output.name)
        )
        process.start()
        process.join(timeout=240)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        return process.exitcode, Path(output.name).read_text(encoding="utf-8")


def _main(arguments: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    from bundlemage.cli.main import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    printed = os.open(output, os.O_WRONLY | os.O_APPEND)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(source, target)
    for stream, target in (("stdout", 1), ("stderr", 2)):
        setattr(sys, stream, os.fdopen(os.dup(target), "w", encoding="utf-8", buffering=1))
    sys.argv = arguments
    main()
