"""The torture of the service in small (`make test-torture` is all of it), and whether it finds faults."""

from __future__ import annotations

import json
import random
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from benchmarks.load import Outcome, Plan
from benchmarks.serving import Serving
from benchmarks.soak import Phase, Soak
from bundlemage.store.records import Bundle, InteractionRecord
from bundlemage.store.repository import Store
from tests.service.running import copied, inside, ok
from tests.torture.fuzz import PROBLEM, READERS, WRITERS, Answer, fault_of, fuzz, parts
from tests.torture.kills import Operator, kill_again_and_again
from tests.torture.ledger import Bought, Ledger, Put, faults_of_store
from tests.torture.shop import Shop, faults_of_log
from tests.torture.wild import Wild


def silent(what: str, done: int, of: int) -> None:
    pass


def shop_of(folder: Path, db: str, *models: Path) -> Shop:
    return Shop(folder, db, list(models))


@pytest.fixture
def shop(sample_model: Path, second_model: Path, sample_database: Path, tmp_path: Path) -> Shop:
    """A shop that does not run yet."""
    return shop_of(tmp_path, copied(sample_database, tmp_path), sample_model, second_model)


# ── In small ─────────────────────────────────────────────────────────────────────────────────────


def test_three_hundred_fuzzed_requests(shop: Shop) -> None:
    shop.create_keys()
    shop.publish_all()
    shop.start()
    try:
        shop.wait_until_ready()
        fuzzed = fuzz(shop, 300, 20, silent)
    finally:
        shop.kill()
    assert fuzzed.faults == []
    assert fuzzed.requests == 300
    assert fuzzed.statuses["200"] > 30  # most of the valid ones are answered
    assert len(fuzzed.statuses) > 5


def test_four_kills(sample_model: Path, second_model: Path, tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/shop.db"  # it is empty, so that a start that imports the shop is killed, too
    killed = kill_again_and_again(shop_of(tmp_path, db, sample_model, second_model), 4, 1, silent)
    assert killed.faults == []
    assert killed.kills.total() == 4
    assert killed.confirmed > 4


# ── It finds what it looks for ───────────────────────────────────────────────────────────────────


def test_a_request_is_the_same_whatever_was_made_before(sample_model: Path, tmp_path: Path) -> None:
    with inside(sample_model, f"sqlite:///{tmp_path}/shop.db") as service, service.client() as client:
        document: dict[str, Any] = ok(client.get("/openapi.json"))
    few, many = (
        {number: wild(number) for wild, numbers in parts(document, count, 3) for number in numbers}
        for count in (20, 51)
    )
    assert [*few.items()] == [(number, many[number]) for number in few]
    assert (len(few), len(many)) == (20, 51)
    for number in few:
        assert [wild(each) for wild, only in parts(document, 99, 3, number) for each in only] == [few[number]]
    for roles, writes in ((READERS, False), (WRITERS, True)):
        some, same = Wild(document, 3, roles, writes), Wild(document, 3, roles, writes)
        forwards = [some(number) for number in range(400)]
        assert [same(number) for number in reversed(range(400))][::-1] == forwards
        routes = {sent.route for sent in forwards}
        known = {f"{method.upper()} {path}" for path, of in document["paths"].items() for method in of}
        assert len(known & routes) > 0.8 * len(known)


def answer(status: int, body: Any, kind: bytes = PROBLEM, **headers: str) -> Answer:
    named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Answer(status, {b"content-type": kind, **named}, json.dumps(body).encode())


def test_answers_that_are_not_documented_are_found() -> None:
    def problem(status: int) -> dict[str, Any]:
        return {"status": status, "title": "Busy", "request_id": "1"}

    for right in (
        answer(200, {}, b"application/json"),
        answer(422, problem(422)),
        answer(503, problem(503), retry_after="1"),
        Answer(400, {b"content-type": b"text/plain"}, b"Invalid HTTP request received."),
        Answer(204, {}, b""),
    ):
        assert fault_of(right) is None, right
    for wrong, words in (
        (answer(500, problem(500)), "status 500"),
        (answer(503, problem(503)), "Retry-After"),
        (answer(404, problem(404), b"text/plain"), "as 'text/plain'"),
        (answer(400, {}, b"text/plain", x_request_id="1"), "as 'text/plain'"),
        (answer(422, problem(404)), "incomplete"),
        (Answer(200, {b"content-type": b"application/json"}, b"{"), "no JSON"),
    ):
        assert words in (fault_of(wrong) or ""), wrong


def test_lost_halved_and_undone_writes_are_found(shop: Shop) -> None:
    with shop.store() as store:
        write(store, ["a-0", "a-1", "b-0"], key=None)
        write(store, ["k-0"], key="once")
        store.put(Bundle("mine", ("g0001",), "new"))
        good = Ledger()
        good.bought += [Bought(("a-0", "a-1"), "b0001", None, True), Bought(("none",), "b0001", None)]
        good.bought.append(Bought(("k-0",), "b0001", "once", True))
        good.puts += [Put("mine", ("g0002",), "old", True), Put("mine", ("g0001",), "new")]
        assert faults_of_store(store, good) == []
        for bought, words in (
            (Bought(("c-0",), "b0001", None, True), "confirmed, but lost"),
            (Bought(("b-0", "b-1"), "b0001", None), "stored by half"),
            (Bought(("a-0",), "b0001", "other", True), "idempotency key"),
        ):
            assert words in "".join(faults_of_store(store, Ledger([bought])))
        for puts in (
            [Put("mine", ("g0001",), "old", True)],
            [Put("mine", ("g0001",), "new"), Put("mine", ("g0003",), "newer", True)],
            [Put("gone", ("g0001",), "x", True)],
        ):
            assert "expected one of" in "".join(faults_of_store(store, Ledger(puts=puts)))


def write(store: Store, users: list[str], key: str | None) -> None:
    rows = [InteractionRecord(user, "bundle", "b0001", None, None) for user in users]
    store.add_interactions(rows, idempotency_key=key, caller="x")


def test_a_publication_that_is_undone_is_found(shop: Shop) -> None:
    shop.publish_all()
    operator = Operator(shop, random.Random(0))
    assert operator.fault() is None
    operator.publish()
    assert operator.fault() is None
    with shop.store() as store:
        store.publish(shop.records[0])
    assert "undone" in (operator.fault() or "")


def test_a_reload_that_is_refused_is_found(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = Operator(shop, random.Random(0))
    answers = iter([(503, {}), (500, {"title": "Internal error"})])
    monkeypatch.setattr(shop, "ask", lambda *_, **__: next(answers))
    operator.reload()
    assert operator.faults == []
    operator.reload()
    assert "answers 500" in operator.faults[0]


def test_errors_in_the_log_are_found(tmp_path: Path) -> None:
    path = tmp_path / "log"
    fine = [{"level": "info", "event": "request"}, {"level": "error", "event": "request", "status": 503}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in fine))
    assert faults_of_log(path) == []
    for bad in ('{"level": "error", "event": "failed"}', "Traceback (most recent call last):"):
        path.write_text(f"{bad}\n")
        assert len(faults_of_log(path)) == 1


def test_the_soak_tells_failures_of_kills_from_others_and_sees_growing_memory() -> None:
    phase = Phase("quiet", 100, Outcome(), windows=[(10.0, 20.0)])
    lost, refused = "connection lost", "status 500"
    phase.outcome.failures += [
        (12.0, lost),
        (15.0, refused),
        (29.0, "timeout"),
        (31.0, "timeout"),
        (50.0, lost),
    ]
    phase.outcome.refusals += [11.0, 60.0]
    expected = {lost: 1, refused: 1, "timeout": 1, "status 503": 1}
    assert phase.unexpected(timeout=10) == expected
    phase.outcome.reads.extend([0.01] * 1000)  # now one refusal is not too many
    assert phase.unexpected(timeout=10) == {lost: 1, refused: 1, "timeout": 1}
    phase.extend_window(19.0)
    assert phase.windows == [(10.0, 22.0)]
    phase.extend_window(30.0)  # this is no consequence of the restart any more
    phase.extend_window(10.0)
    assert phase.windows == [(10.0, 22.0)]
    assert phase.rise() is None
    phase.memory = [(float(second), 400 + 10 * (second < 20)) for second in range(100)]
    assert phase.rise() == pytest.approx((0.0, 0.0), abs=1e-6)
    phase.memory = [(float(second), 400.0 + second) for second in range(100)]
    rise = phase.rise()
    assert rise is not None
    assert rise[0] == pytest.approx(69, abs=1)


def test_the_soak_tells_reloads_that_a_kill_has_ended_from_others() -> None:
    phase = Phase("kills", 100, Outcome(), windows=[(10.0, 20.0)])
    serving, plan = Serving(Path(), ""), Plan("", 1)
    soak = Soak(serving, plan, kill_every=1, reload_every=1, retrain_every=1, phases=[phase])
    refused = HTTPError("/v1/models/reload", 500, "Internal error", Message(), None)
    soak.failed_reloads += [(8.0, 11.0, ConnectionResetError("killed")), (12.0, 13.0, refused)]
    soak.failed_reloads.append((30.0, 31.0, ConnectionResetError("no kill")))
    found = ["a reload failed: HTTP Error 500: Internal error", "a reload failed: no kill"]
    assert soak.unexpected_reloads() == found
