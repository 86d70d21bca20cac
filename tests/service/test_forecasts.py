"""Forecasts over the API: estimates from a sample, streams, segments, and lists of buyers."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from bundlemage.client import Client, ServiceError
from bundlemage.core.segments import Segment
from bundlemage.recommender import Recommender
from bundlemage.service.routes import forecasts
from tests.service.held import PAGE, Held
from tests.service.running import Inside, copied, inside, new_key, ok, problem
from tests.waiting import wait_until

ITEMS = ["g0022", "g0401", "g0004"]
SCORE, BUYERS = "/v1/bundles:score", "/v1/bundles:buyers"
STREAM = {"stream": "true"}


@pytest.fixture(scope="module")
def running(
    sample_model: Path, sample_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inside]:
    with inside(sample_model, copied(sample_database, tmp_path_factory.mktemp("forecasts"))) as service:
        yield service


@pytest.fixture(scope="module")
def client(running: Inside) -> Iterator[httpx.Client]:
    with running.client(timeout=240) as client:
        yield client


def near(number: float | None) -> Any:
    return pytest.approx(number, rel=1e-3)


def lines_of(client: httpx.Client, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a streamed forecast, each with the one field that it has."""
    with client.stream("POST", SCORE, params=STREAM, json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in answer.iter_lines()]
    return [{name: value for name, value in line.items() if value is not None} for line in lines]


# ── Estimates ────────────────────────────────────────────────────────────────────────────────────


def test_a_sample_is_of_so_many_users_and_speaks_of_all(client: httpx.Client) -> None:
    exact = ok(client.post(SCORE, json={"items": ITEMS}))
    assert (exact["of"], exact["sampled"], exact["in_segment"]) == (exact["asked"], False, None)
    estimate = ok(client.post(SCORE, json={"items": ITEMS, "sample": 300}))
    assert (estimate["asked"], estimate["of"], estimate["sampled"]) == (300, exact["asked"], True)
    assert estimate["low"] <= exact["expected"] <= estimate["high"]
    assert estimate == {
        **ok(client.post(SCORE, json={"items": ITEMS, "sample": 300})),
        "request_id": estimate["request_id"],
    }
    everybody = ok(client.post(SCORE, json={"items": ITEMS, "sample": 100_000}))
    assert everybody == {**exact, "request_id": everybody["request_id"]}
    for too_few in (0, 1, 29):
        problem(client.post(SCORE, json={"items": ITEMS, "sample": too_few}), 422, "sample")


def test_listed_users_are_scored_also_if_the_sample_lacks_them(client: httpx.Client) -> None:
    likeliest = [each["id"] for each in ok(client.post(SCORE, json={"items": ITEMS, "k": 5}))["people"]]
    body = {"items": ITEMS, "segment": {"users": [*likeliest, "nobody"]}}
    exact = ok(client.post(SCORE, json=body))
    estimate = ok(client.post(SCORE, json={**body, "sample": 60}))
    streamed = lines_of(client, {**body, "sample": 60})[0]["estimate"]
    assert streamed == {**estimate, "request_id": streamed["request_id"]}
    assert (estimate["in_segment"], estimate["sampled"]) == (5, True)
    assert estimate["low"] <= exact["expected"] <= estimate["high"]
    assert {each["id"] for each in estimate["people"]} == set(likeliest)
    assert "Left out, because they have no history: 1 of the 6 listed users." in estimate["note"]
    few = ok(client.post(SCORE, json={"items": ITEMS, "sample": 30, "segment": {"least_bundles": 9}}))
    assert (few["expected"], few["low"], few["high"]) == (None, None, None)
    assert "too few for an estimate" in few["note"]


def test_users_who_were_erased_are_not_in_the_sample(
    sample_model: Path, sample_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with inside(sample_model, copied(sample_database, tmp_path)) as service, service.client() as client:
        body = {"items": ITEMS, "sample": 50, "k": 100}
        chosen, of = service.store.sample_of_users(50)
        assert client.delete(f"/v1/users/{chosen[0]}").status_code == 204
        again, fewer = service.store.sample_of_users(50)
        assert fewer == of - 1
        assert chosen[0] not in again
        # Also if the user is erased after the sample was drawn.
        monkeypatch.setattr(type(service.store), "sample_of_users", lambda *_: (chosen, of))
        told = ok(client.post(SCORE, json=body))
        assert told["asked"] == 49
        assert chosen[0] not in {each["id"] for each in told["people"]}


def test_a_stream_has_the_estimate_and_then_the_exact_forecast(client: httpx.Client) -> None:
    body = {"items": ITEMS, "sample": 300, "k": 3}
    lines = lines_of(client, body)
    assert list(lines[0]) == ["estimate"]
    assert list(lines[-1]) == ["forecast"]
    assert all(list(line) == ["progress"] for line in lines[1:-1])
    estimate, forecast = lines[0]["estimate"], lines[-1]["forecast"]
    told, exact = (ok(client.post(SCORE, json=each)) for each in (body, {"items": ITEMS, "k": 3}))
    assert estimate == {**told, "request_id": estimate["request_id"]}
    assert forecast == {**exact, "request_id": forecast["request_id"]}
    # An estimate of 2,000 users is exact here: the shop has fewer.
    only = lines_of(client, {"items": ITEMS, "k": 3})
    assert [list(line) for line in only] == [["forecast"]]
    assert only[0]["forecast"]["expected"] == exact["expected"]


def test_a_wrong_question_is_refused_before_the_stream_begins(client: httpx.Client) -> None:
    for body, word in (({"items": ["g9999"]}, "g9999"), ({"items": ITEMS, "segment": {}}, "no condition")):
        problem(client.post(SCORE, params=STREAM, json=body), 422, word)
    problem(client.post(SCORE, params={"stream": "perhaps"}, json={"items": ITEMS}), 422)


def test_a_stream_tells_its_progress_and_a_failure(
    sample_model: Path, sample_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    monkeypatch.setattr(forecasts, "PROGRESS_EVERY", 0.05)
    body = {"items": ITEMS, "sample": PAGE}
    with inside(sample_model, copied(sample_database, tmp_path)) as service, service.client() as client:
        try:
            held.go.release(2)  # the estimate, and one batch of the exact forecast
            with client.stream("POST", SCORE, params=STREAM, json=body, timeout=240) as answer:
                lines = map(json.loads, answer.iter_lines())
                assert next(lines)["estimate"]["sampled"]
                told = next(line["progress"] for line in lines if (line["progress"] or {}).get("done"))
                assert (told["kind"], told["stage"], told["done"]) == ("forecast", "users", PAGE)
                assert told["of"] > PAGE
                service.stop()
                *_, last = lines
        finally:
            held.let_all_go()
    assert last["problem"]["status"] == 503
    assert "shutting down" in last["problem"]["detail"]
    assert last["forecast"] is None


def test_leaving_a_stream_stops_the_work_within_a_batch(
    sample_model: Path, sample_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    with inside(sample_model, copied(sample_database, tmp_path)) as service, service.client() as client:
        try:
            held.go.release()  # the estimate
            body = {"items": ITEMS, "sample": PAGE}
            with client.stream("POST", SCORE, params=STREAM, json=body, timeout=240) as answer:
                lines = answer.iter_lines()  # kept: the stream is closed when the iterator is gone
                assert "estimate" in next(lines)
                held.wait_for_a_batch()  # of the estimate
                held.wait_for_a_batch()  # of the exact forecast
                assert [each.kind for each in service.service.lanes.work()] == ["forecast"]
                assert ok(client.get("/v1/users/u0007/bundles"))["bundles"]  # others are answered meanwhile
            with service.client() as other:
                ended = f'route="{SCORE}",status="200"'
                wait_until(lambda: ended in other.get("/metrics").text, "the end of the request")
        finally:
            held.let_all_go()
        wait_until(lambda: not service.service.lanes.work(), "the end of the work")
        assert held.batches == 2


def test_an_estimate_does_not_wait_for_an_exact_forecast(
    sample_model: Path, sample_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    with (
        inside(sample_model, copied(sample_database, tmp_path)) as service,
        service.client(timeout=240) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        try:
            exact = pool.submit(client.post, SCORE, json={"items": ITEMS})
            held.wait_for_a_batch()
            estimate = pool.submit(client.post, SCORE, json={"items": ITEMS, "sample": PAGE})
            held.wait_for_a_batch()
            assert {each.kind for each in service.service.lanes.work()} == {"estimate", "forecast"}
        finally:
            held.let_all_go()
        assert ok(estimate.result())["sampled"]
        assert not ok(exact.result())["sampled"]


def test_who_asks_at_once_gets_the_same_answer(client: httpx.Client) -> None:
    body = {"items": ITEMS, "sample": 300, "k": 3}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: lines_of(client, body), range(4)))
    for lines in answers:
        for kind, line in (("estimate", lines[0]), ("forecast", lines[-1])):
            first = answers[0][0 if kind == "estimate" else -1][kind]
            assert line[kind] == {**first, "request_id": line[kind]["request_id"]}


# ── Segments ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "segment",
    [{"tag": "Seafaring"}, {"least_items": 8, "most_bundles": 4}, {"users": ["u0007", "u0008", "x"]}],
)
def test_a_segment_is_that_of_the_recommender(
    client: httpx.Client, recommender: Recommender, segment: dict[str, Any]
) -> None:
    expected = recommender.score_bundle(ITEMS, among=Segment(**segment))
    told = ok(client.post(SCORE, json={"items": ITEMS, "segment": segment}))
    assert (told["in_segment"], told["asked"]) == (expected.in_segment, expected.asked)
    assert told["expected"] == near(expected.expected)
    assert (told["above"], told["low"], told["high"]) == (expected.above, expected.low, expected.high)
    assert [each["id"] for each in told["people"]] == [each.id for each in expected.people]
    assert told["weakest"] is None


def test_a_wrong_segment_is_refused(client: httpx.Client) -> None:
    for segment, word in (
        ({"tag": "nothing"}, "no item has the tag"),
        ({"users": ["nobody"]}, "is in the data ('nobody')"),
        ({"least_items": 5, "most_items": 4}, "above"),
        ({"least_items": -1}, "least_items"),
        ({"country": "IS"}, "country"),
    ):
        for route in (SCORE, BUYERS):
            problem(client.post(route, json={"items": ITEMS, "segment": segment}), 422, word)


# ── Buyers ───────────────────────────────────────────────────────────────────────────────────────


def test_the_list_of_buyers_is_that_of_the_recommender(
    client: httpx.Client, recommender: Recommender
) -> None:
    seafarers = {"segment": {"tag": "Seafaring"}, "least_chance": 0.01}
    some: list[dict[str, Any]] = [{}, {"least_chance": 0}, seafarers]
    for given in some:
        answer = client.post(BUYERS, json={"items": ITEMS, **given})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/csv")
        assert "buyers.csv" in answer.headers["content-disposition"]
        header, *rows = csv.reader(StringIO(answer.text, newline=""))
        assert header == ["user_id", "chance"]
        segment = Segment(**given["segment"]) if "segment" in given else None
        expected = recommender.buyers(ITEMS, among=segment, least_chance=given.get("least_chance"))
        assert len(rows) == len(expected) > 0
        chances = dict(zip(expected["user_id"].to_pylist(), expected["chance"].to_pylist(), strict=True))
        assert {name: float(chance) for name, chance in rows} == {k: near(v) for k, v in chances.items()}
        found = [float(chance) for _, chance in rows]
        assert found == sorted(found, reverse=True)
    above = ok(client.post(SCORE, json={"items": ITEMS}))["above"]
    assert len(client.post(BUYERS, json={"items": ITEMS}).text.splitlines()) == above + 1


def test_only_keys_that_may_write_get_the_list(
    sample_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    with inside(sample_model, copied(sample_database, tmp_path)) as service:
        keys = {role: new_key(service.store, role) for role in ("read", "write", "admin")}
        with service.client(keys["read"]) as reader:
            problem(reader.post(BUYERS, json={"items": ITEMS}), 403, "'write'")
            told = ok(reader.post(SCORE, json={"items": ITEMS}))
            lines = lines_of(reader, {"items": ITEMS, "sample": 100})
            assert [told["people"], lines[0]["estimate"]["people"], lines[-1]["forecast"]["people"]] == [
                []
            ] * 3
        for role in ("write", "admin"):
            with service.client(keys[role]) as client:
                assert client.post(BUYERS, json={"items": ITEMS}).is_success
                known = ok(client.post(SCORE, json={"items": ITEMS}))
                assert len(known["people"]) == 10
                assert {**told, "people": []} == {**known, "people": [], "request_id": told["request_id"]}
                lines = lines_of(client, {"items": ITEMS, "sample": 100})
                assert lines[0]["estimate"]["people"]
                assert lines[-1]["forecast"]["people"]


# ── The client ───────────────────────────────────────────────────────────────────────────────────


def test_the_client_tells_the_estimate_first(running: Inside, recommender: Recommender) -> None:
    estimates: list[Any] = []
    with Client(running.url, timeout=240) as client:
        segment: dict[str, Any] = {"least_items": 3}
        forecast = client.score_bundle(ITEMS, sample=300, segment=segment, on_estimate=estimates.append)
        assert [(each.asked, each.sampled) for each in estimates] == [(300, True)]
        assert not forecast.sampled
        assert forecast.expected == near(recommender.score_bundle(ITEMS, among=Segment(**segment)).expected)
        again = client.score_bundle(ITEMS, sample=300, segment=segment)
        assert again == estimates[0].model_copy(update={"request_id": again.request_id})
        rows = client.buyers(ITEMS, segment=segment)
        table = recommender.buyers(ITEMS, among=Segment(**segment))
        assert [name for name, _ in rows] == table["user_id"].to_pylist()
        assert [chance for _, chance in rows] == near(table["chance"].to_pylist())
        with pytest.raises(ServiceError, match="g9999") as refused:
            client.score_bundle(["g9999"], on_estimate=print)
        assert refused.value.status == 422

        def stop(_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            client.score_bundle(ITEMS, sample=300, on_estimate=stop)
    wait_until(lambda: not running.service.lanes.work(), "the end of the work")
