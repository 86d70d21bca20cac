"""`bundlemage campaign`: bundles for many users, within limits that all users share."""

from __future__ import annotations

import csv
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bundlemage.cli import show
from bundlemage.cli.commands import FromModel
from bundlemage.cli.options import AsJson, Device, EngineOptions, FilterOptions, ModelFolder
from bundlemage.cli.texts import key_values, lines_of, placed, plural
from bundlemage.errors import ConfigError
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from bundlemage.campaigns.settings import CampaignSummary
    from bundlemage.campaigns.what_if import WhatIf
    from bundlemage.recommender import Recommender
    from bundlemage.wire.shop import ShopSettings

SETTINGS = FromModel(
    "bundlemage.campaigns.settings.Campaign",
    panel="Limits that all users share",
    panels=dict.fromkeys(("per_user", "value", "format", "part_users", "seed")),
    without=("where", "new_bundles", "new_prices"),
)


def campaign(
    folder: ModelFolder,
    output: Path,
    engine: EngineOptions,
    where: FilterOptions,
    settings: Annotated[dict[str, Any], SETTINGS],
    users: Path | None = None,
    new_bundles: Path | None = None,
    resume: bool = False,
    what_if: list[str] | None = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show every user the most valuable bundles, within limits that all users share.

    The files in FOLDER/parts have the columns user_id, rank, bundle_id, chance, value, price, to_pay,
    owned_items, missing_items and sold_out.
    FOLDER/campaign.json holds the summary, with an upper bound on the value of any plan within the limits.
    After an interruption, the same command with --resume continues and writes the same files.

    Options:
        -o, --output FOLDER: Folder for plan, parts and summary.
        --users FILE: Only these users: a text file with one id per line.
        --new-bundles FILE: Bundles that the shop does not have yet, as further candidates: a CSV file with
            the columns bundle_id, item_id and, if you like, price, such as design --output writes.
        --resume: Continue an interrupted campaign.
        --what-if LIMIT=NUMBER: Also tell what another limit would bring, such as budget=2000,
            shown_at_most=+5 or stock:ITEM=+200. With the same options, it answers for a finished campaign.
            Repeatable.
    """
    from bundlemage.campaigns.run import SUMMARY
    from bundlemage.campaigns.run import what_if as ask_what_if
    from bundlemage.campaigns.what_if import Changed
    from bundlemage.data.row_files import format_of, has_format
    from bundlemage.engines.jobs import CampaignJob

    if has_format(output) and not output.is_dir():
        raise ConfigError(
            f"--output {output}: a campaign writes a folder, and this is the name of a file: use "
            f"-o {output.with_suffix('')} --format {format_of(output)}"
        )
    changes = key_values(what_if, "--what-if")
    if new_bundles is not None:
        settings |= _new_bundles(new_bundles)
    job = CampaignJob(
        Path(folder),
        output,
        users=None if users is None else tuple(lines_of(users)),
        where=where,
        settings=settings,
        resume=resume or (bool(changes) and (output / SUMMARY).exists()),
        device=device,
    )
    for limit, change in changes.items():
        Changed.of(job.offer, limit, change)  # a mistake is told before the campaign begins
    began = time.monotonic()
    with Shown(show.notes, "campaign") as progress:
        with placed(users):
            summary = engine.campaign(job, progress)
        answers = ask_what_if(job.offer, output, changes, job.users) if changes else []
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        asked = {"what_if": [answer.to_json() for answer in answers]} if changes else {}
        show.print_json({**summary.to_json(), **asked, "folder": str(output), "seconds": seconds})
        return
    model = job.recommender
    for line in [*_sentences(summary, model), *(_answer(answer, summary, model) for answer in answers)]:
        show.say(line)
    show.say(f"written to [bold]{show.plain(output)}[/] in {seconds:,.1f} s")


def _new_bundles(path: Path) -> dict[str, Any]:
    """The settings for the new bundles of a CSV file."""
    bundles, prices = dict[str, list[str]](), dict[str, float]()
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, restkey="")
            if not {"bundle_id", "item_id"} <= set(names := list(rows.fieldnames or ())):
                raise ConfigError(
                    f"{path}: the header is {', '.join(names)!r}; expected bundle_id,item_id or "
                    "bundle_id,item_id,price"
                )
            for row in rows:
                place = f"{path}, line {rows.line_num}"
                name, item, price = (row.get(column) or "" for column in ("bundle_id", "item_id", "price"))
                if not name or not item:
                    raise ConfigError(f"{place}: a row needs a bundle_id and an item_id")
                bundles.setdefault(name, []).append(item)
                if price and prices.setdefault(name, _price(price, place)) != _price(price, place):
                    raise ConfigError(f"{place}: the bundle {name!r} has another price in an earlier line")
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not bundles:
        raise ConfigError(f"{path} has no bundles: it needs rows with a bundle_id and an item_id")
    return {"new_bundles": bundles, "new_prices": prices}


def _price(text: str, place: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = math.nan
    if not 0 <= price < math.inf:
        raise ConfigError(f"{place}: the price is {text!r}; expected a number from 0 up, such as 39.99")
    return price


def _sentences(summary: CampaignSummary, model: Recommender) -> list[str]:
    """The summary as lines of text."""
    quantity, shop = summary.settings["value"], model.shop_settings
    value, bound, most = (
        _amount(each, quantity, shop) for each in (summary.value, summary.bound, summary.unconstrained)
    )
    limits = f". No plan within the limits can bring more than {bound}; without limits it would be {most}."
    lines = [
        f"{plural(summary.users, 'user')} {'is' if summary.users == 1 else 'are'} shown "
        f"{plural(summary.shown, 'bundle')} ({summary.different:,} different); "
        f"{plural(summary.with_nothing, 'user')} get{'s' * (summary.with_nothing == 1)} none",
        f"expected {quantity}: [bold]{value}[/]" + limits * bool(summary.limits),
        *(f"{name.replace('_', ' ')}: {_used(name, use, shop)}" for name, use in summary.limits.items()),
    ]
    for each in summary.worth_more:
        if each["change"] <= 0:
            continue
        gain = _amount(each["change"], quantity, shop)
        if each["basis"] == "sample" and each["users"] < summary.users:
            gain += f" ({_amount(each['low'], quantity, shop)} to {_amount(each['high'], quantity, shop)})"
        lines.append(f"{_more(each, model)}: about {gain} more")
    if summary.chances == "softmax":
        lines.append(
            "[yellow]note:[/] the model has no calibration: chances are its probabilities among all bundles"
        )
    if summary.by_popularity:
        lines.append(
            f"[yellow]note:[/] users without a history: {summary.by_popularity:,}. For them, the chance of "
            "a bundle is its share of all sales"
        )
    if same := [f"{name} (as {other})" for name, other in summary.same_items.items()]:
        lines.append(
            "[yellow]note:[/] new bundles were left out because others have the same items: "
            + show.plain(", ".join(same))
        )
    if summary.left_out:
        lines.append(
            f"[yellow]note:[/] bundles that were left out because their price or discount is unknown: "
            f"{summary.left_out:,}"
        )
    return lines


def _more(each: dict[str, Any], model: Recommender) -> str:
    """A limit that is raised, as in `CampaignSummary.worth_more`, in words."""
    size = each["after"] - each["before"]
    more = _size(each["limit"], size, model.shop_settings)
    s = "s" * (size != 1)
    match each["limit"]:
        case "stock":
            return f"{more} more of {_item(each['item_id'], model)} in stock"
        case "shown_at_most":
            return f"if each bundle could be shown to {more} more user{s}"
        case "different_at_most":
            return f"if {more} more bundle{s} could be shown"
        case "per_user":
            return f"if each user could be shown {more} more bundle{s}"
        case _:
            return f"if the budget were {more} higher"


def _item(item: str, model: Recommender) -> str:
    """The title and the id of an item, or only the id."""
    title = model.dataset.item_title(model.dataset.items.position(item))
    return show.plain(f"{title} ({item})" if title else item)


def _limit(limit: str, item: str | None, model: Recommender) -> str:
    return limit.replace("_", " ") if item is None else f"{limit} of {_item(item, model)}"


def _size(limit: str, size: float | None, shop: ShopSettings) -> str:
    """The size of a limit."""
    if size is None:
        return "no limit"
    return show.money(size, shop) if limit == "budget" else f"{size:,.0f}"


def _amount(value: float, quantity: str, shop: ShopSettings) -> str:
    """A value of the campaign: takings are money, sales are a number. A very small one has two digits."""
    if 0 < abs(value) < 0.01:
        return f"{value:.2g}"
    return show.money(value, shop) if quantity == "takings" else f"{value:,.2f}"


def _answer(answer: WhatIf, summary: CampaignSummary, model: Recommender) -> str:
    """An answer to `--what-if` as a line of text."""
    quantity, limit, shop = summary.settings["value"], answer.limit, model.shop_settings

    def change(value: float) -> str:
        return f"{'-' if value < 0 else '+'}{_amount(abs(value), quantity, shop)}"

    basis = f"a new plan for all {plural(answer.users, 'user')}"
    if answer.basis == "sample":
        basis = (
            f"{change(answer.low)} to {change(answer.high)}, from a sample of {plural(answer.users, 'user')}"
        )
    before, after = _size(limit, answer.before, shop), _size(limit, answer.after, shop)
    return (
        f"what if {_limit(limit, answer.item_id, model)} were {after} instead of {before}: "
        f"expected {quantity} [bold]{change(answer.change)}[/] ({basis})"
    )


def _used(name: str, use: dict[str, Any], shop: ShopSettings) -> str:
    if name == "stock":
        return f"{use['used']:,.0f} of {use['of']:,.0f} units; {plural(use['used_up'], 'item')} used up"
    if name == "shown_at_most":
        return f"{use['most']:,} of {use['of']:,}; {plural(use['bundles_at_limit'], 'bundle')} at the limit"
    if name == "budget":
        return f"{show.money(use['used'], shop)} of {show.money(use['of'], shop)}"
    return f"{use['used']:,.0f} of {use['of']:,.0f}"
