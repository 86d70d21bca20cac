"""Every route of the API, asked as a shop would, on a real server with a real model and store."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from sqlalchemy import Engine
from sqlalchemy.event import listen, remove

from bundlemage.core.history import History
from bundlemage.core.shop import Recommendation
from bundlemage.models import bundlemage
from bundlemage.models.bundlemage import BundleMage
from bundlemage.recommender import Recommender
from bundlemage.service.routes import models
from bundlemage.wire.answers import Exposure
from tests.service.running import Inside, copied, ids, inside, ok, problem
from tests.waiting import wait_until

SOMEONE = "u0007"


@pytest.fixture(scope="module")
def service(
    sample_model: Path, sample_database: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Inside]:
    """One service for all tests that add nothing but things under names of their own."""
    with inside(sample_model, copied(sample_database, tmp_path_factory.mktemp("api"))) as running:
        yield running


@pytest.fixture
def client(service: Inside) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def fresh(sample_model: Path, sample_database: Path, tmp_path: Path) -> Iterator[Inside]:
    """A service whose catalogue or users a test may change as it likes."""
    with inside(sample_model, copied(sample_database, tmp_path)) as running:
        yield running


@pytest.fixture
def own(fresh: Inside) -> Iterator[httpx.Client]:
    with fresh.client() as client:
        yield client


def took(client: httpx.Client, *interactions: dict[str, str], key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/v1/interactions", json={"interactions": interactions}, headers=headers)


def same(answers: list[dict[str, Any]], expected: Sequence[Recommendation]) -> None:
    assert [(each["id"], each["title"], each["rank"], each["source"]) for each in answers] == [
        (each.id, each.title, each.rank, each.source) for each in expected
    ]
    assert [each["score"] for each in answers] == pytest.approx([each.score for each in expected], rel=1e-3)


# ── Answers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("user", ["u0001", SOMEONE, "u0640"])
def test_bundles_for_a_user_are_those_of_the_recommender(
    own: httpx.Client, recommender: Recommender, user: str
) -> None:
    answer = ok(own.get(f"/v1/users/{user}/bundles", params={"k": 20}))
    same(answer["bundles"], recommender.recommend(user, 20))
    assert answer["user_id"] == user
    place = recommender.dataset.users.position(user)
    assert answer["history"] == {
        "items": int(recommender.dataset.user_item[place].sum()),
        "bundles": int(recommender.dataset.user_bundle[place].sum()),
        "not_in_model": 0,
    }
    with_owned = own.get(f"/v1/users/{user}/bundles", params={"k": 20, "owned": "show"})
    same(ok(with_owned)["bundles"], recommender.recommend(user, 20, owned="show"))


def test_bundles_for_a_history_are_those_of_the_recommender(
    own: httpx.Client, recommender: Recommender
) -> None:
    history: dict[str, Any] = {"items": ["g0022", "g0401"], "bundles": ["b0013"]}
    answer = ok(own.post("/v1/recommend", json={"history": history, "k": 7}))
    same(answer["bundles"], recommender.recommend(History(history["items"], history["bundles"]), 7))
    assert answer["user_id"] is None
    assert answer["history"] == {"items": 2, "bundles": 1, "not_in_model": 0}
    twice = {name: [*names, *names] for name, names in history.items()}
    assert ok(own.post("/v1/recommend", json={"history": twice, "k": 7}))["bundles"] == answer["bundles"]


def test_items_for_a_bundle_are_those_of_the_recommender(own: httpx.Client, recommender: Recommender) -> None:
    partial = ["g0022", "g0401"]
    for_user = ok(own.post("/v1/complete", json={"user_id": SOMEONE, "items": partial, "k": 6}))
    same(for_user["items"], recommender.complete(SOMEONE, partial, 6))
    history = History(items=["g0022"])
    asked = {"history": {"items": ["g0022"]}, "items": [], "k": 3}
    same(ok(own.post("/v1/complete", json=asked))["items"], recommender.complete(history, [], 3))
    first = for_user["items"][0]
    listed = ok(own.get(f"/v1/items/{first['id']}"))
    assert {name: first[name] for name in ("title", "price", "tags", "stock")} == {
        name: listed[name] for name in ("title", "price", "tags", "stock")
    }


def test_items_of_a_bundle_that_someone_took_are_not_suggested(own: httpx.Client) -> None:
    bundle = ok(own.get("/v1/bundles/b0013"))
    inside = {item["id"] for item in bundle["items"]}
    asked = {"user_id": "buyer", "items": ["g0022"], "k": 100, "where": {"among": sorted(inside)}}
    assert set(ids(own.post("/v1/complete", json=asked), "items")) == inside - {"g0022"}
    took(own, {"user_id": "buyer", "bundle_id": "b0013"})
    assert ids(own.post("/v1/complete", json=asked), "items") == []
    shown = own.post("/v1/complete", json={**asked, "owned": "show"})
    assert set(ids(shown, "items")) == inside - {"g0022"}


def test_both_ways_to_ask_answer_alike(client: httpx.Client) -> None:
    got = ok(client.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 4, "details": True}))
    posted = ok(client.post("/v1/recommend", json={"user_id": SOMEONE, "k": 4, "details": True}))
    for answer in (got, posted):
        del answer["request_id"]
    assert got == posted


def test_an_answer_carries_all_that_a_page_needs(client: httpx.Client, service: Inside) -> None:
    answered = client.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 3, "details": True})
    answer = ok(answered)
    assert answer["request_id"] == answered.headers["x-request-id"]
    assert answer["model_version"] == service.service.answerer.serving.record.version
    for bundle in answer["bundles"]:
        listed = ok(client.get(f"/v1/bundles/{bundle['id']}"))
        for name in ("title", "price", "discount", "tags", "image_url", "items"):
            assert bundle[name] == listed[name]
        assert listed["recommendable"]
        assert all(set(part) == {"id", "title", "price", "tags", "image_url"} for part in bundle["items"])
    plain = ok(client.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 3}))
    assert all("items" not in bundle for bundle in plain["bundles"])
    assert set(plain["bundles"][0]) == {
        "id", "title", "price", "discount", "tags", "image_url", "score", "rank", "source",
        "owned", "missing", "to_pay", "sold_out",
    }  # fmt: skip


def test_k_is_how_many(client: httpx.Client) -> None:
    assert len(ids(client.get("/v1/users/u0002/bundles"))) == 10
    assert len(ids(client.get("/v1/users/u0002/bundles", params={"k": 100}))) == 100
    for wrong in (0, -1, 101, "ten", 1.5):
        told = problem(client.get("/v1/users/u0002/bundles", params={"k": wrong}), 422, "k:")
        assert told["errors"][0]["field"] == "k"
    path = "/v1/users/u0002/bundles"
    problem(client.get(path, params={"k": 5000}), 422, "k: is '5000'; it must be at most 100")
    for body in ({"k": 5000}, {"items": ["g0022"], "k": 5000}):
        route = "/v1/complete" if "items" in body else "/v1/recommend"
        problem(
            client.post(route, json={"user_id": SOMEONE, **body}), 422, "k: is 5000; it must be at most 100"
        )
    problem(client.get(path, params={"k": 0}), 422, "k: is '0'; it must be at least 1")


def test_whole_numbers_are_taken_as_ids(own: httpx.Client) -> None:
    for number in (7, 8):
        ok(own.put(f"/v1/items/{number}", json={"title": f"Number {number}"}), 201)
    items = ["g0022", 7, 8]
    assert [item["id"] for item in ok(own.put("/v1/bundles/70", json={"items": items}), 201)["items"]] == [
        "g0022",
        "7",
        "8",
    ]
    ok(own.put("/v1/bundles/71", json={"items": ["g0022"], "sells_like": 70}), 201)
    written = {"interactions": [{"user_id": 9, "item_id": 7}, {"user_id": 9, "bundle_id": 70}]}
    assert ok(own.post("/v1/interactions", json=written))["new"] == 2
    has = ok(own.get("/v1/users/9"))
    assert [[each["id"] for each in has[kind]] for kind in ("items", "bundles")] == [["7"], ["70"]]
    for asked in (
        {"user_id": 9, "where": {"exclude": [71]}},
        {"history": {"items": [7], "bundles": [70]}, "where": {"exclude": [71]}},
    ):
        as_text = {"user_id": "9", "where": {"exclude": ["71"]}}
        bundles = ok(own.post("/v1/recommend", json=asked))["bundles"]
        assert bundles == ok(own.post("/v1/recommend", json=as_text))["bundles"]
    assert ids(own.post("/v1/recommend", json={"user_id": 9, "where": {"among": [71]}, "owned": "show"})) == [
        "71"
    ]
    assert "g0022" not in ids(own.post("/v1/complete", json={"user_id": 9, "items": ["g0022", 7]}), "items")
    designed = {"user_id": 9, "start": ["g0022"], "forbid": [7, 8], "n": 1, "reasons": False}
    assert ok(own.post("/v1/design", json=designed))["bundles"]


@pytest.mark.parametrize("wrong", [1.5, 7.0, True, None, [], {}])
def test_other_values_are_no_ids(client: httpx.Client, wrong: Any) -> None:
    words = 'should be an id: a text such as "7", or a whole number; found'
    told = problem(client.post("/v1/complete", json={"user_id": SOMEONE, "items": ["g0022", wrong]}), 422)
    assert told["detail"].startswith(f"items[1]: {words}")
    batch = {"interactions": [{"user_id": wrong, "item_id": "g0022"}]}
    told = problem(client.post("/v1/interactions", json=batch), 422)
    assert told["detail"].startswith(f"interactions[0].user_id: {words}")
    told = problem(client.post("/v1/design", json={"user_id": SOMEONE, "must": [wrong]}), 422)
    assert told["detail"].startswith(f"must[0]: {words}")


def test_what_someone_has_is_left_out_unless_asked_for(client: httpx.Client) -> None:
    has = {bundle["id"] for bundle in ok(client.get(f"/v1/users/{SOMEONE}"))["bundles"]}
    assert has
    without = ids(client.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 100}))
    assert not has & set(without)
    asked = {"user_id": SOMEONE, "owned": "show", "where": {"among": sorted(has)}, "k": 100}
    assert set(ids(client.post("/v1/recommend", json=asked))) == has


def test_whoever_has_nothing_gets_what_sells_best_and_it_says_so(
    own: httpx.Client, recommender: Recommender
) -> None:
    answer = ok(own.get("/v1/users/never-seen/bundles", params={"k": 5}))
    assert {bundle["source"] for bundle in answer["bundles"]} == {"popular"}
    same(answer["bundles"], recommender.recommend(History(), 5))
    assert answer["history"] == {"items": 0, "bundles": 0, "not_in_model": 0}
    known = ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
    assert {bundle["source"] for bundle in known["bundles"]} == {"model"}


def test_no_answer_is_wholly_owned(client: httpx.Client, recommender: Recommender) -> None:
    """300 users. The page's cards show the same facts."""
    contents = {
        each["id"]: {part["id"] for part in each["items"]}
        for each in ok(client.get("/v1/bundles", params={"limit": 500}))["bundles"]
    }
    wholly = 0
    for user in list(recommender.dataset.users)[:300]:
        has = ok(client.get(f"/v1/users/{user}"))
        owned = {item["id"] for item in has["items"]}
        owned |= {part["id"] for bundle in has["bundles"] for part in bundle["items"]}
        for bundle in ok(client.get(f"/v1/users/{user}/bundles", params={"k": 20}))["bundles"]:
            assert set(bundle["missing"]) == contents[bundle["id"]] - owned != set()
            assert set(bundle["owned"]) == contents[bundle["id"]] & owned
        shown = ok(client.get(f"/v1/users/{user}/bundles", params={"k": 20, "owned": "show"}))
        wholly += sum(not bundle["missing"] for bundle in shown["bundles"])
    assert wholly


def test_what_is_sold_out_comes_last(own: httpx.Client) -> None:
    first = ok(own.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 1, "details": True}))["bundles"][0]
    item = first["missing"][0]
    ok(own.patch(f"/v1/items/{item}", json={"stock": 0}))
    path, everything = f"/v1/users/{SOMEONE}/bundles", {"k": 100}
    assert ids(own.get(path))[0] != first["id"]
    shown = {each["id"]: each for each in ok(own.get(path, params={"stock": "show"}))["bundles"]}
    assert shown[first["id"]]["sold_out"] == [item]
    assert first["id"] not in ids(own.get(path, params={"stock": "hide", **everything}))
    problem(own.get(path, params={"stock": "gone"}), 422, "stock")
    problem(own.get(path, params={"owned": "yes"}), 422, "owned")
    ok(own.patch(f"/v1/items/{item}", json={"stock": None}))  # unknown is not sold out
    assert ids(own.get(path))[0] == first["id"]


def test_lists_are_steered_as_those_of_the_recommender(own: httpx.Client, recommender: Recommender) -> None:
    path, plain = f"/v1/users/{SOMEONE}/bundles", recommender.recommend(SOMEONE, 9)
    for rules in ({"diversity": 0.6}, {"match_popularity": 0.6}, {"diversity": 0.3, "match_popularity": 0.3}):
        expected = recommender.recommend(SOMEONE, 9, **rules)  # type: ignore[arg-type]
        assert expected != plain
        same(ok(own.get(path, params={"k": 9, **rules}))["bundles"], expected)
        same(ok(own.post("/v1/recommend", json={"user_id": SOMEONE, "k": 9, **rules}))["bundles"], expected)
    off = {"k": 9, "diversity": 0, "match_popularity": 0}
    same(ok(own.get(path, params=off))["bundles"], plain)
    same(ok(own.post("/v1/recommend", json={"user_id": SOMEONE, **off}))["bundles"], plain)
    problem(own.get(path, params={"diversity": 1.1}), 422, "diversity")
    problem(
        own.post("/v1/recommend", json={"user_id": SOMEONE, "match_popularity": -1}), 422, "match_popularity"
    )
    problem(own.post("/v1/recommend", json={"user_id": SOMEONE, "diversity": "0.5"}), 422, "diversity")
    problem(own.post("/v1/complete", json={"user_id": SOMEONE, "diversity": 0.5}), 422, "diversity")


# ── Filters ──────────────────────────────────────────────────────────────────────────────────────


def every_bundle(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in ok(client.get("/v1/bundles", params={"limit": 500}))["bundles"]}


def test_filters_let_through_what_they_say_and_keep_the_order(own: httpx.Client) -> None:
    shop = every_bundle(own)
    items = {each["id"]: each for each in ok(own.get("/v1/items", params={"limit": 500}))["items"]}
    items |= {each["id"]: each for each in ok(own.get("/v1/items?limit=500&offset=500"))["items"]}
    question = {"user_id": SOMEONE, "k": 100, "stock": "show"}
    everything = ids(own.post("/v1/recommend", json=question))
    tag = shop[everything[3]]["tags"][0]
    prices = sorted(shop[name]["price"] for name in everything)
    low, high = prices[25], prices[75]

    def in_stock(bundle: dict[str, Any]) -> bool:
        return all((items[part["id"]]["stock"] or 0) > 0 for part in bundle["items"])

    passes: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], bool]]] = {
        "tags": ({"tags": [tag]}, lambda bundle: tag in bundle["tags"]),
        "min": ({"min_price": low}, lambda bundle: bundle["price"] >= low),
        "max": ({"max_price": high}, lambda bundle: bundle["price"] <= high),
        "range": ({"min_price": low, "max_price": high}, lambda bundle: low <= bundle["price"] <= high),
        "stock": ({"in_stock": True}, in_stock),
        "exclude": ({"exclude": everything[:3]}, lambda bundle: bundle["id"] not in everything[:3]),
        "together": ({"tags": [tag], "max_price": high}, lambda b: tag in b["tags"] and b["price"] <= high),
    }
    for name, (where, let_through) in passes.items():
        posted = ids(own.post("/v1/recommend", json={**question, "where": where}))
        assert posted, name
        assert all(let_through(shop[each]) for each in posted), name
        expected = [each for each in everything if let_through(shop[each])]
        assert 0 < len(expected) < len(everything), name  # the filter has something to do
        assert posted[: len(expected)] == expected, name
        query: dict[str, Any] = {"k": 100, "stock": "show", **where}
        assert ids(own.get(f"/v1/users/{SOMEONE}/bundles", params=query)) == posted, name
    chosen = {"among": [everything[5], everything[2], "not-in-the-shop"]}
    answered = ids(own.post("/v1/recommend", json={**question, "where": chosen}))
    assert answered == [everything[2], everything[5]]


def test_filters_of_items(client: httpx.Client) -> None:
    asked: dict[str, Any] = {"user_id": SOMEONE, "items": ["g0022"], "k": 100}
    plain = ok(client.post("/v1/complete", json=asked))["items"]
    assert "g0022" not in [item["id"] for item in plain]
    tag = plain[0]["tags"][0]
    where = {"tags": [tag], "max_price": 30, "in_stock": True, "exclude": [plain[0]["id"]]}
    found = ok(client.post("/v1/complete", json={**asked, "where": where}))["items"]
    assert found
    assert all(tag in item["tags"] and item["price"] <= 30 and item["stock"] > 0 for item in found)
    assert plain[0]["id"] not in [item["id"] for item in found]


def test_a_filter_that_can_never_hold_is_told(client: httpx.Client) -> None:
    both = {"min_price": 30, "max_price": 20}
    asked = {"user_id": SOMEONE, "where": both}
    problem(client.post("/v1/recommend", json=asked), 422, "30", "20", "no price is between")
    problem(client.get(f"/v1/users/{SOMEONE}/bundles", params=both), 422, "no price is between")
    nowhere = {"user_id": SOMEONE, "where": {"among": ["nowhere"]}}
    problem(client.post("/v1/recommend", json=nowhere), 422, "'nowhere'")
    assert ids(client.get(f"/v1/users/{SOMEONE}/bundles", params={"tags": "no such tag"})) == []


def test_a_bundle_is_in_stock_if_all_its_items_are_also_those_newer_than_the_model(own: httpx.Client) -> None:
    ok(own.put("/v1/items/newest", json={"stock": 0}), 201)
    ok(own.put("/v1/items/g0022", json={"stock": 4}))
    ok(own.put("/v1/bundles/partly new", json={"items": ["g0022", "newest"]}), 201)
    asked = {"user_id": SOMEONE, "where": {"among": ["partly new"], "in_stock": True}}
    assert ids(own.post("/v1/recommend", json=asked)) == []
    ok(own.put("/v1/items/newest", json={"stock": 1}))
    assert ids(own.post("/v1/recommend", json=asked)) == ["partly new"]
    ok(own.put("/v1/items/newest", json={}))  # nobody knows
    assert ids(own.post("/v1/recommend", json=asked)) == []


# ── What is posted counts at once ────────────────────────────────────────────────────────────────


def test_a_purchase_changes_the_very_next_answer(own: httpx.Client, recommender: Recommender) -> None:
    for _ in range(3):
        before = ok(own.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 10}))
        best = before["bundles"][0]["id"]
        assert ok(took(own, {"user_id": SOMEONE, "bundle_id": best}))["new"] == 1
        after = ok(own.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 10}))
        assert best not in [bundle["id"] for bundle in after["bundles"]]
        assert after["history"]["bundles"] == before["history"]["bundles"] + 1
        # Not only the bundle went: the rest is what the model says to the longer history.
        user = ok(own.get(f"/v1/users/{SOMEONE}"))
        items, bundles = ([each["id"] for each in user[kind]] for kind in ("items", "bundles"))
        same(after["bundles"], recommender.recommend(History(items, bundles), 10))
    item = ok(own.post("/v1/complete", json={"user_id": SOMEONE, "k": 1}))["items"][0]["id"]
    took(own, {"user_id": SOMEONE, "item_id": item})
    assert item not in ids(own.post("/v1/complete", json={"user_id": SOMEONE, "k": 100}), "items")


def test_a_new_users_first_purchase_counts(own: httpx.Client, recommender: Recommender) -> None:
    popular = own.get("/v1/users/newcomer/bundles")
    took(own, {"user_id": "newcomer", "item_id": "g0022"}, {"user_id": "newcomer", "bundle_id": "b0013"})
    answer = ok(own.get("/v1/users/newcomer/bundles"))
    same(answer["bundles"], recommender.recommend(History(["g0022"], ["b0013"]), 10))
    assert answer["bundles"] != ok(popular)["bundles"]


def test_a_bundle_put_is_recommended_to_a_fitting_user_at_once(own: httpx.Client) -> None:
    best = ok(own.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 1, "details": True}))["bundles"][0]
    contents = [part["id"] for part in best["items"]]
    body = {"items": contents, "title": "Planted", "price": 9.5, "discount": 0.5, "tags": ["planted"]}
    put = ok(own.put("/v1/bundles/planted", json=body), 201)
    assert put["recommendable"]
    assert [part["id"] for part in put["items"]] == contents
    found = ok(own.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 20, "details": True}))["bundles"]
    (planted,) = [bundle for bundle in found if bundle["id"] == "planted"]
    assert (planted["title"], planted["price"], planted["discount"]) == ("Planted", 9.5, 0.5)
    assert ids(own.get(f"/v1/users/{SOMEONE}/bundles", params={"tags": "planted"})) == ["planted"]
    assert ids(own.get(f"/v1/bundles/{best['id']}/similar", params={"k": 1})) == ["planted"]
    took(own, {"user_id": SOMEONE, "bundle_id": "planted"})
    assert "planted" not in ids(own.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 100}))


def test_of_all_bundles_only_the_one_that_was_put_is_embedded(
    own: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    embed = BundleMage.bundle_embeddings

    def counted(model: BundleMage, table: Any, contents: Any) -> Any:
        rows.append(len(contents))
        return embed(model, table, contents)

    monkeypatch.setattr(BundleMage, "bundle_embeddings", counted)
    for number in range(1, 4):
        ok(own.put(f"/v1/bundles/new-{number}", json={"items": ["g0022", "g0401"]}), 201)
        ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
        assert sum(rows) == number
    ok(own.put("/v1/bundles/new-1", json={"items": ["g0022", "g0401"], "price": 3}))
    ok(own.put("/v1/items/g0022", json={"stock": 0}))
    ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
    assert sum(rows) == 3


def test_the_vectors_of_many_changed_bundles_are_merged_by_another_thread(
    fresh: Inside, own: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundlemage, "MERGED_ROWS", 2)
    merged: list[tuple[str, int]] = []
    table = bundlemage.VectorTable

    class Watched(table):  # type: ignore[valid-type, misc]
        def __init__(self, rows: Any, *more: Any) -> None:
            merged.append((threading.current_thread().name, len(rows)))
            super().__init__(rows, *more)

    size = len(fresh.service.answerer.serving.stock.bundles)
    monkeypatch.setattr(bundlemage, "VectorTable", Watched)
    for number in range(3):
        ok(own.put(f"/v1/bundles/new-{number}", json={"items": ["g0022", "g0401"]}), 201)
        ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
    wait_until(lambda: ("housekeeping", size + 3) in merged, "the table is merged")
    ok(own.put("/v1/bundles/new-3", json={"items": ["g0022", "g0401"]}), 201)
    ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
    assert max(rows for name, rows in merged if name == "answers") <= 4


def test_a_new_bundle_ranks_as_it_is_expected_to_sell(own: httpx.Client) -> None:
    items = ["g0004", "g0022", "g0401"]

    def score() -> float:
        asked = {"user_id": SOMEONE, "where": {"among": ["launch"]}}
        return float(ok(own.post("/v1/recommend", json=asked))["bundles"][0]["score"])

    put = ok(own.put("/v1/bundles/launch", json={"items": items}), 201)
    assert (put["expected_sales"], put["sells_like"]) == (None, None)
    plain = score()
    put = ok(own.put("/v1/bundles/launch", json={"items": items, "expected_sales": 5000}))
    assert (put["expected_sales"], put["sells_like"]) == (5000, None)
    assert ok(own.get("/v1/bundles/launch")) == put
    high = score()
    assert high > 2 * plain
    changed = ok(own.patch("/v1/bundles/launch", json={"expected_sales": None, "sells_like": "b0013"}))
    assert (changed["expected_sales"], changed["sells_like"]) == (None, "b0013")
    assert score() < high
    for body, words in (
        ({"expected_sales": -1}, 'is -1; it must be at least 0"'),
        ({"expected_sales": 2e12}, 'is 2000000000000; it must be at most 1,000,000,000,000"'),
        ({"expected_sales": "many"}, "should be a number"),
        ({"expected_sales": 3, "sells_like": "b0013"}, "give either 'expected_sales' or 'sells_like'"),
        ({"sells_like": "nowhere"}, "nowhere"),
        ({"sells_like": "launch"}, "like itself"),
    ):
        refused = own.put("/v1/bundles/launch", json={"items": items, **body})
        assert refused.status_code == 422
        assert words in refused.text
    assert own.patch("/v1/bundles/launch", json={"expected_sales": 3}).status_code == 422  # it sells like one
    assert ok(own.get("/v1/bundles/launch")) == changed


def test_a_bundle_that_is_changed_is_judged_by_what_is_in_it_now(own: httpx.Client) -> None:
    answer = ok(own.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 100, "details": True}))["bundles"]
    best, worst = answer[0], answer[-1]
    ok(own.put(f"/v1/bundles/{worst['id']}", json={"items": [part["id"] for part in best["items"]]}))
    found = ok(own.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 100}))["bundles"]
    (changed,) = [bundle for bundle in found if bundle["id"] == worst["id"]]
    assert changed["score"] > 3 * worst["score"]


def test_what_is_newer_than_the_model_is_passed_over_and_counted(own: httpx.Client) -> None:
    before = ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
    assert not ok(own.put("/v1/items/unheard", json={"title": "Qwx"}), 201)["in_model"]
    put = ok(own.put("/v1/bundles/all new", json={"items": ["unheard"]}), 201)
    assert not put["recommendable"]
    took(own, {"user_id": SOMEONE, "item_id": "unheard"}, {"user_id": SOMEONE, "bundle_id": "all new"})
    after = ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
    assert after["history"] == {**before["history"], "not_in_model": 2}
    assert ids(own.get(f"/v1/users/{SOMEONE}/bundles")) == [each["id"] for each in before["bundles"]]
    history = {"history": {"items": ["unheard", "g0022"]}}
    assert ok(own.post("/v1/recommend", json=history))["history"] == {
        "items": 1, "bundles": 0, "not_in_model": 1
    }  # fmt: skip
    only_new = ok(own.post("/v1/recommend", json={"history": {"items": ["unheard"]}}))
    assert {bundle["source"] for bundle in only_new["bundles"]} == {"popular"}
    asked = {"user_id": "somebody-else", "owned": "show", "where": {"among": ["all new"]}}
    assert ids(own.post("/v1/recommend", json=asked)) == []
    problem(own.get("/v1/bundles/all new/similar"), 409, "'all new'", "retrain")


# ── Interactions ─────────────────────────────────────────────────────────────────────────────────


def test_interactions_are_counted_and_known_ones_are_told(client: httpx.Client) -> None:
    one = {"user_id": "counted", "item_id": "g0022"}
    answered = took(client, one, {"user_id": "counted", "bundle_id": "b0013"})
    assert ok(answered) == {
        "new": 2, "known": 0, "replayed": False, "request_id": answered.headers["x-request-id"]
    }  # fmt: skip
    assert ok(took(client, one, {"user_id": "counted", "item_id": "g0401"}))["known"] == 1
    assert ok(took(client, one, one))["known"] == 2


def test_an_idempotency_key_is_carried_out_once(client: httpx.Client) -> None:
    body = {"user_id": "careful", "item_id": "g0022"}
    first = took(client, body, key="order-1")
    assert "idempotency-replayed" not in first.headers
    again = took(client, body, key="order-1")
    assert again.headers["idempotency-replayed"] == "true"
    assert ok(again) == {**ok(first), "replayed": True, "request_id": again.headers["x-request-id"]}
    other = took(client, {"user_id": "careful", "item_id": "g0401"}, key="order-1")
    problem(other, 422, "'order-1'", "nothing was")
    assert len(ok(client.get("/v1/users/careful"))["items"]) == 1
    failed = took(client, {"user_id": "careful", "item_id": "not there"}, key="order-2")
    problem(failed, 422, "'not there'")
    assert ok(took(client, {"user_id": "careful", "item_id": "g0401"}, key="order-2"))["new"] == 1
    problem(took(client, body, key="a key"), 422, "idempotency-key")
    problem(took(client, body, key="k" * 201), 422, "idempotency-key")


def test_a_key_sent_by_many_at_the_same_time_is_carried_out_once(service: Inside) -> None:
    body = {"user_id": "hasty", "bundle_id": "b0013"}

    def send(_: int) -> dict[str, Any]:
        with service.client() as client:
            answer: dict[str, Any] = ok(took(client, body, key="all-at-once"))
            return answer

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    assert sorted(answer["replayed"] for answer in answers) == [False, *[True] * 7]
    assert {(answer["new"], answer["known"]) for answer in answers} == {(1, 0)}


def test_many_interactions_at_once_all_or_nothing(client: httpx.Client) -> None:
    many = [{"user_id": f"crowd-{number:05}", "item_id": "g0022"} for number in range(10_000)]
    statements: list[str] = []

    def count(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    listen(Engine, "before_cursor_execute", count)
    try:
        assert ok(took(client, *many))["new"] == 10_000
    finally:
        remove(Engine, "before_cursor_execute", count)
    assert 0 < len(statements) < 100  # not one for each interaction
    assert (
        ids(client.get("/v1/users?search=crowd-&limit=500&after=crowd-09499"), "users")[-1] == "crowd-09999"
    )
    problem(took(client, *many, many[0]), 422, "interactions")
    wrong = [{"user_id": "half", "item_id": "g0022"}, {"user_id": "half", "bundle_id": "no such"}]
    problem(took(client, *wrong), 422, "bundle", "'no such'", "nothing was")
    problem(client.get("/v1/users/half"), 404, "'half'")


def test_a_purchase_is_kept_with_its_time(client: httpx.Client) -> None:
    def at(moment: str, item: str) -> httpx.Response:
        return took(client, {"user_id": "dated", "item_id": item, "at": moment})

    for moment, item in (
        ("2026-01-02T00:00:00Z", "g0401"),
        ("2026-01-02T01:00:00+02:00", "g0022"),  # the earlier of the two
        ("0001-01-01T00:00:00+14:00", "g0004"),  # before the first day that UTC has
    ):
        ok(at(moment, item))
    assert ids(client.get("/v1/users/dated"), "items") == ["g0004", "g0022", "g0401"]
    problem(at("2026-01-02T00:00:00", "g0005"), 422, "interactions[0].at", "timezone")
    problem(at("yesterday", "g0005"), 422, "interactions[0].at", "'yesterday'")


@pytest.mark.parametrize(
    ("interaction", "field", "words"),
    [
        ({"user_id": "u"}, "interactions[0]", "either 'item_id' or 'bundle_id'"),
        ({"user_id": "u", "item_id": "g0022", "bundle_id": "b0013"}, "interactions[0]", "not both"),
        ({"item_id": "g0022"}, "interactions[0].user_id", "missing"),
        ({"user_id": "u", "itemid": "g0022"}, "interactions[0].itemid", "is not a field"),
        ({"user_id": "", "item_id": "g0022"}, "interactions[0].user_id", "empty"),
        ({"user_id": "   ", "item_id": "g0022"}, "interactions[0].user_id", "empty"),
        ({"user_id": "u\nv", "item_id": "g0022"}, "interactions[0].user_id", "control character"),
        ({"user_id": "u\x9bv", "item_id": "g0022"}, "interactions[0].user_id", "control character"),
        ({"user_id": "u" * 201, "item_id": "g0022"}, "interactions[0].user_id", "200"),
        ({"user_id": 7.5, "item_id": "g0022"}, "interactions[0].user_id", "a whole number"),
        ({"user_id": "u", "item_id": "g0022", "request_id": "a b"}, "interactions[0].request_id", "'a b'"),
    ],
)
def test_a_wrong_interaction_is_told_in_words(
    client: httpx.Client, interaction: dict[str, Any], field: str, words: str
) -> None:
    told = problem(took(client, interaction), 422)
    assert any(fault["field"] == field and words in fault["message"] for fault in told["errors"]), told


# ── The catalogue ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name",
    ["with space", "a/b", "a//b/", "/first", "ünï-çødé-日本-🎲", "100%", "a%2Fb", "..", ".", "a.b", "?q#f",
     "a+b&c=d", "'; drop table items; --", "<script>", "x" * 200, "e\u0301", "bundles", "\u202ertl"],
)  # fmt: skip
def test_any_text_may_be_an_id(client: httpx.Client, name: str) -> None:
    path = quote(name, safe="").replace(".", "%2E")  # clients would walk up at '..'
    item = {
        "title": name,
        "price": 1.25,
        "tags": [name[:100]],
        "stock": 3,
        "cost": 0.5,
        "image_url": "/a.png",
        "description": name,
    }
    created = ok(client.put(f"/v1/items/{path}", json=item), 201)
    assert created["in_model"] in (False, "by content")  # a part of the text may be in a title of the shop
    out = {"id": name, "withdrawn": False, "in_model": created["in_model"], "vector_length": None, **item}
    assert created == out
    assert ok(client.get(f"/v1/items/{path}")) == out
    assert ok(client.get("/v1/items", params={"search": name, "tag": name[:100]}))["total"] == 1
    ok(client.put(f"/v1/bundles/{path}", json={"items": ["g0022", name]}), 201)
    assert ids(client.get(f"/v1/bundles/{path}"), "items") == ["g0022", name]
    assert ids(client.get(f"/v1/bundles/{path}/similar", params={"k": 2, "exclude": name}))
    assert (
        ok(took(client, {"user_id": name, "item_id": name}, {"user_id": name, "bundle_id": name}))["new"] == 2
    )
    answer = ok(client.get(f"/v1/users/{path}/bundles", params={"k": 1}))
    known = 1 + bool(created["in_model"])
    assert (answer["user_id"], answer["history"]["items"] + answer["history"]["bundles"]) == (name, known)
    assert ok(client.get(f"/v1/users/{path}/gate"))["user_id"] == name
    assert ids(client.get(f"/v1/users/{path}"), "bundles") == [name]
    assert ids(client.get("/v1/users", params={"search": name}), "users") == [name]
    assert client.delete(f"/v1/users/{path}").status_code == 204
    assert client.delete(f"/v1/bundles/{path}").status_code == 204
    assert client.delete(f"/v1/items/{path}").status_code == 204


@pytest.mark.parametrize("path", ["%20", "%C2%85", "a%0Ab", "a%0A", "%00", "x" * 201, ""])
def test_what_is_no_id_is_refused_everywhere_and_harms_nothing(client: httpx.Client, path: str) -> None:
    for method, route in (
        ("GET", f"/v1/users/{path}/bundles"),
        ("GET", f"/v1/users/{path}/gate"),
        ("GET", f"/v1/users/{path}"),
        ("DELETE", f"/v1/users/{path}"),
        ("GET", f"/v1/items/{path}"),
        ("PUT", f"/v1/items/{path}"),
        ("DELETE", f"/v1/bundles/{path}"),
    ):
        told = problem(client.request(method, route, json={} if method == "PUT" else None), 422)
        assert told["errors"][0]["field"].endswith("_id"), told
    ok(client.get("/v1/insights"))  # what was asked for is counted with the rest, and this must not stop it


def test_put_is_201_for_a_new_thing_and_200_for_a_known_one(client: httpx.Client) -> None:
    path = "/v1/items/twice"
    full = {"title": "Twice", "price": 3.5, "tags": ["a", "b"], "stock": 7, "cost": 2, "image_url": "/a.png"}
    ok(client.put(path, json=full), 201)
    empty: dict[str, Any] = {"title": None, "tags": [], "stock": None, "cost": None, "image_url": None}
    empty |= {"description": None, "vector_length": None}
    found = {"id": "twice", "withdrawn": False, "in_model": False}
    assert ok(client.put(path, json={"price": 4})) == {**found, **empty, "price": 4}
    bundle = {"items": ["twice", "g0022"], "title": "Two", "price": 2, "discount": 0, "tags": ["b", "b"]}
    made = ok(client.put("/v1/bundles/twice", json=bundle), 201)
    assert (made["tags"], made["discount"]) == (["b"], 0)
    assert ok(client.put("/v1/bundles/twice", json=bundle)) == made


def test_delete_withdraws_and_put_brings_back(own: httpx.Client) -> None:
    answer = ok(own.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 1, "details": True}))["bundles"][0]
    name, items = answer["id"], [part["id"] for part in answer["items"]]

    def shown() -> bool:
        asked = {"user_id": SOMEONE, "where": {"among": [name]}}
        return ids(own.post("/v1/recommend", json=asked)) == [name]

    def listed() -> bool:
        return name in every_bundle(own)

    assert shown()
    assert own.delete(f"/v1/bundles/{name}").status_code == 204
    assert not shown()
    assert not listed()
    gone = ok(own.get(f"/v1/bundles/{name}"))
    assert (gone["withdrawn"], gone["recommendable"]) == (True, False)
    assert own.delete(f"/v1/bundles/{name}").status_code == 204  # as often as you like
    assert not ok(own.put(f"/v1/bundles/{name}", json={"items": items}))["withdrawn"]
    assert shown()
    # A bundle with an item that is sold no more cannot be sold either.
    assert own.delete(f"/v1/items/{items[0]}").status_code == 204
    assert not shown()
    assert not ok(own.get(f"/v1/bundles/{name}"))["recommendable"]
    assert items[0] not in ids(own.post("/v1/complete", json={"user_id": "x", "k": 100}), "items")
    ok(own.put(f"/v1/items/{items[0]}", json={}))
    assert shown()


def test_histories_keep_what_was_withdrawn(own: httpx.Client) -> None:
    has = ids(own.get(f"/v1/users/{SOMEONE}"))[0]
    before = ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
    own.delete(f"/v1/bundles/{has}")
    after = ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
    assert (after["history"], after["bundles"]) == (before["history"], before["bundles"])
    assert has in ids(own.get(f"/v1/users/{SOMEONE}"))


def test_things_that_are_not_there(client: httpx.Client) -> None:
    for kind in ("item", "bundle"):
        for method in ("GET", "DELETE"):
            told = problem(client.request(method, f"/v1/{kind}s/no-such"), 404, kind, "'no-such'", "PUT")
            assert told["title"] == f"No such {kind}"
    problem(client.get("/v1/bundles/no-such/similar"), 404, "'no-such'")
    problem(client.get("/v1/users/no-such"), 404, "'no-such'")
    problem(client.delete("/v1/users/no-such"), 404, "'no-such'")
    unknown = client.put("/v1/bundles/new", json={"items": ["g0022", "no-1", "no-2"]})
    problem(unknown, 422, "'no-1', 'no-2'", "nothing was")
    problem(client.get("/v1/bundles/new"), 404)
    for body in (
        {"history": {"items": ["no-1"]}},
        {"history": {"bundles": ["no-1"]}},
        {"history": {}, "items": ["no-1"]},
    ):
        route = "/v1/complete" if "items" in body else "/v1/recommend"
        problem(client.post(route, json=body), 422, "'no-1'")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"price": -1}, "price"),
        ({"price": "cheap"}, "price"),
        ({"stock": 1.5}, "stock"),
        ({"stock": False}, "stock"),
        ({"price": "3"}, "price"),
        ({"stock": -1}, "stock"),
        ({"stock": 2**53}, "stock"),
        ({"tags": "one"}, "tags"),
        ({"tags": [""]}, "tags[0]"),
        ({"title": "x" * 501}, "title"),
        ({"title": "nul\0"}, "title"),
        ({"colour": "red"}, "colour"),
        ([], "body"),
    ],
)
def test_a_wrong_item_is_refused_field_by_field(client: httpx.Client, body: Any, field: str) -> None:
    told = problem(client.put("/v1/items/wrong", json=body), 422)
    assert [fault["field"] for fault in told["errors"]] == [field]
    problem(client.get("/v1/items/wrong"), 404)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "items"),
        ({"items": []}, "items"),
        ({"items": ["g0022"], "discount": 1.01}, "discount"),
        ({"items": ["g0022"], "discount": 20}, "discount"),
        ({"items": [22.5]}, "items[0]"),
        ({"items": "g0022"}, "items"),
    ],
)
def test_a_wrong_bundle_is_refused_field_by_field(client: httpx.Client, body: Any, field: str) -> None:
    told = problem(client.put("/v1/bundles/wrong", json=body), 422)
    assert [fault["field"] for fault in told["errors"]] == [field]


def test_numbers_that_json_does_not_have_are_refused(client: httpx.Client) -> None:
    json_type = {"Content-Type": "application/json"}
    for number in ("NaN", "Infinity", "1e999"):
        content = f'{{"price": {number}}}'
        problem(client.put("/v1/items/wrong", content=content, headers=json_type), 422, "price")


def test_lists_are_searched_and_paged(own: httpx.Client, recommender: Recommender) -> None:
    for kind, count in (
        ("items", len(recommender.dataset.items)),
        ("bundles", len(recommender.dataset.bundles)),
    ):
        first = ok(own.get(f"/v1/{kind}", params={"limit": 7}))
        assert (first["total"], len(first[kind])) == (count, 7)
        pages = [
            each["id"]
            for offset in range(0, count, 100)
            for each in ok(own.get(f"/v1/{kind}", params={"limit": 100, "offset": offset}))[kind]
        ]
        assert len(pages) == len(set(pages)) == count
        assert pages[:7] == [each["id"] for each in first[kind]]
        titles = [ok(own.get(f"/v1/{kind}/{name}"))["title"].casefold() for name in pages[:20]]
        assert titles == sorted(titles)
        assert ok(own.get(f"/v1/{kind}", params={"offset": count}))[kind] == []
        found = ok(own.get(f"/v1/{kind}", params={"search": "GLASSREACH", "limit": 500}))
        assert found["total"] == len(found[kind]) > 1
        assert all("glassreach" in each["title"].casefold() for each in found[kind])
        tag = first[kind][0]["tags"][0]
        tagged = ok(own.get(f"/v1/{kind}", params={"tag": tag, "limit": 500}))
        assert all(tag in each["tags"] for each in tagged[kind])
        (counted,) = [each["count"] for each in ok(own.get("/v1/tags"))[kind] if each["tag"] == tag]
        assert counted == tagged["total"]
        for wrong in ({"limit": 0}, {"limit": 501}, {"offset": -1}, {"tag": ""}):
            problem(own.get(f"/v1/{kind}", params=wrong), 422, next(iter(wrong)))
    by_id = ok(own.get("/v1/items", params={"search": "G0022"}))["items"]
    assert [each["id"] for each in by_id] == ["g0022"]


def test_tags_are_of_what_is_sold_the_most_frequent_first(own: httpx.Client) -> None:
    ok(own.put("/v1/items/tagged", json={"tags": ["brand new tag"]}), 201)
    counts = ok(own.get("/v1/tags"))["items"]
    assert {"tag": "brand new tag", "count": 1} in counts
    assert [each["count"] for each in counts] == sorted((each["count"] for each in counts), reverse=True)
    own.delete("/v1/items/tagged")
    assert "brand new tag" not in [each["tag"] for each in ok(own.get("/v1/tags"))["items"]]


def test_similar_bundles(client: httpx.Client) -> None:
    answer = ok(client.get("/v1/bundles/b0013/similar", params={"k": 5, "details": True}))
    assert len(answer["bundles"]) == 5
    assert "b0013" not in [bundle["id"] for bundle in answer["bundles"]]
    scores = [bundle["score"] for bundle in answer["bundles"]]
    assert scores == sorted(scores, reverse=True)
    assert -1 <= scores[-1] <= scores[0] <= 1.001
    cheap = ok(client.get("/v1/bundles/b0013/similar", params={"k": 5, "max_price": 60}))
    assert all(bundle["price"] <= 60 for bundle in cheap["bundles"])


# ── Users ────────────────────────────────────────────────────────────────────────────────────────


def test_users_are_listed_by_id_and_paged(own: httpx.Client, recommender: Recommender) -> None:
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = ok(own.get("/v1/users", params={"limit": 300, "after": after}))
        seen += [user["id"] for user in page["users"]]
        after = page["next"]
    assert seen == sorted(recommender.dataset.users)
    few = ok(own.get("/v1/users", params={"search": "u000", "limit": 3}))
    assert [user["id"] for user in few["users"]] == ["u0001", "u0002", "u0003"]
    assert few["next"] == "u0003"
    for user in few["users"]:
        full = ok(own.get(f"/v1/users/{user['id']}"))
        assert (len(full["items"]), len(full["bundles"])) == (user["items"], user["bundles"])
    assert ok(own.get("/v1/users", params={"search": "nobody"})) == {"users": [], "next": None}


def test_a_user_is_told_with_all_they_have(client: httpx.Client) -> None:
    user = ok(client.get(f"/v1/users/{SOMEONE}"))
    how = {"at": None, "weight": 1.0, "event": None, "rejected": False}  # imported without times
    assert user["items"][0] == ok(client.get(f"/v1/items/{user['items'][0]['id']}")) | how
    assert user["bundles"][0] == ok(client.get(f"/v1/bundles/{user['bundles'][0]['id']}")) | how


def test_an_erased_user_leaves_nothing(fresh: Inside, own: httpx.Client) -> None:
    answer = ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
    took(own, {"user_id": SOMEONE, "bundle_id": answer["bundles"][0]["id"]})
    ok(own.get(f"/v1/users/{SOMEONE}/bundles"))  # may not be written to the store yet
    assert own.delete(f"/v1/users/{SOMEONE}").status_code == 204
    fresh.service.answerer.write_shown()
    assert fresh.store.served_since(fresh.store.models()[0].published_at).answers == 0  # type: ignore[arg-type]
    problem(own.get(f"/v1/users/{SOMEONE}"), 404)
    assert ids(own.get("/v1/users", params={"search": SOMEONE}), "users") == []
    left = ok(own.get(f"/v1/users/{SOMEONE}/bundles"))
    assert {bundle["source"] for bundle in left["bundles"]} == {"popular"}


def test_the_gate_says_how_far_each_history_speaks(client: httpx.Client) -> None:
    shares = {}
    for user in ("u0001", SOMEONE, "never-seen"):
        gate = ok(client.get(f"/v1/users/{user}/gate"))
        assert gate["user_id"] == user
        assert 0 <= gate["items"] <= 1
        assert gate["items"] + gate["bundles"] == pytest.approx(1)
        shares[user] = gate["items"]
    assert len(set(shares.values())) == 3


# ── Models and insights ──────────────────────────────────────────────────────────────────────────


def test_models_tell_which_one_serves(client: httpx.Client, recommender: Recommender) -> None:
    answer = ok(client.get("/v1/models"))
    (model,) = answer["models"]
    assert model["version"] == answer["serving"]
    assert (model["name"], model["serving"], model["problem"]) == ("bundlemage", True, None)
    assert model["metrics"] == recommender.metrics
    assert model["metrics"]
    assert answer["shop"] == {**recommender.shop_settings.model_dump(), "decimals": 2}


def test_insights_add_up(own: httpx.Client, recommender: Recommender) -> None:
    empty = ok(own.get("/v1/insights"))
    assert empty["served"]["answers"] == 0
    assert empty["latency"] == {"count": 0, "p50_ms": None, "p95_ms": None, "p99_ms": None}
    assert {each["shown_share"] for each in empty["popularity"]} == {0}
    users = list(recommender.dataset.users)[:25]
    shown = [ids(own.get(f"/v1/users/{user}/bundles", params={"k": 4})) for user in users]
    took(own, {"user_id": users[0], "bundle_id": shown[0][0]}, {"user_id": "other", "bundle_id": shown[0][0]})
    wait_until(lambda: ok(own.get("/v1/insights"))["served"]["answers"], "newer insights")
    told = ok(own.get("/v1/insights"))
    assert told["served"]["answers"] == 25
    assert told["served"]["taken"] == 1
    assert told["latency"]["count"] == 25
    assert 0 < told["latency"]["p50_ms"] <= told["latency"]["p95_ms"] <= told["latency"]["p99_ms"]
    popularity = {each["id"]: each for each in told["popularity"]}
    assert set(popularity) == set(recommender.dataset.bundles)
    for share in ("sales_share", "shown_share"):
        assert sum(each[share] for each in popularity.values()) == pytest.approx(1)
    flat = [name for names in shown for name in names]
    most = max(set(flat), key=flat.count)
    assert popularity[most]["shown_share"] == pytest.approx(flat.count(most) / len(flat))
    sold = recommender.dataset.user_bundle.sum(axis=0).A1
    place = recommender.dataset.bundles.position(most)
    assert popularity[most]["sales_share"] == pytest.approx(sold[place] / sold.sum())
    model = told["model"]
    assert (model["name"], model["title"], model["trained_on"]) == ("bundlemage", "BundleMage", "sample")
    assert model["metrics"] == recommender.metrics
    assert len(model["history"]) == len(recommender.history)
    assert model["history"][0]["losses"]


def test_insights_describe_only_the_bundles_that_they_show(
    own: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To describe each of 20,000 bundles takes so long that other requests notice."""
    all_of_them = ok(own.get("/v1/insights"))["popularity"]
    described: list[str] = []

    def counted(**fields: Any) -> Exposure:
        described.append(fields["id"])
        return Exposure(**fields)

    monkeypatch.setattr(models, "MOST_EXPOSURES", 3)
    monkeypatch.setattr(models, "Exposure", counted)
    wait_until(lambda: len(ok(own.get("/v1/insights"))["popularity"]) == 3, "newer insights")
    told = ok(own.get("/v1/insights"))
    expected = sorted(all_of_them, key=lambda each: (-each["sales_share"], each["id"]))
    assert all_of_them == expected  # nothing was shown yet
    assert told["popularity"] == expected[:3]
    assert told["left_out"] == len(all_of_them) - 3
    assert set(described) == {each["id"] for each in expected[:3]}


def test_insights_asked_for_by_many_at_once_lose_no_answer(fresh: Inside) -> None:
    def ask(number: int) -> None:
        with fresh.client() as client:
            for _ in range(5):
                ok(client.get(f"/v1/users/u{number:04}/bundles", params={"k": 1}))
                ok(client.get("/v1/insights"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(1, 9)))
    with fresh.client() as client:
        wait_until(lambda: ok(client.get("/v1/insights"))["served"]["answers"] == 40, "all 40 answers")


def test_metrics_count_what_was_asked(own: httpx.Client, fresh: Inside) -> None:
    own.get(f"/v1/users/{SOMEONE}/bundles", params={"k": 3})
    own.get("/v1/users/never-seen/bundles", params={"k": 2})
    took(own, {"user_id": "x", "item_id": "g0022"}, {"user_id": "x", "item_id": "g0401"})
    problem(own.get("/v1/items/no-such"), 404)
    version = fresh.service.answerer.serving.record.version

    def lines() -> str:
        answer = own.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        return answer.text

    wait_until(lambda: 'status="404"} 1.0' in lines(), "the count of the last request")
    text = lines()
    assert 'bundlemage_answers_total{source="model"} 3.0' in text
    assert 'bundlemage_answers_total{source="popular"} 2.0' in text
    assert "bundlemage_interactions_total 2.0" in text
    assert f'bundlemage_model_info{{name="bundlemage",version="{version}"}} 1.0' in text
    assert SOMEONE not in text


def test_health(client: httpx.Client) -> None:
    for route in ("/healthz", "/readyz"):
        assert ok(client.get(route)) == {"status": "ok"}


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({}, "body", "either 'user_id' or 'history'"),
        ({"user_id": SOMEONE, "history": {}}, "body", "not both"),
        ({"user_id": SOMEONE, "k": 0}, "k", "is 0; it must be at least 1"),
        ({"user_id": SOMEONE, "where": {"max_prise": 3}}, "where.max_prise", "is not a field"),
        ({"user_id": SOMEONE, "where": {"tags": ["x", 3]}}, "where.tags[1]", "found 3"),
        ({"user_id": SOMEONE, "where": {"max_price": "20 €"}}, "where.max_price", "'20 €'"),
        ({"history": {"items": "g0022"}}, "history.items", "list"),
    ],
)
def test_a_wrong_question_is_told_field_by_field(
    client: httpx.Client, body: dict[str, Any], field: str, words: str
) -> None:
    told = problem(client.post("/v1/recommend", json=body), 422)
    assert [fault["field"] for fault in told["errors"]] == [field]
    assert words in told["errors"][0]["message"]
    assert told["detail"].startswith(f"{field}: ")


def test_a_body_that_is_no_json(client: httpx.Client) -> None:
    json_type = {"Content-Type": "application/json"}
    for content in (b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null"):
        problem(client.post("/v1/recommend", content=content, headers=json_type), 422, "body")


def test_a_body_that_is_too_large(client: httpx.Client) -> None:
    problem(client.post("/v1/recommend", content=b" " * (1024 * 1024 + 1)), 413, "1,048,576")


def test_the_page_of_the_api_needs_nothing_from_elsewhere(client: httpx.Client) -> None:
    page = client.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    policy = page.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "unsafe" not in policy
    files = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert {"/static/swagger-ui-bundle.js", "/static/swagger-ui.css", "/static/docs.js"} <= {*files}
    kinds = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    for file in files:
        found = client.get(file)
        assert found.status_code == 200, file
        assert found.headers["content-type"].partition(";")[0] == kinds[file.rpartition(".")[2]]
        assert found.headers["cache-control"] == "no-cache"
    assert re.findall(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", page.text) == []
    # OpenAPI 3.1, which Swagger UI shows since version 5
    assert ok(client.get("/openapi.json"))["openapi"].startswith("3.1")
    assert 'PACKAGE_VERSION:"5.' in client.get("/static/swagger-ui-bundle.js").text


def test_routes_and_methods_that_are_not_there(client: httpx.Client) -> None:
    for path in (
        "/v1",
        "/v1/nothing",
        "/v2/items",
        "/nothing",
        "/static/nothing.js",
        "/v1/users/a/b/c/similar/x",
    ):
        problem(client.get(path), 404)
    for method, path, allowed in (
        ("POST", "/v1/items/g0022", "GET, PUT, PATCH, DELETE"),
        ("GET", "/v1/recommend", "POST"),
        ("DELETE", "/v1/interactions", "POST"),
        ("PATCH", "/v1/users/u0007", "GET, DELETE"),
        ("PUT", "/v1/users/u0007", "GET, DELETE"),
        ("PUT", "/v1/session", "GET, POST, DELETE"),
        ("OPTIONS", "/v1/recommend", "POST"),
        ("PUT", "/healthz", "GET, HEAD"),
        ("PUT", "/v1/users/u0007/gate", "GET"),
    ):
        answer = client.request(method, path)
        problem(answer, 405, method, allowed)
        assert answer.headers["allow"] == allowed
    assert "access-control-allow-origin" not in client.options("/v1/recommend").headers


def test_a_request_id_goes_through_to_problems(client: httpx.Client) -> None:
    headers = {"X-Request-ID": "my-own.id_1"}
    assert problem(client.get("/v1/items/no-such", headers=headers), 404)["request_id"] == "my-own.id_1"
    assert ok(client.get(f"/v1/users/{SOMEONE}/bundles", headers=headers))["request_id"] == "my-own.id_1"


def test_a_parameter_that_is_not_known_is_said(client: httpx.Client) -> None:
    told = problem(
        client.get(f"/v1/users/{SOMEONE}/bundles?k=3&max_prise=20"), 422, "'max_prise'", "max_price"
    )
    assert [fault["field"] for fault in told["errors"]] == ["max_prise"]
    problem(client.get("/v1/tags?colour=red"), 422, "'colour'", "none")
    assert client.get("/?user=u0007&anything=1").status_code == 200


def test_what_is_to_be_new_replaces_nothing(client: httpx.Client) -> None:
    new = {"If-None-Match": "*"}
    body = {"items": ["g0022", "g0401"], "title": "Once"}
    assert client.put("/v1/bundles/once-only", json=body, headers=new).status_code == 201
    problem(client.put("/v1/bundles/once-only", json=body, headers=new), 412, "'once-only'")
    assert client.delete("/v1/bundles/once-only").status_code == 204
    problem(client.put("/v1/bundles/once-only", json=body, headers=new), 412)
    assert client.put("/v1/bundles/once-only", json=body).status_code == 200
    problem(client.put("/v1/items/g0022", json={}, headers=new), 412, "'g0022'")
    problem(client.put("/v1/items/g0022", json={}, headers={"If-None-Match": '"tag"'}), 422, "if-none-match")
    assert client.delete("/v1/bundles/once-only").status_code == 204


def test_probes_may_ask_for_the_head_alone(client: httpx.Client) -> None:
    for path in ("/healthz", "/readyz", "/", "/builder"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


def test_some_of_a_thing_is_changed_and_the_rest_stays(client: httpx.Client) -> None:
    before = ok(client.get("/v1/items/g0022"))
    cheaper = ok(client.patch("/v1/items/g0022", json={"price": 5}))
    assert cheaper == {**before, "price": 5}
    assert ok(client.patch("/v1/items/g0022", json={"stock": None, "tags": ["a", "a"]})) == {
        **cheaper, "stock": None, "tags": ["a"]
    }  # fmt: skip
    assert ok(client.patch("/v1/items/g0022", json={})) == ok(client.get("/v1/items/g0022"))
    bundle = ok(client.get("/v1/bundles/b0013"))
    changed = ok(client.patch("/v1/bundles/b0013", json={"discount": 0.5, "items": ["g0022", "g0401"]}))
    assert [item["id"] for item in changed["items"]] == ["g0022", "g0401"]
    assert {**changed, "items": bundle["items"]} == {**bundle, "discount": 0.5}
    restored = {"items": [item["id"] for item in bundle["items"]], "discount": bundle["discount"]}
    assert ok(client.patch("/v1/bundles/b0013", json=restored))["items"][0] == bundle["items"][0]
    problem(client.patch("/v1/bundles/b0013", json={"items": []}), 422, "items")
    problem(client.patch("/v1/bundles/b0013", json={"items": ["no-such"]}), 422, "'no-such'")
    problem(client.patch("/v1/items/no-such", json={"price": 1}), 404, "'no-such'")
    problem(client.patch("/v1/items/g0022", json={"prise": 1}), 422, "prise")
    restored = {name: before[name] for name in ("title", "price", "tags", "stock")}
    assert ok(client.put("/v1/items/g0022", json=restored)) == before
