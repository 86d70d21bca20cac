"""Small random campaigns, and their exact optimum by CP-SAT, which knows nothing of prices of limits.

`python -m tests.campaign_cases 1000` prints how near the plans are to the optimum.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from ortools.sat.python import cp_model
from scipy import sparse

from bundlemage.campaigns import exact
from bundlemage.campaigns.limits import Block, Limits
from bundlemage.campaigns.whole import best_showings
from bundlemage.errors import MissingExtraError

PARTS = 2**30
"""Stock is counted in parts of a unit, as in `campaigns.limits`; a fraction of a part counts as a whole."""
MICROS = 10**6
SCALE = 10**9


@dataclass(frozen=True)
class Case:
    """A campaign of a few users. Tables have a row for each user and a column for each bundle."""

    values: npt.NDArray[np.float64]
    shares: npt.NDArray[np.float64] | None
    contents: npt.NDArray[np.int64]  # [bundles, items]
    per_user: int
    stock: npt.NDArray[np.int64] | None
    shown_at_most: int | None
    different_at_most: int | None
    costs: npt.NDArray[np.float64] | None
    budget: float

    @property
    def block(self) -> Block:
        return Block(self.values, self.shares)

    @property
    def limits(self) -> Limits:
        contents = sparse.csr_matrix(self.contents)
        return Limits(contents, self.stock, self.shown_at_most, self.costs, self.budget)


def drawn(seed: int) -> Case:
    """Returns a case. Every kind of limit is in some cases, and so are values that differ by many orders."""
    random = np.random.default_rng(seed)
    users, bundles, items = (int(random.integers(*ends)) for ends in ((2, 13), (2, 9), (3, 9)))
    chances = random.random((users, bundles))
    match int(random.integers(5)):
        case 0:  # all users like the same bundles
            chances *= random.random(bundles) ** 4
        case 1:  # small chances that differ by orders of magnitude
            chances = 10.0 ** random.uniform(-8, 0, (users, bundles))
        case 2:  # many equal values
            chances = np.round(chances * 3) / 3
        case 3:  # a few users are worth far more than the others
            chances *= np.where(random.random(users) < 0.3, 1.0, 0.01)[:, None]
    chances[random.random((users, bundles)) < random.choice([0.0, 0.3])] = 0.0  # the user has these
    prices = np.round(random.uniform(1, 40, items), 2)
    if random.random() < 0.2:
        prices[random.integers(items)] = 5000.0
    contents = (random.random((bundles, items)) < random.uniform(0.2, 0.7)).astype(np.int64)
    contents[np.arange(bundles), random.integers(items, size=bundles)] = 1
    takings = random.random() < 0.5
    values = chances * (contents @ prices) if takings else chances
    expected = random.random() < 0.5
    stock = random.integers(0, 6, items) if random.random() < 0.6 else None
    costs = np.round(contents @ prices * random.choice([0.0, 0.1, 0.2, 0.5], bundles), 2)
    budget = float(np.round(costs.max() * random.uniform(0.5, 5) * (chances.mean() if expected else 1.0), 2))
    return Case(
        values,
        chances if expected else None,
        contents,
        int(random.integers(1, 4)),
        stock,
        int(random.integers(1, 5)) if random.random() < 0.5 else None,
        int(random.integers(1, bundles + 1)) if random.random() < 0.4 else None,
        costs if random.random() < 0.5 else None,
        budget,
    )


def value_of(case: Case, shown: tuple[Any, Any]) -> float:
    """The value of these showings. Raises an AssertionError if they break a limit."""
    times = np.zeros(case.values.shape, int)
    np.add.at(times, shown, 1)
    assert times.max(initial=0) <= 1
    assert (case.values[shown] > 0).all()
    assert times.sum(1).max() <= case.per_user
    assert case.shown_at_most is None or times.sum(0).max() <= case.shown_at_most
    assert case.different_at_most is None or (times.sum(0) > 0).sum() <= case.different_at_most
    if case.stock is not None:
        used = parts(case, PARTS)[:, :, None] * case.contents
        assert ((times[:, :, None] * used).sum((0, 1)) <= case.stock * PARTS).all()
    if case.costs is not None:
        assert (times * parts(case, micros(case))).sum() <= round(case.budget * MICROS)
    return float(case.values[shown].sum())


def micros(case: Case) -> npt.NDArray[np.int64]:
    assert case.costs is not None
    return np.array([round(cost * MICROS) for cost in case.costs.tolist()])


def parts(case: Case, each: Any) -> npt.NDArray[np.int64]:
    """What a showing uses of a limit of which a whole bundle uses `each`, rounded up."""
    shares = np.ones_like(case.values) if case.shares is None else case.shares
    amounts: npt.NDArray[np.int64] = np.ceil(shares * each).astype(np.int64)
    return amounts


def optimum(case: Case) -> float:
    """The highest value of any plan within the limits."""
    model, (users, bundles) = cp_model.CpModel(), case.values.shape
    show = {(u, b): model.new_bool_var("") for u, b in zip(*np.nonzero(case.values > 0), strict=True)}
    for user in range(users):
        model.add(sum(x for (u, _), x in show.items() if u == user) <= case.per_user)
    if case.shown_at_most is not None:
        for bundle in range(bundles):
            model.add(sum(x for (_, b), x in show.items() if b == bundle) <= case.shown_at_most)
    if case.different_at_most is not None:
        used = [model.new_bool_var("") for _ in range(bundles)]
        for (_, bundle), x in show.items():
            model.add_implication(x, used[bundle])
        model.add(sum(used) <= case.different_at_most)
    if case.stock is not None:
        amounts = parts(case, PARTS)
        for item, room in enumerate(case.stock.tolist()):
            inside = [int(amounts[cell]) * x for cell, x in show.items() if case.contents[cell[1], item]]
            model.add(sum(inside) <= room * PARTS)
    if case.costs is not None:
        amounts = parts(case, micros(case))
        model.add(sum(int(amounts[cell]) * x for cell, x in show.items()) <= round(case.budget * MICROS))
    best = float(case.values.max())
    if not best:
        return 0.0
    model.maximize(sum(math.floor(case.values[cell] / best * SCALE) * x for cell, x in show.items()))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    shown = np.array([cell for cell, x in show.items() if solver.value(x)], int).reshape(-1, 2)
    return value_of(case, (shown[:, 0], shown[:, 1]))


def share_of_optimum(seed: int) -> float:
    """The value of the planned campaign, as a share of the optimum. Checks its limits and its bound."""
    case = drawn(seed)
    found = best_showings(case.block, case.limits, case.per_user, case.different_at_most)
    value, best = value_of(case, (found.users, found.bundles)), optimum(case)
    assert value <= best * (1 + 1e-6), seed
    assert found.bound >= best * (1 - 1e-6), seed
    return value / best if best else 1.0


def no_solver() -> None:
    """Takes the place of `exact.cp` where OR-Tools is not installed."""
    raise MissingExtraError("designer", "designing bundles")


def check(cases: Sequence[int], least_mean: float, least: float) -> None:
    """Raises an AssertionError if the plans of these cases are too far from the optimum."""
    shares = [share_of_optimum(seed) for seed in cases]
    assert np.mean(shares) >= least_mean
    assert min(shares) >= least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", type=int)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first case")
    asked = parser.parse_args()
    cases, seeds = asked.cases, range(asked.first, asked.first + asked.cases)
    for installed in (True, False):
        name = "with OR-Tools" if installed else "without OR-Tools"
        if not installed:
            exact.cp = no_solver  # type: ignore[attr-defined]
        shares = [share_of_optimum(seed) for seed in seeds]
        worst, below = min(shares), sum(share < 0.9 for share in shares)
        print(f"{name}: {cases:,} cases, mean {np.mean(shares):.3%}, worst {worst:.2%}, {below} below 90%")


if __name__ == "__main__":
    main()
