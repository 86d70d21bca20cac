"""Splits that go by time: the protocol `time`, and the last bundles of users in the other protocols."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bundlemage.data.chronology import Moments, in_words, microseconds
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.events import DAY, UNDATED, Events
from bundlemage.data.splits import ENOUGH_NEW, Split, SplitPlan, completion_cases
from bundlemage.errors import ConfigError
from bundlemage.sample.generate import sample_shop
from tests.dated_shop import at_random, dated_datasets, with_times
from tests.small_shop import dataset_of, pairs_of, row_of, small_shop
from tests.unit.test_splits import case_pairs, generation_of, splits_equal

Days = dict[tuple[int, int], int | None]


def days_of(shop: BundleDataset, matrix: str = "user_bundle") -> Days:
    """The day of each pair, None without a time."""
    events = shop.bundle_events if matrix == "user_bundle" else shop.item_events
    pairs = sorted(pairs_of(getattr(shop, matrix)))
    if events.at is None:
        return dict.fromkeys(pairs)
    days = [None if at == UNDATED else at // DAY for at in events.at.tolist()]
    return dict(zip(pairs, days, strict=True))


def bought_pairs(shop: BundleDataset) -> set[tuple[int, int]]:
    bought = shop.bundle_events.purchases
    pairs = sorted(pairs_of(shop.user_bundle))
    return {pair for number, pair in enumerate(pairs) if bought is None or bought[number]}


def divided(shop: BundleDataset, plan: SplitPlan) -> Split:
    """The split of a shop whose purchases have three or more different times. Others are refused."""
    at, bought = shop.bundle_events.at, shop.bundle_events.purchases
    different = np.empty(0) if at is None else np.unique(at if bought is None else at[bought])
    assume(np.count_nonzero(different != UNDATED) > 2)
    return plan.divide(shop)


class TestTheProtocol:
    @given(dated_datasets(), st.integers(0, 2), st.sampled_from(["as given", "without held-out", "auto"]))
    @settings(max_examples=60, deadline=None)
    def test_nothing_is_learned_from_after_the_moment(
        self, shop: BundleDataset, seed: int, histories: str
    ) -> None:
        split = divided(shop, SplitPlan("time", seed=seed, histories=histories))
        assert split.moments is not None
        before = split.moments.validate_from // DAY
        days, train = days_of(shop), pairs_of(split.train.user_bundle)
        earlier = {pair for pair, day in days.items() if day is None or day < before}
        assert train == earlier
        item_days = days_of(shop, "user_item")
        items = {pair for pair, day in item_days.items() if day is None or day < before}
        assert pairs_of(split.train.user_item) <= items
        if split.histories == "as given":
            assert pairs_of(split.train.user_item) == items
        for name in ("item_events", "bundle_events"):
            at = getattr(split.train, name).at
            assert at is None or (at < split.moments.validate_from).all()

    @given(dated_datasets())
    @settings(max_examples=60, deadline=None)
    def test_each_purchase_is_in_one_part(self, shop: BundleDataset) -> None:
        split = divided(shop, SplitPlan("time"))
        train, validation, test = (
            pairs_of(split.train.user_bundle),
            case_pairs(split.validation),
            case_pairs(split.test),
        )
        bought, days, moments = bought_pairs(shop), days_of(shop), split.moments
        assert moments is not None
        assert not train & (validation | test)
        assert not validation & test
        assert (train & bought) | validation | test == bought
        assert validation | test <= bought
        assert all(moments.validate_from <= days[pair] * DAY < moments.test_from for pair in validation)  # type: ignore[operator]
        assert all(days[pair] * DAY >= moments.test_from for pair in test)  # type: ignore[operator]

    @given(dated_datasets())
    @settings(max_examples=60, deadline=None)
    def test_completed_bundles_are_known_to_matching_but_not_learned_by_generation(
        self, shop: BundleDataset
    ) -> None:
        split = divided(shop, SplitPlan("time"))
        assert pairs_of(split.train.bundle_item) == pairs_of(shop.bundle_item)
        if split.generation is not None:
            known_as = split.generation.known_as
            assert known_as is not None
            for row, bundle in enumerate(known_as.tolist()):
                shown = row_of(split.generation.partial, row) | row_of(split.generation.positives, row)
                assert shown == row_of(shop.bundle_item, bundle)
            others = completion_cases(split.train, split.plan, split.histories, known_as)
            assert others is None or not others[0][known_as].any()

    def test_the_shares_are_those_of_the_plan(self) -> None:
        shop = at_random(sample_shop(users=300, items=300, bundles=120).dataset, 700)
        for test, validation in ((0.2, 0.1), (0.1, 0.3)):
            split = SplitPlan("time", test_share=test, validation_share=validation).divide(shop)
            count = shop.user_bundle.nnz
            assert len(case_pairs(split.test)) == pytest.approx(test * count, rel=0.05)
            assert len(case_pairs(split.validation)) == pytest.approx(validation * count, rel=0.05)

    def test_moments_can_be_named(self) -> None:
        shop = at_random(small_shop(), 100)
        plan = SplitPlan("time", test_from="1970-03-20", validate_from="1970-03-01T00:00+00:00")
        split = plan.divide(shop)
        assert split.moments == Moments(59 * DAY, 78 * DAY)
        assert str(split.moments) == "1970-03-01 and 1970-03-20"

    def test_equal_times_are_never_divided(self) -> None:
        shop = dataset_of([[]] * 6, [[0], [0], [0], [1], [1], [2]], [[0, 1], [2], [3]], 4)
        split = SplitPlan("time", test_share=0.5).divide(with_times(shop, [1, 1, 1, 2, 2, 3]))
        assert pairs_of(split.train.user_bundle) == {(0, 0), (1, 0), (2, 0)}
        assert case_pairs(split.validation) == {(3, 1), (4, 1)}
        assert case_pairs(split.test) == {(5, 2)}

    def test_pairs_without_a_time_are_learned(self) -> None:
        shop = dataset_of([[]] * 5, [[0], [0], [0], [1], [2]], [[0, 1], [2], [3]], 4)
        split = SplitPlan("time").divide(with_times(shop, [None, None, 1, 2, 3]))
        assert pairs_of(split.train.user_bundle) == {(0, 0), (1, 0), (2, 0)}

    def test_bundles_that_nobody_had_before_are_new(self) -> None:
        shop = dataset_of([[]] * 5, [[0], [0, 3], [1], [2], [2]], [[0, 1], [2], [3], [1], [2, 3]], 4)
        split = SplitPlan("time").divide(with_times(shop, [1, 1, 5, 2, 3, 4]))
        assert split.moments is not None
        sold = {bundle for _, bundle in pairs_of(split.train.user_bundle)}
        assert split.new_bundles is not None
        assert set(split.new_bundles.tolist()) == set(range(5)) - sold

    def test_weaker_events_are_no_cases(self) -> None:
        shop = with_times(dataset_of([[]] * 6, [[0]] * 6, [[0, 1]], 2), range(6))
        weights = np.array([1, 1, 1, 0.2, 1, 0.2], np.float32)
        shop = replace(shop, bundle_events=Events(shop.bundle_events.at, weights))
        split = SplitPlan("time", test_from="1970-01-05", validate_from="1970-01-03").divide(shop)
        assert case_pairs(split.validation) == {(2, 0)}
        assert case_pairs(split.test) == {(4, 0)}
        assert pairs_of(split.train.user_bundle) == {(0, 0), (1, 0)}

    def test_bundles_first_sold_in_the_test_are_completed(self) -> None:
        """Every user buys bundle 0 first. Each of the later bundles is bought on a day of its own."""
        bundles, items = 2 * ENOUGH_NEW, 120
        random = np.random.default_rng(0)
        contents = [random.choice(items, 4, replace=False).tolist() for _ in range(bundles)]
        shop = dataset_of([[]] * bundles, [[0, max(1, user)] for user in range(bundles)], contents, items)
        days = [day for user in range(bundles) for day in (0, user + 1)]
        split = SplitPlan("time", test_share=0.3).divide(with_times(shop, days))
        cases = generation_of(split)
        assert cases.known_as is not None
        first_sold = {bundle for _, bundle in case_pairs(split.test)}
        assert len(first_sold) >= ENOUGH_NEW
        assert set(cases.known_as.tolist()) == first_sold
        asked = {
            (user, int(cases.known_as[row])) for user, row in zip(cases.users, cases.bundles, strict=True)
        }
        assert asked == case_pairs(split.test)

    def test_the_same_plan_gives_the_same_split(self) -> None:
        shop = at_random(small_shop())
        assert splits_equal(SplitPlan("time").divide(shop), SplitPlan("time").divide(shop))
        one, other = (SplitPlan("time", seed=seed).divide(shop) for seed in (0, 1))
        assert case_pairs(one.test) == case_pairs(other.test)  # only generation draws

    def test_a_shop_without_times_is_told_which_column_to_add(self) -> None:
        for plan in (SplitPlan("time"), SplitPlan(order="time")):
            with pytest.raises(ConfigError, match="add a column 'at' with dates or times to user_bundle"):
                plan.divide(small_shop())

    def test_too_few_times_are_refused(self) -> None:
        shop = small_shop()
        for days in ([4] * shop.user_bundle.nnz, [4, 5] * (shop.user_bundle.nnz // 2)):
            days = days + [4] * (shop.user_bundle.nnz - len(days))
            with pytest.raises(ConfigError, match="different times, and the protocol 'time' needs three"):
                SplitPlan("time").divide(with_times(shop, days))

    def test_moments_without_purchases_are_refused(self) -> None:
        shop = at_random(small_shop(), 100)
        with pytest.raises(ConfigError, match="no purchase is left for test: the moments are"):
            SplitPlan("time", test_from="2024-01-01").divide(shop)


class TestPlans:
    def test_wrong_settings_are_refused(self) -> None:
        for wrong, message in (
            ({"order": "newest"}, "order is 'newest'; it can be: auto, random, time"),
            ({"protocol": "time", "test_share": 1.5}, "'test_share' is 1.5; it must be between 0 and 1"),
            ({"protocol": "time", "test_from": "May"}, "'May' is no date: write it as 2024-05-01"),
            ({"test_from": "2024-05-01"}, "'test_from' is for the protocol 'time', not 'auto'"),
            (
                {"protocol": "time", "test_from": "2024-05-01", "validate_from": "2024-06-01"},
                "validation begins on 2024-06-01, but it must begin before the test",
            ),
        ):
            with pytest.raises(ConfigError, match=message):
                SplitPlan(**wrong)

    @pytest.mark.parametrize("text", ["2024-05-01", "2024-05-01T12:30:00", "2024-05-01 14:30:00+02:00"])
    def test_dates_are_in_utc(self, text: str) -> None:
        expected = "2024-05-01" if len(text) == 10 else "2024-05-01 12:30:00"
        assert in_words(microseconds(text)) == expected


class TestTheLastBundles:
    @given(dated_datasets(), st.integers(0, 3))
    @settings(max_examples=60, deadline=None)
    def test_paper_tests_the_last_and_validates_the_one_before(self, shop: BundleDataset, seed: int) -> None:
        split = SplitPlan("paper", seed=seed).divide(shop)
        if shop.bundle_events.at is None:
            return
        days, bought = days_of(shop), bought_pairs(shop)
        held_out = {bundle for bundle, items in enumerate(split.train.bundle_item) if not items.nnz}
        held_out &= {bundle for bundle, items in enumerate(shop.bundle_item) if items.nnz}
        tested, validated = dict(case_pairs(split.test)), dict(case_pairs(split.validation))
        for user in range(len(shop.users)):
            own = {
                bundle: -(10**6) if days[user, bundle] is None else days[user, bundle]
                for other, bundle in bought
                if other == user and bundle not in held_out
            }
            assert (user in validated) == (len(own) > 0)
            assert (user in tested) == (len(own) > 1)
            in_order = sorted(own.values())  # type: ignore[type-var]
            if user in tested:
                assert own[tested[user]] == in_order[-1]
                assert own[validated[user]] == in_order[-2]

    @pytest.mark.parametrize("protocol", ["paper", "some-users", "full", "new-bundles-known"])
    def test_the_newest_are_tested(self, protocol: str) -> None:
        shop = at_random(sample_shop(users=300, items=300, bundles=60).dataset, 10_000)
        split = SplitPlan(protocol).divide(shop)
        days = days_of(shop)
        trained: dict[int, list[int]] = {}
        for user, bundle in pairs_of(split.train.user_bundle):
            trained.setdefault(user, []).append(days[user, bundle] or 0)
        for user, bundle in case_pairs(split.test):
            assert max(trained.get(user, [0])) <= (days[user, bundle] or 0)

    @pytest.mark.parametrize("protocol", ["paper", "some-users", "full", "new-bundles", "cold-bundles"])
    def test_without_times_or_at_random_nothing_changes(self, protocol: str) -> None:
        shop = small_shop(users=200)
        dated = at_random(shop)
        plain = SplitPlan(protocol, seed=3).divide(shop)
        at_random_order = SplitPlan(protocol, seed=3, order="random").divide(dated)
        assert at_random_order.train.user_bundle.nnz == plain.train.user_bundle.nnz
        assert case_pairs(at_random_order.test) == case_pairs(plain.test)
        assert case_pairs(at_random_order.validation) == case_pairs(plain.validation)

    def test_equal_times_have_a_random_order(self) -> None:
        shop = small_shop(users=200)
        same_day = with_times(shop, [7] * shop.user_bundle.nnz)
        splits = [SplitPlan("full", seed=seed).divide(same_day) for seed in (0, 1)]
        assert case_pairs(splits[0].test) != case_pairs(splits[1].test)
        assert case_pairs(splits[0].test) == case_pairs(SplitPlan("full").divide(shop).test)
