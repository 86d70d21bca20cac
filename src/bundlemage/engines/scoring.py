"""Recommends bundles to all users. Users are divided into parts, and several processes may share them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from bundlemage.artifact.files import artifact_version, describe_artifact, load_without_users, verify_artifact
from bundlemage.core.bulk import joined, record_batches, write_parquet
from bundlemage.core.filters import Filter
from bundlemage.data.dataset import fingerprint
from bundlemage.data.folders import ResumableFolder
from bundlemage.data.shards import Layout
from bundlemage.engines.base import Workers
from bundlemage.engines.people import (
    LayoutPeople,
    ModelPeople,
    People,
    Sample,
    rows_in,
    spread,
)
from bundlemage.errors import ArtifactError, BundleMageError, ClusterError, ConfigError
from bundlemage.progress import Progress
from bundlemage.recommender import Recommender, Sales

PART_USERS = 50_000
INDEX_USERS = 2_000
"""The number of users with which each process measures the recall of an index."""
FILE_ROWS = 2**20
"""Approximate number of answers in a part if all answers are written to a single file."""
SECONDS_TO_APPEAR = 60.0
"""On shared storage, a new file may become visible to another machine with this delay."""


ANSWERS, NEW = "answers.json", ".new"
DONE = "done"
"""A key of `answers.json`. It is written when all answers are finished, and holds their totals."""


@dataclass(frozen=True)
class ScoringJob:
    """Write the k best bundles for every user as a Parquet file, or as a folder of Parquet files."""

    model: Path
    output: Path
    k: int = 10
    where: Filter | None = None
    include_owned: bool = False
    part_users: int = PART_USERS
    """The number of users in a part. Each part is one file of the folder."""
    users: Path | None = None
    """A sharded layout with the users; None: the users of the model."""
    device: str = "auto"
    least_recall: float | None = None
    """If given, an index of the bundles is used. It finds at least this share of the results of an exact
    search. None: exact search."""
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.part_users < 1:
            raise ConfigError(f"part_users is {self.part_users}; a part holds at least one user")


def is_file(output: Path) -> bool:
    """Whether the answers go to one file rather than to a folder."""
    return output.suffix == ".parquet" or output.is_file()


@dataclass(frozen=True)
class ScoredUsers:
    """The numbers of users, answers and parts that were written."""

    users: int
    rows: int
    parts: int
    kept: int
    """The number of parts that an earlier run had finished."""
    about_index: str | None = None
    """A sentence about the index; None without an index, or if no part was left to do."""


class PartDone(NamedTuple):
    """A part that a process has finished."""

    number: int
    rows: int
    about_index: str | None = None
    """A sentence about the index of that process."""
    table: pa.Table | None = None
    """The answers if they are written to a single file, otherwise None."""


@dataclass(frozen=True)
class Ready:
    """A job, and the facts about the model and the users that all processes need."""

    job: ScoringJob
    version: str
    users: int
    """The number of users who get recommendations."""
    users_from: str
    """The fingerprint of the layout with the users; `model` for the users of the model."""
    trained_users: int
    sales: Sales
    folder: Path | None
    """The folder for the parts; None if the answers are written to a single file."""

    @property
    def parts(self) -> int:
        return -(-self.users // self.job.part_users)

    def users_of(self, number: int) -> range:
        start = number * self.job.part_users
        return range(start, min(start + self.job.part_users, self.users))

    def identity(self) -> dict[str, Any]:
        """Everything that the answers depend on. A run continues only with the same identity."""
        return {
            "model": self.version,
            "k": self.job.k,
            "where": (self.job.where or Filter()).to_json(),
            "include_owned": self.job.include_owned,
            "least_recall": self.job.least_recall,
            "part_users": self.job.part_users,
            "users": self.users,
            "users_from": self.users_from,
        }


def make_ready(job: ScoringJob, progress: Progress) -> Ready:
    """Check the files of the model, and count its users and sales. Returns the prepared job."""
    version = verify_artifact(job.model, progress)
    people = ModelPeople(job.model)
    items, bundles = (rows_in(job.model / f"{kind}.parquet") for kind in ("items", "bundles"))
    users, users_from = len(people), "model"
    if job.users is not None:
        layout = Layout.open(job.users)
        users, users_from = layout.sizes["users"], fingerprint(layout.digests)
    folder = None if is_file(job.output) else job.output
    return Ready(job, version, users, users_from, len(people), people.sales(items, bundles), folder)


class AnswersFolder(ResumableFolder):
    """A folder of answers in parts, each for a range of users. Each process writes its own parts.

    New answers that replace old ones are written to the folder `.new`. They are moved when all of them are
    finished. `replaces` is the folder of the old answers.
    """

    kind = "set of answers"
    file = ANSWERS
    part_name = "parts/part-{:05d}.parquet"

    def __init__(self, path: Path, replaces: AnswersFolder | None = None) -> None:
        super().__init__(path)
        self.parts, self.replaces = path / "parts", replaces

    def open(self, identity: Mapping[str, Any], *, resume: bool, overwrite: bool) -> AnswersFolder:
        """Begin or continue. Returns the folder for new parts: this one, or one that will replace it."""
        if resume and overwrite:
            raise ConfigError("answers are either continued (--resume) or replaced (--overwrite), not both")
        new = AnswersFolder(self.path / NEW, replaces=self)
        if self.begun and new.begun and DONE in new.stored():
            new._take_place(self)  # the program was killed just before this step
        self.check(resume=resume or not self.finished_parts(), overwrite=overwrite)
        if resume and new.begun and not new.differences(identity, {DONE}):
            new.resume(identity, {DONE})
            return new
        if not self.finished_parts():
            self.begin(identity)
        elif resume:
            self.resume(identity, {DONE})
        else:
            shutil.rmtree(new.path, ignore_errors=True)
            new.begin(identity)
            return new
        return self

    def rows(self, number: int) -> int | None:
        """Returns the number of answers in a part; None if the part is missing or damaged."""
        try:
            return int(pq.read_metadata(self.part(number)).num_rows)
        except (OSError, pa.ArrowException):
            return None

    def finish(self, identity: Mapping[str, Any], totals: Mapping[str, int]) -> None:
        """Record that all parts are finished, and replace the old answers, if any."""
        self.begin(identity, **{DONE: dict(totals)})
        if self.replaces is not None:
            self._take_place(self.replaces)

    def give_up(self) -> None:
        """Remove the files of this run if no part was finished."""
        if not self.finished_parts():
            self.discard()

    def _take_place(self, of: AnswersFolder) -> None:
        """Replace the answers in `of`. If this is interrupted, `open` does the remaining steps later."""
        if self.parts.exists():
            if of.parts.exists():
                of.parts.rename(self.path / "old")
            self.parts.rename(of.parts)
        self.file_path.replace(of.file_path)
        shutil.rmtree(self.path)


class PartScorer:
    """Computes the answers of parts. The model is loaded for the first part."""

    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self.about_index: str | None = None

    @cached_property
    def model(self) -> Recommender:
        ready, job = self.ready, self.ready.job
        if artifact_version(job.model) != ready.version:
            raise ArtifactError(f"{job.model} was replaced by another model during the run; start again")
        model = Recommender.load_without_users(job.model, ready.trained_users, ready.sales, device=job.device)
        if job.least_recall is not None:
            # The recall of an index is measured with a sample of users.
            some = model.shop.checked(spread(self.people, INDEX_USERS))
            shop = model.shop.interactions
            model.shop.interactions = Sample(
                some.items, some.bundles, shop.bundle_item, shop.items, numbers=some.users
            )
            self.about_index = str(model.use_index(job.least_recall))
        return model

    @cached_property
    def people(self) -> People:
        job = self.ready.job
        if job.users is None:
            return ModelPeople(job.model)
        layout = Layout.open(job.users)
        if fingerprint(layout.digests) != self.ready.users_from:
            raise ConfigError(f"{job.users} was replaced by other data during the run; start again")
        trained = describe_artifact(job.model)[1]["dataset"]
        mine = load_without_users(job.model).dataset.digests()
        for kind in ("items", "bundles", "bundle_item"):
            if layout.digests[kind] != mine[kind]:
                what = "contents of its bundles" if kind == "bundle_item" else kind
                raise ConfigError(
                    f"{job.users} does not fit the model in {job.model}: the {what} differ. Give users "
                    "of the same shop that the model was trained on"
                )
        return LayoutPeople(layout, known=trained["fingerprint"] == self.ready.users_from)

    def __call__(self, number: int) -> PartDone:
        """Compute the answers for the users of a part. Writes them to the folder, or returns them."""
        job, users = self.ready.job, self.ready.users_of(number)
        folder = None if self.ready.folder is None else AnswersFolder(self.ready.folder)
        if folder is not None and not folder.parts.is_dir():
            raise _elsewhere(f"{folder.parts} is not where a worker looks for it")
        ids, histories = self.people.read(users.start, users.stop)
        rankings = self.model.rank_bundles(histories, job.k, where=job.where, include_owned=job.include_owned)
        batches = record_batches(rankings, ids, self.model.shop.bundle_ids)
        if folder is None:
            table = joined(list(batches))
            return PartDone(number, table.num_rows, self.about_index, table)
        return PartDone(number, write_parquet(batches, folder.part(number)), self.about_index)


def _elsewhere(what: str) -> ClusterError:
    return ClusterError(f"{what}: name a folder on storage that all machines of the cluster share")


class Work:
    """The parts of a job that writes to a folder: `kept` are finished already, `left` are still to do."""

    def __init__(self, ready: Ready) -> None:
        job = ready.job
        self.folder = AnswersFolder(job.output).open(
            ready.identity(), resume=job.resume, overwrite=job.overwrite
        )
        self.ready = replace(ready, folder=self.folder.path)
        parts = {number: self.folder.rows(number) for number in range(ready.parts)}
        self.kept = {number: rows for number, rows in parts.items() if rows is not None}
        self.left = [number for number in parts if number not in self.kept]

    def follow(self, done: Iterable[PartDone], progress: Progress) -> ScoredUsers:
        """Count the parts when they are finished, in any order. Marks the folder as finished at the end."""
        rows, about_index = dict(self.kept), None
        users = sum(len(self.ready.users_of(number)) for number in rows)
        progress("users", users, self.ready.users)
        try:
            for part in done:
                if len(rows) == len(self.kept):  # does this process see the first file of the workers?
                    self._check_there([part.number])
                rows[part.number], about_index = part.rows, about_index or part.about_index
                users += len(self.ready.users_of(part.number))
                progress("users", users, self.ready.users)
            self._check_there(self.left)
        except BundleMageError:
            self.folder.give_up()
            raise
        scored = ScoredUsers(users, sum(rows.values()), self.ready.parts, len(self.kept), about_index)
        if len(rows) != self.ready.parts:
            raise RuntimeError(f"{self.ready.parts - len(rows)} parts were not done")  # a bug in an engine
        self.folder.finish(self.ready.identity(), {"rows": scored.rows, "parts": scored.parts})
        return scored

    def _check_there(self, parts: Sequence[int]) -> None:
        """Raises `ClusterError` if this process does not see the files that workers have written."""
        deadline = time.monotonic() + SECONDS_TO_APPEAR
        while missing := [number for number in parts if self.folder.rows(number) is None]:
            if time.monotonic() > deadline:
                raise _elsewhere(f"workers have written {self.folder.part(missing[0])}, and it is not here")
            time.sleep(min(1.0, SECONDS_TO_APPEAR / 10))


def score(job: ScoringJob, workers: Workers, progress: Progress) -> ScoredUsers:
    """Write the answers for all users. Returns their numbers."""
    if is_file(job.output):
        return _score_to_file(job, workers, progress)
    work = Work(make_ready(job, progress))
    return work.follow(workers.each(PartScorer, work.ready, work.left), progress)


def _score_to_file(job: ScoringJob, workers: Workers, progress: Progress) -> ScoredUsers:
    _check_replaceable(job.output, overwrite=job.overwrite)
    # Parts are sent to this process, so their size is limited.
    part_users = min(job.part_users, max(1, FILE_ROWS // max(job.k, 1)))
    ready = make_ready(replace(job, part_users=part_users), progress)
    about_index: list[str] = []

    def batches() -> Iterator[pa.RecordBatch]:
        progress("users", 0, ready.users)
        for part in workers.each(PartScorer, ready, range(ready.parts)):
            assert part.table is not None
            yield from part.table.to_batches()
            progress("users", ready.users_of(part.number).stop, ready.users)
            about_index.extend([part.about_index] if part.about_index else [])

    rows = write_parquet(batches(), job.output)
    return ScoredUsers(ready.users, rows, ready.parts, 0, about_index[0] if about_index else None)


def _check_replaceable(file: Path, *, overwrite: bool) -> None:
    """Raises `ConfigError` if the file cannot be written or must not be replaced."""
    file.parent.mkdir(parents=True, exist_ok=True)
    if not os.access(file.parent, os.W_OK):
        raise ConfigError(f"{file} cannot be written: no permission to write in {file.parent.resolve()}")
    if file.is_dir():
        raise ConfigError(f"{file} is a folder; name a file in it, e.g. {file / 'answers.parquet'}")
    if not file.exists():
        return
    if not overwrite:
        raise ConfigError(f"{file} exists already: add --overwrite to replace it, or choose another file")
    with file.open("rb") as opened:
        if opened.read(4) not in (b"PAR1", b""):
            raise ConfigError(
                f"{file} is not a Parquet file, so --overwrite does not replace it: choose another file"
            )
