"""A generated shop of games: data to start with, whose planted tastes say what a right answer is.

Users have favourite genres, and many buy bundles of other genres than they buy games of. A game belongs to
a product line (a series or a studio) of one genre, and most bundles gather one line. A few games and
bundles are far more popular than the rest. One seed names one shop, on every platform.
"""

from __future__ import annotations

import math
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, binary_matrix
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import ConfigError
from bundlemage.sample.catalogue import label
from bundlemage.sample.draws import (
    Integers,
    Random,
    Shelf,
    Wheel,
    distinct_pairs,
    pick,
    shuffled,
    spread,
)
from bundlemage.sample.tastes import GENRE_PACK, Floats, Tastes, plant

__all__ = ["GENRE_PACK", "NETEASE", "SampleShop", "ShopSize", "Tastes", "sample_shop", "write_shop"]

TableFormat = Literal["csv", "tsv", "parquet"]


class ShopSize(TypedDict):
    """The settings of `sample_shop` that say how large a shop is."""

    users: int
    items: int
    bundles: int
    items_per_user: float
    bundles_per_user: float
    items_per_bundle: float


NETEASE: Final[ShopSize] = {
    "users": 18_528,
    "items": 123_628,
    "bundles": 22_864,
    "items_per_user": 1_128_065 / 18_528,
    "bundles_per_user": 302_303 / 18_528,
    "items_per_bundle": 1_778_838 / 22_864,
}
"""As many users, items, bundles and pairs as the paper's NetEase data: `sample_shop(**NETEASE)`."""

_QUIET_SHARE = 0.06  # users with a single bundle or none
# How many of 100 games come from the line, the genre, anywhere: in a bundle of a line, in a pack of a genre.
_ORIGINS = ((85, 12, 3), (0, 92, 8))


@dataclass(frozen=True, eq=False)
class SampleShop:
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
    """A shop of this size; the averages are met exactly, up to rounding to whole pairs."""
    _check(users, items, bundles, items_per_user, bundles_per_user, items_per_bundle, seed)
    # A stream for each part: other words on the labels leave the purchases as they were.
    children = np.random.SeedSequence(seed).spawn(5)
    planting, shopping, bundling, packing, labelling = (
        np.random.Generator(np.random.PCG64(child)) for child in children
    )
    tastes = plant(planting, users, items, bundles, items_per_bundle)
    shelf = Shelf(tastes.item_line, tastes.item_popularity)
    bundle_item = _bundle_items(packing, tastes, shelf, round(bundles * items_per_bundle))
    item_ids, bundle_ids = _ids("item", "g", items), _ids("bundle", "b", bundles)
    dataset = BundleDataset(
        user_item=_user_items(shopping, tastes, shelf, round(users * items_per_user)),
        user_bundle=_user_bundles(bundling, tastes, round(users * bundles_per_user)),
        bundle_item=bundle_item,
        users=_ids("user", "u", users),
        items=item_ids,
        bundles=bundle_ids,
        catalogue=label(labelling, tastes, bundle_item, item_ids, bundle_ids),
        name="sample",
    )
    return SampleShop(dataset, tastes)


def _check(
    users: int,
    items: int,
    bundles: int,
    items_per_user: float,
    bundles_per_user: float,
    items_per_bundle: float,
    seed: int,
) -> None:
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


def _ids(kind: str, letter: str, count: int) -> Vocabulary:
    """u0001, u0002, …: wide enough that the order of the text is the order of the numbers."""
    width = max(4, len(str(count)))
    return Vocabulary(kind, [f"{letter}{number:0{width}d}" for number in range(1, count + 1)])


def _user_items(random: Random, tastes: Tastes, shelf: Shelf, pairs: int) -> sparse.csr_matrix:
    users, items = len(tastes.user_item_taste), len(tastes.item_line)
    genres = len(tastes.genres)
    first_line = np.searchsorted(tastes.line_genre, np.arange(genres + 1))
    wheel = _taste_wheel(tastes.user_item_taste)

    def propose(rows: Integers) -> Integers:
        genre = wheel.spin_row(random, rows, genres)
        return shelf.draw(random, first_line[genre], first_line[genre + 1])

    counts = spread(random, pairs, np.ones(users, np.int64), _at_most(users, items, pairs))
    return binary_matrix(*distinct_pairs(random, counts, items, propose), (users, items))


def _user_bundles(random: Random, tastes: Tastes, pairs: int) -> sparse.csr_matrix:
    users, bundles, genres = len(tastes.user_bundle_taste), len(tastes.bundle_genre), len(tastes.genres)
    shelf = Shelf(tastes.bundle_genre, tastes.bundle_popularity)
    wheel = _taste_wheel(tastes.user_bundle_taste)

    def propose(rows: Integers) -> Integers:
        genre = wheel.spin_row(random, rows, genres)
        return shelf.draw(random, genre, genre + 1)

    counts = _bundle_counts(random, users, bundles, pairs)
    return binary_matrix(*distinct_pairs(random, counts, bundles, propose), (users, bundles))


def _bundle_counts(random: Random, users: int, bundles: int, pairs: int) -> Integers:
    """How many bundles each user has: none or one for the quiet ones, two or more for the others."""
    quiet = shuffled(random, np.arange(users))[: int(_QUIET_SHARE * users)]
    busy = users - len(quiet)
    if pairs > busy * bundles:  # the others cannot take that many
        quiet, busy = quiet[:0], users
    highest = _at_most(users, bundles, pairs, busy)
    highest[quiet] = pick(random, 2, len(quiet))
    lowest = np.minimum(highest, min(2, pairs // users))
    return spread(random, pairs, lowest, highest)


def _bundle_items(random: Random, tastes: Tastes, shelf: Shelf, pairs: int) -> sparse.csr_matrix:
    bundles, items = len(tastes.bundle_genre), len(tastes.item_line)
    pack = tastes.bundle_line == GENRE_PACK
    first_of_genre, past_genre = (
        np.searchsorted(tastes.line_genre, tastes.bundle_genre, side) for side in ("left", "right")
    )
    # The range of lines an item of each origin is from; a pack never draws from its line.
    first = np.stack([tastes.bundle_line, first_of_genre, np.zeros_like(first_of_genre)], axis=1)
    past = np.stack([tastes.bundle_line + 1, past_genre, np.full_like(past_genre, len(tastes.lines))], axis=1)
    wheel = Wheel(_ORIGINS)

    def propose(rows: Integers) -> Integers:
        origin = wheel.spin_row(random, pack[rows].astype(np.int64), 3)
        return shelf.draw(random, first[rows, origin], past[rows, origin])

    # Bundles twice the mean at most: a line has room for no more.
    highest = np.full(bundles, min(items, math.ceil(2 * pairs / bundles)))
    counts = spread(random, pairs, np.full(bundles, 2), highest)
    return binary_matrix(*distinct_pairs(random, counts, items, propose), (bundles, items))


def _taste_wheel(taste: Floats) -> Wheel:
    return Wheel(np.rint(taste * (1 << 20)))


def _at_most(rows: int, things: int, pairs: int, takers: int | None = None) -> Integers:
    """Nobody takes more than half of what there is, unless the average asks for it."""
    return np.full(rows, min(things, max(things // 2, math.ceil(pairs / (takers or rows)))))


def write_shop(dataset: BundleDataset, folder: Path, format: TableFormat = "csv") -> list[Path]:  # noqa: A002
    """Write `user_item`, `user_bundle`, `bundle_item` and, with a catalogue, `items` and `bundles`.

    The folder appears whole or not at all: it is written beside its place, then renamed.
    """
    if format not in get_args(TableFormat):
        raise ConfigError(f"format {format!r} is unknown; use one of {', '.join(get_args(TableFormat))}")
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir()) or folder == Path.cwd()):
        raise ConfigError(f"{folder} is in use (not an empty folder, or the current one); name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    staging.mkdir()
    try:
        names = [_write_table(table, staging / name, format) for name, table in _tables(dataset)]
        if folder.exists():
            folder.rmdir()
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return [folder / name for name in names]


def _tables(dataset: BundleDataset) -> Iterator[tuple[str, pa.Table]]:
    for name, rows, columns in (
        ("user_item", dataset.users, dataset.items),
        ("user_bundle", dataset.users, dataset.bundles),
        ("bundle_item", dataset.bundles, dataset.items),
    ):
        pairs = getattr(dataset, name).tocoo()
        yield (
            name,
            pa.table(
                {
                    f"{rows.kind}_id": rows.to_arrow().take(pa.array(pairs.row)),
                    f"{columns.kind}_id": columns.to_arrow().take(pa.array(pairs.col)),
                }
            ),
        )
    if dataset.catalogue is not None:
        yield "items", dataset.catalogue.items
        yield "bundles", dataset.catalogue.bundles


def _write_table(table: pa.Table, stem: Path, format: TableFormat) -> str:  # noqa: A002
    path = stem.with_name(f"{stem.name}.{format}")
    if format == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        delimiter = "," if format == "csv" else "\t"
        options = pyarrow.csv.WriteOptions(delimiter=delimiter, quoting_style="needed")
        pyarrow.csv.write_csv(_flat(table), path, options)
    return path.name


def _flat(table: pa.Table) -> pa.Table:
    """Tags as one text, a|b|c, for files that know no lists."""
    if "tags" not in table.column_names:
        return table
    tags: Any = table["tags"].combine_chunks()
    if pc.any(pc.match_substring(tags.flatten(), "|")).as_py():
        raise ConfigError("a tag contains '|', which separates tags in text files; write Parquet instead")
    return table.set_column(table.column_names.index("tags"), "tags", pc.binary_join(tags, "|"))
