"""The best bundles of every user, part by part: what both engines do alike, and all of it in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from bundlemage.artifact.files import artifact_version, load_without_users, verify_artifact
from bundlemage.core.bulk import record_batches, write_parquet
from bundlemage.core.filters import Filter
from bundlemage.data.dataset import fingerprint
from bundlemage.data.shards import Layout
from bundlemage.engines.answers import AnswersFolder
from bundlemage.engines.base import Progress, in_silence
from bundlemage.engines.people import (
    LayoutPeople,
    ModelPeople,
    People,
    Sample,
    rows_in,
    spread,
    trained_on,
)
from bundlemage.errors import ArtifactError, BundleMageError, ClusterError, ConfigError
from bundlemage.recommender import Recommender, Sales

PART_USERS = 50_000
INDEX_USERS = 2_000
"""So many users each process keeps to measure an index with."""
SECONDS_TO_APPEAR = 60.0
"""What another machine has written may show so late on storage that machines share."""


@dataclass(frozen=True)
class ScoringJob:
    """Everyone's k best bundles by the model in a folder, to a folder of Parquet files."""

    model: Path
    output: Path
    k: int = 10
    where: Filter | None = None
    include_owned: bool = False
    part_users: int = PART_USERS
    """So many users are in one file, which is also what a process does at a time."""
    users: Path | None = None
    """A sharded layout whose users are asked for instead of the model's own."""
    device: str = "auto"
    least_recall: float | None = None
    """With an index of the bundles that finds at least this share of what an exact search finds; None: exact
    search."""
    resume: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.part_users < 1:
            raise ConfigError(f"part_users is {self.part_users}; a part holds at least one user")


@dataclass(frozen=True)
class Scored:
    """What came of it."""

    users: int
    rows: int
    parts: int
    kept: int
    """Parts that an earlier run had done."""
    about_index: str | None = None
    """What is to be said of the index, if one was asked for and anything was left to do."""


class PartDone(NamedTuple):
    number: int
    rows: int
    about_index: str | None = None
    """As the process that did it has built one."""


@dataclass(frozen=True)
class Ready:
    """A job with all that one process finds out for the others."""

    job: ScoringJob
    version: str
    users: int
    """How many are asked for."""
    users_from: str
    """The fingerprint of the layout that has them, or `model`."""
    trained_users: int
    sales: Sales
    folder: Path
    """Where the answers are made."""

    @property
    def parts(self) -> int:
        return -(-self.users // self.job.part_users)

    def users_of(self, number: int) -> range:
        start = number * self.job.part_users
        return range(start, min(start + self.job.part_users, self.users))

    def identity(self) -> dict[str, Any]:
        """What the answers depend on."""
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
    """Check the model's files, and count what others need to know of its users."""
    version = verify_artifact(job.model, lambda done, of: progress("bytes checked", done, of))
    people = ModelPeople(job.model)
    items, bundles = (rows_in(job.model / f"{kind}.parquet") for kind in ("items", "bundles"))
    users, users_from = len(people), "model"
    if job.users is not None:
        layout = Layout.open(job.users)
        users, users_from = layout.sizes["users"], fingerprint(layout.digests)
    return Ready(job, version, users, users_from, len(people), people.sales(items, bundles), job.output)


class PartScorer:
    """Does parts, one after another. The model is loaded with the first one."""

    def __init__(self, ready: Ready) -> None:
        self.ready, self.folder = ready, AnswersFolder(ready.folder)
        self.about_index: str | None = None

    @cached_property
    def model(self) -> Recommender:
        ready, job = self.ready, self.ready.job
        if artifact_version(job.model) != ready.version:
            raise ArtifactError(f"{job.model} was replaced by another model meanwhile; begin anew")
        model = Recommender.load_without_users(job.model, ready.trained_users, ready.sales, device=job.device)
        if job.least_recall is not None:
            # An index is measured with some users, so they have to be there.
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
            raise ConfigError(f"{job.users} was replaced by other data meanwhile; begin anew")
        mine = load_without_users(job.model).dataset.digests()
        for kind in ("items", "bundles", "bundle_item"):
            if layout.digests[kind] != mine[kind]:
                what = "contents of its bundles" if kind == "bundle_item" else kind
                raise ConfigError(
                    f"{job.users} does not fit the model in {job.model}: the {what} are others. Give users "
                    "of the very shop that the model was trained on"
                )
        return LayoutPeople(layout, known=trained_on(job.model)["fingerprint"] == self.ready.users_from)

    def __call__(self, number: int) -> PartDone:
        job, users = self.ready.job, self.ready.users_of(number)
        if not self.folder.parts.is_dir():
            raise _elsewhere(f"{self.folder.parts} is not where a worker looks for it")
        ids, histories = self.people.read(users.start, users.stop)
        found = self.model.rank_bundles(histories, job.k, where=job.where, include_owned=job.include_owned)
        batches = record_batches(found, ids, self.model.shop.bundle_ids)
        return PartDone(number, write_parquet(batches, self.folder.part(number)), self.about_index)


def _elsewhere(found: str) -> ClusterError:
    return ClusterError(f"{found}: name a folder on storage that all machines of the cluster share")


class Work:
    """The parts of a job: those that are there, and those that are left."""

    def __init__(self, ready: Ready) -> None:
        job = ready.job
        self.folder = AnswersFolder(job.output).open(
            ready.identity(), resume=job.resume, overwrite=job.overwrite
        )
        self.ready = replace(ready, folder=self.folder.path)
        there = {number: self.folder.rows(number) for number in range(ready.parts)}
        self.kept = {number: rows for number, rows in there.items() if rows is not None}
        self.left = [number for number in there if number not in self.kept]

    def follow(self, done: Iterable[PartDone], progress: Progress) -> Scored:
        """Count the parts as they get done, in whatever order, and close the folder."""
        rows, about_index = dict(self.kept), None
        users = sum(len(self.ready.users_of(number)) for number in rows)
        progress("users", users, self.ready.users)
        try:
            for part in done:
                if len(rows) == len(self.kept):  # the first tells soon whether others will be seen
                    self._check_there([part.number])
                rows[part.number], about_index = part.rows, about_index or part.about_index
                users += len(self.ready.users_of(part.number))
                progress("users", users, self.ready.users)
            self._check_there(self.left)
        except BundleMageError:
            self.folder.give_up()
            raise
        scored = Scored(users, sum(rows.values()), self.ready.parts, len(self.kept), about_index)
        if len(rows) != self.ready.parts:
            raise RuntimeError(f"{self.ready.parts - len(rows)} parts were not done")  # an engine's mistake
        self.folder.finish(self.ready.identity(), {"rows": scored.rows, "parts": scored.parts})
        return scored

    def _check_there(self, parts: Sequence[int]) -> None:
        """Whether what workers say they have written is there to be read."""
        deadline = time.monotonic() + SECONDS_TO_APPEAR
        while missing := [number for number in parts if self.folder.rows(number) is None]:
            if time.monotonic() > deadline:
                raise _elsewhere(f"workers have written {self.folder.part(missing[0])}, and it is not here")
            time.sleep(min(1.0, SECONDS_TO_APPEAR / 10))


def score(job: ScoringJob, progress: Progress = in_silence) -> Scored:
    ready = make_ready(job, progress)
    work = Work(ready)
    return work.follow(map(PartScorer(work.ready), work.left), progress)
