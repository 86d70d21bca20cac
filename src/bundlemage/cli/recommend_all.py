"""`bundlemage recommend-all`: the answers for every user of a shop, as one Parquet file or many."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from bundlemage.cli import ask
from bundlemage.cli.options import Address, AsJson, Device, EngineName, ModelFolder, Workers
from bundlemage.errors import ConfigError
from bundlemage.progress import Shown


def recommend_all(
    folder: ModelFolder,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="PATH",
            help="A file to write, whose name ends in .parquet, or a folder of such files.",
        ),
    ],
    k: Annotated[int, typer.Option("-k", "--k", help="How many bundles for each user.")] = 5,
    include_owned: ask.IncludeOwned = False,
    exclude: ask.Exclude = None,
    among: ask.Among = None,
    tag: ask.Tags = None,
    min_price: ask.MinPrice = None,
    max_price: ask.MaxPrice = None,
    in_stock: ask.InStock = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace answers that exist.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="With a folder: continue work that was interrupted.")
    ] = False,
    part_users: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="With a folder: the number of users in one file (default 50,000). An interruption loses at "
            "most the work of one file.",
        ),
    ] = None,
    users: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="With a folder: answer for the users of this sharded layout instead of those of training.",
        ),
    ] = None,
    index: ask.Index = False,
    least_recall: ask.LeastRecall = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """The bundles that fit every user best, of those that the user has not, as Parquet.

    The columns are user_id, rank, bundle_id, score and source. A folder of files survives an interruption:
    the same command with --resume continues and ends with the same files.
    """
    from bundlemage.cli import show
    from bundlemage.engines.base import engine as engine_of
    from bundlemage.engines.scoring import PART_USERS, ScoringJob, is_file

    by = engine_of(engine, address=address, workers=workers)
    one_file = is_file(output)
    for name, value in (("--resume", resume), ("--part-users", part_users), ("--users", users)):
        if one_file and value:
            raise ConfigError(
                f"{name} is for a folder of files, and {output} is one file: give --output the name of a "
                "folder, without .parquet at its end"
            )
    where = ask.filter_of(exclude, among, tag, min_price, max_price, in_stock)
    job = ScoringJob(
        Path(folder),
        output,
        k=k,
        where=where,
        include_owned=include_owned,
        part_users=part_users or PART_USERS,
        users=users,
        device=device,
        least_recall=ask.recall_of(index, least_recall),
        resume=resume,
        overwrite=overwrite,
    )
    began = time.monotonic()
    with Shown(show.notes, "recommending") as progress:
        scored = by.recommend_all(job, progress)
    seconds = time.monotonic() - began
    if scored.about_index:
        show.notes.print(scored.about_index, soft_wrap=True)
    done = {
        "users": scored.users,
        "rows": scored.rows,
        **({} if one_file else {"parts": scored.parts, "kept": scored.kept}),
        "seconds": round(seconds, 3),
        "users_per_second": round(scored.users / seconds, 1),
        "file" if one_file else "folder": str(output),
    }
    if as_json:
        show.print_json(done)
        return
    show.out.print(_sentence(done, output), soft_wrap=True)
    if not scored.rows:
        show.out.print(ask.none_left("bundle", where))


def _sentence(done: dict[str, Any], output: Path) -> str:
    from bundlemage.cli import show

    kept = f", {done['kept']:,} of {done['parts']:,} parts kept" if done.get("kept") else ""
    return (
        f"{done['rows']:,} answers for {done['users']:,} users in [bold]{show.plain(output)}[/], in "
        f"{done['seconds']:,.1f} s ({done['users_per_second']:,.0f} users a second){kept}"
    )
