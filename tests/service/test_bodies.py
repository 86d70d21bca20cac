"""Bodies that are made to cost time: no check builds more than a few errors, whatever the body holds."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from bundlemage.service.routes.session import LoginIn
from bundlemage.wire.design import DesignIn
from bundlemage.wire.requests import MANY, Body, InteractionsIn, RecommendIn
from tests.service.running import Inside, copied, inside, ok, problem

FEW = 50
"""More than the 20 errors that a check may find, and far fewer than these bodies have."""
MANY_WRONG = 5_000


def kinds(of: type[Body] = Body) -> Iterator[type[Body]]:
    """All bodies, and all parts of bodies."""
    for kind in of.__subclasses__():
        yield kind
        yield from kinds(kind)


KINDS = sorted(set(kinds()), key=lambda kind: str(kind.__name__))
assert {LoginIn, DesignIn} <= {*KINDS}
WRONG: list[Any] = [[], {}, {"a": 1}, "", 1, 1.5, None]


def errors_in(kind: type[Body], value: Any) -> int:
    try:
        kind.model_validate(value)
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_few_unknown_fields_are_errors(kind: type[Body]) -> None:
    unknown = {f"unknown_{number}": 1 for number in range(MANY_WRONG)}
    assert 20 <= errors_in(kind, unknown) <= FEW


@pytest.mark.parametrize("kind", KINDS)
def test_only_a_few_wrong_elements_are_errors(kind: type[Body]) -> None:
    for name in kind.model_fields:
        for wrong in WRONG:
            for many in ([wrong] * MANY_WRONG, {f"id {number}": wrong for number in range(MANY_WRONG)}):
                # A dict is checked a hundred entries at a time.
                assert errors_in(kind, {name: many}) <= FEW + 100, (name, wrong)


@pytest.mark.parametrize(
    ("ahead", "fine"),
    [(timedelta(hours=23), True), (timedelta(hours=25), False), (timedelta(days=365 * 7000), False)],
)
def test_the_time_of_an_interaction_is_at_most_a_day_ahead(ahead: timedelta, fine: bool) -> None:
    at = (datetime.now(UTC) + ahead).astimezone(timezone(-timedelta(hours=12)))
    body = {"interactions": [{"user_id": "u", "item_id": "i", "at": at.isoformat()}]}
    if fine:
        assert InteractionsIn.model_validate(body).interactions[0].at == at
        return
    with pytest.raises(ValidationError, match="more than a day in the future"):
        InteractionsIn.model_validate(body)


def test_known_fields_count_among_many_unknown_ones() -> None:
    with pytest.raises(ValidationError) as caught:
        RecommendIn.model_validate({**{f"unknown_{n}": 1 for n in range(1000)}, "user_id": "u1", "k": 0})
    places = [error["loc"] for error in caught.value.errors()]
    assert ("k",) in places
    assert ("unknown_19",) in places
    assert ("unknown_20",) not in places


def test_wrong_interactions_are_named_by_their_places() -> None:
    right = {"user_id": "u1", "item_id": "g1"}
    batch: list[Any] = [dict(right) for _ in range(MANY)]
    batch[3] = {"user_id": "", "item_id": "g1"}
    batch[4] = 17
    batch[4000] = {"user_id": "u1"}
    batch[MANY - 1] = {**right, "at": "yesterday", "colour": "red"}
    with pytest.raises(ValidationError) as caught:
        InteractionsIn.model_validate({"interactions": batch})
    found = {error["loc"][1:]: error["msg"] for error in caught.value.errors()}
    assert list(found) == [(3, "user_id"), (4,), (4000,), (MANY - 1, "at"), (MANY - 1, "colour")]
    assert found[3, "user_id"] == "Value error, is empty"
    assert "give either 'item_id' or 'bundle_id'" in found[4000,]
    assert errors_in(InteractionsIn, {"interactions": [right] * (MANY + 1)}) == 1
    assert errors_in(InteractionsIn, {"interactions": []}) == 1
    assert errors_in(InteractionsIn, {"interactions": "abc"}) == 1


def test_the_largest_bodies_that_are_documented_are_taken() -> None:
    ids = [f"g{number:05}" for number in range(MANY)]
    everything = {"history": {"items": ids, "bundles": ids}, "where": {"exclude": ids, "among": ids}}
    assert len(RecommendIn.model_validate(everything).where.exclude) == MANY
    costs = {f"g{number:05}": number for number in range(50_000)}
    design = DesignIn.model_validate({"user_id": "u1", "costs": costs, "forbid": list(costs)})
    assert list(design.costs.items()) == list(costs.items())
    assert design.forbid == tuple(costs)


# ── The service ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def running(
    sample_model: Path, sample_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inside]:
    database = copied(sample_database, tmp_path_factory.mktemp("bodies"))
    with inside(sample_model, database, login_limit=1000) as started:
        yield started


@pytest.fixture
def client(running: Inside) -> Iterator[httpx.Client]:
    with running.client() as opened:
        yield opened


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/recommend", {f"k{number}": 1 for number in range(90_000)}),
        ("/v1/recommend", {"history": {"items": [1.5] * 9_000}}),
        ("/v1/recommend", {"where": {"among": [""] * 9_000, "exclude": [True] * 9_000}}),
        ("/v1/complete", {"items": [{}] * 999}),
        ("/v1/explain", {"items": [{}] * 999}),
        ("/v1/design", {"costs": {f"g{number}": "" for number in range(60_000)}}),
        ("/v1/design", {"forbid": [1.5] * 200_000}),
        ("/v1/interactions", {"interactions": [{"colour": 1}] * 9_000}),
    ],
)
def test_a_wrong_body_is_answered_by_a_few_errors(client: httpx.Client, path: str, body: Any) -> None:
    told = problem(client.post(path, json=body), 422)
    assert 1 <= len(told["errors"]) <= 20
    if len(told["errors"]) == 20:
        assert told["detail"].endswith("(and more)")


def test_few_errors_are_counted(client: httpx.Client) -> None:
    told = problem(client.post("/v1/recommend", json={"user_id": "u1", "a": 1, "b": 2, "k": 0}), 422)
    assert len(told["errors"]) == 3
    assert told["detail"].endswith("(and 2 more)")


@pytest.mark.parametrize(
    "content",
    [
        b'{"history": {"items": [' + b"[]," * 300_000 + b"[]]}}",
        b"[" * 500_000,
        b'{"a":' * 200_000,
        b"[" + b",".join([b"[" * 900 + b"]" * 900] * 500) + b"]",
    ],
    ids=["lists", "deep lists", "deep objects", "many deep lists"],
)
def test_a_body_of_very_many_lists_is_refused_before_it_is_read(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    parsed: list[int] = []
    loads = json.loads

    def counted(text: Any, **options: Any) -> Any:
        parsed.append(len(text))
        return loads(text, **options)

    monkeypatch.setattr(json, "loads", counted)
    answer = client.post("/v1/recommend", content=content, headers=JSON)
    assert len(content) not in parsed
    problem(answer, 413, "100,000 lists and objects")


def test_a_whole_batch_is_taken(client: httpx.Client) -> None:
    one = {"item_id": "g0022", "at": "2026-01-01T00:00:00Z", "request_id": "x" * 16}
    batch = [{"user_id": f"[{{{number}", **one} for number in range(MANY)]
    content = json.dumps({"interactions": batch}, separators=(",", ":")).encode()
    assert len(content) < 2**20
    assert ok(client.post("/v1/interactions", content=content, headers=JSON))["new"] == MANY


@pytest.mark.parametrize(
    "number", [b"1" * 1_000_000, b"-" + b"9" * 4301, b"1" * 4300, b"1e999", b"0." + b"1" * 10**6]
)
def test_a_long_number_is_refused_in_words(client: httpx.Client, number: bytes) -> None:
    content = b'{"user_id": "u1", "k": ' + number + b"}"
    told = problem(client.post("/v1/recommend", content=content, headers=JSON), 422)
    assert len(told["detail"]) < 300


# ── The login ────────────────────────────────────────────────────────────────────────────────────


def test_a_login_has_a_small_body(client: httpx.Client) -> None:
    longest = json.dumps({"key": "x" * 200}).encode()
    problem(client.post("/v1/session", content=longest.ljust(4096), headers=JSON), 409)
    problem(client.post("/v1/session", content=longest.ljust(4097), headers=JSON), 413, "4,096 bytes")
    chunks = (longest.ljust(2048) for _ in range(3))
    problem(client.post("/v1/session", content=chunks, headers=JSON), 413, "4,096 bytes")


def test_an_attempt_counts_before_its_body_is_read(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with inside(sample_model, copied(sample_database, tmp_path)) as running, running.client() as client:
        for body in [b"{", b"{}", b'{"a": 1}', b"x" * 5000, b'{"key": "bm_wrong"}'] * 2:
            answer = client.post("/v1/session", content=body, headers=JSON)
            assert answer.status_code in (409, 413, 422)
        address = ("127.0.0.1", client.base_url.port or 0)
        with socket.create_connection(address, timeout=30) as connection:
            connection.sendall(
                b"POST /v1/session HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 20\r\n\r\n"  # and no body
            )
            assert connection.recv(4096).startswith(b"HTTP/1.1 429")
        problem(client.post("/v1/session", json={"key": "x"}), 429, "Too many login attempts")
        assert client.get("/v1/session").status_code == 200


def test_another_site_uses_up_nobodys_attempts(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with inside(sample_model, copied(sample_database, tmp_path)) as running, running.client() as client:
        for _ in range(12):
            problem(client.post("/v1/session", headers={"Origin": "https://evil.example"}), 403)
        problem(client.post("/v1/session", json={"key": "x"}), 409)
