"""The audience of a bundle that does not exist yet: chances that hold, and a forecast that adds up."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor

from benchmarks.audience import auc, lift
from bundlemage import Recommender, SplitPlan
from bundlemage.artifact.files import load_artifact, save_artifact
from bundlemage.campaigns import chances as module
from bundlemage.campaigns.audience import ALIKE, forecast
from bundlemage.campaigns.chances import Calibration, calibrate, logistic
from bundlemage.core.answering import slices
from bundlemage.core.shop import Shop, Trade
from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.leakage import without
from bundlemage.data.splits import MatchingCases, Split
from bundlemage.errors import ConfigError, UnknownIdError, UnsupportedError
from bundlemage.models.base import Histories, Interactions, Matcher, Model, SalesScorer, Sizes, require
from bundlemage.models.ragged import Contents, Ragged
from bundlemage.models.registry import make_config
from bundlemage.sample.kinds import dataset_of_kind
from bundlemage.wire.design_answers import BundleForecast
from bundlemage.wire.shop import ShopSettings
from tests.cli.run import run, run_json
from tests.small_shop import QUICK, dataset_of, row_of, shop_of_unequal_tastes, small_shop

CPU = torch.device("cpu")
TRUE = Calibration(intercept=-0.5, fit=0.8, activity=0.6, threshold=0.0)
BENT = Calibration(2.5, 1.5, 0.6, 0.0, bends=((-5.0, -0.7), (-3.5, -0.6)))
"""The odds of the likeliest bundles grow slower."""


# ── Calibration ──────────────────────────────────────────────────────────────────────────────────


class Planted(Matcher):
    """Scores that were drawn once, for users by their positions."""

    title: ClassVar[str] = "Planted"

    def __init__(self, scores: Tensor) -> None:
        super().__init__(make_config("popularity", {}), Sizes(len(scores), 1, scores.shape[1]))
        self.scores = scores

    def score_bundles(self, histories: Histories, contents: Ragged) -> Tensor:
        return self.scores[self.known_users(histories)]

    def score_new_bundles(self, histories: Histories, contents: Ragged, new: Ragged) -> Tensor:
        """Every bundle has one item, whose position is the bundle's own."""
        return self.scores[self.known_users(histories)][:, new.values] + 1


def matrix(pairs: npt.NDArray[np.bool_]) -> Any:
    rows, columns = np.nonzero(pairs)
    return binary_matrix(rows, columns, (pairs.shape[0], pairs.shape[1]))


def planted(users: int, bundles: int, seed: int = 0, *, truth: Calibration = TRUE) -> tuple[Planted, Split]:
    """Validation drawn with the chances of `truth`, from what the user has not in training."""
    random = np.random.default_rng(seed)
    scores = torch.from_numpy(random.normal(0, 1.5, (users, bundles)))
    rates = random.uniform(0, 0.1, users)
    train = random.random((users, bundles)) < rates[:, None]
    chances = truth.chances(scores.log_softmax(1), torch.from_numpy(train.sum(1))).numpy()
    bought = (random.random((users, bundles)) < chances) & ~train
    everything = dataset_of(
        [[] for _ in range(users)],
        [np.flatnonzero(row).tolist() for row in train | bought],
        [[n] for n in range(bundles)],
        bundles,
    )
    kept = everything.with_interactions(user_bundle=matrix(train))
    asked = np.flatnonzero(bought.any(1)).astype(np.int32)
    cases = MatchingCases(asked, matrix(bought[asked]), None)
    return Planted(scores), Split(everything, kept, cases, None, None, "full")


def expected_and_real(model: Model, split: Split, found: Calibration) -> tuple[float, int, int]:
    """Buyers of validation as foretold and as they were, and how many pairs lie above the threshold."""
    chances, real = chances_and_purchases(model, split, found)
    return chances.sum(), int(real.sum()), int((chances > found.threshold).sum())


def chances_and_purchases(
    model: Model, split: Split, found: Calibration
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """For each pair of a user and a bundle: the chance, and whether it was bought in validation. Only users
    of validation cases count. Histories lack only what these users bought in validation."""
    assert split.validation is not None
    case, bundles = split.validation.positives.nonzero()
    bought = binary_matrix(split.validation.users[case], bundles, split.dataset.user_bundle.shape)
    before = without(split.dataset.user_bundle, bought)
    data = Interactions.of(split.dataset.with_interactions(user_bundle=before), CPU)
    histories = data.histories(torch.arange(len(split.dataset.users)))
    with torch.inference_mode():
        logs = require(model, Matcher).score_bundles(histories, data.bundle_item).log_softmax(1)
        chances = found.chances(logs, histories.bundles.lengths).double().numpy()
    real = np.zeros(chances.shape, bool)
    real[split.validation.users[case], bundles] = True
    known = np.diff(split.dataset.bundle_item.indptr) > 0
    counted = (real | (split.dataset.user_bundle.toarray() == 0)) & known & real.any(1, keepdims=True)
    return chances[counted], real[counted]


def test_coefficients_are_found_in_weighted_data() -> None:
    random = np.random.default_rng(0)
    features = np.column_stack(
        [np.ones(200_000), random.normal(-3, 2, 200_000), random.uniform(0, 3, 200_000)]
    )
    true = np.array([-0.5, 0.8, 0.6])
    bought = random.random(200_000) < 1 / (1 + np.exp(-features @ true))
    kept = bought | (random.random(200_000) < 0.1)
    weights = np.where(bought, 1.0, 10.0)[kept]
    found = logistic(features[kept], bought[kept], weights, np.array([0.0, 1.0, 0.0]))
    assert found == pytest.approx(true, abs=0.04)


def test_what_data_leaves_open_stays_as_the_softmax_has_it() -> None:
    features = np.column_stack([np.ones(1000), np.linspace(-4, 0, 1000), np.zeros(1000)])  # nobody has any
    bought = np.arange(1000) % 7 == 0
    found = logistic(features, bought, np.ones(1000), np.array([0.0, 1.0, 0.0]))
    assert found[2] == 0
    assert np.isfinite(found).all()
    apart = logistic(features, features[:, 1] > -1, np.ones(1000), np.array([0.0, 1.0, 0.0]))
    assert np.isfinite(apart).all()  # a line between them, which has no best slope
    assert ((features @ apart > 0) == (features[:, 1] > -1)).all()


def test_planted_coefficients_are_recovered() -> None:
    model, split = planted(3000, 200)
    found = calibrate(model, split, CPU)
    assert found is not None
    assert found.activity == pytest.approx(TRUE.activity, abs=0.05)
    # Where hardly any bundle was bought, the line is not known so well.
    logs = torch.linspace(-7, -1.5, 12, dtype=torch.float64)
    nothing = torch.zeros(1, dtype=torch.float64)
    assert found.log_odds(logs, nothing).tolist() == pytest.approx(
        TRUE.log_odds(logs, nothing).tolist(), abs=0.2
    )
    foretold, real, above = expected_and_real(model, split, found)
    assert foretold == pytest.approx(real, rel=0.02)
    assert above == pytest.approx(real, rel=0.02)


def bands(found: Calibration, model: Model, split: Split) -> list[tuple[float, int]]:
    """The expected and the real number of purchases among likelier and likelier bundles."""
    chances, real = chances_and_purchases(model, split, found)
    edges = np.quantile(chances, [0, 0.5, 0.75, 0.9, 0.97, 0.99])
    groups = np.searchsorted(edges, chances, side="right")
    return [(chances[groups == n].sum(), int(real[groups == n].sum())) for n in np.unique(groups)]


@pytest.mark.parametrize("seed", [0, 1])
def test_chances_are_right_for_likely_and_for_unlikely_bundles(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, split = planted(3000, 200, seed, truth=BENT)
    found = calibrate(model, split, CPU)
    assert found is not None
    for expected, real in bands(found, model, split):
        assert abs(real - expected) < 4 * math.sqrt(expected)
    monkeypatch.setattr(module, "MOST_BENDS", 0)
    straight = calibrate(model, split, CPU)
    assert straight is not None
    assert any(abs(real - each) > 4 * math.sqrt(each) for each, real in bands(straight, model, split))


def test_a_likelier_bundle_never_has_a_lower_chance() -> None:
    """Although in these data the likeliest bundles were bought less often."""
    falling = replace(BENT, bends=((-5.0, -0.7), (-3.5, -2.0)))
    model, split = planted(3000, 200, truth=falling)
    found = calibrate(model, split, CPU)
    assert found is not None
    odds = found.log_odds(torch.linspace(-12, 0, 200), torch.zeros(1))
    assert (odds.diff() > 0).all()


@pytest.mark.parametrize("users", [30, 3000])
def test_a_model_that_says_the_opposite_is_not_used(users: int) -> None:
    """The likelier a bundle, the less often it was bought. All bundles of a user get the same chance."""
    model, split = planted(users, 200, truth=Calibration(-8.0, -1.0, 0.6, 0.0))
    found = calibrate(model, split, CPU)
    assert found is not None
    assert (found.fit, found.bends) == (0.0, ())
    expected, real, _ = expected_and_real(model, split, found)
    assert expected == pytest.approx(real, rel=0.02)


def test_few_purchases_give_a_straight_line() -> None:
    model, split = planted(20, 40)
    found = calibrate(model, split, CPU)
    assert found is not None
    assert split.validation is not None
    assert split.validation.positives.nnz < 50
    assert found.bends == ()


def test_a_stretched_calibration_gives_the_same_odds() -> None:
    logs, activity = torch.linspace(-9, 0, 30, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    same = BENT.stretched(0.7, -1.2).log_odds((logs + 1.2) / 0.7, activity)
    assert same.tolist() == pytest.approx(BENT.log_odds(logs, activity).tolist())


@pytest.mark.parametrize("seed", [0, 1])
def test_a_sample_of_the_people_says_the_same(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    model, split = planted(3000, 200)
    monkeypatch.setattr(module, "SCORES", 1000 * 200)
    found = calibrate(model, split, CPU, seed)
    assert found is not None
    assert found != calibrate(model, split, CPU, seed + 1)
    assert found == calibrate(model, split, CPU, seed)
    foretold, real, above = expected_and_real(model, split, found)
    assert foretold == pytest.approx(real, rel=0.1)
    assert above == pytest.approx(real, rel=0.15)


def test_buyers_are_foretold_on_a_real_model(fitted: Recommender, shop: BundleDataset) -> None:
    split = SplitPlan().divide(shop)
    assert fitted.calibration is not None
    foretold, real, above = expected_and_real(fitted.model, split, fitted.calibration)
    assert foretold == pytest.approx(real, rel=0.02)
    assert above == pytest.approx(real, rel=0.1)


def chances_per_user(shop: BundleDataset, protocol: str) -> float:
    """The sum of a user's chances for the bundles that the user does not have, as a mean over all users."""
    model = Recommender("popularity", device="cpu").fit(shop, SplitPlan(protocol), progress=False)
    assert model.calibration is not None
    data = Interactions.of(shop, CPU)
    histories = data.histories(torch.arange(len(shop.users)))
    with torch.inference_mode():
        logs = require(model.model, Matcher).bundle_scores(histories, data.bundle_item).log_softmax(1)
        chances = model.calibration.chances(logs, histories.bundles.lengths)
    return float(chances[torch.from_numpy(shop.user_bundle.toarray() == 0)].sum()) / len(shop.users)


def shop_of_single_buyers() -> BundleDataset:
    """Only one user of 30 has two bundles. `some-users` tests no others."""
    random = np.random.default_rng(0)
    owned = [random.choice(100, 1 + (user % 30 == 0), replace=False).tolist() for user in range(3030)]
    return dataset_of([[] for _ in owned], owned, [[2 * n, 2 * n + 1] for n in range(100)], 200)


@pytest.mark.parametrize("kind", ["one-bundle-users", "best-sellers", "single buyers"])
def test_chances_do_not_depend_on_how_many_users_are_asked(kind: str) -> None:
    shop = shop_of_single_buyers() if kind == "single buyers" else dataset_of_kind(kind)
    paper, some = (chances_per_user(shop, protocol) for protocol in ("paper", "some-users"))
    assert paper == pytest.approx(1.0, abs=0.15)
    assert some == pytest.approx(paper, rel=0.15)


def test_bundles_without_items_are_not_calibrated() -> None:
    random = np.random.default_rng(0)
    owned = [random.choice(20, 4, replace=False).tolist() for _ in range(60)]
    shop = dataset_of([[0]] * 60, owned, [[]] * 20, 5)
    assert Recommender("popularity", device="cpu").fit(shop, progress=False).calibration is None


def test_only_new_bundles_count_in_a_split_of_cold_bundles() -> None:
    shop = small_shop(users=300)
    split = SplitPlan("cold-bundles").divide(shop)
    model = Recommender(**QUICK).fit(split, progress=False)
    found = model.calibration
    assert found is not None
    assert split.validation is not None
    assert split.validation.candidates is not None
    new = np.unique(split.validation.candidates)
    data = Interactions.of(split.train, CPU)
    histories = data.histories(torch.arange(len(shop.users)))
    with torch.inference_mode():
        contents = data.bundle_item
        logs = module.new_log_probabilities(
            model.model, histories, contents, contents.rows(torch.from_numpy(new.astype(np.int64)))
        )
        foretold = found.chances(logs, histories.bundles.lengths).double().sum()
    assert float(foretold) == pytest.approx(split.validation.positives.nnz, rel=0.02)


def test_without_cases_there_is_no_calibration(shop: BundleDataset) -> None:
    assert Recommender(**QUICK).fit(shop, SplitPlan("none"), progress=False).calibration is None
    assert Recommender(**QUICK, tasks="generation").fit(shop, progress=False).calibration is None


def test_a_calibration_is_saved_and_an_old_model_has_none(fitted: Recommender, tmp_path: Path) -> None:
    fitted.save(tmp_path / "new")
    assert Recommender.load(tmp_path / "new").calibration == fitted.calibration
    artifact = load_artifact(tmp_path / "new")
    assert fitted.calibration is not None
    assert artifact.config["audience"] == json.loads(json.dumps(asdict(fitted.calibration)))
    without = {key: value for key, value in artifact.config.items() if key != "audience"}
    save_artifact(replace(artifact, config=without), tmp_path / "old")
    assert Recommender.load(tmp_path / "old").calibration is None


# ── A forecast ───────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return small_shop(users=120, bundles=60)


@pytest.fixture(scope="module")
def fitted(shop: BundleDataset) -> Recommender:
    return Recommender(**(QUICK | {"epochs": 8, "learning_rate": 0.01})).fit(shop, progress=False)


@pytest.fixture(scope="module")
def items(shop: BundleDataset) -> list[str]:
    """Of several bundles, so that they do not go together well."""
    return [shop.items[n] for n in (3, 17, 41, 60)]


@pytest.fixture(scope="module")
def found(fitted: Recommender, items: list[str]) -> BundleForecast:
    return fitted.score_bundle(items, 20.0, k=5)


@pytest.fixture(scope="module")
def apart() -> Recommender:
    """A model whose forecasts tell bundles apart."""
    model = Recommender(**QUICK | {"epochs": 8, "learning_rate": 0.01})
    return model.fit(shop_of_unequal_tastes(), SplitPlan("none"), progress=False)


def one_by_one(model: Recommender, names: list[str]) -> dict[str, float]:
    """Everyone's chance, from a score that is worked out alone, of those who have not all the items."""
    found = model.new_bundle_calibration
    assert found is not None
    shop, contents = model.shop, model.shop.interactions.bundle_item
    median = require(model.model, SalesScorer).known_sales().median()
    new = Contents.of(Ragged.from_lists([model.dataset.items.positions(names).tolist()]), median[None])
    users, lifts, counts = [], [], []
    for row, user in enumerate(model.dataset.users):
        has = row_of(model.dataset.user_item, row)
        for bundle in row_of(model.dataset.user_bundle, row):
            has |= row_of(model.dataset.bundle_item, bundle)
        if set(new.values.tolist()) <= has:
            continue
        histories = shop.known([user])
        with torch.inference_mode():
            scores = require(model.model, Matcher).score_bundles(histories, contents.append(new)).double()[0]
        users.append(user)
        lifts.append(float(scores[-1] - scores[:-1].exp().mean().log()))
        counts.append(math.log1p(len(row_of(model.dataset.user_bundle, row))))
    fit, active = found.fit * np.array(lifts), found.activity * np.array(counts)
    level = np.clip(np.log(np.exp(fit).mean()), *found.levels)
    total = float(np.exp(found.intercept + found.level * level) * np.exp(active).sum())

    def chances(shift: float) -> npt.NDArray[np.float64]:
        return 1 / (1 + np.exp(-(fit + active + shift)))

    shift = brentq(lambda shift: chances(shift).sum() - total, -50, 50)
    return dict(zip(users, chances(shift).tolist(), strict=True))


@pytest.mark.parametrize("name", ["fitted", "apart"])
def test_the_audience_is_the_sum_of_everyone(name: str, request: pytest.FixtureRequest) -> None:
    model: Recommender = request.getfixturevalue(name)
    calibration = model.new_bundle_calibration
    assert calibration is not None
    assert calibration.tells_apart == (name == "apart")
    items = [model.dataset.items[n] for n in (3, 17, 41, 60)]
    found, alone = model.score_bundle(items, 20.0, k=5), one_by_one(model, items)
    assert found.expected == pytest.approx(sum(alone.values()), rel=1e-4)
    assert found.asked == len(model.dataset.users)
    assert found.threshold == calibration.threshold
    assert found.above == sum(chance > found.threshold for chance in alone.values())
    best = sorted(alone, key=lambda user: -alone[user])[:5]
    assert [person.id for person in found.people] == best
    assert [person.chance for person in found.people] == pytest.approx(
        [alone[user] for user in best], rel=1e-4
    )
    assert found.expected_takings == pytest.approx(20.0 * sum(alone.values()), rel=1e-4)
    assert found.note == (None if name == "apart" else ALIKE)


def test_numbers_that_tell_nothing_are_not_given(
    fitted: Recommender, apart: Recommender, items: list[str]
) -> None:
    """Bundles of items that go together and that do not have the same number of buyers."""
    contents = fitted.dataset.bundle_item
    together = [fitted.dataset.items[n] for n in contents[np.diff(contents.indptr).argmax()].indices]
    together.append(items[0])
    answers = [fitted.score_bundle(chosen) for chosen in (items, together)]
    assert answers[1].expected == pytest.approx(answers[0].expected, rel=0.1)  # a few users have all
    assert answers[0].weakest is not None
    assert answers[0].weakest.without is None
    assert answers[0].replacement is not None
    assert answers[0].replacement.expected is None
    assert answers[0].note is not None
    assert "it is not said how many more users would buy the bundle with the better item" in answers[0].note
    contents = apart.dataset.bundle_item
    for taste, other in ((0, 7), (1, 6)):  # of many users, and of few
        liked, rare = (
            apart.score_bundle([apart.dataset.items[n] for n in contents[bundle].indices]).expected
            for bundle in (taste, other)
        )
        assert liked is not None
        assert rare is not None
        assert liked > 1.5 * rare


def test_who_has_everything_is_not_counted(fitted: Recommender, shop: BundleDataset) -> None:
    owner = int(np.flatnonzero(np.diff(shop.user_bundle.indptr))[0])
    bundle = next(iter(row_of(shop.user_bundle, owner)))
    inside = [shop.items[n] for n in sorted(row_of(shop.bundle_item, bundle))]
    alone = one_by_one(fitted, inside)
    owners = {shop.users[n] for n in range(len(shop.users)) if bundle in row_of(shop.user_bundle, n)}
    assert owners
    assert not owners & set(alone)
    answer = fitted.score_bundle(inside, k=len(shop.users))
    assert {person.id for person in answer.people} == set(alone)
    assert answer.expected == pytest.approx(sum(alone.values()), rel=1e-5)
    assert answer.nearest[0].id == shop.bundles[bundle]
    assert answer.nearest[0].score == pytest.approx(1, abs=1e-5)


def in_batches(model: Recommender, rows: int) -> Any:
    def people() -> Iterator[tuple[list[str], Histories]]:
        names = iter(model.dataset.users)
        for part in slices(model.shop.everyone(), rows):
            # A live service has histories of people who were not there at training.
            yield [next(names) for _ in range(len(part))], Histories(part.items, part.bundles)

    return people


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_batches_make_no_difference(
    fitted: Recommender, items: list[str], found: BundleForecast, rows: int
) -> None:
    people = in_batches(fitted, rows)
    calibration = fitted.new_bundle_calibration
    again = forecast(
        fitted.model, fitted.shop, people, items, 20.0, settings=ShopSettings(), k=5, calibration=calibration
    )
    assert again.expected == pytest.approx(found.expected, rel=1e-5)
    assert (again.low, again.high) == (found.low, found.high)
    assert [person.id for person in again.people] == [person.id for person in found.people]
    assert again.replacement is not None
    assert found.replacement is not None
    assert again.replacement.id == found.replacement.id
    assert fitted.score_bundle(items, 20.0, k=5) == found


def test_the_weakest_item_is_the_one_that_is_missed_least(apart: Recommender) -> None:
    items = mixed_items(apart)
    without = {
        name: apart.score_bundle([other for other in items if other != name]).expected or 0.0
        for name in items
    }
    found = apart.score_bundle(items)
    assert found.weakest is not None
    assert found.weakest.id == max(without, key=lambda name: without[name])
    assert found.weakest.without == pytest.approx(without[found.weakest.id], rel=1e-5)
    assert found.weakest.title == apart.dataset.item_title(apart.dataset.items.position(found.weakest.id))


def mixed_items(model: Recommender) -> list[str]:
    """Items of bundles that few users like, and one of a bundle that many like."""
    contents = model.dataset.bundle_item
    return [model.dataset.items[contents[bundle].indices[0]] for bundle in (0, 5, 6, 7)]


def test_a_replacement_brings_more_people(apart: Recommender) -> None:
    items = mixed_items(apart)
    found = apart.score_bundle(items)
    assert found.weakest is not None
    assert found.replacement is not None
    assert found.replacement.id not in items
    rest = [name for name in items if name != found.weakest.id]
    better = apart.score_bundle([*rest, found.replacement.id])
    assert found.expected is not None
    assert better.expected is not None
    assert better.expected > found.expected
    assert better.expected == pytest.approx(found.replacement.expected, rel=1e-5)
    # What is sold no more is not proposed.
    trade = Trade.of(apart.dataset)
    trade.items_gone[apart.dataset.items.position(found.replacement.id)] = True
    less = Shop(apart.dataset, CPU, trade)
    everyone = in_batches(apart, 100)
    again = forecast(
        apart.model, less, everyone, items, settings=ShopSettings(), calibration=apart.new_bundle_calibration
    )
    assert again.replacement is None or again.replacement.id != found.replacement.id


@pytest.mark.parametrize("name", ["fitted", "apart"])
def test_replacing_again_and_again_comes_to_an_end(name: str, request: pytest.FixtureRequest) -> None:
    model: Recommender = request.getfixturevalue(name)
    now, seen = [model.dataset.items[n] for n in (3, 17, 41, 60)], 0.0
    for _ in range(60):
        answer = model.score_bundle(now)
        assert answer.expected is not None
        if name == "apart":
            assert answer.expected > seen
        seen = answer.expected
        if answer.replacement is None:
            return
        assert answer.weakest is not None
        now[now.index(answer.weakest.id)] = answer.replacement.id
    pytest.fail("there was always something better")


def test_a_bundle_of_one_item_has_no_weakest(fitted: Recommender, items: list[str]) -> None:
    answer = fitted.score_bundle([items[0], items[0]], k=1)
    assert [item.id for item in answer.items] == [items[0]]
    assert answer.weakest is None
    assert answer.replacement is None
    assert answer.people
    assert len(answer.people) == len(answer.nearest) == 1


def test_a_model_without_calibration_ranks_and_says_so(shop: BundleDataset, items: list[str]) -> None:
    model = Recommender(**QUICK).fit(shop, SplitPlan("none"), progress=False, calibrate=False)
    answer = model.score_bundle(items, 5.0)
    assert (answer.expected, answer.above, answer.threshold, answer.expected_takings) == (None,) * 4
    assert (answer.low, answer.high) == (None, None)
    assert answer.note is not None
    assert "calibrate=False" in answer.note
    scores = [person.score for person in answer.people]
    assert len(scores) == 10
    assert scores == sorted(scores, reverse=True)
    assert all(person.chance is None for person in answer.people)
    assert answer.weakest is not None
    assert answer.weakest.without is None


def test_models_say_what_they_cannot_tell(shop: BundleDataset, items: list[str]) -> None:
    plain = Recommender("owned-share", device="cpu").fit(shop, progress=False)
    answer = plain.score_bundle(items)
    assert answer.expected is not None
    assert answer.nearest == ()
    assert answer.replacement is None
    assert answer.note is not None
    assert "no vectors" in answer.note
    assert "no replacement" in answer.note
    completing = Recommender(**QUICK, tasks="generation").fit(shop, progress=False)
    with pytest.raises(UnsupportedError, match="does not recommend bundles"):
        completing.score_bundle(items)


# ── Prices ───────────────────────────────────────────────────────────────────────────────────────


def test_a_price_or_a_discount_follows_from_the_other(fitted: Recommender, items: list[str]) -> None:
    assert fitted.dataset.catalogue is not None
    prices = fitted.dataset.catalogue.items["price"].to_pylist()
    together = round(sum(prices[n] for n in fitted.dataset.items.positions(items)), 2)
    plain = fitted.score_bundle(items)
    assert (plain.price, plain.list_price, plain.discount) == (together, together, 0.0)
    less = fitted.score_bundle(items, discount=0.25)
    assert less.price == pytest.approx(together * 0.75, abs=0.0051)
    assert fitted.score_bundle(items, together / 2).discount == pytest.approx(0.5)
    assert less.expected == plain.expected  # a price changes nobody's mind


def test_unknown_prices_are_said_to_be_unknown() -> None:
    shop = dataset_of([[0], [1]], [[0], [1]], [[0, 1], [1, 2]], 3)
    model = Recommender(**QUICK).fit(shop, SplitPlan("none"), progress=False)
    answer = model.score_bundle(["i0", "i2"])
    assert (answer.price, answer.list_price, answer.discount) == (None, None, None)
    assert model.score_bundle(["i0", "i2"], 7.5).price == 7.5
    with pytest.raises(ConfigError, match="'i0' is not known"):
        model.score_bundle(["i0", "i2"], discount=0.1)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"price": 5.0, "discount": 0.1}, "not both"),
        ({"price": -1.0}, "from 0 up"),
        ({"price": float("nan")}, "from 0 up"),
        ({"discount": 1.5}, "at most 0.99"),
        ({"discount": -0.1}, "at most 0.99"),
        ({"k": 0}, "a whole number, at least 1"),
        ({"items": []}, "at least one item"),
        ({"items": "g0001"}, "list of items, not a string"),
    ],
)
def test_a_wrong_question_is_refused(
    fitted: Recommender, items: list[str], wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        fitted.score_bundle(**({"items": items} | wrong))
    with pytest.raises(UnknownIdError):
        fitted.score_bundle([*items, "nothing"])


# ── The command, and the benchmark's measures ────────────────────────────────────────────────────


def test_the_command_says_what_the_method_says(fitted: Recommender, items: list[str], tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    chosen = ("score-bundle", tmp_path / "model", "--items", ",".join(items), "--price", 20, "-k", 5)
    expected = fitted.score_bundle(items, 20.0, k=5)
    answer = run_json(*chosen)
    assert answer["expected"] == pytest.approx(expected.expected, rel=1e-5)
    assert [person["id"] for person in answer["people"]] == [person.id for person in expected.people]
    assert (answer["low"], answer["high"]) == (expected.low, expected.high)
    shown = run(*chosen).output
    assert f"about {expected.expected:,.1f} of {expected.asked} users would buy it" in shown
    assert f"({expected.low} to {expected.high})" in shown
    assert expected.people[0].id in shown
    estimate = fitted.score_bundle(items, 20.0, k=5, sample=50)
    shown = " ".join(run(*chosen, "--sample", 50).output.split())
    assert re.search(rf"about {estimate.above} of all users ha(s|ve) a chance above", shown)
    assert "of the 50 sampled users" in " ".join(re.sub(r"[┏━┳┓┃┡╇┩│]", " ", shown).split())
    run("score-bundle", tmp_path / "model", "--items", "nothing", code=2)


def test_auc_and_lift_of_known_rankings() -> None:
    bought = np.arange(200) < 2
    assert auc(-np.arange(200.0), bought) == 1
    assert auc(np.arange(200.0), bought) == 0
    assert auc(np.zeros(200), bought) == 0.5
    assert lift(-np.arange(200.0), bought, 0.01) == 100
    assert lift(-np.arange(200.0), bought, 0.02) == 50
    assert lift(np.zeros(200), bought, 0.01) == pytest.approx(1)
    # One of the best two is sure; the other is any of the hundred that follow, one of whom is a buyer.
    tied = np.where(np.arange(200) < 1, 2.0, np.where(np.arange(200) <= 100, 1.0, 0.0))
    assert lift(tied, bought, 0.01) == pytest.approx((1 + 1 / 100) / 2 / 0.01)
