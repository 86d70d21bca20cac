"""Whether a row is worse than the leading one, or merely looks so."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

Values = npt.NDArray[np.floating]


def paired_p(leading: Values, other: Values) -> float | None:
    """The two-sided p of a paired t-test over the cases that both have a value for.

    Cases count as independent of each other, which several users of one held-out bundle are not quite.
    """
    both = np.isfinite(leading) & np.isfinite(other)
    difference = leading[both].astype(np.float64) - other[both]
    if len(difference) < 2:
        return None
    if not difference.any():
        return 1.0
    if np.ptp(difference) == 0:  # the same difference in every case: no doubt, and no variance to divide by
        return 0.0
    return float(stats.ttest_rel(leading[both].astype(np.float64), other[both].astype(np.float64)).pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction: the smallest p times their number, the next times one less, never falling."""
    corrected, highest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=lambda place: ps[place])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[place]))
        corrected[place] = highest
    return corrected
