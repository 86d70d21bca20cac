"""Generated shops of several kinds: each is what its name says, and its planted truth is real."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bundlemage import SplitPlan, read
from bundlemage.data.dataset import as_binary
from bundlemage.errors import ConfigError
from bundlemage.sample.generate import write_shop
from bundlemage.sample.kinds import GAMES, KINDS, ShopOfKind, shop_of_kind
from tests.cli.run import run

Floats = NDArray[np.float64]

FINGERPRINTS = {
    "one-buyer": "765607a1283b884bf49bb99c75d95388d10337e36315bd821b4ba849916dc785",
    "only-in-bundles": "a0b0eded2b79ff72ad4a3dd04bccd6a6ce28cbf79bdf15fe9e585820f69baa5e",
    "one-bundle-users": "b10c3059ba2ffdcd52367315106ad189be94d2bbf3e7aaa57dca5c25e4fdad51",
    "best-sellers": "f6613b08e5a9ea30822494c11effada1aa9d7d5436c667357339115a0a758f04",
    "tiny": "56c53a222bac90516c21f18cdcf1dbec12a0ac98893ce3a2cdef6813be1fcc22",
    "large-catalogue": "dad5873fab206bc4936f592be661e4421663ad973b2542b790d9290f99337810",
    "near-copies": "75351e18dc7ef14b70dbf97ae4b3a4c92f0eff053400802480353adf95b80581",
    "no-items": "9effc896109bdbc699289d871676221a1a389091ffefa331fd22e6a580fbd73f",
    "views": "8ab9bafda6707442d285a6fc23f87547f2ce37094331b3857bc7183df14c977b",
    "seasons": "62eab370e032dbb28ba27790020333ab19f0e4cea9e918de365e5251e60a9071",
}
"""Written down once. They change with the generator, never with the machine."""

shop_of = cache(shop_of_kind)
every_kind = pytest.mark.parametrize("kind", KINDS)


def sales(shop: ShopOfKind) -> NDArray[np.int64]:
    return np.bincount(shop.dataset.bought_bundles.indices, minlength=len(shop.dataset.bundles))


def bundles_of_users(shop: ShopOfKind) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.diff(shop.dataset.user_bundle.indptr).astype(np.int64)
    return counts


def contents_of_bundles_bought(shop: ShopOfKind) -> Any:
    return as_binary(shop.dataset.user_bundle @ shop.dataset.bundle_item)


def same(one: Any, other: Any) -> bool:
    return bool((one != other).nnz == 0)


@every_kind
class TestEveryKind:
    def test_every_user_has_a_bundle_and_every_bundle_items(self, kind: str) -> None:
        shop = shop_of(kind)
        assert bundles_of_users(shop).min() >= 1
        assert np.diff(shop.dataset.bundle_item.indptr).min() >= 3
        assert len(shop.dataset.users) <= 600
        assert len(shop.dataset.bundles) <= 1500

    def test_the_same_seed_gives_the_same_shop(self, kind: str) -> None:
        shop, again, other = shop_of(kind), shop_of_kind(kind), shop_of(kind, 1)
        assert again.dataset.fingerprint() == shop.dataset.fingerprint() == FINGERPRINTS[kind]
        assert again.dataset.catalogue == shop.dataset.catalogue
        np.testing.assert_array_equal(again.bundle_chance, shop.bundle_chance)
        np.testing.assert_array_equal(again.item_theme, shop.item_theme)
        assert other.dataset.fingerprint() != shop.dataset.fingerprint()
        assert other.dataset.catalogue != shop.dataset.catalogue

    def test_files_give_the_same_shop(self, kind: str, tmp_path: Path) -> None:
        data = shop_of(kind).dataset
        write_shop(data, tmp_path / "shop")
        found = read(tmp_path / "shop").dataset
        assert found.fingerprint() == data.fingerprint()
        assert found.catalogue == data.catalogue

    def test_it_has_a_location(self, kind: str) -> None:
        found = read(f"sample:{kind}").dataset
        assert found.fingerprint() == shop_of(kind).dataset.fingerprint()
        assert found.name == f"sample:{kind}"

    def test_titles_are_unique_and_bundles_cost_less_than_their_items(self, kind: str) -> None:
        data = shop_of(kind).dataset
        assert data.catalogue is not None
        for table in (data.catalogue.items, data.catalogue.bundles):
            assert len(set(table["title"].to_pylist())) == len(table)
        full = data.bundle_item @ np.array(data.catalogue.items["price"])
        discount = np.array(data.catalogue.bundles["discount"])
        np.testing.assert_allclose(
            np.array(data.catalogue.bundles["price"]), full * (1 - discount), atol=0.01
        )

    @pytest.mark.parametrize("seed", range(3))
    def test_the_chances_are_those_of_the_purchases(self, kind: str, seed: int) -> None:
        shop = shop_of(kind, seed)
        chance, bought = shop.bundle_chance, shop.dataset.bought_bundles.toarray() > 0
        assert chance.shape == bought.shape
        assert chance.min() >= 0
        assert chance.max() <= 1
        np.testing.assert_allclose(chance.sum(), bought.sum(), rtol=0.03)
        # Of the pairs with similar chances, as many were bought as the chances say.
        edges = np.quantile(chance[chance > 0], np.linspace(0, 1, 9)[1:-1])
        group = np.searchsorted(np.unique(edges), chance)
        expected, spread, found = (
            np.bincount(group.ravel(), values.ravel()) for values in (chance, chance * (1 - chance), bought)
        )
        assert np.all(np.abs(found - expected) <= 4 * np.sqrt(spread) + 1e-9)

    @pytest.mark.parametrize("seed", range(3))
    def test_a_bundle_sells_as_often_as_the_sum_of_its_chances(self, kind: str, seed: int) -> None:
        shop = shop_of(kind, seed)
        variance = (shop.bundle_chance * (1 - shop.bundle_chance)).sum(0)
        squares = (sales(shop) - shop.bundle_chance.sum(0)) ** 2
        assert squares.sum() <= 1.6 * variance.sum()
        if kind != "one-buyer":  # there the number of sales is certain
            assert squares.sum() >= 0.5 * variance.sum()

    @pytest.mark.parametrize("protocol", ["paper", "full"])
    def test_who_knows_the_chances_finds_held_out_bundles(self, kind: str, protocol: str) -> None:
        shop = shop_of(kind)
        split = SplitPlan(protocol).divide(shop.dataset)
        assert split.test is not None
        assert len(split.test) >= 10
        assert area_under_curve(shop.bundle_chance, split) > 0.7

    def test_items_of_a_theme_are_bundled_together(self, kind: str) -> None:
        shop = shop_of(kind)
        themes = shop.item_theme.max() + 1
        assert shop.item_theme.shape == (len(shop.dataset.items),)
        counts = shop.dataset.bundle_item @ np.eye(themes)[shop.item_theme]
        assert (counts.max(1) / counts.sum(1)).mean() > 0.8
        assert len(np.unique(counts.argmax(1))) == themes


def area_under_curve(score: Floats, split: Any) -> float:
    """How often a held-out bundle scores higher than another candidate; ties count half."""
    found = []
    owned = split.train.user_bundle.toarray() > 0
    for row, user in enumerate(split.test.users):
        right = split.test.positives[row].toarray()[0] > 0
        others = ~right & ~owned[user]
        if split.test.candidates is not None:
            others &= np.isin(np.arange(len(right)), split.test.candidates[row])
        better = score[user, right][:, None] - score[user, others]
        found.append(np.mean((better > 0) + 0.5 * (better == 0)))
    return float(np.mean(found))


class TestEachKind:
    def test_one_buyer(self) -> None:
        shop = shop_of("one-buyer")
        assert (sales(shop) == 1).all()
        np.testing.assert_allclose(shop.bundle_chance.sum(0), 1)
        counts = bundles_of_users(shop)
        assert set(counts) == {2, 3, 4}
        np.testing.assert_allclose(shop.bundle_chance.sum(1), counts)
        assert same(shop.dataset.user_item, contents_of_bundles_bought(shop))

    def test_one_buyer_overlap_with_a_users_other_bundles_finds_the_next(self) -> None:
        split = SplitPlan("full").divide(shop_of("one-buyer").dataset)
        contents = split.train.bundle_item
        shared = (split.train.user_bundle @ contents @ contents.T).toarray()
        assert area_under_curve(shared, split) > 0.75

    def test_only_in_bundles(self) -> None:
        shop = shop_of("only-in-bundles")
        assert same(shop.dataset.user_item, contents_of_bundles_bought(shop))
        assert np.median(sales(shop)) >= 4

    def test_one_bundle_users(self) -> None:
        shop = shop_of("one-bundle-users")
        assert np.mean(bundles_of_users(shop) == 1) == pytest.approx(0.8)
        assert len(shop.dataset.users) >= 3 * len(shop.dataset.bundles)

    def test_best_sellers(self) -> None:
        shop = shop_of("best-sellers")
        count = bundles_of_users(shop)[:, None]
        np.testing.assert_allclose(
            shop.bundle_chance / count, np.tile(shop.bundle_chance[0] / count[0], (len(count), 1))
        )
        first = np.sort(sales(shop))[::-1]
        assert first[:8].sum() > 0.5 * first.sum()
        assert difference_of_users(shop) < 1.1
        assert difference_of_users(shop_of("no-items")) > 2

    def test_tiny(self) -> None:
        assert shop_of("tiny").dataset.sizes == {"users": 50, "items": 60, "bundles": 40}

    def test_large_catalogue(self) -> None:
        sizes = shop_of("large-catalogue").dataset.sizes
        assert sizes == {"users": 150, "items": 3000, "bundles": 1500}

    def test_near_copies(self) -> None:
        shop = shop_of("near-copies")
        contents = shop.dataset.bundle_item
        shared = (contents @ contents.T).toarray()
        size = np.diag(shared)
        # The items that are in one of two bundles but not in the other.
        is_copy = (size[:, None] == size) & (size[:, None] - shared <= 2)
        groups = np.unique(is_copy, axis=0)
        assert (groups.sum(1) == 4).all()
        assert (groups.sum(0) == 1).all()
        assert size.min() >= 6
        assert not np.any((shared == size) & ~np.eye(len(size), dtype=bool))
        in_group = shop.dataset.user_bundle.toarray() @ groups.T
        assert 0.8 < np.mean(in_group[in_group > 0] == 1) < 1

    def test_no_items(self) -> None:
        assert shop_of("no-items").dataset.user_item.nnz == 0

    @pytest.mark.parametrize("kind", ["one-bundle-users", "tiny", "large-catalogue", "near-copies"])
    def test_a_users_items_tell_of_the_users_bundles(self, kind: str) -> None:
        shop = shop_of(kind)
        items = shop.dataset.user_item @ np.eye(shop.item_theme.max() + 1)[shop.item_theme]
        theme = bundle_theme(shop)
        bought = shop.dataset.user_bundle.toarray() > 0
        assert items[:, theme][bought].mean() > 2 * items[:, theme][~bought].mean()
        assert not same(shop.dataset.user_item, contents_of_bundles_bought(shop))


def bundle_theme(shop: ShopOfKind) -> NDArray[np.intp]:
    counts = shop.dataset.bundle_item @ np.eye(shop.item_theme.max() + 1)[shop.item_theme]
    theme: NDArray[np.intp] = np.asarray(counts).argmax(1)
    return theme


def difference_of_users(shop: ShopOfKind) -> float:
    """How much users differ in the themes of their bundles: 1 if all of them draw from the same shares."""
    theme = bundle_theme(shop)
    counts = shop.dataset.user_bundle.toarray() @ np.eye(theme.max() + 1)[theme]
    shares = counts / counts.sum(1, keepdims=True)
    by_chance = shares.mean(0) * (1 - shares.mean(0)) * np.mean(1 / counts.sum(1))
    return float(shares.var(0).sum() / by_chance.sum())


class TestCommand:
    def test_a_kind_and_a_seed(self, tmp_path: Path) -> None:
        said = run("data", "sample", "-o", tmp_path / "shop", "--kind", "tiny", "--seed", 3).stdout
        assert "50 users, 40 bundles, 60 items" in said
        assert read(tmp_path / "shop").dataset.fingerprint() == shop_of("tiny", 3).dataset.fingerprint()

    def test_games_is_the_default(self, tmp_path: Path) -> None:
        run("data", "sample", "-o", tmp_path / "games", "--kind", GAMES)
        found = [
            read(place).dataset.fingerprint() for place in (tmp_path / "games", "sample", "sample:games")
        ]
        assert found[0] == found[1] == found[2]

    def test_a_model_of_a_kind_is_evaluated_without_naming_the_data(self, tmp_path: Path) -> None:
        run("train", "sample:no-items", "-o", tmp_path / "model", "--model", "popularity")
        run("evaluate", tmp_path / "model")

    def test_help_describes_every_kind(self) -> None:
        said = run("data", "sample", "--help").stdout
        for kind in (GAMES, *KINDS):
            assert f"{kind}: " in said

    def test_an_unknown_kind(self, tmp_path: Path) -> None:
        said = run("data", "sample", "-o", tmp_path / "shop", "--kind", "one-byer", code=2).stderr
        for kind in (GAMES, *KINDS):
            assert kind in said
        assert "unknown kind of shop 'one-byer'" in said
        with pytest.raises(ConfigError, match="unknown kind of shop 'one-byer'"):
            read("sample:one-byer")

    @pytest.mark.parametrize("option", ["--users", "--items", "--bundles"])
    def test_only_games_has_sizes(self, option: str, tmp_path: Path) -> None:
        said = run("data", "sample", "-o", tmp_path / "shop", "--kind", "tiny", option, 9, code=2).stderr
        assert f"{option} is for the kind games" in said


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ConfigError, match="seed is -1; it must be at least 0"):
        shop_of_kind("tiny", -1)
