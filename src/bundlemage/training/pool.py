"""Several pieces of work at a time on this machine, each in a process of its own.

A process lives through many pieces, as starting torch, and CUDA all the more, takes seconds. Each has a pipe
to the command and nothing that it shares with the others, so one that is killed can leave nothing locked.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

import torch

from bundlemage.errors import BundleMageError, ConfigError

Task = TypeVar("Task")
Result = TypeVar("Result")
Ask = Callable[[Any], Any]
"""How a piece of work asks the command something, and gets its answer."""
Work = Callable[[Any, Task, Ask], Result]
"""Called in another process with what all share, a task, and a way to ask. It must be a module's function."""

SECONDS_TO_END = 5.0
_SPAWN = multiprocessing.get_context("spawn")  # CUDA does not survive a fork


@dataclass(frozen=True)
class Died:
    """In the place of a result: the process ended without one."""

    reason: str


def check_jobs(jobs: int) -> None:
    """Refuse a number of jobs that is below one."""
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}; at least one must run at a time")


class Pool(Generic[Task, Result]):
    """At most `jobs` processes, started as they are needed, which end with the `with` block.

    Parameters
    ----------
    jobs
        How many pieces of work run at a time. The processors are divided among them.
    work
        What is done with a task.
    shared
        What every task needs, such as the data. It is sent to each process once.

    Examples
    --------
    >>> with Pool(4, fit, split) as pool:  # doctest: +SKIP
    ...     for task, result in pool.run(tasks, answer):
    ...         print(task, result)
    """

    def __init__(self, jobs: int, work: Work[Task, Result], shared: Any) -> None:
        check_jobs(jobs)
        self.jobs, self.work = jobs, work
        self._shared = bytes(ForkingPickler.dumps(shared))
        self._workers: list[_Worker] = []

    def run(
        self, tasks: Iterable[Task], answer: Callable[[Task, Any], Any]
    ) -> Iterator[tuple[Task, Result | Died]]:
        """Each task with what it came to, in the order in which they end.

        The next task is taken when a process is free for it, after the caller has seen all results so far.
        `answer` is called here, with a task and what its work asks. What `work` raises is raised here.
        """
        waiting = iter(tasks)
        while True:
            while (task := self._next(waiting)) is not None:
                self._free().give(task)
            busy = {worker.pipe: worker for worker in self._workers if worker.task is not None}
            if not busy:
                return
            for pipe in wait([*busy]):
                worker = busy[pipe]  # type: ignore[index]
                kind, content = worker.hear()
                if kind == "ask":
                    worker.reply(answer(worker.task, content))
                    continue
                task, worker.task = worker.task, None
                if kind == "error":
                    raise content
                if kind == "died":
                    self._workers.remove(worker)
                yield task, content

    def _next(self, waiting: Iterator[Task]) -> Task | None:
        """A task, if there is a process for it."""
        at_work = sum(worker.task is not None for worker in self._workers)
        return next(waiting, None) if at_work < self.jobs else None

    def _free(self) -> _Worker:
        """One that waits, else a new one."""
        for worker in [worker for worker in self._workers if worker.task is None]:
            if worker.process.is_alive():
                return worker
            self._workers.remove(worker)
        # What torch would take by itself is all processors, or what OMP_NUM_THREADS says.
        self._workers.append(
            _Worker(self.work, self._shared, threads=max(1, torch.get_num_threads() // self.jobs))
        )
        return self._workers[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join(SECONDS_TO_END)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers.clear()


class _Worker:
    """A process as the command sees it."""

    def __init__(self, work: Work[Any, Any], shared: bytes, threads: int) -> None:
        self.pipe, theirs = _SPAWN.Pipe()
        self.task: Any = None
        self._shared: bytes | None = shared
        self.process = _SPAWN.Process(target=_process, args=(theirs, work, threads), daemon=True)
        with _ctrl_c_held_back():
            self.process.start()
        theirs.close()  # so that the end of the process is the end of the pipe

    def give(self, task: Any) -> None:
        self.task = task
        if self._shared is None:
            self._send(task)
            return
        # A new process reads when it has started, seconds later, and a pipe holds little.
        threading.Thread(target=self._send, args=(task, self._shared), daemon=True).start()
        self._shared = None

    def reply(self, answer: Any) -> None:
        self._send(answer)

    def _send(self, content: Any, before: bytes | None = None) -> None:
        with suppress(OSError):  # it is dead, which is noticed when it is heard
            if before is not None:
                self.pipe.send_bytes(before)
            self.pipe.send(content)

    def hear(self) -> tuple[Literal["ask", "done", "error", "died"], Any]:
        try:
            kind, content = self.pipe.recv()
        except (EOFError, OSError):
            self.pipe.close()
            self.process.join(SECONDS_TO_END)
            code = self.process.exitcode
            how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            memory = ": out of memory? Fewer --jobs need less" if how == "SIGKILL" else ""
            return "died", Died(f"the process that ran it died ({how}){memory}")
        return kind, content


@contextmanager
def _ctrl_c_held_back() -> Iterator[None]:
    """A process that is started meanwhile never hears of Ctrl-C, which is for the command to act on."""
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    resource_tracker.ensure_running()  # it would lift the mask as it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# ── In the other process ─────────────────────────────────────────────────────────────────────────


def _process(pipe: Connection[Any, Any], work: Work[Any, Any], threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_the_command, daemon=True).start()
    torch.set_num_threads(threads)

    def ask(question: Any) -> Any:
        pipe.send(("ask", question))
        return pipe.recv()

    shared = pipe.recv()
    while True:
        task = pipe.recv()
        message: tuple[str, Any]
        try:
            message = ("done", work(shared, task, ask))
        except Exception as error:
            message = ("error", _that_travels(error))
        _free_memory()
        pipe.send(message)


def end_with_the_command() -> None:
    """Wait until the command has ended, and end with it.

    Whoever gives a command again that was killed must not meet its processes still at work.
    """
    command = multiprocessing.parent_process()
    assert command is not None
    command.join()
    os._exit(1)


def _free_memory() -> None:
    """What one process has done with is for the others."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def _that_travels(error: Exception) -> Exception:
    """The error in a form that the command can always read, whatever class another package has made it of."""
    if isinstance(error, BundleMageError):
        return error
    if isinstance(error, OSError):
        return OSError(error.errno, error.strerror or str(error), error.filename)
    return BundleMageError(f"{type(error).__name__}: {error}")
