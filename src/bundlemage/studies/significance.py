"""Whether a row is worse than the leading one, or merely looks so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

Values = npt.NDArray[np.floating]


def paired_p(leading: Values, other: Values, groups: npt.NDArray[np.integer] | None = None) -> float | None:
    """The two-sided p of a paired t-test over the cases that both have a value for.

    Cases of one group, such as the users of one held-out bundle, are no witnesses independent of each other:
    the error of the mean is then worked out from the groups' sums (a cluster-robust error).
    """
    both = np.isfinite(leading) & np.isfinite(other)
    difference = leading[both].astype(np.float64) - other[both]
    which = np.arange(len(difference)) if groups is None else np.unique(groups[both], return_inverse=True)[1]
    count = int(which.max(initial=-1)) + 1
    if count < 2:
        return None
    if not difference.any():
        return 1.0
    # Without groups this is the textbook's error: Σ (d − d̄)² / (n − 1) / n, under the root.
    sums = np.bincount(which, difference - difference.mean())
    error = np.sqrt((sums**2).sum() * count / (count - 1)) / len(difference)
    if np.ptp(difference) == 0:  # the same difference in every case: no doubt, and no variance to divide by
        return 0.0
    return float(2 * stats.t.sf(abs(difference.mean()) / error, count - 1)) if error else 0.0


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction: the smallest p times their number, the next times one less, never falling."""
    corrected, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[place]))
        corrected[place] = highest
    return corrected
