"""What every request passes: limits, headers, problems, counts and the log, on a real server."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bundlemage.errors import ConfigError
from bundlemage.models.config import parse_config
from bundlemage.service import logs, shared
from bundlemage.service.logs import JsonLines, Traces
from bundlemage.service.metrics import Metrics
from bundlemage.service.problems import responses
from bundlemage.service.settings import Settings
from bundlemage.service.shared import Buckets
from bundlemage.service.shared_result import SharedResult
from bundlemage.store.records import State
from bundlemage.store.repository import Store
from bundlemage.wire.answers import ProblemOut
from tests.service.running import copied as whole_copy
from tests.service.running import inside
from tests.service.small_service import KINDS, OUTPUT, Running, copied, serving

READ = "/v1/users/u0007/bundles"
LIMIT = 1024 * 1024


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    database = tmp_path_factory.mktemp("template") / "shop.db"
    Store.open(f"sqlite:///{database}").close()
    return database


@pytest.fixture(scope="module")
def running(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(copied(template, tmp_path_factory.mktemp("frame")), seconds_believed=5.0) as started:
        yield started


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client() as opened:
        yield opened


def problem(answer: httpx.Response, status: int) -> ProblemOut:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    check_headers(answer, "no-store")
    found = ProblemOut.model_validate(answer.json())
    assert (found.status, found.request_id) == (status, answer.headers["x-request-id"])
    assert found.type.startswith("urn:bundlemage:problem:")
    return found


def check_headers(answer: httpx.Response, caching: str) -> None:
    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "img-src 'self' data:" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert "camera=()" in answer.headers["permissions-policy"]
    assert answer.headers.get_list("cache-control") == [caching]
    assert "server" not in answer.headers


# Headers


@pytest.mark.parametrize(
    ("path", "caching"),
    [(READ, "no-store"), ("/healthz", "no-store"), ("/", "no-cache"), ("/static/shop.css", "no-cache")],
)
def test_every_answer_has_the_headers(client: httpx.Client, path: str, caching: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    check_headers(answer, caching)
    assert len(answer.headers.get_list("x-request-id")) == 1


def test_a_request_id_is_taken_over_if_it_looks_like_one(client: httpx.Client) -> None:
    answer = client.get("/healthz", headers={"X-Request-ID": "shop.checkout_7-a"})
    assert answer.headers["x-request-id"] == answer.json()["request_id"] == "shop.checkout_7-a"


@pytest.mark.parametrize("given", ["", "a b", "x" * 65, "<script>", "ü", "a;b", "a\tb", '"', "a,b"])
def test_any_other_is_replaced(running: Running, given: str) -> None:
    head = f"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-ID: {given}\r\n\r\n"
    answer = running.raw(head.encode("latin-1"))
    assert answer.startswith(b"HTTP/1.1 200")
    identity = json.loads(answer.partition(b"\r\n\r\n")[2])["request_id"]
    assert len(identity) == 16
    assert f"x-request-id: {identity}\r\n".encode() in answer


def test_no_header_can_be_put_into_an_answer(running: Running) -> None:
    for evil in (b"a\r\nSet-Cookie: x=1", b"a\nSet-Cookie: x=1", b"a\rSet-Cookie: x=1"):
        for name in (b"X-Request-ID", b"Origin", b"Authorization"):
            head = b"GET " + READ.encode() + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            answer = running.raw(head + name + b": " + evil + b"\r\n\r\n")
            assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 4")), answer[:80]
            assert b"set-cookie" not in answer.lower()
    answer = running.raw(
        b"GET /v1/%0d%0aSet-Cookie:%20x=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    assert b"set-cookie:" not in answer.lower().partition(b"\r\n\r\n")[0]


def test_request_ids_are_made_anew_for_each(client: httpx.Client) -> None:
    assert len({client.get("/healthz").headers["x-request-id"] for _ in range(50)}) == 50


# Size


def body_of(size: int) -> bytes:
    empty = json.dumps({"names": [""]}).encode()
    return json.dumps({"names": ["x" * (size - len(empty))]}).encode()


def test_a_body_may_be_as_large_as_the_limit_and_no_larger(client: httpx.Client) -> None:
    kind = {"Content-Type": "application/json"}
    assert len(body_of(LIMIT)) == LIMIT
    assert client.post("/v1/ask", content=body_of(LIMIT), headers=kind).status_code == 200
    answer = client.post("/v1/ask", content=body_of(LIMIT + 1), headers=kind)
    assert "1,048,576 bytes" in problem(answer, 413).detail
    assert client.get("/healthz").status_code == 200


def test_so_may_one_that_comes_in_chunks(client: httpx.Client) -> None:
    def chunks(body: bytes) -> Iterator[bytes]:
        for start in range(0, len(body), 50_000):
            yield body[start : start + 50_000]

    kind = {"Content-Type": "application/json"}
    assert client.post("/v1/ask", content=chunks(body_of(LIMIT)), headers=kind).status_code == 200
    problem(client.post("/v1/ask", content=chunks(body_of(LIMIT + 1)), headers=kind), 413)


def test_an_endless_body_is_cut_off(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
        for _ in range(17):
            connection.sendall(chunk)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_large_length_is_refused_before_a_byte_of_it_came(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=10) as connection:
        connection.sendall(
            b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 99999999999\r\n\r\n"
        )
        assert connection.recv(4096).startswith(b"HTTP/1.1 413")


def test_a_request_with_two_lengths_is_refused(running: Running) -> None:
    head = b"POST /v1/ask HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n"
    answer = running.raw(head + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")


# Rate


def test_a_bucket_holds_its_burst_and_fills_at_its_rate() -> None:
    buckets = Buckets(per_second=10, burst=20)
    assert [buckets.take("a", 0.0) for _ in range(20)] == [0.0] * 20
    assert buckets.take("a", 0.0) == pytest.approx(0.1)
    assert buckets.take("a", 0.0) == pytest.approx(0.1)  # being refused does not make it longer
    assert buckets.take("b", 0.0) == 0.0
    assert buckets.take("a", 0.1) == 0.0
    assert buckets.take("a", 0.1) > 0
    assert [buckets.take("a", 100.0) for _ in range(21)].count(0.0) == 20  # never more than the burst
    through = sum(buckets.take("c", step / 1000) == 0.0 for step in range(10_000))
    assert through == pytest.approx(20 + 10 * 10, abs=1)


def test_buckets_take_bounded_memory_and_forget_the_quietest_first() -> None:
    buckets = Buckets(per_second=1, burst=2, most_callers=96)
    assert [buckets.take("busy", 0.0) for _ in range(2)] == [0.0, 0.0]
    for number in range(10_000):
        now = number / 1e6
        assert buckets.take(f"stranger {number}", now) == 0.0
        assert buckets.take("busy", now) > 0
    assert len(buckets) == 96


def test_too_many_requests_are_told_when_to_come_again(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path), Settings(rate_limit=2)) as slow, slow.client() as client:
        assert [client.get(READ).status_code for _ in range(4)] == [200] * 4
        while (answer := client.get(READ)).status_code == 200:  # a slow machine gains tokens meanwhile
            pass
        assert "Wait 1 s" in problem(answer, 429).detail
        assert answer.headers["retry-after"] == "1"
        assert [client.get("/healthz").status_code for _ in range(8)] == [
            200
        ] * 8  # a probe has its own share
        time.sleep(float(answer.headers["retry-after"]))
        assert client.get(READ).status_code == 200


def test_probes_have_a_share_of_their_own_for_each_address(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PROBES_PER_SECOND", 0.002)  # one, and the next after some minutes
    with serving(copied(template, tmp_path), Settings(trust_proxy=True)) as running:
        key = running.key("read")
        flood = {"X-Forwarded-For": "192.0.2.1"}
        with running.client(key) as client:
            assert client.get("/healthz", headers=flood).status_code == 200
            for path in ("/readyz", "/healthz"):
                answer = client.get(path, headers=flood)
                assert "Wait" in problem(answer, 429).detail
                assert int(answer.headers["retry-after"]) > 1
            assert client.get("/healthz", headers={"X-Forwarded-For": "192.0.2.2"}).status_code == 200
            assert client.get(READ, headers=flood).status_code == 200


def test_a_flood_of_probes_does_not_reach_the_store(
    sample_model: Path, sample_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with inside(sample_model, whole_copy(sample_database, tmp_path)) as running:
        looks: list[float] = []
        store = running.service.answerer.own_store
        state = store.state

        def counted() -> State:
            looks.append(time.monotonic())
            return state()

        monkeypatch.setattr(store, "state", counted)
        begun = time.monotonic()
        with running.client() as client, ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: client.get("/readyz"), range(80)))
        seconds = time.monotonic() - begun
        assert {answer.status_code for answer in answers} == {200}
        # One a second, and those of the housekeeping.
        assert 1 <= len(looks) <= 2 + 2 * seconds


def test_an_outcome_is_kept_for_a_while_whether_good_or_bad() -> None:
    looks: list[float] = []

    async def fine() -> None:
        looks.append(time.monotonic())
        await asyncio.sleep(0.05)

    async def bad() -> None:
        looks.append(time.monotonic())
        raise ConfigError("not now")

    async def play() -> None:
        kept: SharedResult[None] = SharedResult(seconds=0.3)
        await asyncio.gather(*(kept.result(fine) for _ in range(20)))
        await kept.result(bad)
        assert len(looks) == 1
        await asyncio.sleep(0.4)
        for _ in range(5):
            with pytest.raises(ConfigError, match="not now"):
                await kept.result(bad)
        assert len(looks) == 2
        await asyncio.sleep(0.4)
        await kept.result(fine)
        assert len(looks) == 3

    asyncio.run(play())


def test_an_outcome_is_there_for_the_others_if_the_first_who_asked_has_left() -> None:
    async def play() -> None:
        looks = 0
        kept: SharedResult[None] = SharedResult(seconds=1)

        async def slow() -> None:
            nonlocal looks
            looks += 1
            await asyncio.sleep(0.1)

        first = asyncio.create_task(kept.result(slow))
        await asyncio.sleep(0.02)
        first.cancel()
        await kept.result(slow)
        assert looks == 1

    asyncio.run(play())


def test_each_key_has_its_own_share_and_made_up_ones_have_none(template: Path, tmp_path: Path) -> None:
    settings = Settings(rate_limit=2)
    with serving(copied(template, tmp_path), settings, seconds_believed=60) as slow:
        first, second = slow.key("read"), slow.key("read")
        with slow.client(first) as one, slow.client(second) as other:
            for client in (one, other):
                assert client.get(READ).status_code == 200  # now it is known
            while one.get(READ).status_code == 200:
                pass
            assert other.get(READ).status_code == 200
        codes = []
        for number in range(12):
            with slow.client(f"bm_{number:012x}_{'x' * 43}") as stranger:
                codes.append(stranger.get(READ).status_code)
        assert set(codes) == {401, 429}  # each with a new key, yet all from one address
        with slow.client(f"bm_{second[3:15]}_{'x' * 43}") as thief:
            while thief.get(READ).status_code != 429:
                pass
        with slow.client(second) as other:
            assert other.get(READ).status_code == 200  # nobody else can use its share up


# Problems


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"k": 0}, "k", ["is 0; it must be at least 1"]),
        ({"k": "many"}, "k", ["is 'many', which is not a whole number"]),
        ({"where": {"max_price": "cheap"}}, "where.max_price", ["is 'cheap', which is not a number"]),
        ({"where": {"kind": "game"}}, "where.kind", ["'item' or 'bundle'", "found 'game'"]),
        ({"names": ["a", 7]}, "names[1]", ["valid string", "found 7"]),
        ({"price": 1}, "price", ["is not a field"]),
        ({"k": "x" * 5000}, "k", ["is 'xxx", "..."]),
        ([1], "body", ["found [1]"]),
    ],
)
def test_a_wrong_field_is_named_with_what_was_found(
    client: httpx.Client, body: Any, field: str, words: list[str]
) -> None:
    found = problem(client.post("/v1/ask", json=body), 422)
    assert [error.field for error in found.errors] == [field]
    for word in words:
        assert word in found.errors[0].message
        assert word in found.detail
    assert len(found.detail) < 300
    assert "Input" not in found.detail


@pytest.mark.parametrize(
    ("content", "kind", "word"),
    [
        (b"{", "application/json", "is no JSON"),
        (b"\xff\xfe\x00", "application/json", "JSON in UTF-8"),
        (b"{}", "text/plain", "Content-Type: application/json"),
        (b"[" * 100_000, "application/json", "JSON"),
        (b"", "application/json", "is missing"),
    ],
)
def test_a_body_that_is_no_json_is_told_so(
    client: httpx.Client, content: bytes, kind: str, word: str
) -> None:
    answer = client.post("/v1/ask", content=content, headers={"Content-Type": kind})
    assert word in problem(answer, 422).detail


def test_many_wrong_fields_make_a_short_answer(client: httpx.Client) -> None:
    found = problem(client.post("/v1/ask", json={"names": list(range(50_000))}), 422)
    assert len(found.errors) == 20
    assert found.detail.endswith("(and more)")


@pytest.mark.parametrize("content", [rb'{"k": "\ud800"}', rb'{"\ud800": 1}', rb'{"names": [["\ud800"]]}'])
def test_what_is_no_text_can_be_quoted(client: httpx.Client, content: bytes) -> None:
    answer = client.post("/v1/ask", content=content, headers={"Content-Type": "application/json"})
    assert "ud800" in problem(answer, 422).detail


def test_a_route_that_is_not_there(client: httpx.Client) -> None:
    assert "/openapi.json" in problem(client.get("/v1/nothing"), 404).detail
    answer = client.put("/v1/ask")
    assert "does not answer PUT" in problem(answer, 405).detail
    assert answer.headers["allow"] == "POST"


@pytest.mark.parametrize(
    ("kind", "status", "told"),
    [
        ("unknown-id", 422, True),
        ("unknown-things", 422, True),
        ("idempotency", 422, True),
        ("config", 422, True),
        ("unstorable", 422, True),
        ("unsupported", 409, True),
        ("busy", 503, True),
        ("store", 503, False),
        ("device", 500, False),
        ("other", 500, False),
    ],
)
def test_errors_become_problems(
    running: Running, client: httpx.Client, kind: str, status: int, told: bool
) -> None:
    logs.configure(stream=OUTPUT)  # or another test may have had the trace
    identity = f"raised-{kind}"
    answer = client.get(f"/v1/raise/{kind}", headers={"X-Request-ID": identity})
    found = problem(answer, status)
    assert (found.detail == str(KINDS[kind])) is told
    assert ("retry-after" in answer.headers) is (status == 503)
    if told:
        return
    # What happened is nobody's business but the operator's; and a message may hold a user's id.
    assert str(KINDS[kind]) not in answer.text
    (line,) = running.lines(identity, "failed")
    assert line["error"][0]["type"].endswith(type(KINDS[kind]).__name__)
    assert any("small_service.py" in frame and frame.endswith(" fail") for frame in line["error"][0]["trace"])
    # What a store says of itself is for whoever runs it; other messages may hold what somebody asked.
    assert (str(KINDS[kind]) in OUTPUT.getvalue()) == (kind == "store")


def test_in_an_outage_the_trace_is_logged_once_and_each_request_says_where_it_is(
    running: Running, client: httpx.Client
) -> None:
    logs.configure(stream=OUTPUT)
    names = [f"outage-{number}" for number in range(5)]
    for name in names:
        problem(client.get("/v1/raise/store", headers={"X-Request-ID": name}), 503)
    first, *others = (line for name in names for line in running.lines(name, "failed"))
    assert first["error"][0]["trace"]
    assert "same_as" not in first
    assert len(others) == 4
    for line in others:
        assert line["error"] == [{"type": first["error"][0]["type"]}]
        assert line["same_as"] == "outage-0"
    client.get("/v1/raise/other", headers={"X-Request-ID": "outage-other"})
    (another,) = running.lines("outage-other", "failed")
    assert another["error"][0]["trace"]  # of another kind


def test_traces_come_once_a_minute_with_the_number_of_those_left_out() -> None:
    traces = Traces(seconds=60, most_kinds=3)
    assert traces.look("a", "first", 0.0) == (None, 0)
    assert traces.look("b", "other", 1.0) == (None, 0)
    assert [traces.look("a", str(now), now) for now in (1.0, 59.9)] == [("first", 1), ("first", 2)]
    assert traces.look("a", "second", 60.0) == (None, 2)
    assert traces.look("a", "x", 61.0) == ("second", 1)
    for number in range(1000):
        assert traces.look(f"kind {number}", "x", 62.0) == (None, 0)
    assert len(traces) == 3


def test_an_answer_that_breaks_in_the_middle_is_broken_off(running: Running) -> None:
    with running.client() as client, pytest.raises(httpx.RemoteProtocolError):
        client.get("/v1/half", headers={"X-Request-ID": "half"})
    assert running.lines("half", "failed")
    assert running.lines("half")[0]["status"] == 200  # no second answer after the first
    assert "the secret of u0007" not in OUTPUT.getvalue()


def test_documented_problems_have_examples_that_hold() -> None:
    described = responses(401, 403, 404, 409, 413, 422, 429, 503)
    assert 500 in described
    for status, one in described.items():
        (content,) = one["content"].items()
        assert content[0] == "application/problem+json"
        assert ProblemOut.model_validate(content[1]["example"]).status == status


def test_the_document_knows_what_a_problem_is(running: Running) -> None:
    described = running.app.openapi()
    refusal = described["paths"]["/v1/ask"]["post"]["responses"]["422"]
    assert refusal["content"].keys() == {"application/problem+json"}
    name = refusal["content"]["application/problem+json"]["schema"]["$ref"].rpartition("/")[2]
    schemas = described["components"]["schemas"]
    assert schemas[name]["properties"]["errors"]["items"]["$ref"].rpartition("/")[2] in schemas


# The log


def test_a_request_is_one_line_without_personal_data(running: Running) -> None:
    key = running.key("read")
    try:
        before = len(OUTPUT.getvalue())
        with running.client(key) as client:
            path = "/v1/users/alice%40shop.example/bundles"
            answer = client.get(path, params={"k": 7331}, headers={"X-Request-ID": "line-1"})
            assert answer.json()["user_id"] == "alice@shop.example"
            body = {"names": ["bob@shop.example"]}
            client.post("/v1/ask", json=body, headers={"X-Request-ID": "line-2"})
            client.get("/v1/carol", headers={"X-Request-ID": "line-3", "User-Agent": "dave"})
        (line,) = running.lines("line-1")
        assert line.keys() == {
            "time",
            "level",
            "event",
            "request_id",
            "method",
            "route",
            "status",
            "ms",
            "key",
        }
        assert line["method"] == "GET"
        assert line["route"] == "/v1/users/{user_id}/bundles"
        assert (line["level"], line["status"], line["key"]) == ("info", 200, key[3:15])
        assert 0 < line["ms"] < 10_000
        assert line["time"].endswith("+00:00")
        assert running.lines("line-2")[0]["status"] == 403
        assert running.lines("line-3")[0]["route"] == "(none)"
        logged = OUTPUT.getvalue()[before:]
        for secret in ("alice", "7331", "bob", "carol", "dave", "127.0.0.1", key, key[16:]):
            assert secret not in logged
    finally:
        running.revoke(key)


def test_every_line_is_json(running: Running, client: httpx.Client) -> None:
    client.get("/healthz")
    for line in OUTPUT.getvalue().splitlines():
        assert json.loads(line)["event"]


def test_messages_of_errors_are_logged_only_where_it_is_asked_for() -> None:
    error = ValueError("u0007")
    error.__cause__ = KeyError("g0001")
    raised = (ValueError, error, None)
    record = logging.LogRecord("bundlemage", logging.ERROR, "", 1, "failed", None, raised)
    told = json.loads(JsonLines(messages_of_errors=True).format(record))["error"]
    assert [one["message"] for one in told] == ["u0007", "'g0001'"]
    assert [one["type"] for one in told] == ["builtins.ValueError", "builtins.KeyError"]
    assert "u0007" not in JsonLines().format(record)


# Counts


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """By name and, in the order of their names, the labels' values."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_requests_are_counted_by_template(template: Path, tmp_path: Path) -> None:
    with serving(copied(template, tmp_path)) as running:
        with running.client() as client, ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: client.get(f"/v1/users/u{number}/bundles"), range(40)))
            client.get("/v1/no/such/route")
            client.get("/static/shop.css")
            client.request("BREW", READ)
        counted = samples(running.service.metrics)
    route = "/v1/users/{user_id}/bundles"
    assert counted["bundlemage_requests_total", "GET", route, "200"] == 40
    assert counted["bundlemage_requests_total", "GET", "(none)", "404"] == 1
    assert counted["bundlemage_requests_total", "GET", "/static", "200"] == 1
    assert counted["bundlemage_request_seconds_count", route] >= 40
    assert counted["bundlemage_request_seconds_sum", route] > 0
    assert not any("u7" in part for name in counted for part in name)


def test_two_services_in_a_process_count_apart() -> None:
    waiting = [1, 2, 3]
    first, second = Metrics(lambda: len(waiting)), Metrics()
    first.wrote(3)
    first.answered(0.01, {"model": 8, "popular": 2})
    first.serves("v1", "bundlemage")
    first.serves("v2", "bundlemage")
    counted = samples(first)
    assert counted["bundlemage_interactions_total",] == 3
    assert counted["bundlemage_answers_total", "model"] == 8
    assert counted["bundlemage_answers_total", "popular"] == 2
    assert counted["bundlemage_queue_length",] == 3
    assert ("bundlemage_model_info", "bundlemage", "v2") in counted
    assert ("bundlemage_model_info", "bundlemage", "v1") not in counted
    assert samples(second)["bundlemage_interactions_total",] == 0


def test_latency_is_of_the_recent_ones() -> None:
    metrics = Metrics()
    assert (metrics.latency().count, metrics.latency().p50_ms) == (0, None)
    metrics.answered(0.007, {})
    assert (metrics.latency().p50_ms, metrics.latency().p99_ms) == (7.0, 7.0)
    for _ in range(5000):
        metrics.answered(9.0, {})
    for milliseconds in range(1, 5001):
        metrics.answered(milliseconds / 1000, {})
    latency = metrics.latency()
    assert latency.count == 4096  # the last ones: 905 to 5000 ms
    assert latency.p50_ms == 904 + 2048
    assert latency.p95_ms == 904 + 3892
    assert latency.p99_ms == 904 + 4056


# Settings


def test_settings_are_safe_by_default_and_refuse_what_they_do_not_know() -> None:
    settings = Settings()
    assert (settings.host, settings.trust_proxy, settings.body_limit) == ("127.0.0.1", False, LIMIT)
    assert parse_config(Settings, {"port": 0, "rate_limit": 5}).rate_limit == 5
    with pytest.raises(ConfigError, match="unknown setting 'hosts'"):
        parse_config(Settings, {"hosts": "0.0.0.0"})
    for wrong in ({"port": 70000}, {"rate_limit": 0}, {"body_limit": 0}, {"session_hours": -1}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            parse_config(Settings, wrong)
    assert all(field.description for field in Settings.model_fields.values())
