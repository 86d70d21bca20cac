"""How much a caller may ask: so many requests a second, so many bytes a request."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from typing import Any

from starlette.types import Message, Receive

from bundlemage.service.problems import ApiError


class Buckets:
    """A token bucket for each caller, in bounded memory.

    Of a bucket only the time is kept at which it will be full again. That is all there is to know: it holds
    `burst` tokens less those that flow in until then.
    """

    def __init__(self, per_second: float, burst: float, most_callers: int = 20_000) -> None:
        self._seconds_each = 1 / per_second
        self._depth = max(burst, 1) / per_second  # seconds that an empty bucket takes to fill
        self._most_callers = most_callers
        self._full_at: dict[str, float] = {}

    def take(self, caller: str, now: float) -> float:
        """Take a token: 0, or the seconds after which there is one. A refusal costs the caller nothing."""
        full_at = max(self._full_at.pop(caller, now), now)  # popped and put back: the newest stands last
        later = full_at + self._seconds_each
        wait = later - now - self._depth
        if wait > 1e-9:
            self._full_at[caller] = full_at
            return wait
        self._full_at[caller] = later
        if len(self._full_at) > self._most_callers:
            # The one that has been quiet longest; its bucket is most likely full, and then it is as if new.
            del self._full_at[next(iter(self._full_at))]
        return 0.0

    def __len__(self) -> int:
        return len(self._full_at)


class Kept:
    """What a look has found that strangers may ask for: however many ask, there is one in so many seconds.

    An error is an outcome, too. For use on one event loop.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._look: asyncio.Task[None] | None = None
        self._until = 0.0

    async def outcome(self, look: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Look, or take part in what the last look has found or will find; raises what it raised."""
        if self._look is None or time.monotonic() >= self._until:
            self._until = math.inf  # until it is done
            self._look = asyncio.create_task(look())
            self._look.add_done_callback(self._done)
        await asyncio.shield(self._look)  # one who leaves does not take it from the others

    def _done(self, look: asyncio.Task[None]) -> None:
        self._until = time.monotonic() + self._seconds
        if not look.cancelled():
            look.exception()  # or asyncio complains where everybody has left


def too_large(limit: int) -> ApiError:
    return ApiError(
        413,
        "Body too large",
        f"The body of a request may have {limit:,} bytes at most. Send fewer interactions at a time.",
    )


def limited(receive: Receive, limit: int) -> Receive:
    """For a body whose length was not told: counts what comes, and stops reading after the limit."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request":
            seen += len(message.get("body", b""))
            if seen > limit:
                raise too_large(limit)
        return message

    return counted
