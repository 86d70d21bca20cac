"""Small campaigns reach the optimum that an exact solver finds, or come near it without that solver."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from bundlemage.campaigns import whole
from bundlemage.campaigns.limits import Limits
from bundlemage.campaigns.whole import best_showings
from tests.campaign_cases import Case, check, drawn, no_solver, optimum, share_of_optimum, value_of


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


def test_a_budget_pays_what_costs_as_much() -> None:
    """2.01 times a million is a little less than 2,010,000 in floating-point numbers."""
    for cents in range(1, 2000):
        money = cents / 100
        limits = Limits(sparse.csr_matrix(np.ones((1, 1))), costs=np.array([money]), budget=money)
        assert limits.affordable(limits.room) >= 1, money


def test_another_solver_finds_the_same_optimum() -> None:
    """HiGHS computes with fractions, within a tolerance, so the two optima may differ a little."""
    for seed in range(1000, 1040):
        case = drawn(seed)
        if case.shares is not None and len(np.unique(case.shares)) <= 4:
            continue  # a third of a unit is rounded up, so that a unit has no room for three
        assert optimum(case) == pytest.approx(by_highs(case), rel=1e-4, abs=1e-12), seed


def by_highs(case: Case) -> float:
    """The highest value of any plan within the limits, with limits in plain units instead of small parts."""
    (users, bundles), unit = case.values.shape, case.values.max(initial=0.0)
    if not unit:
        return 0.0
    cells = users * bundles
    user, bundle = np.divmod(np.arange(cells), bundles)
    share = np.ones(cells) if case.shares is None else case.shares.ravel()
    rows = [(np.equal(user, one) * 1.0, float(case.per_user)) for one in range(users)]
    if case.shown_at_most is not None:
        rows += [(np.equal(bundle, one) * 1.0, case.shown_at_most) for one in range(bundles)]
    if case.stock is not None:
        rows += [(share * case.contents[bundle, one], room) for one, room in enumerate(case.stock.tolist())]
    if case.costs is not None:
        rows.append((share * case.costs[bundle], case.budget))
    table, room = np.array([row for row, _ in rows]), np.array([room for _, room in rows])
    used = np.zeros((len(rows), bundles))
    if case.different_at_most is not None:  # further variables: whether a bundle is used
        implied = np.eye(cells), -np.eye(bundles)[bundle]
        table = np.vstack([np.hstack([table, used]), np.hstack(implied)])
        table = np.vstack([table, np.repeat([0.0, 1.0], [cells, bundles])])
        room = np.concatenate([room, np.zeros(cells), [case.different_at_most]])
    values = np.zeros(table.shape[1])
    values[:cells] = case.values.ravel() / unit
    most = np.ones(table.shape[1])
    most[:cells] = case.values.ravel() > 0
    found = milp(-values, constraints=LinearConstraint(table, ub=room), integrality=1, bounds=Bounds(0, most))
    assert found.success
    best: float = values @ np.round(found.x) * unit
    return best


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
