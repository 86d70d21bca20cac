"""Another model in the place of the one that serves, while people ask."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from bundlemage.artifact.files import artifact_version
from bundlemage.data.folders import swap_in
from bundlemage.errors import ArtifactError, UnsupportedError
from bundlemage.live import Live, record_of
from bundlemage.recommender import Recommender
from bundlemage.service import answerer
from bundlemage.service.app import open_service
from bundlemage.service.settings import Settings
from bundlemage.store.records import ModelRecord
from bundlemage.store.repository import Store
from tests.forged import REFUSED, deep, forge
from tests.service.running import Inside, copied, inside, new_key, ok, problem
from tests.small_shop import QUICK, small_shop
from tests.waiting import wait_until

USERS = [f"u{number:04}" for number in range(1, 9)]


@pytest.fixture
def served(sample_model: Path, tmp_path: Path) -> Path:
    """A model in a folder of its own, which a test may replace."""
    return Path(shutil.copytree(sample_model, tmp_path / "served"))


@pytest.fixture
def running(served: Path, sample_database: Path, tmp_path: Path) -> Iterator[Inside]:
    with inside(served, copied(sample_database, tmp_path)) as running:
        yield running


@pytest.fixture
def client(running: Inside) -> Iterator[httpx.Client]:
    with running.client() as client:
        yield client


def replace(served: Path, model: Path) -> str:
    """As `bundlemage train --overwrite` does it: a whole new folder under the old name, in one step."""
    building = served.with_name("building")
    shutil.copytree(model, building)
    swap_in(building, served)
    shutil.rmtree(building)
    return artifact_version(served)


def reload(client: httpx.Client, version: str | None = None) -> dict[str, Any]:
    answer: dict[str, Any] = ok(
        client.post("/v1/models/reload", json={"version": version} if version else {})
    )
    return answer


def serving(client: httpx.Client) -> str:
    version: str = ok(client.get("/v1/models"))["serving"]
    return version


def scores(client: httpx.Client, user: str = USERS[0]) -> dict[str, float]:
    answer = ok(client.get(f"/v1/users/{user}/bundles", params={"k": 5}))
    return {bundle["id"]: bundle["score"] for bundle in answer["bundles"]}


@contextmanager
def crowd(running: Inside) -> Iterator[list[tuple[int, str]]]:
    """Eight who ask without a pause; what each was answered: the status, and by which model."""
    answers: list[tuple[int, str]] = []
    enough = threading.Event()

    def ask(user: str) -> None:
        with running.client() as client:
            while not enough.is_set():
                answer = client.get(f"/v1/users/{user}/bundles", params={"k": 3})
                answers.append((answer.status_code, answer.json().get("model_version", answer.text)))

    with ThreadPoolExecutor(len(USERS)) as pool:
        asking = [pool.submit(ask, user) for user in USERS]
        try:
            yield answers
        finally:
            enough.set()
        for each in asking:
            each.result()


def test_a_model_is_replaced_and_rolled_back_with_no_failed_request(
    running: Inside,
    client: httpx.Client,
    served: Path,
    sample_model: Path,
    second_model: Path,
    tmp_path: Path,
) -> None:
    first = serving(client)
    before = scores(client)
    with crowd(running) as answers:
        wait_until(lambda: len(answers) > 50, "the crowd")
        second = replace(served, second_model)
        assert second != first
        assert reload(client) == {"serving": second, "previous": first, "changed": True}
        assert serving(client) == second
        count = len(answers)
        wait_until(lambda: len(answers) > count + 50, "the crowd")
        # Back again: what was saved elsewhere can be named by its version.
        back = Path(shutil.copytree(sample_model, tmp_path / "kept"))
        running.store.publish(record_of(back))
        assert reload(client, first)["serving"] == first
        assert reload(client, first) == {"serving": first, "previous": first, "changed": False}
        count = len(answers)
        wait_until(lambda: len(answers) > count + 50, "the crowd")
    assert {status for status, _ in answers} == {200}
    versions = [version for _, version in answers]
    assert set(versions) == {first, second}
    assert versions[0] == versions[-1] == first
    assert scores(client) == pytest.approx(before)
    assert reload(client, first)["changed"] is False


def test_the_new_model_answers_as_it_does_alone(
    client: httpx.Client, served: Path, second_model: Path
) -> None:
    old = scores(client)
    replace(served, second_model)
    reload(client)
    alone = Recommender.load(second_model, device="cpu").recommend(USERS[0], 5)
    assert scores(client) == pytest.approx({each.id: each.score for each in alone}, rel=1e-3)
    assert scores(client) != pytest.approx(old)


def test_the_memory_of_the_last_model_is_given_back(
    running: Inside, client: httpx.Client, second_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[str] = []
    real = answerer.give_back_memory

    def counted() -> None:
        given_back.append(running.service.answerer.serving.record.version)
        real()

    monkeypatch.setattr(answerer, "give_back_memory", counted)
    record = record_of(second_model)
    running.store.publish(record)
    wait_until(lambda: serving(client) == record.version, "the new model")
    wait_until(lambda: given_back == [record.version], "the memory")


def test_what_was_posted_stays_when_the_model_changes(
    client: httpx.Client, served: Path, second_model: Path
) -> None:
    body = {"interactions": [{"user_id": "visitor", "bundle_id": "b0013"}]}
    ok(client.post("/v1/interactions", json=body))
    ok(client.put("/v1/bundles/new", json={"items": ["g0022"]}), 201)
    replace(served, second_model)
    reload(client)
    assert ok(client.get("/v1/users/visitor/bundles"))["history"]["bundles"] == 1
    asked = {"user_id": "visitor", "where": {"among": ["new"]}}
    assert [bundle["id"] for bundle in ok(client.post("/v1/recommend", json=asked))["bundles"]] == ["new"]


def test_a_damaged_model_is_refused_and_the_old_one_goes_on(
    running: Inside, client: httpx.Client, served: Path, second_model: Path
) -> None:
    first, before = serving(client), scores(client)
    replace(served, second_model)
    weights = served / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-10])
    problem(client.post("/v1/models/reload"), 409, "model.safetensors", "bytes", "copy the folder again")
    weights.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    problem(client.post("/v1/models/reload"), 409, "altered")
    shutil.rmtree(served)
    problem(client.post("/v1/models/reload"), 409, str(served))
    assert serving(client) == first
    assert scores(client) == pytest.approx(before)
    assert [model["version"] for model in ok(client.get("/v1/models"))["models"]] == [first]
    assert running.store.state().model == first


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["split-type", "metrics-deep", "metrics-very-deep", "history-list",
    "ensemble-huge", "setting-large-size", "tensor-shape", "tensor-nan", "bundle-gone", "title-not-text",
    "many-rows", "pipe", "pipe-manifest", "device", "folder-manifest"])  # fmt: skip
def test_a_forged_model_is_refused_and_the_old_one_goes_on(
    running: Inside, client: httpx.Client, served: Path, second_model: Path, name: str
) -> None:
    first, before = serving(client), scores(client)
    replace(served, second_model)
    forge(served, REFUSED[name])
    problem(client.post("/v1/models/reload"), 409, str(served))
    assert serving(client) == running.store.state().model == first
    assert scores(client) == pytest.approx(before)
    assert [model["version"] for model in ok(client.get("/v1/models"))["models"]] == [first]


def test_a_model_that_loads_but_cannot_answer_is_refused(
    client: httpx.Client, served: Path, second_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = serving(client)
    replace(served, second_model)

    def cannot(*_: object) -> None:
        raise IndexError("index 7 is out of bounds")

    monkeypatch.setattr(Live, "warm", cannot)
    problem(client.post("/v1/models/reload"), 409, str(served), "cannot answer", "index 7 is out of bounds")
    assert serving(client) == first


@pytest.mark.parametrize(
    "metrics",
    [
        f'{{"more": {deep(990)}}}',
        deep(200_000),
        "[1]",
        "no json",
        '{"test": NaN}',
        '{"more": 1e999}',
        '"\\ud800"',
    ],
    ids=["deep", "very-deep", "list", "no-json", "nan", "infinite", "surrogate"],
)
def test_a_bad_record_in_the_store_does_not_hide_the_other_models(
    client: httpx.Client, running: Inside, metrics: str
) -> None:
    first = serving(client)
    with closing(sqlite3.connect(running.store.url.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("insert into models values ('bad', '/nowhere', 'x', ?, 0)", [metrics])
    models = {model["version"]: model for model in ok(client.get("/v1/models"))["models"]}
    assert models.keys() == {first, "bad"}
    assert models["bad"]["metrics"].keys() <= {"unreadable", "test"}
    problem(client.post("/v1/models/reload", json={"version": "bad"}), 409, "/nowhere")
    assert ok(client.get("/v1/insights"))["model"]["version"] == first


def test_a_version_that_nobody_knows_or_that_was_overwritten(
    client: httpx.Client, served: Path, second_model: Path
) -> None:
    for version in ("0123456789ab", "../../etc", "\x00", " "):
        told = problem(client.post("/v1/models/reload", json={"version": version}), 404, "GET /v1/models")
        assert told["title"] == "No such model"
    problem(client.post("/v1/models/reload", json={"version": 7}), 422, "version")
    problem(client.post("/v1/models/reload", json={"versoin": "x"}), 422, "versoin")
    first = serving(client)
    second = replace(served, second_model)
    reload(client)
    problem(client.post("/v1/models/reload", json={"version": first}), 409, first, second, "replaced")
    assert serving(client) == second


def test_a_version_that_is_removed_while_it_is_loaded(
    running: Inside, client: httpx.Client, second_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the sweep of a retraining."""
    first, second = serving(client), record_of(second_model)
    running.store.publish(second)
    reload(client, first)
    wait_until(lambda: serving(client) == first, "the first model")
    whole = Live.warm

    def removed(live: Live) -> Live:
        assert running.store.forget_model(second.version)
        return whole(live)

    monkeypatch.setattr(Live, "warm", removed)
    told = problem(client.post("/v1/models/reload", json={"version": second.version}), 404, second.version)
    assert told["title"] == "No such model"
    assert serving(client) == running.store.state().model == first
    assert [model["version"] for model in ok(client.get("/v1/models"))["models"]] == [first]


def test_a_model_of_another_shop_is_refused(
    running: Inside, client: httpx.Client, served: Path, tmp_path: Path
) -> None:
    first = serving(client)
    other = _other_shops_model(tmp_path)
    replace(served, other)
    problem(client.post("/v1/models/reload"), 422, "different shops", "--db")
    assert serving(client) == running.store.state().model == first
    running.store.publish(record_of(other))  # somebody did not look
    wait_until(lambda: running.service.answerer.failed, "the attempt to load it")
    assert serving(client) == first
    assert scores(client)
    faults = {model["version"]: model["problem"] for model in ok(client.get("/v1/models"))["models"]}
    assert "different shops" in faults[artifact_version(other)]
    assert faults[first] is None
    reload(client, first)  # settles it: no process is to follow the other one
    assert running.store.state().model == first


def _other_shops_model(folder: Path) -> Path:
    place = folder / "other-shop"
    shop = small_shop()
    renamed = type(shop)(
        shop.user_item, shop.user_bundle, shop.bundle_item, shop.users,
        type(shop.items)("item", [f"elsewhere-{name}" for name in shop.items]), shop.bundles,
    )  # fmt: skip
    Recommender(**QUICK).fit(renamed, progress=False).save(place)
    return place


def test_what_another_process_publishes_is_followed_within_seconds(
    running: Inside, client: httpx.Client, sample_model: Path, second_model: Path
) -> None:
    first, second = (record_of(model) for model in (sample_model, second_model))
    assert serving(client) == first.version
    elsewhere = Store.open(running.db)
    try:
        # There and back and there again: that it was tried a moment ago must not hold it up.
        for record in (second, first, second):
            elsewhere.publish(record)
            wait_until(lambda: serving(client) == record.version, "the published model", 10)  # noqa: B023
            answer = ok(client.get(f"/v1/users/{USERS[0]}/bundles"))
            assert answer["model_version"] == record.version
    finally:
        elsewhere.close()


def test_what_was_superseded_before_it_was_loaded_is_followed_when_published_again(
    running: Inside,
    client: httpx.Client,
    sample_model: Path,
    second_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answerer, "TRY_AGAIN_AFTER", 1e9)
    first, second = (record_of(model) for model in (sample_model, second_model))
    read, reads = Store.model, list[str]()

    def superseded(store: Store, version: str) -> ModelRecord | None:
        if version == second.version and not reads:
            reads.append(version)
            store.publish(first)
        return read(store, version)

    monkeypatch.setattr(Store, "model", superseded)
    running.store.publish(second)
    wait_until(lambda: reads, "the attempt")
    wait_until(lambda: all(thread.name != "loading" for thread in threading.enumerate()), "its end")
    assert serving(client) == first.version
    running.store.publish(second)
    wait_until(lambda: serving(client) == second.version, "the published model", 60)


def test_it_is_followed_while_nobody_asks(running: Inside, second_model: Path) -> None:
    answerer, second = running.service.answerer, record_of(second_model)
    running.store.publish(second)
    wait_until(lambda: answerer._next is not None, "the published model", 15)
    with running.client() as client:  # so not even the first one has the old model's answer
        answer = ok(client.get(f"/v1/users/{USERS[0]}/bundles"))
    assert answer["model_version"] == second.version


def test_a_service_that_starts_again_serves_what_was_published_last(
    served: Path, sample_database: Path, second_model: Path, tmp_path: Path
) -> None:
    db = copied(sample_database, tmp_path)
    with inside(served, db) as running, running.client() as client:
        running.store.publish(record_of(second_model))
        wait_until(lambda: serving(client) == artifact_version(second_model), "the published model")
    for given in (served, None):
        with inside(given, db) as again, again.client() as client:
            assert serving(client) == artifact_version(second_model)


class Interrupted(Store):
    """A store in which another process publishes a model just after a starting service has read the state."""

    publishes: ModelRecord

    def is_empty(self) -> bool:
        elsewhere = Store.open(self._database.address.render_as_string(hide_password=False))
        elsewhere.publish(self.publishes)
        elsewhere.close()
        return super().is_empty()


@pytest.mark.parametrize("published_before", [True, False])
def test_a_service_that_starts_does_not_undo_a_publication(
    sample_model: Path, second_model: Path, store_url: str, published_before: bool
) -> None:
    first, second = record_of(sample_model), record_of(second_model)
    if published_before:
        before = Store.open(store_url)
        before.publish(first)
        before.close()
    store = Interrupted.open(store_url)
    assert isinstance(store, Interrupted)
    store.publishes = second
    service = open_service(Settings(model=sample_model, db=store_url), store)
    try:
        assert service.store.state().model == second.version
        wait_until(lambda: asyncio.run(service.now()).record.version == second.version, "the published model")
        assert service.store.state().model == second.version
    finally:
        service.close()


def test_a_reload_does_not_undo_a_publication(
    running: Inside, client: httpx.Client, served: Path, second_model: Path, tmp_path: Path
) -> None:
    first = serving(client)
    other = Path(shutil.copytree(second_model, tmp_path / "other"))
    (other / "model.safetensors").unlink()  # so the service cannot follow, and still serves the first one
    running.store.publish(record_of(other))
    told = problem(client.post("/v1/models/reload"), 409, first, artifact_version(other))
    assert told["title"] == "Superseded"
    assert running.store.state().model == artifact_version(other)
    assert reload(client, first)["serving"] == first  # by its name it can be chosen


def test_only_an_admin_may_reload(running: Inside, served: Path, second_model: Path) -> None:
    keys = {role: new_key(running.store, role) for role in ("read", "write", "admin")}
    replace(served, second_model)
    for role in ("read", "write"):
        with running.client(keys[role]) as client:
            problem(client.post("/v1/models/reload"), 403, "'admin'")
    with running.client(keys["admin"]) as client:
        assert reload(client)["changed"]


def test_many_reloads_at_once_end_with_one_model(
    running: Inside, client: httpx.Client, sample_model: Path, second_model: Path
) -> None:
    versions = []
    for model in (second_model, sample_model):
        record = record_of(model)
        running.store.publish(record)
        versions.append(record.version)

    def switch(number: int) -> httpx.Response:
        with running.client() as one:
            return one.post("/v1/models/reload", json={"version": versions[number % 2]})

    with crowd(running) as answers, ThreadPoolExecutor(4) as pool:
        for answer in pool.map(switch, range(12)):
            assert answer.status_code == 200, answer.text
    assert {status for status, _ in answers} == {200}
    published = running.store.state().model
    wait_until(lambda: serving(client) == published, "peace")
    for _ in range(5):
        assert serving(client) == published == running.store.state().model


# ── Folders that are not where they were ─────────────────────────────────────────────────────────


def test_a_model_that_was_moved_is_served_from_its_new_place(
    served: Path, sample_database: Path, tmp_path: Path
) -> None:
    db = copied(sample_database, tmp_path)
    with inside(served, db) as running, running.client() as client:
        version = serving(client)
    moved = served.rename(tmp_path / "moved")
    for model in (moved, None):  # named once, it is known again
        with inside(model, db) as running, running.client() as client:
            assert serving(client) == version


def test_a_first_model_that_is_gone_leaves_the_published_one(
    served: Path, second_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    db = copied(sample_database, tmp_path)
    with inside(served, db) as running, running.client() as client:
        running.store.publish(record_of(second_model))
        wait_until(lambda: serving(client) == artifact_version(second_model), "the new model serves")
    shutil.rmtree(served)
    with inside(served, db) as running, running.client() as client:
        assert serving(client) == artifact_version(second_model)


def test_a_published_model_that_is_gone_leaves_the_one_that_is_named(
    served: Path, second_model: Path, sample_database: Path, tmp_path: Path
) -> None:
    db = copied(sample_database, tmp_path)
    later = Path(shutil.copytree(second_model, tmp_path / "later"))
    with inside(served, db) as running, running.client() as client:
        running.store.publish(record_of(later))
        wait_until(lambda: serving(client) == artifact_version(second_model), "the new model serves")
    shutil.rmtree(later)
    with pytest.raises(ArtifactError, match=r"there is no such folder.*name it"), inside(None, db):
        pass
    with inside(served, db) as running, running.client() as client:
        assert serving(client) == artifact_version(served)
        assert running.store.state().model == artifact_version(served)


def test_a_published_model_that_cannot_be_served_leaves_the_one_that_is_named(
    served: Path, sample_database: Path, tmp_path: Path
) -> None:
    db = copied(sample_database, tmp_path)
    closed = Recommender("bpr", device="cpu", epochs=1)
    closed.fit(Recommender.load(served, device="cpu").dataset, progress=False, calibrate=False)
    store = Store.open(db)
    store.publish(record_of(closed.save(tmp_path / "closed")))
    store.close()
    with pytest.raises(ArtifactError, match=r"knows only the users.*name it"), inside(None, db):
        pass
    with inside(served, db) as running, running.client() as client:
        assert serving(client) == running.store.state().model == artifact_version(served)
    with pytest.raises(UnsupportedError, match="knows only the users"):
        inside(tmp_path / "closed", f"sqlite:///{tmp_path}/empty.db").__enter__()


def test_a_database_that_was_put_back_is_followed_as_well(client: httpx.Client, running: Inside) -> None:
    best = next(iter(scores(client)))
    items = [item["id"] for item in ok(client.get(f"/v1/bundles/{best}"))["items"]]
    assert client.put("/v1/bundles/later", json={"items": items}).status_code == 201
    database = running.store.url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(database)) as connection, connection:  # as from a backup of a minute ago
        connection.execute("delete from bundle_item where bundle_id = 'later'")
        connection.execute("delete from bundles where id = 'later'")
        connection.execute("update clock set catalogue = catalogue - 1")
    problem(client.get("/v1/bundles/later"), 404)
    assert best in scores(client)


def test_settings_of_the_shop_that_the_service_was_given_stay_after_a_reload(
    served: Path, sample_database: Path, tmp_path: Path
) -> None:
    shop = {"currency": "JPY", "owned": "show"}
    with inside(served, copied(sample_database, tmp_path), shop=shop) as running, running.client() as client:
        first = ok(client.get("/v1/models"))
        assert (first["shop"]["currency"], first["shop"]["owned"]) == ("JPY", "show")
        other = Recommender.load(served, shop={"currency": "EUR", "locale": "de_DE"})
        swap_in(other.save(tmp_path / "other"), served)
        ok(client.post("/v1/models/reload"))
        second = ok(client.get("/v1/models"))
        assert second["serving"] != first["serving"]
        assert (second["shop"]["currency"], second["shop"]["locale"]) == ("JPY", "de_DE")
