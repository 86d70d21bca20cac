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
        # No worker has the writing end, so the workers can read from it only when this process has died.
        self._alive, self._keep = os.pipe()

    def run(self) -> None:
        """Start the workers. Returns when all have stopped after SIGINT or SIGTERM."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for number in range(1, self._count + 1):
                self._start(number)
            while self._running:
                self._replace(*os.waitpid(-1, 0))
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._failures >= MOST_FAILURES:
            raise BundleMageError(
                f"{MOST_FAILURES} workers in a row ended within {SHORT_LIFE:g} s: the log above says why"
            )
        if self._stopped_by == signal.SIGTERM:
            signal.raise_signal(signal.SIGTERM)  # so that whoever started this process sees how it ended

    def _stop(self, number: int, _: FrameType | None = None) -> None:
        self._stopped_by = number
        for process in self._running:
            os.kill(process, signal.SIGTERM)

    def _replace(self, process: int, status: int) -> None:
        number, started = self._running.pop(process, (0, 0.0))
        if not number or self._stopped_by:
            return
        ended = os.waitstatus_to_exitcode(status)
        log.error("worker %d ended with status %d; another takes its place", number, ended)
        self._failures = self._failures + 1 if time.monotonic() - started < SHORT_LIFE else 0
        if self._failures >= MOST_FAILURES:
            self._stop(signal.SIGINT)
            return
        time.sleep(min(0.1 * 2**self._failures, 2) if self._failures > 1 else 0)
        if not self._stopped_by:
            self._start(number)

    def _start(self, number: int) -> None:
        signals = {signal.SIGINT, signal.SIGTERM}
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)  # none must arrive before the child is known
        process = os.fork()
        if process:
            self._running[process] = number, time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
            return
        code = 1
        try:
            for each in signals:
                signal.signal(each, signal.SIG_DFL)
            # A terminal sends SIGINT to all processes at once, but the first process tells us to stop.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
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
