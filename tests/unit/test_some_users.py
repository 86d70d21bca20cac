"""The protocol `some-users`, which leaves most pairs for training where users have few bundles."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundlemage import Recommender
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Split, SplitPlan
from bundlemage.sample.generate import sample_shop
from bundlemage.sample.kinds import dataset_of_kind
from tests.small_shop import QUICK, dataset_of, datasets, pairs_of, small_shop
from tests.unit.test_splits import case_pairs, generation_of, held_out, splits_equal

PAPER_KEYS = {
    ("sample", 0): "e43a4b5cf9ecb028a0843f91af6215b800e5d8baf482412293e5bd7d1cf85430",
    ("sample", 7): "1fb50e4aac7d8e4c9b9b5fba6872a9ab1d9dfd8ba4b33c348687277b484eeb92",
    ("small", 0): "fd7871364f9cc7d1bff9384a7c96f4a0193dceabed5d51ab1a4605760637f505",
    ("small", 7): "14587f79b00dde8b6450ce0081d320808f5cbb523332f642da84c19098f78d2e",
}
"""The keys of `paper` splits before there was a protocol `some-users`."""


def shop_with(counts: list[int], bundles: int = 40) -> BundleDataset:
    """A shop whose users have these numbers of bundles. Each bundle has two items of its own."""
    random = np.random.default_rng(3)
    owned = [random.choice(bundles, count, replace=False).tolist() for count in counts]
    contents = [[2 * number, 2 * number + 1] for number in range(bundles)]
    return dataset_of([[] for _ in counts], owned, contents, 2 * bundles)


def parts_of(split: Split) -> list[set[tuple[int, int]]]:
    """The pairs for training, validation, test and generation."""
    bundles = held_out(split)
    completed = {pair for pair in pairs_of(split.dataset.user_bundle) if pair[1] in bundles}
    return [
        pairs_of(split.train.user_bundle),
        case_pairs(split.validation),
        case_pairs(split.test),
        completed,
    ]


class TestPairs:
    @given(datasets(), st.integers(0, 3))
    @settings(max_examples=60, deadline=None)
    def test_every_pair_is_in_one_part(self, shop: BundleDataset, seed: int) -> None:
        split = SplitPlan("some-users", seed=seed).divide(shop)
        parts = parts_of(split)
        assert sum(map(len, parts)) == shop.user_bundle.nnz
        assert set().union(*parts) == pairs_of(shop.user_bundle)

    @given(datasets(), st.integers(0, 3))
    @settings(max_examples=60, deadline=None)
    def test_validation_and_test_have_other_users_and_few_pairs(self, shop: BundleDataset, seed: int) -> None:
        _, validation, test, _ = parts_of(SplitPlan("some-users", seed=seed).divide(shop))
        users = [[user for user, _ in part] for part in (validation, test)]
        assert all(len(each) == len(set(each)) for each in users)
        assert not set(users[0]) & set(users[1])
        # A whole number of pairs is the nearest one to 15%.
        assert all(len(each) <= 0.15 * shop.user_bundle.nnz + 0.5 for each in users)

    @pytest.mark.parametrize("kind", ["one-bundle-users", "best-sellers", "one-buyer"])
    def test_in_a_shop_of_few_bundles_each_it_leaves_most_pairs(self, kind: str) -> None:
        shop = dataset_of_kind(kind)
        split = SplitPlan().divide(shop)
        assert split.protocol == "some-users"
        train, validation, test, completed = map(len, parts_of(split))
        every = shop.user_bundle.nnz
        assert 0 < validation <= 0.15 * every
        assert 0 < test <= 0.15 * every
        assert train == every - validation - test - completed > 0.55 * every
        assert generation_of(split).users.size
        assert train > 1.2 * SplitPlan("paper").divide(shop).train.user_bundle.nnz

    def test_if_enough_users_have_two_bundles_every_tested_user_keeps_one(self) -> None:
        split = SplitPlan("some-users").divide(dataset_of_kind("one-bundle-users"))
        left = np.diff(split.train.user_bundle.indptr)
        for cases in (split.validation, split.test):
            assert cases is not None
            assert left[cases.users].min() >= 1

    def test_users_with_one_bundle_are_tested_if_there_are_no_others(self) -> None:
        split = SplitPlan("some-users").divide(shop_with([1] * 60))
        _, validation, test, _ = parts_of(split)
        assert len(validation) == len(test) > 0

    def test_the_seed_decides(self) -> None:
        shop = dataset_of_kind("one-bundle-users")
        one, same, other = (SplitPlan("some-users", seed=seed).divide(shop) for seed in (1, 1, 2))
        assert splits_equal(one, same)
        assert one.key == same.key != other.key
        assert not splits_equal(one, other)


class TestChoice:
    @pytest.mark.parametrize(
        ("counts", "expected"),
        [
            ([3] * 30, "some-users"),  # two of three would be held out
            ([4] * 300, "some-users"),  # half of them, and a tenth of the bundles
            ([5] * 300, "some-users"),
            ([6] * 300, "paper"),
            ([7] * 30, "paper"),
            ([1] * 25 + [12] * 2, "some-users"),
            ([1] * 5 + [12] * 5, "paper"),
            ([1], "some-users"),
        ],
    )
    def test_auto_avoids_paper_if_it_would_leave_less_than_half(
        self, counts: list[int], expected: str
    ) -> None:
        shop = shop_with(counts)
        split = SplitPlan().divide(shop)
        assert split.protocol == expected
        assert splits_equal(split, SplitPlan(expected).divide(shop))
        paper = SplitPlan("paper").divide(shop)
        assert paper.protocol == "paper"
        assert (paper.train.user_bundle.nnz < 0.5 * shop.user_bundle.nnz) == (expected == "some-users")

    def test_the_protocol_does_not_depend_on_the_seed(self) -> None:
        shop = shop_with([5] * 60)
        assert {SplitPlan(seed=seed).divide(shop).protocol for seed in range(8)} == {"some-users"}

    def test_the_sample_shop_has_paper(self) -> None:
        assert SplitPlan().divide(sample_shop().dataset).protocol == "paper"

    def test_a_loaded_model_divides_in_the_same_way(self, tmp_path: object) -> None:
        shop = dataset_of_kind("tiny")
        fitted = Recommender("popularity", device="cpu").fit(shop, progress=False)
        assert fitted.protocol == "some-users"
        saved = fitted.save(f"{tmp_path}/model")
        loaded = Recommender.load(saved, device="cpu")
        assert loaded.plan.divide(shop).key == SplitPlan("some-users").divide(shop).key
        assert fitted.held_out == loaded.held_out > 0

    def test_models_train_on_it(self) -> None:
        split = SplitPlan().divide(dataset_of_kind("tiny"))
        fitted = Recommender(**QUICK | {"epochs": 1}).fit(split, progress=False, calibrate=False)
        tested = fitted.evaluate(split)
        assert tested.protocol == "some-users"
        assert tested.matching is not None
        assert tested.generation is not None


@pytest.mark.parametrize(("name", "seed"), PAPER_KEYS)
def test_paper_divides_as_it_always_has(name: str, seed: int) -> None:
    shop = sample_shop().dataset if name == "sample" else small_shop()
    assert SplitPlan("paper", seed=seed, histories="as given").divide(shop).key == PAPER_KEYS[name, seed]
