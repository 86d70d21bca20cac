"""Estimates how many users would buy new bundles, from a sample of the users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bundlemage.campaigns.chances import Numbers, new_log_probabilities, normaliser, sigmoid
from bundlemage.campaigns.estimate import possible_sums, ratio
from bundlemage.campaigns.new_bundles import NewBundleCalibration, Owners, shifts
from bundlemage.core.answering import rows_at_a_time, slices
from bundlemage.core.shop import Shop
from bundlemage.models.base import Histories, Matcher, Model, require
from bundlemage.models.ragged import Ragged

SAMPLE = 2_000
"""The most users that are scored. Of more users, a random sample is drawn."""
TYPICAL = (
    "In this shop, forecasts cannot tell which new bundles sell better, so the number of buyers is that of a "
    "typical new bundle."
)


@dataclass(frozen=True)
class Sample:
    """Users of a shop, and how many users they stand for."""

    histories: Histories
    contents: Ragged
    users: int
    log_sums: tuple[Tensor, ...]
    """For each part of the histories, the result of `normaliser`."""

    @classmethod
    def of(cls, model: Model, shop: Shop, histories: Histories, contents: Ragged, users: int) -> Sample:
        """Prepares users that were drawn at random from this many `users`, or all of them."""
        forecaster = require(model, Matcher).forecaster
        with torch.inference_mode():
            parts = slices(histories, _rows(shop))
            log_sums = tuple(normaliser(forecaster, part, contents) for part in parts)
        return cls(histories, contents, users, log_sums)


def randomly_chosen(count: int, most: int = SAMPLE, seed: int = 0) -> npt.NDArray[np.int64]:
    """Returns the positions of at most `most` of so many users, drawn at random, in ascending order."""
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))


def _rows(shop: Shop) -> int:
    return rows_at_a_time(len(shop.dataset.bundles), shop.device)


def expected_buyers(
    model: Model,
    shop: Shop,
    sample: Sample,
    bundles: Sequence[Sequence[int]],
    calibration: NewBundleCalibration,
    group: Sample | None = None,
) -> list[tuple[float, int, int]]:
    """Returns the expected number of buyers of each bundle, and the interval in which it lies.

    `sample` are users of the shop. With a `group`, only its buyers count. If the sample has all users, this
    is the forecast of `score_bundle`. If not, the interval also contains the error of the sample.
    """
    new = Ragged.from_lists(bundles, shop.device)
    scored = [_scored(model, shop, each, new, calibration) for each in (sample, group) if each is not None]
    if group is None:
        return [_buyers(terms, sample.users, calibration) for terms in scored[0].terms]
    return [
        buyers_among(
            terms,
            scored[0].logits[:, place],
            sample.users,
            scored[1].logits[:, place],
            group.users,
            calibration,
        )
        for place, terms in enumerate(scored[0].terms)
    ]


@dataclass(frozen=True)
class _Scored:
    """The users of a sample, scored for several bundles."""

    terms: list[Numbers]
    """For each bundle, `NewBundleCalibration.terms` [3, users]."""
    logits: npt.NDArray[np.float32]  # [users, bundles]
    """As `NewBundleCalibration.logits`; -inf for a user who has all items."""


def _scored(
    model: Model, shop: Shop, sample: Sample, new: Ragged, calibration: NewBundleCalibration
) -> _Scored:
    owners = Owners(new, sample.contents, len(shop.dataset.items))
    forecaster = require(model, Matcher).forecaster
    terms: list[list[Numbers]] = [[] for _ in range(len(new))]
    logits = []
    with torch.inference_mode():
        parts = slices(sample.histories, _rows(shop))
        for part, log_sums in zip(parts, sample.log_sums, strict=True):
            logs = new_log_probabilities(forecaster, part, sample.contents, new, log_sums)
            lacks = ~owners.excluded(part)
            logits.append(calibration.logits(logs, part).masked_fill(~lacks, -torch.inf).float().cpu())
            for place, found in enumerate(terms):
                found.append(calibration.terms(logs[:, place], part, lacks[:, place], len(sample.contents)))
    return _Scored([np.concatenate(found, axis=1) for found in terms], torch.cat(logits).numpy())


def _buyers(terms: Numbers, users: int, calibration: NewBundleCalibration) -> tuple[float, int, int]:
    """Returns the expected number of buyers among all users, and its interval, from the terms of a sample."""
    sums = terms.sum(1) * (users / terms.shape[1])
    possible = sums if terms.shape[1] == users else possible_sums(terms, users)
    return float(calibration.expected(sums[:, None])[0]), *calibration.interval(possible)


def buyers_among(
    terms: Numbers,
    logits: npt.NDArray[np.float32],
    users: int,
    of_group: npt.NDArray[np.float32],
    group: int,
    calibration: NewBundleCalibration,
) -> tuple[float, int, int]:
    """Returns the expected number of buyers in a group, and its interval.

    `terms` [3, sample] and `logits` [sample] are those of a sample of the shop's `users`. `of_group` are the
    logits of the users of the group, or of a sample of its `group` users. The users' chances add up to the
    buyers of the shop, so the numbers of groups do, too.
    """
    size, scale, scale_of_group = len(logits), users / len(logits), group / len(of_group)
    sums = terms.sum(1) * scale
    total = calibration.expected(sums[:, None])
    shift = shifts(logits[:, None], total / scale)
    buying, counting = (sigmoid(each + shift).astype(np.float64)[None] for each in (logits, of_group))
    share = ratio(counting.sum(1) * scale_of_group, buying.sum(1) * scale)
    most = np.isfinite(of_group).sum() * scale_of_group
    if size == users and len(of_group) == group:
        possible, shares = sums, share
    else:
        possible = possible_sums(np.concatenate([terms, buying]), users)
        shares = ratio(possible_sums(counting, group, seed=1)[0], possible[3])
        possible = possible[:3]
    return float((total * share)[0]), *calibration.interval(possible, shares, most)
