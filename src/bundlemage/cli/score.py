"""`bundlemage score-bundle`: the audience of a bundle that does not exist yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bundlemage.cli.options import AsJson, Device, ModelFolder, ids

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bundlemage.wire.design_answers import BundleForecast


def score_bundle(
    folder: ModelFolder,
    items: Annotated[list[str], typer.Option("--items", metavar="ID,ID", help="The items of the bundle.")],
    price: Annotated[
        float | None, typer.Option(help="What it is to cost; the sum of the items' prices if not said.")
    ] = None,
    discount: Annotated[
        float | None, typer.Option(help="Instead of --price: a fraction off, such as 0.2.")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="How many people, and similar bundles.")] = 5,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Who would take a bundle that does not exist yet: how many, which people, and what would make them more.

    The model does not know of prices: a price turns buyers into takings.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender

    found = Recommender.load(folder, device=device).score_bundle(ids(items), price, discount=discount, k=k)
    if as_json:
        show.print_json(found.model_dump(mode="json"))
        return
    show.out.print(_card(found))
    if found.note:
        show.out.print(f"[yellow]note:[/] {show.plain(found.note)}")


def _card(found: BundleForecast) -> RenderableType:
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table

    from bundlemage.cli import show

    lines = [f"• {show.name(item.title, item.id)}{show.amount(item.price)}" for item in found.items]
    parts: list[RenderableType] = [
        Panel("\n".join([*lines, "", *_audience(found)]), title="a new bundle", title_align="left", width=76)
    ]
    people = Table("user", "chance" if found.expected is not None else "score", title="who would take it")
    for person in found.people:
        people.add_row(
            show.plain(person.id), f"{person.score if person.chance is None else person.chance:.2%}"
        )
    near = Table("bundle", "price", "likeness", title="bundles like it")
    for bundle in found.nearest:
        near.add_row(
            show.name(bundle.title, bundle.id), show.amount(bundle.price).strip(), f"{bundle.score:.2f}"
        )
    tables = [table for table, rows in ((people, found.people), (near, found.nearest)) if rows]
    return Group(*parts, Columns(tables))


def _audience(found: BundleForecast) -> list[str]:
    from bundlemage.cli import show

    lines = []
    if found.price is not None:
        off = f"  [green]−{found.discount:.0%}[/]" if found.discount and found.discount > 0 else ""
        lines.append(f"price {found.price:,.2f}{off}")
    if found.expected is not None:
        takings = "" if found.expected_takings is None else f", takings {found.expected_takings:,.2f}"
        lines.append(f"[bold]{found.expected:,.1f}[/] of {found.asked:,} people would take it{takings}")
        lines.append(f"{found.above:,} have a chance above {found.threshold:.1%}")
    if found.weakest is not None:
        without = "" if found.weakest.without is None else f": {found.weakest.without:,.1f} without it"
        lines.append(f"weakest: {show.name(found.weakest.title, found.weakest.id)}{without}")
    if found.replacement is not None:
        better = found.replacement
        with_it = "" if better.expected is None else f": {better.expected:,.1f} with it"
        lines.append(f"better: {show.name(better.title, better.id)}{show.amount(better.price)}{with_it}")
    elif found.weakest is not None:
        lines.append("nothing that was tried does better in its place")
    return lines
