"""Generates a sample shop of games. The users' true tastes are known, so recommendations can be judged.

Users have favourite genres. Many users buy bundles of other genres than the games they buy. A game belongs
to a product line (a series or a studio) of one genre, and most bundles contain games of one line. A few games
and bundles are far more popular than the rest.

The same seed gives the same shop on every platform. All random numbers come from `Generator.random`, the
method that NumPy changes least. All arithmetic uses integers, `+ - * /` and square roots: these give the same
bits everywhere, but logarithms and powers do not. So popularity falls with the square root of the rank.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from scipy import sparse

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    Vocabulary,
    binary_matrix,
    catalogue_table,
    pairs_of,
)
from bundlemage.data.events import UNDATED, Events
from bundlemage.data.folders import beside
from bundlemage.errors import ConfigError
from bundlemage.sample import words
from bundlemage.sample.words import Integers, Random, pick, shuffled

TableFormat = Literal["csv", "tsv", "parquet"]
Floats = npt.NDArray[np.float64]

GENRE_PACK = -1
"""The value in `bundle_line` for a bundle that covers a whole genre instead of a line."""

_LINE_PER_BUNDLE = 2.5  # size of a line divided by size of a bundle: a line fills several bundles
_SMALLEST_LINE = 4
_PACK_SHARE = 0.2
# The weights of a user's three favourite genres (which may coincide), and the share spread evenly over all.
_FAVOURITES, _CURIOSITY = (0.6, 0.22, 0.1), 0.08
# Percentages of users whose bundle taste equals their item taste, depends half on it, or not at all.
_SHIFTS = (35, 20, 45)
_QUIET_SHARE = 0.06  # share of users with one bundle or none
# Percentages of games that a bundle takes from its line, from its genre and from anywhere. The first row is
# for bundles of a line, the second row for genre packs.
_ORIGINS = ((85, 12, 3), (0, 92, 8))
PRICES = np.array([299, 499, 499, 799, 999, 999, 1499, 1499, 1999, 1999, 2499, 2999, 3999, 5999])  # cents
DISCOUNTS = np.array([10, 15, 20, 20, 25, 30, 30, 40, 50, 60])  # per cent
_SOLD_OUT_SHARE = 0.06
_MOST_STOCK = 500
_ROUNDS = 60


@dataclass(frozen=True, eq=False)
class Tastes:
    """The true structure of the shop. A taste has a probability for each genre. Popularity is a weight."""

    genres: tuple[str, ...]
    lines: tuple[str, ...]
    """The names of the series and studios."""
    line_genre: Integers  # [lines], ascending
    item_line: Integers  # [items]
    item_genre: Integers  # [items]
    item_popularity: Integers  # [items]
    bundle_line: Integers  # [bundles], or GENRE_PACK
    bundle_genre: Integers  # [bundles]
    bundle_popularity: Integers  # [bundles]
    user_item_taste: Floats  # [users, genres]
    user_bundle_taste: Floats  # [users, genres]


@dataclass(frozen=True, eq=False)
class SampleShop:
    """A generated data set, and the true structure behind it."""

    dataset: BundleDataset
    tastes: Tastes


def sample_shop(
    users: int = 800,
    items: int = 600,
    bundles: int = 240,
    *,
    items_per_user: float = 20.0,
    bundles_per_user: float = 6.0,
    items_per_bundle: float = 7.0,
    seed: int = 0,
) -> SampleShop:
    """Generate a shop of this size. The averages are exact, except for rounding to whole pairs.

    Returns the data set and its true structure. Raises `ConfigError` if the sizes are impossible.
    """
    for name, value, lowest, highest, why in (
        ("users", users, 1, math.inf, ""),
        ("items", items, 2, math.inf, ""),
        ("bundles", bundles, 1, math.inf, ""),
        ("items_per_user", items_per_user, 1, items, "every user has an item, and there are {} items"),
        ("bundles_per_user", bundles_per_user, 0, bundles, "there are {} bundles"),
        ("items_per_bundle", items_per_bundle, 2, items, "a bundle has two items or more, of {} items"),
        ("seed", seed, 0, math.inf, ""),
    ):
        if not lowest <= value <= highest:  # also refuses nan
            limits = f"at least {lowest}" if highest == math.inf else f"between {lowest} and {highest}"
            reason = f" ({why.format(highest)})" if why else ""
            raise ConfigError(f"sample shop: {name} is {value}; it must be {limits}{reason}")
    # Each part has its own random stream. So a change of the words in titles does not change the purchases.
    children = np.random.SeedSequence(seed).spawn(5)
    planting, shopping, bundling, packing, labelling = (
        np.random.Generator(np.random.PCG64(child)) for child in children
    )
    tastes = _plant(planting, users, items, bundles, items_per_bundle)
    games = GroupedWheel(tastes.item_line, tastes.item_popularity)
    packs = GroupedWheel(tastes.bundle_genre, tastes.bundle_popularity)
    genre_edges = np.arange(len(tastes.genres) + 1)
    line_edges = np.searchsorted(tastes.line_genre, genre_edges)
    pairs = round(users * items_per_user)
    item_counts = spread(shopping, pairs, np.ones(users, np.int64), _at_most(users, items, pairs))
    bundle_counts = _bundle_counts(bundling, users, bundles, round(users * bundles_per_user))
    bundle_item = _bundle_items(packing, tastes, games, round(bundles * items_per_bundle))
    item_ids, bundle_ids = ids_of("item", "g", items), ids_of("bundle", "b", bundles)
    cents = PRICES[pick(labelling, len(PRICES), items)]
    item_table = _items(labelling, tastes, item_ids, cents)
    bundle_table = _bundles(labelling, tastes, bundle_ids, bundle_item.astype(np.int64) @ cents)
    dataset = BundleDataset(
        user_item=_purchases(shopping, tastes.user_item_taste, games, line_edges, item_counts, items),
        user_bundle=_purchases(
            bundling, tastes.user_bundle_taste, packs, genre_edges, bundle_counts, bundles
        ),
        bundle_item=bundle_item,
        users=ids_of("user", "u", users),
        items=item_ids,
        bundles=bundle_ids,
        catalogue=Catalogue(item_table, bundle_table),
        name="sample",
    )
    return SampleShop(dataset, tastes)


def ids_of(kind: str, letter: str, count: int) -> Vocabulary:
    """Ids such as u0001, u0002, … They have equally many digits, so text order equals number order."""
    width = max(4, len(str(count)))
    return Vocabulary(kind, [f"{letter}{number:0{width}d}" for number in range(1, count + 1)])


def _plant(random: Random, users: int, items: int, bundles: int, items_per_bundle: float) -> Tastes:
    """Draw the true structure of a shop."""
    line_size = max(_SMALLEST_LINE, _LINE_PER_BUNDLE * items_per_bundle)
    line_count = max(1, int(items / line_size))
    # Every genre has at least one line and one bundle, for the users who like it.
    genre_count = min(len(words.GENRES), line_count, bundles)
    genre_wheel = Wheel(popularity(random, genre_count))

    line_genre = np.sort(_cover(random, genre_wheel, line_count))
    # Lines of different sizes, from half the mean to twice the mean.
    mean = items // line_count
    lowest, highest = np.full(line_count, max(1, mean // 2)), np.full(line_count, 2 * mean + 2)
    sizes = spread(random, items, lowest, highest)
    item_line = shuffled(random, np.repeat(np.arange(line_count), sizes))
    bundle_genre = shuffled(random, _cover(random, genre_wheel, bundles))
    item_taste, other_taste = (_favourites(random, genre_wheel, users) for _ in range(2))
    shift = Wheel(_SHIFTS).spin_all(random, users)[:, None] / (len(_SHIFTS) - 1)
    return Tastes(
        genres=tuple(genre["name"] for genre in words.GENRES[:genre_count]),
        line_genre=line_genre,
        item_line=item_line,
        item_genre=line_genre[item_line],
        item_popularity=popularity(random, items),
        bundle_line=_bundle_lines(random, bundle_genre, line_genre),
        bundle_genre=bundle_genre,
        bundle_popularity=popularity(random, bundles),
        user_item_taste=item_taste,
        user_bundle_taste=(1 - shift) * item_taste + shift * other_taste,
        # Drawn last, so that a change of the words changes no number above.
        lines=tuple(words.line_names(random, line_count)),
    )


def _cover(random: Random, wheel: Wheel, size: int) -> Integers:
    """Draw `size` slots from a wheel. Every slot is drawn at least once."""
    return np.concatenate([np.arange(wheel.slots), wheel.spin_all(random, size - wheel.slots)])


def _bundle_lines(random: Random, bundle_genre: Integers, line_genre: Integers) -> Integers:
    """Draw for each bundle a line of its genre, or GENRE_PACK."""
    first, last = (np.searchsorted(line_genre, bundle_genre, side) for side in ("left", "right"))
    line = Wheel(np.ones(len(line_genre))).spin(random, first, last)
    return np.where(random.random(len(line)) < _PACK_SHARE, GENRE_PACK, line)


def _favourites(random: Random, genre_wheel: Wheel, users: int) -> Floats:
    taste = np.full((users, genre_wheel.slots), _CURIOSITY / genre_wheel.slots)
    for weight in _FAVOURITES:
        taste[np.arange(users), genre_wheel.spin_all(random, users)] += weight
    return taste


def _purchases(
    random: Random, taste: Floats, things: GroupedWheel, edges: Integers, counts: Integers, width: int
) -> sparse.csr_matrix:
    """Draw the purchases of each user: a genre by the user's taste, then an item or bundle of this genre.

    `edges[genre]` is the first group of a genre in `things`. `counts` has the number of purchases per user.
    """
    genres = Wheel(np.rint(taste * (1 << 20)))

    def propose(rows: Integers) -> Integers:
        genre = genres.spin_row(random, rows, taste.shape[1])
        return things.draw(random, edges[genre], edges[genre + 1])

    return distinct_pairs(random, counts, width, propose)


def _bundle_counts(random: Random, users: int, bundles: int, pairs: int) -> Integers:
    """Draw the number of bundles of each user. A small share of the users has one or none."""
    quiet = shuffled(random, np.arange(users))[: int(_QUIET_SHARE * users)]
    busy = users - len(quiet)
    if pairs > busy * bundles:  # too many pairs for the other users
        quiet, busy = quiet[:0], users
    highest = _at_most(users, bundles, pairs, busy)
    highest[quiet] = pick(random, 2, len(quiet))
    lowest = np.minimum(highest, min(2, pairs // users))
    return spread(random, pairs, lowest, highest)


def _bundle_items(random: Random, tastes: Tastes, games: GroupedWheel, pairs: int) -> sparse.csr_matrix:
    bundles, items = len(tastes.bundle_genre), len(tastes.item_line)
    pack = tastes.bundle_line == GENRE_PACK
    first_of_genre, past_genre = (
        np.searchsorted(tastes.line_genre, tastes.bundle_genre, side) for side in ("left", "right")
    )
    # The range of lines for items of each origin; a pack never draws from a line.
    first = np.stack([tastes.bundle_line, first_of_genre, np.zeros_like(first_of_genre)], axis=1)
    past = np.stack([tastes.bundle_line + 1, past_genre, np.full_like(past_genre, len(tastes.lines))], axis=1)
    wheel = Wheel(_ORIGINS)

    def propose(rows: Integers) -> Integers:
        origin = wheel.spin_row(random, pack[rows].astype(np.int64), 3)
        return games.draw(random, first[rows, origin], past[rows, origin])

    # At most twice the mean size, because a line has not many more games than that.
    highest = np.full(bundles, min(items, math.ceil(2 * pairs / bundles)))
    counts = spread(random, pairs, np.full(bundles, 2), highest)
    return distinct_pairs(random, counts, items, propose)


def _at_most(rows: int, things: int, pairs: int, takers: int | None = None) -> Integers:
    """The maximum count for each row: half of all things, or more if the average requires it."""
    return np.full(rows, min(things, max(things // 2, math.ceil(pairs / (takers or rows)))))


def _items(random: Random, tastes: Tastes, ids: Vocabulary, cents: Integers) -> pa.Table:
    sold_out = random.random(len(ids)) < _SOLD_OUT_SHARE
    columns: dict[str, Any] = {
        "item_id": ids.to_arrow(),
        "title": words.game_titles(
            random, tastes.item_genre.tolist(), tastes.item_line.tolist(), tastes.lines
        ),
        "price": cents / 100,
        "tags": _item_tags(random, tastes),
        "stock": np.where(sold_out, 0, 1 + pick(random, _MOST_STOCK, len(ids))),
    }
    return catalogue_table(ITEM_SCHEMA, columns)


def _item_tags(random: Random, tastes: Tastes) -> list[list[str]]:
    """The tags of each game: its genre, a second genre, two flavours, and its series or studio."""
    count, names, flavours = len(tastes.item_genre), words.GENRES, words.WORDS["flavours"]
    second = (tastes.item_genre + 1 + pick(random, len(names) - 1, count)) % len(names)
    flavour = pick(random, len(flavours), count)
    another = (flavour + 1 + pick(random, len(flavours) - 1, count)) % len(flavours)
    numbers = (column.tolist() for column in (tastes.item_genre, second, flavour, another, tastes.item_line))
    return [
        [names[g]["name"], names[s]["name"], flavours[f], flavours[a], tastes.lines[n]]
        for g, s, f, a, n in zip(*numbers, strict=True)
    ]


def _bundles(random: Random, tastes: Tastes, ids: Vocabulary, full_cents: Integers) -> pa.Table:
    percent = DISCOUNTS[pick(random, len(DISCOUNTS), len(ids))]
    genre, line = tastes.bundle_genre.tolist(), tastes.bundle_line.tolist()
    columns: dict[str, Any] = {
        "bundle_id": ids.to_arrow(),
        "title": words.bundle_titles(random, genre, line, tastes.lines),
        "price": full_cents * (100 - percent) // 100 / 100,
        "tags": [
            [tastes.genres[g], "genre pack" if n == GENRE_PACK else tastes.lines[n]]
            for g, n in zip(genre, line, strict=True)
        ],
        "discount": percent / 100,
    }
    return catalogue_table(BUNDLE_SCHEMA, columns)


# Draws by integer weights and inverse CDFs, without loops over pairs


class Wheel:
    """Draws slots in proportion to their weights, from all slots or from a range of slots."""

    def __init__(self, weights: npt.ArrayLike) -> None:
        self._edges = np.concatenate([[0], np.cumsum(np.ravel(weights), dtype=np.int64)])
        self.slots = len(self._edges) - 1

    def spin_all(self, random: Random, size: int) -> Integers:
        """Draw `size` slots from all slots."""
        return self.spin(random, np.zeros(size, np.int64), np.full(size, self.slots))

    def spin(self, random: Random, first: Integers, last: Integers) -> Integers:
        """Draw one slot from each range [first, last). Every range must have a positive total weight."""
        low = self._edges[first]
        target = low + (random.random(len(low)) * (self._edges[last] - low)).astype(np.int64)
        slots: Integers = np.searchsorted(self._edges, target, side="right") - 1
        return slots

    def spin_row(self, random: Random, rows: Integers, width: int) -> Integers:
        """Draw a column for each of `rows`. The slots are the cells of a table with `width` columns."""
        return self.spin(random, rows * width, (rows + 1) * width) - rows * width


class GroupedWheel:
    """Draws things in proportion to their weights. `group` is the group of each thing."""

    def __init__(self, group: Integers, weights: Integers) -> None:
        self._order = np.argsort(group, kind="stable")
        self._bounds = np.searchsorted(group[self._order], np.arange(group.max() + 2))
        self._wheel = Wheel(weights[self._order])

    def draw(self, random: Random, first: Integers, last: Integers) -> Integers:
        """Draw one thing from each range of groups [first, last)."""
        drawn: Integers = self._order[self._wheel.spin(random, self._bounds[first], self._bounds[last])]
        return drawn


def popularity(random: Random, count: int) -> Integers:
    """Draw a weight for each of `count` things: 1 / sqrt(rank), with shuffled ranks."""
    weights: Integers = (1e6 / np.sqrt(1 + shuffled(random, np.arange(count)))).astype(np.int64)
    return weights


def spread(random: Random, total: int, lowest: Integers, highest: Integers) -> Integers:
    """Draw integers that sum to `total`, each between its bounds. Most are small, and a few are large."""
    # A Pareto distribution with exponent 2, shifted: the smallest share is a fifth of the mean.
    tail = 1 / np.sqrt(1 - random.random(len(lowest))) - 0.75
    weights = (1024 * tail).astype(np.int64)
    share = (total - int(lowest.sum())) * weights // int(weights.sum())
    counts: Integers = np.minimum(lowest + share, highest)
    # Rounding and the upper bound leave a remainder: add it one by one.
    while (left := total - int(counts.sum())) > 0:
        takers = shuffled(random, np.flatnonzero(counts < highest))[:left]
        counts[takers] += 1
    return counts


def distinct_pairs(
    random: Random, counts: Integers, width: int, propose: Callable[[Integers], Integers]
) -> sparse.csr_matrix:
    """Draw `counts[row]` different columns below `width` for each row. Returns the binary matrix.

    `propose` draws one column for each row in its argument. If a row already has the column, another
    one is drawn.
    """
    keys = np.empty(0, np.int64)
    missing = counts
    for _ in range(_ROUNDS):
        rows = np.repeat(np.arange(len(counts)), missing)
        if not len(rows):
            break
        drawn = np.unique(rows * width + propose(rows))
        new = drawn[~np.isin(drawn, keys, assume_unique=True)]
        keys = np.sort(np.concatenate([keys, new]), kind="stable")
        missing = counts - np.bincount(keys // width, minlength=len(counts))
    # A row that needs nearly all columns would wait long for the rarest ones. Give it any missing columns.
    for row in np.flatnonzero(missing):
        begin, end = np.searchsorted(keys, [row * width, (row + 1) * width])
        free = np.setdiff1d(np.arange(width), keys[begin:end] - row * width, assume_unique=True)
        extra = row * width + shuffled(random, free)[: missing[row]]
        keys = np.sort(np.concatenate([keys, extra]), kind="stable")
    return binary_matrix(keys // width, keys % width, (len(counts), width))


# Files


def write_shop(
    dataset: BundleDataset,
    folder: Path,
    format: TableFormat = "csv",  # noqa: A002
    event_types: Mapping[str, float] | None = None,
) -> list[Path]:
    """Write the tables `user_item`, `user_bundle` and `bundle_item` of a data set, and its catalogue, if any.

    Times and weights of pairs are the columns `at` and `weight`. With `event_types`, a type of event and its
    weight, weights are the column `event` instead. Rejected pairs are not written.

    `folder` must be new or empty. It is written completely or not at all. Returns the paths of the files.
    """
    if format not in get_args(TableFormat):
        raise ConfigError(f"format {format!r} is unknown; use one of {', '.join(get_args(TableFormat))}")
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir()) or folder == Path.cwd()):
        raise ConfigError(f"{folder} is in use (not an empty folder, or the current one); name a new folder")
    paths = []
    with beside(folder) as building:
        for name, table in _tables(dataset, event_types):
            path = building / f"{name}.{format}"
            paths.append(folder / path.name)
            if format == "parquet":
                pyarrow.parquet.write_table(table, path)
            else:
                delimiter = "," if format == "csv" else "\t"
                options = pyarrow.csv.WriteOptions(delimiter=delimiter, quoting_style="needed")
                pyarrow.csv.write_csv(_flat(table), path, options)
    return paths


def _tables(
    dataset: BundleDataset, event_types: Mapping[str, float] | None
) -> Iterator[tuple[str, pa.Table]]:
    for name, rows, columns, events in (
        ("user_item", dataset.users, dataset.items, dataset.item_events),
        ("user_bundle", dataset.users, dataset.bundles, dataset.bundle_events),
        ("bundle_item", dataset.bundles, dataset.items, Events()),
    ):
        positions = zip((rows, columns), pairs_of(getattr(dataset, name)), strict=True)
        ids = {f"{kind.kind}_id": kind.to_arrow().take(pa.array(place)) for kind, place in positions}
        yield name, pa.table({**ids, **_facts(events, event_types)})
    if dataset.catalogue is not None:
        for name, table in (("items", dataset.catalogue.items), ("bundles", dataset.catalogue.bundles)):
            known = [column for column in table.column_names if table[column].null_count < len(table)]
            yield name, table.select(known)


def _facts(events: Events, event_types: Mapping[str, float] | None) -> dict[str, Any]:
    """The columns of what is known about the pairs. Times are in whole seconds if they all are."""
    columns: dict[str, Any] = {}
    if events.at is not None:
        dated = events.at != UNDATED
        whole = not (events.at[dated] % 1_000_000).any()
        at = pa.array(np.where(dated, events.at, 0), pa.timestamp("us", "UTC"), mask=~dated)
        columns["at"] = at.cast(pa.timestamp("s", "UTC")) if whole else at
    if events.weight is not None and event_types is None:
        columns["weight"] = pa.array(events.weight)
    elif events.weight is not None and event_types is not None:
        names = {np.float32(weight): name for name, weight in event_types.items()}
        columns["event"] = pa.array([names[weight] for weight in events.weight], pa.string())
    return columns


def _flat(table: pa.Table) -> pa.Table:
    """Write the tags of each row as one text, a|b|c, and vectors as JSON: text files have no lists."""
    if "vector" in table.column_names:
        texts = [None if vector is None else json.dumps(vector) for vector in table["vector"].to_pylist()]
        table = table.set_column(table.column_names.index("vector"), "vector", pa.array(texts, pa.string()))
    if "tags" not in table.column_names:
        return table
    tags: Any = table["tags"].combine_chunks()
    if pc.any(pc.match_substring(tags.flatten(), "|")).as_py():
        raise ConfigError("a tag contains '|', which separates tags in text files; write Parquet instead")
    return table.set_column(table.column_names.index("tags"), "tags", pc.binary_join(tags, "|"))
