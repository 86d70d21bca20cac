"""`bundlemage design` and `bundlemage explain`: whole bundles under conditions, and reasons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from math import exp
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bundlemage.cli.ask import HistoryBundles, HistoryItems, IncludeOwned, KnownUser, describe, who
from bundlemage.cli.options import AsJson, Device, ModelFolder, ids, key_values
from bundlemage.designer.brief import Brief
from bundlemage.errors import BundleMageError, ConfigError, ImpossibleDesignError

if TYPE_CHECKING:
    from rich.panel import Panel
    from rich.table import Table

    from bundlemage.core.shop import User
    from bundlemage.designer.design import Design, DesignedItem, Designs
    from bundlemage.designer.explain import Explanation
    from bundlemage.recommender import Recommender

RULES = "What must hold"
WISHES = "What is wished for"
SEARCH = "The search"
_KINDS = {"item": "has the item", "bundle": "has the bundle", "partial": "in the bundle"}


def design(
    folder: ModelFolder,
    user: KnownUser = None,
    history_items: HistoryItems = None,
    history_bundles: HistoryBundles = None,
    start: Annotated[
        list[str] | None,
        typer.Option("--start", metavar="ID,ID", help="The items that are in the bundle already."),
    ] = None,
    size: Annotated[
        str,
        typer.Option("--size", metavar="N|N-N", help="How many items in all.", rich_help_panel=RULES),
    ] = f"{Brief.size[0]}-{Brief.size[1]}",
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="MOST|LEAST-MOST",
            help="What it costs after the discount; 20- is at least 20.",
            rich_help_panel=RULES,
        ),
    ] = None,
    must: Annotated[
        list[str] | None,
        typer.Option("--must", metavar="ID,ID", help="Items of every bundle.", rich_help_panel=RULES),
    ] = None,
    forbid: Annotated[
        list[str] | None,
        typer.Option("--forbid", metavar="ID,ID", help="Items of no bundle.", rich_help_panel=RULES),
    ] = None,
    at_least: Annotated[
        list[str] | None,
        typer.Option(
            "--at-least", metavar="TAG=N", help="So many items with a tag. Repeatable.", rich_help_panel=RULES
        ),
    ] = None,
    at_most: Annotated[
        list[str] | None,
        typer.Option(
            "--at-most", metavar="TAG=N", help="No more with a tag. Repeatable.", rich_help_panel=RULES
        ),
    ] = None,
    one_per: Annotated[
        list[str] | None,
        typer.Option(
            "--one-per",
            metavar="TAG",
            help="At most one item with this tag; 'brand:*' is each that begins so. Repeatable.",
            rich_help_panel=RULES,
        ),
    ] = None,
    in_stock: Annotated[
        bool | None,
        typer.Option(
            "--in-stock/--any-stock",
            help="Whether to add only what is in stock; not said: if any stock is known.",
            rich_help_panel=RULES,
        ),
    ] = Brief.in_stock,
    include_owned: IncludeOwned = not Brief.not_owned,
    discount: Annotated[
        float,
        typer.Option(help="A fraction off the items' prices, such as 0.2.", rich_help_panel=WISHES),
    ] = Brief.discount,
    diversity: Annotated[
        float, typer.Option(help="The weight of how different items are.", rich_help_panel=WISHES)
    ] = Brief.diversity,
    margin: Annotated[
        float, typer.Option(help="The weight of what items are sold for.", rich_help_panel=WISHES)
    ] = Brief.margin,
    n: Annotated[int, typer.Option("-n", "--n", help="How many bundles.", rich_help_panel=WISHES)] = Brief.n,
    apart: Annotated[
        float,
        typer.Option(help="The share of chosen items in which any two differ.", rich_help_panel=WISHES),
    ] = Brief.apart,
    method: Annotated[
        str, typer.Option(help="beam, greedy or exact.", rich_help_panel=SEARCH)
    ] = Brief.method,
    seed: Annotated[int, typer.Option(rich_help_panel=SEARCH)] = Brief.seed,
    time_limit: Annotated[
        float,
        typer.Option(help="Seconds, after which the best found is the answer.", rich_help_panel=SEARCH),
    ] = Brief.time_limit,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Whole bundles for a user that keep every condition, each with its price, score and reasons.

    If no bundle can, it is said what cannot hold together, and what would have to change.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    wishes: dict[str, Any] = {
        "start": ids(start),
        "size": _size(size),
        "budget": _budget(budget),
        "must": ids(must),
        "forbid": ids(forbid),
        "tags": {"at least": _counts(at_least, "--at-least"), "at most": _counts(at_most, "--at-most")},
        "one_per": one_per or (),
        "in_stock": in_stock,
        "not_owned": not include_owned,
        "discount": discount,
        "diversity": diversity,
        "margin": margin,
        "n": n,
        "apart": apart,
        "method": method,
        "seed": seed,
        "time_limit": time_limit,
    }
    Brief.of(**wishes)  # a wrong wish is told before a model is loaded
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender

    someone = who(user, history_items, history_bundles)
    model = Recommender.load(folder, device=device)
    found = _designs(model, someone, wishes)
    if as_json:
        show.print_json({"user": user, **_designs_json(found)})
        return
    describe(model, someone)
    for each in found:
        show.out.print(_card(each))
    if found.proven:
        show.out.print("No other bundle has a higher value than the first.")
    if not found.complete:
        show.notes.print("[yellow]note:[/] time ran out; these are the best that were found until then")


def explain(
    folder: ModelFolder,
    user: KnownUser = None,
    history_items: HistoryItems = None,
    history_bundles: HistoryBundles = None,
    bundle: Annotated[str | None, typer.Option("--bundle", metavar="ID", help="Why this bundle.")] = None,
    item: Annotated[
        str | None, typer.Option("--item", metavar="ID", help="Instead of --bundle: why this item.")
    ] = None,
    items: Annotated[
        list[str] | None,
        typer.Option("--items", metavar="ID,ID", help="With --item: what is in the bundle already."),
    ] = None,
    most: Annotated[int, typer.Option("--most", help="How many reasons are shown.", min=1)] = 10,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Why a bundle is for a user, or an item for a bundle: each thing is left out in turn.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender

    if (bundle is None) == (item is None):
        raise ConfigError("why what? Give --bundle ID, or --item ID and what it is added to as --items ID,ID")
    if items and item is None:
        raise ConfigError("--items is what an --item is added to: give it with one")
    someone = who(user, history_items, history_bundles)
    model = Recommender.load(folder, device=device)
    found = model.explain(someone, bundle=bundle, item=item, items=ids(items))
    if as_json:
        asked = {"bundle": bundle} if item is None else {"item": item, "items": ids(items)}
        show.print_json({"user": user, **asked, **_why_json(found)})
        return
    data = model.dataset
    if bundle is not None:
        title = data.bundle_title(data.bundles.position(bundle))
    else:
        title = data.item_title(data.items.position(item or ""))
    show.out.print(show.name(title, bundle or item or ""))
    if found.gate is not None:
        show.out.print(f"item history speaks for {found.gate:.0%}, bundle history for {1 - found.gate:.0%}")
    if found.reasons:
        show.out.print(_reasons(found, most))
    show.out.print(show.plain(found.words()))


# ── What is written on the command line ──────────────────────────────────────────────────────────


def _size(text: str) -> tuple[int, int]:
    least, dash, most = text.partition("-")
    try:
        return int(least), int(most if dash else least)
    except ValueError:
        raise ConfigError(f"--size {text!r}: write it as 4, or as 3-5") from None


def _budget(text: str | None) -> tuple[float | None, float | None] | None:
    if text is None:
        return None
    least, dash, most = text.partition("-")
    try:
        if not dash:
            return None, float(least)
        return float(least) if least else None, float(most) if most else None
    except ValueError:
        raise ConfigError(f"--budget {text!r}: write it as 40, as 20-40, or as 20-") from None


def _counts(pairs: Sequence[str] | None, option: str) -> dict[str, int]:
    found = {}
    for tag, text in key_values(pairs, option).items():
        if not text.isdecimal():
            raise ConfigError(f"{option} '{tag}={text}': after the tag comes a whole number, as in TAG=2")
        found[tag] = int(text)
    return found


def _designs(model: Recommender, someone: User, wishes: dict[str, Any]) -> Designs:
    try:
        return model.design(someone, **wishes)
    except ImpossibleDesignError as error:
        together = "cannot hold together" if len(error.conflict) > 1 else "cannot hold"
        lines = [f"no bundle is possible. What {together}:", *(f"  {rule}" for rule in error.conflict)]
        if error.changes:
            lines += ["It would be possible:", *(f"  {change}" for change in error.changes)]
        raise BundleMageError("\n".join(lines)) from error


# ── How it looks ─────────────────────────────────────────────────────────────────────────────────


def _card(found: Design) -> Panel:
    from rich.panel import Panel

    from bundlemage.cli import show

    lines = [line for item in found.items for line in _item_lines(item)]
    off = f"  [green]−{found.discount:.0%}[/]" if found.discount else ""
    before = f"  [dim][strike]{found.list_price:,.2f}[/][/]" if found.discount and found.list_price else ""
    price = "" if found.price is None else f"[bold]{found.price:,.2f}[/]{off}{before}   "
    body = "\n".join([*lines, "", f"{price}[cyan]{found.score:.2%}[/] [dim]value {found.value:.3f}[/]"])
    known = "" if found.same_as is None else f", as in {show.plain(found.same_as)}"
    return Panel(body, title=f"{found.rank}. {len(found.items)} items{known}", title_align="left", width=100)


def _item_lines(item: DesignedItem) -> list[str]:
    from bundlemage.cli import show

    if item.given:
        return [f"◦ {show.name(item.title, item.id)}{show.amount(item.price)}  [dim]there already[/]"]
    line = f"• {show.name(item.title, item.id)}{show.amount(item.price)}  [cyan]{item.score:.1%}[/]"
    return [line] if item.why is None else [line, f"  [dim]{show.plain(item.why.words())}[/]"]


def _reasons(found: Explanation, most: int) -> Table:
    from rich.table import Table

    from bundlemage.cli import show

    table = Table("reason", "", title="what makes it likelier (over 1), or less so", title_justify="left")
    table.add_column("times", justify="right")
    table.add_column("fit without it", justify="right")
    for reason in found.reasons[:most]:
        table.add_row(
            show.name(reason.title, reason.id),
            _KINDS[reason.kind],
            f"{exp(reason.effect):.2f}",
            f"{reason.without:.3f}",
        )
    left = len(found.reasons) - most
    if left > 0:
        table.caption = f"and {left:,} more"
    return table


def _why_json(found: Explanation) -> dict[str, Any]:
    return {**asdict(found), "words": found.words()}


def _designs_json(found: Designs) -> dict[str, Any]:
    told = asdict(found)
    for bundle, designed in zip(told["bundles"], found, strict=True):
        for item, told_item in zip(designed.items, bundle["items"], strict=True):
            if item.why is not None:
                told_item["why"] = _why_json(item.why)
    return told
