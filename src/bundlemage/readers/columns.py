"""The columns of each table, and the other names that are accepted for them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bundlemage.errors import DataError, Problem


class TableColumns(NamedTuple):
    """The columns of one table: `ids` are required, `details` are optional."""

    ids: tuple[str, ...]
    details: tuple[str, ...] = ()


REQUIRED = ("user_item", "user_bundle", "bundle_item")
TABLES: Mapping[str, TableColumns] = {
    "user_item": TableColumns(("user_id", "item_id")),
    "user_bundle": TableColumns(("user_id", "bundle_id")),
    "bundle_item": TableColumns(("bundle_id", "item_id")),
    "items": TableColumns(("item_id",), ("title", "price", "tags", "stock")),
    "bundles": TableColumns(("bundle_id",), ("title", "price", "tags", "discount")),
}


# Case, spaces and punctuation are ignored: `user ID`, `userId` and `USER_ID` are the same name.
_ALIASES = {
    column: frozenset(names.split())
    for column, names in {
        "user_id": "userid user uid customerid customer custid clientid accountid memberid buyerid shopperid "
        "visitorid playerid steamid",
        "item_id": "itemid item iid productid product prodid sku articleid asin gameid appid bookid songid "
        "trackid movieid",
        "bundle_id": "bundleid bundle bid packageid packid boxid setid kitid comboid collectionid listid "
        "playlistid booklistid",
        "title": "title name",
        "price": "price unitprice finalprice",
        "tags": "tags tag genres genre categories category",
        "stock": "stock instock inventory stockquantity",
        "discount": "discount discountrate",
    }.items()
}
_OWN_PREFIX = {"items": ("item", "product", "game"), "bundles": ("bundle", "package")}
_LOOKS_LIKE_DATA = re.compile(r"-?\d+(\.\d+)?|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _means(table: str, column: str, name: str) -> bool:
    """Whether a column called `name` in `table` is the column `column`."""
    plain = re.sub(r"[\W_]+", "", name).casefold()
    if plain in _ALIASES[column]:
        return True
    if table not in _OWN_PREFIX:
        return False
    # A catalogue describes items or bundles only: in `items`, `id` is the item_id and `item_name` the title.
    if column in TABLES[table].ids:
        return plain == "id"
    return any(plain.removeprefix(prefix) in _ALIASES[column] for prefix in _OWN_PREFIX[table])


def resolve(table: str, names: Sequence[str], where: str) -> dict[str, int]:
    """Returns for each existing column of `table` its position in `names`. `where` is the file, for messages.

    Raises `DataError` with every required column that is missing, and every column that several names fit.
    """
    positions: dict[str, int] = {}
    missing: list[str] = []
    problems: list[Problem] = []
    for column in (*TABLES[table].ids, *TABLES[table].details):
        exact = [position for position, name in enumerate(names) if name == column]
        matching = exact or [position for position, name in enumerate(names) if _means(table, column, name)]
        if len(matching) > 1:
            listed = " and ".join(repr(names[position]) for position in matching)
            message = f"the columns {listed} could each be {column!r}"
            fix = f"Name the right one exactly {column!r}, and drop or rename the other"
            problems.append(Problem("ambiguous-column", where, message, fix, value=names[matching[1]]))
        elif matching:
            positions[column] = matching[0]
        elif column in TABLES[table].ids:
            missing.append(column)
    if missing:
        wanted = " or ".join(map(repr, missing))
        message = f"no column {wanted}; the columns found are {', '.join(map(repr, names))}"
        fix = f"Rename the column that holds it to {wanted}"
        if any(_LOOKS_LIKE_DATA.fullmatch(name.strip()) for name in names):
            fix = "The first line looks like data: put a line with the column names above it"
        problems.append(Problem("unknown-column", where, message, fix, value=names[0] if names else None))
    if problems:
        raise DataError(problems)
    return positions
