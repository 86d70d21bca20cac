"""`bundlemage design`, `explain` and `score-bundle`: new bundles, reasons, and forecasts."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import count
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table

from bundlemage.cli import show
from bundlemage.cli.ask import describe, known_id, note_unknown, user_in_data
from bundlemage.cli.commands import FromModel
from bundlemage.cli.options import (
    AsJson,
    Count,
    Device,
    ModelFolder,
    OptionalCount,
    Overwrite,
    SegmentOptions,
    UserIfGiven,
    UserOptions,
    check_user,
)
from bundlemage.cli.texts import ids, placed, plural
from bundlemage.errors import ConfigError
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from bundlemage.core.segments import Segment
    from bundlemage.recommender import Recommender
    from bundlemage.wire.design import DesignRequest
    from bundlemage.wire.design_answers import BundleForecast, Design, Designs, Details
    from bundlemage.wire.shop import ShopSettings

REQUEST = FromModel(
    "bundlemage.wire.design.DesignRequest",
    panel="Conditions",
    panels={
        "start": None,
        **dict.fromkeys(("discount", "diversity", "margin", "costs", "n", "apart"), "Preferences"),
        **dict.fromkeys(("reasons", "language", "to"), "Reasons"),
        **dict.fromkeys(("method", "seed", "time_limit"), "The search"),
    },
    names={
        "n": ("-n", "--n"),
        "in_stock": ("--in-stock/--any-stock",),
        "not_owned": ("--not-owned/--include-owned",),
    },
    metavars={"at_least": "TAG=N", "at_most": "TAG=N", "costs": "ID=COST", "one_per": "TAG"},
)
BuyersFile = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the ids and chances of the likeliest buyers to this .csv, .parquet or .jsonl file.",
    ),
]
MOST_SHOWN = 20
"""The number of bundles for each user that are printed."""
_KINDS = {"item": "has the item", "bundle": "has the bundle", "partial": "in the bundle"}


def design(
    folder: ModelFolder,
    user: UserIfGiven,
    settings: Annotated[dict[str, Any], REQUEST],
    segment: SegmentOptions = None,
    everyone: bool = False,
    each: bool = False,
    output: Path | None = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Design whole bundles for a user. Each meets all conditions and has a price, a score and reasons.

    With --users, --tag or other options of a segment, or with --everyone, the bundles are for these users
    together: those with the highest mean probability. With --each in addition, every user gets an own bundle;
    equal bundles are listed once.

    If no bundle meets all conditions, the answer names the conditions that conflict, and changes that would
    allow a bundle.

    If an id contains a comma, write it in double quotes inside the list: '"Tea, green",7'.

    Options:
        --everyone: For all users of the training data.
        --each: With several users: the best bundle for each.
        -o, --output FILE: With several users: a new CSV file with the columns bundle_id, item_id and price,
            for campaign --new-bundles.
    """
    from bundlemage.recommender import Recommender
    from bundlemage.wire.design import DesignRequest

    request = DesignRequest.of(**settings)  # an invalid request is reported before the model is loaded
    if [user is None, segment is None, not everyone].count(False) > 1:
        raise ConfigError("give only one of these: --user, --users or --tag and the like, --everyone")
    if segment is None and not everyone:
        check_user(user, ", or --users FILE, or another segment, or --everyone")
    if user is not None and (each or output is not None):
        option = "--each" if each else "--output"
        raise ConfigError(
            f"{option} needs several users: give --users FILE, --tag TAG or --everyone instead of --user"
        )
    if output is not None and output.exists():
        raise ConfigError(f"--output {output}: this file exists already; give the name of a new one")
    model = Recommender.load(folder, device=device)
    if user is None:
        several = list(model.dataset.users.ids) if segment is None else _users_of(model, segment.where)
        with placed(None if segment is None else segment.file):
            if each:
                _design_each(model, several, request, output, as_json)
                return
            designs = model.design_many(several, request)
        if output is not None:
            written = _write(list(designs), model, output)
        if as_json:
            show.print_json({"users": len(several), **designs.model_dump(mode="json")})
            return
        show.out.print(f"bundles for {plural(len(several), 'user')} together")
        _print(
            designs, model.shop_settings, f"these {len(several):,} users" if len(several) > 1 else "1 user"
        )
        if output is not None:
            show.out.print(written)
        return
    asked = user_in_data(model, user)
    note_unknown(model, user, asked)
    designs = model.design(asked, request)
    if as_json:
        show.print_json({"user": known_id(user), **designs.model_dump(mode="json")})
        return
    describe(model, asked, known_id(user))
    _print(designs, model.shop_settings)


def _users_of(model: Recommender, segment: Segment) -> list[str]:
    """The users of a segment. If it is only a list, an unknown id is an error."""
    if segment.users is not None and segment == type(segment)(users=segment.users):
        return sorted(map(str, segment.users))
    return model.users_in(segment)


def _print(designs: Designs, shop: ShopSettings, users: str = "the shop's users") -> None:
    """`users` are those who are asked whether they would buy."""
    for each in designs:
        show.out.print(_card(each, shop, users))
    if (better := designs.better_existing) is not None:
        rank = "" if better.expected_rank is None else f", rank {better.expected_rank:,}"
        name = show.name(better.title, better.id) + show.amount(better.price, shop)
        show.out.print(f"The shop already has a bundle that suits better: {name}{rank}")
    if designs.note:
        show.notes.print(f"[yellow]note:[/] {show.plain(designs.note)}")
    if designs.proven:
        show.out.print("No other bundle has a higher value than the first.")
    if not designs.complete:
        show.notes.print("[yellow]note:[/] time ran out; these are the best bundles so far")


def _write(designs: Sequence[Design], model: Recommender, output: Path) -> str:
    """Writes the designs that the shop does not have yet as a file for `campaign --new-bundles`, under ids
    that no bundle of the shop has. Returns what to print."""
    new = [design for design in designs if design.same_as is None]
    names = (f"design-{number}" for number in count(1))
    free = (name for name in names if name not in model.dataset.bundles)
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["bundle_id", "item_id", "price"])
        for bundle, name in zip(new, free, strict=False):
            writer.writerows((name, item, bundle.price) for item in bundle.ids)
    known = len(designs) - len(new)
    left_out = f", without {known:,} that the shop already has" if known else ""
    return f"written to {show.plain(output)}{left_out}"


def _design_each(
    model: Recommender,
    users: Sequence[str],
    request: DesignRequest,
    output: Path | None,
    as_json: bool,
) -> None:
    with Shown(show.notes, "designs") as progress:
        found = model.design_each(users, request, progress=progress)
    if output is not None:
        written = _write([bundle for bundle, _ in found], model, output)
    if as_json:
        listed = [
            {"items": bundle.ids, "price": bundle.price, "same_as": bundle.same_as, "users": who}
            for bundle, who in found
        ]
        show.print_json({"bundles": listed})
        return
    table = show.table("the best bundle for each user", "bundle", ">price", ">users")
    for bundle, who in found[:MOST_SHOWN]:
        titles = ", ".join(item.title or item.id for item in bundle.items)
        titles += f" (as in {bundle.same_as})" if bundle.same_as is not None else ""
        table.add_row(
            show.plain(titles), show.amount(bundle.price, model.shop_settings).strip(), f"{len(who):,}"
        )
    if len(found) > MOST_SHOWN:
        table.caption = f"and {len(found) - MOST_SHOWN:,} more"
    show.out.print(table)
    asked = sum(len(who) for _, who in found)
    bundles = "1 bundle" if len(found) == 1 else f"{len(found):,} different bundles"
    show.out.print(f"{bundles} for {plural(asked, 'user')}")
    if asked < len(users):
        show.notes.print(f"[yellow]note:[/] for {plural(len(users) - asked, 'user')} no bundle is possible")
    if output is not None:
        show.out.print(written)


def explain(
    folder: ModelFolder,
    user: UserOptions,
    bundle: str | None = None,
    item: str | None = None,
    items: list[str] | None = None,
    language: str | None = None,
    to: Literal["customer", "shop"] = "customer",
    details: bool = False,
    most: Count = 10,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Explain in a sentence why a bundle fits a user, or why an item fits a bundle.

    With --details, the score is shown without each of the user's items and bundles in turn.

    If an id contains a comma, write it in double quotes inside the list: '"Tea, green",7'.

    Options:
        --bundle ID: The bundle to explain.
        --item ID: Instead of --bundle: the item to explain.
        --items ID,ID: With --item: the items of the bundle.
        --language LANGUAGE: Language of the sentence, such as de. The default is that of the shop's locale.
        --to AUDIENCE: Who reads the sentence: customer ("you have") or shop ("the customer has").
        --details: Show the numbers behind the sentence, too.
        --most N: With --details: maximum number of effects to show.
    """
    from bundlemage.recommender import Recommender

    if (bundle is None) == (item is None):
        raise ConfigError("nothing to explain: give either --bundle ID, or --item ID with --items ID,ID")
    if items and item is None:
        raise ConfigError("--items lists the bundle that --item is added to: give --item as well")
    model = Recommender.load(folder, device=device)
    asked = user_in_data(model, user)
    note_unknown(model, user, asked)
    explanation = model.explain(asked, bundle=bundle, item=item, items=ids(items), language=language, to=to)
    if as_json:
        explanation = explanation if details else explanation.shortened(0)
        question = {"bundle": bundle} if item is None else {"item": item, "items": ids(items)}
        show.print_json({"user": known_id(user), **question, **explanation.model_dump(mode="json")})
        return
    data = model.dataset
    if bundle is not None:
        title = data.bundle_title(data.bundles.position(bundle))
    else:
        title = data.item_title(data.items.position(item or ""))
    show.out.print(show.name(title, bundle or item or ""))
    nothing = "No single item, bundle or tag explains this choice, so there is no sentence for the customer."
    show.say(show.plain(explanation.words or nothing))
    if details and (numbers := explanation.details) is not None:
        has_history = any(reason.kind != "partial" for reason in numbers.reasons)
        if (gate := numbers.gate) is not None and has_history:
            show.out.print(f"weight of the item history {gate:.0%}, of the bundle history {1 - gate:.0%}")
        if numbers.reasons:
            show.out.print(_effects(numbers, most, "bundle" if item is None else "item"))


def score_bundle(
    folder: ModelFolder,
    items: list[str],
    price: float | None = None,
    discount: float | None = None,
    k: int = 5,
    sample: OptionalCount = None,
    segment: SegmentOptions = None,
    output: BuyersFile = None,
    least_chance: float | None = None,
    overwrite: Overwrite = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Forecast which users, and how many, would take a bundle that does not exist yet. Suggest a better item.

    The model ignores prices: a price only turns the number of buyers into takings.

    If an id contains a comma, write it in double quotes inside the list: '"Tea, green",7'.

    Options:
        --items ID,ID: The items of the bundle.
        --price: Price of the bundle. Default: the sum of the items' prices.
        --discount: Instead of --price: the discount on the sum of the items' prices, such as 0.2 for 20%.
        -k, --k: Number of users to list, and of similar bundles.
        --sample N: Estimate from N users, drawn at random. In a large shop this takes much less time.
        --least-chance: With --output: write the users with at least this chance. Default: the users above
            the forecast's threshold.
    """
    from bundlemage.campaigns.audience import BUYERS
    from bundlemage.data.row_files import check_replaceable, write_rows
    from bundlemage.progress import stderr_display
    from bundlemage.recommender import Recommender

    if output is not None:
        if sample is not None:
            raise ConfigError("--output lists users of the whole shop, so it cannot use a --sample")
        check_replaceable(output, BUYERS, overwrite=overwrite)
    elif least_chance is not None:
        raise ConfigError("--least-chance says whom --output lists: give --output as well")
    model, names = Recommender.load(folder, device=device), ids(items)
    among = None if segment is None else segment.where
    with stderr_display() as progress:
        forecast = model.score_bundle(
            names, price, discount=discount, k=k, among=among, sample=sample, progress=progress
        )
        if output is not None:
            table = model.buyers(names, among=among, least_chance=least_chance, progress=progress)
            rows = plural(write_rows(table.to_batches(), BUYERS, output), "user")
            least = (
                f"above {forecast.threshold:.1%}"
                if least_chance is None
                else f"of at least {least_chance:.1%}"
            )
            are = "is" if rows == "1 user" else "are"
            show.notes.print(f"{rows} with a chance {least} {are} in {show.plain(str(output))}")
    if as_json:
        show.print_json(forecast.model_dump(mode="json"))
        return
    show.out.print(_forecast_card(forecast, model.shop_settings))
    if forecast.note:
        show.out.print(f"[yellow]note:[/] {show.plain(forecast.note)}")


# ── Output ──────────────────────────────────────────────────────────────────────────────────────


def _card(design: Design, shop: ShopSettings, users: str) -> Panel:
    lines = []
    for item in design.items:
        note = "[dim]in the bundle already[/]" if item.given else f"[cyan]{item.score:.1%}[/]"
        name = show.name(item.title, item.id) + show.amount(item.price, shop)
        name += " [yellow]owned[/]" * bool(item.owned) + " [red]sold out[/]" * item.sold_out
        lines.append(f"{'◦' if item.given else '•'} {name}  {note}")
        if item.why is not None and item.why.words:
            lines.append(f"  [dim]{show.plain(item.why.words)}[/]")
    off = f"  [green]−{design.discount:.0%}[/]" if design.discount else ""
    before = ""
    if design.discount and design.list_price:
        before = f"  [dim][strike]{show.money(design.list_price, shop)}[/][/]"
    last = []
    if design.price is not None:
        last.append(f"[bold]{show.money(design.price, shop)}[/]{off}{before}")
    elif any(item.price is not None for item in design.items):
        unknown = next(item for item in design.items if item.price is None)
        last.append(f"the price is not known, because {show.name(unknown.title, unknown.id)} has none")
    if design.to_pay is not None and design.to_pay != design.price:
        last.append(f"[yellow]the user pays {show.money(design.to_pay, shop)}[/]")
    if design.expected_rank is not None:
        last.append(f"rank {design.expected_rank:,} among all bundles for this user")
    if design.expected_buyers is not None:
        last.append(_would_buy(design.expected_buyers, design.low, design.high, users))
    body = "\n".join([*lines, *([""] if last else []), *last])
    known = "" if design.same_as is None else f", as in {show.plain(design.same_as)}"
    title = f"{design.rank}. {len(design.items)} items{known}"
    return Panel(body, title=title, title_align="left", width=100)


def _effects(numbers: Details, most: int, kind: str) -> Table:
    title = "how many times as likely each item and bundle makes the answer"
    table = show.table(title, "because of", "what it is", ">times", ">score without it")
    for reason in numbers.reasons[:most]:
        name, times = show.name(reason.title, reason.id), exp(reason.effect)
        table.add_row(name, _KINDS[reason.kind], f"{times:.2f}", f"{reason.without:.3f}")
    left = len(numbers.reasons) - most
    more = f"and {left:,} more; " if left > 0 else ""
    table.caption = f"{more}a score of 0 is an average {kind}"
    return table


def _forecast_card(forecast: BundleForecast, shop: ShopSettings) -> RenderableType:
    lines = [f"• {show.name(item.title, item.id)}{show.amount(item.price, shop)}" for item in forecast.items]
    body = "\n".join([*lines, "", *_audience(forecast, shop)])
    score = "chance" if forecast.expected is not None else "score"
    whom = f" of the {plural(forecast.asked, 'sampled user')}" if forecast.sampled else ""
    buyers = Table("user", score, title=f"most likely buyers{whom}")
    for user in forecast.people:
        chance = user.score if user.chance is None else user.chance
        buyers.add_row(show.plain(user.id), f"{chance:.2%}")
    near = Table("bundle", "price", "similarity", title="similar bundles")
    for bundle in forecast.nearest:
        price = show.amount(bundle.price, shop).strip()
        near.add_row(show.name(bundle.title, bundle.id), price, f"{bundle.score:.2f}")
    panel = Panel(body, title="a new bundle", title_align="left", width=76)
    return Group(panel, Columns([table for table in (buyers, near) if table.row_count]))


def _buyers(number: float) -> str:
    """An expected number of buyers. A small one has more digits: .04 buyers are not none."""
    return f"{number:,.1f}" if number >= 1 or number == 0 else f"{number:.2g}"


def _would_buy(expected: float, low: int | None, high: int | None, users: str) -> str:
    """How many of the users would buy a bundle. Below a half, it is more likely that nobody buys it."""
    if expected < 0.5 and users == "1 user":
        return f"the user would probably not buy it (expected: {_buyers(expected)})"
    if expected < 0.5:
        return f"probably none of {users} would buy it (expected: {_buyers(expected)})"
    return f"about [bold]{_buyers(expected)}[/] of {users} would buy it ({low:,} to {high:,})"


def _audience(forecast: BundleForecast, shop: ShopSettings) -> list[str]:
    lines = []
    if forecast.price is not None:
        off = f"  [green]−{forecast.discount:.0%}[/]" if forecast.discount and forecast.discount > 0 else ""
        lines.append(f"price {show.money(forecast.price, shop)}{off}")
    users, all_users = plural(forecast.of, "user"), "all users"
    if forecast.in_segment is not None:
        all_users = "the segment's users"
        users = f"the {forecast.in_segment:,} users of the segment" if forecast.in_segment != 1 else "1 user"
    if forecast.expected is not None:
        amount = forecast.expected_takings
        takings = "" if amount is None else f", takings {show.money(amount, shop)}"
        lines.append(_would_buy(forecast.expected, forecast.low, forecast.high, users) + takings)
        above = f"{forecast.above:,}"
        if forecast.sampled:
            lines.append(f"an estimate from {forecast.asked:,} of {plural(forecast.of, 'user')}")
            above = f"about {above} of {all_users}"
        have = "has" if forecast.above == 1 else "have"
        lines.append(f"{above} {have} a chance above {forecast.threshold:.1%}")
    if forecast.weakest is not None:
        without = (
            "" if forecast.weakest.without is None else f": {_buyers(forecast.weakest.without)} without it"
        )
        lines.append(f"weakest item: {show.name(forecast.weakest.title, forecast.weakest.id)}{without}")
    if forecast.replacement is not None:
        better = forecast.replacement
        with_it = "" if better.expected is None else f": {_buyers(better.expected)} with it"
        name = show.name(better.title, better.id) + show.amount(better.price, shop)
        lines.append(f"better in its place: {name}{with_it}")
    elif forecast.weakest is not None:
        lines.append("no replacement that was tried does better")
    return lines
