"""How long a new request would wait, and how many requests the server has refused for this or other reasons.

Use both classes on the thread of the event loop only.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from bundlemage.service.logs import log
from bundlemage.service.metrics import NO_ROUTE, Metrics

FEW = 16
"""With fewer requests in progress, none is refused. One batch of the model can answer more than that."""
_MEMORY = 128
"""Number of answers after which the measured time of an answer has lost two thirds of its weight."""
_FIRST_GUESS_S = 0.001
_MANY_REFUSALS = 50


class Load:
    """Estimates how long a new request would wait: the number of requests in progress, times the seconds from
    one answer to the next (Little's law). These seconds are measured only while at least half of `FEW`
    requests are in progress, because otherwise the service also waits for requests.

    `busy_for` returns for how many seconds the thread that answers has been busy with its current batch. The
    estimate is never below it, so a thread that is stuck is noticed.
    """

    def __init__(self, busy_for: Callable[[], float] = lambda: 0.0) -> None:
        self.in_progress = 0
        self._busy_for = busy_for
        # Sums in which each answer weighs a little less than the next one.
        self._answers = float(FEW)
        self._seconds = FEW * _FIRST_GUESS_S
        self._last = 0.0

    def begin(self) -> None:
        """Count a request that is going to be answered."""
        self.in_progress += 1
        if self.in_progress == FEW // 2:
            self._last = time.monotonic()

    def end(self) -> None:
        """A counted request was answered, or its caller has disconnected."""
        if self.in_progress >= FEW // 2:
            now = time.monotonic()
            self._answers += 1 - self._answers / _MEMORY
            self._seconds += now - self._last - self._seconds / _MEMORY
            self._last = now
        self.in_progress -= 1

    def wait(self) -> float:
        """Expected number of seconds until a new request is answered. It is 0 if few are in progress."""
        if self.in_progress < FEW:
            return 0.0
        return max(self.in_progress * self._seconds / self._answers, self._busy_for())


class Refusals:
    """Counts the requests that the server refuses before the application sees them."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._to_log: Counter[int] = Counter()
        self._recent = 0

    def count(self, status: int, method: str) -> None:
        self._metrics.request(NO_ROUTE, method, status, 0.0)
        self._to_log[status] += 1
        self._recent += 1

    def are_many(self) -> bool:
        """Whether so many were refused since the last `start_again` that refusing takes much of the CPU."""
        return self._recent > _MANY_REFUSALS

    def start_again(self) -> None:
        self._recent = 0

    def write_log(self) -> None:
        """Write one line with the counts since the last line. A line for each would fill the log."""
        if self._to_log:
            fields = {"statuses": {str(status): count for status, count in sorted(self._to_log.items())}}
            log.warning("refused", extra={"fields": fields})
            self._to_log.clear()
