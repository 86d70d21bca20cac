"""A campaign chooses bundles for many users at once, with the highest total value within shared limits.

Each limit has a price (a Lagrange multiplier, not money), learned from a sample of users: at this price,
demand equals the limit. A user is shown the bundles with the highest value minus the prices of the limits
that they use. Users are served block by block. The room of a limit is the part that is not used yet. It is
never negative. Later users get prices learned from the room that is left. Prices also give an upper bound of
the campaign's value.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from bundlemage.campaigns.limits import Block, Floats, Limits, Shown, Whole, highest, serve, serve_best
from bundlemage.campaigns.plan import Offer, Plan, Planner, Scored
from bundlemage.campaigns.settings import Campaign, CampaignSummary
from bundlemage.campaigns.what_if import Change, WhatIf, WhatIfs
from bundlemage.core.filters import Filter
from bundlemage.core.history import Id
from bundlemage.core.shop import Shop
from bundlemage.data.folders import ResumableFolder, json_bytes, write_whole
from bundlemage.data.row_files import Format, read_rows, write_rows
from bundlemage.errors import CheckpointError, ConfigError, list_of
from bundlemage.progress import Progress, in_silence

Ask: TypeAlias = Callable[[Iterable[Whole]], Iterable[Scored]]
"""Returns `Offer.scored` of each block of users, in their order. It may compute blocks in advance."""
Tally: TypeAlias = dict[str, Any]
"""Numbers and lists of numbers that are added up over all users."""
SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("rank", pa.int32()),
        ("bundle_id", pa.string()),
        ("chance", pa.float32()),
        ("value", pa.float64()),
        ("price", pa.float64()),
        ("to_pay", pa.float64()),
        ("owned_items", pa.int32()),
        ("missing_items", pa.int32()),
        ("sold_out", pa.bool_()),
    ]
)
SUMMARY = "campaign.json"
NO_IDENTITY = frozenset({"plan"})
"""Keys of the file with the plan that do not identify the campaign."""
TIGHTEST = 10
"""Number of items in the summary's list of the most used stocks."""
BETWEEN = (0.0, 0.5, 1.0)
"""For the upper bound, the limit `per_user` has a price too, one for each user. This price lies between the
value of the best bundle that the user does not get (0) and the value of the worst bundle that the user gets
(1). Each of these three positions gives an upper bound, and the lowest bound is used."""


def run_campaign(
    offer: Offer,
    path: Path,
    users: Iterable[Id] | None = None,
    *,
    resume: bool = False,
    progress: Progress = in_silence,
    ask: Ask | None = None,
) -> CampaignSummary:
    """Chooses bundles for `users`, or for all users of the shop, and writes the result to the folder `path`.

    `offer` has the settings, the bundles and the limits. `resume` continues an interrupted campaign. `ask`
    scores the users; without it, this process does. Returns the summary, which is also written to the folder.
    """
    settings, places = offer.settings, _positions(offer.shop, users)
    folder = CampaignFolder(path, settings.format)
    folder.check(resume=resume)
    identity = {**settings.to_json(), **offer.fingerprints(places)}
    planner = Planner(offer, places)
    if not folder.begun:
        plan = planner.plan()
        folder.begin(identity, plan=plan.to_json(offer))
    else:
        plan = Plan.from_json(folder.resume(identity, but=NO_IDENTITY)["plan"], offer)
    summary = folder.path / SUMMARY
    if not summary.exists():
        work = _Work(offer, planner, plan, folder)
        work.serve(ask or (lambda blocks: map(offer.scored, blocks)), progress)
        write_whole(summary, json_bytes(work.summary().to_json()))
    folder.tidy()
    shutil.rmtree(folder.path / "tallies", ignore_errors=True)  # only an unfinished campaign needs them
    return CampaignSummary(**folder.read(summary))


def what_if(
    offer: Offer, path: Path, changes: Mapping[str, Change], users: Iterable[Id] | None = None
) -> list[WhatIf]:
    """Returns what each change alone would bring in the finished campaign in the folder `path`.

    `changes` has the name of a limit → its other size. `offer` and `users` are those of the campaign.
    """
    folder, places = CampaignFolder(path, offer.settings.format), _positions(offer.shop, users)
    if not (folder.path / SUMMARY).exists():
        raise ConfigError(f"{path} holds no finished campaign: finish it first")
    folder.resume({**offer.settings.to_json(), **offer.fingerprints(places)}, but=NO_IDENTITY)
    answers = WhatIfs(offer, places)
    return [answers.of(limit, change) for limit, change in changes.items()]


def settings_of(path: Path) -> dict[str, Any]:
    """Returns the settings of the campaign in the folder `path`."""
    folder = CampaignFolder(path, "parquet")
    if not folder.begun:
        raise ConfigError(f"{path} holds no campaign: make one first")
    stored = folder.stored()
    if lacking := [name for name in Campaign.model_fields if name not in stored]:
        raise CheckpointError(
            f"the campaign in {path} was made by an earlier version, without the setting {lacking[0]!r}: "
            f"{folder.anew}"
        )
    settings = {name: stored[name] for name in Campaign.model_fields}
    if not isinstance(settings["where"], dict) or settings["where"].keys() - Filter.__dataclass_fields__:
        raise folder.damaged(folder.file_path, "'where' is no filter")
    return {**settings, "where": Filter(**settings["where"])}


def _positions(shop: Shop, users: Iterable[Id] | None) -> Whole:
    """Positions of `users`, or of all users, in the order in which they are served."""
    if users is None:
        return np.arange(len(shop.dataset.users))
    names = list(map(str, list_of("users", users)))
    if not names:
        raise ConfigError("the list of users is empty: give at least one, or no list at all for all users")
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise ConfigError(f"the user {twice[0]!r} is in the list twice; each is served once")
    return shop.dataset.users.positions(names).astype(np.int64)


class _Work:
    """A running campaign: the room of each limit after the finished parts, and the sums over these parts."""

    def __init__(self, offer: Offer, planner: Planner, plan: Plan, folder: CampaignFolder) -> None:
        self.offer, self.planner, self.plan, self.folder = offer, planner, plan, folder
        self.settings, self.users = offer.settings, planner.users
        self.room = offer.limits.room.copy()
        self.times = np.zeros(len(offer.bundles), np.int64)  # how often each bundle is shown
        self.tallies: list[Tally] = []
        self.parts = -(-len(self.users) // self.settings.part_users)
        self.columns = np.arange(len(offer.bundles)) if plan.chosen is None else plan.chosen
        self.limits = offer.limits if plan.chosen is None else offer.limits.restricted(plan.chosen)
        for number in range(folder.parts_done()):
            rows = folder.read_part(number)
            positions = offer.shop.dataset.bundles.positions(rows["bundle_id"].to_pylist())
            bundles = np.searchsorted(offer.bundles, positions)
            chances = rows["chance"].to_numpy().astype(np.float64)
            shares = chances if self.settings.reserve == "expected" else None
            self.room -= offer.limits.used(bundles, shares)
            self.times += np.bincount(bundles, minlength=len(self.times))
            self.tallies.append(folder.read(folder.tally(number)))

    def _blocks(self, number: int) -> Iterator[Whole]:
        """The users of a part, in blocks that the model scores together."""
        size = self.settings.part_users
        return self.planner.blocks(self.users[number * size : (number + 1) * size])

    def serve(self, ask: Ask, progress: Progress) -> None:
        """Serves the users of the unfinished parts, and writes the parts."""
        size, left = self.settings.part_users, range(len(self.tallies), self.parts)
        progress("users", min(len(self.tallies) * size, len(self.users)), len(self.users))
        answers = iter(ask(users for number in left for users in self._blocks(number)))
        for number in left:
            served = number * size
            prices = self.planner.prices(self.plan, served, self.room)
            results = []
            for users in self._blocks(number):
                served += len(users)
                results.append(self._block(users, next(answers), prices, served))
                progress("users", served, len(self.users))
            tables, tallies = zip(*results, strict=True)
            self.tallies.append(_added(tallies))
            self.folder.write_part(number, pa.concat_tables(tables), self.tallies[-1])

    def _chosen(self, block: Block, prices: Floats, served: int) -> Shown:
        """Chooses bundles for a block of users, which ends at the user number `served`."""
        if (shown := self.plan.shown) is not None:
            mine = slice(*np.searchsorted(shown[0], (served - len(block), served)))
            places, bundles = shown[0][mine] - (served - len(block)), shown[1][mine]
            shares = None if block.shares is None else block.shares[places, bundles]
            # All fit, unless the model's scores are not those from which the plan was made.
            fits = self.offer.limits.admitted(bundles, shares, self.room)
            return places[fits], bundles[fits]
        narrow = block if self.plan.chosen is None else block.of(self.columns)
        serving = serve_best if served == len(self.users) else serve
        places, columns = serving(narrow, self.limits, self.room, prices, self.settings.per_user)
        return places, self.columns[columns]

    def _block(self, users: Whole, scored: Scored, prices: Floats, served: int) -> tuple[pa.Table, Tally]:
        """Serves a block of users. Returns the rows of the result file, and the sums for the summary."""
        block = scored.block
        bounds = _bounds(block, self.offer.limits, self.plan, self.settings.per_user)
        places, bundles = self._chosen(block, prices, served)
        self.times += np.bincount(bundles, minlength=len(self.times))
        chance, value = scored.chances[places, bundles], block.values[places, bundles]
        facts = self.offer.facts(users, places, bundles)
        shop = self.offer.shop
        first = np.searchsorted(places, places, side="left")
        rows = pa.table(
            [
                shop.user_ids.take(pa.array(users[places])),
                (np.arange(len(first)) - first + 1).astype(np.int32),
                shop.bundle_ids.take(pa.array(self.offer.bundles[bundles])),
                chance.astype(np.float32),
                value,
                pa.array(facts.prices, from_pandas=True),  # null if it is unknown
                pa.array(facts.to_pay, from_pandas=True),
                facts.owned,
                facts.missing,
                facts.sold_out,
            ],
            schema=SCHEMA,
        )
        return rows, {
            "shown": len(bundles),
            "with_nothing": len(users) - len(np.unique(places)),
            "by_popularity": scored.unknown,
            "value": float(value.sum()),
            "sales": float(chance.sum()),
            "takings": float(np.nansum(chance * facts.to_pay)),
            "without_price": int(np.isnan(facts.to_pay).sum()),
            "unconstrained": scored.unconstrained,
            **bounds,
        }

    def summary(self) -> CampaignSummary:
        """Returns the summary. All parts must be finished."""
        total = _added(self.tallies)
        limits, best = self.offer.limits, total["unconstrained"]
        bound = _bound(total, limits, self.plan, self.settings.different_at_most)
        if self.plan.bound is not None:
            bound = max(total["value"], min(bound, self.plan.bound))
        return CampaignSummary(
            users=len(self.users),
            **{name: total[name] for name in ("with_nothing", "by_popularity", "shown", "value", "sales")},
            takings=None if total["without_price"] else total["takings"],
            unconstrained=best,
            bound=bound,
            share_of_unconstrained=total["value"] / best if best > 0 else None,
            share_of_bound=total["value"] / bound if bound > 0 else None,
            chances="softmax" if self.offer.calibration is None else "calibrated",
            left_out=self.offer.left_out,
            same_items=self.offer.same_items,
            different=int((self.times > 0).sum()),
            limits=self._use(),
            worth_more=[each.to_json() for each in self._worth_more()],
            parts=self.parts,
            settings=self.settings.to_json(),
        )

    def _worth_more(self) -> list[WhatIf]:
        """What more of each limit would bring that is used up."""
        limits, settings = self.offer.limits, self.settings
        left = self.room / limits.units
        stocks = [n for n, (kind, _) in enumerate(limits.names) if kind == "stock" and left[n] < 1]
        different, kinds = settings.different_at_most, np.array([kind for kind, _ in limits.names])
        # The budget is used up if there is a bundle whose discount it cannot pay once more.
        dearest = limits.by_share[:, kinds == "budget"].max() if settings.budget is not None else 0.0
        used_up = {
            "budget": bool((left[kinds == "budget"] < dearest).any()),
            "shown_at_most": self.times.max() >= (settings.shown_at_most or np.inf),
            "different_at_most": different is not None and (self.times > 0).sum() >= different,
        }
        answers = WhatIfs(self.offer, self.users, quick=True)
        return list(answers.worth_more(self.plan, used_up, np.array(stocks, np.int64)))

    def _use(self) -> dict[str, dict[str, Any]]:
        """How much of each limit is used, in items, showings or money."""
        limits, settings = self.offer.limits, self.settings
        kinds = np.array([kind for kind, _ in limits.names])
        size, left = limits.room / limits.units, self.room / limits.units
        used, use = size - left, dict[str, dict[str, Any]]()
        if settings.stock:
            stocks = np.flatnonzero(kinds == "stock")
            share = 1 - left[stocks] / np.maximum(size[stocks], 1)
            tightest = stocks[np.argsort(-share, kind="stable")][:TIGHTEST]
            use["stock"] = {
                "items": len(stocks),
                "used": float(used[stocks].sum()),
                "of": float(size[stocks].sum()),
                "used_up": int(((left < 1) & (size >= 1))[stocks].sum()),
                "tightest": [
                    {
                        "item_id": self.offer.name(*limits.names[n]),
                        "used": float(used[n]),
                        "of": float(size[n]),
                    }
                    for n in tightest
                ],
            }
        if (most := settings.shown_at_most) is not None:
            times = {"most": int(self.times.max()), "bundles_at_limit": int((self.times >= most).sum())}
            use["shown_at_most"] = {"of": most, **times}
        if settings.different_at_most is not None:
            different = int((self.times > 0).sum())
            use["different_at_most"] = {"of": settings.different_at_most, "used": different}
        if settings.budget is not None:
            use["budget"] = {"of": settings.budget, "used": float(used[kinds == "budget"][0])}
        return use


def _added(tallies: Sequence[Tally]) -> Tally:
    return {name: np.sum([each[name] for each in tallies], axis=0).tolist() for name in tallies[0]}


# ── The folder ───────────────────────────────────────────────────────────────────────────────────


class CampaignFolder(ResumableFolder):
    """The folder of a campaign. If the process is killed, the campaign continues with the same result.

    `plan.json` has the settings and the plan. `parts/part-00000.parquet` (or `.csv`, `.jsonl`) and so on
    say which bundles each user is shown. `campaign.json` has the summary when all parts are finished. Until
    then, `tallies/` has the sums of each finished part for the summary.
    """

    kind = "campaign"
    file = "plan.json"
    others = ("tallies/part-*.json", SUMMARY)
    checksums = frozenset({"model", "catalogue", "users"})

    def __init__(self, path: Path, form: Format) -> None:
        super().__init__(path)
        self.part_name = f"parts/part-{{:05d}}.{form}"

    def write_part(self, number: int, rows: pa.Table, tally: Mapping[str, Any]) -> None:
        """Write a part, after its tally (the sums for the summary), so that every part has a tally."""
        self.tally(number).parent.mkdir(exist_ok=True)
        write_whole(self.tally(number), json_bytes(tally))
        write_rows(rows.to_batches(), SCHEMA, self.part(number))

    def parts_done(self) -> int:
        """Returns the number of finished parts. Parts are written in order, so a gap is an error."""
        finished = self.finished_parts()
        for number, file in enumerate(finished):
            if file != self.part(number):
                raise CheckpointError(
                    f"{file.parent} lacks {self.part(number).name} but holds later parts, so a part was "
                    f"removed; {self.anew}"
                )
        return len(finished)

    def read_part(self, number: int) -> pa.Table:
        """Returns the rows of a part, with the columns of `SCHEMA`."""
        file = self.part(number)
        try:
            return read_rows(file, SCHEMA)
        except (OSError, ValueError, pa.ArrowException) as error:
            raise self.damaged(file, error) from None

    def tally(self, number: int) -> Path:
        """Returns the path of a part's tally."""
        return self.path / f"tallies/part-{number:05d}.json"


# ── An upper bound for every plan within the limits ──────────────────────────────────────────────


def _bounds(block: Block, limits: Limits, plan: Plan, per_user: int) -> Tally:
    """The sums that a block of users adds to the upper bound.

    `reduced`: for each list of prices in `plan.proofs`, the sum of the users' best values minus prices. If
    the plan uses only chosen bundles, there are two more lists, with an entry for each of `BETWEEN`. `kept`:
    the sum of the users' own prices, times `per_user`. `gains`: for each bundle, the sum of the users' values
    minus all prices, where a negative difference counts as 0.
    """
    tables = []
    for prices in plan.proofs:
        table = np.maximum(limits.reduced(prices, block), 0.0)
        table[block.values <= 0] = 0.0
        tables.append(table)
    tally: Tally = {"reduced": [float(highest(table, per_user).sum()) for table in tables]}
    if plan.chosen is None:
        return tally
    best = highest(tables[0][:, plan.chosen], per_user + 1)  # one row for each user, in rising order
    above = best[:, 1] if best.shape[1] > per_user else best[:, 0]
    below = best[:, 0] if best.shape[1] > per_user else np.zeros(len(best))
    own = [below + between * (above - below) for between in BETWEEN]
    tally["kept"] = [float(each.sum()) * per_user for each in own]
    tally["gains"] = [np.maximum(tables[0] - each[:, None], 0.0).sum(0).tolist() for each in own]
    return tally


def _bound(total: Tally, limits: Limits, plan: Plan, most: int | None) -> float:
    """The lowest upper bound that the sums over all users prove."""
    room = limits.room / limits.units
    pairs = zip(total["reduced"], plan.proofs, strict=True)
    proven: list[float] = [total["unconstrained"]]
    proven += [reduced + float(prices @ room) for reduced, prices in pairs]
    prices, flat = plan.proofs[0], ~limits.shared
    for kept, gains in zip(total.get("kept", ()), total.get("gains", ()), strict=True):
        # The limit "shown" of a bundle counts in the bound only if the bundle is one of the `most` used.
        each = np.array(gains) + limits.flat @ (prices * room * flat)
        top = np.sort(each)[::-1][:most].sum()
        proven.append(kept + float(top) + float((prices * room)[~flat].sum()))
    return min(proven)
