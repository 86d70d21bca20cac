"""Which columns each table has, the names people give them, and how one is told from another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bundlemage.errors import DataError, Problem


@dataclass(frozen=True)
class Layout:
    """The columns of one table: `ids` must be there, `details` may be."""

    ids: tuple[str, ...]
    details: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        return self.ids + self.details


REQUIRED = ("user_item", "user_bundle", "bundle_item")
TABLES: Mapping[str, Layout] = {
    "user_item": Layout(("user_id", "item_id")),
    "user_bundle": Layout(("user_id", "bundle_id")),
    "bundle_item": Layout(("bundle_id", "item_id")),
    "items": Layout(("item_id",), ("title", "price", "tags", "stock")),
    "bundles": Layout(("bundle_id",), ("title", "price", "tags", "discount")),
}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Compared without case, spaces and punctuation, so that `user ID`, `userId` and `USER_ID` are one name.
_ALIASES: Mapping[str, frozenset[str]] = {
    "user_id": _names(
        "userid user uid customerid customer custid clientid accountid memberid buyerid shopperid visitorid "
        "playerid steamid"
    ),
    "item_id": _names(
        "itemid item iid productid product prodid sku articleid asin gameid appid bookid songid trackid "
        "movieid"
    ),
    "bundle_id": _names(
        "bundleid bundle bid packageid packid boxid setid kitid comboid collectionid listid playlistid "
        "booklistid"
    ),
    "title": _names("title name"),
    "price": _names("price unitprice finalprice"),
    "tags": _names("tags tag genres genre categories category"),
    "stock": _names("stock instock inventory stockquantity"),
    "discount": _names("discount discountrate"),
}
_OWN_PREFIX = {"items": ("item", "product", "game"), "bundles": ("bundle", "package")}
_LOOKS_LIKE_DATA = re.compile(r"-?\d+(\.\d+)?|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


def _means(table: str, column: str, name: str) -> bool:
    """Whether `name`, as found in `table`, is another way to write `column`."""
    plain = _plain(name)
    if plain in _ALIASES[column]:
        return True
    if table not in _OWN_PREFIX:
        return False
    # A catalogue speaks of one thing only: there `id` is that thing's id, and `item_name` its title.
    if column in TABLES[table].ids:
        return plain == "id"
    return any(plain.removeprefix(prefix) in _ALIASES[column] for prefix in _OWN_PREFIX[table])


def resolve(table: str, names: Sequence[str], where: str) -> dict[str, int]:
    """Where in `names` each column of `table` stands, if it is there. Raises `DataError` with every fault."""
    found: dict[str, int] = {}
    missing: list[str] = []
    problems: list[Problem] = []
    for column in TABLES[table].columns:
        exact = [position for position, name in enumerate(names) if name == column]
        matching = exact or [position for position, name in enumerate(names) if _means(table, column, name)]
        if len(matching) > 1:
            problems.append(_ambiguous(column, [names[position] for position in matching], where))
        elif matching:
            found[column] = matching[0]
        elif column in TABLES[table].ids:
            missing.append(column)
    if missing:
        problems.append(_unknown(missing, names, where))
    if problems:
        raise DataError(problems)
    return found


def _ambiguous(column: str, names: Sequence[str], where: str) -> Problem:
    listed = " and ".join(repr(name) for name in names)
    return Problem(
        kind="ambiguous-column",
        where=where,
        message=f"the columns {listed} could each be {column!r}",
        fix=f"Name the right one exactly {column!r}, and drop or rename the other",
        value=names[1],
    )


def _unknown(missing: Sequence[str], names: Sequence[str], where: str) -> Problem:
    listed = ", ".join(repr(name) for name in names)
    wanted = " or ".join(repr(column) for column in missing)
    fix = f"Rename the column that holds it to {wanted}"
    if any(_LOOKS_LIKE_DATA.fullmatch(name.strip()) for name in names):
        fix = "The first line looks like data: put a line with the column names above it"
    return Problem(
        kind="unknown-column",
        where=where,
        message=f"no column {wanted}; the columns found are {listed}",
        fix=fix,
        value=names[0] if names else None,
    )
