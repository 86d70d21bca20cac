"""The tables and the names of their columns: which names are accepted, and which columns are not used."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA
from bundlemage.errors import DataError, Problem

VECTORS = "item_vectors"
REQUIRED = ("user_item", "user_bundle", "bundle_item")
TABLES: Mapping[str, tuple[str, ...]] = {
    "user_item": ("user_id", "item_id"),
    "user_bundle": ("user_id", "bundle_id"),
    "bundle_item": ("bundle_id", "item_id"),
    "items": ("item_id",),
    "bundles": ("bundle_id",),
    VECTORS: ("item_id", "vector"),
}
"""The columns that each table must have. The columns of a catalogue's schema are optional, and `EVENTS`."""
EVENTS = ("at", "weight", "event")
"""The columns that tables of events, `user_item` and `user_bundle`, may have."""
CATALOGUE_SCHEMAS = {"items": ITEM_SCHEMA, "bundles": BUNDLE_SCHEMA}

# Case, spaces and punctuation are ignored: `user ID`, `userId` and `USER_ID` are the same name.
_ALIASES = {
    column: tuple(names.split())
    for column, names in {
        "user_id": "user users userids uid customerid customer custid clientid accountid memberid buyerid "
        "shopperid visitorid playerid player listenerid listener readerid reader steamid",
        "item_id": "item items itemids iid productid product prodid sku articleid article asin gameid game "
        "appid bookid book songid song trackid track movieid movie",
        "bundle_id": "bundle bundles bundleids bid packageid package packid pack boxid box setid kitid kit "
        "comboid combo collectionid collection listid playlistid playlist booklistid booklist",
        "title": "titles name names label",
        "price": "prices unitprice finalprice listprice",
        "tags": "tag genres genre categories category",
        "stock": "instock inventory quantity qty stockquantity stockqty",
        "discount": "discounts discountrate",
        "cost": "costs unitcost itemcost costprice purchaseprice",
        "image_url": "imageurl image images imagelink picture pictures pictureurl",
        "description": "descriptions desc summary abstract blurb longdescription",
        "vector": "vectors embedding embeddings features featurevector",
        "at": "timestamp ts time datetime date createdat eventtime purchasedat orderedat boughtat playedat "
        "viewedat occurredat purchasedate orderdate createddate eventdate timestampms unixtime",
        "weight": "weights count counts plays playcount times quantity qty strength",
        "event": "events eventtype eventname action actiontype interaction interactiontype behavior "
        "behaviour type",
    }.items()
}
"""For each column its other names, without spaces and punctuation. The first name has precedence."""
OWN_PREFIX = {"items": ("item", "product", "game"), "bundles": ("bundle", "package")}
"""For each catalogue, what shops call the things that it describes."""
_LOOKS_LIKE_DATA = re.compile(r"-?\d+(\.\d+)?|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_INDEX_OF_PANDAS = re.compile(r"__index_level_\d+__")
_SHOWN_NAMES = 8
_CLOSE = 0.75
"""The least likeness of a name to a column that it may be a misspelling of. `discounted_price` has 0.67."""


@dataclass(frozen=True)
class Columns:
    """Where the columns of a table are."""

    positions: Mapping[str, int]
    """For each column that exists, by its canonical name: its position among the names of the file."""
    problems: tuple[Problem, ...] = ()
    """A warning for columns that are not used, and a note for columns that have another name."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """For each column that has another name in the file: that name."""

    def selected(self) -> Columns:
        """Returns the columns of a table from which only these columns were selected, in this order."""
        return replace(self, positions={column: n for n, column in enumerate(self.positions)})


def resolve(table: str, names: Sequence[str], where: str) -> Columns:
    """Returns the position in `names` of each column of `table`. `where` is the file, for messages.

    If several names match an optional column, the first of the accepted names is used. Raises `DataError`
    with every required column that is missing or that several names match.
    """
    positions: dict[str, int] = {}
    overruled: dict[int, str] = {}
    missing: list[str] = []
    problems: list[Problem] = []
    for column in _columns(table):
        fits = {position: _fit(table, column, name) for position, name in enumerate(names)}
        best = max(fits.values(), default=_NO_FIT)
        matching = [position for position, fit in fits.items() if fit == best != _NO_FIT]
        chosen = min(matching, key=lambda position: _precedence(column, names[position]), default=None)
        if chosen is None:
            if column in TABLES[table]:
                missing.append(column)
            continue
        same_name = names.count(names[chosen]) > 1
        if len(matching) > 1 and (same_name or column in TABLES[table]):
            listed = " and ".join(repr(names[position]) for position in matching)
            message = f"the columns {listed} could each be {column!r}"
            fix = "Drop or rename one of them" if same_name else f"Rename the right one to {column!r}"
            problems.append(Problem("ambiguous-column", where, message, fix, value=names[matching[1]]))
            continue
        positions[column] = chosen
        overruled |= {
            position: column for position, fit in fits.items() if fit != _NO_FIT and position != chosen
        }
    if missing:
        missing_names = " or ".join(map(repr, missing))
        message = f"no column {missing_names}; the columns are {', '.join(map(repr, names))}"
        fix = f"Rename the column with these ids to {missing_names}"
        if any(_LOOKS_LIKE_DATA.fullmatch(name.strip()) for name in names):
            fix = "The first line looks like data: put a line with the column names above it"
        problems.append(Problem("unknown-column", where, message, fix, value=names[0] if names else None))
    if problems:
        raise DataError(problems)
    given = {column: names[position] for column, position in positions.items()}
    aliases = {column: name for column, name in given.items() if _plain(name) != _plain(column)}
    told = [*_unused(table, names, where, positions, overruled, aliases), *_read_as(aliases, where)]
    return Columns(positions, tuple(told), aliases)


def has_ids(table: str, names: Sequence[str]) -> bool:
    """Whether each column that `table` must have is among `names`."""
    return all(any(_fit(table, column, name) for name in names) for column in TABLES[table])


def _columns(table: str) -> tuple[str, ...]:
    """Returns all columns that a table can have."""
    if table in CATALOGUE_SCHEMAS:
        return *TABLES[table], *CATALOGUE_SCHEMAS[table].names[1:]
    return (*TABLES[table], *EVENTS) if has_events(table) else TABLES[table]


def has_events(table: str) -> bool:
    """Whether the rows of a table are events of a user."""
    return TABLES[table][0] == "user_id"


_NO_FIT, _ALIAS, _SAME_LETTERS, _EXACT = range(4)


def _fit(table: str, column: str, name: str) -> int:
    """Returns how well `name` fits `column`. A larger number is a better fit."""
    if name == column:
        return _EXACT
    plain = _plain(name)
    if plain == _plain(column):
        return _SAME_LETTERS
    # A catalogue describes items or bundles only: in `items`, `id` is the item_id and `item_name` the title.
    own = table in OWN_PREFIX
    if plain in _ALIASES[column] or (own and column in TABLES[table] and plain == "id"):
        return _ALIAS
    if own and column not in TABLES[table]:
        inner = {plain.removeprefix(prefix) for prefix in OWN_PREFIX[table]}
        return _ALIAS if inner & {*_ALIASES[column], _plain(column)} else _NO_FIT
    return _NO_FIT


def _precedence(column: str, name: str) -> int:
    """Returns the place of a name among the accepted names of `column`. The lower one has precedence."""
    aliases, plain = _ALIASES[column], _plain(name)
    return aliases.index(plain) if plain in aliases else len(aliases)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


# What is said about the columns of a file that could be read


def _unused(
    table: str,
    names: Sequence[str],
    where: str,
    positions: Mapping[str, int],
    overruled: Mapping[int, str],
    aliases: Mapping[str, str],
) -> Iterable[Problem]:
    """Yields warnings that name each column of the file that is not used."""

    def warning(unused: Sequence[int], why: str, fix: str) -> Problem:
        given = tuple(names[position] for position in unused)
        shown = [
            repr(names[position]) if names[position].strip() else f"number {position + 1} (it has no name)"
            for position in unused
        ]
        start = f"the column {shown[0]} is" if len(shown) == 1 else f"the columns {listed(shown)} are"
        return Problem(
            "unused-column",
            where,
            f"{start} not used{why}",
            fix,
            value=given[0],
            severity="warning",
            names=given,
        )

    for position, column in overruled.items():
        real = names[positions[column]]
        why = f", because there is a column {real!r}"
        if column in aliases:
            why = f", because the column {real!r} is read as {column!r}"
        yield warning([position], why, f"Leave it; if it is the right one, remove {real!r}")
    rest = [
        position
        for position, name in enumerate(names)
        if position not in {*positions.values(), *overruled} and not _INDEX_OF_PANDAS.fullmatch(name)
    ]
    currency = [n for n in rest if table in CATALOGUE_SCHEMAS and _plain(names[n]) == "currency"]
    if currency:
        fix = "Name it when you train, as in --shop currency=EUR"
        yield warning(currency, "; all prices of a shop have the same currency", fix)
    other = [position for position in rest if position not in currency]
    if other:
        understood = _columns(table)
        why = f"; the columns of this table are {listed(understood, len(understood))}"
        free = [column for column in understood if column not in positions]
        close: dict[str, str] = {}
        for n in other:
            for column in get_close_matches(names[n].lower(), free, n=1, cutoff=_CLOSE):
                close.setdefault(column, names[n])
        one = len(other) == 1
        fix = "Rename it if it is one of these, or leave it"
        if not free:
            fix = "Leave it" if one else "Leave them"
        elif not one:
            fix = "Rename those that are among these, or leave them"
        if close:
            renamed = listed(f"{name!r} to {column!r}" for column, name in close.items())
            holds = "that is what it holds" if len(close) == 1 else "that is what they hold"
            fix = f"Rename {renamed} if {holds}, or leave {'it' if one else 'them'}"
        yield warning(other, why, fix)


def _read_as(aliases: Mapping[str, str], where: str) -> Iterable[Problem]:
    """Yields a note if columns of the file have other names than the columns they are read as."""
    if aliases:
        pairs = [
            f"{name!r} {'as' if number else 'is read as'} {column!r}"
            for number, (column, name) in enumerate(aliases.items())
        ]
        which = "one that" if len(aliases) > 1 else "it if it"
        yield Problem(
            "column-alias",
            where,
            f"the column {listed(pairs)}",
            f"Rename {which} means something else",
            value=next(iter(aliases.values())),
            severity="note",
            names=tuple(aliases.values()),
        )


def listed(texts: Iterable[str], most: int = _SHOWN_NAMES) -> str:
    """Returns texts as `a, b and c`. Of more than `most` texts, only the first are shown."""
    texts = list(texts)
    if len(texts) > most:
        texts = [*texts[:most], f"{len(texts) - most:,} more"]
    return " and ".join([", ".join(texts[:-1]), *texts[-1:]] if len(texts) > 1 else texts)
