"""Forecasts of new bundles add up to real sales, have intervals, and are refused if data is too little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.buyers import Found, divided, measure, scored
from bundlemage import Recommender, SplitPlan
from bundlemage.campaigns import new_bundles as module
from bundlemage.campaigns.chances import Calibration, carried
from bundlemage.campaigns.new_bundles import (
    RESAMPLES,
    NewBundleCalibration,
    calibrate_new_bundles,
    interval,
    shifts,
)
from bundlemage.core.history import History
from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import ArtifactError
from bundlemage.live import EMPTY, Live
from bundlemage.models.base import Histories, Interactions, Matcher, require
from bundlemage.models.blend import Blend
from bundlemage.models.ragged import Ragged
from bundlemage.sample.kinds import shop_of_kind
from bundlemage.training.loop import train_members
from bundlemage.training.probes import Probes, new_in
from tests.cli.run import run
from tests.forged import changed, forge
from tests.small_shop import QUICK, dataset_of, pairs_of, small_shop

CPU = torch.device("cpu")
KINDS = ["games", "one-buyer", "only-in-bundles", "one-bundle-users", "large-catalogue", "near-copies"]
SMALL: dict[str, Any] = {"embedding_dim": 16, "epochs": 5}


def adds_up(found: Found) -> None:
    assert found.reason is None
    assert 0.75 <= found.ratio <= 1.25
    assert found.covered >= 0.8
    assert found.error <= 1.01  # of one number for all bundles


class TestAddingUp:
    """On bundles that no part of the fit has seen."""

    @pytest.mark.parametrize("protocol", ["paper", "none"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_with_a_plain_model(self, kind: str, protocol: str) -> None:
        adds_up(measure(kind, "owned-share", protocol))

    @pytest.mark.parametrize("seed", [1, 2])
    def test_with_other_seeds(self, seed: int) -> None:
        adds_up(measure("only-in-bundles", "owned-share", "none", seed))

    @pytest.mark.parametrize("protocol", ["paper", "none"])
    @pytest.mark.parametrize("kind", ["only-in-bundles", "one-bundle-users"])
    def test_with_a_small_bundlemage(self, kind: str, protocol: str) -> None:
        adds_up(measure(kind, "bundlemage", protocol, **SMALL))

    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("protocol", ["paper", "none"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_with_the_default_settings(self, kind: str, protocol: str) -> None:
        adds_up(measure(kind, "bundlemage", protocol))

    def test_these_are_the_forecasts_of_score_bundle(self) -> None:
        shop, before, new = divided("only-in-bundles", 0)
        model = Recommender("bundlemage", device="cpu", **SMALL).fit(
            before, SplitPlan("none"), progress=False
        )
        calibration = model.new_bundle_calibration
        assert calibration is not None
        _, sums = scored(model, shop, new[:3])
        expected = calibration.expected(sums)
        for place, bundle in enumerate(new[:3].tolist()):
            items = [shop.items[item] for item in shop.bundle_item[bundle].indices]
            answer = model.score_bundle(items, k=1)
            assert answer.expected == pytest.approx(expected[place], rel=1e-4)
            low, high = calibration.interval(sums[:, place])
            assert (answer.low, answer.high) == (low, high)
            assert low < expected[place] < high
            one = model.score_bundle(items, k=1, users=lambda: [{"somebody": History(bundles=("b0001",))}])
            assert one.high in (0, 1)  # no more buyers than users

    def test_users_who_have_everything_count_on_neither_side(self) -> None:
        shop, before, new = divided("games", 0)
        model = Recommender("owned-share", device="cpu").fit(before, SplitPlan("none"), progress=False)
        lacks, sums = scored(model, shop, new)
        assert sums[0].tolist() == lacks.sum(0).tolist()
        assert not lacks.all()
        found = measure("games", "owned-share", "none")
        bought = shop.user_bundle[:, new].toarray() > 0
        assert found.observed.tolist() == (bought & lacks).sum(0).tolist()
        assert found.observed.sum() < bought.sum()

    def test_a_sample_of_users_gives_about_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        whole = measure("only-in-bundles", "owned-share", "none")
        monkeypatch.setattr(module, "MOST_PAIRS", 60 * 80)  # for 60 of 400 users
        monkeypatch.setattr(module, "MOST_FITTED", 2000)
        sample, again = (measure("only-in-bundles", "owned-share", "none") for _ in range(2))
        assert sample.expected.tolist() == again.expected.tolist() != whole.expected.tolist()
        assert sample.expected.sum() == pytest.approx(whole.expected.sum(), rel=0.15)


# ── What is learned ──────────────────────────────────────────────────────────────────────────────


def probes_of(dataset: BundleDataset, protocol: str = "none", model: str = "owned-share") -> Probes:
    config = Recommender(model, device="cpu").config
    return Probes(model, config, SplitPlan(protocol).divide(dataset), CPU, epochs=1)


class TestProbes:
    @pytest.mark.parametrize(("bundles", "parts"), [(45, [9] * 3), (200, [40] * 2), (500, [80]), (900, [90])])
    def test_small_shops_have_several(self, bundles: int, parts: list[int]) -> None:
        shop = small_shop(bundles=bundles, users=300, bundles_per_user=6.0)
        drawn = probes_of(shop).parts
        assert [len(part) for part in drawn] == parts
        assert len(np.unique(np.concatenate(drawn))) == sum(parts)

    def test_best_sellers_have_their_share(self) -> None:
        shop = shop_of_kind("best-sellers").dataset
        sales = np.bincount(shop.user_bundle.indices, minlength=len(shop.bundles))
        best = np.argsort(-sales)[:10]
        held_out = np.concatenate(probes_of(shop).parts)
        assert np.isin(best, held_out).sum() == 4  # of 200 bundles, 80 are held out
        assert sales[held_out].mean() == pytest.approx(sales.mean(), rel=0.1)

    def test_a_probe_has_not_seen_the_bundles(self) -> None:
        shop = shop_of_kind("only-in-bundles").dataset
        probes = probes_of(shop)
        for probe in probes:
            names = {shop.bundles[place] for place in probe.new.tolist()}
            assert not names & set(probe.train.bundles)
            assert list(probe.train.bundles) == [shop.bundles[place] for place in probe.known.tolist()]
            # Items that a user has only in a new bundle are gone, and all others are still there.
            owned = probe.train.user_bundle @ probe.train.bundle_item
            assert pairs_of(probe.train.user_item) <= pairs_of(owned + probe.unseen @ probe.train.bundle_item)
        assert pairs_of(shop.user_item) > pairs_of(probes.first.train.user_item)
        own = shop_of_kind("near-copies").dataset  # users buy their items one by one
        assert pairs_of(probes_of(own).first.train.user_item) == pairs_of(own.user_item)

    def test_bundles_that_a_split_holds_out_are_not_used(self) -> None:
        shop = small_shop(bundles=100, users=200)
        for protocol in ("cold-bundles", "new-bundles"):
            probes = probes_of(shop, protocol)
            cold = new_in(probes.split)
            assert len(cold) == 20
            assert not np.isin(np.concatenate(probes.parts), cold).any()
        assert len(new_in(SplitPlan("paper").divide(shop))) == 0

    def test_one_probe_serves_both_purposes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        trained: list[int] = []

        def counted(name: str, config: Any, split: Any, members: int) -> Any:
            trained.append(members)
            return train_members(name, config, split, members)

        monkeypatch.setattr("bundlemage.training.probes.train_members", counted)
        shop = small_shop(bundles=500, users=200)
        model = Recommender(**QUICK, ensemble=2).fit(shop, SplitPlan("none"), progress=False)
        assert trained == [2]
        assert model.ensemble == 2
        assert model.new_bundle_credit is not None
        assert model.new_bundle_credit.held_out == 80
        assert model.new_bundle_calibration is not None
        assert model.new_bundle_calibration.held_out == 80


def test_an_interval_has_its_share_of_the_numbers() -> None:
    random = np.random.default_rng(0)
    for mean, dispersion in ((0.5, 0.0), (12.0, 0.3), (300.0, 2.0)):
        low, high = interval(np.array([mean]), dispersion)
        size = 1 / max(dispersion, 1e-6)
        drawn = random.poisson(random.gamma(size, mean / size, 100_000))
        assert 0.899 <= np.mean((low <= drawn) & (drawn <= high)) <= 0.9 + np.mean(drawn == low)
        assert np.mean(drawn < low) <= 0.052
        assert np.mean(drawn > high) <= 0.052
    alone, unsure = interval(np.array([20.0]), 0.1), interval(np.array([10.0, 20.0, 40.0]), 0.1)
    assert unsure[0] < alone[0] < alone[1] < unsure[1]


def test_an_interval_of_an_estimate_mixes_all_possible_means() -> None:
    random = np.random.default_rng(0)
    resampled = tuple(zip(random.normal(-2, 0.3, module.RESAMPLES), [0.0] * module.RESAMPLES, strict=True))
    for dispersion in (0.0, 0.3, 2.0):
        calibration = module.NewBundleCalibration(
            100, 1000, levels=(-1.0, 1.0), resampled=resampled, dispersion=dispersion
        )
        sums = np.array([[4000.0], [2000.0], [4000.0]]) * random.lognormal(0, 0.1, (1, 50))
        means = [np.exp(intercept) * sums[1] for intercept, _ in resampled]
        assert np.size(means) > module.MIXED
        exact = [float(end) for end in interval(np.ravel(means), dispersion)]
        assert list(calibration.interval(sums)) == pytest.approx(exact, rel=0.01, abs=1)


def planted(lifts: Any, rates: Any, users: int = 300, seed: int = 0) -> module._Cases:
    """Bundles that users buy at these rates, and with these lifts for every user."""
    bought = np.random.default_rng([seed, 9]).random((users, np.shape(rates)[-1])) < rates
    return module._Cases(
        [
            module._Scored(
                np.broadcast_to(lifts, bought.shape).astype(np.float32),
                bought,
                np.ones(bought.shape, np.float32),
                np.ones(users, np.float32),
                bought.sum(0).astype(np.float64),
            )
        ],
        seed,
    )


class TestTellingBundlesApart:
    def test_levels_that_say_how_well_a_bundle_sells(self) -> None:
        lifts = np.random.default_rng(0).normal(0, 0.7, 100)
        found = planted(lifts, 0.05 * np.exp(lifts)).calibration()
        assert found.reason is None
        assert found.tells_apart
        assert found.correlation > 0.6
        assert found.level == pytest.approx(1, abs=0.2)
        assert (found.levels[0], found.levels[1]) == pytest.approx((lifts.min(), lifts.max()), abs=1e-4)
        # The mean absolute error of Poisson numbers around their true means is about 3; around one number 8.
        assert found.error < 4
        assert "They tell which of two new bundles sells better" in str(found)
        # A bundle beyond all held-out ones has no more buyers than the best of them.
        sums = [
            [300.0, 300 * np.exp(found.activity), 300 * np.exp(found.fit * level)]
            for level in (lifts.max(), lifts.max() + 3)
        ]
        best, beyond = found.expected(np.transpose(sums)).tolist()
        assert best == pytest.approx(300 * 0.05 * np.exp(lifts.max()), rel=0.2)
        assert beyond == pytest.approx(best, rel=1e-6)

    @pytest.mark.parametrize("kind", ["unrelated", "reversed", "in the middle"])
    def test_levels_that_do_not(self, kind: str) -> None:
        """The bundles differ much in their sales and in their levels, but a higher level means no more."""
        random = np.random.default_rng(1)
        lifts, other = random.normal(0, 0.7, (2, 100))
        sales = {"unrelated": other, "reversed": -lifts, "in the middle": 1 - 2 * np.abs(lifts)}
        found = planted(lifts, 0.05 * np.exp(sales[kind])).calibration()
        assert found.reason is None
        assert (found.level, found.tells_apart) == (0, False)
        assert {level for _, level in found.resampled} == {0}
        assert "do not tell which of two new bundles sells better" in str(found)
        sums = np.array([[300.0] * 2, [300.0] * 2, [100.0, 900.0]])
        assert found.expected(sums)[0] == found.expected(sums)[1]

    def test_users_differ_even_if_bundles_do_not(self) -> None:
        """Users' scores for a bundle say who buys it, and bundles' mean scores say nothing."""
        random = np.random.default_rng(2)
        own, level = random.normal(0, 1, (400, 80)), random.normal(0, 1, 80)
        cases = planted(own + level, 0.02 * np.exp(own), users=400)
        found = cases.calibration()
        assert found.fit == pytest.approx(1, abs=0.2)
        assert found.level == 0
        expected = cases.learned(np.arange(80)).expected
        assert expected.sum() == pytest.approx(cases.sales.sum(), rel=1e-6)

    def test_coverage_is_measured_on_bundles_that_no_fit_has_seen(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cases = planted(np.zeros(60), np.full(60, 0.05))
        seen: list[Any] = []
        learned = cases.learned

        def recorded(chosen: Any) -> Any:
            seen.append(chosen)
            return learned(chosen)

        monkeypatch.setattr(cases, "learned", recorded)
        cases.calibration()
        assert [len(chosen) for chosen in seen] == [48] * 5 + [60]
        left_out = [np.setdiff1d(np.arange(60), chosen) for chosen in seen[:5]]
        assert sorted(np.concatenate(left_out).tolist()) == list(range(60))
        # What is learned depends on the sales of the chosen bundles only.
        results = []
        for _ in range(2):
            cases.random = np.random.default_rng(0)
            results.append(learned(seen[0]))
            cases.sales[left_out[0]] += 1000
        assert results[0].coefficients == results[1].coefficients
        assert results[0].dispersion == results[1].dispersion


def test_shifts_make_chances_add_up() -> None:
    random = np.random.default_rng(0)
    logits = random.normal(-3, 2, (50, 4)).astype(np.float32)
    weights = random.integers(0, 3, (50, 4)).astype(np.float32)
    totals = np.array([0.5, 3.0, 10.0, weights[:, 3].sum()])
    chances = 1 / (1 + np.exp(-(logits + shifts(logits, totals, weights)).astype(np.float64)))
    assert (chances * weights).sum(0) == pytest.approx(totals, rel=1e-4)


# ── Too little data ──────────────────────────────────────────────────────────────────────────────


def refused(shop: BundleDataset) -> str:
    """The note of a forecast without a number."""
    model = Recommender("owned-share", device="cpu").fit(shop, SplitPlan("none"), progress=False)
    answer = model.score_bundle(list(shop.items)[:2], 5.0)
    assert (answer.expected, answer.low, answer.high, answer.expected_takings) == (None,) * 4
    assert (answer.above, answer.threshold) == (None, None)
    assert all(person.chance is None for person in answer.people)
    assert answer.people
    assert answer.note is not None
    return answer.note


class TestTooLittleData:
    def test_few_bundles(self) -> None:
        assert "say how many users would buy it: fewer than 40 bundles with items have a buyer" in refused(
            small_shop(bundles=30)
        )

    def test_few_purchases(self) -> None:
        shop = dataset_of(
            [[n % 5] for n in range(60)], [[n] for n in range(60)], [[n % 5, 5] for n in range(60)], 6
        )
        assert (
            "36 bundles were held out of training, and users bought them 36 times, fewer than 50"
            in refused(shop)
        )

    def test_users_who_had_everything_do_not_count(self) -> None:
        """Each bundle has one item, and nearly every buyer has this item from other bundles."""
        random = np.random.default_rng(0)
        bought = [random.choice(60, 12, replace=False).tolist() for _ in range(40)]
        shop = dataset_of([[] for _ in bought], bought, [[n % 3] for n in range(60)], 3)
        found = calibrate_new_bundles(probes_of(shop))
        assert found.held_out == 36
        assert found.purchases < shop.user_bundle.nnz / 5
        assert found.reason is not None
        assert "fewer than 50" in found.reason

    def test_the_command_says_so(self, tmp_path: Path) -> None:
        shop = small_shop(bundles=30)
        Recommender("owned-share", device="cpu").fit(shop, progress=False).save(tmp_path / "model")
        told = run("score-bundle", tmp_path / "model", "--items", f"{shop.items[0]},{shop.items[1]}").output
        assert "too little data" in " ".join(told.split())
        assert "would buy it (" not in told


# ── Saving ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def fitted() -> Recommender:
    shop = small_shop(bundles=60, users=120)
    return Recommender(**QUICK).fit(shop, SplitPlan("none"), progress=False)


def test_it_is_saved_loaded_and_in_the_card(fitted: Recommender, tmp_path: Path) -> None:
    assert fitted.calibration is None
    found = fitted.new_bundle_calibration
    assert found is not None
    assert found.reason is None
    loaded = Recommender.load(fitted.save(tmp_path / "model"), device="cpu")
    assert loaded.new_bundle_calibration == found
    assert str(found) in (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    items = list(fitted.dataset.items)[:3]
    assert loaded.score_bundle(items) == fitted.score_bundle(items)
    assert Live(loaded, EMPTY).new_bundle_calibration == found


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        (("held_out",), "many", "held_out"),
        (("purchases",), 1.5, "purchases"),
        (("more",), 1, "more"),
        (("reason",), "none", "resampled coefficients, or a reason"),
        (("fit",), 1e300, "a coefficient"),
        (("fit",), "1", "fit"),
        (("level",), -1.0, "level"),
        (("levels",), [0.0], "levels"),
        (("levels", 0), -1e300, "a coefficient"),
        (("resampled",), [[0.0, 1.0]], "resampled"),
        (("resampled",), [[0.0, 1.0]] * 10_000, "resampled"),
        (("resampled", 0), [0.0, 1.0, 0.0], "resampled"),
        (("resampled", 0, 1), 1e300, "a coefficient"),
        (("dispersion",), -1.0, "dispersion"),
        (("dispersion",), 1e300, "a coefficient"),
    ],
)
def test_an_altered_one_is_refused(
    fitted: Recommender, tmp_path: Path, keys: tuple[str | int, ...], value: Any, says: str
) -> None:
    folder = forge(
        fitted.save(tmp_path / "model"), changed("config.json", "new_bundle_audience", *keys, to=value)
    )
    with pytest.raises(ArtifactError, match=says) as told:
        Recommender.load(folder, device="cpu")
    assert len(str(told.value)) < 2000


def test_a_model_of_an_earlier_version_has_none(fitted: Recommender, tmp_path: Path) -> None:
    folder = forge(fitted.save(tmp_path / "model"), changed("config.json", "new_bundle_audience", to=...))
    loaded = Recommender.load(folder, device="cpu")
    assert loaded.new_bundle_calibration is None
    answer = loaded.score_bundle(list(fitted.dataset.items)[:2])
    assert answer.expected is None
    assert answer.note is not None
    assert "Train it again" in answer.note


def test_it_needs_enough_resampled_coefficients() -> None:
    NewBundleCalibration(80, 100, resampled=((0.0, 1.0),) * RESAMPLES)
    with pytest.raises(ValueError, match=f"{RESAMPLES} resampled"):
        NewBundleCalibration(80, 100)


def test_the_same_probes_give_the_same(fitted: Recommender) -> None:
    shop = small_shop(bundles=60, users=120)
    one, other = (calibrate_new_bundles(probes_of(shop)) for _ in range(2))
    assert one == other
    assert one != fitted.new_bundle_calibration


# ── A calibration that is carried over ───────────────────────────────────────────────────────────


class TestCarried:
    @pytest.fixture
    def shop(self) -> BundleDataset:
        return small_shop(bundles=60, users=120)

    @pytest.fixture
    def old(self, shop: BundleDataset) -> Recommender:
        return Recommender("bundlemage", device="cpu", **SMALL).fit(shop, SplitPlan("paper"), progress=False)

    def total(self, model: Recommender, calibration: Calibration, shop: BundleDataset) -> tuple[float, int]:
        """The sum of chances over bundles that users do not have, and how many lie above the threshold."""
        data = Interactions.of(shop, CPU)
        histories = data.histories(torch.arange(len(shop.users)))
        with torch.inference_mode():
            scores = require(model.model, Matcher).bundle_scores(histories, data.bundle_item)
            chances = calibration.chances(scores.double().log_softmax(1), histories.bundles.lengths)
        asked = torch.from_numpy(shop.user_bundle.toarray() == 0)
        return float(chances[asked].sum()), int((chances[asked] > calibration.threshold).sum())

    def test_the_total_stays_as_it_was(self, shop: BundleDataset, old: Recommender) -> None:
        new = Recommender("bundlemage", device="cpu", **SMALL).fit(shop, SplitPlan("none"), progress=False)
        before = old.calibration
        assert before is not None
        assert new.calibration is None
        after = carried(before, old.model, new.model, shop, CPU)
        assert after is not None
        assert after.activity == before.activity
        assert after.intercept != before.intercept
        old_total, old_above = self.total(old, before, shop)
        total, above = self.total(new, after, shop)
        assert total == pytest.approx(old_total, rel=1e-4)
        assert above == pytest.approx(old_above, abs=2)
        assert self.total(new, before, shop)[0] != pytest.approx(old_total, rel=1e-3)

    def test_a_model_that_separates_bundles_more_is_not_surer(
        self, shop: BundleDataset, old: Recommender
    ) -> None:
        """Its log-probabilities differ three times as much, in the same order."""

        class Sharper(Blend):
            def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
                return 3 * super().score_bundles(histories, contents)

        before = old.calibration
        assert before is not None
        sharper = Sharper([old.model], [1.0], [1.0], "sharper").eval()
        after = carried(before, old.model, sharper, shop, CPU)
        assert after is not None
        assert after.fit == pytest.approx(before.fit / 3, rel=1e-3)

    def test_a_model_that_likes_other_bundles_is_refused(self, shop: BundleDataset, old: Recommender) -> None:
        assert old.calibration is not None
        other = Recommender("random", device="cpu").fit(shop, SplitPlan("none"), progress=False)
        assert carried(old.calibration, old.model, other.model, shop, CPU) is None
