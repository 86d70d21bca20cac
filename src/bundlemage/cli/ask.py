"""`bundlemage recommend` and `bundlemage complete`: questions to a saved model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from bundlemage.cli.options import AsJson, Device, ModelFolder, ids, key_values
from bundlemage.errors import ConfigError

if TYPE_CHECKING:
    from bundlemage.core.filters import Filter
    from bundlemage.core.history import User
    from bundlemage.recommender import Recommender

FILTERS = "What may be shown"
NEW = "Bundles that came after training"

KnownUser = Annotated[str | None, typer.Option("--user", metavar="ID", help="A user of the training data.")]
HistoryItems = Annotated[
    list[str] | None,
    typer.Option("--history-items", metavar="ID,ID", help="Instead of --user: items that a visitor has."),
]
HistoryBundles = Annotated[
    list[str] | None,
    typer.Option("--history-bundles", metavar="ID,ID", help="Instead of --user: bundles that a visitor has."),
]
IncludeOwned = Annotated[bool, typer.Option("--include-owned", help="Do not leave out what the user has.")]
Exclude = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="ID,ID", help="Never show these.", rich_help_panel=FILTERS),
]
Among = Annotated[
    list[str] | None,
    typer.Option("--among", metavar="ID,ID", help="Show only these.", rich_help_panel=FILTERS),
]
Tags = Annotated[
    list[str] | None,
    typer.Option(
        "--tag",
        metavar="TAG",
        help="Show what has this tag. Repeatable: one of them is enough.",
        rich_help_panel=FILTERS,
    ),
]
MinPrice = Annotated[
    float | None, typer.Option("--min-price", help="Show what costs at least this.", rich_help_panel=FILTERS)
]
MaxPrice = Annotated[
    float | None, typer.Option("--max-price", help="Show what costs at most this.", rich_help_panel=FILTERS)
]
InStock = Annotated[
    bool,
    typer.Option(
        "--in-stock",
        help="Show what can be sold: items with a stock above 0, bundles of such items.",
        rich_help_panel=FILTERS,
    ),
]

Index = Annotated[
    bool,
    typer.Option("--index", help="Search millions of bundles by an index (FAISS) instead of one by one."),
]
LeastRecall = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="With --index: refuse an index that finds less than this share of what an exact search finds "
        "(default 0.95).",
    ),
]


def recommend(
    folder: ModelFolder,
    user: KnownUser = None,
    history_items: HistoryItems = None,
    history_bundles: HistoryBundles = None,
    k: Annotated[int, typer.Option("-k", "--k", help="How many bundles.")] = 5,
    include_owned: IncludeOwned = False,
    exclude: Exclude = None,
    among: Among = None,
    tag: Tags = None,
    min_price: MinPrice = None,
    max_price: MaxPrice = None,
    in_stock: InStock = False,
    new_bundle: Annotated[
        list[str] | None,
        typer.Option(
            "--new-bundle",
            metavar="NAME=ID,ID",
            help="A bundle that the shop did not have at training, by its items. Repeatable.",
            rich_help_panel=NEW,
        ),
    ] = None,
    expected_sales: Annotated[
        list[str] | None,
        typer.Option(
            "--expected-sales",
            metavar="NAME=NUMBER",
            help="The number of sales by which a new bundle is ranked. Repeatable.",
            rich_help_panel=NEW,
        ),
    ] = None,
    sells_like: Annotated[
        list[str] | None,
        typer.Option(
            "--sells-like",
            metavar="NAME=ID",
            help="A bundle of the shop by whose sales a new bundle is ranked. Repeatable.",
            rich_help_panel=NEW,
        ),
    ] = None,
    index: Index = False,
    least_recall: LeastRecall = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """The bundles that fit a user best, without those that the user has.

    For all users at once, use 'bundlemage recommend-all'.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender

    where = filter_of(exclude, among, tag, min_price, max_price, in_stock)
    recall = recall_of(index, least_recall)
    user_or_history = who(user, history_items, history_bundles)
    model = Recommender.load(folder, device=device)
    if recall is not None:
        show.notes.print(str(model.use_index(recall)), soft_wrap=True)
    new = {name: ids([inside]) for name, inside in key_values(new_bundle, "--new-bundle").items()}
    answers = model.recommend(
        user_or_history,
        k,
        where=where,
        new_bundles=new,
        expected_sales=_numbers(expected_sales),
        sells_like=key_values(sells_like, "--sells-like"),
        include_owned=include_owned,
    )
    if as_json:
        show.print_json({"user": user, "bundles": [asdict(answer) for answer in answers]})
        return
    describe(model, user_or_history)
    show.out.print(show.bundle_cards(model.dataset, answers, new) if answers else none_left("bundle", where))


def _numbers(expected: list[str] | None) -> dict[str, float]:
    numbers = {}
    for name, text in key_values(expected, "--expected-sales").items():
        try:
            numbers[name] = float(text)
        except ValueError:
            raise ConfigError(
                f"--expected-sales {name}={text!r}: expected a number of sales, 0 or more"
            ) from None
    return numbers


def recall_of(index: bool, least: float | None) -> float | None:
    """The share of an exact search's answers that an index must find; None: search without an index."""
    if least is not None and not index:
        raise ConfigError("--least-recall is for an index: add --index, or leave it out")
    return (0.95 if least is None else least) if index else None


def complete(
    folder: ModelFolder,
    user: KnownUser = None,
    items: Annotated[
        list[str] | None,
        typer.Option("--items", metavar="ID,ID", help="The items that are in the bundle already."),
    ] = None,
    history_items: HistoryItems = None,
    history_bundles: HistoryBundles = None,
    k: Annotated[int, typer.Option("-k", "--k", help="How many items.")] = 5,
    include_owned: IncludeOwned = False,
    exclude: Exclude = None,
    among: Among = None,
    tag: Tags = None,
    min_price: MinPrice = None,
    max_price: MaxPrice = None,
    in_stock: InStock = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """The items that best complete a partial bundle for a user.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender

    where = filter_of(exclude, among, tag, min_price, max_price, in_stock)
    user_or_history = who(user, history_items, history_bundles)
    partial = ids(items)
    model = Recommender.load(folder, device=device)
    answers = model.complete(user_or_history, partial, k, where=where, include_owned=include_owned)
    if as_json:
        show.print_json({"user": user, "bundle": partial, "items": [asdict(answer) for answer in answers]})
        return
    describe(model, user_or_history)
    inside = [show.item_name(model.dataset, position) for position in model.shop.item_positions(partial)]
    show.out.print(f"in the bundle: {show.names(inside)}")
    if answers:
        show.out.print(show.item_table(model.dataset, answers, "to complete it"))
    else:
        show.out.print(none_left("item", where))


def filter_of(
    exclude: list[str] | None,
    among: list[str] | None,
    tags: list[str] | None,
    min_price: float | None,
    max_price: float | None,
    in_stock: bool,
) -> Filter | None:
    """The filter of the options; None without conditions, so that data without a catalogue needs none."""
    from bundlemage.core.filters import Filter

    where = Filter(
        exclude=ids(exclude),
        among=None if among is None else ids(among),
        tags=tags or (),
        min_price=min_price,
        max_price=max_price,
        in_stock=in_stock,
    )
    return None if where == Filter() else where


def none_left(kind: str, where: Filter | None) -> str:
    """The sentence for an empty answer."""
    return f"There is no {kind} left for them" + (" that the filters let through." if where else ".")


def who(user: str | None, items: list[str] | None, bundles: list[str] | None) -> User:
    """The user of the options: an id, or a history."""
    from bundlemage.core.history import History

    if user is not None and (items or bundles):
        raise ConfigError("give --user or a history, not both")
    if user is None and items is None and bundles is None:
        raise ConfigError("no user: give --user ID, or --history-items and --history-bundles ('' for none)")
    return user if user is not None else History(ids(items), ids(bundles))


def describe(model: Recommender, user: User) -> None:
    """Print what the user has, so that the answers can be judged."""
    from bundlemage.cli import show

    histories, _ = model.shop.encode([user])
    data = model.dataset
    items = [show.item_name(data, position) for position in histories.items.values.tolist()]
    bundles = [show.bundle_name(data, position) for position in histories.bundles.values.tolist()]
    name = user if isinstance(user, str) else "someone new"
    show.out.print(f"[bold]{show.plain(name)}[/] has {show.counted(items, 'item')}")
    show.out.print(f"and {show.counted(bundles, 'bundle')}")
