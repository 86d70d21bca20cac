"""`bundlemage design`, `explain` and `score-bundle`: new bundles, reasons, and forecasts."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import count
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from bundlemage.cli import show
from bundlemage.cli.ask import describe, known_id, note_unknown, user_in_data
from bundlemage.cli.commands import FromModel
from bundlemage.cli.options import AsJson, Count, Device, ModelFolder, UserIfGiven, UserOptions, check_user
from bundlemage.cli.texts import ids, lines_of
from bundlemage.errors import ConfigError
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from bundlemage.recommender import Recommender
    from bundlemage.wire.design import DesignRequest
    from bundlemage.wire.design_answers import BundleForecast, Design, Designs, Explanation

REQUEST = FromModel(
    "bundlemage.wire.design.DesignRequest",
    panel="Conditions",
    panels={
        "start": None,
        **dict.fromkeys(("discount", "diversity", "margin", "costs", "n", "apart", "reasons"), "Preferences"),
        **dict.fromkeys(("method", "seed", "time_limit"), "The search"),
    },
    names={
        "n": ("-n", "--n"),
        "in_stock": ("--in-stock/--any-stock",),
        "not_owned": ("--not-owned/--include-owned",),
    },
    metavars={"at_least": "TAG=N", "at_most": "TAG=N", "costs": "ID=COST", "one_per": "TAG"},
)
MOST_SHOWN = 20
"""The number of bundles for each user that are printed."""
_KINDS = {"item": "has the item", "bundle": "has the bundle", "partial": "in the bundle"}


def design(
    folder: ModelFolder,
    user: UserIfGiven,
    settings: Annotated[dict[str, Any], REQUEST],
    users: Path | None = None,
    everyone: bool = False,
    each: bool = False,
    output: Path | None = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Design whole bundles for a user. Each meets all conditions and has a price, a score and reasons.

    With --users or --everyone, the bundles are for these users together: those that most of them would buy.
    With --each in addition, each user has a bundle of their own. Equal ones are listed once.

    If no bundle meets all conditions, the answer names the conditions that conflict, and changes that would
    allow a bundle.

    If an id contains a comma, write it in double quotes inside the list: '"Tea, green",7'.

    Options:
        --users FILE: For the users of this text file, which has one id per line.
        --everyone: For all users of the training data.
        --each: With --users or --everyone: the best bundle for each user.
        -o, --output FILE: With --each: a new CSV file with the columns bundle_id and item_id.
    """
    from bundlemage.recommender import Recommender
    from bundlemage.wire.design import DesignRequest

    request = DesignRequest.of(**settings)  # an invalid request is reported before the model is loaded
    if [user is None, users is None, not everyone].count(False) > 1:
        raise ConfigError("give one of these: a user, --users FILE or --everyone")
    several = None if users is None else lines_of(users)
    if users is None and not everyone:
        check_user(user, ", or --users FILE, or --everyone")
    if (each and user is not None) or (output is not None and not each):
        raise ConfigError("--each needs --users FILE or --everyone, and --output needs --each")
    if output is not None and output.exists():
        raise ConfigError(f"--output {output}: this file exists already; give the name of a new one")
    model = Recommender.load(folder, device=device)
    if each:
        _design_each(model, several, request, output, as_json)
        return
    if user is None:
        designs = model.design_many(several, request)
        if as_json:
            show.print_json({"users": several, **designs.model_dump(mode="json")})
            return
        count = len(model.dataset.users) if several is None else len(several)
        show.out.print(f"bundles for {count:,} users together")
        _print(designs)
        return
    asked = user_in_data(model, user)
    note_unknown(model, user, asked)
    designs = model.design(asked, request)
    if as_json:
        show.print_json({"user": known_id(user), **designs.model_dump(mode="json")})
        return
    describe(model, asked, known_id(user))
    _print(designs)


def _print(designs: Designs) -> None:
    for each in designs:
        show.out.print(_card(each))
    if (better := designs.better_existing) is not None:
        rank = "" if better.expected_rank is None else f", rank {better.expected_rank:,}"
        name = show.name(better.title, better.id) + show.amount(better.price)
        show.out.print(f"The shop already has a better bundle: {name}{rank}")
    if designs.note:
        show.notes.print(f"[yellow]note:[/] {show.plain(designs.note)}")
    if designs.proven:
        show.out.print("No other bundle has a higher value than the first.")
    if not designs.complete:
        show.notes.print("[yellow]note:[/] time ran out; these are the best bundles so far")


def _design_each(
    model: Recommender,
    users: Sequence[str] | None,
    request: DesignRequest,
    output: Path | None,
    as_json: bool,
) -> None:
    with Shown(show.notes, "designs") as progress:
        found = model.design_each(users, request, progress=progress)
    if output is not None:
        names = (f"design-{number}" for number in count(1))
        free = (name for name in names if name not in model.dataset.bundles)
        rows = [(name, item) for (bundle, _), name in zip(found, free, strict=False) for item in bundle.ids]
        with output.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["bundle_id", "item_id"])
            writer.writerows(rows)
    if as_json:
        show.print_json(
            {"bundles": [{"items": bundle.ids, "price": bundle.price, "users": who} for bundle, who in found]}
        )
        return
    table = show.table("the best bundle for each user", "bundle", ">price", ">users")
    for bundle, who in found[:MOST_SHOWN]:
        titles = ", ".join(item.title or item.id for item in bundle.items)
        table.add_row(show.plain(titles), show.amount(bundle.price).strip(), f"{len(who):,}")
    if len(found) > MOST_SHOWN:
        table.caption = f"and {len(found) - MOST_SHOWN:,} more"
    show.out.print(table)
    asked = sum(len(who) for _, who in found)
    show.out.print(f"{len(found):,} different bundles for {asked:,} users")
    if output is not None:
        show.out.print(f"written to {show.plain(output)}")


def explain(
    folder: ModelFolder,
    user: UserOptions,
    bundle: str | None = None,
    item: str | None = None,
    items: list[str] | None = None,
    most: Count = 10,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Explain why a bundle fits a user, or why an item fits a bundle.

    For this, the score is computed again without each of the user's items and bundles in turn.

    If an id contains a comma, write it in double quotes inside the list: '"Tea, green",7'.

    Options:
        --bundle ID: The bundle to explain.
        --item ID: Instead of --bundle: the item to explain.
        --items ID,ID: With --item: the items of the bundle.
        --most N: Maximum number of reasons to show.
    """
    from bundlemage.recommender import Recommender

    if (bundle is None) == (item is None):
        raise ConfigError("nothing to explain: give either --bundle ID, or --item ID with --items ID,ID")
    if items and item is None:
        raise ConfigError("--items lists the bundle that --item is added to: give --item as well")
    model = Recommender.load(folder, device=device)
    asked = user_in_data(model, user)
    note_unknown(model, user, asked)
    explanation = model.explain(asked, bundle=bundle, item=item, items=ids(items))
    if as_json:
        question = {"bundle": bundle} if item is None else {"item": item, "items": ids(items)}
        show.print_json({"user": known_id(user), **question, **explanation.model_dump(mode="json")})
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


def score_bundle(
    folder: ModelFolder,
    items: list[str],
    price: float | None = None,
    discount: float | None = None,
    k: int = 5,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Forecast which users, and how many, would take a bundle that does not exist yet. Suggest a better item.

    The model ignores prices: a price only turns the number of buyers into takings.

    If an id contains a comma, write it in double quotes inside the list: '"Tea, green",7'.

    Options:
        --items ID,ID: The items of the bundle.
        --price: Price of the bundle. Default: the sum of the items' prices.
        --discount: Instead of --price: a fraction off, such as 0.2.
        -k, --k: Number of users to list, and of similar bundles.
    """
    from bundlemage.recommender import Recommender

    forecast = Recommender.load(folder, device=device).score_bundle(ids(items), price, discount=discount, k=k)
    if as_json:
        show.print_json(forecast.model_dump(mode="json"))
        return
    show.out.print(_forecast_card(forecast))
    if forecast.note:
        show.out.print(f"[yellow]note:[/] {show.plain(forecast.note)}")


# ── Output ──────────────────────────────────────────────────────────────────────────────────────


def _card(design: Design) -> Panel:
    lines = []
    for item in design.items:
        note = "[dim]in the bundle already[/]" if item.given else f"[cyan]{item.score:.1%}[/]"
        name = show.name(item.title, item.id) + show.amount(item.price)
        lines.append(f"{'◦' if item.given else '•'} {name}  {note}")
        if item.why is not None:
            lines.append(f"  [dim]{show.plain(item.why.words)}[/]")
    off = f"  [green]−{design.discount:.0%}[/]" if design.discount else ""
    before = f"  [dim][strike]{design.list_price:,.2f}[/][/]" if design.discount and design.list_price else ""
    price = "" if design.price is None else f"[bold]{design.price:,.2f}[/]{off}{before}   "
    last = [f"{price}[cyan]{design.score:.2%}[/] [dim]value {design.value:.3f}[/]"]
    if design.expected_rank is not None:
        last.append(f"rank {design.expected_rank:,} among all bundles for this user")
    if design.expected_buyers is not None:
        last.append(
            f"about {design.expected_buyers:,.1f} users would buy it ({design.low:,} to {design.high:,})"
        )
    body = "\n".join([*lines, "", *last])
    known = "" if design.same_as is None else f", as in {show.plain(design.same_as)}"
    title = f"{design.rank}. {len(design.items)} items{known}"
    return Panel(body, title=title, title_align="left", width=100)


def _reasons(explanation: Explanation, most: int) -> Table:
    title = "each reason, and how many times as likely it makes the answer"
    table = show.table(title, "reason", "", ">times", ">fit without it")
    for reason in explanation.reasons[:most]:
        name, times = show.name(reason.title, reason.id), exp(reason.effect)
        table.add_row(name, _KINDS[reason.kind], f"{times:.2f}", f"{reason.without:.3f}")
    left = len(explanation.reasons) - most
    if left > 0:
        table.caption = f"and {left:,} more"
    return table


def _forecast_card(forecast: BundleForecast) -> RenderableType:
    lines = [f"• {show.name(item.title, item.id)}{show.amount(item.price)}" for item in forecast.items]
    body = "\n".join([*lines, "", *_audience(forecast)])
    score = "chance" if forecast.expected is not None else "score"
    buyers = Table("user", score, title="most likely buyers")
    for user in forecast.people:
        chance = user.score if user.chance is None else user.chance
        buyers.add_row(show.plain(user.id), f"{chance:.2%}")
    near = Table("bundle", "price", "similarity", title="similar bundles")
    for bundle in forecast.nearest:
        price = show.amount(bundle.price).strip()
        near.add_row(show.name(bundle.title, bundle.id), price, f"{bundle.score:.2f}")
    panel = Panel(body, title="a new bundle", title_align="left", width=76)
    return Group(panel, Columns([table for table in (buyers, near) if table.row_count]))


def _audience(forecast: BundleForecast) -> list[str]:
    lines = []
    if forecast.price is not None:
        off = f"  [green]−{forecast.discount:.0%}[/]" if forecast.discount and forecast.discount > 0 else ""
        lines.append(f"price {forecast.price:,.2f}{off}")
    if forecast.expected is not None:
        takings = "" if forecast.expected_takings is None else f", takings {forecast.expected_takings:,.2f}"
        lines.append(
            f"about [bold]{forecast.expected:,.1f}[/] of {forecast.asked:,} users would buy it "
            f"({forecast.low:,} to {forecast.high:,}){takings}"
        )
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
