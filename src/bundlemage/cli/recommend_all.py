"""`bundlemage recommend --all`: the answers for every user of a shop, as one Parquet file or many."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bundlemage.cli import show, stages
from bundlemage.cli.engines import chosen_engine
from bundlemage.engines.base import Progress
from bundlemage.errors import ConfigError

if TYPE_CHECKING:
    from bundlemage.core.filters import Filter
    from bundlemage.engines.scoring import ScoringJob


def job(
    model: str,
    output: Path,
    k: int,
    where: Filter | None,
    include_owned: bool,
    part_users: int | None,
    users: Path | None,
    device: str,
    least_recall: float | None,
    resume: bool,
    overwrite: bool,
) -> ScoringJob:
    from bundlemage.engines.scoring import PART_USERS, ScoringJob

    if _is_file(output):
        for name, given in (("--resume", resume), ("--part-users", part_users), ("--users", users)):
            if given:
                raise ConfigError(f"{name} is for a folder of files, and {output} is one file: {_A_FOLDER}")
    return ScoringJob(
        Path(model),
        output,
        k=k,
        where=where,
        include_owned=include_owned,
        part_users=part_users or PART_USERS,
        users=users,
        device=device,
        least_recall=least_recall,
        resume=resume,
        overwrite=overwrite,
    )


_A_FOLDER = "give --output the name of a folder, without .parquet at its end"


def _is_file(output: Path) -> bool:
    return output.suffix == ".parquet" or output.is_file()


def run(job: ScoringJob, name: str, address: str | None, workers: int | None) -> dict[str, Any]:
    """Do it, showing how far it is; what was done, for programs."""
    chosen = chosen_engine(name, address, workers, "recommending")
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


def sentence(done: dict[str, Any]) -> str:
    kept = f", {done['kept']:,} of {done['parts']:,} parts kept" if done.get("kept") else ""
    return (
        f"{done['rows']:,} answers for {done['users']:,} users in "
        f"[bold]{show.plain(done.get('folder') or done['file'])}[/], in {done['seconds']:,.1f} s "
        f"({done['users_per_second']:,.0f} users a second){kept}"
    )


def check_replaceable(file: Path, *, overwrite: bool) -> None:
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
    from bundlemage.core.bulk import write_parquet
    from bundlemage.recommender import Recommender

    check_replaceable(job.output, overwrite=job.overwrite)
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
    """With how many come in a second."""
    return stages.watched(doing, speed=True)
