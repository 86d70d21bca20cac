"""The chance that a user takes a bundle, from the model's scores, calibrated on validation cases.

`campaigns.new_bundles` does the same for bundles that do not exist yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from bundlemage.core.answering import rows_at_a_time
from bundlemage.core.ranking import top
from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.leakage import without, without_items_of
from bundlemage.data.splits import COLD_PROTOCOLS, PAD, Split
from bundlemage.models.base import Histories, Matcher, Model, SalesScorer, can, require
from bundlemage.models.ragged import Contents, Ragged

Numbers = npt.NDArray[np.float64]
AnyFloat = TypeVar("AnyFloat", bound=np.floating)

SCORES = 2**26
"""Maximum number of scores that a calibration uses. In a larger shop it uses a sample of the users."""
SLOW_SCORES = 2**21
"""The same maximum for a model that needs more than a product of two vectors for a score."""
LIKELIEST = 32
"""The number of bundles for each user that are used without sampling: the likeliest ones that the user did
not take. Hardly any other bundle has a chance above `Calibration.threshold`."""
DRAWN = 32
"""The number of other bundles that are drawn for each user. Their weights also represent those not drawn."""
PRIOR = 0.01
"""The strength of the prior, which is the uncalibrated softmax. It matters only for a coefficient that the
cases do not determine, such as that of activity if all users are equally active."""
STEPS = 100
MOST_BENDS = 3
BOUGHT_PER_BEND = 50
"""The number of purchases in validation for each bend of a calibration, up to `MOST_BENDS`."""
MOST_COMPARED = 2**20
"""The most pairs of a user and a bundle on which two models are compared."""
LEAST_AGREEMENT = 0.5
"""A calibration is carried over only to a model whose log-probabilities have at least this rank correlation
with those of the old model."""


@dataclass(frozen=True)
class Calibration:
    """The logarithm of the odds that a user takes a bundle, as a sum of terms.

    The odds grow with the bundle's probability, but not in the same way for likely and for unlikely bundles.
    So the term of the probability is a line with a few bends.

    The meaning of a chance depends on the validation cases. If they hold out one bundle of some users or of
    all, it is the chance that a user takes the bundle next. If they hold out whole bundles, it is the chance
    that the user ever takes the bundle.
    """

    intercept: float
    fit: float
    """The factor of the logarithm of the bundle's probability among all bundles of the shop."""
    activity: float
    """The factor of the logarithm of 1 + the number of bundles that the user has."""
    threshold: float
    """Chosen so that as many user-bundle pairs are above it as were bought in validation."""
    bends: tuple[tuple[float, float], ...] = ()
    """Pairs of a log-probability and how much the factor `fit` changes above it."""

    def chances(self, log_probability: Tensor, bundles: Tensor) -> Tensor:
        """The chances [rows, n] from log-probabilities [rows, n] and the users' numbers of bundles [rows]."""
        activity = torch.log1p(bundles.to(log_probability.dtype))
        return torch.sigmoid(self.log_odds(log_probability, activity[:, None]))

    def log_odds(self, log_probability: Tensor, activity: Tensor) -> Tensor:
        """The log-odds. `activity` is the logarithm of 1 + the users' numbers of bundles."""
        found = self.intercept + self.fit * log_probability + self.activity * activity
        for place, change in self.bends:
            found += change * (log_probability - place).clamp_(min=0)
        return found

    def stretched(self, factor: float, move: float) -> Calibration:
        """Returns the calibration that gives `x` the odds which this one gives `factor * x + move`."""
        return replace(
            self,
            intercept=self.intercept + self.fit * move,
            fit=self.fit * factor,
            bends=tuple(((place - move) / factor, change * factor) for place, change in self.bends),
        )


def chances_of(calibration: Calibration | None, logs: Tensor, histories: Histories) -> Tensor:
    """The chances [rows, n] from log-probabilities. Without a calibration, chances are the probabilities."""
    return logs.exp() if calibration is None else calibration.chances(logs, histories.bundle_counts)


def normaliser(model: Model, histories: Histories, contents: Ragged) -> Tensor:
    """The log of the sum of exp(score) over the shop's bundles. A score minus this is a log-probability."""
    scores = require(model, Matcher).bundle_scores(histories, contents)
    return scores.logsumexp(1, keepdim=True)  # [rows, 1]


def new_log_probabilities(
    model: Model, histories: Histories, contents: Ragged, new: Ragged, log_sums: Tensor | None = None
) -> Tensor:
    """Log-probabilities of new bundles, each compared with the bundles of the shop. `log_sums` is the result
    of `normaliser`, if it is known.

    A forecast assumes that a new bundle sells like the median bundle (see `with_median_sales`).
    """  # [rows, new]
    new = with_median_sales(model, new)
    scores = require(model, Matcher).score_new_bundles(histories, contents, new)
    model.checked("score_new_bundles", scores, len(histories), len(new))
    return scores - (normaliser(model, histories, contents) if log_sums is None else log_sums)


def with_median_sales(model: Model, new: Ragged) -> Ragged:
    """Returns new bundles with the expected sales of a forecast: those of the median bundle.

    A forecast does not use `new_bundle_credit`: that number is chosen for the best ranking, and most new
    bundles sell less.
    """
    if can(model, SalesScorer) and len(sales := model.known_sales()):
        return Contents.of(new, sales.median().expand(len(new)))
    return new


def calibrate(model: Model, split: Split, device: torch.device, seed: int = 0) -> Calibration | None:
    """Learns a calibration from the split's validation cases; None if there are none.

    It compares bundles that users bought in validation with bundles that they never bought. Users of whom the
    split holds nothing out are left out: it says nothing about them. In a split of cold bundles, only bundles
    that are new in validation are compared, for all users, and they are scored as new bundles.
    """
    if split.validation is None or not len(split.validation) or not can(model, Matcher):
        return None
    logs, bundles, weights, bought = scored_pairs(model, split, device, seed)
    if not bought.any():
        return None
    places = _places_of_bends(logs[bought])
    start = np.stack([np.ones_like(weights), np.log1p(bundles)], axis=1)
    while True:
        above = [np.maximum(logs - place, 0.0) for place in places]
        features = np.column_stack([start, logs, *above])
        expected = np.array([0.0, 0.0, 1.0, *(0.0 for _ in places)])
        coefficients = logistic(features, bought, weights, expected)
        falling = np.cumsum(coefficients[2:]) <= 0
        if not falling.any():
            break
        # A likelier bundle must not have a lower chance: leave out the bend before or after the falling part.
        if places:
            del places[max(0, int(falling.argmax()) - 1)]
            continue
        # Without bends, the model says nothing about these purchases, or the opposite: it is not used.
        coefficients = np.append(logistic(start, bought, weights, np.zeros(2)), 0.0)
        break
    threshold = threshold_of(sigmoid(features @ coefficients), weights, weights[bought].sum())
    intercept, activity, fit, *changes = coefficients.tolist()
    return Calibration(intercept, fit, activity, threshold, tuple(zip(places, changes, strict=True)))


def scored_pairs(
    model: Model, split: Split, device: torch.device, seed: int = 0
) -> tuple[Numbers, Numbers, Numbers, npt.NDArray[np.bool_]]:
    """Returns pairs of a user and a bundle from the validation cases: the log-probabilities, the users'
    numbers of bundles, how many pairs each one represents, and whether the user bought the bundle."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            cases = _Cases(model, split, device, seed)
            batches = cases.user_batches() if len(cases.candidates) else ()
            pairs = np.concatenate([np.zeros((4, 0)), *(cases.pairs(*batch) for batch in batches)], axis=1)
    finally:
        model.train(was_training)
    return pairs[0], pairs[1], pairs[2], pairs[3] > 0


def _places_of_bends(bought: Numbers) -> list[float]:
    """Returns the log-probabilities at which the line may bend: quantiles of those of the bundles that were
    bought, so that there are enough purchases on both sides of each."""
    count = min(MOST_BENDS, len(bought) // BOUGHT_PER_BEND)
    shares = np.arange(1, count + 1) / (count + 1)
    return sorted(set(np.quantile(bought, shares).tolist())) if count else []


def carried(
    calibration: Calibration,
    old: Model,
    new: Model,
    dataset: BundleDataset,
    device: torch.device,
    seed: int = 0,
) -> Calibration | None:
    """Returns the calibration of a model for another model of the same users and bundles, which has no
    validation cases of its own; None if the two models disagree too much about what users like.

    The log-probabilities are stretched, so that the bundles of a user differ as much in their odds as with
    the old model: one that has learned from more data separates them more, which does not mean that users
    are that much more predictable. The intercept changes, so that the chances of all users for all bundles
    that they do not have add up to the same number as with the old model.
    """
    of_old, of_new = (model.interactions(dataset, device) for model in (old, new))
    contents, owned = of_old.bundle_item, of_old.user_bundle.strong
    width = len(contents)
    most = max(1, min(most_users(old, width), most_users(new, width), MOST_COMPARED // max(1, width)))
    parts = []
    with torch.inference_mode():
        nobody = np.zeros(len(dataset.users), bool)
        for batch, _ in sampled_users(nobody, most, width, device, np.random.default_rng(seed)):
            users = torch.from_numpy(batch).to(device)
            histories = [data.histories(users) for data in (of_old, of_new)]
            asked = ~owned.rows(users).as_mask(width) & (contents.lengths > 0)
            counts = torch.log1p(histories[0].bundle_counts.double())[:, None].expand(-1, width)
            left = asked.sum(1, keepdim=True).clamp(min=1)
            logs = [
                require(model, Matcher).bundle_scores(each, contents).double().log_softmax(1)
                for model, each in zip((old, new), histories, strict=True)
            ]
            means = [(each * asked).sum(1, keepdim=True) / left for each in logs]
            apart = [each - mean for each, mean in zip(logs, means, strict=True)]
            parts.append(torch.stack([each[asked] for each in (*logs, *apart, counts)]).cpu().numpy())
    old_logs, new_logs, old_apart, new_apart, activity = np.concatenate(parts, axis=1)
    if rank_correlation(old_logs, new_logs) < LEAST_AGREEMENT:
        return None
    factor = float(old_apart.std() / max(new_apart.std(), 1e-12))
    moved = calibration.stretched(factor, float(old_logs.mean() - factor * new_logs.mean()))
    before, after = (
        each.log_odds(torch.from_numpy(logs), torch.from_numpy(activity)).numpy()
        for each, logs in ((calibration, old_logs), (moved, new_logs))
    )
    chances = sigmoid(before)
    shift = _shift(after, float(chances.sum()))
    above = int((chances > calibration.threshold).sum())
    threshold = threshold_of(sigmoid(after + shift), np.ones_like(after), above)
    return replace(moved, intercept=moved.intercept + shift, threshold=threshold)


def _shift(logits: Numbers, total: float) -> float:
    """The number to add to the logits so that the chances add up to `total`."""
    low, high = -100.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sigmoid(logits + middle).sum() < total else (low, middle)
    return (low + high) / 2


def rank_correlation(one: Numbers, other: Numbers) -> float:
    """Spearman's rank correlation; 0 if one side is constant."""
    from scipy.stats import rankdata

    first, second = (ranks - ranks.mean() for ranks in (rankdata(one), rankdata(other)))
    spread = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / spread if spread else 0.0


def threshold_of(chances: Numbers, weights: Numbers, count: float) -> float:
    """The chance above which as many weighted pairs lie as `count` says."""
    order = np.argsort(-chances, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), count))
    return float(chances[order[min(place, len(order) - 1)]])


def logistic(
    features: Numbers,
    bought: npt.NDArray[np.bool_],
    weights: Numbers,
    expected: Numbers,
    start: Numbers | None = None,
) -> Numbers:
    """The coefficients of a logistic regression with a weak prior around `expected`."""

    def value(coefficients: Numbers) -> float:
        logits = features @ coefficients
        likelihood = weights @ (np.where(bought, logits, 0.0) - np.logaddexp(0.0, logits))
        return float(likelihood - PRIOR / 2 * ((coefficients - expected) ** 2).sum())

    now = (expected if start is None else start).copy()
    best = value(now)
    for _ in range(STEPS):
        chance = sigmoid(features @ now)
        slope = features.T @ (weights * (bought - chance)) - PRIOR * (now - expected)
        curve = (features * (weights * chance * (1 - chance))[:, None]).T @ features
        step = np.linalg.solve(curve + PRIOR * np.eye(len(now)), slope)
        # Far from the optimum, a whole Newton step may go too far, so it is halved.
        following = value(now + step)
        while following < best and np.abs(step).max() > 1e-9:
            step /= 2
            following = value(now + step)
        now, best = now + step, following
        if np.abs(step).max() < 1e-8:
            break
    return now


def sigmoid(logits: npt.NDArray[AnyFloat]) -> npt.NDArray[AnyFloat]:
    """The chance of an event with these log-odds."""
    chances: npt.NDArray[AnyFloat] = np.exp(-np.logaddexp(0, -logits))
    return chances


def most_users(model: Model, width: int) -> int:
    """The most users that a calibration scores. `width` is the number of scores for a user."""
    slow = require(model, Matcher).scores_candidates_apart
    return max(1, (SLOW_SCORES if slow else SCORES) // max(1, width))


def sampled_users(
    took: npt.NDArray[np.bool_], most: int, width: int, device: torch.device, random: np.random.Generator
) -> Iterator[tuple[npt.NDArray[np.int64], float]]:
    """Yields batches of at most `most` users, with a weight: how many users each user represents.

    `took` marks buyers. They may be few and are the most informative, so at least half of the sample is for
    them. `width` is the number of scores for a user.
    """
    buyers, others = np.flatnonzero(took), np.flatnonzero(~took)
    for_buyers = min(len(buyers), max(most // 2, most - len(others), 1))
    for group, room in ((buyers, for_buyers), (others, max(most - for_buyers, 1))):
        count = min(len(group), room)
        chosen = np.sort(random.choice(group, count, replace=False)) if count else group
        rows = rows_at_a_time(width, device)
        for start in range(0, count, rows):
            yield chosen[start : start + rows], len(group) / count


class _Cases:
    """The validation cases of a split as pairs of a user and a bundle.

    Pairs are the columns of a table with four rows: the log-probability, the number of bundles that the user
    has, the weight (how many pairs this one represents), and 1 if it was bought, else 0.
    """

    def __init__(self, model: Model, split: Split, device: torch.device, seed: int) -> None:
        assert split.validation is not None
        self.model, self.device = model, device
        self.random = np.random.default_rng(seed)
        validation, shape = split.validation, split.dataset.user_bundle.shape
        case, bundles = validation.positives.nonzero()
        bought = binary_matrix(validation.users[case], bundles, shape)
        known = split.train if split.protocol in COLD_PROTOCOLS else _without(bought, split)
        self.data = model.interactions(known, device)
        self.bought = Ragged.from_csr(bought, device)
        self.has = Ragged.from_csr(split.dataset.bought_bundles, device)
        sizes = np.diff(known.bundle_item.indptr)
        candidates = np.flatnonzero(sizes)  # the score of a bundle without items is meaningless
        self.new: Ragged | None = None
        if split.protocol in COLD_PROTOCOLS and validation.candidates is not None:
            candidates = np.intersect1d(candidates, validation.candidates[validation.candidates != PAD])
            self.new = self.data.bundle_item.rows(torch.from_numpy(candidates).to(device))
        self.candidates = torch.from_numpy(candidates).to(device)  # [candidates]
        asked = np.arange(len(split.dataset.users)) if split.protocol in COLD_PROTOCOLS else validation.users
        self.asked: npt.NDArray[np.int64] = np.unique(asked).astype(np.int64)
        self.took = np.diff(bought.indptr)[self.asked] > 0  # [asked users]

    def user_batches(self) -> Iterator[tuple[npt.NDArray[np.int64], float]]:
        """Yields batches of the users that the split asks, with their weights."""
        width = max(1, len(self.data.bundle_item))
        most = most_users(self.model, width)
        for batch, weight in sampled_users(self.took, most, width, self.device, self.random):
            yield self.asked[batch], weight

    def pairs(self, batch: npt.NDArray[np.int64], weight: float) -> Numbers:
        """The pairs of a batch of users, each of whom has this weight."""
        users = torch.from_numpy(batch).to(self.device)
        histories, contents = self.data.histories(users), self.data.bundle_item
        if self.new is None:
            scores = require(self.model, Matcher).bundle_scores(histories, contents)
            logs = scores.log_softmax(1)
            logs = logs if len(self.candidates) == logs.shape[1] else logs[:, self.candidates]
        else:
            logs = new_log_probabilities(self.model, histories, contents, self.new)
        bought = self._marked(self.bought, users)  # [rows, candidates]
        rest = ~(bought | self._marked(self.has, users))
        row, column = bought.nonzero(as_tuple=True)
        counts = histories.bundle_counts
        parts = [_table(logs[row, column], counts[row], weight, bought=1)]
        for columns, weights in self._not_bought(logs, rest):
            row, place = (weights > 0).nonzero(as_tuple=True)
            column = columns[row, place]
            parts.append(_table(logs[row, column], counts[row], weights[row, place] * weight, bought=0))
        return np.concatenate(parts, axis=1)

    def _marked(self, pairs: Ragged, users: Tensor) -> Tensor:
        marked = pairs.rows(users).as_mask(len(self.data.bundle_item))
        return marked if len(self.candidates) == marked.shape[1] else marked[:, self.candidates]

    def _not_bought(self, logs: Tensor, rest: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Bundles that were not bought, as columns and weights: the likeliest, and a sample of the others."""
        _, likeliest = top(logs.masked_fill(~rest, -torch.inf), min(LIKELIEST, logs.shape[1]))
        counted = rest.gather(1, likeliest)
        yield likeliest, counted.to(logs.dtype)
        others = rest.scatter(1, likeliest, value=False)
        # Drawn on the CPU, so that every device uses the same sample.
        drawn = torch.from_numpy(self.random.integers(logs.shape[1], size=(len(logs), DRAWN))).to(self.device)
        hits = others.gather(1, drawn)
        left = rest.sum(1, keepdim=True) - counted.sum(1, keepdim=True)
        yield drawn, hits * (left / hits.sum(1, keepdim=True).clamp(min=1))


def _without(bought: sparse.csr_matrix, split: Split) -> BundleDataset:
    """The shop before users bought these bundles. Histories are as complete as those of later questions: with
    the shorter ones of the training data, chances of users with many bundles would be too high."""
    dataset = split.dataset
    before = dataset.with_interactions(user_bundle=without(dataset.user_bundle, bought))
    if split.histories != "without held-out":
        return before
    return before.with_interactions(user_item=without_items_of(bought, dataset.bundle_item, before))


def _table(logs: Tensor, bundles: Tensor, weights: Tensor | float, bought: int) -> Numbers:
    numbers = [each.cpu().numpy() if isinstance(each, Tensor) else each for each in (logs, bundles, weights)]
    return np.stack([np.broadcast_to(each, len(logs)).astype(np.float64) for each in (*numbers, bought)])
