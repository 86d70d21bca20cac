"""Long work over the API: it holds up nobody, says how far it is, and stops when nobody waits for it."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import socket
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from bundlemage import asker
from bundlemage.client import Client
from bundlemage.designer.constraints import Deadline
from bundlemage.designer.solver import cp, new_solver, solve
from bundlemage.errors import ConfigError
from bundlemage.live import Live
from bundlemage.recommender import Recommender
from bundlemage.service import lanes
from bundlemage.service.problems import ApiError
from bundlemage.service.routes import forecasts, models
from bundlemage.store.repository import Store
from tests.service.held import PAGE, Held
from tests.service.running import Inside, copied, inside, ok, problem
from tests.waiting import wait_until

SOMEONE = "u0007"
DESIGN = {"user_id": SOMEONE, "n": 1, "size": {"least": 2, "most": 3}, "method": "greedy", "reasons": False}
EXPLAIN = {"user_id": SOMEONE, "bundles": ["b0013"]}
ITEMS = ["g0022", "g0401", "g0004"]
FORECAST = {"items": ITEMS, "k": 5}


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.let_all_go()


@contextmanager
def running(model: Path, database: Path, folder: Path, **settings: Any) -> Iterator[tuple[Inside, Any]]:
    """The service, and a function that posts a request in another thread."""
    with (
        inside(model, copied(database, folder), **{"answer_timeout_s": 240, **settings}) as service,
        service.client(timeout=240) as client,
        ThreadPoolExecutor(8) as pool,
    ):

        def post(path: str, body: Any, request_id: str = "mine") -> Future[httpx.Response]:
            return pool.submit(client.post, path, json=body, headers={"X-Request-Id": request_id})

        yield service, post


def work(service: Inside) -> list[dict[str, Any]]:
    with service.client() as client:
        found: list[dict[str, Any]] = ok(client.get("/v1/work"))["work"]
        return found


def left(service: Inside, path: str) -> int:
    """How many requests of a route have ended because their callers had left, as the metrics say."""
    with service.client() as client:
        lines = client.get("/metrics").text.splitlines()
    counted = [
        line for line in lines if line.startswith("bundlemage_requests_total") and 'status="499"' in line
    ]
    return sum(int(float(line.rsplit(" ", 1)[1])) for line in counted if f'route="{path}"' in line)


@contextmanager
def by_hand(service: Inside, path: str, body: Any) -> Iterator[None]:
    """A request whose caller leaves at the end of the block without waiting for the answer."""
    address, content = urlsplit(service.url), json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
    with socket.create_connection((address.hostname, address.port), timeout=240) as connection:
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        yield


# ── In nobody's way ──────────────────────────────────────────────────────────────────────────────


def test_a_forecast_holds_up_neither_designs_nor_explanations_nor_recommendations(
    sample_model: Path, sample_database: Path, tmp_path: Path, held: Held
) -> None:
    """One works, and others of its kind wait. The test lets it go on when it has seen all this."""
    with running(sample_model, sample_database, tmp_path) as (service, post):
        first = post("/v1/bundles:score", FORECAST, "first")
        held.wait_for_a_batch()
        others = [post("/v1/bundles:score", FORECAST, f"other-{number}") for number in range(2)]
        wait_until(lambda: len(work(service)) == 3, "two that wait")
        assert [each["state"] for each in work(service)] == ["running", "waiting", "waiting"]
        assert ok(post("/v1/design", DESIGN).result())["bundles"]
        assert ok(post("/v1/explain", EXPLAIN).result())["explanations"]
        with service.client() as client:
            assert ok(client.get(f"/v1/users/{SOMEONE}/bundles"))["bundles"]
        assert held.batches == 1
        assert not any(each.done() for each in (first, *others))
        held.let_all_go()
        assert len({str(ok(each.result())["expected"]) for each in (first, *others)}) == 1
    if sys.platform == "linux":
        assert held.priorities == {os.getpriority(os.PRIO_PROCESS, 0) + lanes.NICENESS}


def test_recommendations_go_on_while_designs_take_long(
    sample_model: Path, sample_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two work, the third waits, and a fourth is sent away at once."""
    monkeypatch.setattr(lanes, "MOST_WAITING", 1)
    seen, begun = threading.Event(), threading.Semaphore(0)
    design_now = Live.design

    def slow_design(live: Live, *arguments: Any, **options: Any) -> Any:
        begun.release()
        assert seen.wait(240)
        return design_now(live, *arguments, **options)

    monkeypatch.setattr(Live, "design", slow_design)
    with running(sample_model, sample_database, tmp_path) as (service, post), service.client() as client:
        try:
            designs = [post("/v1/design", DESIGN) for _ in range(2)]
            for _ in designs:
                assert begun.acquire(timeout=240)
            designs.append(post("/v1/design", DESIGN))
            wait_until(lambda: [each["state"] for each in work(service)].count("waiting") == 1, "a third")
            answer = post("/v1/design", DESIGN).result()
            assert problem(answer, 503, "already waiting")["title"] == "Busy"
            assert answer.headers["retry-after"] == "1"
            for _ in range(10):
                ok(client.get(f"/v1/users/{SOMEONE}/bundles"))
            assert not any(each.done() for each in designs)
        finally:
            seen.set()
        for each in designs:
            assert ok(each.result())["bundles"]


def test_a_request_waits_only_as_long_as_an_answer_may_take(
    sample_model: Path, sample_database: Path, tmp_path: Path, held: Held
) -> None:
    settings = {"answer_timeout_s": 2}
    with running(sample_model, sample_database, tmp_path, **settings) as (service, post):
        first = post("/v1/bundles:score", FORECAST)
        held.wait_for_a_batch()
        answer = post("/v1/bundles:score", FORECAST, "second").result()
        problem(answer, 503, "waited 2 s", "try again")
        assert [each["request_id"] for each in work(service)] == ["mine"]
        held.let_all_go()
        ok(first.result())


def test_long_work_pauses_while_an_answer_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LONGEST_REST", 240)
    answering = iter([True, True, True, False])
    job = lanes.Job("design", "mine", lambda: next(answering))
    job.progress("bundles", 0, 1)
    assert next(answering, None) is None


def test_a_design_lets_others_go_first_while_it_builds_the_solvers_model(recommender: Recommender) -> None:
    """That takes tens of milliseconds in Python for each size of a bundle, and every item may pause it."""
    counts = []
    for sizes in (1, 2):
        ticks: list[object] = []
        recommender.design(
            SOMEONE,
            n=1,
            size=(4, 3 + sizes),
            method="exact",
            reasons=False,
            time_limit=2,
            progress=lambda *told, ticks=ticks: ticks.append(told),
        )
        counts.append(len(ticks))
    assert counts[1] - counts[0] > 40


def test_work_that_ends_while_others_are_counted_does_no_harm() -> None:
    every = lanes.Lanes(60, 60, lambda: False)

    class Ending(lanes.Job):
        """A request that ends just when somebody looks at it."""

        def __getattribute__(self, name: str) -> Any:
            if name == "kind":
                every._jobs.pop(self, None)
            return super().__getattribute__(name)

    for _ in range(3):
        every._jobs[Ending("design", "other", lambda: False)] = None
    assert asyncio.run(every.run("design", "mine", lambda _: "done", asyncio.sleep(60))) == "done"
    every.close()


def test_work_goes_on_where_priorities_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", forbidden)
    every = lanes.Lanes(60, 60, lambda: False)
    assert asyncio.run(every.run("design", "mine", lambda _: "done", asyncio.sleep(60))) == "done"
    every.close()


def test_insights_hold_up_nobody_and_give_way_to_answers(
    sample_model: Path, sample_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have a thread of low priority, and may pause between any two groups of bundles."""
    seen, priorities, pauses = threading.Event(), set[int](), list[float]()
    served_since, told = Store.served_since, lanes.Job.progress

    def slow(store: Store, *arguments: Any, **options: Any) -> Any:
        priorities.add(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        assert seen.wait(240)
        return served_since(store, *arguments, **options)

    def counted(job: lanes.Job, stage: str, done: float, of: float, *note: str) -> None:
        pauses.append(done)
        told(job, stage, done, of, *note)

    monkeypatch.setattr(Store, "served_since", slow)
    monkeypatch.setattr(lanes.Job, "progress", counted)
    monkeypatch.setattr(models, "BUNDLES_AT_A_TIME", 10)
    with running(sample_model, sample_database, tmp_path) as (service, _), service.client() as client:
        with ThreadPoolExecutor(1) as pool:
            insights = pool.submit(client.get, "/v1/insights")
            try:
                wait_until(lambda: [each["kind"] for each in work(service)] == ["insights"], "the insights")
                for _ in range(3):
                    ok(client.get(f"/v1/users/{SOMEONE}/bundles"))
            finally:
                seen.set()
            bundles = len(ok(insights.result())["popularity"])
        assert bundles > 100
        assert pauses == [0, 0, *range(0, bundles, 10)]
    if sys.platform == "linux":
        assert priorities == {os.getpriority(os.PRIO_PROCESS, 0) + lanes.NICENESS}


# ── Stopping ─────────────────────────────────────────────────────────────────────────────────────


def test_work_stops_when_its_caller_leaves(
    sample_model: Path, sample_database: Path, tmp_path: Path, held: Held
) -> None:
    with running(sample_model, sample_database, tmp_path) as (service, post):
        with by_hand(service, "/v1/bundles:score", FORECAST):
            held.wait_for_a_batch()
            with by_hand(service, "/v1/bundles:score", FORECAST):
                wait_until(lambda: len(work(service)) == 2, "a second that waits")
            wait_until(lambda: left(service, "/v1/bundles:score") == 1, "the end of the second")
            assert [each["state"] for each in work(service)] == ["running"]  # who waited never begins
        wait_until(lambda: left(service, "/v1/bundles:score") == 2, "the end of the first")
        held.let_all_go()
        wait_until(lambda: not work(service), "the end of the work")
        assert held.batches == 1
        assert ok(post("/v1/bundles:score", FORECAST).result())["asked"] > 2 * PAGE
        assert held.batches > 2


def test_who_leaves_before_the_turn_leaves_nothing_in_memory() -> None:
    """A request holds its body and a snapshot of the shop, and others may work for minutes."""
    go_on = threading.Event()

    class Work:
        def __call__(self, _: object) -> None:
            raise AssertionError

    async def play() -> None:
        every, leave = lanes.Lanes(240, 240, lambda: False), asyncio.Event()

        async def left() -> None:
            await leave.wait()

        first = asyncio.create_task(
            every.run("forecast", "first", lambda _: go_on.wait(240), asyncio.sleep(240))
        )
        await asyncio.to_thread(
            wait_until, lambda: [w.state for w in every.work()] == ["running"], "the first"
        )
        second = Work()
        gone = weakref.ref(second)
        waiting = asyncio.create_task(every.run("forecast", "second", second, left()))
        await asyncio.to_thread(wait_until, lambda: len(every.work()) == 2, "the second")
        leave.set()
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), ApiError)
        del second, waiting
        gc.collect()
        assert gone() is None
        go_on.set()
        assert await first
        every.close()

    try:
        asyncio.run(play())
    finally:
        go_on.set()


def test_work_that_takes_too_long_is_stopped(
    sample_model: Path, sample_database: Path, tmp_path: Path, held: Held
) -> None:
    with running(sample_model, sample_database, tmp_path, long_limit_s=2) as (service, post):
        held.go.release()  # the first batch
        answer = post("/v1/bundles:score", FORECAST).result()
        told = problem(answer, 504, "forecast", "after 2 s", f"at {PAGE} of", "users", "long_limit_s")
        assert told["title"] == "Took too long"
        held.let_all_go()
        wait_until(lambda: not work(service), "the end of the work")
        assert held.batches == 2


def test_long_work_is_refused_when_the_service_stops(
    sample_model: Path, sample_database: Path, tmp_path: Path, held: Held
) -> None:
    """The server does not wait until it has to cut off the caller, which would be an error (500)."""
    with running(sample_model, sample_database, tmp_path) as (service, post):
        forecasts = [post("/v1/bundles:score", FORECAST) for _ in range(2)]
        held.wait_for_a_batch()
        wait_until(lambda: len(work(service)) == 2, "one that works and one that waits")
        service.stop()
        for each in forecasts:
            problem(each.result(), 503, "shutting down")
        held.let_all_go()


def test_a_design_stops_when_its_caller_leaves(
    sample_model: Path, sample_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its 30 seconds are not waited for: the time stands still for its deadline."""
    monkeypatch.setattr("bundlemage.designer.constraints.clock", lambda: 0.0)
    slow = {
        "user_id": SOMEONE,
        "method": "exact",
        "n": 20,
        "size": {"least": 6, "most": 10},
        "time_limit": 30,
    }
    with running(sample_model, sample_database, tmp_path) as (service, _):
        with by_hand(service, "/v1/design", slow):
            wait_until(lambda: any(each["stage"] == "bundles" for each in work(service)), "a search")
            assert work(service)[0]["of"] == 20
        wait_until(lambda: left(service, "/v1/design") == 1, "the end of the request")
        wait_until(lambda: not work(service), "the end of the work")


def test_a_solver_stops_in_the_middle_of_its_search() -> None:
    """Nobody solves this puzzle within an hour, which is the time that the solver is given."""
    numbers, model = random.Random(0), cp().CpModel()
    choices = [model.new_bool_var("") for _ in range(50)]
    for _ in range(6):
        weights = [numbers.randrange(100) for _ in choices]
        model.add(
            sum(weight * choice for weight, choice in zip(weights, choices, strict=True)) == sum(weights) // 2
        )
    ticks = iter(range(5))

    def tick() -> None:
        if next(ticks, None) is None:
            raise ConfigError("enough")

    with pytest.raises(ConfigError, match="enough"):
        solve(new_solver(0, 3600), model, Deadline(3600, tick))


# ── Progress ─────────────────────────────────────────────────────────────────────────────────────


def test_the_progress_of_a_forecast_is_told(
    sample_model: Path, sample_database: Path, tmp_path: Path, held: Held
) -> None:
    with running(sample_model, sample_database, tmp_path) as (service, _), Client(service.url) as client:
        assert client.work().work == ()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(Client(service.url, timeout=240).score_bundle, ITEMS, request_id="f-1")
            held.wait_for_a_batch()
            now = client.progress("f-1")
            assert now is not None
            everybody = service.store.user_count()
            assert (now.kind, now.state, now.stage, now.done, now.of) == (
                "forecast",
                "running",
                "users",
                0,
                everybody,
            )
            assert now.seconds_left is None
            held.go.release(2)
            held.wait_for_a_batch()
            held.wait_for_a_batch()
            (now,) = client.work()
            assert (now.request_id, now.done, now.of) == ("f-1", 2 * PAGE, everybody)
            assert now.seconds_left is not None
            held.let_all_go()
            assert asked.result().request_id == "f-1"
        assert client.progress("f-1") is None
        with service.client() as plain:
            problem(plain.get("/v1/work/f-1"), 404, "'f-1'")
        with pytest.raises(ConfigError, match="a request id is"):
            client.design(SOMEONE, request_id="two words")


def test_the_time_left_follows_from_the_speed_of_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    job = lanes.Job("forecast", "f-2", lambda: False)
    job.progress("users", 100, 800)
    assert job.described().seconds_left is None
    now += 2
    job.progress("users", 300, 800)
    assert (job.described().seconds, job.described().seconds_left) == (2, 5)
    job.progress("users, for a better item", 0, 800)
    assert job.described().seconds_left is None


def test_python_tells_the_progress_of_designs_and_forecasts(recommender: Recommender) -> None:
    told: list[tuple[str, float, float]] = []

    def progress(stage: str, done: float, of: float, _note: str = "") -> None:
        told.append((stage, done, of))

    designs = recommender.design(SOMEONE, n=2, size=(2, 3), progress=progress)
    assert designs == recommender.design(SOMEONE, n=2, size=(2, 3)).model_copy(
        update={"seconds": designs.seconds}
    )
    assert {
        ("bundles", 0, 2),
        ("bundles", 1, 2),
        ("reasons", 0, sum(len(each.items) for each in designs)),
    } <= set(told)
    told.clear()
    recommender.score_bundle(ITEMS, progress=progress)
    everybody = len(recommender.dataset.users)
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages == ["users", "users, for a better item"]
    assert all((stage, everybody, everybody) in told for stage in stages)


# ── Reading all users ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("room", "times"), [(2**25, 1), (1000, 2)])
def test_histories_are_read_once_if_they_fit_into_memory(
    sample_model: Path,
    sample_database: Path,
    tmp_path: Path,
    recommender: Recommender,
    monkeypatch: pytest.MonkeyPatch,
    room: int,
    times: int,
) -> None:
    monkeypatch.setattr(asker, "MOST_KEPT", room)
    monkeypatch.setattr(forecasts, "USERS_AT_A_TIME", PAGE)
    read, histories = list[str](), Store.histories

    def counted(store: Store, names: Any, **options: Any) -> Any:
        read.extend(names)
        return histories(store, names, **options)

    monkeypatch.setattr(Store, "histories", counted)
    with running(sample_model, sample_database, tmp_path) as (service, post):
        told = ok(post("/v1/bundles:score", FORECAST).result())
        everybody = service.store.user_count()
    assert len(set(read)) == everybody == told["asked"]
    assert len(read) == times * everybody
    assert told["expected"] == pytest.approx(recommender.score_bundle(ITEMS).expected, rel=1e-4)
