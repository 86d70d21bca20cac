"""`bundlemage campaign`: bundles for many users, within limits that all users share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bundlemage.cli import show
from bundlemage.cli.commands import FromModel
from bundlemage.cli.options import AsJson, Device, EngineOptions, FilterOptions, ModelFolder
from bundlemage.cli.texts import lines_of
from bundlemage.errors import ConfigError
from bundlemage.progress import Shown

if TYPE_CHECKING:
    from bundlemage.campaigns.settings import CampaignSummary

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
    from bundlemage.data.row_files import format_of, has_format
    from bundlemage.engines.jobs import CampaignJob

    if has_format(output) and not output.is_dir():
        raise ConfigError(
            f"--output {output}: a campaign writes a folder, and this is the name of a file: use "
            f"-o {output.with_suffix('')} --format {format_of(output)}"
        )
    job = CampaignJob(
        Path(folder),
        output,
        users=None if users is None else tuple(lines_of(users)),
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
