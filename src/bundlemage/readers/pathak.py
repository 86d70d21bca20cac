"""Reads the Steam data as first published: Python 2 pickles, most of them maps with positions as keys.

A position is the number of a user, a game or a bundle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from bundlemage.data.dataset import (
    BUNDLE_SCHEMA,
    ITEM_SCHEMA,
    BundleDataset,
    Catalogue,
    as_binary,
    binary_matrix,
)
from bundlemage.data.splits import Source
from bundlemage.errors import DataError, Problem
from bundlemage.readers.places import LARGEST, missing_files, too_large
from bundlemage.readers.unpickle import safe_load

_MEMBERS = ("bundle_item_map", "user_bundle_map")
_DESCRIPTIONS = (
    "item_id_lookup",
    "item_name_map",
    "item_price_map",
    "all_items",
    "bundle_final_price_map",
    "bundle_discount_map",
)
_AGAIN = "Download the Steam bundle files again."

PARTIAL_NAME = "steam-partial"
PARTIAL_NOTE = (
    "steam-partial: the user-item matrix is not published, so it is reconstructed: a user's items are the "
    "games in the user's bundles, a part of what the user owns. Never compare its metrics with the paper's "
    "table for Steam. The matrix also contains the games of held-out bundles. With histories as given, a "
    "baseline that ranks bundles by the share of their games that the user owns therefore finds the held-out "
    "bundles: show this baseline beside every model."
)


def matches(path: Path) -> bool:
    """Whether the folder has a file of this layout."""
    return any((path / name).is_file() for name in _MEMBERS)


def read(path: Path) -> Source:
    """Returns the data; no split was published. Positions are the ids, as in the authors' files."""
    problems = missing_files(path, _MEMBERS, _AGAIN)
    if problems:
        raise DataError(problems)
    bundle_items, user_bundles = (_Members(path / name) for name in _MEMBERS)
    user_items = _Members(path / "user_item_map") if (path / "user_item_map").exists() else None
    catalogue = read_catalogue(path)

    users = max(user_bundles.owners, user_items.owners if user_items else 0)
    highest_item = max(bundle_items.highest, user_items.highest if user_items else -1)
    items = max(highest_item + 1, catalogue.items.num_rows)
    bundles = max(bundle_items.owners, user_bundles.highest + 1, catalogue.bundles.num_rows)
    bundle_item = bundle_items.matrix((bundles, items))
    user_bundle = user_bundles.matrix((users, bundles))
    dataset = BundleDataset.numbered(
        user_items.matrix((users, items)) if user_items else items_of_bundles(user_bundle, bundle_item),
        user_bundle,
        bundle_item,
        catalogue=Catalogue(
            _in_order(catalogue.items, range(items)), _in_order(catalogue.bundles, range(bundles))
        ),
        name="steam" if user_items else PARTIAL_NAME,
        notes=() if user_items else (PARTIAL_NOTE,),
    )
    message = "the file is missing, so the values in it are unknown"
    warnings = tuple(
        Problem("missing-file", str(path / name), message, _AGAIN, severity="warning")
        for name in _DESCRIPTIONS
        if not (path / name).exists()
    )
    return Source(dataset, warnings=warnings)


def items_of_bundles(user_bundle: sparse.csr_matrix, bundle_item: sparse.csr_matrix) -> sparse.csr_matrix:
    """Returns the items in each user's bundles. In this data, users who have a bundle own all its games."""
    return as_binary(user_bundle @ bundle_item)


def read_catalogue(path: Path) -> Catalogue:
    """Returns titles, prices and tags of games, prices and discounts of bundles. Unknown values are null."""
    apps = {n: app for n, app in _numbers(path, "item_id_lookup").items() if _is_position(app)}
    names, prices = _mapping(path, "item_name_map"), _numbers(path, "item_price_map")
    tags = _tags(path / "all_items")
    item_rows = []
    for n in range(_size(path / "item_id_lookup", apps, prices)):
        title = names.get(apps.get(n))
        details = {"title": title if isinstance(title, str) else None, "tags": tags.get(str(apps.get(n)))}
        item_rows.append({"item_id": str(n), "price": _price(prices.get(n)), **details})
    # These two maps count bundles from 1, all others from 0: key n + 1 describes bundle n. With this reading,
    # the sum of the games' list prices is the bundle's list price for 96% of bundles; without it, for 3%.
    finals, discounts = _numbers(path, "bundle_final_price_map"), _numbers(path, "bundle_discount_map")
    bundle_rows = []
    for n in range(_size(path / "bundle_final_price_map", finals, discounts) - 1):
        percent = _price(discounts.get(n + 1))
        discount = None if percent is None else percent / 100
        bundle_rows.append({"bundle_id": str(n), "price": _price(finals.get(n + 1)), "discount": discount})
    return Catalogue(
        pa.Table.from_pylist(item_rows, schema=ITEM_SCHEMA),
        pa.Table.from_pylist(bundle_rows, schema=BUNDLE_SCHEMA),
    )


def catalogue_for(path: Path, bundle_item: sparse.csr_matrix) -> Catalogue:
    """Returns the catalogue with its bundles in the row order of `bundle_item`, for example the matrix of the
    generation split.

    Bundles are identified by their games. If several bundles have the same games, their prices are null.
    """
    catalogue, published = read_catalogue(path), _Members(path / "bundle_item_map")
    contents = [tuple(row.tolist()) for row in np.split(bundle_item.indices, bundle_item.indptr[1:-1])]
    published_contents = [tuple(sorted(published.members.get(n, ()))) for n in range(published.owners)]
    order: list[int | None] = list(range(len(contents)))
    if contents != published_contents:  # the numbering differs
        positions_of: dict[tuple[int, ...], list[int]] = {}
        for position, games in enumerate(published_contents):
            positions_of.setdefault(games, []).append(position)
        positions = [positions_of.get(games, []) for games in contents]
        order = [matching[0] if len(matching) == 1 else None for matching in positions]
    return Catalogue(catalogue.items, _in_order(catalogue.bundles, order))


def _in_order(table: pa.Table, order: Iterable[int | None]) -> pa.Table:
    """Returns the rows at these positions, with new ids from 0. None and unknown positions give nulls."""
    places = [place if place is not None and place < table.num_rows else None for place in order]
    ids = pa.array(map(str, range(len(places))), pa.string())
    return table.take(pa.array(places, pa.int64())).set_column(0, table.schema.field(0), ids)


class _Members:
    """A published map from owners (users, bundles) to their members (bundles, items), checked."""

    def __init__(self, path: Path) -> None:
        self.members: dict[int, set[int]] = safe_load(path)
        if type(self.members) is not dict or not all(
            _is_position(owner) and type(group) in (set, list, tuple) and all(map(_is_position, group))
            for owner, group in self.members.items()
        ):
            message = "not a map from positions to sets of positions"
            raise DataError.of("wrong-content", str(path), message, _AGAIN)
        self.owners = max(self.members, default=-1) + 1
        self.highest = max((max(group) for group in self.members.values() if group), default=-1)
        for kind, size in (("keys", self.owners), ("members", self.highest + 1)):
            if size > LARGEST:
                raise DataError(too_large(path, size, kind))

    def matrix(self, shape: tuple[int, int]) -> sparse.csr_matrix:
        pairs = [(owner, member) for owner, group in self.members.items() for member in group]
        rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return binary_matrix(rows, columns, shape)


def _is_position(value: Any) -> bool:
    return type(value) is int and value >= 0


def _mapping(path: Path, name: str) -> dict[Any, Any]:
    """Returns the map in an optional file; an empty map if the file does not exist."""
    if not (path / name).exists():
        return {}
    value = safe_load(path / name)
    if type(value) is not dict:
        raise DataError.of("wrong-content", str(path / name), "not a map", _AGAIN)
    return value


def _numbers(path: Path, name: str) -> dict[int, Any]:
    """Returns the entries of an optional file's map whose keys are positions."""
    return {key: value for key, value in _mapping(path, name).items() if _is_position(key)}


def _size(where: Path, *maps: dict[int, Any]) -> int:
    """Returns the highest key plus one; raises `DataError` if it is too large."""
    size = max((key for entries in maps for key in entries), default=-1) + 1
    if size > LARGEST:
        raise DataError(too_large(where, size, "entries"))
    return size


def _tags(path: Path) -> dict[str, list[str]]:
    """Returns the tags of games by app id. Some games in the file are in no bundle, and some are missing."""
    if not path.exists():
        return {}
    games = safe_load(path)
    if type(games) is not list or not all(type(game) is dict for game in games):
        raise DataError.of("wrong-content", str(path), "not a list of games", _AGAIN)
    pairs = ((game.get("appid"), game.get("tags")) for game in games)
    return {
        str(app): tags
        for app, tags in pairs
        if type(app) in (str, int) and type(tags) is list and all(type(tag) is str for tag in tags)
    }


def _price(value: Any) -> float | None:
    """Converts a number, or a text such as `14.99`, `$14.99` or `Free to Play`, to a price; else None."""
    if type(value) in (int, float):
        return float(value)
    if not isinstance(value, str):
        return None
    if value.strip().lower().startswith("free"):
        return 0.0
    amount = re.fullmatch(r"\$?(\d+(?:\.\d+)?)", value.strip())
    return float(amount[1]) if amount else None
