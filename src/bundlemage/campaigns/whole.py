"""A campaign of so few users that all of them are in memory is planned as a whole.

Prices of limits (see `limits`) suit many users. With few users, a single showing may fill a limit, and prices
waste much of it. So a plan that may not be near the optimum is improved: by the CP-SAT solver if OR-Tools is
installed, else by exchanges. Both choose among the most promising showings only. If these are all there are,
the solver finds the optimum, unless its work is too much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bundlemage.campaigns.choice import CANDIDATES, Choice
from bundlemage.campaigns.exact import solved
from bundlemage.campaigns.improve import Exchanges
from bundlemage.campaigns.limits import (
    Block,
    Demand,
    Floats,
    Limits,
    Shown,
    Whole,
    highest,
    learn,
    sampled,
    serve_best,
)

CELLS = 4096
"""The maximum number of pairs of a user and a bundle that a plan is improved with."""
NEAR = 0.999
"""A plan of many cells with at least this share of the upper bound is not improved."""


@dataclass(frozen=True)
class Showings:
    """The bundles that users are shown, sorted by user; each user's best bundle is first."""

    users: Whole
    bundles: Whole
    prices: Floats
    """The price of each limit, if any bundle may be shown."""
    chosen: Whole | None
    """The bundles among which these were chosen; None if these are all."""
    prices_chosen: Floats
    """The price of each limit, if only chosen bundles may be shown."""
    bound: float
    """No plan within the limits has a higher value."""


def best_showings(block: Block, limits: Limits, per_user: int, most_different: int | None = None) -> Showings:
    """Returns the best plan found for these users within all limits."""
    most = None if most_different is None or most_different >= limits.takes.shape[0] else most_different
    room = limits.room / limits.units
    demand = Demand(sampled([block], CANDIDATES), limits, per_user)
    prices = learn(demand, room)
    bound = demand.at(prices, room)[0] * (1 + 1e-5)  # it is computed in single precision
    cells = _cells(block, limits)
    few = len(cells[0]) <= CELLS
    columns, own_prices = np.arange(limits.takes.shape[0]), prices
    if most is not None and not few:
        columns = Choice(block, limits, room, per_user, most, whole=True).best()
        own_prices = learn(Demand(sampled([block], CANDIDATES, columns), limits, per_user), room)
    own, own_limits = block.of(columns), limits.restricted(columns)
    served = serve_best(own, own_limits, limits.room.copy(), own_prices, per_user)
    shown = served[0], columns[served[1]]
    if few and most is not None:  # the bundles were not chosen yet
        shown = shown[0][:0], shown[1][:0]
    if few or _value(block, shown) < NEAR * bound:
        if not few:
            inside = _promising(own, own_limits, own_prices, per_user, _cells(own, own_limits), served)
            cells = inside[0], columns[inside[1]]
        found = solved(block, limits, per_user, most, cells, shown)
        if found is None:
            found = _improved(block, limits, per_user, most, cells, shown), np.inf
        shown = max(shown, found[0], key=lambda each: _value(block, each))
        bound = min(bound, found[1]) if few else bound
    users, bundles = shown
    order = np.lexsort((bundles, -block.values[users, bundles], users))
    chosen = None if len(columns) == limits.takes.shape[0] else columns
    bound = max(bound, _value(block, shown))
    return Showings(users[order], bundles[order], prices, chosen, own_prices, bound)


def _value(block: Block, shown: Shown) -> float:
    return float(block.values[shown].sum())


def _cells(block: Block, limits: Limits) -> Shown:
    """The pairs of a user and a bundle that have a value and fit into the limits alone."""
    shares = np.ones((1, 1)) if block.shares is None else block.shares
    users, bundles = np.nonzero((block.values > 0) & (shares <= limits.affordable(limits.room)))
    return users.astype(np.int64), bundles.astype(np.int64)


def _promising(
    block: Block, limits: Limits, prices: Floats, per_user: int, cells: Shown, kept: Shown
) -> Shown:
    """At most `CELLS` cells, with those of `kept`: the ones that lose least against the user's best ones."""
    users, bundles = cells
    reduced = np.where(block.values > 0, limits.reduced(prices, block), -np.inf)
    worst = highest(reduced, per_user)[:, 0]  # of the bundles that the user would get at these prices
    loss = np.maximum(worst, 0.0)[users] - reduced[users, bundles]
    is_kept = np.zeros(block.values.shape, bool)
    is_kept[kept] = True
    loss[is_kept[users, bundles]] = -np.inf
    chosen = np.sort(np.argsort(loss, kind="stable")[:CELLS])
    return users[chosen], bundles[chosen]


def _improved(
    block: Block, limits: Limits, per_user: int, most: int | None, cells: Shown, shown: Shown
) -> Shown:
    is_shown = np.zeros(block.values.shape, bool)
    is_shown[shown] = True
    plan = Exchanges(block, limits, per_user, most, cells).best(is_shown[cells])
    return cells[0][plan], cells[1][plan]
