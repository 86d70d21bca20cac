"""A forecast that goes on only when a test lets it."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from bundlemage.campaigns import everyone
from bundlemage.campaigns.everyone import encoded
from bundlemage.service.routes import forecasts

PAGE = 100
"""The number of users in a batch."""


class Held:
    """Batches of users of a forecast. Each waits until the test lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches = 0
        self.priorities: set[int] = set()
        self.go = threading.Semaphore(0)
        self._begun = threading.Semaphore(0)

        def held(*arguments: Any) -> Any:
            self.batches += 1
            self.priorities.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            self._begun.release()
            assert self.go.acquire(timeout=240)
            return encoded(*arguments)

        monkeypatch.setattr(everyone, "encoded", held)
        monkeypatch.setattr(forecasts, "USERS_AT_A_TIME", PAGE)

    def wait_for_a_batch(self) -> None:
        assert self._begun.acquire(timeout=240)

    def let_all_go(self) -> None:
        self.go.release(10_000)
