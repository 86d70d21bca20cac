"""Designs whole bundles for a request: searches for them, values them and explains them.

In greedy and beam search, bundles grow item by item. Items that would break a rule later are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bundlemage.core.filters import Mask
from bundlemage.core.ownership import known, to_pay
from bundlemage.core.shop import Shop
from bundlemage.designer.conflict import refuse_impossible
from bundlemage.designer.constraints import (
    NO_LIMIT,
    Deadline,
    Integers,
    Items,
    Rules,
    list_price_of,
    price_of,
)
from bundlemage.designer.explain import Explainer
from bundlemage.designer.objective import Objective, Worth
from bundlemage.designer.solver import Fits, any_bundle, cp, every_bundle, neighbours, shortlist
from bundlemage.errors import OutOfTimeError
from bundlemage.models.base import Histories, Matcher, Model
from bundlemage.models.ragged import Ragged
from bundlemage.progress import Progress, in_silence
from bundlemage.wire.design import DesignRequest
from bundlemage.wire.design_answers import BetterExisting, Design, DesignedItem, Designs, Explanation, Terms
from bundlemage.wire.shop import ShopSettings

REASONS = 1.0
"""The minimum time for finding reasons, in seconds, even if the time limit has passed."""
EXISTING = 16
"""The number of bundles of the shop that are compared with the designed ones: the likeliest for the user."""
LOOKED_AT = 4
"""How many of the best bundles of each greedy or beam search are fully evaluated, not only estimated."""
TOGETHER = 200
"""The number of bundles that the exact search evaluates together, before it looks at the clock."""
AROUND = 60
"""The number of neighbours of the best bundle that the exact search evaluates in each round."""
WIDTH = 8
"""The beam width: the number of unfinished bundles that are kept after each step."""
LIKELIEST = 64
"""The number of likeliest items that are tried first for each bundle. The others are tried only if needed."""


def design(
    model: Model,
    shop: Shop,
    histories: Histories,
    contents: Ragged,
    owned: Ragged,
    request: DesignRequest,
    settings: ShopSettings,
    explainer: Callable[[], Explainer] | None,
    progress: Progress = in_silence,
    *,
    own_costs: bool = True,
) -> Designs:
    """Designs bundles for one user, or for several users together: the rows of `histories`. `contents` has
    the items of each bundle, and `owned` the items that each user has (see `Shop.owned`).

    For several users, no user's items are excluded: users who have items of a bundle do not count for it.
    `explainer` is called if the request asks for reasons. `own_costs`: whether a request for margin that
    names no costs is given those of the catalogue. `progress` counts the bundles found.
    """
    cp()  # raises at once if OR-Tools is missing
    found: list[Worth] = []
    tick = None if progress is in_silence else lambda: progress("bundles", len(found), request.n)
    deadline = Deadline(request.time_limit, tick)
    has = owned.values.cpu().numpy() if len(histories) == 1 else np.zeros(0, np.int64)
    has = has[has < len(shop.dataset.items)]  # items that are newer than the model are never added
    rejected: Integers | None = None
    if histories.rejected_items is not None and len(histories) == 1:
        rejected = histories.rejected_items.values.cpu().numpy()
        rejected = rejected[rejected < len(shop.dataset.items)]
    rules = Rules(request, settings, shop.item_shelf, shop.trade.items_gone, has, rejected)
    objective = Objective(model, histories, contents, owned, shop, rules, tick, own_costs=own_costs)
    search = _Search(objective, rules, deadline, found)
    worths = search.bundles()
    complete = search.complete
    why: list[list[Explanation | None]] = [[None for _ in worth.added] for worth in worths]
    if request.reasons and explainer is not None:
        added, until = [worth.added for worth in worths], Deadline(max(REASONS, deadline.left))
        why = explainer().added(rules.start, added, until)
        complete &= all(reason is not None for reasons in why for reason in reasons)
    taking = objective.taking
    ranks = taking.ranks([rules.start + worth.added for worth in worths])
    bundles = tuple(
        _named(rank, worth, reasons, rules, shop, objective, expected_rank)
        for rank, (worth, reasons, expected_rank) in enumerate(zip(worths, why, ranks, strict=True), start=1)
    )
    return Designs(
        bundles=bundles,
        better_existing=_better_existing(objective, rules, shop, worths) if taking.able else None,
        note=None if taking.able else Matcher.lacks.format(title=model.title) + ".",
        method=request.method,
        seconds=deadline.taken,
        complete=complete,
        proven=search.proven,
    )


class _Search:
    """Searches for one bundle after another. Each is the best that differs enough from those before it."""

    def __init__(self, objective: Objective, rules: Rules, deadline: Deadline, found: list[Worth]) -> None:
        """`found` is empty. Bundles are added to it as soon as they are found."""
        self.objective, self.rules, self.deadline, self.found = objective, rules, deadline, found
        self.complete, self.proven = True, False

    def bundles(self) -> list[Worth]:
        """Returns the bundles, the best first."""
        request, chosen = self.rules.request, self.found
        # If the last bundle had no freely chosen item, no other can differ from it.
        while len(chosen) < request.n and all(self.rules.earlier):
            if chosen and self.deadline.passed:
                self.complete = False
                break
            share = self.deadline.within(
                self.deadline.left / (request.n - len(chosen))
            )  # for the exact search
            grown = self._grown() or self._anything()
            if not grown:
                break
            best = self._best(grown)
            if request.method == "exact":
                best = self._exact(best, grown, share)
            chosen.append(best)
            self.rules.earlier.append(frozenset(self.rules.chosen(best.added)))
        return sorted(chosen, key=lambda worth: -worth.value)

    def _best(self, bundles: Sequence[Items], *others: Worth) -> Worth:
        """Returns the best of these. If values are equal, the items decide, so the result is repeatable."""
        worths = [*others, *self.objective.worth(bundles)]
        return max(worths, key=lambda worth: (worth.value, tuple(-item for item in sorted(worth.added))))

    def _grown(self) -> list[Items]:
        """Returns bundles that greedy or beam search has grown item by item."""
        method, bundles = self.rules.request.method, dict[Items, Items]()
        # A beam may miss what greedy search finds. It comes first: greedy search then needs few new scores.
        for width in (1,) if method == "greedy" else (WIDTH, 1):
            grown = grow(self.objective, self.rules, self.deadline, width)
            self.complete &= not self.deadline.passed
            bundles |= {tuple(sorted(added)): added for added in grown[:LOOKED_AT]}
        return list(bundles.values())

    def _anything(self) -> list[Items]:
        """Returns a list with one bundle that satisfies the rules, or an empty list if none was found."""
        if not self.rules.earlier:
            refuse_impossible(self.rules, self.deadline)
        try:
            scores = self.objective.chances_after([self.rules.fixed])[0]
            some = any_bundle(self.rules, scores, self.deadline)
            if some is None and not self.rules.earlier:
                self.rules.allow_wholly_owned()
                some = any_bundle(self.rules, scores, self.deadline)
        except OutOfTimeError:
            if not self.rules.earlier:
                raise
            self.complete, some = False, None
        return [some] if some else []

    def _exact(self, best: Worth, known: Sequence[Items], deadline: Deadline) -> Worth:
        """Returns the best of all bundles if there are few enough to list them. Otherwise starts from the
        best bundle by pairwise fits of items, or from `best`, and moves to better neighbours while there is
        time."""
        all_bundles = every_bundle(self.rules, deadline)
        if all_bundles is not None:
            for first in range(0, len(all_bundles), TOGETHER):
                if deadline.passed:
                    self.complete = False
                    return best
                best = self._best(all_bundles[first : first + TOGETHER], best)
            self.proven = self.proven or not self.rules.earlier
            return best
        fits = Fits.of(self.objective, self.rules, known, deadline)
        if fits is None:
            self.complete = False
            return best
        bundles, finished = shortlist(fits, self.rules, known, deadline.within(deadline.left * 0.8))
        self.complete &= finished
        best = self._best([added for added in bundles if self.rules.hold(added)], best)
        while not deadline.passed:
            better = self._best(neighbours(self.objective, fits, self.rules, best.added, AROUND), best)
            if better.value <= best.value + 1e-9:
                return best
            best = better
        self.complete = False
        return best


def _better_existing(
    objective: Objective, rules: Rules, shop: Shop, proposed: Sequence[Worth]
) -> BetterExisting | None:
    """Returns the best of the `EXISTING` likeliest bundles of the shop that satisfy the rules; None if its
    value is not higher than that of the best proposal. A bundle that is itself proposed is never better."""
    chosen = {frozenset(worth.added) for worth in proposed}
    in_stock = any(rules.rules[number].kind == "in_stock" for number in rules.bans)
    places, logs = objective.taking.existing(in_stock)
    shelf, prices = shop.bundle_shelf, shop.full_prices(rules.settings.decimals)
    inside, ends = _contents(shop, objective)
    # First all bundles at once by what is quick to check, then one by one. Items that are newer than the
    # model have the highest positions, and are in no design.
    barred = np.ones(max(rules.items, int(inside.max(initial=0)) + 1), np.int64)
    barred[: rules.items] = ~rules.allowed
    barred[list(rules.fixed)] = 0
    before = np.concatenate([[0], np.cumsum(barred[inside])])
    sizes = np.diff(ends)
    fits = before[ends[1:]] == before[ends[:-1]]
    fits &= (sizes >= rules.size.least) & (sizes <= rules.size.most)
    found: list[tuple[int, float, Items]] = []
    for place, log in zip(places[fits[places]].tolist(), logs[fits[places]].tolist(), strict=True):
        items = inside[ends[place] : ends[place + 1]].tolist()
        added = tuple(item for item in items if item not in rules.start)
        if frozenset(added) in chosen or not set(rules.start) <= set(items):
            continue
        if rules.satisfied(added, float(prices[place])):
            found.append((place, log, added))
            if len(found) == EXISTING:
                break
    if not found:
        return None
    worths = objective.worth([added for *_, added in found], np.array([log for _, log, _ in found]))
    (place, _, added), worth = max(zip(found, worths, strict=True), key=lambda each: each[1].value)
    if worth.value <= proposed[0].value + 1e-9:
        return None
    return BetterExisting(
        id=shop.dataset.bundles[place],
        title=shelf.title(place),
        price=known(float(prices[place])),
        value=worth.value,
        expected_rank=objective.taking.rank_of_existing(place),
    )


def _contents(shop: Shop, objective: Objective) -> tuple[Integers, Integers]:
    """Returns the items of the shop's bundles, one bundle after the other, and where each begins and ends.
    Items that are newer than the model are included."""
    contents = shop.goods(objective.contents).contents
    ends: Integers = contents.offsets.cpu().numpy()[: len(shop.dataset.bundles) + 1]
    return contents.values.cpu().numpy()[: ends[-1]], ends


def _named(
    rank: int,
    worth: Worth,
    why: Sequence[Explanation | None],
    rules: Rules,
    shop: Shop,
    objective: Objective,
    expected_rank: int | None,
) -> Design:
    shelf, names = shop.item_shelf, shop.dataset.items
    places = rules.start + worth.added
    # Of several users, each owns something else.
    owned = [item in rules.owned if objective.taking.one_user else None for item in places]
    reasons = dict(zip(worth.added, why, strict=True))
    scores = {item: math.exp(log) for item, log in zip(worth.added, worth.logs, strict=True)}
    items = tuple(
        DesignedItem(
            id=names[item],
            **shelf.facts(item)._asdict(),
            given=item not in scores,
            score=scores.get(item),
            why=reasons.get(item),
            owned=is_owned,
            sold_out=bool(shelf.sold_out[item]),
        )
        for item, is_owned in zip(places, owned, strict=True)
    )
    prices, discount = [item.price for item in items], rules.request.discount
    price = price_of(prices, discount, rules.settings)
    # The bundle of the shop that has these items and no other.
    inside, ends = _contents(shop, objective)
    before = np.concatenate([[0], np.cumsum(np.isin(inside, places))])
    sizes, shared = np.diff(ends), np.diff(before[ends])
    same = np.flatnonzero((sizes == len(places)) & (shared == len(places)) & ~shop.trade.bundles_gone)
    return Design(
        rank=rank,
        items=items,
        price=price,
        to_pay=_to_pay(items, price, rules),
        list_price=list_price_of(prices, rules.settings),
        discount=discount,
        score=math.exp(worth.likelihood),
        value=worth.value,
        terms=Terms(
            matching=worth.matching,
            likelihood=worth.likelihood,
            margin=worth.margin,
            diversity=worth.diversity,
        ),
        same_as=shop.dataset.bundles[int(same[0])] if len(same) else None,
        expected_rank=expected_rank,
    )


def _to_pay(items: Sequence[DesignedItem], price: float | None, rules: Rules) -> float | None:
    """Returns what the user pays for a bundle with this price (see `ShopSettings.pays`); None if unknown."""
    each = np.array([np.nan if item.price is None else item.price for item in items])
    owned, discount = np.array([bool(item.owned) for item in items]), rules.request.discount
    price_of_all, whole, rest, off, has, lacks = np.array(
        [
            [np.nan if price is None else price],
            [each.sum()],
            [each[~owned].sum()],
            [discount or np.nan],
            [owned.sum()],
            [(~owned).sum()],
        ]
    )
    decimals = rules.settings.decimals
    pay = to_pay(rules.settings.pays, price_of_all, whole, rest, off, has, lacks, decimals)
    return known(float(pay[0]))


# ── Greedy and beam search ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _State:
    """An unfinished bundle."""

    added: Items
    value: float
    total: float
    """The sum of the log-probabilities and weighted margins of the chosen items."""
    pairs: float
    """The sum of the distances between its items, if the request asks for variety."""
    counts: Integers
    """The number of items in each group."""
    sums: Integers
    """The value of each sum that the rules limit, such as the price."""

    @property
    def key(self) -> Items:
        return tuple(sorted(self.added))


class Lookahead:
    """Decides which items may be added next, so that the bundle can still satisfy the rules.

    An item that it refuses leads to no valid bundle. An item that it allows may also lead to none.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        # The groups with a minimum
        self._required = [number for number, least in enumerate(rules.least) if least > 0]
        self._members = np.zeros((len(self._required), rules.items), bool)  # [required, items]
        for row, number in enumerate(self._required):
            self._members[row, rules.membership[number]] = True
        inside = self._members[:, rules.allowed]
        # The maximum number of required groups that one item is in
        self._at_once = max(1, int(inside.sum(0).max(initial=0)))
        self._reach = []
        """For each limited sum: the least and the most that 0, 1, 2, … further items can add to it, and for
        each required group the least that items of this group can add."""
        for each in rules.sums:
            ordered = np.sort(each.weights[rules.allowed])
            lowest_of = [_running(np.sort(each.weights[row & rules.allowed])) for row in self._members]
            self._reach.append((_running(ordered), _running(ordered[::-1]), lowest_of))
        self._blocked: dict[bytes, Mask] = {}

    def open(self, state: _State, items: Integers) -> Mask:
        """Returns for each of `items` whether it may be added next."""
        rules = self.rules
        size = len(rules.start) + len(state.added)
        room = rules.size.most - size - 1  # how many more items fit after the next one
        full = np.flatnonzero(state.counts >= rules.most)
        if (key := full.tobytes()) not in self._blocked:
            self._blocked[key] = rules.mask(rules.membership.all_of(full))
        mask = rules.allowed[items] & ~self._blocked[key][items] & ~rules.mask(state.added)[items]
        missing = rules.least[self._required] - state.counts[self._required]  # [required]
        after = np.maximum(missing[:, None] - self._members[:, items], 0)  # [required, items]
        needed = np.maximum(after.max(0, initial=0), -(-after.sum(0) // self._at_once))  # [items]
        mask &= needed <= room
        further = np.maximum(needed, rules.size.least - size - 1)  # minimum after the next one
        for each, reach, so_far in zip(rules.sums, self._reach, state.sums, strict=True):
            lowest, highest, lowest_of = reach
            total = so_far + each.weights[items]
            if each.most < NO_LIMIT:
                mask &= total + _least(lowest, further) <= each.most
                for number, of_group in enumerate(lowest_of):
                    rest = np.maximum(further - after[number], 0)
                    mask &= total + _least(of_group, after[number]) + _least(lowest, rest) <= each.most
            if each.least > 0:
                mask &= total + highest[min(room, len(highest) - 1)] >= each.least
        chosen = set(rules.chosen(state.added))
        for other in rules.earlier:
            if len(chosen & other) >= rules.most_common(len(other)):
                mask &= ~rules.mask(list(other))[items]
        return mask


def _running(weights: Integers) -> Integers:
    return np.concatenate([[0], np.cumsum(weights)])


def _least(sums: Integers, count: Integers) -> Integers:
    """Returns the lowest sum of `count` items; `NO_LIMIT` if there are fewer items."""
    enough = count < len(sums)
    return np.where(enough, sums[np.where(enough, count, 0)], NO_LIMIT)


def grow(objective: Objective, rules: Rules, deadline: Deadline, width: int) -> list[Items]:
    """Returns bundles that satisfy every rule, as tuples of added items; the best by estimated value first.

    `width` is the beam width; 1 is greedy search. After the deadline, the search stops at the first bundle.
    """
    ahead, first = Lookahead(rules), rules.fixed
    sums = np.array([each.of(first) for each in rules.sums], np.int64)
    variety = objective.variety(first)
    states = [_State(rules.must, variety, 0.0, variety * math.comb(len(first), 2), rules.counts(first), sums)]
    complete: dict[Items, _State] = {}
    while True:
        complete |= {each.key: each for each in states if each.key not in complete and rules.hold(each.added)}
        if not states or len(rules.start) + len(states[0].added) >= rules.size.most:
            break
        if deadline.passed:
            if complete:
                break
            width = 1  # the fastest way to a bundle
        states = _step(objective, rules, ahead, states[:width], width)
    return [state.added for state in sorted(complete.values(), key=lambda each: (-each.value, each.added))]


def _step(
    objective: Objective, rules: Rules, ahead: Lookahead, states: list[_State], width: int
) -> list[_State]:
    bundles = [rules.start + state.added for state in states]
    likely = objective.likeliest(bundles, LIKELIEST)
    options: list[tuple[float, int, int, float]] = []
    for number, state in enumerate(states):
        items, log, matching = likely[number].items, likely[number].logs, likely[number].matching
        mask = ahead.open(state, items)
        if np.count_nonzero(mask) < width and len(items) < rules.items:
            # Too few of the likeliest items may be added: try all allowed items.
            items = np.flatnonzero(rules.allowed)
            mask = ahead.open(state, items)
            items = items[mask]
            log = objective.chances_after([bundles[number]])[0][items]
            (matching,) = objective.matching_with([bundles[number]], [items])
        else:
            items, log, matching = items[mask], log[mask], matching[mask]
        chosen = len(state.added) - len(rules.must) + 1
        values = matching + (state.total + log + objective.earns[items]) / chosen
        if objective.asks_for_variety:
            apart = objective.apart(bundles[number], items).sum(0)
            values = values + (state.pairs + apart) / max(1, math.comb(len(bundles[number]) + 1, 2))
        best = np.lexsort((items, -values))[:width]
        options += [(float(values[b]), number, int(items[b]), float(log[b])) for b in best]
    options.sort(key=lambda each: (-each[0], each[1], each[2]))
    following: dict[Items, _State] = {}
    for value, number, item, log_chance in options:
        before = states[number]
        apart = objective.apart(bundles[number], [item]).sum() if objective.asks_for_variety else 0.0
        state = _State(
            (*before.added, item),
            value,
            before.total + log_chance + float(objective.earns[item]),
            before.pairs + float(apart),
            before.counts + rules.counts([item]),
            before.sums + np.array([each.weights[item] for each in rules.sums], np.int64),
        )
        following.setdefault(state.key, state)
        if len(following) == width:
            break
    return list(following.values())
