"""A campaign: bundles for many users at once, so that together they are worth most under shared limits.

Each limit has a price, learned on a sample of users: so dear that as much is taken as there is. A user is
shown what is worth most after prices. Users are served block by block; what is left of a limit is never below
zero, and prices follow what is left for those who are still to come. By the prices of the plan, the same pass
also proves a bound: a value that no plan within the limits exceeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from math import fsum
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bundlemage.campaigns.bounds import Tally, bound, tally
from bundlemage.campaigns.chances import Calibration
from bundlemage.campaigns.files import SCHEMA, CampaignFolder
from bundlemage.campaigns.limits import Floats, Whole
from bundlemage.campaigns.offer import Asked, Offer
from bundlemage.campaigns.plan import Plan, Planner
from bundlemage.campaigns.serving import serve, serve_best
from bundlemage.campaigns.settings import Campaign, CampaignSummary
from bundlemage.core.shop import Shop
from bundlemage.models.base import Model

Progress = Callable[[int, int], None]
"""Called with how many users are served and how many there are."""
Ask = Callable[[Iterable[Whole]], Iterable[Asked]]
"""What `Offer.asked` says of each block of users, in their order; it may be worked out ahead."""
TIGHTEST = 10


def run_campaign(
    settings: Campaign,
    path: Path,
    model: Model,
    shop: Shop,
    calibration: Calibration | None,
    users: Whole,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    ask: Ask | None = None,
) -> CampaignSummary:
    """Write who is shown what, part by part, to a folder; users are positions in the shop, each one once.

    `ask`: who asks the model of those who are served; if not said, it is done here, in turn.
    """
    offer = Offer.of(settings, model, shop, calibration)
    folder = CampaignFolder(path, settings.format)
    folder.check(resume=resume)
    identity = {**settings.to_json(), **offer.fingerprints(users)}
    planner = Planner(offer, users)
    if not folder.begun:
        plan = planner.plan()
        folder.begin(identity, plan=plan.to_json(offer))
    else:
        plan = Plan.from_json(folder.resume(identity, but={"plan"})["plan"], offer)
        if (summary := folder.summary()) is not None:
            return CampaignSummary(**summary)
    work = _Work(offer, planner, plan, folder)
    work.recover()
    work.serve(ask or (lambda blocks: map(offer.asked, blocks)), progress or _in_silence)
    finished = work.summary()
    folder.finish(finished.to_json())
    return finished


@dataclass(frozen=True)
class _Counted:
    """What a part adds to the whole."""

    shown: int
    with_nothing: int
    by_popularity: int
    value: float
    sales: float
    takings: float  # not a number where a price is not known
    bounds: Tally

    def to_json(self) -> dict[str, Any]:
        # JSON has no word for what is not a number.
        return {**asdict(self), "takings": None if np.isnan(self.takings) else self.takings}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> _Counted:
        takings = np.nan if stored["takings"] is None else stored["takings"]
        bounds = stored["bounds"]
        gains = tuple(map(tuple, bounds["gains"]))
        tallied = Tally(bounds["unconstrained"], tuple(bounds["reduced"]), tuple(bounds["kept"]), gains)
        return cls(**{**stored, "takings": takings, "bounds": tallied})


class _Work:
    """A campaign under way: what is left of the limits after the parts that are written."""

    def __init__(self, offer: Offer, planner: Planner, plan: Plan, folder: CampaignFolder) -> None:
        self.offer, self.planner, self.plan, self.folder = offer, planner, plan, folder
        self.settings, self.users = offer.settings, planner.users
        self.room = offer.limits.room.copy()
        self.times = np.zeros(len(offer.bundles), np.int64)
        self.counted: list[_Counted] = []
        self.parts = -(-len(self.users) // self.settings.part_users)
        self.columns = np.arange(len(offer.bundles)) if plan.chosen is None else plan.chosen
        self.limits = offer.limits if plan.chosen is None else offer.limits.restricted(plan.chosen)

    def recover(self) -> None:
        """What was used up, from the parts themselves."""
        dataset = self.offer.shop.dataset
        for number in range(self.folder.parts_done()):
            rows = self.folder.read_part(number)
            bundles = np.searchsorted(
                self.offer.bundles, dataset.bundles.positions(rows["bundle_id"].to_pylist())
            )
            chances = rows["chance"].to_numpy().astype(np.float64)
            self.room -= self.offer.limits.used(bundles, chances if self._by_chance else None)
            self.times += np.bincount(bundles, minlength=len(self.times))
            self.counted.append(_Counted.from_json(self.folder.read_tally(number)))

    @property
    def _by_chance(self) -> bool:
        return self.settings.reserve == "expected"

    def _blocks(self, number: int) -> Iterator[Whole]:
        """The users of a part, as many at a time as the model is asked of."""
        size = self.settings.part_users
        return self.planner.blocks(self.users[number * size : (number + 1) * size])

    def serve(self, ask: Ask, progress: Progress) -> None:
        size, left = self.settings.part_users, range(len(self.counted), self.parts)
        progress(min(len(self.counted) * size, len(self.users)), len(self.users))
        answers = iter(ask(users for number in left for users in self._blocks(number)))
        for number in left:
            served = number * size
            prices = self.planner.prices(self.plan, served, self.room)
            tables, counted = [], []
            for users in self._blocks(number):
                served += len(users)
                rows, found = self._block(users, next(answers), prices, last=served == len(self.users))
                tables.append(rows)
                counted.append(found)
                progress(served, len(self.users))
            whole = _added(counted)
            self.folder.write_part(number, pa.concat_tables(tables), whole.to_json())
            self.counted.append(whole)

    def _block(self, users: Whole, asked: Asked, prices: Floats, *, last: bool) -> tuple[pa.Table, _Counted]:
        block, per_user = asked.block, self.settings.per_user
        bounds = tally(
            block, asked.unconstrained, self.offer.limits, self.plan.proofs, per_user, self.plan.chosen
        )
        narrow = block if self.plan.chosen is None else block.of(self.columns)
        if last:
            shown = serve_best(narrow, self.limits, self.room, prices, per_user)
        else:
            shown = serve(narrow, self.limits, self.room, self.limits.priced(prices), per_user)
        bundles = self.columns[shown.bundles]
        self.times += np.bincount(bundles, minlength=len(self.times))
        chance = asked.chances[shown.users, bundles]
        value, price = block.values[shown.users, bundles], self.offer.prices[self.offer.bundles[bundles]]
        shop = self.offer.shop
        first = np.searchsorted(shown.users, shown.users, side="left")
        rows = pa.table(
            [
                shop.user_ids.take(pa.array(users[shown.users])),
                (np.arange(len(first)) - first + 1).astype(np.int32),
                shop.bundle_ids.take(pa.array(self.offer.bundles[bundles])),
                chance.astype(np.float32),
                value,
                pa.array(price, from_pandas=True),  # null where it is not known
            ],
            schema=SCHEMA,
        )
        return rows, _Counted(
            shown=len(bundles),
            with_nothing=len(users) - len(np.unique(shown.users)),
            by_popularity=asked.unknown,
            value=float(value.sum()),
            sales=float(chance.sum()),
            takings=float((chance * price).sum()),
            bounds=bounds,
        )

    def summary(self) -> CampaignSummary:
        whole = _added(self.counted)
        limits = self.offer.limits
        highest = bound(whole.bounds, limits, self.plan.proofs, self.settings.different_at_most)
        best = whole.bounds.unconstrained
        return CampaignSummary(
            users=len(self.users),
            with_nothing=whole.with_nothing,
            by_popularity=whole.by_popularity,
            shown=whole.shown,
            value=whole.value,
            sales=whole.sales,
            takings=None if np.isnan(whole.takings) else whole.takings,
            unconstrained=best,
            bound=highest,
            share_of_unconstrained=whole.value / best if best > 0 else None,
            share_of_bound=whole.value / highest if highest > 0 else None,
            chances="softmax" if self.offer.calibration is None else "calibrated",
            left_out=self.offer.left_out,
            different=int((self.times > 0).sum()),
            limits=self._use(),
            parts=self.parts,
            settings=self.settings.to_json(),
        )

    def _use(self) -> dict[str, dict[str, Any]]:
        """How far each limit is used, in items, times and money."""
        limits, settings = self.offer.limits, self.settings
        kinds = np.array([kind for kind, _ in limits.names])
        of, left = limits.room / limits.units, self.room / limits.units
        found: dict[str, dict[str, Any]] = {}
        if settings.stock:
            there = np.flatnonzero(kinds == "stock")
            share = 1 - left[there] / np.maximum(of[there], 1)
            tightest = there[np.argsort(-share, kind="stable")][:TIGHTEST]
            found["stock"] = {
                "items": len(there),
                "used": fsum((of - left)[there]),
                "of": fsum(of[there]),
                "used_up": int(((left < 1) & (of >= 1))[there].sum()),
                "tightest": [
                    {
                        "item_id": self.offer.name(*limits.names[place]),
                        "used": float(of[place] - left[place]),
                        "of": float(of[place]),
                    }
                    for place in tightest
                ],
            }
        if settings.shown_at_most is not None:
            found["shown_at_most"] = {
                "of": settings.shown_at_most,
                "most": int(self.times.max()),
                "bundles_at_limit": int((self.times >= settings.shown_at_most).sum()),
            }
        if settings.different_at_most is not None:
            found["different_at_most"] = {
                "of": settings.different_at_most,
                "used": int((self.times > 0).sum()),
            }
        if settings.budget is not None:
            found["budget"] = {"of": settings.budget, "used": float((of - left)[kinds == "budget"][0])}
        return found


def _added(counted: list[_Counted]) -> _Counted:
    return _Counted(
        shown=sum(each.shown for each in counted),
        with_nothing=sum(each.with_nothing for each in counted),
        by_popularity=sum(each.by_popularity for each in counted),
        value=fsum(each.value for each in counted),
        sales=fsum(each.sales for each in counted),
        takings=fsum(each.takings for each in counted),
        bounds=Tally.added([each.bounds for each in counted]),
    )


def _in_silence(done: int, total: int) -> None:
    pass
