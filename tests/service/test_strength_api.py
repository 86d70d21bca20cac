"""Views, purchases, returns, descriptions and vectors, told to a running service as a shop would."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from bundlemage import Recommender, read
from bundlemage.client import Client, Interaction
from bundlemage.errors import ConfigError
from bundlemage.live import Live
from bundlemage.sample.generate import write_shop
from bundlemage.sample.kinds import EVENTS, shop_of_kind
from bundlemage.store.records import vector_of
from tests.service.running import Inside, copied, ids, inside, ok, problem

TYPES = {"view": 0.2, "cart": 0.5, "buy": 1.0, "return": -1.0, "impression": 0.0}


@pytest.fixture(scope="module")
def service(
    sample_model: Path, sample_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inside]:
    with inside(sample_model, copied(sample_database, tmp_path_factory.mktemp("api"))) as running:
        yield running


@pytest.fixture
def client(service: Inside) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> None:
    """The serving model was trained with types of events."""
    monkeypatch.setattr(Live, "event_weights", TYPES)


def tell(client: httpx.Client, user: str, **fields: Any) -> httpx.Response:
    return client.post("/v1/interactions", json={"interactions": [{"user_id": user, **fields}]})


def best(client: httpx.Client, user: str, k: int = 20) -> list[str]:
    return ids(client.get(f"/v1/users/{user}/bundles", params={"k": k}))


def test_a_view_is_an_interest_and_no_purchase(client: httpx.Client) -> None:
    before = best(client, "viewer")
    item = ok(client.get(f"/v1/bundles/{before[5]}"))["items"][0]["id"]
    assert ok(tell(client, "viewer", item_id=item, weight=0.2))["new"] == 1
    answer = ok(client.get("/v1/users/viewer/bundles", params={"k": 20}))
    assert answer["history"] == {"items": 1, "bundles": 0, "not_in_model": 0}
    assert [each["id"] for each in answer["bundles"]] != before  # the model read it
    assert all(each["owned"] == [] for each in answer["bundles"])
    assert ok(tell(client, "viewer", bundle_id=before[0], weight=0.2))["new"] == 1
    assert before[0] in best(client, "viewer", 100)  # a bundle that was viewed may be bought
    assert ok(tell(client, "viewer", bundle_id=before[0]))["new"] == 1
    assert before[0] not in best(client, "viewer", 100)


def test_a_strong_interest_counts_more_than_a_weak_one(client: httpx.Client) -> None:
    popular = best(client, "nobody", 30)
    first, second = (ok(client.get(f"/v1/bundles/{name}"))["items"][0]["id"] for name in popular[10:30:10])
    lists = []
    for user, weight in (("mostly-first", 5), ("mostly-second", 0.2)):
        ok(tell(client, user, item_id=first, weight=weight))
        ok(tell(client, user, item_id=second))
        lists.append(best(client, user))
    assert lists[0] != lists[1]


def test_a_returned_thing_is_recommended_no_more_until_it_is_bought_again(client: httpx.Client) -> None:
    ok(tell(client, "returner", item_id="g0022"))
    bundle, other = best(client, "returner")[:2]
    assert ok(tell(client, "returner", bundle_id=bundle, rejected=True))["new"] == 1
    assert bundle not in best(client, "returner", 100)
    inside = [each["id"] for each in ok(client.get(f"/v1/bundles/{other}"))["items"]]
    ok(tell(client, "returner", item_id=inside[0], rejected=True))
    for name in best(client, "returner", 100):
        assert inside[0] not in [each["id"] for each in ok(client.get(f"/v1/bundles/{name}"))["items"]]
    proposed = client.get("/v1/users/returner/items", params={"k": 100})
    if proposed.is_success:
        assert inside[0] not in ids(proposed, "items")
    ok(tell(client, "returner", item_id=inside[0], weight=0.2))  # a later view takes it back
    assert other in best(client, "returner", 100)
    assert client.delete("/v1/users/returner").status_code == 204
    problem(client.get("/v1/users/returner"), 404, "'returner'")
    assert bundle in best(client, "returner", 100)


def test_a_history_says_how_things_were_taken(client: httpx.Client, types: None) -> None:
    noon = "2026-03-01T12:00:00Z"
    for fields in (
        {"item_id": "g0022", "event": "view", "at": noon},
        {"item_id": "g0401", "weight": 2.5, "at": "2026-03-01T13:00:00Z"},
        {"bundle_id": "b0013", "event": "buy", "at": noon},
        {"bundle_id": "b0166", "event": "return", "at": "2026-03-02T12:00:00Z"},
    ):
        assert ok(tell(client, "teller", **fields))["new"] == 1
    history = ok(client.get("/v1/users/teller"))
    facts = [
        {name: each[name] for name in ("id", "at", "weight", "event", "rejected")}
        for each in (*history["items"], *history["bundles"])
    ]
    assert facts == [
        {"id": "g0022", "at": noon, "weight": 0.2, "event": "view", "rejected": False},
        {"id": "g0401", "at": "2026-03-01T13:00:00Z", "weight": 2.5, "event": None, "rejected": False},
        {"id": "b0013", "at": noon, "weight": 1.0, "event": "buy", "rejected": False},
        {"id": "b0166", "at": "2026-03-02T12:00:00Z", "weight": None, "event": "return", "rejected": True},
    ]
    assert ids(client.get("/v1/users?search=teller"), "users") == ["teller"]
    (line,) = ok(client.get("/v1/users?search=teller"))["users"]
    assert (line["items"], line["bundles"]) == (2, 1)
    assert b"b0166" not in client.get("/v1/users/teller/bundles?k=100").content


def test_an_unknown_type_is_refused_with_those_that_the_model_knows(
    client: httpx.Client, types: None
) -> None:
    told = problem(tell(client, "u", item_id="g0022", event="veiw"), 422, "'veiw'", "'view', 'cart', 'buy'")
    assert told["errors"][0]["field"] == "interactions[0].event"
    assert "impression" not in told["detail"]
    problem(tell(client, "u", item_id="g0022", event="impression"), 422, "has the weight 0", "leave")


def test_without_types_a_weight_is_asked_for(client: httpx.Client) -> None:
    problem(tell(client, "u", item_id="g0022", event="view"), 422, "without types of events", "'weight'")
    problem(client.get("/v1/users/u"), 404)


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"event": "view", "weight": 1}, "interactions[0]", "'event' and 'weight'"),
        ({"event": "view", "rejected": True}, "interactions[0]", "'event' and 'rejected'"),
        ({"weight": 1, "rejected": True}, "interactions[0]", "'weight' and 'rejected'"),
        ({"weight": 0}, "interactions[0].weight", "more than 0"),
        ({"weight": -1}, "interactions[0].weight", "more than 0"),
        ({"weight": "much"}, "interactions[0].weight", "should be a number"),
        ({"weight": 1e7}, "interactions[0].weight", "1,000,000"),
        ({"rejected": "yes"}, "interactions[0].rejected", "boolean"),
        ({"event": ""}, "interactions[0].event", "at least 1"),
        ({"event": "a\nb"}, "interactions[0].event", "a\\nb"),
    ],
)
def test_wrong_strengths_are_told_in_words(
    client: httpx.Client, fields: dict[str, Any], field: str, words: str
) -> None:
    told = problem(tell(client, "u", item_id="g0022", **fields), 422)
    assert any(fault["field"] == field and words in fault["message"] for fault in told["errors"]), told


# ── Descriptions and vectors ─────────────────────────────────────────────────────────────────────


def test_an_item_has_a_description_and_a_vector(client: httpx.Client, service: Inside) -> None:
    body = {"title": "Kite", "description": "Flies high.", "vector": [0.5, -1, 0.5]}
    kite = ok(client.put("/v1/items/kite", json=body), 201)
    assert (kite["description"], kite["vector_length"]) == ("Flies high.", 3)
    stored = {item.id: item for item in service.store.catalogue().items}["kite"]
    assert stored.vector == vector_of([0.5, -1, 0.5])  # numbers that occur twice are kept twice
    changed = ok(client.patch("/v1/items/kite", json={"price": 3}))
    assert (changed["description"], changed["vector_length"]) == ("Flies high.", 3)
    problem(
        client.put("/v1/items/ball", json={"vector": [1.0]}),
        422,
        "vector of item 'ball' has 1 numbers, but those of other items have 3",
    )
    assert ok(client.patch("/v1/items/kite", json={"vector": None}))["vector_length"] is None
    assert ok(client.get("/v1/items/g0022"))["description"] is None


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ('{"vector": []}', "vector", "at least 1"),
        ('{"vector": [1, "2"]}', "vector[1]", "should be a number"),
        ('{"vector": [1, null]}', "vector[1]", "number"),
        ('{"vector": [NaN]}', "vector[0]", "finite"),
        ('{"vector": [1e300]}', "vector[0]", "3"),
        ('{"vector": "text"}', "vector", "list"),
        ('{"description": 7}', "description", "string"),
    ],
)
def test_wrong_contents_are_told_in_words(client: httpx.Client, body: str, field: str, words: str) -> None:
    headers = {"Content-Type": "application/json"}
    told = problem(client.put("/v1/items/bad", content=body, headers=headers), 422)
    assert any(fault["field"] == field and words in fault["message"] for fault in told["errors"]), told


# ── The client ───────────────────────────────────────────────────────────────────────────────────


def test_the_client_tells_views_and_returns(service: Inside, types: None) -> None:
    with Client(service.url) as shop:
        assert shop.record("pat", item="g0022", weight=0.2).new == 1
        assert shop.record("pat", item="g0022", event="buy").new == 1
        told: list[Interaction | dict[str, Any]] = [
            Interaction("pat", bundle="b0013", rejected=True),
            {"user": "pat", "bundle": "b0166", "event": "view"},
        ]
        assert shop.record_many(told).new == 2
        history = shop.user("pat")
        assert [(each.id, each.event, each.weight) for each in history.items] == [("g0022", "buy", 1.0)]
        assert [(each.id, each.rejected) for each in history.bundles] == [("b0013", True), ("b0166", False)]
        item = shop.put_item("drum", description="Loud.", vector=(1.0, 2, 3))
        assert (item.description, item.vector_length) == ("Loud.", 3)
        with pytest.raises(ConfigError, match="vector is a list of numbers"):
            shop.put_item("drum", vector="1, 2, 3")


def test_a_model_that_was_trained_with_types_of_events_is_served_with_them(tmp_path: Path) -> None:
    """From a table with a column `event` to the service, without any other setting."""
    write_shop(shop_of_kind("views").dataset, tmp_path / "views", event_types=EVENTS)
    source = read(tmp_path / "views", events={"view": 0.05, "buy": 1, "return": -1})
    model = Recommender("ease").fit(source, progress=False, calibrate=False)
    model.save(tmp_path / "model")
    with (
        inside(tmp_path / "model", f"sqlite:///{tmp_path / 'shop.db'}") as running,
        running.client() as client,
    ):
        history = ok(client.get("/v1/users/u0001"))
        assert {each["weight"] for each in history["bundles"]} == {0.05, 1.0}
        only_viewed = {each["id"] for each in history["bundles"] if each["weight"] < 1}
        viewed = next(name for name in best(client, "u0001", 100) if name in only_viewed)
        assert ok(tell(client, "u0001", bundle_id=viewed, event="buy"))["new"] == 1
        assert viewed not in best(client, "u0001", 100)
        returned = best(client, "u0001")[0]
        assert ok(tell(client, "u0001", bundle_id=returned, event="return"))["new"] == 1
        assert returned not in best(client, "u0001", 100)
        refused = problem(tell(client, "u0001", bundle_id=viewed, event="like"), 422)
        assert "one of 'view', 'buy', 'return'" in refused["detail"]
