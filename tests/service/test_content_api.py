"""A new item with a title and tags is known at once: no retraining, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bundlemage.recommender import Recommender
from tests.service.running import Inside, copied, inside, ok

LIKE = "Moonspire"
"""A series of the sample shop. The tests add a game of it."""


@pytest.fixture
def fresh(sample_model: Path, sample_database: Path, tmp_path: Path) -> Iterator[Inside]:
    with inside(sample_model, copied(sample_database, tmp_path)) as running:
        yield running


@pytest.fixture
def own(fresh: Inside) -> Iterator[httpx.Client]:
    with fresh.client() as client:
        yield client


@pytest.fixture
def series(recommender: Recommender) -> list[str]:
    """The items of the series."""
    catalogue = recommender.dataset.catalogue
    assert catalogue is not None
    tags = catalogue.items["tags"].to_pylist()
    return [name for name, each in zip(recommender.dataset.items, tags, strict=True) if LIKE in each]


def test_a_new_item_is_recommended_inside_bundles(own: httpx.Client, series: list[str]) -> None:
    version = ok(own.get("/v1/users/u0001/bundles"))["model_version"]
    item = {"title": f"{LIKE}: The Return", "tags": ["Space", LIKE], "price": 14.99, "stock": 5}
    assert ok(own.put("/v1/items/return", json=item), 201)["in_model"] == "by content"
    assert ok(own.get("/v1/items/return"))["in_model"] == "by content"
    assert ok(own.get(f"/v1/items/{series[0]}"))["in_model"] is True

    # All its items are newer than the model or not; either way it can be recommended.
    ok(own.put("/v1/items/return-2", json={**item, "title": f"{LIKE}: Return of the Return"}), 201)
    put = ok(own.put("/v1/bundles/box", json={"items": ["return", "return-2"], "expected_sales": 60}), 201)
    assert put["recommendable"]
    fan = {"history": {"items": series[:4]}, "k": 100}
    answer = ok(own.post("/v1/recommend", json=fan))
    assert answer["model_version"] == version
    (box,) = [bundle for bundle in answer["bundles"] if bundle["id"] == "box"]
    assert box["by_content"] == ["return", "return-2"]
    assert box["rank"] <= 20
    assert all("by_content" not in bundle for bundle in answer["bundles"] if bundle["id"] != "box")

    # It completes bundles of its series, and counts in histories.
    asked = {"history": {"items": []}, "items": series[:3], "k": 20, "owned": "show"}
    found = {each["id"]: each["in_model"] for each in ok(own.post("/v1/complete", json=asked))["items"]}
    assert found.pop("return") == "by content"
    assert set(found.values()) <= {True, "by content"}
    history = ok(own.post("/v1/recommend", json={"history": {"items": ["return"]}}))
    assert history["history"] == {"items": 1, "bundles": 0, "not_in_model": 0}
    assert {bundle["source"] for bundle in history["bundles"]} == {"model"}
    assert ok(own.get("/v1/bundles/box/similar", params={"k": 5}))["bundles"]
    designed = ok(
        own.post(
            "/v1/design",
            json={"history": {"items": []}, "start": ["return"], "size": {"least": 3, "most": 3}},
        )
    )
    assert "return" in [part["id"] for part in designed["bundles"][0]["items"]]


def test_a_bundle_may_come_before_what_its_items_are_is_known(own: httpx.Client, series: list[str]) -> None:
    assert ok(own.put("/v1/items/later", json={}), 201)["in_model"] is False
    assert not ok(own.put("/v1/bundles/box", json={"items": ["later"]}), 201)["recommendable"]
    now = {"title": f"{LIKE}: The Return", "tags": ["Space", LIKE]}
    assert ok(own.put("/v1/items/later", json=now))["in_model"] == "by content"
    assert ok(own.get("/v1/bundles/box"))["recommendable"]
    among = {"history": {"items": series[:4]}, "where": {"among": ["box"]}}
    first = ok(own.post("/v1/recommend", json=among))["bundles"]
    assert [bundle["id"] for bundle in first] == ["box"]
    # Its vector follows its record, and it is forgotten when nothing is left to know it by.
    similar = ok(own.get("/v1/bundles/box/similar", params={"k": 100}))["bundles"]
    ok(own.put("/v1/items/later", json={"title": "Dragonspire Command", "tags": ["Strategy"]}))
    other = ok(own.get("/v1/bundles/box/similar", params={"k": 100}))["bundles"]
    assert [bundle["id"] for bundle in similar] != [bundle["id"] for bundle in other]
    assert ok(own.put("/v1/items/later", json={"price": 3}))["in_model"] is False
    assert not ok(own.get("/v1/bundles/box"))["recommendable"]
