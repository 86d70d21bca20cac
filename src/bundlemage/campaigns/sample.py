"""Estimates how many users would buy new bundles, from a sample of the users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bundlemage.campaigns.chances import Numbers, new_log_probabilities, normaliser
from bundlemage.campaigns.estimate import estimated
from bundlemage.campaigns.new_bundles import NewBundleCalibration, Owners
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
) -> list[tuple[float, int, int]]:
    """Returns the expected number of buyers of each bundle, and the interval in which it lies.

    If the sample has all users, this is the forecast of `score_bundle`. If not, the interval also contains
    the error of the sample.
    """
    new = Ragged.from_lists(bundles, shop.device)
    owners = Owners(new, sample.contents, len(shop.dataset.items))
    forecaster = require(model, Matcher).forecaster
    terms: list[list[Numbers]] = [[] for _ in bundles]
    with torch.inference_mode():
        parts = slices(sample.histories, _rows(shop))
        for part, log_sums in zip(parts, sample.log_sums, strict=True):
            logs = new_log_probabilities(forecaster, part, sample.contents, new, log_sums)
            lacks = ~owners.have_all(part)
            for place, found in enumerate(terms):
                found.append(calibration.terms(logs[:, place], part, lacks[:, place], len(sample.contents)))
    return [_buyers(np.concatenate(found, axis=1), sample.users, calibration) for found in terms]


def _buyers(terms: Numbers, users: int, calibration: NewBundleCalibration) -> tuple[float, int, int]:
    """Returns the expected number of buyers among all users, and its interval, from the terms of a sample."""
    if terms.shape[1] == users:
        sums = terms.sum(1)
        return float(calibration.expected(sums[:, None])[0]), *calibration.interval(sums)
    found = estimated(terms, terms[2], terms[2], users)
    return float(calibration.expected(found.sums[:, None])[0]), *calibration.interval(found.possible)
