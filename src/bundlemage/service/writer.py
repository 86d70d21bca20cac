"""Writes the interactions of many requests with one commit.

A commit waits for the disk, which takes longer than everything else. So one thread writes. Requests that
arrive meanwhile are written together, in one transaction. They are acknowledged when it is on disk.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fastapi.concurrency import run_in_threadpool

from bundlemage.errors import BusyError
from bundlemage.service.answerer import Batcher
from bundlemage.service.settings import Settings
from bundlemage.store.records import InteractionsRecord, Recorded
from bundlemage.store.repository import Store


class InteractionWriter:
    """Writes interactions to the store."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._own_store = store, store.beside(connections=1)
        self._patience = settings.answer_timeout_s
        self.batcher = Batcher(self._write, self._patience, name="writes", finish=True)

    async def write(self, record: InteractionsRecord) -> Recorded:
        """Write the interactions of a request. Returns when they are on disk.

        Raises `BusyError` if the request waited too long, the errors of `Store.add_interactions`, or a
        `StoreError`. After a `BusyError`, nothing was written.
        """
        until = time.monotonic() + self._patience
        recorded: Recorded | None = await self.batcher.ask(record)
        if recorded is None:
            # The database refused it, for example because of a lock. It is tried again in another thread, so
            # that other requests do not wait for it.
            return await run_in_threadpool(self._write_alone, record, until)
        return recorded

    def _write(self, records: Sequence[InteractionsRecord]) -> Sequence[Any]:
        return self._own_store.add_all_interactions(records)

    def _write_alone(self, record: InteractionsRecord, until: float) -> Recorded:
        if time.monotonic() > until:
            raise BusyError(f"the request waited {self._patience:g} s for others: try again in a second")
        return self._store.add_interactions(
            record.interactions, idempotency_key=record.idempotency_key, caller=record.caller
        )

    def close(self) -> None:
        """Write what waits, then stop."""
        self.batcher.close()
