"""The sample shop: one shop a seed, the sizes asked for, and planted structure that can be found again."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bundlemage.data.statistics import preference_similarity
from bundlemage.errors import ConfigError
from bundlemage.sample.generate import GENRE_PACK, SampleShop, sample_shop

Floats = NDArray[np.float64]
CHANCE = 1 / np.log2(np.arange(2, 7)) @ np.ones(5) / 100  # nDCG@5 of one positive among 100, at random


@pytest.fixture(scope="module")
def shop() -> SampleShop:
    return sample_shop()


def check_invariants(shop: SampleShop, pairs: tuple[int, int, int]) -> None:
    data = shop.dataset
    assert (data.user_item.nnz, data.user_bundle.nnz, data.bundle_item.nnz) == pairs
    assert np.diff(data.user_item.indptr).min() >= 1
    assert np.diff(data.bundle_item.indptr).min() >= 2
    assert data.catalogue is not None
    for titles in (data.catalogue.items["title"].to_pylist(), data.catalogue.bundles["title"].to_pylist()):
        assert None not in titles
        assert len(set(titles)) == len(titles)
    for taste in (shop.tastes.user_item_taste, shop.tastes.user_bundle_taste):
        np.testing.assert_allclose(taste.sum(axis=1), 1)


class TestSizes:
    def test_default(self, shop: SampleShop) -> None:
        check_invariants(shop, pairs=(16_000, 4_800, 1_680))
        assert shop.dataset.sizes == {"users": 800, "items": 600, "bundles": 240}
        assert shop.dataset.name == "sample"

    def test_ids_sort_as_their_positions(self, shop: SampleShop) -> None:
        assert (shop.dataset.users[0], shop.dataset.items[599]) == ("u0001", "g0600")
        for vocabulary in (shop.dataset.users, shop.dataset.items, shop.dataset.bundles):
            assert list(vocabulary) == sorted(vocabulary)

    def test_a_few_users_have_no_bundle_or_one(self, shop: SampleShop) -> None:
        counts = np.diff(shop.dataset.user_bundle.indptr)
        assert 0 < (counts == 0).mean() < 0.1
        assert 0 < (counts == 1).mean() < 0.1

    @settings(max_examples=60, deadline=None)
    @given(
        users=st.integers(1, 40),
        items=st.integers(2, 60),
        bundles=st.integers(1, 20),
        shares=st.tuples(*[st.floats(0, 1)] * 3),
        seed=st.integers(0, 2**63),
    )
    def test_any_possible_size(
        self, users: int, items: int, bundles: int, shares: tuple[float, float, float], seed: int
    ) -> None:
        """Down to one user and two items, up to users who own everything."""
        averages = {
            "items_per_user": 1 + shares[0] * (items - 1),
            "bundles_per_user": shares[1] * bundles,
            "items_per_bundle": 2 + shares[2] * (items - 2),
        }
        shop = sample_shop(users, items, bundles, **averages, seed=seed)
        rows = (users, users, bundles)
        pairs = [round(count * mean) for count, mean in zip(rows, averages.values(), strict=True)]
        check_invariants(shop, (pairs[0], pairs[1], pairs[2]))

    def test_tiny_with_the_default_averages(self) -> None:
        check_invariants(sample_shop(20, 30, 8), pairs=(400, 120, 56))

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"users": 0}, "users is 0; it must be at least 1"),
            ({"items": 1}, "items is 1; it must be at least 2"),
            ({"bundles": 0}, "bundles is 0; it must be at least 1"),
            ({"items": 15}, "items_per_user is 20.0; it must be between 1 and 15"),
            ({"items_per_user": 0.5}, "every user has an item"),
            ({"bundles_per_user": 241}, "there are 240 bundles"),
            ({"bundles_per_user": float("nan")}, "bundles_per_user is nan"),
            ({"items_per_bundle": 1.5}, "a bundle has two items or more"),
            ({"seed": -1}, "seed is -1; it must be at least 0"),
        ],
    )
    def test_impossible_sizes_are_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match="sample shop: ") as caught:
            sample_shop(**settings)
        assert message in str(caught.value)

    @pytest.mark.slow
    def test_netease(self) -> None:
        shop = sample_shop(
            18_528,
            123_628,
            22_864,
            items_per_user=1_128_065 / 18_528,
            bundles_per_user=302_303 / 18_528,
            items_per_bundle=1_778_838 / 22_864,
        )
        assert shop.dataset.sizes == {"users": 18_528, "items": 123_628, "bundles": 22_864}
        check_invariants(shop, pairs=(1_128_065, 302_303, 1_778_838))


class TestDeterminism:
    def test_same_seed_same_shop(self, shop: SampleShop) -> None:
        again = sample_shop()
        assert again.dataset.fingerprint() == shop.dataset.fingerprint()
        assert again.dataset.catalogue == shop.dataset.catalogue
        np.testing.assert_array_equal(again.tastes.user_bundle_taste, shop.tastes.user_bundle_taste)

    def test_another_seed_another_shop(self, shop: SampleShop) -> None:
        other = sample_shop(seed=1).dataset
        assert other.fingerprint() != shop.dataset.fingerprint()
        assert other.catalogue != shop.dataset.catalogue

    def test_another_process_same_shop(self, shop: SampleShop) -> None:
        program = "import bundlemage; print(bundlemage.sample_shop().dataset.fingerprint())"
        environment = os.environ | {"PYTHONHASHSEED": "12345"}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        assert run.stdout.strip() == shop.dataset.fingerprint()

    def test_another_platform_same_shop(self, shop: SampleShop) -> None:
        # Written down once. It changes with the generator, never with the machine.
        expected = "eed1485fb832e3aad8dcdd0b473418a420e4b45a771f7a93e7ac640be176d424"
        assert shop.dataset.fingerprint() == expected


class TestPlantedStructure:
    def test_users_buy_what_they_like(self, shop: SampleShop) -> None:
        bought = genre_shares(shop.dataset.user_item, shop.tastes.item_genre)
        assert np.corrcoef(bought.ravel(), shop.tastes.user_item_taste.ravel())[0, 1] > 0.9

    def test_bundles_follow_bundle_taste_rather_than_item_taste(self, shop: SampleShop) -> None:
        some = np.diff(shop.dataset.user_bundle.indptr) >= 2
        bought = genre_shares(shop.dataset.user_bundle, shop.tastes.bundle_genre)[some].ravel()
        right, wrong = shop.tastes.user_bundle_taste[some].ravel(), shop.tastes.user_item_taste[some].ravel()
        assert np.corrcoef(bought, right)[0, 1] > 0.75
        assert np.corrcoef(bought, wrong)[0, 1] < 0.6

    def test_bundles_gather_a_line_or_a_genre(self, shop: SampleShop) -> None:
        tastes = shop.tastes
        pairs = shop.dataset.bundle_item.tocoo()
        pack = (tastes.bundle_line == GENRE_PACK)[pairs.row]
        same_line = tastes.item_line[pairs.col] == tastes.bundle_line[pairs.row]
        same_genre = tastes.item_genre[pairs.col] == tastes.bundle_genre[pairs.row]
        assert same_line[~pack].mean() > 0.7
        assert same_genre.mean() > 0.85
        assert 0.1 < pack.mean() < 0.3

    def test_tastes_for_items_and_bundles_differ(self, shop: SampleShop) -> None:
        """As in the paper's figure: plenty of users whose items and bundles have little in common."""
        similarity = preference_similarity(shop.dataset)
        same_taste = (shop.tastes.user_item_taste == shop.tastes.user_bundle_taste).all(axis=1)
        assert 0.25 < np.mean(similarity < 0.5) < 0.6
        assert np.nanmedian(similarity[same_taste]) > 0.2 + np.nanmedian(similarity[~same_taste])

    def test_the_most_popular_tenth_has_twice_its_share(self, shop: SampleShop) -> None:
        for matrix in (shop.dataset.user_item, shop.dataset.user_bundle):
            buyers = np.sort(np.bincount(matrix.indices, minlength=matrix.shape[1]))[::-1]
            assert buyers[: len(buyers) // 10].sum() > 0.2 * buyers.sum()


class TestSignal:
    """Who knows the planted truth must do far better than popularity, and popularity better than chance."""

    @pytest.mark.parametrize("seed", range(3))
    def test_matching(self, seed: int) -> None:
        shop = sample_shop(seed=seed)
        users, candidates, popularity = leave_one_out(shop, np.random.default_rng(seed))
        taste = shop.tastes.user_bundle_taste[users[:, None], shop.tastes.bundle_genre[candidates]]
        popular = ndcg_at_5(popularity[candidates])
        oracle = ndcg_at_5(taste * (1 + popularity[candidates]))
        assert popular > 2 * CHANCE
        assert oracle > 2.5 * popular

    @pytest.mark.parametrize("seed", range(3))
    def test_generation(self, seed: int) -> None:
        shop = sample_shop(seed=seed)
        partial, candidates = leave_one_item_out(shop, np.random.default_rng(seed))
        popularity = np.bincount(shop.dataset.user_item.indices, minlength=600)[candidates]
        line, genre = shop.tastes.item_line, shop.tastes.item_genre
        fit = [
            np.mean((line[c] == line[p][:, None]) + 0.1 * (genre[c] == genre[p][:, None]), axis=0)
            for p, c in zip(partial, candidates, strict=True)
        ]
        popular = ndcg_at_5(popularity)
        oracle = ndcg_at_5((np.array(fit) + 0.001) * (1 + popularity))
        assert popular > 2 * CHANCE
        assert oracle > 3 * popular


class TestCatalogue:
    def test_items(self, shop: SampleShop) -> None:
        assert shop.dataset.catalogue is not None
        items = shop.dataset.catalogue.items.to_pydict()
        assert min(items["price"]) > 0
        assert 0 < items["stock"].count(0) < 100
        assert min(items["stock"]) == 0
        for tags, genre, line in zip(
            items["tags"], shop.tastes.item_genre, shop.tastes.item_line, strict=True
        ):
            assert tags[0] == shop.tastes.genres[genre]
            assert tags[-1] == shop.tastes.lines[line]
            assert len(set(tags)) == len(tags) == 5

    def test_bundles_cost_their_games_less_the_discount(self, shop: SampleShop) -> None:
        assert shop.dataset.catalogue is not None
        prices = np.array(shop.dataset.catalogue.items["price"])
        bundles = shop.dataset.catalogue.bundles
        discount = np.array(bundles["discount"])
        assert (discount > 0).all()
        assert (discount < 1).all()
        full = shop.dataset.bundle_item.astype(np.float64) @ prices
        np.testing.assert_allclose(np.array(bundles["price"]), full * (1 - discount), atol=0.0101)


def genre_shares(matrix: Any, genre: NDArray[np.int64]) -> Floats:
    """[users, genres]: which part of what each user bought is of each genre."""
    counts = matrix.astype(np.float64) @ np.eye(genre.max() + 1)[genre]
    shares: Floats = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    return shares


def leave_one_out(shop: SampleShop, random: np.random.Generator) -> tuple[Any, Any, Any]:
    """Users, their candidates with the held-out bundle first, and how popular bundles are without those."""
    user_bundle = shop.dataset.user_bundle
    users = np.flatnonzero(np.diff(user_bundle.indptr) >= 2)
    candidates = np.array([one_and_99(random, user_bundle[int(user)].indices, 240) for user in users])
    popularity = np.bincount(user_bundle.indices, minlength=240)
    return users, candidates, popularity - np.bincount(candidates[:, 0], minlength=240)


def leave_one_item_out(shop: SampleShop, random: np.random.Generator) -> tuple[list[Any], Any]:
    """What is left of each bundle, and its candidates with the item taken out first."""
    bundles = [shop.dataset.bundle_item[bundle].indices for bundle in range(240)]
    candidates = np.array([one_and_99(random, bundle, 600) for bundle in bundles])
    return [np.setdiff1d(b, c[:1]) for b, c in zip(bundles, candidates, strict=True)], candidates


def one_and_99(random: np.random.Generator, owned: Any, size: int) -> NDArray[np.int64]:
    others = np.setdiff1d(np.arange(size), owned)
    candidates: NDArray[np.int64] = np.concatenate(
        [random.choice(owned, 1), random.choice(others, 99, replace=False)]
    )
    return candidates


def ndcg_at_5(scores: Any) -> float:
    """The mean over rows where the first candidate is the right one; ties share their ranks fairly."""
    better = (scores[:, 1:] > scores[:, :1]).sum(axis=1)
    equal = (scores[:, 1:] == scores[:, :1]).sum(axis=1)
    gain = np.concatenate([1 / np.log2(np.arange(2, 7)), np.zeros(scores.shape[1])])
    return float(np.mean([gain[b : b + e + 1].mean() for b, e in zip(better, equal, strict=True)]))
