"""`bundlemage recommend` and `bundlemage complete`: questions to a saved model."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from bundlemage.cli.options import AsJson, Device, ModelFolder, ids
from bundlemage.errors import ConfigError

if TYPE_CHECKING:
    from bundlemage.recommender import Recommender
    from bundlemage.shop import User

KnownUser = Annotated[str | None, typer.Option("--user", metavar="ID", help="A user of the training data.")]
HistoryItems = Annotated[
    list[str] | None,
    typer.Option("--history-items", metavar="ID,ID", help="Instead of --user: items that someone has."),
]
HistoryBundles = Annotated[
    list[str] | None,
    typer.Option("--history-bundles", metavar="ID,ID", help="Instead of --user: bundles that someone has."),
]
IncludeOwned = Annotated[bool, typer.Option("--include-owned", help="Do not leave out what the user has.")]


def recommend(
    folder: ModelFolder,
    user: KnownUser = None,
    history_items: HistoryItems = None,
    history_bundles: HistoryBundles = None,
    k: Annotated[int, typer.Option("-k", "--k", help="How many bundles.")] = 5,
    include_owned: IncludeOwned = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """The bundles that fit a user best, of those that the user has not.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender

    model = Recommender.load(folder, device=device)
    someone = _who(user, history_items, history_bundles)
    answers = model.recommend(someone, k, include_owned=include_owned)
    if as_json:
        show.print_json({"user": user, "bundles": [asdict(answer) for answer in answers]})
        return
    _describe(model, someone)
    show.out.print(
        show.bundle_cards(model.dataset, answers) if answers else "There is no bundle left for them."
    )


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
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """The items that best complete a partial bundle for a user.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender

    model = Recommender.load(folder, device=device)
    someone = _who(user, history_items, history_bundles)
    partial = ids(items)
    answers = model.complete(someone, partial, k, include_owned=include_owned)
    if as_json:
        show.print_json({"user": user, "bundle": partial, "items": [asdict(answer) for answer in answers]})
        return
    _describe(model, someone)
    inside = [show.item_name(model.dataset, position) for position in model.shop.item_positions(partial)]
    show.out.print(f"in the bundle: {show.names(inside)}")
    if answers:
        show.out.print(show.item_table(model.dataset, answers, "to complete it"))
    else:
        show.out.print("There is no item left to add.")


def _who(user: str | None, items: list[str] | None, bundles: list[str] | None) -> User:
    from bundlemage.shop import History

    if user is not None and (items or bundles):
        raise ConfigError("give --user or a history, not both")
    if user is None and items is None and bundles is None:
        raise ConfigError("for whom? Give --user ID, or --history-items and --history-bundles ('' for none)")
    return user if user is not None else History(ids(items), ids(bundles))


def _describe(model: Recommender, someone: User) -> None:
    """What the person has, so that the answers can be judged."""
    from bundlemage.cli import show

    histories, _ = model.shop.encode([someone])
    data = model.dataset
    items = [show.item_name(data, position) for position in histories.items.values.tolist()]
    bundles = [show.bundle_name(data, position) for position in histories.bundles.values.tolist()]
    who = someone if isinstance(someone, str) else "someone new"
    show.out.print(f"[bold]{show.plain(who)}[/] has {show.counted(items, 'item')}")
    show.out.print(f"and {show.counted(bundles, 'bundle')}")
