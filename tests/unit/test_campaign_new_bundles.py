"""Campaigns with bundles that the shop does not have yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.campaign import rows_of
from bundlemage import Filter, Recommender, SplitPlan
from bundlemage.campaigns.settings import Campaign, CampaignSummary
from bundlemage.errors import BundleMageError, CheckpointError, ConfigError, UnknownIdError
from bundlemage.wire.shop import ShopSettings
from tests.small_shop import PLAIN, QUICK, small_shop


@pytest.fixture(scope="module")
def shop() -> Recommender:
    model = Recommender(**QUICK | PLAIN).fit(small_shop(users=40), SplitPlan("none"), progress=False)
    model.shop_settings = ShopSettings(mostly_owned=1)  # then chances are the scores of `recommend`
    return model


@pytest.fixture(scope="module")
def new(shop: Recommender) -> dict[str, list[str]]:
    designs = shop.design_each(list(shop.dataset.users.ids)[:6], size=3)
    return {f"design-{number}": list(design.ids) for number, (design, _) in enumerate(designs)}


def test_chances_are_those_of_recommend(shop: Recommender, new: dict[str, list[str]], tmp_path: Path) -> None:
    median = float(np.median(shop.shop.trade.bundle_sales))
    summary = shop.campaign(tmp_path / "c", per_user=30, new_bundles=new)
    assert summary.chances == "softmax"
    rows = rows_of(tmp_path / "c")
    assert {row["bundle_id"] for row in rows} & set(new)
    for user in shop.dataset.users:
        answers = shop.recommend(
            user, 30, new_bundles=new, expected_sales=dict.fromkeys(new, median), stock="hide"
        )
        mine = [row for row in rows if row["user_id"] == user]
        assert [row["bundle_id"] for row in mine] == [answer.id for answer in answers]
        assert [row["chance"] for row in mine] == pytest.approx([each.score for each in answers], rel=1e-5)


def test_nobody_is_shown_the_same_items_twice(shop: Recommender, tmp_path: Path) -> None:
    """A new bundle with the items of an earlier candidate is left out, and the summary names both."""
    data = shop.dataset
    names = {
        bundle: [data.items[n] for n in data.bundle_item[place].indices]
        for place, bundle in enumerate(data.bundles)
    }
    first, *_ = names
    new = {f"N{name}": items[::-1] for name, items in names.items()} | {
        "again": names[first][:1],
        "once": names[first][:1],
    }
    summary = shop.campaign(tmp_path / "c", new_bundles=new, per_user=100, owned="show", sold_out="show")
    assert summary.same_items == {f"N{name}": name for name in names} | {"once": "again"}
    assert {row["bundle_id"] for row in rows_of(tmp_path / "c")} == {*names, "again"}
    summary = shop.campaign(
        tmp_path / "d",
        new_bundles=new,
        where=Filter(exclude=[first]),
        per_user=100,
        owned="show",
        sold_out="show",
    )
    assert f"N{first}" not in summary.same_items
    assert f"N{first}" in {row["bundle_id"] for row in rows_of(tmp_path / "d")}


def prices_of(shop: Recommender) -> dict[str, float]:
    assert shop.dataset.catalogue is not None
    items = shop.dataset.catalogue.items
    return dict(zip(items["item_id"].to_pylist(), items["price"].to_pylist(), strict=True))


def test_prices_and_the_cost_of_discounts(
    shop: Recommender, new: dict[str, list[str]], tmp_path: Path
) -> None:
    price = prices_of(shop)
    whole = {name: sum(price[item] for item in items) for name, items in new.items()}
    reduced = next(iter(new))

    def shown(folder: str, **settings: Any) -> tuple[CampaignSummary, list[dict[str, Any]]]:
        settings = {"new_bundles": new, "owned": "show", **settings}
        return shop.campaign(tmp_path / folder, **settings), rows_of(tmp_path / folder)

    summary, rows = shown("whole", value="takings", per_user=40 + len(new))
    assert {row["bundle_id"]: row["price"] for row in rows if row["bundle_id"] in new} == pytest.approx(whole)
    assert summary.takings == pytest.approx(sum(row["chance"] * row["price"] for row in rows), rel=1e-5)

    _, rows = shown("reduced", per_user=40 + len(new), new_prices={reduced: whole[reduced] / 2})
    prices = {row["bundle_id"]: row["price"] for row in rows}
    assert prices[reduced] == pytest.approx(whole[reduced] / 2)

    # A budget counts half of the price of the reduced bundle, and nothing for the others.
    budget = whole[reduced] * 0.5 * 3.5
    _, rows = shown("budget", per_user=1, new_prices={reduced: whole[reduced] / 2}, budget=budget)
    cost = sum(whole[reduced] / 2 for row in rows if row["bundle_id"] == reduced)
    assert cost <= budget


def test_what_if_and_resume_know_them(shop: Recommender, new: dict[str, list[str]], tmp_path: Path) -> None:
    shop.campaign(tmp_path / "c", shown_at_most=3, new_bundles=new)
    (more,) = shop.what_if(tmp_path / "c", shown_at_most=4)
    assert more.change > 0
    shop.campaign(tmp_path / "c", shown_at_most=3, new_bundles=new, resume=True)
    fewer = dict(list(new.items())[1:])
    with pytest.raises(CheckpointError, match="new_bundles"):
        shop.campaign(tmp_path / "c", shown_at_most=3, new_bundles=fewer, resume=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"new_bundles": {"b0001": ["g0001"]}}, "'b0001' has the id of a bundle that the shop already has"),
        ({"new_bundles": {"box": []}}, "'box' has no items"),
        ({"new_bundles": {"": ["g0001"]}}, "empty id"),
        ({"new_bundles": {1: ["g0001"], "1": ["g0002"]}}, "the same id twice"),
        ({"new_bundles": {"box": ["g9999"]}}, "g9999"),
        ({"new_bundles": {"box": "g0001"}}, "new_bundles"),
        ({"new_bundles": ["box"]}, "new_bundles"),
        ({"new_bundles": {"box": ["g0001"]}, "new_prices": {"bag": 3.0}}, "'bag', which is not among"),
        ({"new_bundles": {"box": ["g0001"]}, "new_prices": {"box": -3.0}}, "new_prices"),
        ({"new_bundles": {"box": ["g0001"]}, "new_prices": {"box": float("nan")}}, "new_prices"),
    ],
    ids=str,
)
def test_mistakes_are_named(
    shop: Recommender, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BundleMageError, match=message):
        shop.campaign(tmp_path / "c", **settings)
    assert not (tmp_path / "c").exists()


def test_ids_may_be_numbers() -> None:
    settings = Campaign.of(new_bundles={1: (2, 3)}, new_prices={1: 4.5})
    assert (settings.new_bundles, settings.new_prices) == ({"1": ["2", "3"]}, {"1": 4.5})


def test_the_shop_stays_as_it_is(shop: Recommender, new: dict[str, list[str]], tmp_path: Path) -> None:
    before = shop.dataset.fingerprint()
    shop.campaign(tmp_path / "c", new_bundles=new)
    assert shop.dataset.fingerprint() == before
    with pytest.raises((UnknownIdError, ConfigError)):
        shop.explain(shop.dataset.users.ids[0], bundle=next(iter(new)))
