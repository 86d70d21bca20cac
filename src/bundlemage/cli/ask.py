"""Commands that use a saved model: `bundlemage recommend`, `recommend-all`, `complete` and `campaign`."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bundlemage.cli import show
from bundlemage.cli.commands import FromModel
from bundlemage.cli.options import (
    AsJson,
    Device,
    EngineOptions,
    FilterOptions,
    IndexOptions,
    ModelFolder,
    OptionalCount,
    UserOptions,
)
from bundlemage.cli.texts import ids, key_values, numbers
from bundlemage.errors import ConfigError
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from bundlemage.campaigns.settings import CampaignSummary
    from bundlemage.core.filters import Filter
    from bundlemage.core.history import User
    from bundlemage.recommender import Recommender


def recommend(
    folder: ModelFolder,
    user: UserOptions,
    where: FilterOptions,
    recall: IndexOptions,
    k: int = 5,
    include_owned: bool = False,
    new_bundle: list[str] | None = None,
    expected_sales: list[str] | None = None,
    sells_like: list[str] | None = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Recommend the bundles that fit a user best. Bundles that the user already has are left out.

    For all users at once, use 'bundlemage recommend-all'.

    If an id contains a comma, write it in double quotes inside the list: '"Tea, green",7'.

    Options:
        -k, --k: The number of bundles.
        --include-owned: Also recommend bundles that the user already has.

    New bundles:
        --new-bundle NAME=ID,ID: The name and the items of a bundle that is not in the training data.
            Repeatable.
        --expected-sales NAME=NUMBER: The expected sales of a new bundle, for its rank. Repeatable.
        --sells-like NAME=ID: Rank a new bundle as if it sold as often as the bundle ID. Repeatable.
    """
    from bundlemage.recommender import Recommender

    model = Recommender.load(folder, device=device)
    if recall is not None:
        show.note(str(model.use_index(recall)))
    new = {name: ids([inside]) for name, inside in key_values(new_bundle, "--new-bundle").items()}
    sales = numbers(expected_sales, "--expected-sales", "expected a number of sales, 0 or more")
    answers = model.recommend(
        user,
        k,
        where=where,
        new_bundles=new,
        expected_sales=sales,
        sells_like=key_values(sells_like, "--sells-like"),
        include_owned=include_owned,
    )
    if as_json:
        show.print_json({"user": known_id(user), "bundles": [asdict(answer) for answer in answers]})
        return
    describe(model, user)
    show.out.print(show.bundle_cards(model.dataset, answers, new) if answers else _none_left("bundle", where))


def recommend_all(
    folder: ModelFolder,
    output: Path,
    engine: EngineOptions,
    where: FilterOptions,
    recall: IndexOptions,
    k: int = 5,
    include_owned: bool = False,
    overwrite: bool = False,
    resume: bool = False,
    part_users: OptionalCount = None,
    users: Path | None = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Write the bundles that fit each user best as Parquet. Bundles that a user already has are left out.

    The columns are user_id, rank, bundle_id, score and source. After an interruption, the same command
    with --resume continues, if the output is a folder. The files are the same as without interruption.

    Options:
        -o, --output PATH: A file to write (its name ends in .parquet), or a folder for several such files.
        -k, --k: The number of bundles for each user.
        --include-owned: Also recommend bundles that the user already has.
        --overwrite: Replace existing output.
        --resume: With a folder: continue work that was interrupted.
        --part-users N: With a folder: the number of users in one file (default 50,000). An interruption
            loses at most the work of one file.
        --users DIR: With a folder: use the users of this sharded layout instead of the training data.
    """
    from bundlemage.engines.scoring import PART_USERS, ScoringJob, is_file

    one_file = is_file(output)
    for name, value in (("--resume", resume), ("--part-users", part_users), ("--users", users)):
        if one_file and value:
            raise ConfigError(
                f"{name} is for a folder of files, and {output} is one file: give --output the name of a "
                "folder, without .parquet at its end"
            )
    job = ScoringJob(
        Path(folder),
        output,
        k=k,
        where=where,
        include_owned=include_owned,
        part_users=part_users or PART_USERS,
        users=users,
        device=device,
        least_recall=recall,
        resume=resume,
        overwrite=overwrite,
    )
    began = time.monotonic()
    with Shown(show.notes, "recommending") as progress:
        scored = engine.recommend_all(job, progress)
    seconds = time.monotonic() - began
    rate = scored.users / seconds
    if scored.about_index:
        show.note(scored.about_index)
    if as_json:
        show.print_json(
            {
                "users": scored.users,
                "rows": scored.rows,
                **({} if one_file else {"parts": scored.parts, "kept": scored.kept}),
                "seconds": round(seconds, 3),
                "users_per_second": round(rate, 1),
                "file" if one_file else "folder": str(output),
            }
        )
        return
    kept = f", {scored.kept:,} of {scored.parts:,} parts kept" if scored.kept else ""
    show.say(
        f"{scored.rows:,} answers for {scored.users:,} users in [bold]{show.plain(output)}[/], in "
        f"{seconds:,.1f} s ({rate:,.0f} users a second){kept}"
    )
    if not scored.rows:
        show.out.print(_none_left("bundle", where))


def complete(
    folder: ModelFolder,
    user: UserOptions,
    where: FilterOptions,
    items: list[str] | None = None,
    k: int = 5,
    include_owned: bool = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Recommend the items that best complete a partial bundle for a user.

    If an id contains a comma, write it in double quotes inside the list: '"Tea, green",7'.

    Options:
        --items ID,ID: The items that are already in the bundle.
        -k, --k: The number of items.
        --include-owned: Also recommend items that the user already has.
    """
    from bundlemage.recommender import Recommender

    partial = ids(items)
    model = Recommender.load(folder, device=device)
    answers = model.complete(user, partial, k, where=where, include_owned=include_owned)
    if as_json:
        rows = [asdict(answer) for answer in answers]
        show.print_json({"user": known_id(user), "bundle": partial, "items": rows})
        return
    describe(model, user)
    inside = [show.item_name(model.dataset, position) for position in model.shop.item_positions(partial)]
    show.out.print(f"in the bundle: {show.names(inside)}")
    if answers:
        show.out.print(show.item_table(model.dataset, answers, "to complete it"))
    else:
        show.out.print(_none_left("item", where))


def _none_left(kind: str, where: Filter | None) -> str:
    return f"There is no {kind} left to recommend" + (" that the filters allow." if where else ".")


def known_id(user: User) -> str | None:
    """The id of a user in the training data, or None for a visitor, who has only a history."""
    return user if isinstance(user, str) else None


def describe(model: Recommender, user: User) -> None:
    """Print the items and bundles that the user has, so that a reader can judge the answers."""
    histories, _ = model.shop.encode([user])
    data = model.dataset
    items = [show.item_name(data, position) for position in histories.items.values.tolist()]
    owned = histories.bundles.values.tolist()
    bundles = [data.bundle_title(position) or data.bundles[position] for position in owned]
    name = known_id(user) or "the visitor"
    show.out.print(f"[bold]{show.plain(name)}[/] has {show.counted(items, 'item')}")
    show.out.print(f"and {show.counted(bundles, 'bundle')}")


# ── Campaigns ────────────────────────────────────────────────────────────────────────────────────

SETTINGS = FromModel(
    "bundlemage.campaigns.settings.Campaign",
    panel="Limits that all users share",
    panels=dict.fromkeys(("per_user", "value", "format", "part_users", "seed")),
    without=("where",),
)


def campaign(
    folder: ModelFolder,
    output: Path,
    engine: EngineOptions,
    where: FilterOptions,
    settings: Annotated[dict[str, Any], SETTINGS],
    users: Path | None = None,
    resume: bool = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Show every user the most valuable bundles, within limits that all users share.

    The files in FOLDER/parts have the columns user_id, rank, bundle_id, chance, value and price.
    FOLDER/campaign.json holds the summary, with an upper bound on the value of any plan within the limits.
    After an interruption, the same command with --resume continues and writes the same files.

    Options:
        -o, --output FOLDER: Folder for plan, parts and summary.
        --users FILE: Only these users: a text file with one id per line.
        --resume: Continue an interrupted campaign.
    """
    from bundlemage.engines.jobs import CampaignJob

    try:
        lines = [] if users is None else users.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{users} cannot be read: {error}. Give a text file with one user id per line"
        ) from None
    job = CampaignJob(
        Path(folder),
        output,
        users=None if users is None else tuple(line.strip() for line in lines if line.strip()),
        where=where,
        settings=settings,
        resume=resume,
        device=device,
    )
    began = time.monotonic()
    with Shown(show.notes, "campaign") as progress:
        summary = engine.campaign(job, progress)
    seconds = round(time.monotonic() - began, 3)
    if as_json:
        show.print_json({**summary.to_json(), "folder": str(output), "seconds": seconds})
        return
    for line in _sentences(summary):
        show.say(line)
    show.say(f"written to [bold]{show.plain(output)}[/] in {seconds:,.1f} s")


def _sentences(summary: CampaignSummary) -> list[str]:
    """The summary as lines of text."""
    quantity = summary.settings["value"]
    lines = [
        f"{summary.users:,} users are shown {summary.shown:,} bundles ({summary.different:,} different ones)"
        f"; {summary.with_nothing:,} users get none",
        f"expected {quantity}: [bold]{summary.value:,.2f}[/]"
        + _share(summary.share_of_bound, "of the upper bound within the limits")
        + _share(summary.share_of_unconstrained, "of the value without limits"),
        *(f"{name.replace('_', ' ')}: {_used(name, use)}" for name, use in summary.limits.items()),
    ]
    if summary.chances == "softmax":
        lines.append(
            "[yellow]note:[/] the model has no calibration: chances are its probabilities among all bundles"
        )
    if summary.by_popularity:
        lines.append(
            f"[yellow]note:[/] {summary.by_popularity:,} users have no history; for them the chance of "
            "a bundle is its share of all sales"
        )
    if summary.left_out:
        lines.append(
            f"[yellow]note:[/] {summary.left_out:,} bundles were left out because their price or discount is "
            "unknown"
        )
    return lines


def _share(share: float | None, of: str) -> str:
    return "" if share is None else f", {share:.1%} {of}"


def _used(name: str, use: dict[str, Any]) -> str:
    if name == "stock":
        return f"{use['used']:,.0f} of {use['of']:,.0f} units; {use['used_up']:,} items used up"
    if name == "shown_at_most":
        return f"{use['most']:,} of {use['of']:,}; {use['bundles_at_limit']:,} bundles at the limit"
    decimals = 2 if name == "budget" else 0
    return f"{use['used']:,.{decimals}f} of {use['of']:,.{decimals}f}"
