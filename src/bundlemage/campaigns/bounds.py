"""What no plan within the limits can be worth more than, added up block by block over all users."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bundlemage.campaigns.limits import Floats, Limits, Whole
from bundlemage.campaigns.prices import Sample
from bundlemage.campaigns.serving import Block, highest

BETWEEN = (0.0, 0.5, 1.0)
"""Where a user's own price may lie between the best bundle that they do not get and the worst that they do.
Each proves a bound of its own, and the lowest counts."""


@dataclass(frozen=True)
class Tally:
    """Sums over some users. With them and the prices, a bound follows."""

    unconstrained: float
    """Every user gets their best."""
    reduced: tuple[float, ...]
    """The same less prices, for each list of prices that may prove something."""
    kept: tuple[float, ...] = ()
    """For each of `BETWEEN`: the users' own prices, times the bundles that each may get."""
    gains: tuple[tuple[float, ...], ...] = ()
    """For each of `BETWEEN` and each bundle: what is left of the users' values after all prices."""

    @classmethod
    def added(cls, tallies: Sequence[Tally]) -> Tally:
        kept = [np.sum([each.kept[k] for each in tallies]) for k in range(len(tallies[0].kept))]
        gains = [np.sum([each.gains[k] for each in tallies], axis=0) for k in range(len(kept))]
        return cls(
            sum(each.unconstrained for each in tallies),
            tuple(sum(parts) for parts in zip(*(each.reduced for each in tallies), strict=True)),
            tuple(map(float, kept)),
            tuple(tuple(gain.tolist()) for gain in gains),
        )


def tally(
    block: Block,
    unconstrained: float,
    limits: Limits,
    proofs: Sequence[Floats],
    per_user: int,
    chosen: Whole | None,
) -> Tally:
    """By these prices, whatever is shown. `chosen`: the bundles of a plan that may use only so many, for
    which the first prices are made."""
    tables = [_worth(block, limits, prices) for prices in proofs]
    plain = unconstrained, tuple(float(highest(table, per_user).sum()) for table in tables)
    if chosen is None:
        return Tally(*plain)
    reduced = tables[0]
    best = highest(reduced[:, chosen], per_user + 1)  # of each user, the lowest first
    above = best[:, 1] if best.shape[1] > per_user else best[:, 0]
    below = best[:, 0] if best.shape[1] > per_user else np.zeros(len(best))
    kept, gains = [], []
    for between in BETWEEN:
        own = below + between * (above - below)
        kept.append(float(own.sum()) * per_user)
        gains.append(tuple(np.maximum(reduced - own[:, None], 0.0).sum(0).tolist()))
    return Tally(*plain, tuple(kept), tuple(gains))


def _worth(block: Block, limits: Limits, prices: Floats) -> Floats:
    reduced = limits.priced(prices).reduced(block.values, block.shares)
    np.maximum(reduced, 0.0, out=reduced)
    reduced[block.values <= 0] = 0.0
    return reduced


def bound(found: Tally, limits: Limits, proofs: Sequence[Floats], most: int | None) -> float:
    """The lowest bound that a tally of all users proves."""
    room = limits.room / limits.units
    pairs = zip(found.reduced, proofs, strict=True)
    proven = [found.unconstrained, *(reduced + float(prices @ room) for reduced, prices in pairs)]
    prices, flat = proofs[0], ~limits.shared
    for kept, gains in zip(found.kept, found.gains, strict=True):
        # A bundle that is not used takes nothing of its own limit either.
        each = np.array(gains) + limits.flat @ (prices * room * flat)
        top = np.sort(each)[::-1][:most].sum()
        proven.append(kept + float(top) + float((prices * room)[~flat].sum()))
    return min(proven)


def own_limits(sample: Sample, limits: Limits, prices: Floats, room: Floats, chosen: Whole) -> Floats:
    """The same prices; for how often a bundle may be shown, also of those that were not chosen.

    At the price of the last user for whom there would be room: so a bound knows that they, too, cannot be
    shown to everyone.
    """
    prices = prices.copy()
    reduced = limits.priced(prices).reduced(sample.values, sample.shares, sample.bundles)
    reduced[sample.values <= 0] = 0.0
    in_plan = np.zeros(limits.takes.shape[0], bool)
    in_plan[chosen] = True
    own = np.where(in_plan[sample.bundles], reduced, 0.0).max(1, initial=0.0)
    more = reduced - own[:, None]
    for number, (kind, bundle) in enumerate(limits.names):
        if kind == "shown" and not in_plan[bundle]:
            gains = np.sort(more[sample.bundles == bundle])[::-1]
            place = int(room[number])
            prices[number] = max(0.0, float(gains[place])) if place < len(gains) else 0.0
    return prices
