"""`bundlemage design` and `bundlemage explain`: whole bundles under conditions, and reasons."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bundlemage.cli.ask import HistoryBundles, HistoryItems, KnownUser, describe, who
from bundlemage.cli.model_options import FromModel, ModelOptions
from bundlemage.cli.options import AsJson, Device, ModelFolder, ids
from bundlemage.errors import BundleMageError, ConfigError

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.table import Table

    from bundlemage.core.history import User
    from bundlemage.recommender import Recommender
    from bundlemage.wire.design_answers import Design, DesignedItem, Designs, Explanation

WISHES = "What is wished for"
SEARCH = "The search"
OPTIONS = ModelOptions(
    "bundlemage.wire.design",
    "DesignRequest",
    panel="What must hold",
    panels={
        "start": None,
        **dict.fromkeys(("discount", "diversity", "margin", "costs", "n", "apart", "reasons"), WISHES),
        **dict.fromkeys(("method", "seed", "time_limit"), SEARCH),
    },
    names={
        "n": ("-n", "--n"),
        "in_stock": ("--in-stock/--any-stock",),
        "not_owned": ("--not-owned/--include-owned",),
    },
    metavars={"at_least": "TAG=N", "at_most": "TAG=N", "costs": "ID=COST", "one_per": "TAG"},
)
_KINDS = {"item": "has the item", "bundle": "has the bundle", "partial": "in the bundle"}


def design(
    folder: ModelFolder,
    user: KnownUser = None,
    history_items: HistoryItems = None,
    history_bundles: HistoryBundles = None,
    settings: FromModel = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Design whole bundles for a user that keep every condition, each with its price, score and reasons.

    If no bundle is possible, the answer names the conditions that cannot hold together, and changes that
    would make one possible.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender
    from bundlemage.wire.design import DesignRequest

    request = DesignRequest.of(**settings)  # a wrong wish is reported before a model is loaded
    someone = who(user, history_items, history_bundles)
    model = Recommender.load(folder, device=device)
    designs = _designs(model, someone, dict(request))
    if as_json:
        show.print_json({"user": user, **designs.model_dump(mode="json")})
        return
    describe(model, someone)
    for each in designs:
        show.out.print(_card(each))
    if designs.proven:
        show.out.print("No other bundle has a higher value than the first.")
    if not designs.complete:
        show.notes.print("[yellow]note:[/] time ran out; these are the best bundles so far")


def explain(
    folder: ModelFolder,
    user: KnownUser = None,
    history_items: HistoryItems = None,
    history_bundles: HistoryBundles = None,
    bundle: Annotated[
        str | None, typer.Option("--bundle", metavar="ID", help="The bundle to explain.")
    ] = None,
    item: Annotated[
        str | None, typer.Option("--item", metavar="ID", help="Instead of --bundle: the item to explain.")
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Option("--items", metavar="ID,ID", help="With --item: the items of the bundle."),
    ] = None,
    most: Annotated[int, typer.Option("--most", help="Number of reasons that are shown.", min=1)] = 10,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Explain why a bundle fits a user, or an item a bundle: leaves out each thing in turn, and scores again.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender

    if (bundle is None) == (item is None):
        raise ConfigError("what is to be explained? Give --bundle ID, or --item ID with --items ID,ID")
    if items and item is None:
        raise ConfigError("--items are the bundle that --item is added to: give --item as well")
    someone = who(user, history_items, history_bundles)
    model = Recommender.load(folder, device=device)
    explanation = model.explain(someone, bundle=bundle, item=item, items=ids(items))
    if as_json:
        question = {"bundle": bundle} if item is None else {"item": item, "items": ids(items)}
        show.print_json({"user": user, **question, **explanation.model_dump(mode="json")})
        return
    data = model.dataset
    if bundle is not None:
        title = data.bundle_title(data.bundles.position(bundle))
    else:
        title = data.item_title(data.items.position(item or ""))
    show.out.print(show.name(title, bundle or item or ""))
    if (gate := explanation.gate) is not None:
        show.out.print(f"weight of the item history {gate:.0%}, of the bundle history {1 - gate:.0%}")
    if explanation.reasons:
        show.out.print(_reasons(explanation, most))
    show.out.print(show.plain(explanation.words))


def _designs(model: Recommender, someone: User, wishes: dict[str, Any]) -> Designs:
    from bundlemage.wire.design import ImpossibleDesignError

    try:
        return model.design(someone, **wishes)
    except ImpossibleDesignError as error:
        together = "cannot hold together" if len(error.conflict) > 1 else "cannot hold"
        lines = [f"no bundle is possible. What {together}:", *(f"  {rule}" for rule in error.conflict)]
        if error.changes:
            lines += ["It would be possible:", *(f"  {change}" for change in error.changes)]
        raise BundleMageError("\n".join(lines)) from error


# ── How it looks ─────────────────────────────────────────────────────────────────────────────────


def _card(design: Design) -> Panel:
    from rich.panel import Panel

    from bundlemage.cli import show

    lines = [line for item in design.items for line in _item_lines(item)]
    off = f"  [green]−{design.discount:.0%}[/]" if design.discount else ""
    before = f"  [dim][strike]{design.list_price:,.2f}[/][/]" if design.discount and design.list_price else ""
    price = "" if design.price is None else f"[bold]{design.price:,.2f}[/]{off}{before}   "
    body = "\n".join([*lines, "", f"{price}[cyan]{design.score:.2%}[/] [dim]value {design.value:.3f}[/]"])
    known = "" if design.same_as is None else f", as in {show.plain(design.same_as)}"
    title = f"{design.rank}. {len(design.items)} items{known}"
    return Panel(body, title=title, title_align="left", width=100)


def _item_lines(item: DesignedItem) -> list[str]:
    from bundlemage.cli import show

    if item.given:
        return [f"◦ {show.name(item.title, item.id)}{show.amount(item.price)}  [dim]in the bundle already[/]"]
    line = f"• {show.name(item.title, item.id)}{show.amount(item.price)}  [cyan]{item.score:.1%}[/]"
    return [line] if item.why is None else [line, f"  [dim]{show.plain(item.why.words)}[/]"]


def _reasons(explanation: Explanation, most: int) -> Table:
    from rich.table import Table

    from bundlemage.cli import show

    table = Table("reason", "", title="more likely (over 1) or less likely with it", title_justify="left")
    table.add_column("times", justify="right")
    table.add_column("fit without it", justify="right")
    for reason in explanation.reasons[:most]:
        table.add_row(
            show.name(reason.title, reason.id),
            _KINDS[reason.kind],
            f"{exp(reason.effect):.2f}",
            f"{reason.without:.3f}",
        )
    left = len(explanation.reasons) - most
    if left > 0:
        table.caption = f"and {left:,} more"
    return table
