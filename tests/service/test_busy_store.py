"""A service whose store is busy: what is shared, what has connections of its own, and who is told to wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event

from bundlemage.recommender import Recommender
from bundlemage.service import app
from bundlemage.service.shared_result import SharedResult
from bundlemage.store import connections
from bundlemage.store.repository import Store
from tests.service.running import Inside, inside, new_key, ok, problem
from tests.waiting import wait_until

ASKERS = 16


@pytest.fixture
def running(
    sample_model: Path, store_url: str, recommender: Recommender, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Inside]:
    """The sample shop on each database. Nobody waits for a connection for long."""
    monkeypatch.setattr(connections, "_STATEMENT_SECONDS", 2)
    monkeypatch.setattr(app, "SHARED_FOR", 600.0, raising=False)
    store = Store.open(store_url)
    store.import_dataset(recommender.dataset)
    store.close()
    with inside(sample_model, store_url) as running:
        yield running


def test_many_who_ask_for_insights_share_one_query(running: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    arrived: list[None] = []
    all_are_here = threading.Event()
    result = SharedResult.result

    async def counted(self: SharedResult[Any], work: Any) -> Any:
        arrived.append(None)
        return await result(self, work)

    def note(_: Any, __: Any, statement: str, *more: Any) -> None:
        if "user_bundle" in statement:
            asked.append(statement)
            assert all_are_here.wait(60)

    def ask(_: int) -> dict[str, Any]:
        with running.client() as client:
            answer: dict[str, Any] = ok(client.get("/v1/insights"))
            return answer

    monkeypatch.setattr(SharedResult, "result", counted)
    engine = running.store._database._snapshot
    event.listen(engine, "before_cursor_execute", note)
    try:
        with ThreadPoolExecutor(ASKERS) as pool:
            answers = pool.map(ask, range(ASKERS))
            wait_until(lambda: len(arrived) == ASKERS, "all who ask")
            all_are_here.set()
            assert [answer["served"]["answers"] for answer in answers] == [0] * ASKERS
    finally:
        event.remove(engine, "before_cursor_execute", note)
    assert len(asked) == 1


def test_recommendations_need_no_connection_that_others_hold(running: Inside) -> None:
    key = new_key(running.store, "write")
    database = running.store._database
    with running.client(key) as client, ExitStack() as held:
        ok(client.put("/v1/bundles/new", json={"items": ["g0022"]}), 201)
        for _ in range(connections.MOST_CONNECTIONS):
            held.enter_context(database.read())
            if not database.is_sqlite:
                held.enter_context(database.write())
        for route in ("u0007/bundles", "u0007/gate", "u0007"):
            ok(client.get(f"/v1/users/{route}"))
        ok(client.get("/v1/bundles/new/similar"))
        problem(client.get("/v1/users"), 503, "all connections to the store were in use for 2 s", "try again")
        ok(client.get("/readyz"))
    with running.client(key) as client:
        ok(client.get("/v1/users"))
