"""The best showings among some pairs of users and bundles, by the CP-SAT solver."""

from __future__ import annotations

import numpy as np

from bundlemage.campaigns.limits import Block, Limits, Shown
from bundlemage.designer.solver import cp
from bundlemage.errors import MissingExtraError

WORK = 0.5
"""The most work of a solver, in CP-SAT's deterministic seconds. A limit in real seconds would make results
depend on the speed of the machine."""
FINE = 10**9
"""The solver computes with whole numbers. The highest value counts as this number."""
GAP = 1e-6
"""The solver ends if no plan can be better than its own by more than this share."""


def solved(
    block: Block, limits: Limits, per_user: int, most: int | None, cells: Shown, hint: Shown
) -> tuple[Shown, float] | None:
    """Returns the best plan that the solver finds among these cells, and an upper bound of all such plans.

    A cell is a pair of a user and a bundle. The search begins at the plan `hint`. Returns None if OR-Tools
    is not installed, or if the solver finds no plan.
    """
    try:
        cp_model = cp()
    except MissingExtraError:
        return None
    users, bundles = cells
    values = block.values[users, bundles]
    if not len(values):
        return cells, 0.0
    model = cp_model.CpModel()
    show = [model.new_bool_var("") for _ in values]

    def at_most(places: list[int], amounts: list[int], room: int) -> None:
        if sum(amounts) > room:
            chosen = [show[place] for place in places]
            model.add(cp_model.LinearExpr.weighted_sum(chosen, amounts) <= room)

    for user in np.unique(users).tolist():
        places = np.flatnonzero(users == user).tolist()
        at_most(places, [1] * len(places), per_user)
    which, limit, amount = limits.amounts(bundles, None if block.shares is None else block.shares[cells])
    for number in np.unique(limit).tolist():
        inside = limit == number
        at_most(which[inside].tolist(), amount[inside].tolist(), int(limits.room[number]))
    if most is not None:
        used = {bundle: model.new_bool_var("") for bundle in np.unique(bundles).tolist()}
        for place, bundle in enumerate(bundles.tolist()):
            model.add_implication(show[place], used[bundle])
        model.add(sum(used.values()) <= most)
    shown_before = np.zeros(block.values.shape, bool)
    shown_before[hint] = True
    for variable, before in zip(show, shown_before[cells].tolist(), strict=True):
        model.add_hint(variable, before)
    unit = float(values.max()) / FINE
    model.maximize(cp_model.LinearExpr.weighted_sum(show, np.floor(values / unit).astype(np.int64).tolist()))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = WORK
    solver.parameters.relative_gap_limit = GAP
    if solver.solve(model) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    shown = np.array([solver.boolean_value(variable) for variable in show])
    # Each value may have been rounded down by one unit.
    bound = (solver.best_objective_bound + min(len(show), per_user * len(block))) * unit
    return (users[shown], bundles[shown]), float(bound)
