"""`bundlemage recommend-all`: the answers for every user of a shop, as one Parquet file or many."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bundlemage.cli import ask
from bundlemage.cli.options import Address, AsJson, Device, EngineName, ModelFolder, Workers
from bundlemage.errors import ConfigError

if TYPE_CHECKING:
    from bundlemage.engines.base import Engine, Progress
    from bundlemage.engines.scoring import ScoringJob


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
    from bundlemage.cli.engines import chosen_engine
    from bundlemage.engines.scoring import PART_USERS, ScoringJob

    if _is_file(output):
        for name, value in (("--resume", resume), ("--part-users", part_users), ("--users", users)):
            if value:
                raise ConfigError(f"{name} is for a folder of files, and {output} is one file: {_A_FOLDER}")
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
    done = _run(job, chosen_engine(engine, address, workers, "recommending"))
    if as_json:
        show.print_json(done)
        return
    show.out.print(_sentence(done), soft_wrap=True)
    if not done["rows"]:
        show.out.print(ask.none_left("bundle", where))


_A_FOLDER = "give --output the name of a folder, without .parquet at its end"


def _is_file(output: Path) -> bool:
    return output.suffix == ".parquet" or output.is_file()


def _run(job: ScoringJob, chosen: Engine) -> dict[str, Any]:
    """Run the job with a progress bar; returns what was done, for programs."""
    from bundlemage.cli import show

    began = time.monotonic()
    if not _is_file(job.output):
        with watched("recommending") as progress:
            done = asdict(chosen.recommend_all(job, progress))
        if about_index := done.pop("about_index"):
            show.notes.print(about_index, soft_wrap=True)
        place = {"folder": str(job.output)}
    elif chosen.name != "local":
        raise ConfigError(
            f"on {chosen.name}, answers are a folder of files, each by one process: {_A_FOLDER}"
        )
    else:
        done = _one_file(job)
        place = {"file": str(job.output)}
    seconds = time.monotonic() - began
    speed = {"seconds": round(seconds, 3), "users_per_second": round(done["users"] / seconds, 1)}
    return {**done, **speed, **place}


def _sentence(done: dict[str, Any]) -> str:
    from bundlemage.cli import show

    kept = f", {done['kept']:,} of {done['parts']:,} parts kept" if done.get("kept") else ""
    return (
        f"{done['rows']:,} answers for {done['users']:,} users in "
        f"[bold]{show.plain(done.get('folder') or done['file'])}[/], in {done['seconds']:,.1f} s "
        f"({done['users_per_second']:,.0f} users a second){kept}"
    )


def _check_replaceable(file: Path, *, overwrite: bool) -> None:
    """Known before the work: that the file can be written, and that nothing is lost which was to stay."""
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name a file in it, e.g. {file / 'answers.parquet'}")
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file.parent, os.W_OK):
        raise ConfigError(f"{file} cannot be written: no permission to write in {file.parent.resolve()}")
    if not file.exists():
        return
    if not overwrite:
        raise ConfigError(f"{file} exists already: add --overwrite to replace it, or choose another file")
    with file.open("rb") as opened:
        if opened.read(4) not in (b"PAR1", b""):
            raise ConfigError(
                f"{file} is not a Parquet file, so --overwrite does not replace it: choose another file"
            )


def _one_file(job: ScoringJob) -> dict[str, int]:
    from bundlemage.cli import show
    from bundlemage.core.bulk import write_parquet
    from bundlemage.recommender import Recommender

    _check_replaceable(job.output, overwrite=job.overwrite)
    with show.notes.status("loading the model"):
        model = Recommender.load(job.model, device=job.device)
        if job.least_recall is not None:
            show.notes.print(str(model.use_index(job.least_recall)), soft_wrap=True)
    batches = model.recommend_all(job.k, where=job.where, include_owned=job.include_owned)
    users = len(model.dataset.users)
    with watched("recommending") as progress:
        return {"users": users, "rows": write_parquet(_counted(batches, users, progress), job.output)}


def _counted(batches: Iterator[Any], users: int, progress: Progress) -> Iterator[Any]:
    """The same batches."""
    done = 0
    for batch in batches:
        yield batch
        done += len(batch.column("user_id").dictionary)  # also users who got no answer
        progress("users", done, users)


def watched(doing: str) -> AbstractContextManager[Progress]:
    """A progress bar that shows how many users are done in a second."""
    from bundlemage.cli import stages

    return stages.watched(doing, speed=True)
