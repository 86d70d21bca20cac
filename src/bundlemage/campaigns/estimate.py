"""What a sample of users says about all users, and how exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bundlemage.campaigns.chances import Numbers

REPLICATES = 50
"""How often users are drawn again from the sample. The spread of the results is the sampling error."""


@dataclass(frozen=True)
class Estimated:
    """Sums over all users, estimated from a sample, and other values that they may have."""

    sums: Numbers  # [3]
    """As `NewBundleCalibration.sums`, scaled up to all users."""
    possible: Numbers  # [3, n]
    shares: Numbers  # [n]
    """For each of the possible sums: the share of the buyers who count."""


def estimated(terms: Numbers, buying: Numbers, counting: Numbers, of: int, seed: int = 0) -> Estimated:
    """Estimates sums over `of` users from the terms [3, sample] of a sample.

    `buying` [sample] are the users' chances, and `counting` [sample] those of the users who count, 0 for the
    others. The sampling error is that of the bootstrap: users are drawn from the sample, with replacement.
    It is smaller if the sample is a large part of all users, and 0 if it is all of them.
    """
    size = terms.shape[1]
    columns = np.concatenate([terms, buying[None], counting[None]])  # [5, sample]
    found = columns.sum(1)
    spread = math.sqrt(max(0.0, 1 - size / of))
    drawn = found[:, None] + spread * (columns @ _times(size, seed) - found[:, None])
    scale = of / size
    shares = np.clip(drawn[4] / np.maximum(drawn[3], 1e-99), 0.0, 1.0)
    return Estimated(found[:3] * scale, np.maximum(drawn[:3], 0.0) * scale, shares)


@lru_cache(maxsize=2)  # the bundles of one question have the same users
def _times(size: int, seed: int) -> Numbers:
    """How often each user is drawn, in each replicate."""  # [size, REPLICATES]
    random, times = np.random.default_rng(seed), np.empty((size, REPLICATES))
    for place in range(REPLICATES):
        times[:, place] = np.bincount(random.integers(size, size=size), minlength=size)
    return times
