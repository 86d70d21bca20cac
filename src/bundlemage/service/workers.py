"""Several worker processes that answer at the same address: `bundlemage serve --workers N`.

The first process loads the model and forks the workers, so they share its memory until they change it. Then
it only watches them: it replaces a worker that dies, and stops all workers when it is told to stop.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from bundlemage.errors import BundleMageError, ConfigError

log = logging.getLogger("bundlemage.service")

SHORT_LIFE = 10.0
"""A worker that lives for fewer seconds than this has failed to start."""
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
MOST_FAILURES = 5
"""Number of failed starts in a row after which the service gives up."""


def check_possible() -> None:
    """Raise a ConfigError if this system cannot fork processes."""
    if not hasattr(os, "fork") or sys.platform == "darwin":
        raise ConfigError(f"--workers needs Linux, and this is {sys.platform}: leave it out")


class Workers:
    """Starts the workers, and replaces those that die."""

    def __init__(self, count: int, work: Callable[[int], None]) -> None:
        """`work` gets the worker's number, from 1, and returns when the worker was told to stop (SIGTERM)."""
        self._work, self._count = work, count
        self._running: dict[int, tuple[int, float]] = {}
        """For each process id: the worker's number, and when it was started."""
        self._stopped_by = 0
        self._failures = 0
        self._signals, wake = os.pipe()
        """Gets a byte for each signal, whichever thread receives it. So no signal is missed."""
        os.set_blocking(wake, False)
        self._wake = wake
        # Workers close the writing end. So a worker that reads from this pipe waits until this process dies.
        self._alive, self._keep = os.pipe()

    def run(self) -> int:
        """Start the workers. Returns SIGINT or SIGTERM when all have stopped after such a signal."""
        before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        waking = signal.set_wakeup_fd(self._wake)
        try:
            for number in range(1, self._count + 1):
                self._start(number)
            while self._running:
                os.read(self._signals, 1)
                if self._stopped_by:
                    self._tell_all()
                self._replace_ended()
        finally:
            signal.set_wakeup_fd(waking)
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._failures >= MOST_FAILURES:
            raise BundleMageError(
                f"{MOST_FAILURES} workers in a row ended within {SHORT_LIFE:g} s: the log above says why"
            )
        return self._stopped_by

    def _note(self, number: int, _: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            self._stopped_by = number

    def _tell_all(self) -> None:
        for process in self._running:
            os.kill(process, signal.SIGTERM)

    def _replace_ended(self) -> None:
        while self._running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            if process in self._running:
                self._replace(*self._running.pop(process), os.waitstatus_to_exitcode(status))

    def _replace(self, number: int, started: float, status: int) -> None:
        if self._stopped_by:
            return
        log.error("worker %d ended with status %d; another takes its place", number, status)
        self._failures = self._failures + 1 if time.monotonic() - started < SHORT_LIFE else 0
        if self._failures >= MOST_FAILURES:
            self._stopped_by = signal.SIGINT
            self._tell_all()
            return
        time.sleep(min(0.1 * 2**self._failures, 2) if self._failures > 1 else 0)
        if not self._stopped_by:
            self._start(number)

    def _start(self, number: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # until the child has its own handlers
        try:
            process = os.fork()
        except OSError as error:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            raise BundleMageError(f"cannot start worker {number}: {error.strerror}") from None
        if process:
            self._running[process] = number, time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for each in _SIGNALS:
                signal.signal(each, signal.SIG_DFL)
            # SIGINT stays blocked. A terminal sends it to all processes, but the first process stops the
            # workers with SIGTERM.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS - {signal.SIGINT})
            os.close(self._keep)
            threading.Thread(target=_end_with_parent, args=(self._alive,), daemon=True).start()
            self._work(number)
            code = 0
        except BundleMageError as error:
            log.error("worker %d cannot start: %s", number, error)  # noqa: TRY400  (the message says it all)
        except BaseException:
            log.exception("worker %d failed", number)
        finally:
            os._exit(code)


def _end_with_parent(alive: int) -> None:
    """Stop this worker when the first process is gone, even if it was killed."""
    os.read(alive, 1)
    os.kill(os.getpid(), signal.SIGTERM)
