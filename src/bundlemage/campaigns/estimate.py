"""What a sample of users says about all users, and how exactly."""

from __future__ import annotations

import math

import numpy as np

from bundlemage.campaigns.chances import Numbers

REPLICATES = 50
"""How often users are drawn again from the sample. The spread of the results is the sampling error."""


def possible_sums(columns: Numbers, of: int, seed: int = 0) -> Numbers:
    """Returns values that sums over `of` users may have. `columns` [n, sample] has the terms of the sample.

    The sampling error is that of the bootstrap: users are drawn from the sample, with replacement. It is
    smaller if the sample is a large part of all users, and 0 if it is all of them.
    """  # [n, REPLICATES]
    size = columns.shape[1]
    found, spread = columns.sum(1), math.sqrt(max(0.0, 1 - size / of))
    sums = np.repeat(found[:, None], REPLICATES, axis=1)
    if spread:
        random = np.random.default_rng(seed)
        for place in range(REPLICATES):
            times = np.bincount(random.integers(size, size=size), minlength=size)
            sums[:, place] += spread * (columns @ times - found)
    possible: Numbers = np.maximum(sums, 0.0) * (of / size)
    return possible


def ratio(part: Numbers, whole: Numbers) -> Numbers:
    """The share of the buyers who count; 0 if there are none."""
    share: Numbers = part / np.maximum(whole, 1e-99)
    return share
