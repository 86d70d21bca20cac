"""How many users buy a new bundle, learned from bundles that were held out of training.

Probes (`training.probes`) are models that were trained without some bundles. They score these bundles as new
ones for the users, and a logistic regression learns which of the users bought them. So a forecast adds up:
the sum of all users' chances is the number of buyers that such a bundle has on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import betainc
from torch import Tensor

from bundlemage.campaigns.chances import (
    Calibration,
    Numbers,
    logistic,
    most_users,
    new_log_probabilities,
    rank_correlation,
    sampled_users,
    sigmoid,
    threshold_of,
)
from bundlemage.data.dataset import binary_matrix, pairs_of
from bundlemage.models.base import Histories, Interactions
from bundlemage.models.ragged import Ragged
from bundlemage.training.probes import LEAST_BUNDLES, Probe, Probes, new_in, without_bundles

LEAST_PURCHASES = 50
"""With fewer purchases of held-out bundles, no number of buyers is forecast."""
SHARE = 0.9
"""The share of new bundles whose number of buyers lies in their interval."""
CHECKED = 0.99
"""The same share for the sums over many bundles that are checked. Chance alone should not fail a check."""
RESAMPLES = 40
"""How often the regression is repeated with bundles that are drawn from the held-out ones."""
PARTS = 5
"""The held-out bundles are checked in this many parts. A forecast is fitted without the part it is for."""
MOST_PAIRS = 2**21
"""The most pairs of a user and a held-out bundle that are scored. In a larger shop, users are drawn."""
MOST_FITTED = 2**16
"""The most pairs without a purchase that the regression uses. If there are more, it uses a sample."""
GROUP = 8
"""The fewest bundles in a group of bundles with similar forecasts. There are at most ten groups."""
DISPERSIONS = (0.0, *np.geomspace(0.01, 20, 40).tolist())
LARGEST = 1e4
"""A larger coefficient cannot come from a regression, only from an altered file."""


@dataclass(frozen=True)
class ForecastGroup:
    """Held-out bundles with similar forecasts: the forecast and the real number of their buyers."""

    bundles: int
    expected: float
    observed: float
    low: float
    high: float
    """Chance alone leaves `observed` between `low` and `high` in 99% of all cases."""

    @property
    def holds(self) -> bool:
        """Whether the forecast and the real number differ by no more than chance explains."""
        return self.low <= self.observed <= self.high


@dataclass(frozen=True)
class NewBundleCalibration:
    """Turns scores of a new bundle into a number of buyers, with an interval.

    It was learned from bundles that were treated as new. All figures are those of a check: the forecast of a
    bundle was fitted without this bundle.
    """

    held_out: int
    """The number of bundles that were treated as new."""
    purchases: int
    """The real number of purchases of these bundles, without those by users who had all items anyway."""
    reason: str | None = None
    """Why no number of buyers is forecast; None if it is."""
    expected: float | None = None
    """The forecast for these bundles, compared with `purchases`."""
    covered: float | None = None
    """The share of these bundles whose number of buyers lies in their interval. It should be about 0.9."""
    groups: tuple[ForecastGroup, ...] = ()
    """The bundles in groups, from the lowest forecast to the highest."""
    calibration: Calibration | None = None
    """The chance that a user ever buys the bundle. In place of the log-probability it takes the lift: the
    logarithm of how many times likelier the bundle is than the mean bundle of the shop."""
    resampled: tuple[tuple[float, float, float], ...] = ()
    """Other values of the intercept, `fit` and `activity` that the held-out bundles allow."""
    dispersion: float = 0.0
    """How much bundles differ from their forecasts beyond chance: the number of buyers has the variance
    mean + dispersion · mean². With this number, `SHARE` of the held-out bundles lie in their intervals."""
    dispersion_of_sums: float = 0.0
    """The same for sums over several bundles. A few bundles that sell far more than the rest count in it."""
    correlation: float = 0.0
    """Spearman's rank correlation between the forecast and the real numbers of buyers of these bundles."""

    def __post_init__(self) -> None:
        spreads = (self.dispersion, self.dispersion_of_sums)
        numbers = np.array([*spreads, self.correlation, *np.ravel(self.resampled)], np.float64)
        if self.calibration is not None:
            own = self.calibration
            numbers = np.append(numbers, [own.intercept, own.fit, own.activity, own.threshold])
        if not (np.abs(numbers) <= LARGEST).all() or min(spreads) < 0:
            raise ValueError(
                f"a coefficient is outside -{LARGEST:g} to {LARGEST:g}, or a dispersion negative"
            )
        if len(self.resampled) != (0 if self.calibration is None else RESAMPLES):
            raise ValueError(f"a calibration needs {RESAMPLES} resampled coefficients")
        if (self.calibration is None) != (self.reason is not None):
            raise ValueError("there must be either a calibration or a reason why there is none")

    @property
    def tells_apart(self) -> bool:
        """Whether the forecasts tell bundles that sell well from others, by more than chance explains."""
        return self.correlation > 2 / math.sqrt(max(1, self.held_out))

    def chances(self, logs: Tensor, histories: Histories, bundles: int) -> Tensor:
        """The chances of users [rows, n] from log-probabilities in a shop with this many bundles."""
        assert self.calibration is not None
        return self.calibration.chances(logs + math.log(max(1, bundles)), histories.bundles.lengths)

    def resampled_chances(self, logs: Tensor, histories: Histories, bundles: int) -> Tensor:
        """The chances [rows, RESAMPLES] for one bundle with each of `resampled`; `logs` has [rows]."""
        intercept, fit, activity = logs.new_tensor(self.resampled).T
        lifts, counts = logs + math.log(max(1, bundles)), torch.log1p(histories.bundles.lengths.to(logs))
        return torch.sigmoid(intercept + fit * lifts[:, None] + activity * counts[:, None])

    def interval(self, totals: Numbers) -> tuple[int, int]:
        """The interval for the number of buyers. `totals` are the sums of `resampled_chances`."""
        low, high = interval(totals, self.dispersion)
        return int(low), int(high)

    @property
    def in_short(self) -> str:
        """A sentence or two."""
        if self.reason is not None:
            return f"The model does not forecast how many users would buy a new bundle: {self.reason}."
        only = "" if self.tells_apart else " They do not tell which of two new bundles sells better."
        return (
            f"Forecasts for new bundles were checked on {self.held_out:,} bundles held out of training: "
            f"{self.expected:,.1f} purchases were forecast in total, and there were {self.purchases:,.0f}."
            f"{only}"
        )

    def __str__(self) -> str:
        """A paragraph for the model card."""
        if self.reason is not None:
            return self.in_short
        of = f"the forecast interval for {self.covered:.0%} of these bundles"
        return f"{self.in_short} The number of buyers was in {of}."


def interval(means: Numbers, dispersion: Numbers | float, share: float = SHARE) -> tuple[Numbers, Numbers]:
    """The interval [...] that has this share of the numbers of buyers. The true mean is one of `means`
    [..., n]; around it the number has a negative binomial distribution."""
    size = 1 / np.maximum(np.asarray(dispersion, np.float64), 1e-6)[..., None]
    chance = size / (size + np.maximum(means, 1e-12))

    def quantile(below: float) -> Numbers:
        low = np.full(means.shape[:-1], -1.0)
        high = np.ceil(10 + 100 * means.max(-1))  # far above any quantile that is asked for
        while (high - low > 1).any():
            middle = np.floor((low + high) / 2)
            reached = betainc(size, middle[..., None] + 1, chance).mean(-1) >= below
            low, high = np.where(reached, low, middle), np.where(reached, middle, high)
        return np.asarray(high, np.float64)

    return quantile((1 - share) / 2), quantile((1 + share) / 2)


def calibrate_new_bundles(probes: Probes) -> NewBundleCalibration:
    """Learns how many users buy a new bundle, from the bundles that the probes did not know."""
    if not probes.parts:
        why = f"fewer than {LEAST_BUNDLES} bundles have a buyer, too few to hold any out"
        return NewBundleCalibration(0, 0, why)
    held_out = np.concatenate(probes.parts)
    purchases = int(probes.split.dataset.user_bundle[:, held_out].nnz)
    if purchases >= LEAST_PURCHASES:
        cases = _Cases([_Scored.by(probe, probes) for probe in probes], probes.seed)
        purchases = round(cases.sales.sum())
    if purchases < LEAST_PURCHASES:
        why = (
            f"{len(held_out):,} bundles were held out of training, and users bought them "
            f"{purchases:,} times, fewer than {LEAST_PURCHASES} times"
        )
        return NewBundleCalibration(len(held_out), purchases, why)
    return cases.calibration()


class Owners:
    """Finds users who have all items of some bundles."""

    def __init__(self, bundles: Ragged, contents: Ragged, items: int) -> None:
        device = bundles.device
        used_items = torch.unique(bundles.values)
        self.column = torch.full((items,), -1, dtype=torch.int64, device=device)
        self.column[used_items] = torch.arange(len(used_items), device=device)
        needed = Ragged(self.column[bundles.values], bundles.offsets)
        self.needed = needed.as_mask(len(used_items)).float()
        kept = contents.keep(self.column[contents.values] >= 0)
        self.in_bundles = Ragged(self.column[kept.values], kept.offsets)

    def have_all(self, histories: Histories) -> Tensor:
        """True for each user and bundle if the user has all items of the bundle."""  # [rows, bundles]
        has = self.needed.new_zeros(len(histories), self.needed.shape[1])
        columns = self.column[histories.items.values]
        there = columns >= 0
        has[histories.items.row_of_entry()[there], columns[there]] = 1
        parts = self.in_bundles.rows(histories.bundles.values)
        has[histories.bundles.row_of_entry()[parts.row_of_entry()], parts.values] = 1
        return has @ self.needed.T == self.needed.sum(1)


@dataclass(frozen=True)
class _Scored:
    """Users and the bundles that were new to one probe."""

    lifts: npt.NDArray[np.float32]  # [users, bundles]
    bought: npt.NDArray[np.bool_]  # [users, bundles]
    weights: npt.NDArray[np.float32]  # [users, bundles]
    """How many users each user stands for. It is 0 if the user has all items of the bundle without it."""
    activity: npt.NDArray[np.float32]  # [users]
    sales: Numbers  # [bundles]
    """The number of buyers, without those who had all items."""

    @classmethod
    def by(cls, probe: Probe, probes: Probes) -> _Scored:
        """Scores the new bundles for all users, or for a sample of them."""
        device, whole = probes.device, probes.split.dataset
        # Histories are complete, as in a shop that uses the model, except for bundles that the split holds
        # out as new. A user's number of bundles includes those that are new to the probe: so the shop's
        # number of bundles per user is the one that a forecast finds later.
        users, bundles = pairs_of(whole.user_bundle)
        seen = ~np.isin(bundles, new_in(probes.split))
        matrix = binary_matrix(users[seen], bundles[seen], whole.user_bundle.shape)
        whole = whole.with_interactions(user_bundle=matrix)
        data = Interactions.of(without_bundles(whole, probe.new, probe.known), device)
        new = Ragged.from_csr(whole.bundle_item[probe.new], device)
        bought = whole.user_bundle[:, probe.new]
        counts = np.diff(whole.user_bundle.indptr)
        owners, contents = Owners(new, data.bundle_item, data.items), data.bundle_item
        most = min(most_users(probe.model, len(contents)), MOST_PAIRS // len(new) // len(probes.parts))
        took, random = np.diff(bought.indptr) > 0, np.random.default_rng(probes.seed)
        parts: list[tuple[npt.NDArray[Any], ...]] = []
        with torch.inference_mode():
            for batch, weight in sampled_users(took, max(2, most), len(contents), device, random):
                histories = data.histories(torch.from_numpy(batch).to(device))
                logs = new_log_probabilities(probe.model, histories, contents, new)
                lifts = logs.float().cpu().numpy() + np.float32(math.log(len(contents)))
                lacks = ~owners.have_all(histories).cpu().numpy()
                weights = np.float32(weight) * lacks.astype(np.float32)
                parts.append((lifts, bought[batch].toarray() > 0, weights, counts[batch]))
        lifts, taken, weights, counts = (np.concatenate(part) for part in zip(*parts, strict=True))
        sales = np.bincount(bought.indices, minlength=len(new)).astype(np.float64)
        if len(counts) == len(whole.users):
            sales = (taken * weights).sum(0, dtype=np.float64)
        else:  # the sales of all users, less the share of buyers in the sample who had all items
            sales *= int((taken & (weights > 0)).sum()) / max(1, int(taken.sum()))
        return cls(lifts, taken, weights, np.log1p(counts, dtype=np.float32), sales)

    def expected(self, coefficients: Numbers) -> Numbers:
        """The forecast number of buyers of each bundle."""  # [bundles]
        intercept, fit, activity = coefficients.astype(np.float32)
        logits = fit * self.lifts + (intercept + activity * self.activity)[:, None]
        total: Numbers = (sigmoid(logits) * self.weights).sum(0, dtype=np.float64)
        return total


class _Cases:
    """All held-out bundles. The regression that fits their sales, and the check of its forecasts."""

    def __init__(self, scored: list[_Scored], seed: int) -> None:
        self.scored, self.random = scored, np.random.default_rng([seed, 1])
        self.sales = np.concatenate([part.sales for part in scored])  # [bundles]
        tables, first = [], 0
        total = sum(part.lifts.size for part in scored)
        for part in scored:
            chosen = part.bought | (self.random.random(part.bought.shape) < MOST_FITTED / total)
            row, column = np.nonzero(chosen & (part.weights > 0))
            bought = part.bought[row, column]
            weights = part.weights[row, column] * np.where(bought, 1, max(1.0, total / MOST_FITTED))
            tables.append((part.lifts[row, column], part.activity[row], weights, bought, column + first))
            first += len(part.sales)
        lifts, activity, self.weights, bought, self.bundle = (
            np.concatenate(column) for column in zip(*tables, strict=True)
        )
        self.bought = bought > 0
        self.features = np.stack([np.ones_like(lifts), lifts, activity], axis=1).astype(np.float64)

    def fitted(self, times: Numbers, start: Numbers) -> tuple[Numbers, Numbers]:
        """The coefficients if each bundle counts `times`, and the forecasts of all bundles."""
        used = times[self.bundle] > 0
        weights = (self.weights * times[self.bundle])[used]
        prior = np.array([0.0, 1.0, 0.0])
        found = logistic(self.features[used], self.bought[used], weights, prior, start)
        expected = np.concatenate([part.expected(found) for part in self.scored])
        # The regression may have used a sample of the pairs. The sum over all pairs should be right as well.
        ratio = max(times @ self.sales, 0.5) / max(times @ expected, 1e-12)
        return found + np.array([np.log(ratio), 0.0, 0.0]), expected * ratio

    def calibration(self) -> NewBundleCalibration:
        """The calibration from all held-out bundles, and what the check found."""
        count = len(self.sales)
        own, _ = self.fitted(np.ones(count), np.array([0.0, 1.0, 0.0]))
        part_of = self.random.permutation(np.arange(count) % PARTS)
        expected = np.empty(count)  # of each bundle, fitted without it
        for part in range(PARTS):
            expected[part_of == part] = self.fitted((part_of != part).astype(float), own)[1][part_of == part]
        draws = [self.random.integers(count, size=count) for _ in range(RESAMPLES)]
        again = [self.fitted(np.bincount(draw, minlength=count).astype(float), own) for draw in draws]
        forecasts = np.stack([forecast for _, forecast in again], axis=1)  # [bundles, RESAMPLES]
        dispersion, covered = _dispersion(expected, self.sales)
        of_sums = _variance(expected, self.sales)
        groups = groups_of(expected, self.sales, forecasts, of_sums)
        why = _doubt(_group(expected, self.sales, forecasts, of_sums), groups)
        figures = (count, round(self.sales.sum()), why, float(expected.sum()), covered, groups)
        if why is not None:
            return NewBundleCalibration(*figures)
        resampled = tuple((float(a), float(b), float(c)) for (a, b, c), _ in again)
        correlation = rank_correlation(expected, self.sales)
        own_calibration = self._with_threshold(own)
        return NewBundleCalibration(*figures, own_calibration, resampled, dispersion, of_sums, correlation)

    def _with_threshold(self, coefficients: Numbers) -> Calibration:
        chances = sigmoid(self.features @ coefficients)
        threshold = threshold_of(chances, self.weights.astype(np.float64), float(self.sales.sum()))
        intercept, fit, activity = coefficients.tolist()
        return Calibration(intercept, fit, activity, threshold)


def _dispersion(expected: Numbers, sales: Numbers) -> tuple[float, float]:
    """The smallest dispersion with which SHARE of the bundles lie in their intervals, and the share."""
    covered = []
    for dispersion in DISPERSIONS:
        low, high = interval(expected[:, None], dispersion)
        covered.append(float(np.mean((low <= sales) & (sales <= high))))
        if covered[-1] >= SHARE:
            break
    best = int(np.argmax(covered))
    return DISPERSIONS[best], covered[best]


def _variance(expected: Numbers, sales: Numbers) -> float:
    """The dispersion that has the variance of the bundles around their forecasts. For sums over bundles it is
    better than that of `_dispersion`: a few bundles that are far outside their intervals count, too."""
    excess = ((sales - expected) ** 2 - expected).sum() / max((expected**2).sum(), 1e-12)
    return max(0.0, float(excess))


def groups_of(
    expected: Numbers, sales: Numbers, resampled: Numbers, dispersion: float
) -> tuple[ForecastGroup, ...]:
    """Bundles in groups, from the lowest forecast to the highest: the sums of their forecasts and sales.

    `resampled` [bundles, n] has other forecasts that are possible, and `dispersion` is that of sums.
    """
    order = np.argsort(expected, kind="stable")
    return tuple(
        _group(expected[chosen], sales[chosen], resampled[chosen], dispersion)
        for chosen in np.array_split(order, max(1, min(10, len(order) // GROUP)))
    )


def _group(expected: Numbers, sales: Numbers, resampled: Numbers, dispersion: float) -> ForecastGroup:
    """Some bundles together. The dispersions of the bundles partly cancel out in their sum."""
    total = float(expected.sum())
    of_sum = dispersion * float((expected**2).sum()) / max(total, 1e-12) ** 2
    low, high = interval(resampled.sum(0), of_sum, CHECKED)
    return ForecastGroup(len(sales), total, float(sales.sum()), float(low), float(high))


def _doubt(total: ForecastGroup, groups: tuple[ForecastGroup, ...]) -> str | None:
    """Returns why the forecasts are not to be trusted; None if the check found nothing."""
    if not total.holds:
        return (
            f"in a check on {total.bundles:,} bundles held out of training, {total.expected:,.1f} purchases "
            f"were forecast, and there were {total.observed:,.0f}: chance does not explain the difference"
        )
    wrong = sum(not group.holds for group in groups)
    if wrong > 1:
        return (
            f"in a check on {total.bundles:,} bundles held out of training, the forecasts for {wrong} of "
            f"{len(groups)} groups of bundles were further from the real numbers than chance explains"
        )
    return None
