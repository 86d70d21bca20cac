"""Options that several commands share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bundlemage.cli.commands import FromFunction
from bundlemage.cli.texts import ids, lines_of
from bundlemage.errors import ConfigError
from bundlemage.wire.shop import OwnedRule, StockRule

if TYPE_CHECKING:
    from bundlemage.core.filters import Filter
    from bundlemage.core.history import User
    from bundlemage.core.segments import Segment
    from bundlemage.engines.base import Engine

# ── Single options ───────────────────────────────────────────────────────────────────────────────


def _at_least_one(option: typer.CallbackParam, count: int | None) -> int | None:
    """Raise `ConfigError` for a number below one, such as `--jobs 0`. This happens before data is read."""
    if count is not None and count < 1:
        raise ConfigError(f"{option.opts[-1]} {count}: the number must be at least 1")
    return count


LOCATION = (
    "A folder with tables, a public data set, or the output of 'data ingest'; a URI of Parquet tables, e.g. "
    "s3://bucket/prefix; a database URL; or 'sample', the built-in shop; 'sample:KIND' is one of "
    "another kind (see 'data sample --help')."
)
JOBS = "Number of models to train at a time, each in its own process on the same device."
TABLES = (
    "For a database: a table or query for user_item, user_bundle, bundle_item, items or bundles. Repeatable."
)

Location = Annotated[str, typer.Argument(metavar="PATH", help=LOCATION)]
Tables = Annotated[list[str] | None, typer.Option("--table", metavar="NAME=TABLE", help=TABLES)]
EVENTS = (
    "What each type of event in the column 'event' is worth, e.g. view=0.2,cart=0.5,buy=1,return=-1: 1 or "
    "more is a purchase, less is a sign of taste, 0 leaves the rows out, and a negative one takes back."
)
Events = Annotated[str | None, typer.Option("--events", metavar="TYPE=WEIGHT,...", help=EVENTS)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text and tables.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
OtherDevice = Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")]
ModelFolder = Annotated[
    str, typer.Argument(metavar="DIR", help="A folder that 'bundlemage train' has written.")
]
Jobs = Annotated[int, typer.Option(metavar="N", callback=_at_least_one, help=JOBS)]
Count = Annotated[int, typer.Option(min=1)]
OutputFile = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the answers to a .csv, .jsonl or .parquet file."
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="With --output: replace an existing file.")]
OptionalCount = Annotated[int | None, typer.Option(min=1)]
Owned = Annotated[
    OwnedRule | None,
    typer.Option(
        help="What happens to what the user owns: 'demote' leaves out bundles that are wholly owned and "
        "ranks mostly owned ones lower, 'hide' leaves out both, 'show' changes nothing. "
        "Default: the shop's rule."
    ),
]
SoldOut = Annotated[
    StockRule | None,
    typer.Option(
        "--stock",
        help="What happens to what is sold out: 'last' ranks it after all others, 'hide' leaves it out, "
        "'show' changes nothing. Default: the shop's rule.",
    ),
]
Diversity = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="How much a list is varied, from 0 to 1: a bundle like one before it gives way to a less "
        "likely one that is not. Default: the shop's setting.",
    ),
]
MatchPopularity = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="How much the mix of best sellers and rarely sold bundles in a list follows that of the user's "
        "own bundles, from 0 to 1. Default: the shop's setting.",
    ),
]
Seed = Annotated[int, typer.Option(min=0)]


# ── Groups of options ────────────────────────────────────────────────────────────────────────────


def _engine(
    engine: str = "local",
    address: str | None = None,
    workers: Annotated[int | None, typer.Option(callback=_at_least_one)] = None,
) -> Any:
    """The engine that does the work.

    Options:
        --engine NAME: Where the work runs: 'local' is this machine, 'ray' is a Ray cluster.
        --address HOST:PORT: The address of the Ray cluster; 'auto' finds the cluster of this machine. Without
            it, Ray is started on this machine for the command.
        --workers N: Number of worker processes. The default on Ray is one for each GPU,
            or one for each processor if there is no GPU.
    """
    from bundlemage.engines.base import engine as engine_of

    return engine_of(engine, address=address, workers=workers)


def _given_user(
    user: str | None = None,
    history_items: list[str] | None = None,
    history_bundles: list[str] | None = None,
) -> Any:
    """The user that the answer is for, or None if none of these options is given.

    Options:
        --user ID: A user of the training data.
        --history-items ID,ID: Instead of --user: items that a visitor has.
        --history-bundles ID,ID: Instead of --user: bundles that a visitor has.
    """
    from bundlemage.core.history import History

    if user is not None and (history_items or history_bundles):
        raise ConfigError("give --user or a history, not both")
    if user is None and history_items is None and history_bundles is None:
        return None
    return user if user is not None else History(ids(history_items), ids(history_bundles))


_GivenUser = Annotated[Any, FromFunction(_given_user)]


def _user(user: _GivenUser) -> Any:
    """The user that the answer is for."""
    return check_user(user)


def check_user(user: Any, others: str = "") -> Any:
    """The user that the answer is for. An error if none is given; `others` says what else can be given."""
    if user is None:
        raise ConfigError(f"no user: {_GIVE}{others}")
    return user


def _user_or_all(user: _GivenUser, all_: bool = False) -> Any:
    """The user that the answer is for, or None for all users.

    Options:
        --all: Instead of --user: all users of the training data. Needs --output.
    """
    if user is None and not all_:
        raise ConfigError(f"no user: {_GIVE}, or --all for all users")
    if user is not None and all_:
        raise ConfigError("give --all or one user, not both")
    return user


_GIVE = "give --user ID, or --history-items and --history-bundles ('' for none)"


def _filter(
    exclude: list[str] | None = None,
    among: list[str] | None = None,
    tag: list[str] | None = None,
    min_price: float | None = None,
    max_price: float | None = None,
    in_stock: bool = False,
) -> Any:
    """The filter of an answer, or None if none of these options is given.

    Filters:
        --exclude ID,ID: Never show these.
        --among ID,ID: Show only these.
        --tag TAG: Show only items or bundles with this tag. Repeatable: one matching tag is enough.
        --min-price: Show only items or bundles that cost at least this.
        --max-price: Show only items or bundles that cost at most this.
        --in-stock: Show only items with a stock above 0, and bundles of such items.
    """
    from bundlemage.core.filters import Filter

    where = Filter(
        exclude=ids(exclude),
        among=None if among is None else ids(among),
        tags=tag or (),
        min_price=min_price,
        max_price=max_price,
        in_stock=in_stock,
    )
    return None if where == Filter() else where


@dataclass(frozen=True)
class Part:
    """A part of the users."""

    where: Segment
    file: Path | None
    """The file that lists their ids, if there is one."""


def _segment(
    tag: str | None = None,
    least_items: int | None = None,
    most_items: int | None = None,
    least_bundles: int | None = None,
    most_bundles: int | None = None,
    users: Path | None = None,
) -> Any:
    """The part of the users that is asked about (`Part`), or None if none of these options is given.

    Users:
        --tag TAG: Only users who own an item with this tag, alone or in a bundle.
        --least-items N: Only users with at least N items of their own.
        --most-items N: Only users with at most N items of their own.
        --least-bundles N: Only users with at least N bundles.
        --most-bundles N: Only users with at most N bundles.
        --users FILE: Only the users of this text file, which has one id per line.
    """
    from bundlemage.core.segments import Segment

    given = (tag, least_items, most_items, least_bundles, most_bundles, users)
    if all(each is None for each in given):
        return None
    numbers = (least_items, most_items, least_bundles, most_bundles)
    return Part(Segment(tag, *numbers, None if users is None else lines_of(users)), users)


def _recall(index: bool = False, least_recall: float | None = None) -> float | None:
    """The share of an exact search's answers that an index must find, or None for a search without an index.

    Options:
        --index: Search with an index (FAISS) instead of scoring every bundle; for millions of bundles.
        --least-recall SHARE: With --index: fail if the index finds less than this share of the bundles that
            an exact search finds (default 0.95).
    """
    if least_recall is not None and not index:
        raise ConfigError("--least-recall is for an index: add --index, or leave it out")
    return (0.95 if least_recall is None else least_recall) if index else None


EngineOptions = Annotated["Engine", FromFunction(_engine)]
UserOptions = Annotated["User", FromFunction(_user)]
UserOrAll = Annotated["User | None", FromFunction(_user_or_all)]
UserIfGiven = Annotated["User | None", FromFunction(_given_user)]
FilterOptions = Annotated["Filter | None", FromFunction(_filter)]
SegmentOptions = Annotated[Part | None, FromFunction(_segment)]
IndexOptions = Annotated["float | None", FromFunction(_recall)]
