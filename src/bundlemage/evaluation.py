"""Evaluates models on the cases of a split, with ranking metrics. If candidates have equal scores, a metric
is the mean over all their orders. A model that scores all candidates equally is rated like a random ranking.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bundlemage.data.dataset import Positions
from bundlemage.data.splits import PAD, GenerationCases, MatchingCases, Split
from bundlemage.models.base import Completer, Interactions, Matcher, Model, SalesScorer, can, require
from bundlemage.models.baselines.rules import ItemPopularity, OwnedShare, Popularity, Random
from bundlemage.models.division import ALONE, Division
from bundlemage.models.ragged import Ragged

DEFAULT_KS = (5, 10, 20)
SCORES_AT_A_TIME = 2**25
"""Maximum number of scores in memory at the same time. Cases are scored in chunks."""

PerCase = dict[str, Tensor]
"""For each metric, a tensor with the value of each case."""


KINDS = ("recall", "ndcg", "mrr", "hit", "precision", "map")
"""The metrics of a case. `measures.meaning.MEANING` says what each means."""
FEW_KINDS = KINDS[:2]
"""The metrics that choose an epoch or a model."""


def ranking_metrics(
    scores: Tensor, positives: Ragged, ks: Sequence[int] = DEFAULT_KS, kinds: Sequence[str] = FEW_KINDS
) -> dict[str, Tensor]:
    """Returns a metric such as `recall@5` for each of the `kinds` and each k, as a tensor [cases] in float64
    (on MPS in float32).

    Recall is the share of a case's positives that are among the first k candidates. For nDCG, the ideal
    ranking has all positives first. The value of a case without positives is nan. `scores` is [cases,
    candidates]; a score of −∞ marks a column without a candidate.
    """
    if torch.isnan(scores).any() or torch.isposinf(scores).any():
        raise ValueError("a score is nan or infinite, so there is no ranking")
    row, counts = positives.row_of_entry(), positives.lengths
    own_scores = scores[row, positives.values]  # [positives]
    # For each positive, how many candidates have a higher score, and the same score (including itself).
    higher, equal = torch.empty_like(row), torch.empty_like(row)
    step = cases_at_a_time(scores.shape[1])
    for start in range(0, len(row), step):
        chunk = slice(start, start + step)
        others, own = scores[row[chunk]], own_scores[chunk, None]
        higher[chunk] = (others > own).sum(1)
        equal[chunk] = (others == own).sum(1)
    device, cases = scores.device, len(positives)
    width = max(1, scores.shape[1], *ks)
    # MPS has no float64.
    real = torch.float32 if device.type == "mps" else torch.float64
    gains = 1 / torch.log2(torch.arange(width, device=device, dtype=real) + 2)
    # The DCG if the first 0, 1, 2, … candidates are all positives.
    cumulative = torch.cat([gains.new_zeros(1), gains.cumsum(0)])
    ties = _Ties.of(positives, higher, equal, width) if set(kinds) - set(FEW_KINDS) else None
    metrics = {}
    for k in ks:
        first, last = higher.clamp(max=k), (higher + equal).clamp(max=k)
        hits = gains.new_zeros(cases).index_add_(0, row, (last - first).to(real) / equal)
        gain = (cumulative[last] - cumulative[first]) / equal
        ideal = cumulative[counts.clamp(max=k)]
        metrics[f"recall@{k}"] = hits / counts
        metrics[f"ndcg@{k}"] = gains.new_zeros(cases).index_add_(0, row, gain) / ideal
        if ties is not None:
            nothing = gains.new_zeros(cases).masked_fill(counts == 0, torch.nan)
            metrics[f"mrr@{k}"], metrics[f"hit@{k}"] = (nothing + part for part in ties.first_hit(k, real))
            metrics[f"precision@{k}"] = nothing + hits / k
            metrics[f"map@{k}"] = nothing.index_add(0, row, ties.precisions(k, real)) / counts
    return {name: values for name, values in metrics.items() if name.partition("@")[0] in kinds}


@dataclass(frozen=True)
class _Ties:
    """Where each positive is: in a group of candidates with equal scores, all orders of which are equally
    likely. The metrics here are expectations over these orders, exactly."""

    above: Tensor  # [positives], the candidates with a higher score
    size: Tensor  # [positives], the candidates in its group
    positives_above: Tensor  # [positives], the positives of its case with a higher score
    positives_inside: Tensor  # [positives], the positives of its case in its group
    best: Tensor  # [cases with a positive], a positive of the first group that has one
    filled: Tensor  # [cases], whether a case has positives

    @classmethod
    def of(cls, positives: Ragged, higher: Tensor, equal: Tensor, width: int) -> _Ties:
        row, counts = positives.row_of_entry(), positives.lengths
        # Two positives of a case are in the same group if as many candidates are above them.
        keys, group = torch.unique(row * (width + 1) + higher, return_inverse=True)  # sorted
        inside = torch.bincount(group, minlength=len(keys))
        before = inside.cumsum(0) - inside  # positives of earlier cases, and of higher groups
        earlier_cases = counts.cumsum(0) - counts
        order = torch.argsort(row * (width + 1) + higher, stable=True)
        best = order[earlier_cases[counts > 0]]
        return cls(higher, equal, before[group] - earlier_cases[row], inside[group], best, counts > 0)

    def first_hit(self, k: int, real: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns for each case the expected reciprocal rank of the first positive, or 0 if it is not among
        the first k, and the chance that it is."""
        above, size, inside = (
            each[self.best].to(real) for each in (self.above, self.size, self.positives_inside)
        )
        reciprocal, none_yet = torch.zeros_like(above), torch.ones_like(above)
        for place in range(k):  # of the group
            left = (size - place).clamp(min=1)
            possible = (above + place < k) & (place < size)
            chance = torch.where(possible, none_yet * inside / left, 0.0)
            reciprocal += chance / (above + place + 1)
            # If only positives are left, the chance of another candidate is 0.
            none_yet = none_yet - chance
        full = self.above.new_zeros((2, len(self.filled)), dtype=real)
        full[0, self.filled], full[1, self.filled] = reciprocal, 1 - none_yet
        return full[0], full[1]

    def precisions(self, k: int, real: torch.dtype) -> Tensor:
        """Returns for each positive the expected precision at its rank, or 0 if the rank is above k.

        At place j of a group of n candidates with m positives, after s candidates with h positives, a
        positive has j - 1 candidates of its group before it. Each of them is another positive with the chance
        (m - 1) / (n - 1), so the precision there is (h + 1 + (j - 1) (m - 1) / (n - 1)) / (s + j). All places
        are equally likely. The sums over j need only Σ 1 / (s + j).
        """
        above, size = self.above.clamp(max=k), (self.above + self.size).clamp(max=k)
        places = torch.arange(1, k + 1, device=above.device, dtype=real)
        harmonic = torch.cat([places.new_zeros(1), (1 / places).cumsum(0)])
        inverse = harmonic[size] - harmonic[above]  # Σ 1 / (s + j)
        others = (self.positives_inside - 1).to(real) / (self.size - 1).clamp(min=1)
        inside = (size - above).to(real) - (self.above + 1) * inverse  # Σ (j - 1) / (s + j)
        return ((self.positives_above + 1) * inverse + others * inside) / self.size


class Evaluator(ABC):
    """Keeps the cases on the data's device, to evaluate several models, or one model after each epoch."""

    def __init__(self, cases: int, width: int, data: Interactions, ks: Sequence[int]) -> None:
        """`width` is the number of candidates that a model scores for a case; `ks` are list lengths."""
        self.cases, self.width, self.data, self.ks = cases, width, data, ks
        self.device = data.user_item.device

    @abstractmethod
    def score(self, model: Model, chunk: Tensor) -> tuple[Tensor, Ragged]:
        """Returns the candidates' scores for the cases in `chunk`, and the columns of the positives."""

    def metrics(self, model: Model, kinds: Sequence[str] = FEW_KINDS) -> PerCase:
        """Returns the metrics of a model for each case."""
        parts = [ranking_metrics(*scored, self.ks, kinds) for scored in self.scored(model)]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]} if parts else {}

    def scored(self, model: Model) -> Iterator[tuple[Tensor, Ragged]]:
        """Yields what `score` returns, for one chunk of cases after another."""
        was_training = model.training
        model.eval()
        chunks = torch.split(torch.arange(self.cases, device=self.device), cases_at_a_time(self.width))
        try:
            for chunk in chunks:
                if len(chunk):
                    with torch.inference_mode():
                        scored = self.score(model, chunk)
                    yield scored
        finally:
            model.train(was_training)

    def tensor(self, positions: np.ndarray) -> Tensor:
        """Returns the positions as a tensor on the device of the data."""
        return torch.from_numpy(positions.astype(np.int64)).to(self.device)


class MatchingEvaluator(Evaluator):
    """Cases of matching: users, and the bundles that they took. Histories come from the training data.

    If the cases have no candidates, all bundles are ranked except those that the user has in training or
    rejected. `new` are the bundles that nobody has in training. A `SalesScorer` scores them with
    `score_new_bundles`.
    """

    def __init__(
        self,
        cases: MatchingCases,
        data: Interactions,
        ks: Sequence[int] = DEFAULT_KS,
        new: Positions | None = None,
    ) -> None:
        super().__init__(len(cases), len(data.bundle_item), data, ks)
        self.new = None if new is None else self.tensor(new)
        self.users = self.tensor(cases.users)
        self.positives = Ragged.from_csr(cases.positives, self.device)
        self.candidates = None if cases.candidates is None else self.tensor(cases.candidates)
        if self.candidates is not None:
            self.positives = _columns(self.positives, self.candidates)

    def score(self, model: Model, chunk: Tensor) -> tuple[Tensor, Ragged]:
        matcher = require(model, Matcher)
        histories, contents = self.data.histories(self.users[chunk]), self.data.bundle_item
        positives = self.positives.rows(chunk)
        if self.candidates is not None:
            candidates = self.candidates[chunk]
            scores = matcher.score_candidates(histories, candidates.clamp(min=0), contents)
            model.checked("score_candidates", scores, *candidates.shape)
            return scores.masked_fill(candidates == PAD, -torch.inf), positives
        scores = matcher.bundle_scores(histories, contents)
        if self.new is not None and can(model, SalesScorer):
            of_new = model.score_new_bundles(histories, contents, contents.rows(self.new))
            scores = scores.index_copy(1, self.new, of_new.to(scores))  # a model may return one row for all
        left_out = histories.bundles.strong.as_mask(scores.shape[1])
        if histories.rejected_bundles is not None:
            left_out |= histories.rejected_bundles.as_mask(scores.shape[1])
        return scores.masked_fill(left_out, -torch.inf), positives


class GenerationEvaluator(Evaluator):
    """Cases of generation: incomplete bundles, each to be completed for a user."""

    def __init__(
        self,
        cases: GenerationCases,
        data: Interactions,
        ks: Sequence[int] = DEFAULT_KS,
        division: Division = ALONE,
    ) -> None:
        """`division` is how several processes divide the data, which may number the items of a process."""
        super().__init__(len(cases), data.items, data.with_nobody, ks)
        self.users, self.bundles = self.tensor(cases.users), self.tensor(cases.bundles)
        self.partial = Ragged.from_csr(cases.partial, self.device)
        self.candidates = self.tensor(cases.candidates)
        self.positives = _columns(Ragged.from_csr(cases.positives, self.device), self.candidates)
        self.known_as = None if cases.known_as is None else self.tensor(cases.known_as)
        hidden = cases.hidden_items
        self.hidden = None if hidden is None else division.own_contents(Ragged.from_csr(hidden, self.device))

    def score(self, model: Model, chunk: Tensor) -> tuple[Tensor, Ragged]:
        held_out = self.bundles[chunk]
        histories = self.data.histories(self.users[chunk])
        if self.known_as is not None:  # the bundle to complete is removed from the user's history
            owned, target = histories.bundles, self.known_as[held_out]
            histories = replace(histories, bundles=owned.keep(owned.values != target[owned.row_of_entry()]))
        if self.hidden is not None:
            items = _without(histories.items, self.hidden.rows(chunk), self.data.items)
            histories = replace(histories, items=items)
        candidates, partial = self.candidates[held_out], self.partial.rows(held_out)
        scores = require(model, Completer).score_item_candidates(
            histories, partial, candidates.clamp(min=0), self.data.bundle_item
        )
        model.checked("score_item_candidates", scores, *candidates.shape)
        return scores.masked_fill(candidates == PAD, -torch.inf), self.positives.rows(held_out)


def cases_at_a_time(width: int) -> int:
    """Returns the number of cases in a chunk, if the model scores `width` candidates for each case."""
    return max(1, SCORES_AT_A_TIME // max(1, width))


def means(metrics: PerCase) -> dict[str, float]:
    """Returns the mean of each metric over the cases with a value (not nan)."""
    if not metrics:
        return {}
    # All means are read with one transfer, because each transfer waits for the device.
    values = torch.stack([torch.nanmean(values) for values in metrics.values()]).tolist()
    return dict(zip(metrics, values, strict=True))


def _without(rows: Ragged, removed: Ragged, columns: int) -> Ragged:
    """Returns the entries of each row that are not in the same row of `removed`. All are below `columns`."""
    keys, removed_keys = (each.row_of_entry() * (columns + 1) + each.values for each in (rows, removed))
    return rows.keep(~torch.isin(keys, removed_keys))


def _columns(positives: Ragged, candidates: Tensor) -> Ragged:
    """Returns for each positive its column in `candidates`."""
    row = positives.row_of_entry()
    columns = torch.empty_like(row)
    step = cases_at_a_time(candidates.shape[1])
    for start in range(0, len(row), step):
        chunk = slice(start, start + step)
        same = candidates[row[chunk]] == positives.values[chunk, None]  # [positives, width]
        if not bool(same.any(1).all()):
            raise ValueError("a positive is not among its case's candidates")
        columns[chunk] = same.int().argmax(1)
    return Ragged(columns, positives.offsets)


@dataclass(frozen=True)
class ListMeasures:
    """The measures of one model's lists, such as `coverage@10` (see `measures.lists`). None where nothing can
    be measured."""

    bundles: Mapping[str, float | None]
    items: Mapping[str, float | None]
    """The same for the items inside the bundles of the lists."""
    users: int
    """The number of lists."""
    of_users: int
    """The number of test users. If it is higher, the lists are those of a random sample of them."""
    diversity_by: str
    """`tags`, or `items` if the catalogue has no tags: two bundles are alike if they have the same items."""


@dataclass(frozen=True)
class Evaluation:
    """One model's results on the test cases of a split. They are None for a task without cases or scores."""

    model: str
    dataset: str
    protocol: str
    matching: dict[str, float] | None
    matching_cases: int
    generation: dict[str, float] | None
    generation_cases: int
    notes: tuple[str, ...] = ()
    leakage: float = 0.0
    """The share of held-out pairs that users' items give away if histories are used as given."""
    leakage_by_chance: float = 0.0
    """The same share for bundles that these users do not have."""
    histories: str = "as given"
    """How histories were used: `as given` or `without held-out`."""
    lists: ListMeasures | None = None
    """The measures of the model's answer lists. None if they were not measured."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def evaluation_of(model: Model, split: Split, by_case: Mapping[str, PerCase]) -> Evaluation:
    """Returns the results of a model: the means over all cases. `by_case` comes from `case_metrics`."""
    tasks = {task: means(values) for task, values in by_case.items()}
    return Evaluation(
        model=model.title,
        dataset=split.dataset.name,
        protocol=split.protocol,
        matching=tasks.get("matching"),
        matching_cases=len(split.test) if split.test else 0,
        generation=tasks.get("generation"),
        generation_cases=len(split.generation) if split.generation else 0,
        notes=split.dataset.notes,
        leakage=split.leakage.share,
        leakage_by_chance=split.leakage.by_chance,
        histories=split.histories,
    )


def case_metrics(
    model: Model, split: Split, data: Interactions, ks: Sequence[int] = DEFAULT_KS
) -> dict[str, PerCase]:
    """Returns the metrics of each test case, for every task that both the split and the model have."""
    tasks = {}
    if split.test and can(model, Matcher):
        tasks["matching"] = MatchingEvaluator(split.test, data, ks, split.new_bundles).metrics(model, KINDS)
    if split.generation and can(model, Completer):
        tasks["generation"] = GenerationEvaluator(split.generation, data, ks).metrics(model, KINDS)
    return tasks


TOO_GOOD = 0.9
"""No rule that learns nothing should have an nDCG@5 or Recall@5 above this."""
_RULES = {
    name for kind in (Popularity, OwnedShare, ItemPopularity, Random) for name in (kind.name, kind.title)
}


def suspicious(rows: Sequence[Evaluation]) -> list[str]:
    """Returns a sentence for each rule that learns nothing, but scores so high that the test is void."""
    found = []
    for row in rows:
        for task in ("matching", "generation"):
            found += suspicious_rule(row.model, task, getattr(row, task))
    return found


def suspicious_rule(model: str, task: str, metrics: Mapping[str, float] | None) -> list[str]:
    """Returns a sentence if this model, by its name or title, is such a rule; otherwise an empty list."""
    high = [name for name in ("ndcg@5", "recall@5") if (metrics or {}).get(name, 0.0) > TOO_GOOD]
    if model not in _RULES or not high:
        return []
    assert metrics is not None
    figures = " and ".join(f"{name} {metrics[name]:.4f}" for name in high)
    return [
        f"{model} learns nothing and reaches {figures} in {task}, so the figures of this table mean "
        "little. Either the histories give the answers away, or there are too few candidates."
    ]


# ── Significance ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class MeanError:
    """A mean over cases, its standard error, and the number of independent cases."""

    mean: float
    """nan if no case has a value."""
    error: float | None
    """None for fewer than two independent cases."""
    count: int


def mean_error(values: npt.NDArray[np.floating], groups: npt.NDArray[np.integer] | None = None) -> MeanError:
    """Returns the mean over the cases with a value, and its standard error.

    Cases of one group, such as the users of one held-out bundle, are not independent. The error is then
    computed from the sums of the groups (cluster-robust).
    """
    known = np.isfinite(values)
    each = values[known].astype(np.float64)
    if not len(each):
        return MeanError(np.nan, None, 0)
    which = np.arange(len(each)) if groups is None else np.unique(groups[known], return_inverse=True)[1]
    count = int(which.max()) + 1
    if count < 2:
        return MeanError(float(each.mean()), None, count)
    # Without groups this is the usual standard error: sqrt(Σ (d − d̄)² / (n − 1) / n).
    sums = np.bincount(which, each - each.mean())
    error = np.sqrt((sums**2).sum() * count / (count - 1)) / len(each)
    return MeanError(float(each.mean()), float(error), count)


def paired_p(
    leading: npt.NDArray[np.floating],
    other: npt.NDArray[np.floating],
    groups: npt.NDArray[np.integer] | None = None,
) -> float | None:
    """Returns the two-sided p of a paired t-test over the cases for which both have a value.

    Returns None for fewer than two independent cases; `groups` are those of `mean_error`.
    """
    from scipy import stats  # slow to import

    both = np.isfinite(leading) & np.isfinite(other)
    difference = leading[both].astype(np.float64) - other[both]
    found = mean_error(difference, None if groups is None else groups[both])
    if found.error is None:
        return None
    if not difference.any():
        return 1.0
    if np.ptp(difference) == 0:  # the same difference in every case: the variance is zero
        return 0.0
    return float(2 * stats.t.sf(abs(found.mean) / found.error, found.count - 1)) if found.error else 0.0


def holm(ps: Sequence[float]) -> list[float]:
    """Returns p-values with Holm's correction. The smallest of n is multiplied by n, the next by n - 1, ...
    A corrected value is at least as large as the one before it."""
    order, factors = np.argsort(ps, kind="stable"), np.arange(len(ps), 0, -1)
    corrected = np.empty(len(ps))
    corrected[order] = np.maximum.accumulate(np.minimum(1.0, np.asarray(ps)[order] * factors))
    return corrected.tolist()
