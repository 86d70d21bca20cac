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
        float | None, typer.Option(help="Price of the bundle. If left out: the sum of the items' prices.")
    ] = None,
    discount: Annotated[
        float | None, typer.Option(help="Instead of --price: a fraction off, such as 0.2.")
    ] = None,
    k: Annotated[int, typer.Option("-k", "--k", help="Number of users, and of similar bundles.")] = 5,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Forecast the audience of a bundle that does not exist yet: how many users, which, and improvements.

    The model ignores prices: a price only turns the number of buyers into takings.

    An id with a comma in it is written in double quotes inside the list: '"Tea, green",7'.
    """
    from bundlemage.cli import show
    from bundlemage.recommender import Recommender

    forecast = Recommender.load(folder, device=device).score_bundle(ids(items), price, discount=discount, k=k)
    if as_json:
        show.print_json(forecast.model_dump(mode="json"))
        return
    show.out.print(_card(forecast))
    if forecast.note:
        show.out.print(f"[yellow]note:[/] {show.plain(forecast.note)}")


def _card(forecast: BundleForecast) -> RenderableType:
    from rich.columns import Columns
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table

    from bundlemage.cli import show

    lines = [f"• {show.name(item.title, item.id)}{show.amount(item.price)}" for item in forecast.items]
    body = "\n".join([*lines, "", *_audience(forecast)])
    parts: list[RenderableType] = [Panel(body, title="a new bundle", title_align="left", width=76)]
    people = Table("user", "chance" if forecast.expected is not None else "score", title="who would take it")
    for person in forecast.people:
        people.add_row(
            show.plain(person.id), f"{person.score if person.chance is None else person.chance:.2%}"
        )
    near = Table("bundle", "price", "likeness", title="bundles like it")
    for bundle in forecast.nearest:
        near.add_row(
            show.name(bundle.title, bundle.id), show.amount(bundle.price).strip(), f"{bundle.score:.2f}"
        )
    tables = [table for table, rows in ((people, forecast.people), (near, forecast.nearest)) if rows]
    return Group(*parts, Columns(tables))


def _audience(forecast: BundleForecast) -> list[str]:
    from bundlemage.cli import show

    lines = []
    if forecast.price is not None:
        off = f"  [green]−{forecast.discount:.0%}[/]" if forecast.discount and forecast.discount > 0 else ""
        lines.append(f"price {forecast.price:,.2f}{off}")
    if forecast.expected is not None:
        takings = "" if forecast.expected_takings is None else f", takings {forecast.expected_takings:,.2f}"
        lines.append(f"[bold]{forecast.expected:,.1f}[/] of {forecast.asked:,} users would take it{takings}")
        lines.append(f"{forecast.above:,} have a chance above {forecast.threshold:.1%}")
    if forecast.weakest is not None:
        without = "" if forecast.weakest.without is None else f": {forecast.weakest.without:,.1f} without it"
        lines.append(f"weakest: {show.name(forecast.weakest.title, forecast.weakest.id)}{without}")
    if forecast.replacement is not None:
        better = forecast.replacement
        with_it = "" if better.expected is None else f": {better.expected:,.1f} with it"
        lines.append(f"better: {show.name(better.title, better.id)}{show.amount(better.price)}{with_it}")
    elif forecast.weakest is not None:
        lines.append("no replacement that was tried does better")
    return lines
