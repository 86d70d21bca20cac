"""Held-out bundles that users' items give away: how many there are, and histories without such items."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.leakage import Leakage, leakage, leakage_of, told
from bundlemage.data.splits import PROTOCOLS, GenerationCases, Split, SplitPlan, completion_cases
from bundlemage.errors import ConfigError
from bundlemage.evaluation import GenerationEvaluator, case_metrics, means
from bundlemage.models.base import Completer, Histories, Interactions, Sizes
from bundlemage.models.baselines.rules import OwnedShare
from bundlemage.models.config import ModelConfig, parse_config
from bundlemage.models.ragged import Ragged
from bundlemage.readers.load import read
from bundlemage.recipe import Recipe
from bundlemage.recommender import Recommender
from bundlemage.sample.generate import sample_shop
from bundlemage.sample.kinds import dataset_of_kind
from tests.forged import changed, forge
from tests.leaking_shop import leaking_shop
from tests.real_data import real_data
from tests.small_shop import dataset_of, datasets, pairs_of, row_of, rows_of, small_shop

DIVIDING = [protocol for protocol in PROTOCOLS if protocol not in ("auto", "none", "time")]
LEFT_OUT = "without held-out"


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return leaking_shop()


def held_out_pairs(split: Split) -> list[tuple[int, set[int]]]:
    """Each held-out pair: the user, and the items of the bundle."""
    contents = rows_of(split.dataset.bundle_item)
    pairs = pairs_of(split.dataset.user_bundle) - pairs_of(split.train.user_bundle)
    return [(user, contents[bundle]) for user, bundle in sorted(pairs)]


def asked_pairs(split: Split) -> list[tuple[int, set[int]]]:
    """The user of each case, and the items of each bundle that is a right answer."""
    contents, pairs = rows_of(split.dataset.bundle_item), []
    for cases in (split.validation, split.test):
        if cases is not None:
            for user, row in zip(cases.users.tolist(), rows_of(cases.positives), strict=True):
                pairs += [(user, contents[bundle]) for bundle in row]
    if split.generation is not None:
        shown, hidden = rows_of(split.generation.partial), rows_of(split.generation.positives)
        for user, row in zip(split.generation.users.tolist(), split.generation.bundles.tolist(), strict=True):
            pairs.append((user, shown[row] | hidden[row]))
    return pairs


def training_items(split: Split) -> list[set[int]]:
    """The items in each user's training bundles."""
    contents = rows_of(split.train.bundle_item)
    return [set().union(*(contents[bundle] for bundle in row)) for row in rows_of(split.train.user_bundle)]


class TestTheShare:
    def test_pairs_whose_items_the_user_has_are_counted(self) -> None:
        shop = dataset_of([{0, 1, 2}, {0}, set()], [[0, 1], [0], [1, 2]], [{0, 1}, {1, 3}, set()], 4)
        found = leakage(shop.user_bundle, shop)
        assert (found.pairs, found.leaking) == (5, 1)
        assert found.share == pytest.approx(1 / 5)

    def test_a_shop_without_pairs_has_none(self) -> None:
        shop = dataset_of([set()], [[]], [{0}], 1)
        assert leakage(shop.user_bundle, shop).share == 0.0

    @pytest.mark.parametrize("protocol", DIVIDING)
    def test_held_out_pairs_of_every_protocol_are_counted(self, shop: BundleDataset, protocol: str) -> None:
        split = SplitPlan(protocol, histories="as given").divide(shop)
        count = len(held_out_pairs(split))
        assert (split.leakage.pairs, split.leakage.leaking) == (count, count)
        assert split.leakage.share == 1.0

    def test_nothing_is_held_out_with_none(self, shop: BundleDataset) -> None:
        split = SplitPlan("none", histories=LEFT_OUT).divide(shop)
        assert (split.leakage, split.histories) == (Leakage(0, 0), "as given")
        assert split.train is shop

    def test_a_split_tells_the_share_before_items_were_removed(self, shop: BundleDataset) -> None:
        split = SplitPlan().divide(shop)
        assert (split.histories, split.leakage.share) == (LEFT_OUT, 1.0)

    @pytest.mark.parametrize(
        ("leaking", "histories", "words"),
        [
            (30, "as given", ["Of 100 held-out bundles, 3 have", "(0 for bundles not bought)."]),
            (500, LEFT_OUT, ["50 have", "sees the answer", "without the items of held-out"]),
            (500, "as given", ["50 have", "as given", "--histories without-held-out"]),
            (
                1000,
                None,
                ["Of 100 bought bundles, 100 have", "Where this is so for the held-out pairs, train"],
            ),
        ],
    )
    def test_it_is_told_in_words(self, leaking: int, histories: str | None, words: list[str]) -> None:
        text = told(Leakage(1000, leaking, 10, 0), histories)
        for word in words:
            assert word in text
        assert ("answer" in text) == (leaking > 30)


def clean_shop(seed: int, users: int = 300, owned_items: int = 30) -> BundleDataset:
    """A shop of few items, of which every user has many. Items and bundles have nothing to do with each
    other."""
    random = np.random.default_rng(seed)
    contents = [random.choice(60, 2, replace=False).tolist() for _ in range(150)]
    owned = [random.choice(150, 5, replace=False).tolist() for _ in range(users)]
    items = [random.choice(60, owned_items, replace=False).tolist() for _ in range(users)]
    return dataset_of(items, owned, contents, 60)


class TestWhatChanceGives:
    @given(dataset=datasets())
    @settings(max_examples=40, deadline=None)
    def test_of_few_pairs_all_others_are_counted(self, dataset: BundleDataset) -> None:
        pairs, contents = sorted(pairs_of(dataset.user_bundle)), rows_of(dataset.bundle_item)
        owned, items = rows_of(dataset.user_bundle), rows_of(dataset.user_item)
        others = [(user, bundle) for user, _ in pairs for _, bundle in pairs if bundle not in owned[user]]
        leaking = [contents[bundle] for user, bundle in others if contents[bundle] <= items[user]]
        found = leakage(dataset.user_bundle, dataset)
        assert (found.others, found.others_leaking) == (len(others), sum(map(bool, leaking)))

    @pytest.mark.parametrize("seed", range(3))
    def test_a_clean_shop_with_many_items_does_not_leak(self, seed: int) -> None:
        split = SplitPlan("paper").divide(clean_shop(seed))
        assert split.leakage.share > 0.2
        assert split.leakage.share == pytest.approx(split.leakage.by_chance, abs=0.05)
        assert split.histories == "as given"

    def test_few_pairs_may_differ_by_chance(self) -> None:
        assert not Leakage(100, 32, 20_000, 5_000).found
        assert Leakage(100, 35, 20_000, 5_000).found
        assert Leakage(10_000, 2_810, 20_000, 5_000).found
        assert not Leakage(10_000, 2_790, 20_000, 5_000).found

    def test_a_leak_among_many_items_is_found(self) -> None:
        clean = clean_shop(0)
        leaking = replace(clean, user_item=clean.user_item + clean.user_bundle @ clean.bundle_item)
        split = SplitPlan("paper").divide(leaking)
        assert split.leakage.share == 1.0
        assert 0.2 < split.leakage.by_chance < 0.5
        assert split.histories == LEFT_OUT

    def test_it_does_not_change(self) -> None:
        shop = clean_shop(0)
        assert leakage(shop.user_bundle, shop) == leakage(shop.user_bundle, shop)

    def test_it_is_told(self) -> None:
        text = told(Leakage(1000, 255, 1000, 240), "as given")
        assert text == (
            "Of 100 held-out bundles, 25.5 have only items that the buyer also has in user_item (24 for "
            "bundles not bought)."
        )


class TestTheShareOfItems:
    @given(dataset=datasets())
    @settings(max_examples=40, deadline=None)
    def test_leaves_out_items_of_other_bundles(self, dataset: BundleDataset) -> None:
        pairs, contents = sorted(pairs_of(dataset.user_bundle)), rows_of(dataset.bundle_item)
        owned, items = rows_of(dataset.user_bundle), rows_of(dataset.user_item)
        others = [(user, bundle) for user, _ in pairs for _, bundle in pairs if bundle not in owned[user]]
        found = leakage_of(dataset)
        for some, mean in ((pairs, found.items_of_bought), (others, found.items_of_others)):
            shares = []
            for user, bundle in some:
                elsewhere = set().union(*(contents[each] for each in owned[user] - {bundle}))
                if left := contents[bundle] - elsewhere:
                    shares.append(len(left & items[user]) / len(left))
            assert mean == (pytest.approx(np.mean(shares)) if shares else None)

    @pytest.mark.parametrize("recorded", [0.3, 0.45])
    def test_tells_a_leak_of_some_items(self, recorded: float) -> None:
        shop = leaking_shop(size=6, recorded=recorded)
        found = leakage_of(shop)
        assert found.items_of_bought == pytest.approx(recorded, abs=0.03)
        assert found.items_of_others == 0.0
        assert "some items in user_item come from bundles" in told(found)
        assert SplitPlan().divide(shop).histories == "as given"  # taste looks the same

    def test_of_a_clean_shop_raises_no_alarm(self) -> None:
        for shop in (clean_shop(0), sample_shop().dataset, dataset_of_kind("one-bundle-users")):
            text = told(leakage_of(shop))
            assert "of other bundles; items from their other bundles are not counted." in text
            assert "come from bundles" not in text

    @pytest.mark.parametrize("folder", ["authors/mat", "bgcn"])
    def test_of_youshu_raises_no_alarm(self, folder: str) -> None:
        text = told(leakage_of(read(real_data(f"youshu/{folder}")).dataset))
        assert "Users have 0.8% of the items of their bundles, and 0.3% of the items of other" in text
        assert "come from bundles" not in text


class TestHistories:
    @pytest.mark.parametrize("protocol", DIVIDING)
    def test_of_a_leaking_shop_are_the_contents_of_training_bundles(
        self, shop: BundleDataset, protocol: str
    ) -> None:
        split = SplitPlan(protocol).divide(shop)
        assert split.histories == LEFT_OUT
        assert rows_of(split.train.user_item) == training_items(split)
        assert split.dataset.user_item is shop.user_item
        for user, items in asked_pairs(split):
            assert not row_of(split.train.user_item, user) & items - training_items(split)[user]

    @pytest.mark.parametrize("protocol", DIVIDING)
    @settings(max_examples=25, deadline=None)
    @given(dataset=datasets(), seed=st.integers(0, 3))
    def test_lack_exactly_the_items_of_held_out_bundles(
        self, dataset: BundleDataset, protocol: str, seed: int
    ) -> None:
        plan = SplitPlan(protocol, seed, histories=LEFT_OUT)
        split, kept = plan.divide(dataset), training_items(plan.divide(dataset))
        wanted = rows_of(dataset.user_item)
        for user, items in held_out_pairs(split):
            wanted[user] -= items - kept[user]
        assert rows_of(split.train.user_item) == wanted
        given_ = SplitPlan(protocol, seed, histories="as given").divide(dataset)
        assert given_.train.user_item is dataset.user_item
        assert (given_.histories, given_.leakage) == ("as given", split.leakage)
        assert (given_.key == split.key) == (wanted == rows_of(dataset.user_item))
        for user, items in asked_pairs(split):
            assert not row_of(split.train.user_item, user) & items - kept[user]

    def test_are_as_given_where_little_leaks(self) -> None:
        shop = leaking_shop()
        clean = replace(shop, user_item=leaking_shop(seed=1).user_item)
        split = SplitPlan("paper").divide(clean)
        assert split.leakage.share <= 0.03
        assert split.histories == "as given"
        assert split.train.user_item is clean.user_item
        assert split.key == SplitPlan("paper", histories="as given").divide(clean).key

    def test_of_a_split_from_files_are_cleaned_as_well(self, shop: BundleDataset) -> None:
        made = SplitPlan("paper", histories="as given").divide(shop)
        ready = replace(made, protocol="of files", plan=SplitPlan())
        split = SplitPlan().divide(shop, ready)
        assert (split.protocol, split.histories) == ("of files", LEFT_OUT)
        assert rows_of(split.train.user_item) == training_items(split)
        assert split.plan == SplitPlan()
        kept = SplitPlan(histories="as given").divide(shop, ready)
        assert kept.train is ready.train
        assert kept.key == ready.key

    @pytest.mark.parametrize("folder", ["authors/mat", "authors/gen", "bgcn"])
    def test_of_youshu_stay_as_they_are(self, folder: str) -> None:
        source = read(real_data(f"youshu/{folder}"))
        assert source.ready is not None
        assert SplitPlan().divide(source.dataset, source.ready) is source.ready
        assert source.ready.leakage.leaking == 0
        assert source.ready.leakage.pairs > 5_000

    @pytest.mark.parametrize("written", ["as-given", "without-held-out", "auto"])
    def test_may_be_written_with_hyphens(self, written: str) -> None:
        plan = Recipe().changed({}, {"histories": written}).plan()
        assert plan.histories == {"as-given": "as given", "without-held-out": LEFT_OUT}.get(written, written)

    def test_other_words_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="'clean'; they can be: auto, as given, without held-out"):
            SplitPlan(histories="clean")

    def test_of_a_model_of_an_earlier_version_are_as_given(self, tmp_path: Path) -> None:
        model = Recommender("popularity", device="cpu").fit(small_shop(), progress=False)
        folder = model.save(tmp_path / "model")
        assert Recommender.load(folder, device="cpu").plan == model.plan == SplitPlan(histories="auto")
        forge(folder, changed("config.json", "split", "histories", to=...))
        assert Recommender.load(folder, device="cpu").plan == SplitPlan(histories="as given")

    def test_a_part_of_the_data_gives_that_part_of_the_split(
        self, shop: BundleDataset, tmp_path: Path
    ) -> None:
        """Several processes read parts of the users or of the items. They must agree with one process."""
        from bundlemage.data.shards import write_layout

        layout = write_layout(shop, tmp_path / "layout", 50)
        plan = SplitPlan("paper", histories=LEFT_OUT)
        whole = plan.divide(shop)
        user, item = range(30, 70), range(10, 60)
        for part in (layout.dataset(users=user, ids=False), layout.dataset(items=item, ids=False)):
            split = plan.divide(part)
            assert split.key == whole.key
        by_user = rows_of(plan.divide(layout.dataset(users=user)).train.user_item)
        by_item = rows_of(plan.divide(layout.dataset(items=item)).train.user_item)
        for number, row in enumerate(rows_of(whole.train.user_item)):
            assert by_user[number] == (row if number in user else set())
            assert by_item[number] == row & {*item}
        nothing = plan.divide(layout.dataset(users=range(0)))  # another process may have something to remove
        assert nothing.key == whole.key


def owned_share(split: Split) -> dict[str, float]:
    """The matching metrics of the rule that ranks by the share of items owned."""
    data = Interactions.of(split.train, torch.device("cpu"))
    rule = OwnedShare(parse_config(ModelConfig, {}), Sizes.of(split.dataset))
    rule.observe(data)
    return means(case_metrics(rule, split, data)["matching"])


class TestOwnedShare:
    """Bundles of `leaking_shop` are drawn at random, so 99 negatives leave 5% for the first five places."""

    @pytest.mark.parametrize("protocol", ["paper", "full", "cold-bundles"])
    def test_sees_the_answers_in_histories_as_given(self, protocol: str) -> None:
        shop = leaking_shop(users=400)
        assert owned_share(SplitPlan(protocol, histories="as given").divide(shop))["recall@20"] > 0.95

    def test_is_at_chance_without_them(self) -> None:
        shop = leaking_shop(users=1000)
        metrics = owned_share(SplitPlan("paper").divide(shop))
        assert metrics["recall@5"] == pytest.approx(0.05, abs=0.02)
        assert metrics["recall@20"] == pytest.approx(0.20, abs=0.04)


class Owned(Completer):
    """Scores an item by whether the user has it. It remembers the histories."""

    name, title = "owned", "Owned"

    def score_items(self, histories: Histories, partial: Ragged, contents: Ragged) -> Tensor:
        self.seen = histories
        return histories.items.as_mask(self.sizes.items).float()


class TestValidationOfGeneration:
    def scored(self, shop: BundleDataset, histories: str) -> tuple[float, Owned, GenerationCases]:
        split = SplitPlan("full", histories=histories).divide(shop)
        made = completion_cases(split.train, split.plan, split.histories)
        assert made is not None
        data, model = (
            Interactions.of(split.train, torch.device("cpu")),
            Owned(parse_config(ModelConfig, {}), Sizes.of(shop)),
        )
        return means(GenerationEvaluator(made[1], data).metrics(model))["recall@5"], model, made[1]

    def test_hides_the_items_that_the_user_has_in_this_bundle_alone(self, shop: BundleDataset) -> None:
        _, model, cases = self.scored(shop, "auto")
        train = SplitPlan("full").divide(shop).train
        assert cases.known_as is not None
        contents, owned = rows_of(train.bundle_item), rows_of(train.user_bundle)
        for case, user in enumerate(cases.users.tolist()):
            target = int(cases.known_as[cases.bundles[case]])
            bundles = owned[user] - {target} if user < len(owned) else set()
            others = set().union(*(contents[bundle] for bundle in bundles))
            assert set(model.seen.items.rows(torch.tensor([case])).values.tolist()) == others

    def test_histories_as_given_give_the_answers_away(self, shop: BundleDataset) -> None:
        given, without = (self.scored(shop, way)[0] for way in ("as given", "without held-out"))
        assert given > 3 * without

    def test_some_of_the_cases_hide_their_own_items(self, shop: BundleDataset) -> None:
        _, _, cases = self.scored(shop, "auto")
        assert cases.hidden_items is not None
        some = cases.chosen(np.array([4, 1], np.int32)).hidden_items
        assert some is not None
        assert rows_of(some) == [row_of(cases.hidden_items, 4), row_of(cases.hidden_items, 1)]
