"""Starts `bundlemage` commands in processes that are forked from one that has imported PyTorch already.

A command spends most of its time on imports. A forked process has its own memory, folder, environment and
output, as one that a shell starts.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from multiprocessing.context import ForkServerContext, ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from subprocess import PIPE, CompletedProcess, TimeoutExpired
from typing import IO, Any

_IMPORTED = [
    "bundlemage.cli.main",
    "bundlemage.recommender",
    "bundlemage.readers.load",
    "bundlemage.service.app",
    "rich.table",
    "uvicorn",
]


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


class _Output:
    """A file descriptor that is sent to the new process."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self.number),)


def _received(copy: Any) -> _Output:
    return _Output(copy.detach())


class Forked:
    """A command that runs. It has what tests use of `subprocess.Popen`."""

    def __init__(self, process: ForkServerProcess, arguments: list[str], stdout: IO[str] | None) -> None:
        self._process = process
        self.arguments = arguments
        self.stdout = stdout

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutExpired(self.arguments, timeout or 0)
        if self.stdout is not None:
            self.stdout.close()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_forked(
    arguments: Sequence[object],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    stdout: int,
    stderr: int,
    before: Callable[[], None] | None = None,
) -> Forked:
    """Start `bundlemage` with these arguments, in `folder`.

    `stdout` and `stderr` are file descriptors. With PIPE, what the command prints on stdout can be read from
    `Forked.stdout`. `before` is called in the new process before the command starts.
    """
    words = ["bundlemage", *map(str, arguments)]
    reading, writing = os.pipe() if stdout == PIPE else (None, stdout)
    streams = (_Output(writing), _Output(stderr))
    where, variables = str(folder or Path.cwd()), dict(environment or os.environ)
    process = _context().Process(target=_main, args=(words, where, variables, streams, before))
    process.start()
    if reading is None:
        return Forked(process, words, None)
    os.close(writing)
    return Forked(process, words, os.fdopen(reading, encoding="utf-8"))


def run_forked(
    arguments: Sequence[object],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    same_output: bool = False,
    before: Callable[[], None] | None = None,
) -> CompletedProcess[str]:
    """Run `bundlemage` to its end, and return its exit code and what it printed.

    With `same_output`, both streams are in `stdout`, in the order in which they were written.
    """
    with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        errors = stdout if same_output else stderr
        descriptors = {"stdout": stdout.fileno(), "stderr": errors.fileno()}
        process = start_forked(arguments, folder, environment, before=before, **descriptors)
        try:
            code = process.wait(timeout=600)
        finally:
            process.kill()
        for stream in (stdout, stderr):
            stream.seek(0)
        return CompletedProcess(process.arguments, code, stdout.read(), stderr.read())


def _main(
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    streams: tuple[_Output, _Output],
    before: Callable[[], None] | None,
) -> None:
    from bundlemage.cli.main import main

    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for target, source in enumerate((nothing, *(stream.number for stream in streams))):
        os.dup2(source, target)
        os.close(source)
    for target, name in ((1, "stdout"), (2, "stderr")):
        setattr(sys, name, os.fdopen(os.dup(target), "w", encoding="utf-8", buffering=1))
    sys.argv = arguments
    if before is not None:
        before()
    main()
