"""Generates small shops of several kinds, with the true chance of each purchase.

Every item and every bundle belongs to a theme. A bundle contains items of its theme, except for about one
item in ten. A user likes two themes: of the user's taste, 60% is for the first, 30% for the second, and 10%
for all themes alike. A user's chance to buy a bundle grows with the taste for its theme and with the bundle's
popularity. Unless a kind says otherwise, users also buy single items, by the same taste. The kinds:

- `one-buyer`: every bundle is made for one user, who alone buys it, and users have no items except those of
  their bundles. 80% of a user's bundles are of the first theme, 10% of the second. Each buyer of a theme has
  the same chance to be the buyer of one of its bundles.
- `only-in-bundles`: users have no items except those of their bundles. A bundle has many buyers. In these two
  kinds a user's items include those of a held-out bundle. So they point to it more surely than its chance.
- `one-bundle-users`: four users of five have one bundle.
- `best-sellers`: users have no tastes, neither for bundles nor for items. Eight bundles have two thirds of
  all sales.
- `tiny`: 50 users and 40 bundles.
- `large-catalogue`: ten times more bundles than users, and twenty times more items.
- `near-copies`: groups of four bundles. Two bundles of a group differ in one item or two. A user who likes a
  group buys one of its bundles, and in one case of ten a second one.
- `no-items`: users have bundles and no items at all.
- `seasons`: purchases have times in two years. A user likes one theme at a time, and the next one more and
  more. Most bundles appear in the course of the two years, and sell best when they are new. Each theme has a
  season. A purchase is of a bundle and in a month: `month_chance` has the chance of each.
- `views`: for each purchase, a user has views of four other things, of any theme. They tell nothing about the
  user. `EVENTS` has the weights of both types of events in the data set.

As in `generate`, the same seed gives the same shop on every platform.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    as_binary,
    binary_matrix,
    catalogue_table,
    pairs_of,
    row_of,
)
from bundlemage.data.events import Events
from bundlemage.errors import ConfigError
from bundlemage.sample import words
from bundlemage.sample.generate import (
    DISCOUNTS,
    PRICES,
    Floats,
    GroupedWheel,
    Wheel,
    distinct_pairs,
    ids_of,
    popularity,
    sample_shop,
)
from bundlemage.sample.seasons import (
    MONTHS,
    drawn_months,
    drifting_taste,
    life_cycles,
    monthly_weights,
    times_in,
)
from bundlemage.sample.words import Integers, Random, pick, shuffled

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Kind:
    """The sizes of a kind of shop, and what sets it apart."""

    users: int
    bundles: int
    items: int
    themes: int
    bundles_per_user: Sequence[int]
    """These numbers of bundles are equally frequent among the users."""
    user_items: Literal["own", "contents", "none"] = "own"
    """Users buy items on their own, or have the contents of their bundles, or nothing."""
    bundle_sizes: Sequence[int] = (4, 5, 6)
    one_buyer: bool = False
    """Every bundle has exactly one buyer."""
    tastes: tuple[int, int] = (6, 3)
    """The weights of a user's two favourite themes. All themes together have the weight 1 in addition."""
    best_sellers: int = 0
    """The number of bundles that sell ten times better than their rank says."""
    copies: int = 1
    """The number of bundles in a group of near-copies."""
    items_per_user: Sequence[int] = range(4, 13)
    """The same as `bundles_per_user` for items that users buy on their own."""
    views: int = 0
    """For each purchase, a user has views of this many other things, which are drawn at random."""
    seasons: bool = False
    """Purchases have times; tastes and popularity change."""


GAMES = "games"
"""The kind of shop that `sample_shop` generates."""
KINDS: Mapping[str, Kind] = {
    "one-buyer": Kind(
        300, 800, 600, 50, (2, 2, 2, 3, 3, 4), user_items="contents", one_buyer=True, tastes=(8, 1)
    ),
    "only-in-bundles": Kind(400, 200, 240, 12, range(2, 9), user_items="contents"),
    "one-bundle-users": Kind(600, 180, 300, 12, (*[1] * 16, 2, 3, 4, 5)),
    "best-sellers": Kind(400, 200, 240, 12, range(1, 6), tastes=(0, 0), best_sellers=8),
    "tiny": Kind(50, 40, 60, 5, range(2, 6)),
    "large-catalogue": Kind(150, 1500, 3000, 60, range(4, 13)),
    "near-copies": Kind(300, 320, 800, 20, range(2, 8), bundle_sizes=(6, 7, 8), copies=4),
    "no-items": Kind(400, 200, 240, 12, range(2, 9), user_items="none"),
    "views": Kind(400, 200, 240, 12, range(3, 9), views=4),
    "seasons": Kind(600, 240, 360, 12, range(6, 15), items_per_user=range(8, 25), seasons=True),
}
EVENTS: Mapping[str, float] = {"view": 0.05, "buy": 1.0}
"""The types of events of `views`, and their weights."""
_STRAY_SHARE = 0.1
_HIGHEST_CHANCE = 0.9
_COPY_WEIGHTS = (4, 3, 2, 1)
_SECOND_COPY_SHARE = 0.1


@dataclass(frozen=True, eq=False)
class ShopOfKind:
    """A generated data set, and the truth behind it."""

    dataset: BundleDataset
    bundle_chance: Floats  # [users, bundles]
    """The chance that the user buys the bundle. The sum of a column is the expected number of its buyers."""
    item_theme: Integers  # [items]
    """Items of the same theme belong together."""
    month_chance: Floats | None = None  # [users, bundles, months]
    """For `seasons`: the chance that the user buys the bundle in the month."""


def shop_of_kind(kind: str, seed: int = 0) -> ShopOfKind:
    """Generate a shop of one of the `KINDS`. Raises `ConfigError` for an unknown kind."""
    if kind not in KINDS:
        raise ConfigError(f"unknown kind of shop {kind!r}; the kinds are: {', '.join((GAMES, *KINDS))}")
    if seed < 0:
        raise ConfigError(f"sample shop: seed is {seed}; it must be at least 0")
    plan = KINDS[kind]
    planting, buying, packing, owning, labelling, viewing = (
        np.random.Generator(np.random.PCG64(child)) for child in np.random.SeedSequence(seed).spawn(6)
    )
    item_theme = shuffled(planting, np.arange(plan.items) % plan.themes)
    groups, month_chance, bundle_events, item_events = np.arange(plan.bundles), None, Events(), Events()
    if plan.seasons:
        drifting = drifting_taste(planting, plan.users, plan.themes)
        group_theme = shuffled(planting, np.arange(plan.bundles) % plan.themes)
        cycles = life_cycles(planting, group_theme, popularity(buying, plan.bundles))
        weights = monthly_weights(drifting[:, :, group_theme], cycles)
        chance, bought, bundle_events = _bought_in_months(buying, weights, plan.bundles_per_user)
        month_chance = (chance / weights.sum(axis=2))[:, :, None] * weights
    else:
        taste = _taste(planting, plan)
        counts = shuffled(planting, np.resize(plan.bundles_per_user, plan.users))
        if plan.one_buyer:
            group_theme, chance, bought = _made_for_users(buying, plan, taste, counts)
        else:
            groups = shuffled(planting, np.arange(plan.bundles) // plan.copies)
            group_theme, chance, bought = _bought_by_taste(buying, plan, taste, counts, groups)
    bundle_item = _contents(packing, plan, item_theme, group_theme, groups)
    user_bundle = as_binary(bought)
    user_item = sparse.csr_matrix((plan.users, plan.items))
    if plan.user_items == "contents":
        user_item = as_binary(user_bundle @ bundle_item)
    elif plan.seasons:
        all_year = np.repeat(popularity(owning, plan.items)[:, None], MONTHS, axis=1)
        weights = monthly_weights(drifting[:, :, item_theme], all_year)
        _, owned, item_events = _bought_in_months(owning, weights, plan.items_per_user)
        user_item = as_binary(owned)
    elif plan.user_items == "own":
        liked = taste[:, item_theme] * popularity(owning, plan.items)
        sizes = shuffled(owning, np.resize(plan.items_per_user, plan.users))
        user_item = as_binary(_drawn(owning, _chances(liked, sizes)))
    if plan.views:
        user_bundle, bundle_events = _with_views(viewing, user_bundle, plan.views)
        user_item, item_events = _with_views(viewing, user_item, plan.views)
    users, items, bundles = (
        ids_of(name, name[0], size)
        for name, size in (("user", plan.users), ("item", plan.items), ("bundle", plan.bundles))
    )
    dataset = BundleDataset(
        user_item=user_item,
        user_bundle=user_bundle,
        bundle_item=bundle_item,
        users=users,
        items=items,
        bundles=bundles,
        catalogue=_catalogue(labelling, item_theme, group_theme[groups], bundle_item, (items, bundles)),
        name=f"sample:{kind}",
        item_events=item_events,
        bundle_events=bundle_events,
    )
    return ShopOfKind(dataset, chance, item_theme, month_chance)


def dataset_of_kind(kind: str) -> BundleDataset:
    """Returns the data set of `games` or of one of the `KINDS`. Raises `ConfigError` for an unknown kind."""
    return sample_shop().dataset if kind == GAMES else shop_of_kind(kind).dataset


def _taste(random: Random, plan: Kind) -> Integers:
    """The weight of each theme for each user."""
    taste: Integers = np.ones((plan.users, plan.themes), np.int64)
    first = pick(random, plan.themes, plan.users)
    second = (first + 1 + pick(random, plan.themes - 1, plan.users)) % plan.themes
    for weight, theme in zip(plan.tastes, (first, second), strict=True):
        taste[np.arange(plan.users), theme] += weight * plan.themes
    return taste


def _made_for_users(
    random: Random, plan: Kind, taste: Integers, counts: Integers
) -> tuple[Integers, Floats, Mask]:
    """Returns the theme of each bundle, the chances and the purchases. A bundle is sold once."""
    buyer = np.repeat(np.arange(plan.users), counts)
    theme = Wheel(taste).spin_row(random, buyer, plan.themes)
    order = shuffled(random, np.arange(plan.bundles))
    buyer, theme = buyer[order], theme[order]
    # The order is random. So each buyer of a theme has each of its bundles with the same chance.
    wanted = np.zeros((plan.users, plan.themes))
    np.add.at(wanted, (buyer, theme), 1)
    chance = wanted[:, theme] / np.bincount(theme)[theme]
    return theme, chance, buyer == np.arange(plan.users)[:, None]


def _bought_by_taste(
    random: Random, plan: Kind, taste: Integers, counts: Integers, groups: Integers
) -> tuple[Integers, Floats, Mask]:
    """Returns the theme of each group of bundles, the chances and the purchases.

    A user first chooses groups, then a bundle of each group. Most kinds have one bundle in each group.
    """
    count = plan.bundles // plan.copies
    theme = shuffled(random, np.arange(count) % plan.themes)
    popular = popularity(random, count)
    popular[np.argsort(-popular, kind="stable")[: plan.best_sellers]] *= 10
    chance = _chances(taste[:, theme] * popular, counts)
    chosen = _drawn(random, chance)
    if plan.copies == 1:
        return theme, chance[:, groups], chosen[:, groups]
    users, of_group = np.nonzero(chosen)
    taken = 1 + (random.random(len(users)) < _SECOND_COPY_SHARE)
    members = np.argsort(groups, kind="stable").reshape(count, plan.copies)
    shares = _chances(np.tile(_COPY_WEIGHTS, (len(users), 1)), taken)
    pairs, copies = np.nonzero(_drawn(random, shares))
    bought = np.zeros((plan.users, plan.bundles), bool)
    bought[users[pairs], members[of_group[pairs], copies]] = True
    share = np.empty(plan.bundles)
    share[members] = np.array(_COPY_WEIGHTS) / sum(_COPY_WEIGHTS)
    return theme, chance[:, groups] * share * (1 + _SECOND_COPY_SHARE), bought


def _bought_in_months(
    random: Random, weights: Integers, numbers: Sequence[int]
) -> tuple[Floats, Mask, Events]:
    """Returns the chances, the purchases and their times. `weights` are [users, things, months]. A user buys
    a thing at most once. `numbers` of things are equally frequent among the users."""
    totals = weights.sum(axis=2)
    chance = _chances(totals, shuffled(random, np.resize(numbers, len(totals))))
    bought = _drawn(random, chance)
    months = drawn_months(random, weights[bought])
    return chance, bought, Events(at=times_in(random, months))


def _with_views(random: Random, bought: sparse.csr_matrix, views: int) -> tuple[sparse.csr_matrix, Events]:
    """Adds views of things that a user did not buy: so many for each purchase, all alike."""
    width = bought.shape[1]
    counts = np.minimum(np.diff(bought.indptr) * views, width).astype(np.int64)
    viewed = distinct_pairs(random, counts, width, lambda rows: pick(random, width, len(rows)))
    both = as_binary(bought + viewed)
    weights = np.full(both.shape, EVENTS["view"], np.float32)
    weights[bought.nonzero()] = EVENTS["buy"]
    return both, Events(weight=weights[pairs_of(both)])


def _chances(weights: Integers, counts: Integers) -> Floats:
    """Returns chances in proportion to the weights. Row n sums to `counts[n]`, and no chance is too high."""
    at_most: Mask = np.zeros(weights.shape, bool)
    while True:
        room = counts - _HIGHEST_CHANCE * at_most.sum(axis=1)
        rest = np.where(at_most, 0, weights)
        chance: Floats = np.where(at_most, _HIGHEST_CHANCE, rest * (room / rest.sum(axis=1))[:, None])
        if not (chance > _HIGHEST_CHANCE).any():
            return chance
        at_most |= chance > _HIGHEST_CHANCE


def _drawn(random: Random, chance: Floats) -> Mask:
    """Draw columns for each row, each with exactly its chance. The chances of a row sum to a whole number,
    and this many columns are drawn.

    This is systematic sampling: the chances of a row lie end to end in random order. A column is drawn if it
    contains one of the points u, u + 1, u + 2, …, where u is a random number.
    """
    order = np.argsort(random.random(chance.shape), axis=1, kind="stable")
    ends = np.cumsum(np.take_along_axis(chance, order, axis=1), axis=1)
    ends[:, -1] = np.rint(ends[:, -1])
    passed = np.floor(ends + random.random(len(ends))[:, None])
    drawn: Mask = np.zeros(chance.shape, bool)
    np.put_along_axis(drawn, order, np.diff(passed, axis=1, prepend=0) > 0, axis=1)
    return drawn


def _contents(
    random: Random, plan: Kind, item_theme: Integers, group_theme: Integers, groups: Integers
) -> sparse.csr_matrix:
    """Draw the items of each bundle. `groups` is the group of each bundle."""
    by_theme = GroupedWheel(item_theme, np.ones(plan.items, np.int64))

    def propose(rows: Integers) -> Integers:
        theme = group_theme[rows]
        stray = random.random(len(rows)) < _STRAY_SHARE
        return np.where(stray, pick(random, plan.items, len(rows)), by_theme.draw(random, theme, theme + 1))

    sizes = shuffled(random, np.resize(plan.bundle_sizes, len(group_theme)))
    originals = distinct_pairs(random, sizes, plan.items, propose)
    rows = [row_of(originals, group).tolist() for group in groups.tolist()]
    for group, members in enumerate(np.argsort(groups, kind="stable").reshape(-1, plan.copies).tolist()):
        # The first bundle of a group is the original. Each other one has a new item in place of one of its.
        spare = np.setdiff1d(np.flatnonzero(item_theme == group_theme[group]), row_of(originals, group))
        for place, (bundle, item) in enumerate(zip(members[1:], shuffled(random, spare), strict=False)):
            rows[bundle][place] = int(item)
    owners = np.repeat(np.arange(plan.bundles), [len(row) for row in rows])
    return binary_matrix(owners, np.concatenate(rows), (plan.bundles, plan.items))


def _catalogue(
    random: Random, item_theme: Integers, bundle_theme: Integers, bundle_item: sparse.csr_matrix, ids: Any
) -> Catalogue:
    names = words.line_names(random, int(item_theme.max()) + 1)
    items, bundles = ([names[theme] for theme in themes.tolist()] for themes in (item_theme, bundle_theme))
    cents = PRICES[pick(random, len(PRICES), len(items))]
    percent = DISCOUNTS[pick(random, len(DISCOUNTS), len(bundles))]
    full = bundle_item.astype(np.int64) @ cents
    item_columns: dict[str, Any] = {
        "item_id": ids[0].to_arrow(),
        "title": words.numbered(items, "{} {number}"),
        "price": cents / 100,
        "tags": [[name] for name in items],
    }
    bundle_columns: dict[str, Any] = {
        "bundle_id": ids[1].to_arrow(),
        "title": words.numbered((f"{name} Set" for name in bundles), "{} {number}"),
        "price": full * (100 - percent) // 100 / 100,
        "tags": [[name] for name in bundles],
        "discount": percent / 100,
    }
    return Catalogue(
        catalogue_table(ITEM_SCHEMA, item_columns), catalogue_table(BUNDLE_SCHEMA, bundle_columns)
    )
