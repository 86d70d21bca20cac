"""What the worker processes of a service share: the counts of the request limits, the recent response times,
the counters of the metrics, and locks.

The first process creates it, and then forks the workers. A service without workers uses the same code.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import AbstractContextManager, nullcontext, suppress
from mmap import mmap
from pathlib import Path
from typing import Any, Literal

from bundlemage.data.folders import locked_folder
from bundlemage.service.settings import Settings

with suppress(ImportError):  # Windows has no such module, and needs none, because it has no workers
    import fcntl

PROBES_PER_SECOND = 50
_NO_LOCK = nullcontext()


class Shared:
    """Memory and locks of all workers. What is in the memory outlives each worker."""

    def __init__(self, settings: Settings) -> None:
        self.number = 1
        """The number of this worker. Each forked process sets its own."""
        self._folder_lock: int | None = None
        self.folder: Path | None = None
        """Holds the files in which the workers count requests, their locks, and the weights that they share.
        None without workers. If all are killed, the next service with workers removes it."""
        if settings.workers > 1:
            temporary = Path(tempfile.gettempdir())
            self.folder, self._folder_lock = locked_folder(temporary, "bundlemage-workers-")
        self.requests = Buckets(settings.rate_limit, 2 * settings.rate_limit, self.lock(0))
        self.logins = Buckets(settings.login_limit / 60, settings.login_limit, self.lock(1))
        self.probes = Buckets(PROBES_PER_SECOND, 2 * PROBES_PER_SECOND, self.lock(2))
        self.response_times = Recent()
        self.loading = self.lock(3)
        """The worker that has it loads a model. So the workers load a new model one after the other."""

    def lock(self, number: int) -> AbstractContextManager[None]:
        """Returns a lock between processes, but not between the threads of one process."""
        return nullcontext() if self.folder is None else _Lock(self.folder / f"lock-{number}")

    def close(self) -> None:
        """Remove the files. Call it when the last worker has ended."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._folder_lock is not None:
            os.close(self._folder_lock)


class _Lock:
    """A lock on a file, which each process opens itself. The system releases it when its process dies.

    It uses `flock`, because locks of `lockf` belong to whole processes. Two processes may each have a lock
    that the other one waits for. With `lockf` the system takes this for a deadlock and refuses to wait, even
    if the threads that wait are not the threads that have the locks.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._descriptor, self._opened_by = file, -1, -1

    def __enter__(self) -> None:
        if self._opened_by != os.getpid():
            self._descriptor, self._opened_by = os.open(self._file, os.O_RDWR | os.O_CREAT), os.getpid()
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)


def _numbers(count: int, kind: Literal["d", "q"]) -> Any:
    """New memory for numbers, all 0. Processes that are forked later share it."""
    return memoryview(mmap(-1, 8 * count)).cast(kind)


class Recent:
    """The last few thousand numbers that any worker added."""

    KEPT = 4096

    def __init__(self) -> None:
        self._values, self._count = _numbers(self.KEPT, "d"), _numbers(1, "q")

    def append(self, value: float) -> None:
        # Two workers at the same moment may write to the same place. Then one number is lost.
        number = self._count[0]
        self._values[number % self.KEPT] = value
        self._count[0] = number + 1

    def sorted(self) -> list[float]:
        return sorted(self._values[: min(self._count[0], self.KEPT)])


class Buckets:
    """A token bucket for each caller, in memory of a fixed size that all workers share.

    A full bucket has `burst` tokens. For each bucket, only the time at which it will be full is kept. The
    current number of tokens is `burst` minus the tokens that will be added until then. A caller has its
    bucket at one of a few places that follow from its name. If all of them are in use, the caller whose
    bucket will be full first is forgotten.
    """

    PLACES = 8

    def __init__(
        self,
        per_second: float,
        burst: float,
        lock: AbstractContextManager[None] = _NO_LOCK,
        most_callers: int = 20_000,
    ) -> None:
        self._seconds_each = 1 / per_second
        self._depth = max(burst, 1) / per_second  # seconds until an empty bucket is full
        self._groups = -(-most_callers // self.PLACES)
        self._full_at = _numbers(self._groups * self.PLACES, "d")
        self._callers = _numbers(self._groups * self.PLACES, "q")
        self._lock = lock

    def take(self, caller: str, now: float) -> float:
        """Take a token. Returns 0; or, if the bucket is empty, the number of seconds until the next token."""
        name = hash(caller) or 1  # forked processes compute the same hash; 0 marks a free place
        first = name % self._groups * self.PLACES
        with self._lock:
            place = self._place_of(name, first)
            known = self._callers[place] == name
            full_at = max(self._full_at[place] if known else now, now)
            later = full_at + self._seconds_each
            wait = later - now - self._depth
            if wait > 1e-9:
                return wait
            self._callers[place], self._full_at[place] = name, later
            return 0.0

    def _place_of(self, name: int, first: int) -> int:
        """Returns the caller's place, or else the place whose bucket will be full first."""
        places = range(first, first + self.PLACES)
        for place in places:
            if self._callers[place] == name:
                return place
        return min(places, key=self._full_at.__getitem__)

    def __len__(self) -> int:
        return sum(map(bool, self._callers))
