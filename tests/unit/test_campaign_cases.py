"""Small campaigns reach the optimum that an exact solver finds, or come near it without that solver."""

from __future__ import annotations

import numpy as np
import pytest

from bundlemage.campaigns import whole
from bundlemage.campaigns.whole import best_showings
from tests.campaign_cases import check, drawn, no_solver, share_of_optimum, value_of


def test_the_optimum_with_or_tools() -> None:
    check(range(50), 1 - 1e-6, 1 - 1e-6)


def test_near_the_optimum_without_or_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bundlemage.campaigns.exact.cp", no_solver)
    check(range(100), 0.995, 0.9)


@pytest.mark.parametrize("installed", [True, False], ids=["with OR-Tools", "without"])
def test_some_of_many_cells_are_enough(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are more cells than the plan is improved with, it keeps the limits and loses little."""
    monkeypatch.setattr(whole, "CELLS", 12)
    if not installed:
        monkeypatch.setattr("bundlemage.campaigns.exact.cp", no_solver)
    shares = [share_of_optimum(seed) for seed in range(40)]
    assert np.mean(shares) >= 0.97


def test_the_same_plan_every_time() -> None:
    for seed in range(10):
        case = drawn(seed)
        asked = case.block, case.limits, case.per_user, case.different_at_most
        one, other = best_showings(*asked), best_showings(*asked)
        assert (one.users.tolist(), one.bundles.tolist(), one.bound) == (
            other.users.tolist(),
            other.bundles.tolist(),
            other.bound,
        )


def test_the_cases_have_every_limit() -> None:
    cases = [drawn(seed) for seed in range(100)]
    for name in ("shares", "stock", "shown_at_most", "different_at_most", "costs"):
        with_it = sum(getattr(case, name) is not None for case in cases)
        assert 20 <= with_it <= 80, name
    assert {case.per_user for case in cases} == {1, 2, 3}
    full = next(case for case in cases if case.per_user == 1 and case.values[0, :2].all())
    with pytest.raises(AssertionError):  # the check of limits can fail
        value_of(full, (np.array([0, 0]), np.array([0, 1])))
