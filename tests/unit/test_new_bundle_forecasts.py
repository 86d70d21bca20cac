"""Forecasts of new bundles add up to real sales, have intervals, and are refused if data is too little."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.buyers import Found, divided, forecasts, measure
from bundlemage import Recommender, SplitPlan
from bundlemage.campaigns import new_bundles as module
from bundlemage.campaigns.chances import Calibration, carried
from bundlemage.campaigns.new_bundles import (
    CHECKED,
    RESAMPLES,
    ForecastGroup,
    NewBundleCalibration,
    calibrate_new_bundles,
    interval,
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


def adds_up(found: Found, outside: int = 0) -> None:
    assert found.reason is None
    assert 0.75 <= found.ratio <= 1.25
    assert sum(not group.holds for group in found.groups) <= outside
    assert found.covered >= 0.8


class TestAddingUp:
    """On bundles that no part of the fit has seen."""

    @pytest.mark.parametrize("protocol", ["paper", "none"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_with_a_plain_model(self, kind: str, protocol: str) -> None:
        adds_up(measure(kind, "owned-share", protocol))

    @pytest.mark.parametrize("protocol", ["paper", "none"])
    @pytest.mark.parametrize("kind", ["only-in-bundles", "one-bundle-users"])
    def test_with_a_small_bundlemage(self, kind: str, protocol: str) -> None:
        adds_up(measure(kind, "bundlemage", protocol, **SMALL))

    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("protocol", ["paper", "none"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_with_the_default_settings(self, kind: str, protocol: str) -> None:
        adds_up(measure(kind, "bundlemage", protocol), outside=2)

    def test_these_are_the_forecasts_of_score_bundle(self) -> None:
        shop, before, new = divided("only-in-bundles", 0)
        model = Recommender("bundlemage", device="cpu", **SMALL).fit(
            before, SplitPlan("none"), progress=False
        )
        expected, resampled = forecasts(model, shop, new[:3])
        assert model.new_bundle_calibration is not None
        for place, bundle in enumerate(new[:3].tolist()):
            items = [shop.items[item] for item in shop.bundle_item[bundle].indices]
            answer = model.score_bundle(items, k=1)
            assert answer.expected == pytest.approx(expected[place], rel=1e-4)
            low, high = model.new_bundle_calibration.interval(resampled[place])
            assert (answer.low, answer.high) == (low, high)
            assert low < expected[place] < high
            one = model.score_bundle(items, k=1, users=lambda: [{"somebody": History(bundles=("b0001",))}])
            assert one.high in (0, 1)  # no more buyers than users

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
    wider = interval(np.array([20.0]), 0.1, CHECKED)
    assert wider[0] < alone[0] < alone[1] < wider[1]


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
        assert "too little data to say how many users would buy it: fewer than 40 bundles" in refused(
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

    def test_a_check_that_fails(self) -> None:
        """Bundles in the middle sell, and those below and above do not: no regression line has this form."""
        random = np.random.default_rng(0)
        lifts = np.repeat([-2.0, 0.0, 2.0], 30) + random.normal(0, 0.1, 90)
        bought = random.random((300, 90)) < np.repeat([0.01, 0.2, 0.01], 30)
        scored = module._Scored(
            np.tile(lifts, (300, 1)).astype(np.float32),
            bought,
            np.ones((300, 90), np.float32),
            np.ones(300, np.float32),
            bought.sum(0).astype(np.float64),
        )
        found = module._Cases([scored], 0).calibration()
        assert found.calibration is None
        assert found.reason is not None
        assert "groups of bundles were further from the real numbers than chance explains" in found.reason
        assert found.reason in str(found)
        # With the same sales, a score that says nothing is still right on average.
        fair = module._Cases([replace(scored, lifts=np.zeros((300, 90), np.float32))], 0).calibration()
        assert fair.reason is None
        assert fair.expected == pytest.approx(fair.purchases, rel=0.05)

    def test_a_sum_that_is_wrong(self) -> None:
        right, wrong = (
            ForecastGroup(80, 90.0, 100.0, 70.0, 120.0),
            ForecastGroup(80, 90.0, 200.0, 70.0, 120.0),
        )
        assert module._doubt(right, (right, wrong)) is None  # one group of many may be
        said = module._doubt(wrong, (right,))
        assert said is not None
        assert "90.0 purchases were forecast, and there were 200" in said

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
        (("reason",), "none", "either a calibration or a reason"),
        (("calibration",), None, "either a calibration or a reason|resampled"),
        (("calibration", "fit"), 1e300, "a coefficient"),
        (("calibration", "fit"), "1", "fit"),
        (("resampled",), [[0.0, 1.0, 0.0]], "resampled"),
        (("resampled",), [[0.0, 1.0, 0.0]] * 10_000, "resampled"),
        (("resampled", 0), [0.0, 1.0], "resampled"),
        (("resampled", 0, 1), 1e300, "a coefficient"),
        (("dispersion",), -1.0, "dispersion"),
        (("dispersion",), 1e300, "a coefficient"),
        (("groups", 0, "low"), "few", "groups"),
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
    coefficients, chances = (0.0, 1.0, 0.0), Calibration(0.0, 1.0, 0.0, 0.1)
    NewBundleCalibration(80, 100, calibration=chances, resampled=(coefficients,) * RESAMPLES)
    with pytest.raises(ValueError, match=f"{RESAMPLES} resampled"):
        NewBundleCalibration(80, 100, calibration=chances)


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
