"""Chooses how much recent events count more than old ones: the half-life that is best on validation cases.

The model is trained for a few epochs with each of some half-lives, and without one. A half-life is chosen
only if the validation cases are clearly likelier with it, and nDCG@5 is higher. Test cases are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch

from bundlemage.data.dataset import EVENTS_OF, BundleDataset, Positions, Vocabulary
from bundlemage.data.events import DAY, NOTHING_KNOWN, UNDATED, Events
from bundlemage.data.splits import Split
from bundlemage.errors import NoModelYetError
from bundlemage.evaluation import MatchingEvaluator
from bundlemage.models.base import Matcher, Model, Sizes, can
from bundlemage.models.config import ModelConfig, RecencyConfig
from bundlemage.models.registry import build
from bundlemage.progress import Progress, in_silence
from bundlemage.training.choosing import Comparison, Mix, sampled
from bundlemage.training.devices import resolve_device

SHARES_OF_SPAN = (2, 4, 8, 16)
"""The half-lives that are tried: the time between the first and the last event, divided by these numbers.
The longest comes first. Once one is not likelier than the one before it, the shorter ones are not tried."""
EPOCHS_SHARE, FEWEST_EPOCHS = 6, 6
"""A short training has this part of the epochs, and at least this number."""
MOST_USERS = 20_000
"""The short trainings use at most this many users."""
FEWEST_CASES = 30
"""With fewer validation cases, nothing is compared."""
ERRORS = 2.0
"""By how many standard errors the log-likelihood must rise. Several half-lives are tried, so one error would
be exceeded by chance too often."""


@dataclass(frozen=True)
class TriedHalfLife:
    """A half-life, and how good the model was with it after a short training."""

    half_life: float | None
    """In days; None: all ages count the same."""
    ndcg: float
    """nDCG@5 on the validation cases."""
    likelihood: float
    """The mean log-probability of what the users of these cases took."""


@dataclass(frozen=True)
class Recency:
    """Which half-life was chosen, and why."""

    half_life: float | None
    """In days; None: recent events do not count more."""
    cases: int
    """The number of validation cases."""
    tried: tuple[TriedHalfLife, ...]
    """The first one is without a half-life."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        without, *others = self.tried
        shown = ", ".join(f"{each.half_life:g} days {each.ndcg:.4f}" for each in others)
        tried = f"nDCG@5 after short trainings on {self.cases:,} validation cases: {shown}, without "
        tried += f"{without.ndcg:.4f}"
        if self.half_life is None:
            return f"Recent events do not count more: no half-life is clearly better ({tried})."
        return f"Events count half after {self.half_life:g} days ({tried})."


class _Result(Protocol):
    @property
    def interrupted(self) -> bool: ...


Fit = Callable[[Model, ModelConfig, Split], _Result]
"""Trains a model on a split."""


def choose_half_life(
    model: str, config: ModelConfig, split: Split, fit: Fit, progress: Progress = in_silence
) -> Recency | None:
    """Returns the best half-life for a model. None if there is nothing to compare: the setting `half_life` is
    not `fit`, no times are known, or there are too few validation cases."""
    if not isinstance(config, RecencyConfig) or config.half_life != "fit":
        return None
    span = _span(split.train)
    if not span or len(split.validation or ()) < FEWEST_CASES:
        return None
    if not can(build(model, config, Sizes(1, 1, 1)), Matcher):
        return None
    some = _of_some_users(split, config.seed)
    assert some.validation is not None
    device = resolve_device(config.device)
    half_lives: list[float | None] = [None, *(_rounded(span / share) for share in SHARES_OF_SPAN)]
    mixes: list[Mix] = []
    for number, half_life in enumerate(half_lives):
        progress("choosing a half-life", number, len(half_lives))
        mixes.append(_mix(model, _short(config, half_life), some, fit, device))
        if number and mixes[-1].mean_likelihood <= mixes[-2].mean_likelihood:
            break
    progress("choosing a half-life", len(half_lives), len(half_lives))
    best = max(mixes, key=lambda mix: mix.mean_likelihood)
    chosen = half_lives[mixes.index(best)] if best.is_better_than(mixes[0], ERRORS) else None
    tried = (
        TriedHalfLife(half_life, float(mix.ndcg.mean()), mix.mean_likelihood)
        for half_life, mix in zip(half_lives, mixes, strict=False)
    )
    return Recency(chosen, len(some.validation), tuple(tried))


def _span(train: BundleDataset) -> float:
    """The days between the first and the last event; 0 without times."""
    times = [getattr(train, name).at for name in EVENTS_OF.values()]
    dated = [at[at != UNDATED] for at in times if at is not None]
    every = np.concatenate(dated) if dated else np.empty(0)
    return float(every.max() - every.min()) / DAY if len(every) else 0.0


def _rounded(days: float) -> float:
    """Three digits are enough for a number of days."""
    return float(f"{days:.3g}")


def _short(config: RecencyConfig, half_life: float | None) -> RecencyConfig:
    """The settings of a short training. It learns only to match bundles."""
    changed: dict[str, Any] = {"half_life": half_life}
    fields = type(config).model_fields
    if "epochs" in fields:
        epochs: int = config.epochs  # type: ignore[attr-defined]
        changed["epochs"] = min(epochs, max(FEWEST_EPOCHS, epochs // EPOCHS_SHARE))
        changed["select_by"] = "matching"
    if "tasks" in fields:
        changed["tasks"] = "matching"
    return config.model_copy(update=changed)


def _mix(model: str, config: RecencyConfig, split: Split, fit: Fit, device: torch.device) -> Mix:
    """Trains a model. Returns how it ranks the validation cases."""
    sizes = Sizes.of(split.dataset)
    fitted = build(model, config, sizes)
    if fit(fitted, config, split).interrupted:
        raise NoModelYetError("interrupted while a half-life was being chosen: no model")
    data = fitted.interactions(split.train, device)
    assert split.validation is not None
    cases = sampled(split.validation, len(split.dataset.bundles), config.seed)
    comparison = Comparison("matching", MatchingEvaluator(cases, data), data, sizes)
    return comparison.fitted([comparison.scored(model, {}, fitted)])


def _of_some_users(split: Split, seed: int) -> Split:
    """Returns a split with at most `MOST_USERS` of the users, without test cases. Half of them are users with
    validation cases, if there are so many."""
    validation = split.validation
    assert validation is not None
    split = replace(split, dataset=split.train, test=None, generation=None, new_bundles=None)
    count = len(split.train.users)
    if count <= MOST_USERS:
        return split
    random = np.random.default_rng([seed, 0xA6E])
    asked = np.unique(validation.users)
    asked = random.permutation(asked)[: MOST_USERS // 2]
    others = random.permutation(np.setdiff1d(np.arange(count), asked))[: MOST_USERS - len(asked)]
    users = np.sort(np.concatenate([asked, others])).astype(np.int32)
    train = _only_users(split.train, users)
    rows = np.flatnonzero(np.isin(validation.users, users))
    cases = validation.chosen(rows.astype(np.int32))
    cases = replace(cases, users=np.searchsorted(users, cases.users).astype(np.int32))
    return replace(split, dataset=train, train=train, validation=cases)


def _only_users(dataset: BundleDataset, users: Positions) -> BundleDataset:
    """Returns a data set with only these users, who are numbered."""
    changed: dict[str, Any] = {}
    for name, field_name in EVENTS_OF.items():
        matrix, events = getattr(dataset, name), getattr(dataset, field_name)
        changed[name] = matrix[users]
        starts, ends = matrix.indptr[users], matrix.indptr[users + 1]
        kept = _ranges(starts, ends)
        changed[field_name] = (
            NOTHING_KNOWN
            if not events
            else Events(
                None if events.at is None else events.at[kept],
                None if events.weight is None else events.weight[kept],
                None if events.rejected is None else events.rejected[users],
            )
        )
    return replace(dataset, **changed, users=Vocabulary.numbered("user", len(users)), known_digests=())


def _ranges(starts: Sequence[int], ends: Sequence[int]) -> Any:
    """All numbers from each start up to its end."""
    return np.concatenate([np.arange(start, end) for start, end in zip(starts, ends, strict=True)])
