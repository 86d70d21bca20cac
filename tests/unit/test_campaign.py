"""Campaigns: no limit is ever broken, values are near the best there is, and a cut changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from benchmarks.campaign import faults, rows_of
from bundlemage import BundleDataset, Catalogue, Filter, Recommender, SplitPlan
from bundlemage.campaigns import choice, plan
from bundlemage.campaigns.settings import CampaignSummary
from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA
from bundlemage.errors import BundleMageError, CheckpointError, ConfigError, UnknownIdError
from bundlemage.wire.shop import ShopSettings
from tests.small_shop import PLAIN, QUICK, dataset_of, small_shop


def with_stock(dataset: BundleDataset, stock: Any) -> BundleDataset:
    assert dataset.catalogue is not None
    items = dataset.catalogue.items
    column = items.schema.get_field_index("stock")
    items = items.set_column(column, items.schema.field(column), pa.array(stock, pa.int64()))
    return replace(dataset, catalogue=Catalogue(items, dataset.catalogue.bundles))


def fitted(dataset: BundleDataset, plan: str = "none") -> Recommender:
    return Recommender(**QUICK | PLAIN).fit(dataset, SplitPlan(plan), progress=False)


@pytest.fixture(scope="module")
def tiny() -> Recommender:
    dataset = small_shop(users=14, items=12, bundles=8, bundles_per_user=2.0, items_per_bundle=3.0)
    recommender = fitted(with_stock(dataset, [1, 5, 2, 9, 3, 6, 4, 2, 0, 7, 3, 5]))
    recommender.shop_settings = ShopSettings(mostly_owned=1)  # then chances are the scores of `recommend`
    return recommender


@pytest.fixture
def quick_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that do not look at which bundles are chosen."""
    monkeypatch.setattr(choice, "IN_VAIN", 1)


@pytest.fixture(scope="module")
def shop() -> Recommender:
    dataset = small_shop(users=300, items=90, bundles=40)
    return fitted(with_stock(dataset, 3 + np.arange(90) % 40), "paper")


# ── The best there is, by an exact solver that knows nothing of prices ───────────────────────────


def optimum(
    recommender: Recommender,
    per_user: int = 1,
    stock: bool = False,
    shown_at_most: int | None = None,
    different_at_most: int | None = None,
    budget: float | None = None,
    reserve: str = "shown",
    value: str = "sales",
) -> float:
    """The highest value that any campaign can have; chances are those that `recommend` gives."""
    data = recommender.dataset
    assert data.catalogue is not None
    users, bundles = len(data.users), len(data.bundles)
    chance = np.zeros((users, bundles))
    for number, user in enumerate(data.users):
        for answer in recommender.recommend(user, bundles, stock="hide"):
            chance[number, data.bundles.position(answer.id)] = answer.score
    prices = data.catalogue.bundles["price"].to_numpy()
    worth = chance * prices if value == "takings" else chance
    share = chance if reserve == "expected" else np.ones_like(chance)
    contents = data.bundle_item.toarray().astype(float)
    rows: list[Any] = []
    most: list[float] = []

    def limit(each: Any, room: float) -> None:
        rows.append(np.broadcast_to(each, chance.shape).ravel())
        most.append(room)

    for number in range(users):
        limit(np.arange(users)[:, None] == number, per_user)
    if stock:
        for item, room in enumerate(data.catalogue.items["stock"].to_pylist()):
            limit(share * contents[:, item], room)
    if shown_at_most is not None:
        for bundle in range(bundles):
            limit(np.arange(bundles) == bundle, shown_at_most)
    if budget is not None:
        costs = contents @ data.catalogue.items["price"].to_numpy()
        limit(share * costs * data.catalogue.bundles["discount"].to_numpy(), budget)
    pairs = users * bundles
    table = np.hstack([np.array(rows, float), np.zeros((len(rows), bundles))])
    used = np.hstack([np.eye(pairs), -np.tile(np.eye(bundles), (users, 1))])  # shown only where it is used
    different = np.concatenate([np.zeros(pairs), np.ones(bundles)])
    found = milp(
        -np.concatenate([worth.ravel(), np.zeros(bundles)]),
        constraints=LinearConstraint(
            np.vstack([table, used, different]),
            -np.inf,
            [*most, *[0.0] * pairs, different_at_most or bundles],
        ),
        bounds=Bounds(0, np.concatenate([(worth > 0).ravel().astype(float), np.ones(bundles)])),
        integrality=np.ones(pairs + bundles),
        options={"mip_rel_gap": 1e-7},
    )
    return float(-found.fun)


def drawn(seed: int) -> dict[str, Any]:
    """Limits at random; each is there in some cases and binds in most of them."""
    random = np.random.default_rng(seed)
    settings: dict[str, Any] = {
        "per_user": int(random.integers(1, 3)),
        "value": str(random.choice(["sales", "takings"])),
        "reserve": str(random.choice(["shown", "expected"])),
        "stock": bool(random.random() < 0.7),
    }
    if random.random() < 0.5:
        settings["shown_at_most"] = int(random.integers(1, 5))
    if random.random() < 0.4:
        settings["different_at_most"] = int(random.integers(1, 6))
    if random.random() < 0.5:
        low, high = (40, 200) if settings["reserve"] == "shown" else (2, 30)
        settings["budget"] = float(np.round(random.uniform(low, high), 2))
    return settings


@pytest.mark.parametrize("seeds", [range(8), range(8, 16)])
def test_near_the_optimum_and_below_the_bound(seeds: range, tiny: Recommender, tmp_path: Path) -> None:
    for seed in seeds:
        settings = drawn(seed)
        # In one block, and in several with prices that follow.
        part_users = 14 if seed % 2 else 5
        summary = tiny.campaign(tmp_path / str(seed), part_users=part_users, **settings)
        assert faults(rows_of(tmp_path / str(seed)), tiny.dataset, tiny.dataset.users.ids, **settings) == []
        best = optimum(tiny, **settings)
        assert summary.value <= best * (1 + 1e-6), settings
        assert summary.bound >= best * (1 - 1e-6), settings
        assert summary.unconstrained >= summary.bound
        assert summary.value >= 0.9 * best, (summary.value / best, settings)


def test_without_limits_everyone_gets_what_recommend_gives(tiny: Recommender, tmp_path: Path) -> None:
    summary = tiny.campaign(tmp_path / "c", per_user=2)
    assert summary.value == pytest.approx(summary.unconstrained)
    assert summary.share_of_bound == pytest.approx(1)
    assert summary.chances == "softmax"
    rows = rows_of(tmp_path / "c")
    for user in tiny.dataset.users:
        answers = tiny.recommend(user, 2, stock="hide")
        mine = [row for row in rows if row["user_id"] == user]
        assert [(row["bundle_id"], row["rank"]) for row in mine] == [(a.id, a.rank) for a in answers]
        assert [row["chance"] for row in mine] == pytest.approx([a.score for a in answers], rel=1e-5)


# ── Many blocks: prices from a sample, and limits over all of them ───────────────────────────────


@pytest.mark.parametrize(
    "settings",
    [
        {"stock": True},
        {"stock": True, "reserve": "expected", "per_user": 2, "value": "takings"},
        {"shown_at_most": 5},
        {"budget": 900.0, "shown_at_most": 20, "value": "takings"},
        {"different_at_most": 6, "shown_at_most": 60},
    ],
    ids=str,
)
def test_prices_of_a_sample_waste_little(
    settings: dict[str, Any], shop: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "SAMPLE_USERS", 80)
    monkeypatch.setattr(plan, "VALUES_AT_A_TIME", 40 * 32)  # blocks of 32
    summary = shop.campaign(tmp_path / "c", part_users=48, **settings)
    rows = rows_of(tmp_path / "c")
    assert faults(rows, shop.dataset, shop.dataset.users.ids, **settings) == []
    assert summary.value == pytest.approx(sum(row["value"] for row in rows))
    assert summary.with_nothing == 300 - len({row["user_id"] for row in rows})
    assert summary.shown == len(rows)
    assert summary.share_of_bound is not None
    assert summary.share_of_bound > 0.9
    assert summary.chances == "calibrated"


@pytest.mark.usefixtures("quick_choice")
def test_use_of_limits_is_what_the_rows_say(shop: Recommender, tmp_path: Path) -> None:
    summary = shop.campaign(tmp_path / "c", stock=True, shown_at_most=12, different_at_most=30, budget=2000.0)
    rows = rows_of(tmp_path / "c")
    data = shop.dataset
    sizes = dict(zip(data.bundles, np.diff(data.bundle_item.indptr).tolist(), strict=True))
    names = [row["bundle_id"] for row in rows]
    limits = summary.limits
    assert limits["stock"]["used"] == sum(sizes[name] for name in names)
    assert all(0 <= item["used"] <= item["of"] for item in limits["stock"]["tightest"])
    assert limits["shown_at_most"]["most"] == max(map(names.count, names))
    assert limits["different_at_most"]["used"] == summary.different == len(set(names))
    assert 0 < limits["budget"]["used"] <= 2000
    assert summary.sales == pytest.approx(sum(row["chance"] for row in rows))
    assert summary.takings == pytest.approx(sum(row["chance"] * row["price"] for row in rows))


def test_filters_and_users(shop: Recommender, tmp_path: Path) -> None:
    users = ["u0250", "u0007", "u0100"]
    summary = shop.campaign(tmp_path / "c", users=users, per_user=3, where=Filter(among=["b0001", "b0002"]))
    rows = rows_of(tmp_path / "c")
    assert {row["bundle_id"] for row in rows} <= {"b0001", "b0002"}
    assert faults(rows, shop.dataset, users, per_user=3) == []
    assert summary.users == 3


def test_what_users_own_and_what_is_sold_out(tiny: Recommender, tmp_path: Path) -> None:
    """A campaign follows the rules of the shop, and leaves out sold-out bundles unless told otherwise."""
    data = tiny.dataset

    def chances(**settings: Any) -> dict[tuple[str, str], float]:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        tiny.campaign(folder, per_user=8, **settings)
        return {(row["user_id"], row["bundle_id"]): row["chance"] for row in rows_of(folder)}

    everything = {
        (user, answer.id): answer
        for user in data.users
        for answer in tiny.recommend(user, 8, owned="show", stock="show")
    }
    shown = chances(owned="show", sold_out="show")
    assert shown == pytest.approx({pair: answer.score for pair, answer in everything.items()}, rel=1e-4)
    available = chances(owned="show")
    assert available.keys() == {pair for pair, answer in everything.items() if not answer.sold_out}
    assert available.keys() < shown.keys()
    tiny.shop_settings = ShopSettings(mostly_owned=0.5)
    demoted = chances()
    hidden = chances(owned="hide")
    recommended = {
        (user, answer.id) for user in data.users for answer in tiny.recommend(user, 8, stock="hide")
    }
    tiny.shop_settings = ShopSettings(mostly_owned=1)
    for pair, answer in everything.items():
        share = len(answer.missing) / (len(answer.missing) + len(answer.owned))
        assert (pair in demoted) == (pair in recommended) == (share > 0 and not answer.sold_out)
        assert (pair in hidden) == (share > 0.5 and not answer.sold_out)
        if pair in demoted:
            assert demoted[pair] == pytest.approx(answer.score, rel=1e-4)


@pytest.mark.parametrize("per_user", [1, 2, 3])
@pytest.mark.parametrize("value", ["sales", "takings"])
def test_a_mostly_owned_bundle_is_shown_if_it_is_recommended_first(
    tiny: Recommender, per_user: int, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What users own decides which bundles they are shown. Chances, sales and takings are the real ones."""
    monkeypatch.setattr(tiny, "shop_settings", ShopSettings(mostly_owned=0.3, pays="missing"))
    summary = tiny.campaign(tmp_path / "c", per_user=per_user, value=value)
    rows = rows_of(tmp_path / "c")
    first = {
        (user, answer.id)
        for user in tiny.dataset.users
        for answer in tiny.recommend(user, per_user, stock="hide")
    }
    real = {
        (user, answer.id): answer
        for user in tiny.dataset.users
        for answer in tiny.recommend(user, 8, owned="show", stock="hide")
    }
    mostly = 0
    for row in rows:
        answer = real[row["user_id"], row["bundle_id"]]
        owned = len(answer.owned) / (len(answer.owned) + len(answer.missing))
        mostly += owned >= 0.3
        if value == "sales" or owned >= 0.3:
            assert (row["user_id"], row["bundle_id"]) in first
        assert row["chance"] == pytest.approx(answer.score, rel=1e-4)
        worth = row["chance"] if value == "sales" else row["chance"] * row["to_pay"]
        assert row["value"] == pytest.approx(worth, rel=1e-5)
    assert mostly > 0
    assert summary.sales == pytest.approx(sum(row["chance"] for row in rows), rel=1e-5)
    assert summary.takings == pytest.approx(sum(row["chance"] * row["to_pay"] for row in rows), rel=1e-5)
    assert summary.value == pytest.approx(summary.sales if value == "sales" else summary.takings)
    assert summary.value <= summary.bound * (1 + 1e-9)


def test_who_has_no_history_goes_by_sales(tmp_path: Path) -> None:
    dataset = dataset_of([[0, 1], [1], []], [[0], [0, 1], []], [[0, 1], [1, 2], [0, 2]], 3)
    recommender = fitted(dataset)
    summary = recommender.campaign(tmp_path / "c")
    assert summary.by_popularity == 1
    (row,) = [row for row in rows_of(tmp_path / "c") if row["user_id"] == "u2"]
    assert (row["bundle_id"], row["chance"], row["price"]) == ("b0", pytest.approx(2 / 3), None)
    assert summary.takings is None


# ── Files, and what happens when the work is cut off ─────────────────────────────────────────────


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class CutError(Exception):
    pass


def cut_after(users: int) -> Any:
    def progress(stage: str, done: float, of: float, note: str = "") -> None:
        if done >= users:
            raise CutError

    return progress


SETTINGS: dict[str, Any] = {"stock": True, "reserve": "expected", "budget": 60.0, "different_at_most": 20}


@pytest.mark.usefixtures("quick_choice")
@pytest.mark.parametrize(
    ("form", "whole"), [("parquet", True), ("parquet", False), ("csv", False), ("jsonl", False)]
)
def test_cut_anywhere_the_files_are_the_same(
    form: str, whole: bool, shop: Recommender, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:  # users in several blocks, with prices from a sample
        monkeypatch.setattr(plan, "VALUES_AT_A_TIME", 40 * 32)
    settings = {**SETTINGS, "format": form, "part_users": 64}
    uncut = shop.campaign(tmp_path / "whole", **settings)
    expected = contents(tmp_path / "whole")
    assert sorted(expected) == [
        "campaign.json",
        *(f"parts/part-0000{number}.{form}" for number in range(5)),
        "plan.json",
    ]
    for cut in (0, 65, 200):
        folder = tmp_path / str(cut)
        with pytest.raises(CutError):
            shop.campaign(folder, progress=cut_after(cut), **settings)
        assert not (folder / "campaign.json").exists()
        assert shop.campaign(folder, resume=True, **settings) == uncut
        assert contents(folder) == expected
    # Cut between a part's two files, and while one was being written.
    folder = tmp_path / "200"
    (folder / "campaign.json").unlink()
    with pytest.raises(CheckpointError, match="tallies"):
        shop.campaign(folder, resume=True, **settings)
    half = tmp_path / "half"
    with pytest.raises(CutError):
        shop.campaign(half, progress=cut_after(300), **settings)
    (half / "parts" / f"part-00003.{form}").unlink()  # its tally stays
    (half / "parts" / f".part-00003.{form}.1.tmp").write_bytes(b"half a pa")
    assert shop.campaign(half, resume=True, **settings) == uncut
    assert contents(half) == expected


@pytest.mark.usefixtures("quick_choice")
def test_resuming_what_is_done_changes_nothing(shop: Recommender, tmp_path: Path) -> None:
    first = shop.campaign(tmp_path / "c", **SETTINGS)
    before = contents(tmp_path / "c")
    again = shop.campaign(tmp_path / "c", resume=True, **SETTINGS)
    assert isinstance(again, CampaignSummary)
    assert again == first
    assert contents(tmp_path / "c") == before
    assert json.loads(before["campaign.json"]) == first.to_json()


@pytest.mark.usefixtures("quick_choice")
def test_all_formats_say_the_same(shop: Recommender, tmp_path: Path) -> None:
    shop.campaign(tmp_path / "p", part_users=100, **SETTINGS)
    shop.campaign(tmp_path / "j", part_users=100, format="jsonl", **SETTINGS)
    shop.campaign(tmp_path / "c", part_users=100, format="csv", **SETTINGS)
    table = ds.dataset(tmp_path / "p" / "parts", format="parquet").to_table()
    assert table.column_names == [
        *("user_id", "rank", "bundle_id", "chance", "value"),
        *("price", "to_pay", "owned_items", "missing_items", "sold_out"),
    ]
    assert table.to_pylist() == rows_of(tmp_path / "j")
    by_csv = ds.dataset(tmp_path / "c" / "parts", format="csv").to_table()
    assert by_csv.cast(table.schema).to_pylist() == table.to_pylist()
    assert len(table) > 0


def test_another_campaign_in_the_folder_is_refused(
    shop: Recommender, tiny: Recommender, tmp_path: Path
) -> None:
    folder = tmp_path / "c"
    shop.campaign(folder, per_user=2)
    before = contents(folder)
    with pytest.raises(CheckpointError, match="holds a campaign already: add --resume"):
        shop.campaign(folder, per_user=2)
    with pytest.raises(
        CheckpointError, match=r"another campaign: per_user was 2 and is 1\. Continue with the same settings"
    ):
        shop.campaign(folder, resume=True)
    with pytest.raises(CheckpointError, match="the users are not the same"):
        shop.campaign(folder, resume=True, per_user=2, users=["u0001"])
    with pytest.raises(CheckpointError, match="the model is not the same; the catalogue is not the same"):
        tiny.campaign(folder, resume=True, per_user=2)
    assert contents(folder) == before


def test_nothing_of_others_is_touched(shop: Recommender, tmp_path: Path) -> None:
    diary = tmp_path / "diary.txt"
    diary.write_text("dear diary")
    for resume in (False, True):
        with pytest.raises(CheckpointError, match=r"holds other files, such as diary\.txt"):
            shop.campaign(tmp_path, resume=resume)
        with pytest.raises(CheckpointError, match=r"diary\.txt is a file"):
            shop.campaign(diary, resume=resume)
    assert contents(tmp_path) == {"diary.txt": b"dear diary"}


def test_a_part_that_is_gone_or_damaged_is_told(shop: Recommender, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with pytest.raises(CutError):
        shop.campaign(folder, part_users=64, progress=cut_after(200))
    second = folder / "parts" / "part-00001.parquet"
    content = second.read_bytes()
    second.write_bytes(content[:50])
    with pytest.raises(CheckpointError, match=r"part-00001\.parquet is missing or damaged"):
        shop.campaign(folder, part_users=64, resume=True)
    second.unlink()
    with pytest.raises(CheckpointError, match=r"lacks part-00001\.parquet but holds later parts"):
        shop.campaign(folder, part_users=64, resume=True)


# ── Mistakes ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"per_user": 0}, "'per_user' is 0; it must be at least 1"),
        ({"shown_at_most": 2.5}, "'shown_at_most' is 2.5"),
        ({"different_at_most": 0}, "'different_at_most' is 0"),
        ({"budget": -1.0}, "'budget' is -1; it must be at least 0"),
        ({"budget": float("nan")}, "'budget' is nan"),
        ({"reserve": "some"}, "'reserve' is 'some'; it should be 'shown' or 'expected'"),
        ({"value": "profit"}, "'value' is 'profit'; it should be 'sales' or 'takings'"),
        ({"format": "xml"}, "'format' is 'xml'; it should be 'parquet', 'csv' or 'jsonl'"),
        ({"stok": True}, "unknown setting 'stok'; did you mean 'stock'"),
        ({"users": []}, "the list of users is empty"),
        ({"users": ["u0001", "u0001"]}, "'u0001' is in the list twice"),
        ({"users": "u0001"}, "give a list of users"),
        ({"budget": 0.01}, "the limits do not allow any of them"),
        ({"where": Filter(max_price=0.0)}, "no bundle of the shop passes the filters"),
    ],
    ids=str,
)
def test_mistakes_are_told_in_words(
    settings: dict[str, Any], message: str, tiny: Recommender, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny.campaign(tmp_path / "c", **settings)
    assert not (tmp_path / "c").exists()


def test_a_shop_in_which_everything_is_sold_out_is_told_so(tmp_path: Path) -> None:
    empty = fitted(with_stock(small_shop(users=14, items=12, bundles=8), [0] * 12))
    with pytest.raises(ConfigError, match=r"every bundle has a sold-out item.* sold_out='show' \(--sold-out"):
        empty.campaign(tmp_path / "c")
    with pytest.raises(ConfigError, match="every bundle that passes the filters has a sold-out item"):
        empty.campaign(tmp_path / "c", where=Filter(among=["b0001"]))
    assert empty.campaign(tmp_path / "c", sold_out="show", owned="show").shown == 14


def test_an_unknown_user_is_told(tiny: Recommender, tmp_path: Path) -> None:
    with pytest.raises(UnknownIdError, match="nobody"):
        tiny.campaign(tmp_path / "c", users=["nobody"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"stock": True}, "no item has a stock"),
        ({"value": "takings"}, "takings are not known.*no bundle has a price"),
        ({"budget": 10.0}, "no bundle has a discount"),
    ],
    ids=str,
)
def test_a_limit_needs_a_catalogue(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    recommender = fitted(dataset_of([[0, 1], [1]], [[0], [1]], [[0, 1], [1, 2], [0, 2]], 3))
    with pytest.raises(BundleMageError, match=message):
        recommender.campaign(tmp_path / "c", **settings)


def test_what_is_not_known_is_left_out_and_counted(tiny: Recommender, tmp_path: Path) -> None:
    data = tiny.dataset
    assert data.catalogue is not None
    items, bundles = (table.to_pylist() for table in (data.catalogue.items, data.catalogue.bundles))
    bundles[0]["price"] = None
    items[data.bundle_item[0].indices[0]]["price"] = None  # else the bundle costs the sum of its items
    tables = pa.Table.from_pylist(items, ITEM_SCHEMA), pa.Table.from_pylist(bundles, BUNDLE_SCHEMA)
    other = fitted(replace(data, catalogue=Catalogue(*tables)))
    summary = other.campaign(tmp_path / "c", value="takings", per_user=8)
    assert summary.left_out == 1
    assert data.bundles[0] not in {row["bundle_id"] for row in rows_of(tmp_path / "c")}
