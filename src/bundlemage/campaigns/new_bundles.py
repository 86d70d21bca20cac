"""How many users buy a new bundle, learned from bundles that were held out of training.

Probes (`training.probes`) are models that were trained without some bundles. They score these bundles as new
ones for the users. Two things are learned from who bought them. A regression over the bundles says how many
users buy a bundle. A logistic regression over the users says which ones: it distributes this number over the
users. So a score that finds the right users, but not the bundles that sell, leads to no wrong numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize_scalar
from scipy.special import betainc, logsumexp
from torch import Tensor

from bundlemage.campaigns.chances import (
    Numbers,
    logistic,
    most_users,
    new_log_probabilities,
    rank_correlation,
    sampled_users,
    sigmoid,
    threshold_of,
)
from bundlemage.core.ownership import Goods
from bundlemage.data.dataset import binary_matrix, pairs_of
from bundlemage.models.base import Histories, Matcher, require
from bundlemage.models.ragged import Ragged
from bundlemage.training.probes import TOO_FEW_BUNDLES, Probe, Probes, new_in, without_bundles

LEAST_PURCHASES = 50
"""With fewer purchases of held-out bundles, no number of buyers is forecast."""
SHARE = 0.9
"""The share of new bundles whose number of buyers lies in their interval."""
RESAMPLES = 40
"""How often the regression is repeated with bundles that are drawn from the held-out ones."""
MIXED = 100
"""An interval for more possible means uses this many of them, evenly spaced in their order. That is as good
and many times as fast."""
PARTS = 5
"""The held-out bundles are checked in this many parts. A forecast is fitted without the part it is for."""
MOST_PAIRS = 2**21
"""The most pairs of a user and a held-out bundle that are scored. In a larger shop, users are drawn."""
MOST_FITTED = 2**16
"""The most pairs without a purchase that the logistic regression uses, a sample if there are more."""
AnyNumbers: TypeAlias = Numbers | npt.NDArray[np.float32]
DISPERSIONS = (0.0, *np.geomspace(0.01, 20, 40).tolist())
STEEPEST = 10.0
"""The largest factor of a bundle's level."""
LARGEST = 1e4
"""A larger coefficient cannot come from a regression, only from an altered file."""


@dataclass(frozen=True)
class NewBundleCalibration:
    """Turns scores of a new bundle into a number of buyers, with an interval, and into chances of the users.

    It was learned from bundles that were treated as new. A score enters as the lift: the logarithm of how
    many times likelier the bundle is for the user than the mean bundle of the shop. Only users who lack an
    item of the bundle count.
    """

    held_out: int
    """The number of bundles that were treated as new."""
    purchases: int
    """The real number of purchases of these bundles, without those by users who had all items anyway."""
    reason: str | None = None
    """Why no number of buyers is forecast; None if it is."""
    correlation: float = 0.0
    """Spearman's rank correlation between the levels of these bundles and their real numbers of buyers."""
    error: float = 0.0
    """How far the forecasts for these bundles were from the real numbers of buyers: the mean absolute
    difference. Each forecast was fitted without the bundle."""
    covered: float = 0.0
    """The share of these bundles whose number of buyers was in an interval that was fitted without the
    bundle. It should be about `SHARE`."""
    fit: float = 1.0
    """The factor of the user's lift. It tells users apart, and does not change the number of buyers of a
    typical bundle."""
    activity: float = 0.0
    """The factor of the logarithm of 1 + the number of bundles that the user has."""
    intercept: float = 0.0
    level: float = 0.0
    """The factor of the bundle's level, which is the logarithm of the users' mean exp(fit · lift). It is 0 if
    the held-out bundles do not show that levels tell which bundles sell better: each bundle then has the
    number of buyers of a typical one."""
    threshold: float = 0.0
    """Chosen so that as many pairs of a user and a held-out bundle have a higher chance as were bought."""
    levels: tuple[float, float] = (0.0, 0.0)
    """The lowest and the highest level of the held-out bundles. A bundle outside counts as the nearer one:
    nothing is known about such bundles."""
    resampled: tuple[tuple[float, float], ...] = ()
    """Other values of `intercept` and `level` that the held-out bundles allow."""
    dispersion: float = 0.0
    """How much bundles differ from their forecasts beyond chance: the number of buyers has the variance
    mean + dispersion · mean². With this number, `SHARE` of the held-out bundles lie in their intervals."""

    def __post_init__(self) -> None:
        own = (self.intercept, self.level, self.activity, self.fit, self.threshold, self.dispersion)
        check = (self.correlation, self.error, self.covered)
        numbers = np.array([*own, *check, *self.levels, *np.ravel(self.resampled)])
        if not (np.abs(numbers) <= LARGEST).all() or min(self.level, self.dispersion) < 0:
            raise ValueError(
                f"a coefficient is outside -{LARGEST:g} to {LARGEST:g}, or a level or dispersion is negative"
            )
        if len(self.resampled) != (RESAMPLES if self.reason is None else 0):
            raise ValueError(
                f"there must be {RESAMPLES} resampled coefficients, or a reason why there are none"
            )

    @property
    def tells_apart(self) -> bool:
        """Whether forecasts differ between bundles, because the check found that levels tell them apart."""
        return self.level > 0

    def sums(self, logs: Tensor, histories: Histories, lacks: Tensor, bundles: int) -> Numbers:
        """Sums over users, of which `expected` makes numbers of buyers. Those of several batches are added.

        `logs` [rows, n] are log-probabilities in a shop with this many bundles. `lacks` [rows, n] marks users
        who lack an item.
        """  # [3, n]
        lifts = (logs.double() + math.log(max(1, bundles))).cpu().numpy()
        counts = torch.log1p(histories.bundle_counts.double()).cpu().numpy()
        return _sums(lifts, counts, lacks.double().cpu().numpy(), self.fit, self.activity)

    def terms(self, logs: Tensor, histories: Histories, lacks: Tensor, bundles: int) -> Numbers:
        """The terms of `sums` for one bundle: `logs` and `lacks` have [rows]."""  # [3, rows]
        lacking = lacks.double()
        active = lacking * torch.exp(self.activity * torch.log1p(histories.bundle_counts.double()))
        lifts = torch.exp(self.fit * (logs.double() + math.log(max(1, bundles))))
        terms: Numbers = torch.stack([lacking, active, lacking * lifts]).cpu().numpy()
        return terms

    def expected(self, sums: Numbers) -> Numbers:
        """The expected numbers of buyers."""  # [n]
        return _expected(sums, self.levels, self.intercept, self.level)

    def interval(
        self, sums: Numbers, shares: float | Numbers = 1.0, most: float | None = None
    ) -> tuple[int, int]:
        """The interval for the number of buyers of one bundle.

        `sums` has [3], or [3, n] for n values that estimated sums may have. `shares` is the share of the
        buyers to count: one number, or n. There are at most `most` buyers; None: all who lack an item.
        """
        means = np.ravel(shares * np.array([_expected(sums, self.levels, *each) for each in self.resampled]))
        if len(means) > MIXED:
            means = np.quantile(means, (np.arange(MIXED) + 0.5) / MIXED)
        low, high = interval(means, self.dispersion)
        most = np.max(sums[0]) if most is None else most
        return int(min(low, most)), int(min(high, most))

    def logits(self, logs: Tensor, histories: Histories) -> Tensor:
        """The log-odds [rows, n] that users buy bundles, apart from a constant for each bundle."""
        return self.fit * logs + self.activity * torch.log1p(histories.bundle_counts.to(logs))[:, None]

    @property
    def in_short(self) -> str:
        """A sentence or two."""
        if self.reason is not None:
            return f"The model does not forecast how many users would buy a new bundle: {self.reason}."
        how = f"which of two new bundles sells better (rank correlation {self.correlation:.2f})"
        tells = f"They tell {how}."
        if not self.tells_apart:
            tells = f"They do not tell {how}, so each gets the number of buyers of a typical bundle."
        return (
            f"Forecasts for new bundles were checked on {self.held_out:,} bundles held out of training. "
            f"These had {self.purchases / self.held_out:,.1f} buyers on average, and forecasts were wrong by "
            f"{self.error:,.1f} on average. {tells}"
        )

    def __str__(self) -> str:
        """A paragraph for the model card."""
        if self.reason is not None:
            return self.in_short
        return (
            f"{self.in_short} For {self.covered:.0%} of these bundles, the number of buyers was in the "
            "interval, which was fitted without the bundle."
        )


def _sums(lifts: AnyNumbers, counts: AnyNumbers, weights: AnyNumbers, fit: float, activity: float) -> Numbers:
    """For each bundle, three sums over the users who lack an item: of 1, of exp(activity · count) and of
    exp(fit · lift)."""
    active = weights * np.exp(activity * counts)[:, None]
    parts = (weights, active, weights * np.exp(fit * lifts.astype(np.float64)))
    return np.stack([part.sum(0, dtype=np.float64) for part in parts])


def _levels(sums: Numbers) -> Numbers:
    levels: Numbers = np.log(np.maximum(sums[2], 1e-99) / np.maximum(sums[0], 1e-99))
    return levels


def _expected(sums: Numbers, levels: tuple[float, float], intercept: float, level: float) -> Numbers:
    """The expected numbers of buyers. No bundle has more than users."""
    expected = np.exp(intercept + level * np.clip(_levels(sums), *levels)) * sums[1]
    limited: Numbers = np.minimum(sums[0], expected)
    return limited


def interval(means: Numbers, dispersion: float, share: float = SHARE) -> tuple[Numbers, Numbers]:
    """The interval [...] that has this share of the numbers of buyers. The true mean is one of `means`
    [..., n]; around it the number has a negative binomial distribution."""
    size = 1 / max(dispersion, 1e-6)
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
        return NewBundleCalibration(0, 0, TOO_FEW_BUNDLES)
    held_out = np.concatenate(probes.parts)
    purchases = int(probes.split.dataset.bought_bundles[:, held_out].nnz)
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
    """Finds users to whom some bundles are not offered: those who have all items, or rejected one."""

    def __init__(self, bundles: Ragged, contents: Ragged, items: int) -> None:
        """`contents` are the bundles that users may have."""
        self._goods, self._contents = Goods(bundles, items), contents

    def excluded(self, histories: Histories) -> Tensor:
        """True for each user and bundle if the user has all items of the bundle, or rejected one of
        them."""  # [rows, bundles]
        found = self._goods.whole(self._goods.owned(histories, self._contents))
        if histories.rejected_items is not None:
            rows, bundles = self._goods.partly_owned(histories.rejected_items)
            found[torch.from_numpy(rows).to(found.device), torch.from_numpy(bundles).to(found.device)] = True
        return found


@dataclass(frozen=True)
class _Scored:
    """Users and the bundles that were new to one probe."""

    lifts: npt.NDArray[np.float32]  # [users, bundles]
    bought: npt.NDArray[np.bool_]  # [users, bundles]
    weights: npt.NDArray[np.float32]  # [users, bundles]
    """How many users each user stands for. It is 0 if the user has all items of the bundle without it."""
    counts: npt.NDArray[np.float32]  # [users]
    """The logarithm of 1 + the number of bundles that the user has."""
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
        data = probe.model.interactions(without_bundles(whole, probe.new, probe.known), device)
        new = Ragged.from_csr(whole.bundle_item[probe.new], device)
        purchases = whole.bought_bundles
        bought, counts = purchases[:, probe.new], np.diff(purchases.indptr)
        owners, contents = Owners(new, data.bundle_item, data.items), data.bundle_item
        forecaster = require(probe.model, Matcher).forecaster
        most = min(most_users(forecaster, len(contents)), MOST_PAIRS // len(new) // len(probes.parts))
        took, random = np.diff(bought.indptr) > 0, np.random.default_rng(probes.seed)
        parts: list[tuple[npt.NDArray[Any], ...]] = []
        with torch.inference_mode():
            for batch, weight in sampled_users(took, max(2, most), len(contents), device, random):
                histories = data.histories(torch.from_numpy(batch).to(device))
                logs = new_log_probabilities(forecaster, histories, contents, new)
                lifts = logs.float().cpu().numpy() + np.float32(math.log(len(contents)))
                lacks = ~owners.excluded(histories).cpu().numpy()
                weights = np.float32(weight) * lacks.astype(np.float32)
                parts.append((lifts, bought[batch].toarray() > 0, weights, counts[batch]))
        lifts, taken, weights, counts = (np.concatenate(part) for part in zip(*parts, strict=True))
        sales = np.bincount(bought.indices, minlength=len(new)).astype(np.float64)
        if len(counts) == len(whole.users):
            sales = (taken * weights).sum(0, dtype=np.float64)
        else:  # the sales of all users, less the share of buyers in the sample who had all items
            sales *= int((taken & (weights > 0)).sum()) / max(1, int(taken.sum()))
        return cls(lifts, taken, weights, np.log1p(counts, dtype=np.float32), sales)


@dataclass(frozen=True)
class _Learned:
    """What some of the held-out bundles tell."""

    coefficients: dict[str, Any]
    sums: Numbers  # [3, bundles]
    """Of all bundles."""
    levels: tuple[float, float]
    resampled: tuple[tuple[float, float], ...]
    dispersion: float

    @property
    def expected(self) -> Numbers:
        """The forecasts for all bundles."""  # [bundles]
        return _expected(self.sums, self.levels, self.coefficients["intercept"], self.coefficients["level"])

    def intervals(self) -> tuple[Numbers, Numbers]:
        means = np.stack([_expected(self.sums, self.levels, *each) for each in self.resampled], axis=1)
        return interval(means, self.dispersion)


class _Cases:
    """All held-out bundles: what they tell about the next ones, and a check of it."""

    def __init__(self, scored: list[_Scored], seed: int) -> None:
        self.scored, self.random = scored, np.random.default_rng([seed, 1])
        self.sales = np.concatenate([part.sales for part in scored])  # [bundles]
        self.part_of = self._parts(len(self.sales))
        tables, first = [], 0
        total = sum(part.lifts.size for part in scored)
        for part in scored:
            total_weights = np.maximum(part.weights.sum(0, dtype=np.float64), 1e-12)
            means = (part.lifts * part.weights).sum(0, dtype=np.float64) / total_weights
            chosen = part.bought | (self.random.random(part.bought.shape) < MOST_FITTED / total)
            row, column = np.nonzero(chosen & (part.weights > 0))
            bought = part.bought[row, column]
            weights = part.weights[row, column] * np.where(bought, 1, max(1.0, total / MOST_FITTED))
            lifts = part.lifts[row, column] - means[column]  # only differences between users count
            tables.append((lifts, part.counts[row], weights, bought, column + first))
            first += len(part.sales)
        lifts, counts, self.weights, bought, self.bundle = (
            np.concatenate(column) for column in zip(*tables, strict=True)
        )
        self.bought = bought > 0
        self.features = np.stack([np.ones_like(lifts), lifts, counts], axis=1).astype(np.float64)

    def _parts(self, count: int) -> npt.NDArray[np.int64]:
        return self.random.permutation(np.arange(count) % PARTS)

    def learned(self, chosen: npt.NDArray[np.intp]) -> _Learned:
        """What the chosen bundles tell. The others may serve as a check."""
        used = np.isin(self.bundle, chosen)
        prior = np.array([0.0, 1.0, 0.0])
        _, fit, activity = logistic(
            self.features[used], self.bought[used], self.weights[used], prior
        ).tolist()
        sums = np.concatenate(
            [_sums(part.lifts, part.counts, part.weights, fit, activity) for part in self.scored], axis=1
        )
        own, sales = sums[:, chosen], self.sales[chosen]
        apart = self._tells_apart(own, sales)
        intercept, level = _regression(own, sales, apart)
        draws = self.random.integers(len(chosen), size=(RESAMPLES, len(chosen)))
        resampled = tuple(_regression(own[:, draw], sales[draw], apart) for draw in draws)
        levels = _range(own)
        dispersion = _dispersion(_expected(own, levels, intercept, level), sales)
        coefficients = {"fit": fit, "activity": activity, "intercept": intercept, "level": level}
        return _Learned(coefficients, sums, levels, resampled, dispersion)

    def _tells_apart(self, sums: Numbers, sales: Numbers) -> bool:
        """Whether forecasts that differ by levels are closer to the real numbers of buyers than one number
        is, by two standard errors of the squared errors. Each forecast is fitted without the bundle."""
        part_of = self._parts(len(sales))
        errors = np.empty((2, len(sales)))
        for part in range(PARTS):
            own, others = part_of == part, part_of != part
            for row, apart in zip(errors, (True, False), strict=True):
                found = _regression(sums[:, others], sales[others], apart)
                forecasts = _expected(sums[:, own], _range(sums[:, others]), *found)
                row[own] = (forecasts - sales[own]) ** 2
        gains = errors[1] - errors[0]
        return bool(gains.mean() > 2 * gains.std() / math.sqrt(len(gains)))

    def calibration(self) -> NewBundleCalibration:
        """The calibration from all held-out bundles, and what the check found."""
        count = len(self.sales)
        expected, low, high = np.empty((3, count))  # of each bundle, learned without it
        for part in range(PARTS):
            own = self.part_of == part
            learned = self.learned(np.flatnonzero(~own))
            for values, all_values in zip(
                (expected, low, high), (learned.expected, *learned.intervals()), strict=True
            ):
                values[own] = all_values[own]
        learned = self.learned(np.arange(count))
        return NewBundleCalibration(
            held_out=count,
            purchases=round(self.sales.sum()),
            correlation=rank_correlation(_levels(learned.sums), self.sales),
            error=float(np.abs(expected - self.sales).mean()),
            covered=float(np.mean((low <= self.sales) & (self.sales <= high))),
            threshold=self._threshold(learned),
            levels=learned.levels,
            resampled=learned.resampled,
            dispersion=learned.dispersion,
            **learned.coefficients,
        )

    def _threshold(self, learned: _Learned) -> float:
        chances, first = [], 0
        for part in self.scored:
            expected = learned.expected[first : first + len(part.sales)]
            logits = learned.coefficients["fit"] * part.lifts
            logits += (learned.coefficients["activity"] * part.counts)[:, None]
            chances.append(sigmoid(logits + shifts(logits, expected, part.weights)).ravel())
            first += len(part.sales)
        weights = np.concatenate([part.weights.ravel() for part in self.scored])
        return threshold_of(
            np.concatenate(chances).astype(np.float64), weights.astype(np.float64), float(self.sales.sum())
        )


def shifts(
    logits: npt.NDArray[np.float32], totals: Numbers, weights: npt.NDArray[np.float32] | None = None
) -> npt.NDArray[np.float32]:
    """The numbers to add to the columns of `logits` [users, n], so that their chances add up to `totals`."""
    low, high = np.full(len(totals), -200.0), np.full(len(totals), 200.0)
    for _ in range(40):
        middle = (low + high) / 2
        chances = sigmoid(logits + middle.astype(np.float32))
        sums = (chances if weights is None else chances * weights).sum(0, dtype=np.float64)
        low, high = np.where(sums < totals, middle, low), np.where(sums < totals, high, middle)
    found: npt.NDArray[np.float32] = ((low + high) / 2).astype(np.float32)
    return found


def _range(sums: Numbers) -> tuple[float, float]:
    levels = _levels(sums)
    return float(levels.min()), float(levels.max())


def _regression(sums: Numbers, sales: Numbers, apart: bool) -> tuple[float, float]:
    """The intercept and the level of a Poisson regression. The forecasts of its bundles add up to their
    sales. Without `apart`, the level is 0."""
    levels, active = _levels(sums), np.maximum(sums[1], 1e-99)
    total = max(float(sales.sum()), 0.5)

    def log_sum(level: float) -> float:
        """The logarithm of the sum of the forecasts with the intercept 0."""
        return float(logsumexp(level * levels, b=active))

    level = 0.0
    if apart:

        def unlikely(level: float) -> float:
            return float(total * log_sum(level) - level * (sales @ levels))

        level = float(minimize_scalar(unlikely, bounds=(0.0, STEEPEST), method="bounded").x)
    return math.log(total) - log_sum(level), level


def _dispersion(expected: Numbers, sales: Numbers) -> float:
    """The smallest dispersion with which SHARE of the bundles lie in their intervals."""
    covered = []
    for dispersion in DISPERSIONS:
        low, high = interval(expected[:, None], dispersion)
        covered.append(float(np.mean((low <= sales) & (sales <= high))))
        if covered[-1] >= SHARE:
            break
    best: float = DISPERSIONS[int(np.argmax(covered))]
    return best
