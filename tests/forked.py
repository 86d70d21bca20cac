"""Runs `bundlemage` commands in processes that are forked from one that has imported PyTorch already.

A command spends most of its time on imports. A forked process has its own memory, folder, environment and
output, as one that a shell starts.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path
from subprocess import CompletedProcess

_IMPORTED = ["bundlemage.cli.main", "bundlemage.recommender", "bundlemage.readers.load", "rich.table"]


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


def run_forked(
    arguments: Sequence[object],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    same_output: bool = False,
    before: Callable[[], None] | None = None,
) -> CompletedProcess[str]:
    """Run `bundlemage` with these arguments, in `folder`, and return its exit code and what it printed.

    With `same_output`, both streams are in `stdout`, in the order in which they were written. `before` is
    called in the new process before the command starts.
    """
    words = ["bundlemage", *map(str, arguments)]
    with tempfile.TemporaryDirectory(prefix="bundlemage-command-") as place:
        outputs = [str(Path(place) / name) for name in ("stdout", "stdout" if same_output else "stderr")]
        process = _context().Process(
            target=_main,
            args=(words, str(folder or Path.cwd()), dict(environment or os.environ), outputs, before),
        )
        process.start()
        process.join(timeout=240)
        if process.exitcode is None:
            process.kill()
            process.join()
        assert process.exitcode is not None
        printed = [Path(output).read_text(encoding="utf-8") for output in outputs]
        return CompletedProcess(words, process.exitcode, *printed)


def _main(
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    outputs: list[str],
    before: Callable[[], None] | None,
) -> None:
    from bundlemage.cli.main import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    files = [os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for output in outputs]
    for target, source in enumerate((nothing, *files)):
        os.dup2(source, target)
    for target, stream in ((1, "stdout"), (2, "stderr")):
        setattr(sys, stream, os.fdopen(os.dup(target), "w", encoding="utf-8", buffering=1))
    sys.argv = arguments
    if before is not None:
        before()
    main()
