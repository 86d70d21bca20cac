"""Runs tasks on this machine in several processes, or one after another in this process.

A process does many tasks, because starting torch and CUDA takes seconds. Each process has its own pipe to the
main process (below: the command) and shares nothing with other processes. So a killed one leaves no lock.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, Generic, Literal, Self, TypeVar

import torch

from bundlemage.errors import BundleMageError, ConfigError

Task = TypeVar("Task")
Result = TypeVar("Result")
Ask = Callable[[Any], Any]
"""Sends a question from a task to the command, and returns the answer."""
Work = Callable[[Any, Task, Ask], Result]
"""Does a task. Called in another process with the shared data, the task and an `Ask`. It must be defined at
the top level of a module."""

SECONDS_TO_END = 5.0
"""How long to wait for a process to end before it is killed."""
# Processes are forked from a server process that has imported torch, so they need not import it. The server
# process never starts CUDA, which does not survive a fork. Windows cannot fork.
if sys.platform == "win32":
    _PROCESSES = multiprocessing.get_context("spawn")
else:
    _PROCESSES = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Died:
    """Takes the place of a task's result if its process died."""

    reason: str
    how: str = field(default="", compare=False)
    """The name of a signal, or an exit code."""


def check_jobs(jobs: int) -> None:
    """Raises ConfigError if the number of jobs is below one."""
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}; it must be at least 1")


class Pool(Generic[Task, Result]):
    """Up to `jobs` processes. They are started when needed, and end with the `with` block.

    They share the processors. With one job, tasks run in this process. `work` is the function that does a
    task, and `shared` the data that every task needs. It is sent to each process once.
    """

    def __init__(self, jobs: int, work: Work[Task, Result], shared: Any) -> None:
        check_jobs(jobs)
        self.jobs, self.work, self.shared = jobs, work, shared
        self._shared = b"" if jobs == 1 else bytes(ForkingPickler.dumps(shared))
        self._workers: list[_PoolProcess] = []

    def run(
        self, tasks: Iterable[Task], answer: Callable[[Task, Any], Any]
    ) -> Iterator[tuple[Task, Result | Died]]:
        """Yields each task with its result, in the order in which tasks finish.

        The next task starts when a process is free and the caller has all results so far. If a task asks a
        question, `answer` is called here with the task and the question. Errors of `work` are raised here.
        """
        waiting = iter(tasks)
        if self.jobs == 1:
            for each in waiting:
                yield each, self.work(self.shared, each, partial(answer, each))
            return
        while True:
            while self._busy() < self.jobs and (task := next(waiting, None)) is not None:
                self._free().give(task)
            busy = {worker.pipe: worker for worker in self._workers if worker.task is not None}
            if not busy:
                return
            for pipe in wait([*busy]):
                worker = busy[pipe]  # type: ignore[index]
                kind, content = worker.receive()
                if kind == "ask":
                    worker.send(answer(worker.task, content))
                    continue
                task, worker.task = worker.task, None
                if kind == "error":
                    raise content
                if kind == "died":
                    self._workers.remove(worker)
                yield task, content

    def _busy(self) -> int:
        return sum(worker.task is not None for worker in self._workers)

    def _free(self) -> _PoolProcess:
        """Returns an idle process, or starts one."""
        for worker in [worker for worker in self._workers if worker.task is None]:
            if worker.process.is_alive():
                return worker
            self._workers.remove(worker)
        # By default torch uses all processors, or OMP_NUM_THREADS of them.
        threads = max(1, torch.get_num_threads() // self.jobs)
        self._workers.append(_PoolProcess(self.work, self._shared, threads))
        return self._workers[-1]

    def terminate(self) -> None:
        """End all processes, even in the middle of a task."""
        for worker in self._workers:
            worker.process.terminate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()
        for worker in self._workers:
            worker.process.join(SECONDS_TO_END)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers.clear()


class _PoolProcess:
    """A process of the pool, as the command sees it."""

    def __init__(self, work: Work[Any, Any], shared: bytes, threads: int) -> None:
        self.pipe, child_end = _PROCESSES.Pipe()
        self.task: Any = None
        self._shared: bytes | None = shared
        self.process = _PROCESSES.Process(
            target=_process, args=(child_end, work, threads, dict(os.environ)), daemon=True
        )
        _PROCESSES.set_forkserver_preload(["torch", work.__module__])
        # Only the command receives Ctrl-C: SIGINT is blocked here, and the new process inherits that mask.
        mask = getattr(signal, "pthread_sigmask", None)  # not on Windows
        if mask:
            resource_tracker.ensure_running()  # if started later, it would undo the mask
            before = mask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self.process.start()
        finally:
            if mask:
                mask(signal.SIG_SETMASK, before)
        child_end.close()  # so the pipe closes when the process ends

    def give(self, task: Any) -> None:
        """Sends a task to the process, which must be idle."""
        self.task = task
        if self._shared is None:
            self.send(task)
            return
        # A new process may take seconds to start, and a pipe holds little data, so sending here could block.
        threading.Thread(target=self.send, args=(task, self._shared), daemon=True).start()
        self._shared = None

    def send(self, content: Any, before: bytes | None = None) -> None:
        with suppress(OSError):  # the process is dead; `receive` reports this
            if before is not None:
                self.pipe.send_bytes(before)
            self.pipe.send(content)

    def receive(self) -> tuple[Literal["ask", "done", "error", "died"], Any]:
        try:
            kind, content = self.pipe.recv()
        except (EOFError, OSError):
            self.pipe.close()
            self.process.join(SECONDS_TO_END)
            code = self.process.exitcode
            how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
            memory = ": it may have run out of memory; use fewer --jobs" if how == "SIGKILL" else ""
            return "died", Died(f"the process that ran it died ({how}){memory}", how)
        return kind, content


# ── In the other process ─────────────────────────────────────────────────────────────────────────


def _process(
    pipe: Connection[Any, Any], work: Work[Any, Any], threads: int, environment: dict[str, str]
) -> None:
    os.environ.update(environment)  # it may have changed since the server process was started
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_command, daemon=True).start()
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
        except BundleMageError as error:
            message = ("error", error)
        except OSError as error:
            message = ("error", OSError(error.errno, error.strerror or str(error), error.filename))
        except Exception as error:  # the command may not be able to unpickle errors of other packages
            message = ("error", BundleMageError(f"{type(error).__name__}: {error}"))
        gc.collect()  # gives memory back to the other processes
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()
        pipe.send(message)


def _end_with_the_command() -> None:
    """Waits until the command has ended or was killed, and then ends this process."""
    command = multiprocessing.parent_process()
    assert command is not None
    command.join()
    os._exit(1)
