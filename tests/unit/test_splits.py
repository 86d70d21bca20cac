"""Splits against the paper's "Experimental process" and against what each protocol promises."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import (
    PAD,
    PROTOCOLS,
    GenerationCases,
    MatchingCases,
    Split,
    SplitPlan,
    positives_by_size,
)
from bundlemage.errors import ConfigError
from bundlemage.sample.generate import sample_shop
from tests.small_shop import dataset_of, datasets, pairs_of, row_of, rows_of, small_shop

WITHOUT_TIMES = [protocol for protocol in PROTOCOLS if protocol != "time"]
"""test_splits_by_time has the tests of `time`, which needs times."""
DIVIDING = [protocol for protocol in WITHOUT_TIMES if protocol != "none"]


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    """Enough bundles that 99 negatives can be drawn for everyone."""
    return sample_shop(users=150, items=600, bundles=160).dataset


@pytest.fixture(scope="module")
def paper(shop: BundleDataset) -> Split:
    return SplitPlan("paper", seed=3).divide(shop)


def held_out(split: Split) -> set[int]:
    """Bundles that training knows nothing of, though they have items and users."""
    with_items = {bundle for bundle, _ in pairs_of(split.dataset.bundle_item)}
    return with_items - {bundle for bundle, _ in pairs_of(split.train.bundle_item)}


def case_pairs(cases: MatchingCases | None) -> set[tuple[int, int]]:
    assert cases is not None
    return {
        (user, bundle)
        for user, row in zip(cases.users.tolist(), rows_of(cases.positives), strict=True)
        for bundle in row
    }


def generation_of(split: Split) -> GenerationCases:
    assert split.generation is not None
    return split.generation


def candidates_of(row: np.ndarray) -> list[int]:
    listed: list[int] = row[row != PAD].tolist()
    return listed


def splits_equal(one: Split, other: Split) -> bool:
    def parts(split: Split) -> list[object]:
        found: list[object] = [split.train.fingerprint()]
        for cases in (split.validation, split.test):
            found.append(None if cases is None else (cases.users.tolist(), sorted(case_pairs(cases))))
            if cases is not None and cases.candidates is not None:
                found.append(cases.candidates.tolist())
        made = split.generation
        if made is not None:
            found += [made.users.tolist(), made.bundles.tolist(), made.candidates.tolist()]
            found += [sorted(pairs_of(made.partial)), sorted(pairs_of(made.positives))]
        return found

    return parts(one) == parts(other)


class TestThePaper:
    def test_a_tenth_of_the_bundles_is_held_out(self, paper: Split) -> None:
        assert len(held_out(paper)) == 16
        assert generation_of(paper).partial.shape[0] == 16

    def test_training_has_neither_users_nor_items_of_a_held_out_bundle(self, paper: Split) -> None:
        hidden = held_out(paper)
        assert hidden
        assert not {bundle for _, bundle in pairs_of(paper.train.user_bundle)} & hidden
        assert not {bundle for bundle, _ in pairs_of(paper.train.bundle_item)} & hidden
        for cases in (paper.validation, paper.test):
            assert not {bundle for _, bundle in case_pairs(cases)} & hidden

    def test_the_other_bundles_keep_all_their_items_and_users_all_theirs(self, paper: Split) -> None:
        hidden = held_out(paper)
        kept = {pair for pair in pairs_of(paper.dataset.bundle_item) if pair[0] not in hidden}
        assert pairs_of(paper.train.bundle_item) == kept
        assert pairs_of(paper.train.user_item) == pairs_of(paper.dataset.user_item)

    def test_first_bundle_to_validation_second_to_test_the_rest_to_training(self, paper: Split) -> None:
        hidden = held_out(paper)
        validation, test = case_pairs(paper.validation), case_pairs(paper.test)
        train = pairs_of(paper.train.user_bundle)
        seen = set()
        for user in range(len(paper.dataset.users)):
            left = row_of(paper.dataset.user_bundle, user) - hidden
            counts = [sum(pair[0] == user for pair in part) for part in (validation, test, train)]
            assert counts == [min(len(left), 1), int(len(left) > 1), max(0, len(left) - 2)]
            seen.add(min(len(left), 3))
        assert seen == {0, 1, 2, 3}, "the shop has users of every kind, so nothing above is vacuous"

    def test_every_pair_is_in_one_part(self, paper: Split) -> None:
        made = generation_of(paper)
        order = sorted(held_out(paper))
        asked = {
            (user, order[row]) for user, row in zip(made.users.tolist(), made.bundles.tolist(), strict=True)
        }
        parts = [
            pairs_of(paper.train.user_bundle),
            case_pairs(paper.validation),
            case_pairs(paper.test),
            asked,
        ]
        assert sum(map(len, parts)) == paper.dataset.user_bundle.nnz
        assert set().union(*parts) == pairs_of(paper.dataset.user_bundle)

    def test_the_held_out_bundle_of_a_user_is_picked_at_random(self, shop: BundleDataset) -> None:
        users = np.diff(shop.user_bundle.indptr) > 3
        first = {
            (user, shop.user_bundle.indices[shop.user_bundle.indptr[user]]) for user in np.flatnonzero(users)
        }
        validation = case_pairs(SplitPlan("paper").divide(shop).validation)
        assert 0 < len(validation & first) < len(first) / 2

    def test_negatives_are_99_distinct_bundles_the_user_has_nowhere(self, paper: Split) -> None:
        hidden = held_out(paper)
        for cases in (paper.validation, paper.test):
            assert cases is not None
            assert cases.candidates is not None
            assert cases.candidates.shape == (len(cases), 100)
            for user, bundles, row in zip(
                cases.users.tolist(), rows_of(cases.positives), cases.candidates, strict=True
            ):
                listed = candidates_of(row)
                assert len(listed) == len(set(listed)) == 100
                assert len(bundles) == 1
                assert bundles <= set(listed)
                assert not (set(listed) - bundles) & row_of(paper.dataset.user_bundle, user)
                assert not set(listed) & hidden

    def test_every_bundle_may_become_a_negative(self, paper: Split) -> None:
        assert paper.test is not None
        assert paper.test.candidates is not None
        allowed = set(range(len(paper.dataset.bundles))) - held_out(paper)
        assert set(paper.test.candidates.ravel().tolist()) == allowed

    @pytest.mark.parametrize("asked", [1, 7])
    def test_as_many_negatives_as_the_plan_asks_for(self, shop: BundleDataset, asked: int) -> None:
        split = SplitPlan("paper", negatives=asked).divide(shop)
        assert split.test is not None
        assert split.test.candidates is not None
        assert split.test.candidates.shape[1] == asked + 1

    def test_too_few_bundles_are_padded(self) -> None:
        # Nobody has b5, everyone but u0 has just one of the first five.
        shop = dataset_of([[0]] * 5, [[0, 1, 2], [1], [2], [3], [4]], [[0]] * 6, item_count=3)
        split = SplitPlan("paper").divide(shop)
        assert split.validation is not None
        assert split.validation.candidates is not None
        for user, row in zip(split.validation.users, split.validation.candidates, strict=True):
            listed = candidates_of(row)
            assert row[len(listed) :].tolist() == [PAD] * (len(row) - len(listed))
            own = row_of(shop.user_bundle, user)
            not_owned = set(range(6)) - own - held_out(split)
            assert set(listed) - own == not_owned
        lengths = {len(candidates_of(row)) for row in split.validation.candidates}
        assert len(lengths) == 2, "u0 has fewer candidates than the others, so a row is padded"


class TestGeneration:
    def test_one_case_for_each_user_of_a_held_out_bundle(self, paper: Split) -> None:
        made = generation_of(paper)
        order = sorted(held_out(paper))
        cases = [
            (user, order[row]) for user, row in zip(made.users.tolist(), made.bundles.tolist(), strict=True)
        ]
        hidden = {pair for pair in pairs_of(paper.dataset.user_bundle) if pair[1] in held_out(paper)}
        assert len(cases) == len(set(cases))
        assert set(cases) == hidden

    @pytest.mark.parametrize("n", [1, 2, 5])
    def test_n_positives_against_99n_others(self, shop: BundleDataset, n: int) -> None:
        split = SplitPlan("paper", positives=n).divide(shop)
        made = generation_of(split)
        for row, bundle in enumerate(sorted(held_out(split))):
            whole = row_of(shop.bundle_item, bundle)
            partial, positives = row_of(made.partial, row), row_of(made.positives, row)
            assert partial | positives == whole
            assert not partial & positives
            assert len(positives) == min(n, len(whole))
            listed = candidates_of(made.candidates[row])
            assert len(listed) == len(set(listed)) == len(positives) + min(99 * n, 600 - len(whole))
            assert positives <= set(listed)
            assert set(listed) & whole == positives

    def test_n_is_that_of_the_data_unless_the_plan_says(self, paper: Split) -> None:
        made = generation_of(paper)
        assert {len(row) for row in rows_of(made.positives)} == {1}
        assert made.candidates.shape[1] == 100

    @pytest.mark.parametrize(("size", "n"), [(6, 1), (37, 5), (78, 10)])
    def test_n_follows_the_papers_mean_bundle_sizes(self, size: int, n: int) -> None:
        shop = dataset_of([[0]], [[0]], [range(size)], item_count=100)
        assert positives_by_size(shop) == n

    def test_bundles_without_items_do_not_lower_the_mean_size(self) -> None:
        shop = dataset_of([[0]], [[0]], [range(78), *([[]] * 20)], item_count=100)
        assert positives_by_size(shop) == 10

    def test_few_items_are_padded(self) -> None:
        bundles = [[number % 7, (number + 1 + number % 3) % 7] for number in range(10)]
        shop = dataset_of([[0]], [range(10)], bundles, item_count=7)
        made = generation_of(SplitPlan("paper").divide(shop))
        assert [len(candidates_of(row)) for row in made.candidates] == [6]

    @pytest.mark.parametrize("positives", [0, -1])
    def test_an_impossible_number_of_positives_is_refused(self, shop: BundleDataset, positives: int) -> None:
        with pytest.raises(ConfigError, match="positives"):
            SplitPlan("paper", positives=positives).divide(shop)

    def test_an_impossible_number_of_negatives_is_refused(self, shop: BundleDataset) -> None:
        with pytest.raises(ConfigError, match="negatives"):
            SplitPlan("paper", negatives=-1).divide(shop)

    def test_an_impossible_seed_is_refused(self, shop: BundleDataset) -> None:
        with pytest.raises(ConfigError, match="seed"):
            SplitPlan("paper", seed=-1).divide(shop)


class TestFullRanking:
    def test_parts_are_disjoint_and_nothing_is_lost(self, shop: BundleDataset) -> None:
        split = SplitPlan("full").divide(shop)
        parts = [pairs_of(split.train.user_bundle), case_pairs(split.validation), case_pairs(split.test)]
        assert sum(map(len, parts)) == shop.user_bundle.nnz
        assert set().union(*parts) == pairs_of(shop.user_bundle)

    def test_shares_are_seven_one_and_two_tenths(self) -> None:
        shop = dataset_of([[0]] * 9, [range(20)] * 9, [[0]] * 20, item_count=2)
        split = SplitPlan("full").divide(shop)
        for part, count in ((split.validation, 2), (split.test, 4)):
            assert part is not None
            assert part.users.tolist() == list(range(9))
            assert [len(row) for row in rows_of(part.positives)] == [count] * 9
        assert [len(row) for row in rows_of(split.train.user_bundle)] == [14] * 9

    def test_shares_of_a_whole_shop_come_near(self) -> None:
        split = SplitPlan("full").divide(sample_shop(bundles_per_user=15).dataset)
        total = split.dataset.user_bundle.nnz
        assert len(case_pairs(split.test)) / total == pytest.approx(0.2, abs=0.03)
        assert len(case_pairs(split.validation)) / total == pytest.approx(0.1, abs=0.03)

    def test_every_bundle_is_a_candidate_and_keeps_its_items(self, shop: BundleDataset) -> None:
        split = SplitPlan("full").divide(shop)
        assert split.test is not None
        assert split.test.candidates is None
        assert split.generation is None
        assert pairs_of(split.train.bundle_item) == pairs_of(shop.bundle_item)

    def test_who_has_few_bundles_keeps_them_for_training(self) -> None:
        split = SplitPlan("full").divide(
            dataset_of([[0]] * 3, [[0], [0, 1], [0, 1, 2]], [[0]] * 3, item_count=1)
        )
        assert [len(row) for row in rows_of(split.train.user_bundle)] == [1, 2, 1]


class TestColdBundles:
    def test_cold_bundles_are_known_by_their_items_alone(self, shop: BundleDataset) -> None:
        split = SplitPlan("cold-bundles").divide(shop)
        taken = {bundle for _, bundle in pairs_of(split.train.user_bundle)}
        for cases in (split.validation, split.test):
            assert cases is not None
            assert cases.candidates is not None
            assert len(cases) > 0
            cold = set(cases.candidates[0].tolist())
            assert len(cold) == 16
            assert not cold & taken
            assert {bundle for _, bundle in case_pairs(cases)} <= cold
            assert (cases.candidates == cases.candidates[0]).all()
        assert pairs_of(split.train.bundle_item) == pairs_of(shop.bundle_item)

    def test_validation_and_test_have_other_bundles(self, shop: BundleDataset) -> None:
        split = SplitPlan("cold-bundles").divide(shop)
        tune, test = ({bundle for _, bundle in case_pairs(part)} for part in (split.validation, split.test))
        assert not tune & test

    def test_nothing_is_lost(self, shop: BundleDataset) -> None:
        split = SplitPlan("cold-bundles").divide(shop)
        parts = [pairs_of(split.train.user_bundle), case_pairs(split.validation), case_pairs(split.test)]
        assert sum(map(len, parts)) == shop.user_bundle.nnz
        assert set().union(*parts) == pairs_of(shop.user_bundle)


class TestPlans:
    @pytest.mark.parametrize("protocol", DIVIDING)
    def test_same_seed_same_split_other_seed_another(self, shop: BundleDataset, protocol: str) -> None:
        first, again, other = (SplitPlan(protocol, seed=seed).divide(shop) for seed in (5, 5, 6))
        assert splits_equal(first, again)
        assert not splits_equal(first, other)
        assert (first.plan.seed, other.plan.seed) == (5, 6)

    def test_none_trains_on_everything(self, shop: BundleDataset) -> None:
        split = SplitPlan("none").divide(shop)
        assert split.train.fingerprint() == shop.fingerprint()
        assert (split.validation, split.test, split.generation) == (None, None, None)

    def test_an_unknown_protocol_names_the_known_ones(self, shop: BundleDataset) -> None:
        with pytest.raises(ConfigError, match="unknown protocol 'papers'") as error:
            SplitPlan("papers").divide(shop)
        for protocol in PROTOCOLS:
            assert protocol in str(error.value)

    def test_auto_takes_the_split_of_the_files_and_else_the_papers(self, shop: BundleDataset) -> None:
        ready = replace(SplitPlan("full").divide(shop), protocol="bgcn")
        assert SplitPlan("auto").divide(shop, ready) is ready
        assert SplitPlan("auto").divide(shop).protocol == "paper"

    def test_a_named_protocol_overrules_the_files(self, shop: BundleDataset) -> None:
        ready = replace(SplitPlan("full").divide(shop), protocol="bgcn")
        assert SplitPlan("paper").divide(shop, ready).protocol == "paper"

    def test_the_dataset_is_untouched(self) -> None:
        shop = small_shop()
        before = shop.fingerprint()
        for protocol in WITHOUT_TIMES:
            assert SplitPlan(protocol).divide(shop).dataset.fingerprint() == before


def check_cases(split: Split, cases: MatchingCases | None) -> None:
    if cases is None:
        return
    assert cases.positives.shape == (len(cases), len(split.dataset.bundles))
    known = pairs_of(split.dataset.user_bundle)
    assert case_pairs(cases) <= known - pairs_of(split.train.user_bundle)
    for row, bundles in enumerate(rows_of(cases.positives)):
        assert bundles
        if cases.candidates is not None:
            assert bundles <= set(candidates_of(cases.candidates[row]))


class TestAnyData:
    @pytest.mark.parametrize("protocol", WITHOUT_TIMES)
    @given(shop=datasets(), seed=st.integers(0, 3), n=st.sampled_from([None, 1, 5]))
    @settings(max_examples=60, deadline=None)
    def test_any_small_shop_is_divided_soundly(
        self, protocol: str, shop: BundleDataset, seed: int, n: int | None
    ) -> None:
        split = SplitPlan(protocol, seed=seed, positives=n).divide(shop)
        assert pairs_of(split.train.user_bundle) <= pairs_of(shop.user_bundle)
        assert pairs_of(split.train.bundle_item) <= pairs_of(shop.bundle_item)
        assert pairs_of(split.train.user_item) <= pairs_of(shop.user_item)
        check_cases(split, split.validation)
        check_cases(split, split.test)
        if split.generation is not None:
            made = split.generation
            assert len(made.users) == len(made.bundles) > 0
            for row, positives in enumerate(rows_of(made.positives)):
                assert positives
                assert positives <= set(candidates_of(made.candidates[row]))
                assert not row_of(made.partial, row) & set(candidates_of(made.candidates[row]))

    @pytest.mark.parametrize("protocol", WITHOUT_TIMES)
    @pytest.mark.parametrize(
        "shop",
        [
            dataset_of([[0]], [[0]], [[0]], item_count=1),
            dataset_of([[0], []], [[], []], [[0], []], item_count=1),
            dataset_of([[], []], [[0], [0, 1]], [[], []], item_count=1),
            dataset_of([[0]], [[]], [], item_count=1),
            dataset_of([], [], [[0]], item_count=1),
        ],
        ids=["one-of-each", "no-bundles-taken", "empty-bundles", "no-bundles", "no-users"],
    )
    def test_degenerate_shops_are_divided(self, shop: BundleDataset, protocol: str) -> None:
        split = SplitPlan(protocol).divide(shop)
        assert pairs_of(split.train.user_bundle) <= pairs_of(shop.user_bundle)
        for cases in (split.validation, split.test):
            check_cases(split, cases)


class TestNewBundles:
    def test_both_protocols_learn_from_the_same_and_ask_of_new_or_of_known(self, shop: BundleDataset) -> None:
        new, known = (SplitPlan(name).divide(shop) for name in ("new-bundles", "new-bundles-known"))
        assert (new.protocol, known.protocol) == ("new-bundles", "new-bundles-known")
        assert new.train.fingerprint() == known.train.fingerprint()
        assert new.new_bundles is not None
        assert known.new_bundles is not None
        cold = set(new.new_bundles.tolist())
        assert cold == set(known.new_bundles.tolist())
        assert len(cold) == 2 * (len(shop.bundles) // 10)
        sold = set(new.train.user_bundle.indices.tolist())
        assert not sold & cold
        assert (new.train.bundle_item != shop.bundle_item).nnz == 0
        assert new.test is not None
        assert known.test is not None
        assert new.test.candidates is None
        assert set(new.test.positives.indices.tolist()) < cold
        assert not set(known.test.positives.indices.tolist()) & cold

    def test_whoever_has_three_known_bundles_is_asked_about_one(self, shop: BundleDataset) -> None:
        split = SplitPlan("new-bundles-known").divide(shop)
        assert split.test is not None
        assert split.new_bundles is not None
        cold = set(split.new_bundles.tolist())
        have = {
            user: {bundle for owner, bundle in pairs_of(shop.user_bundle) if owner == user} - cold
            for user in range(len(shop.users))
        }
        asked = dict(zip(split.test.users.tolist(), rows_of(split.test.positives), strict=True))
        learned = rows_of(split.train.user_bundle)
        assert set(asked) == {user for user, bundles in have.items() if len(bundles) > 2}
        for user, bundles in have.items():
            wanted = asked.get(user, set())
            assert len(wanted) == (len(bundles) > 2)
            assert learned[user] == bundles - wanted

    def test_validation_ranks_new_bundles_among_themselves(self, shop: BundleDataset) -> None:
        split, cold = SplitPlan("new-bundles").divide(shop), SplitPlan("cold-bundles").divide(shop)
        assert split.validation is not None
        assert cold.validation is not None
        assert split.validation.fingerprint() == cold.validation.fingerprint()
