"""The client, asked against the service as the command starts it."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bundlemage.client import Client, HistoryOf, Interaction, ServiceError, Where
from bundlemage.client.transport import Transport
from bundlemage.errors import BundleMageError, ConfigError
from bundlemage.recommender import Recommender
from bundlemage.service.security import ROLES, make_key
from bundlemage.store.repository import Store
from bundlemage.wire import answers as wire
from bundlemage.wire import design_answers
from bundlemage.wire.design import Change
from tests.designing import numbers
from tests.forked import Forked, start_forked
from tests.small_shop import QUICK, small_shop
from tests.waiting import wait_until

ODD_IDS = ["a/b", "/a//b/", "a b", "100%", "%2F", "%", "ü 日本 🎮", "?x=1&y=2#z", "+", ";'\"\\", "..", "a/..",
           "a/bundles", "a/gate", "a/similar", "bundles", "similar"]  # fmt: skip

LONG = 240
"""Seconds: far more than a busy machine needs to start the service."""
PATIENT: Any = {"timeout": LONG, "retries": 1000}


class Server:
    """The service in a process of its own, at an address that stays the same when it is started again."""

    def __init__(self, model: Path, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.database = model.parent / f"shop-{self.port}.db"
        self.log = model.parent / f"log-{self.port}"
        self._command = ["serve", model, "--port", self.port, "--db", self.database, *options]
        self._process: Forked | None = None

    def start(self, *, wait: bool = True) -> None:
        with self.log.open("ab") as output:
            streams = output.fileno()
            self._process = start_forked(self._command, stdout=streams, stderr=streams)
        if not wait:
            return
        process = self._process
        with Client(self.url, timeout=LONG) as client:
            wait_until(lambda: client.ready() or process.poll() is not None, "the service")
        assert process.poll() is None, self.log.read_text()

    def kill(self) -> None:
        """As when the power fails."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def keys(self) -> dict[str, str]:
        """A key of each role, made before the service starts."""
        store = Store.open(f"sqlite:///{self.database}")
        made = {role: make_key(role) for role in ROLES}
        for _, key in made.values():
            store.add_key(key)
        store.close()
        return {role: text for role, (text, _) in made.items()}


class Relay(ThreadingHTTPServer):
    """Stands between client and service, and does what networks do."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, service_port: int, certificate: Path | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Relaying)
        self.service_port = service_port
        self.faults: list[str] = []
        """What becomes of the next requests: `lose` the answer, `busy`, `later`, `silence`, `slow`,
        `hang up`."""
        self.seen: list[tuple[str, str | None]] = []
        """Each request's first line and its Idempotency-Key."""
        self.connections = 0
        self.lost = threading.Event()
        scheme = "http"
        if certificate is not None:
            scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.url = f"{scheme}://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that refuses the certificate goes away; nothing to tell."""


class _Relaying(BaseHTTPRequestHandler):
    server: Relay
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass

    def relay(self) -> None:
        server = self.server
        fault = server.faults.pop(0) if server.faults else ""
        server.seen.append((self.requestline, self.headers["Idempotency-Key"]))
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        if fault in ("busy", "later"):
            self.send_response(503)
            self.send_header("Retry-After", "1" if fault == "busy" else "3600")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault in ("silence", "slow"):
            time.sleep(2 if fault == "silence" else 1)
        passed = HTTPConnection("127.0.0.1", server.service_port, timeout=LONG)
        passed.request(self.command, self.path, body, dict(self.headers.items()))
        answer = passed.getresponse()
        content = answer.read()
        passed.close()
        self.close_connection = fault in ("lose", "silence", "hang up")
        if fault in ("lose", "silence"):
            server.lost.set()
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = relay  # noqa: N815


@contextmanager
def relaying(port: int, certificate: Path | None = None) -> Iterator[Relay]:
    with Relay(port, certificate) as relay:
        thread = threading.Thread(target=relay.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield relay
        relay.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Recommender(**QUICK).fit(small_shop()).save(tmp_path_factory.mktemp("client") / "model")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    running = Server(model)
    running.start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def keyed(model: Path) -> Iterator[tuple[Server, dict[str, str]]]:
    """A service with keys, by role, and a low limit. Other tests kill it and start it again."""
    running = Server(model, "--rate-limit", "20")
    keys = running.keys()
    running.start()
    yield running, keys
    running.kill()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as made:
        yield made


@pytest.fixture
def relay(server: Server) -> Iterator[Relay]:
    with relaying(server.port) as made:
        yield made


def refused(status: int, call: Any, *given: Any, **named: Any) -> ServiceError:
    with pytest.raises(ServiceError) as caught:
        call(*given, **named)
    assert caught.value.status == status, caught.value
    return caught.value


def old_items(client: Client) -> list[str]:
    """Items that the model knows; other tests put newer ones."""
    return [item.id for item in client.items(limit=500) if item.in_model]


# Recommendations


def test_answers_are_those_of_the_model(client: Client, model: Path) -> None:
    local = Recommender.load(model)
    user = local.dataset.users[7]
    answer = client.recommend(user, k=4)
    assert (answer.user_id, len(answer)) == (user, 4)
    expected = local.recommend(user, k=4)
    assert [(one.id, one.title, one.rank, one.source) for one in answer] == [
        (one.id, one.title, one.rank, one.source) for one in expected
    ]
    assert [one.score for one in answer] == pytest.approx([one.score for one in expected], rel=1e-4)
    owned = local.dataset.user_bundle[7].indices
    assert answer.history.bundles == len(owned)
    assert answer.model_version == client.models().serving

    varied = client.recommend(user, k=9, diversity=0.7, match_popularity=0.2)
    best = local.recommend(user, 9, diversity=0.7, match_popularity=0.2)
    assert [one.id for one in varied] == [one.id for one in best]
    assert best != local.recommend(user, 9)

    items = [local.dataset.items[0], local.dataset.items[1]]
    completed = client.complete(user, items, k=3)
    assert [one.id for one in completed.items] == [one.id for one in local.complete(user, items, k=3)]
    assert completed[0].stock is None or completed[0].stock >= 0


def test_anyones_history_filters_and_details(client: Client) -> None:
    known = client.bundles(limit=500).bundles
    mine = known[0]
    history: Any = {"bundles": [mine.id], "items": [mine.items[0].id]}
    answer = client.recommend(history, k=100)
    assert answer.user_id is None
    assert answer.history == wire.Known(items=1, bundles=1, not_in_model=0)
    assert mine.id not in {one.id for one in answer}
    assert mine.id in {one.id for one in client.recommend(history, k=100, owned="show")}
    assert answer[0].items is None

    prices = sorted(bundle.price for bundle in known if bundle.price is not None)
    half = prices[len(prices) // 2]
    cheap = client.recommend(
        history, k=100, where={"max_price": half, "exclude": [answer[0].id]}, details=True
    )
    assert 0 < len(cheap) < len(answer)
    assert all(one.price is not None and one.price <= half for one in cheap)
    assert answer[0].id not in {one.id for one in cheap}
    assert cheap[0].items == client.bundle(cheap[0].id).items

    among = client.recommend(history, where={"among": [known[3].id, known[4].id]})
    assert {one.id for one in among} == {known[3].id, known[4].id}
    tag = client.tags().bundles[0].tag
    near = client.similar(mine.id, k=3, where={"tags": [tag]})
    assert all(tag in one.tags for one in near)
    assert [one.rank for one in near] == [1, 2, 3]
    same = client.recommend(HistoryOf(**history), where=Where(among=[known[3].id, known[4].id]))
    assert same.bundles == among.bundles
    with pytest.raises(ConfigError, match="among"):
        client.similar(mine.id, where={"among": [mine.id]})


def test_designs_reasons_and_forecasts_are_those_of_the_model(client: Client, model: Path) -> None:
    local = Recommender.load(model)
    user, first = local.dataset.users[7], local.dataset.items[0]
    tag = client.tags().items[0].tag
    wishes: Any = {
        "start": [first],
        "size": (3, 4),
        "budget": (5, 150),
        "tags": {"at least": {tag: 1}},
        "discount": 0.1,
        "n": 2,
    }
    assert "no tag" in str(refused(422, client.design, user, **wishes, one_per="nothing-like-it*"))
    found, expected = client.design(user, **wishes, details=True), local.design(user, **wishes)
    assert (found.user_id, found.method, found.complete) == (user, "beam", True)
    assert [[item.id for item in design.items] for design in found] == [design.ids for design in expected]
    assert [design.price for design in found] == [design.price for design in expected]
    assert found[0].value == pytest.approx(expected[0].value, rel=1e-4)
    added, designed = found[0].items[1], expected[0].items[1]
    assert found[0].items[0].given
    assert added.why is not None
    assert designed.why is not None
    assert added.why.words == designed.why.words
    assert [each.id for each in numbers(added.why).reasons] == [
        each.id for each in numbers(designed.why).reasons[:10]
    ]
    assert client.design({"items": [first]}, size=2, budget=None, reasons=False)[0].items[0].why is None

    error = refused(422, client.design, user, must=[first], budget=0.01, size=3, not_owned=False)
    assert error.title == "Impossible design"
    assert {rule.kind for rule in error.conflict} <= {"budget_max", "must", "size_min"}
    (step,) = error.changes[0].steps
    assert isinstance(error.changes[0], Change)
    assert step.kind in {rule.kind for rule in error.conflict}
    assert not refused(422, client.design, user, n=21).conflict
    with pytest.raises(ConfigError, match="'n' is 0"):
        client.design(user, n=0)

    bundle = local.recommend(user, 1)[0].id
    (why,) = client.explain(user, bundles=[bundle], details=True)
    assert why.id == bundle
    assert numbers(why.why).fit == pytest.approx(numbers(local.explain(user, bundle=bundle)).fit, abs=1e-4)
    (item,) = client.explain(user, item=local.dataset.items[1], items=[first], details=True)
    assert numbers(item.why).reasons[0].kind in {"partial", "item", "bundle"}
    assert "either 'bundles' or 'item'" in str(refused(422, client.explain, user))

    forecast = client.score_bundle([first, local.dataset.items[1]], discount=0.25, k=3)
    assert forecast.asked >= len(local.dataset.users)
    assert (forecast.discount, len(forecast.people), len(forecast.nearest)) == (0.25, 3, 3)
    assert forecast.weakest is not None
    assert "not both" in str(refused(422, client.score_bundle, [first], 3, discount=0.1))


def test_what_is_recorded_counts_in_the_next_answer(client: Client) -> None:
    user = "someone new"
    assert {one.source for one in client.recommend(user)} == {"popular"}
    refused(404, client.user, user)
    first = client.recommend(user, k=1)
    at = datetime.now(UTC) - timedelta(seconds=1)
    written = client.record(user, bundle=first[0].id, request_id=first.request_id)
    assert (written.new, written.known, written.replayed) == (1, 0, False)
    after = client.recommend(user)
    assert {one.source for one in after} == {"model"}
    assert first[0].id not in {one.id for one in after}
    assert client.record(user, bundle=first[0].id).known == 1
    client.record(user, item=client.items()[0].id, at=at)
    known = client.user(user)
    assert [bundle.id for bundle in known.bundles] == [first[0].id]
    assert len(known.items) == 1
    assert client.gate(user).items + client.gate(user).bundles == pytest.approx(1)
    wait_until(lambda: client.insights().served.taken >= 1, "newer insights")

    items = client.items(limit=3)
    many = [Interaction(user, item=item.id, at=at) for item in items]
    assert client.record_many(many, idempotency_key="order-4711").new == 2
    again = client.record_many(many, idempotency_key="order-4711")
    assert (again.new, again.replayed) == (2, True)
    assert "used before" in str(refused(422, client.record_many, many[:1], idempotency_key="order-4711"))

    later = (at + timedelta(seconds=1)).isoformat()
    dicts: list[Interaction | dict[str, Any]] = [
        {"user": user, "item": items[0].id, "at": at},
        {"user_id": user, "item_id": client.items(limit=4)[3].id, "at": later, "request_id": "r1"},
        Interaction(user, bundle=client.bundles(limit=1)[0].id),
    ]
    assert client.record_many(dicts).new == 2
    assert client.user(user).items[-1].id == client.items(limit=4)[3].id  # the latest comes last
    for wrong in ({"user": user, "colour": "red"}, "u0007", ["u0007", "g0022"]):
        with pytest.raises(ConfigError, match="a dict with the keys user, item, bundle, at, request_id"):
            client.record_many([wrong])  # type: ignore[list-item]

    assert client.erase_user(user) is True
    assert client.erase_user(user) is False
    refused(404, client.user, user)


def test_the_catalogue(client: Client) -> None:
    items = old_items(client)[:2]
    new = client.put_item("new-item", title="Newcomer", price=9.5, tags=["Fresh"], stock=3)
    assert new == client.item("new-item")
    assert (new.title, new.price, new.tags, new.stock, new.in_model) == (
        "Newcomer",
        9.5,
        ("Fresh",),
        3,
        False,
    )
    assert [item.id for item in client.items("newcom")] == ["new-item"]
    bundle = client.put_bundle("new-bundle", [*items, "new-item"], title="Box", discount=0.25, tags=["Fresh"])
    assert bundle.recommendable
    assert [part.id for part in bundle.items] == [*items, "new-item"]
    assert client.bundles(tag="Fresh").total == 1
    fitting: Any = {"items": items}
    assert "new-bundle" in {one.id for one in client.recommend(fitting, k=100)}
    assert (bundle.expected_sales, bundle.sells_like) == (None, None)
    said = client.put_bundle("new-bundle", items, expected_sales=40)
    assert (said.expected_sales, said.sells_like) == (40, None)
    said = client.put_bundle("new-bundle", items, sells_like="b0013")
    assert (said.expected_sales, said.sells_like) == (None, "b0013")
    client.withdraw_bundle("new-bundle")
    assert "new-bundle" not in {one.id for one in client.recommend(fitting, k=100)}
    assert client.bundle("new-bundle").withdrawn
    client.withdraw_item("new-item")
    assert client.item("new-item").withdrawn


def test_users_by_pages(client: Client) -> None:
    first = client.users("u", limit=30)
    assert first.next is not None
    second = client.users("u", limit=30, after=first.next)
    assert [user.id for user in first] == sorted(user.id for user in first)
    assert second[0].id > first[-1].id
    assert first[0].bundles == len(client.user(first[0].id).bundles)


def test_ids_of_any_characters(client: Client) -> None:
    for name in ODD_IDS:
        client.put_item(name, title=f"title of {name}")
        assert client.item(name).id == name
        bundle = client.put_bundle(name, [name, old_items(client)[0]])
        assert (bundle.id, bundle.items[0].id) == (name, name)
        assert client.bundle(name) == bundle
        client.similar(name, k=1)
        client.record(name, item=name)
        assert [item.id for item in client.user(name).items] == [name]
        assert client.recommend(name, k=1).user_id == name
        assert client.gate(name).user_id == name
        assert name in {user.id for user in client.users(name)}
        assert client.erase_user(name)
        client.withdraw_bundle(name)
        client.withdraw_item(name)
        assert client.item(name).withdrawn
    assert client.put_item(17).id == "17"
    with pytest.raises(ConfigError, match="half of a surrogate pair"):
        client.item("\ud800")


def test_models(client: Client) -> None:
    models = client.models()
    (serving,) = (model for model in models if model.serving)
    assert serving.version == models.serving
    assert isinstance(serving.published_at, datetime)
    reloaded = client.reload()
    assert (reloaded.serving, reloaded.changed) == (serving.version, False)
    assert client.reload(serving.version).serving == serving.version
    assert "'nonesuch'" in str(refused(404, client.reload, "nonesuch"))
    insights = client.insights()
    assert insights.model.version == serving.version
    assert len(insights.model.history) == QUICK["epochs"]
    assert insights.latency.count > 0


# Errors


def test_a_refusal_says_what_the_service_says(client: Client) -> None:
    error = refused(422, client.recommend, "u0001", k=0)
    assert isinstance(error, BundleMageError)
    assert error.title == "Invalid request"
    assert error.errors[0].field == "k"
    assert error.detail is not None
    assert error.detail in str(error)
    assert error.request_id is not None
    assert error.request_id in str(error)
    refused(422, client.recommend, "")
    refused(422, client.item, "")
    refused(422, client.record, "u0001")
    refused(422, client.record, "u0001", item="nonesuch")
    refused(422, client.record, "u0001", item=client.items()[0].id, at=datetime(2026, 1, 1))
    refused(422, client.recommend, "u0001", where={"colour": "red"})
    refused(422, client.recommend, {"thing": []})
    assert refused(404, client.bundle, "nonesuch").title == "No such bundle"


@pytest.mark.parametrize(
    ("url", "named", "words"),
    [
        ("127.0.0.1:8000", {}, "not the address of a service"),
        ("ftp://shop", {}, "not the address of a service"),
        ("http://shop:80000", {}, "a port is"),
        ("http://shop/?k=1", {}, "not the address of a service"),
        ("http://name:word@shop", {}, "must not contain a user name"),
        ("http://shop", {"key": "bm_1\n"}, "a key has only printable"),
        ("http://shop", {"timeout": 0}, "above 0"),
        ("http://shop", {"retries": -1}, "0 or more"),
    ],
)
def test_a_client_that_cannot_work_is_not_made(url: str, named: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Client(url, **named)
    assert "bm_1" not in str(caught.value)
    assert ":word" not in str(caught.value)


def test_one_text_is_no_list(client: Any) -> None:
    calls: list[Any] = [
        lambda: client.complete("u0001", "g0001"),
        lambda: client.recommend("u0001", where={"tags": "Horror"}),
        lambda: client.put_bundle("b", "g0001"),
        lambda: client.complete("u0001", 5),
        lambda: client.record_many(Interaction("u0001", item="g0001")),
        lambda: client.record_many({"user": "u0001", "item": "g0001"}),
        lambda: client.record_many("u0001"),
        lambda: client.record_many(None),
    ]
    for call in calls:
        with pytest.raises(ConfigError, match=r"is a list: write \["):
            call()


ID_CALLS: dict[str, Callable[[Client, Any], object]] = {
    "recommend": lambda client, name: client.recommend(name),
    "complete": lambda client, name: client.complete(name),
    "complete items": lambda client, name: client.complete("u0001", [name]),
    "similar": lambda client, name: client.similar(name),
    "gate": lambda client, name: client.gate(name),
    "design": lambda client, name: client.design(name),
    "explain": lambda client, name: client.explain(name, bundles=["b0001"]),
    "explain item": lambda client, name: client.explain("u0001", item=name),
    "score_bundle": lambda client, name: client.score_bundle([name]),
    "record": lambda client, name: client.record(name, item="g0001"),
    "record bundle": lambda client, name: client.record("u0001", bundle=name),
    "record_many": lambda client, name: client.record_many([{"user_id": "u0001", "item_id": name}]),
    "user": lambda client, name: client.user(name),
    "erase_user": lambda client, name: client.erase_user(name),
    "put_item": lambda client, name: client.put_item(name, title="x"),
    "put_bundle": lambda client, name: client.put_bundle("b", ["g0001"], sells_like=name),
    "where": lambda client, name: client.recommend("u0001", where={"exclude": [name]}),
}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bytes | None]]:
    """The requests of a client, with method, path and body. None reaches a service."""
    requests = []

    def no_service(
        _: Transport, request: tuple[str, str, bytes | None, dict[str, str]], timeout: float
    ) -> None:
        requests.append(request[:3])
        raise ServiceError("no service")

    monkeypatch.setattr(Transport, "_with_retries", no_service)
    return requests


@pytest.mark.parametrize("call", ID_CALLS.values(), ids=ID_CALLS)
def test_an_id_means_the_same_everywhere(
    call: Callable[[Client, Any], object], sent: list[tuple[str, str, bytes | None]]
) -> None:
    client = Client()
    for name in ("7", 7, np.int64(7), np.uint8(7), np.str_("7")):
        with pytest.raises(ServiceError, match="no service"):
            call(client, name)
    assert sent == [sent[0]] * 5
    wrong: list[object] = [7.0, True, np.float64(7), np.bool_(True), float("nan"), Decimal(7), b"7", ["7"]]
    for value in wrong:
        with pytest.raises(ConfigError, match=r"expected text(,| or) a whole number"):
            call(client, value)
    assert len(sent) == 5


def test_numbers_of_any_type_are_sent(sent: list[tuple[str, str, bytes | None]]) -> None:
    client = Client()
    calls: list[Callable[[], object]] = [
        lambda: client.recommend("u", k=np.int64(3), where={"max_price": np.float32(40)}),  # type: ignore[arg-type]
        lambda: client.put_item("g", price=Decimal("2.5"), stock=np.int16(4)),
        lambda: client.record("u", item="g", idempotency_key=4711),  # type: ignore[arg-type]
        lambda: client.record("u", item="g", at=pd.Timestamp("2026-01-01", tz="UTC")),
    ]
    for call in calls:
        with pytest.raises(ServiceError, match="no service"):
            call()
    bodies = [json.loads(body or b"") for _, _, body in sent]
    assert (bodies[0]["k"], bodies[0]["where"]) == (3, {"max_price": 40.0})
    assert bodies[1] == {"price": 2.5, "stock": 4}
    assert bodies[3]["interactions"][0]["at"] == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda client: client.record("u", item="g", at=date(2026, 1, 1)), "a date; write a datetime with a"),
        (
            lambda client: client.record_many(
                [{"user": "u", "item": "g", "at": np.datetime64("2026-01-01")}]
            ),
            "a datetime64; write a datetime with a time zone",
        ),
        (
            lambda client: client.record_many([{"user": "u", "user_id": "v", "item": "g"}]),
            "'user' and 'user_id'",
        ),
        (
            lambda client: client.record_many([{"user": "u", "bundle_id": "b", "bundle": "b"}]),
            "leave one out",
        ),
        (lambda client: client.recommend("u", k=np.array([1, 2])), "cannot be written as JSON"),
        (lambda client: client.recommend("u", where={"in_stock": object()}), "cannot be written as JSON"),
        (lambda client: client.recommend("u", where=[40]), "where is a dict such as"),
        (lambda client: client.design("u", request_id=1.5), "the request id is 1.5, a float"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_words(
    call: Callable[[Client], object], words: str, sent: list[tuple[str, str, bytes | None]]
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        call(Client())
    assert sent == []


def test_nobody_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with Client(address, retries=0) as client:
        assert not client.healthy()
        assert not client.ready()
        with pytest.raises(
            ServiceError, match=f"{address}: Connection refused. Is 'bundlemage serve' running"
        ) as found:
            client.models()
        assert found.value.status is None
        with pytest.raises(ServiceError, match="safe to repeat"):
            client.record("u0001", item="g0001")


def test_somebody_else_there(relay: Relay) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302 if self.path.startswith("/v1/models") else 200)
            self.send_header("Location", "https://elsewhere.example/")
            self.end_headers()
            self.wfile.write(b"<!doctype html>" if self.path.startswith("/v1/tags") else b'{"items": 3}')

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, args=(0.05,), daemon=True).start()
        with Client(f"http://127.0.0.1:{other.server_address[1]}/") as client:
            assert not client.healthy()
            assert "not an answer of BundleMage" in str(refused(200, client.tags))
            assert "not an answer of BundleMage" in str(refused(200, client.items))
            assert "https://elsewhere.example/" in str(refused(302, client.models))
        other.shutdown()


def test_the_key_is_not_shown() -> None:
    assert "bm_" not in repr(Client("http://shop", key="bm_0123456789ab_secret"))


def test_a_closed_client_says_so(server: Server) -> None:
    with Client(server.url) as client:
        assert client.healthy()
    with pytest.raises(ConfigError, match="closed"):
        client.models()


# Keys


def test_roles(keyed: tuple[Server, dict[str, str]]) -> None:
    server, keys = keyed
    with Client(server.url) as nobody, Client(server.url, key=keys["read"][:-1] + "?") as wrong:
        assert nobody.healthy()
        assert nobody.ready()
        refused(401, nobody.models)
        refused(401, wrong.models)
    with Client(server.url, key=keys["read"]) as reader:
        assert len(reader.recommend("u0001", k=2)) == 2
        assert "'write'" in str(refused(403, reader.record, "u0001", item=reader.items()[0].id))
        assert "'write'" in str(refused(403, reader.erase_user, "u0001"))
    with Client(server.url, key=keys["write"]) as writer:
        assert writer.record("u1000", item=writer.items()[0].id).new == 1
        assert "'admin'" in str(refused(403, writer.reload))
    with Client(server.url, key=keys["admin"]) as admin:
        assert not admin.reload().changed


def test_too_many_requests_are_spread_out(keyed: tuple[Server, dict[str, str]]) -> None:
    server, keys = keyed
    with Client(server.url, key=keys["read"], retries=0) as hasty, ThreadPoolExecutor(16) as pool:
        too_many = refused(429, lambda: list(pool.map(lambda _: hasty.tags(), range(400))))
        assert "Too many requests" in str(too_many)
    with Client(server.url, key=keys["read"]) as patient:
        for _ in range(30):
            patient.tags()


# Loss


def test_a_service_that_dies_and_comes_back(keyed: tuple[Server, dict[str, str]]) -> None:
    """Purchases are told while the service is killed: each is recorded, and once."""
    server, keys = keyed
    with Client(server.url, key=keys["write"], **PATIENT) as client:
        items = old_items(client)[:40]
        outcomes = []
        for number, item in enumerate(items):
            if number == 10:
                server.kill()
                server.start(wait=False)
            outcomes.append(client.record("through-it-all", item=item))
        assert [outcome.new for outcome in outcomes] == [1] * len(items)
        assert {item.id for item in client.user("through-it-all").items} == set(items)


def test_an_answer_that_is_lost_with_the_service(keyed: tuple[Server, dict[str, str]]) -> None:
    """Recorded, but nobody was told: then comes kill -9. The second try gets the outcome of the first."""
    server, keys = keyed
    with (
        relaying(server.port) as relay,
        Client(relay.url, key=keys["write"], **PATIENT) as client,
    ):
        item = client.items()[0].id
        relay.faults.append("lose")
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(client.record, "in-the-dark", item=item)
            assert relay.lost.wait(LONG)
            server.kill()
            server.start(wait=False)
            outcome = told.result(LONG)
        assert (outcome.new, outcome.known, outcome.replayed) == (1, 0, True)
        sent = {key for line, key in relay.seen if "/interactions" in line}
        assert len(sent) == 1
        assert [one.id for one in client.user("in-the-dark").items] == [item]


def test_a_busy_service_is_asked_again_when_it_says(relay: Relay) -> None:
    with Client(relay.url) as client:
        relay.faults += ["busy"]
        begun = time.monotonic()
        assert client.record("busy", item=old_items(client)[0]).new == 1
        assert time.monotonic() - begun >= 1
        relay.faults += ["later"]
        before = len(relay.seen)
        refused(503, client.models)  # an hour is for the caller to decide
        assert len(relay.seen) == before + 1


def test_after_its_tries_the_client_gives_up(relay: Relay) -> None:
    with Client(relay.url, retries=2) as client:
        relay.faults += ["lose"] * 10
        with pytest.raises(ServiceError, match=r"\(3 tries\)"):
            client.models()
        assert len(relay.seen) == 3


def test_a_timeout_is_kept(relay: Relay) -> None:
    with Client(relay.url, timeout=0.3) as client:
        relay.faults += ["silence"]  # ends with another error, if the client waits for it
        with pytest.raises(ServiceError, match=r"no answer within 0.3 s"):
            client.models()
        assert len(relay.seen) == 1


def test_long_work_is_given_time(relay: Relay) -> None:
    """Also over a connection that was kept from a question with less; and afterwards there is less again."""
    with Client(relay.url, timeout=0.3, retries=0) as client:
        for _ in range(2):
            assert client.models().serving
        relay.faults += ["slow"]
        begun = time.monotonic()
        assert client.design("u0001", n=1, size=2, reasons=False).bundles
        assert time.monotonic() - begun > 0.9
        relay.faults += ["silence"]
        with pytest.raises(ServiceError, match=r"no answer within 0.3 s"):
            client.models()
        assert relay.connections == 1


def test_connections_are_kept_and_replaced(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(relay.url) as client:
        for _ in range(5):
            client.models()
        assert relay.connections == 1
        relay.faults += ["hang up"]  # after the answer, without a word, as servers do with idle connections
        client.models()
        time.sleep(0.05)
        pauses: list[float] = []
        monkeypatch.setattr(time, "sleep", pauses.append)
        client.models()
        assert pauses == []  # the client asks again at once
        assert relay.connections == 2


def test_fifty_threads_on_one_client(server: Server) -> None:
    with Client(server.url) as client:
        items = old_items(client)[:4]
        start = threading.Barrier(50)

        def work(number: int) -> int:
            user = f"thread-{number}"
            start.wait()
            new = 0
            for item in items:
                new += client.record(user, item=item).new
                answer = client.recommend(user, k=2)
                assert (answer.user_id, answer.history.items) == (user, new)
            assert [one.id for one in client.user(user).items] == items
            return new

        with ThreadPoolExecutor(50) as pool:
            assert sum(pool.map(work, range(50))) == 200


def test_a_forked_process_has_connections_of_its_own(server: Server) -> None:
    """As web servers do: a client is made and used, then the process forks."""
    program = f"""
import json, os
from bundlemage.client import Client
client = Client({server.url!r})
client.models()
pipes = []
for number in range(4):
    reading, writing = os.pipe()
    if os.fork() == 0:
        user = f"fork-{{number}}"
        right = all(client.recommend(user, k=1).user_id == user for _ in range(25))
        os.write(writing, b"right" if right else b"wrong")
        os._exit(0)
    os.close(writing)
    pipes.append(reading)
print([os.read(reading, 9) for reading in pipes])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str([b"right"] * 4), done.stderr


def test_https_is_verified(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=shop"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "certificate.pem"]
    try:
        subprocess.run(command, check=True, cwd=tmp_path, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        pytest.skip("openssl is not installed: apt-get install openssl")
    both = tmp_path / "both.pem"
    both.write_text((tmp_path / "key.pem").read_text() + certificate.read_text())
    with relaying(server.port, both) as relay:
        with Client(relay.url) as wary, pytest.raises(ServiceError, match="certificate is not trusted"):
            wary.models()
        assert relay.seen == []
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        with Client(relay.url) as client:
            assert client.healthy()
            assert client.models().serving
        with (
            Client(relay.url.replace("127.0.0.1", "localhost")) as other,
            pytest.raises(ServiceError, match="certificate is not trusted"),
        ):
            other.models()


def test_a_prefix_before_the_routes(server: Server) -> None:
    with Client(f"{server.url}/shop/") as client:
        assert "No such route" in str(refused(404, client.models))
    assert "/shop/v1" not in server.log.read_text()


# What it is made of


def test_it_is_light() -> None:
    program = "import json, sys, bundlemage.client; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(done.stdout)}
    assert {name for name in loaded if name not in sys.stdlib_module_names} & {
        "torch",
        "numpy",
        "pyarrow",
        "scipy",
        "rich",
        "typer",
        "sqlalchemy",
        "fastapi",
        "httpx",
    } == set()
    ours = {name for name in json.loads(done.stdout) if name.startswith("bundlemage.")}
    assert all(
        name.startswith(("bundlemage.client", "bundlemage.wire", "bundlemage.errors")) for name in ours
    )


def test_fields_of_a_newer_service_are_ignored() -> None:
    page = wire.UserPage.model_validate_json(
        b'{"users": [{"id": "u1", "items": 1, "bundles": 2, "since": 3}], "next": null, "pages": 7}'
    )
    assert [(user.id, user.bundles) for user in page] == [("u1", 2)]
    assert (len(page), page[0], page[:1]) == (1, page.users[0], page.users)


def test_every_answer_of_the_service_is_of_the_wire(server: Server) -> None:
    """Each route answers with a model that the client has too, so nothing of an answer is left out."""
    raw = HTTPConnection("127.0.0.1", server.port, timeout=20)
    raw.request("GET", "/openapi.json")
    described = json.loads(raw.getresponse().read())
    raw.close()
    answered = {
        answer["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        for path, methods in described["paths"].items()
        for operation in methods.values()
        for status, answer in operation["responses"].items()
        if status < "300" and "application/json" in answer.get("content", {}) and path != "/v1/session"
    }
    assert {"BundlesFor", "DesignsFor", "ForecastOut", "Insights"} <= answered
    assert not [name for name in answered if not (hasattr(wire, name) or hasattr(design_answers, name))]


def test_every_route_has_a_method(server: Server, relay: Relay) -> None:
    """Each route of the API is asked by the client, but for those of the page and of Prometheus."""
    raw = HTTPConnection("127.0.0.1", server.port, timeout=20)
    raw.request("GET", "/openapi.json")
    described = json.loads(raw.getresponse().read())
    raw.close()
    routes = {
        (method.upper(), path)
        for path, methods in described["paths"].items()
        for method in methods
        if path
        not in ("/v1/session", "/metrics", "/v1/users/{user_id}/bundles")  # this one is POST /v1/recommend
    }
    with Client(relay.url) as client:
        item = old_items(client)[0]
        client.put_item("r", title="r")
        client.change_item("r", price=2.5)
        client.put_bundle("r", [item, "r"])
        assert client.change_bundle("r", price=2.5).price == 2.5
        client.record("r", item=item)
        asked: list[Any] = [
            lambda: (
                client.item("r"),
                client.bundle("r"),
                client.user("r"),
                client.users(),
                client.bundles(),
            ),
            lambda: (client.recommend("r"), client.complete("r"), client.similar("r"), client.gate("r")),
            lambda: (
                client.design("r", n=1, reasons=False),
                client.explain("r", bundles=["r"]),
                client.score_bundle([item], k=1),
                client.work(),
                client.progress("r"),
            ),
            lambda: (client.tags(), client.models(), client.reload(), client.insights()),
            lambda: (client.healthy(), client.ready(), client.erase_user("r")),
            lambda: client.withdraw_item("r"),
            lambda: client.withdraw_bundle("r"),
        ]
        for ask in asked:
            ask()
        with pytest.raises(ServiceError, match="too few"):  # so small a shop has no forecasts
            client.buyers([item])
    seen = {tuple(line.split()[:2]) for line, _ in relay.seen}
    plain = {(method, path.partition("?")[0]) for method, path in seen}
    for method, path in routes:
        pattern = re.sub(r"{[a-z_]+}", "r", path)
        assert (method, pattern) in plain, f"no method asks {method} {path}"
