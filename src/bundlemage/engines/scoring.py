"""Recommends bundles to all users. Users are divided into parts, and several processes may share them.

Users are read from files in ranges, so memory does not grow with the number of users.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from bundlemage.artifact.files import artifact_version, describe_artifact, load_without_users, verify_artifact
from bundlemage.core.filters import Filter
from bundlemage.core.ranking import SCHEMA
from bundlemage.data.dataset import fingerprint
from bundlemage.data.events import Events, Whole
from bundlemage.data.folders import ResumableFolder
from bundlemage.data.row_files import ENDINGS, check_replaceable, has_format, joined, write_rows
from bundlemage.data.shard_columns import FACT_COLUMNS, rows_of
from bundlemage.data.shards import Layout, read_part
from bundlemage.engines.base import Workers
from bundlemage.errors import ArtifactError, BundleMageError, ClusterError, ConfigError
from bundlemage.models.base import Histories, Interactions
from bundlemage.models.ragged import Ragged
from bundlemage.progress import Progress
from bundlemage.recommender import Recommender, Sales
from bundlemage.wire.shop import OwnedRule, StockRule

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
    """Write the k best bundles for every user to one file, or to a folder of Parquet files."""

    model: Path
    output: Path
    k: int = 10
    where: Filter | None = None
    owned: OwnedRule | None = None
    """What happens to bundles whose items the user owns. None: as in the settings of the model's shop."""
    stock: StockRule | None = None
    """What happens to bundles with a sold-out item. None: as in the settings of the model's shop."""
    diversity: float | None = None
    match_popularity: float | None = None
    """How much lists are varied, and how much their popularity follows the user's own bundles. None: as in
    the settings of the model's shop."""
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
    """Whether the answers go to one file rather than to a folder. Raises `ConfigError` if the name of the
    output has the ending of another kind of file."""
    if not has_format(output) and (output.is_file() or (output.suffix and not output.is_dir())):
        raise ConfigError(
            f"{output}: answers are written to a file whose name ends in {ENDINGS}, or to a folder whose "
            "name has no ending"
        )
    return has_format(output)


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
    """The result of a part that a process has finished."""

    rows: int
    about_index: str | None = None
    """A sentence about the index of that process."""
    table: pa.Table | None = None
    """The answers if they are written to a single file, otherwise None."""


@dataclass(frozen=True)
class Ready:
    """A job that is ready to start, with the facts about model and users that all processes need."""

    job: ScoringJob
    version: str
    users: int
    """The number of users who get recommendations."""
    users_from: str
    """The fingerprint of the layout with the users; `model` for the users of the model."""
    trained_users: int
    sales: Sales
    folder: Path | None
    """The folder for the parts of the answers; None if the answers are written to a single file."""
    half_life: float | None = None
    """That of the model, in days."""

    @property
    def parts(self) -> int:
        return -(-self.users // self.job.part_users)

    def users_of(self, number: int) -> range:
        start = number * self.job.part_users
        return range(start, min(start + self.job.part_users, self.users))

    def identity(self) -> dict[str, Any]:
        """Everything that the answers depend on. A run continues only with the same identity."""
        names = ("k", "owned", "stock", "least_recall", "part_users")
        settings = {name: getattr(self.job, name) for name in names}
        steering = {name: getattr(self.job, name) for name in ("diversity", "match_popularity")}
        settings |= {name: weight for name, weight in steering.items() if weight is not None}
        where = (self.job.where or Filter()).to_json()
        users = {"users": self.users, "users_from": self.users_from}
        return {"model": self.version, **settings, "where": where, **users}


def make_ready(job: ScoringJob, progress: Progress) -> Ready:
    """Check the files of the model, and count its users and sales. Returns the prepared job."""
    version = verify_artifact(job.model, progress)
    half_life = describe_artifact(job.model)[1]["settings"].get("half_life")
    half_life = None if isinstance(half_life, str) else half_life  # `fit` where nothing was chosen
    trained = ModelUsers(job.model)
    items, bundles = (_open(job.model / f"{kind}.parquet").metadata.num_rows for kind in ("items", "bundles"))
    users, users_from = len(trained), "model"
    if job.users is not None:
        layout = Layout.open(job.users)
        users, users_from = layout.sizes["users"], fingerprint(layout.digests)
    folder = None if is_file(job.output) else job.output
    return Ready(
        job, version, users, users_from, len(trained), trained.sales(items, bundles), folder, half_life
    )


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
            new._replace(self)  # the program was killed just before this step
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
            self._replace(self.replaces)

    def _replace(self, old: AnswersFolder) -> None:
        """Move the answers to the folder `old`. If this is interrupted, `open` does the remaining steps."""
        if self.parts.exists():
            if old.parts.exists():
                old.parts.rename(self.path / "old")
            self.parts.rename(old.parts)
        self.file_path.replace(old.file_path)
        shutil.rmtree(self.path)


# ── Users from files ─────────────────────────────────────────────────────────────────────────────


def _weighted_rows(
    lengths: Numbers,
    positions: Numbers,
    facts: Sequence[Numbers | None],
    whole: Whole | None,
    half_life: float | None,
) -> Ragged:
    """Returns rows of pairs with their weights. `lengths` are those of the rows. `facts` are the times and
    weights of the pairs, if known."""
    at, weight = facts
    rows, events = _ragged(lengths, positions), Events(at, weight, whole=whole)
    strengths, bought = events.weight, events.purchases
    if half_life is not None and events.at is not None:
        strengths = events.recent(half_life)
    return replace(
        rows,
        weights=None if strengths is None else torch.from_numpy(strengths.copy()),
        weak=None if bought is None else torch.from_numpy(~bought),
    )


class ModelUsers:
    """The users that a saved model was trained on, in their order. The pairs in its files are sorted
    by user, so a range of users is a range of rows. Parquet statistics show which rows to read."""

    def __init__(self, model: Path, half_life: float | None = None) -> None:
        """`half_life` is that of the model."""
        self._users, self._half_life = _open(model / "users.parquet"), half_life
        self._pairs = [model / f"user_{kind}.parquet" for kind in ("item", "bundle")]
        self._rejected = [model / f"user_{kind}_rejected.parquet" for kind in ("item", "bundle")]

    def __len__(self) -> int:
        return int(self._users.metadata.num_rows)

    def read(self, start: int, end: int) -> tuple[pa.Array, Histories]:
        """Returns the ids and histories of a range of users. Reads only the row groups with these users."""
        groups = [self._users.metadata.row_group(n).num_rows for n in range(self._users.num_row_groups)]
        edges = np.cumsum([0, *groups])
        first, last = np.searchsorted(edges, start, side="right") - 1, np.searchsorted(edges, end)
        table = self._users.read_row_groups(list(range(first, last)))
        ids = table["user_id"].slice(start - edges[first], end - start).combine_chunks()

        def pairs(file: Path) -> tuple[Numbers, pa.Table]:
            """The lengths of the rows of a file, and its columns."""
            table = pq.read_table(file, filters=[("row", ">=", start), ("row", "<", end)])
            return np.bincount(table["row"].to_numpy() - start, minlength=end - start), table

        taken = []
        for file, whole in zip(self._pairs, self._wholes, strict=True):
            lengths, found = pairs(file)
            facts = [found[name].to_numpy() if name in found.column_names else None for name in FACT_NAMES]
            taken.append(_weighted_rows(lengths, found["column"].to_numpy(), facts, whole, self._half_life))
        rejected: list[Ragged | None] = []
        for file in self._rejected:
            if not file.exists():
                rejected.append(None)
                continue
            lengths, found = pairs(file)
            rejected.append(_ragged(lengths, found["column"].to_numpy()))
        return ids, Histories(taken[0], taken[1], torch.arange(start, end), *rejected)

    @cached_property
    def _wholes(self) -> list[Whole]:
        times = self._half_life is not None
        return [
            Whole.of(_column(file, "weight"), _column(file, "at") if times else ()) for file in self._pairs
        ]

    def sales(self, items: int, bundles: int) -> Sales:
        """Returns the number of sales of each item and of each bundle. What was only viewed is no sale."""
        sales = np.zeros(items, np.int64), np.zeros(bundles, np.int64)
        for file, counts, whole in zip(self._pairs, sales, self._wholes, strict=True):
            for batch in _open(file).iter_batches(2**20, columns=_present(file, "column", "weight")):
                columns = batch["column"].to_numpy()
                if whole.tells_purchases and "weight" in batch.schema.names:
                    columns = columns[batch["weight"].to_numpy() >= 1]
                counts += np.bincount(columns, minlength=len(counts))
        return sales


class LayoutUsers:
    """The users of a sharded layout. `known`: the model was trained on them, at the same positions."""

    def __init__(self, layout: Layout, *, known: bool, half_life: float | None = None) -> None:
        """`half_life` is that of the model."""
        self._layout, self._known, self._half_life = layout, known, half_life
        self._parts = layout.parts("users")
        self._edges = np.cumsum([0, *(part.rows for part in self._parts)])
        # The last file is cached: several reads may need it.
        self._table = lru_cache(1)(partial(read_part, layout.folder))

    def __len__(self) -> int:
        return self._layout.sizes["users"]

    def read(self, start: int, end: int) -> tuple[pa.Array, Histories]:
        """Returns the ids and the histories of a range of users."""
        tables = []
        for part, first, last in zip(self._parts, self._edges, self._edges[1:], strict=False):
            here = range(max(start, first), min(end, last))
            if len(here):
                tables.append(self._table(part).slice(here.start - first, len(here)))
        table = pa.concat_tables(tables).combine_chunks()
        users = torch.arange(start, end) if self._known else None
        ids = table["user_id"].chunk(0)

        def known(column: str) -> tuple[Numbers, Numbers] | None:
            return rows_of(table[column]) if column in table.column_names else None

        taken, rejected = [], []
        for kind, matrix in _LISTS.items():
            columns, whole = FACT_COLUMNS[matrix], self._layout.whole.get(matrix)
            facts = [found and found[1] for found in (known(columns[name]) for name in FACT_NAMES)]
            taken.append(_weighted_rows(*rows_of(table[kind]), facts, whole, self._half_life))
            gone = known(columns["rejected"])
            rejected.append(None if gone is None else _ragged(*gone))
        return ids, Histories(taken[0], taken[1], users, *rejected)


Users: TypeAlias = ModelUsers | LayoutUsers
Numbers: TypeAlias = npt.NDArray[Any]
FACT_NAMES = ("at", "weight")
_LISTS = {"items": "user_item", "bundles": "user_bundle"}
"""For each column of positions: the matrix that it holds."""


def _present(file: Path, *columns: str) -> list[str]:
    """Those of the columns that a file has."""
    names = set(_open(file).schema_arrow.names)
    return [column for column in columns if column in names]


def _column(file: Path, name: str) -> Iterator[Numbers]:
    """Yields the values of a column, or of its lists, piece by piece; nothing if the file lacks it."""
    if _present(file, name):
        for batch in _open(file).iter_batches(2**16, columns=[name]):
            values = batch.column(0)
            yield (values.flatten() if pa.types.is_list(values.type) else values).to_numpy()


def _ragged(lengths: np.ndarray, positions: np.ndarray) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Ragged(torch.from_numpy(positions.astype(np.int64)), torch.from_numpy(offsets))


def spread(users: Users, count: int, ranges: int = 16) -> Histories:
    """Returns a sample of about `count` users, in `ranges` ranges that are evenly spaced."""
    size = max(1, count // ranges)
    starts = sorted({max(0, len(users) - size) * number // (ranges - 1) for number in range(ranges)})
    parts = [users.read(start, min(start + size, len(users)))[1] for start in starts]
    return reduce(Histories.append, parts)


@dataclass(frozen=True)
class Sample(Interactions):
    """A sample of users. They keep their numbers, because some models look users up by number."""

    numbers: Tensor | None = field(default=None, kw_only=True)

    def histories(self, users: Tensor) -> Histories:
        numbers = None if self.numbers is None else self.numbers[users]
        return replace(super().histories(users), users=numbers)


def _open(file: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise ArtifactError(f"{file} cannot be read ({error}); copy the folder again") from None


# ── Scoring ──────────────────────────────────────────────────────────────────────────────────────


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
            some, old = model.shop.checked(spread(self.users, INDEX_USERS)), model.shop.interactions
            sample = Sample(
                some.items,
                some.bundles,
                old.bundle_item,
                old.items,
                rejected_items=some.rejected_items,
                rejected_bundles=some.rejected_bundles,
                numbers=some.users,
            )
            model.shop.interactions = sample
            self.about_index = str(model.use_index(job.least_recall))
        return model

    @cached_property
    def users(self) -> Users:
        """The users who get recommendations."""
        job = self.ready.job
        if job.users is None:
            return ModelUsers(job.model, self.ready.half_life)
        layout = Layout.open(job.users)
        if fingerprint(layout.digests) != self.ready.users_from:
            raise ConfigError(f"{job.users} was replaced by other data during the run; start again")
        trained = describe_artifact(job.model)[1]["dataset"]
        of_model = load_without_users(job.model).dataset.digests()
        for kind in ("items", "bundles", "bundle_item"):
            if layout.digests[kind] != of_model[kind]:
                what = "contents of its bundles" if kind == "bundle_item" else kind
                raise ConfigError(
                    f"{job.users} does not fit the model in {job.model}: the {what} differ. Give users "
                    "of the same shop that the model was trained on"
                )
        known = trained["fingerprint"] == self.ready.users_from
        return LayoutUsers(layout, known=known, half_life=self.ready.half_life)

    def __call__(self, number: int) -> PartDone:
        """Compute the answers for the users of a part. Writes them to the folder, or returns them."""
        job, rows = self.ready.job, self.ready.users_of(number)
        folder = None if self.ready.folder is None else AnswersFolder(self.ready.folder)
        if folder is not None and not folder.parts.is_dir():
            raise _not_shared(f"a worker does not see the folder {folder.parts}")
        ids, histories = self.users.read(rows.start, rows.stop)
        batches = self.model.record_batches(
            histories,
            ids,
            job.k,
            where=job.where,
            owned=job.owned,
            stock=job.stock,
            diversity=job.diversity,
            match_popularity=job.match_popularity,
        )
        if folder is None:
            table = joined(list(batches))
            return PartDone(table.num_rows, self.about_index, table)
        return PartDone(write_rows(batches, SCHEMA, folder.part(number)), self.about_index)


def _not_shared(what: str) -> ClusterError:
    return ClusterError(f"{what}: choose a folder on storage that all machines of the cluster share")


class Work:
    """The parts of a job that writes to a folder: `kept` are finished already, `left` are still to do."""

    def __init__(self, ready: Ready) -> None:
        job = ready.job
        answers, identity = AnswersFolder(job.output), ready.identity()
        self.folder = answers.open(identity, resume=job.resume, overwrite=job.overwrite)
        self.ready = replace(ready, folder=self.folder.path)
        parts = {number: self.folder.rows(number) for number in range(ready.parts)}
        self.kept = {number: rows for number, rows in parts.items() if rows is not None}
        self.left = [number for number in parts if number not in self.kept]

    def follow(self, done: Iterable[PartDone], progress: Progress) -> ScoredUsers:
        """Wait for `done`, the results of the parts in `left`. Then mark the folder as finished."""
        rows, about_index, ready = sum(self.kept.values()), None, self.ready
        users = sum(len(ready.users_of(number)) for number in self.kept)
        progress("users", users, ready.users)
        try:
            for number, part in zip(self.left, done, strict=True):
                if number == self.left[0]:  # fail early if this process does not see the workers' files
                    self._check_there([number])
                rows, about_index = rows + part.rows, about_index or part.about_index
                users += len(ready.users_of(number))
                progress("users", users, ready.users)
            self._check_there(self.left)
        except BundleMageError:
            if not self.folder.finished_parts():
                self.folder.discard()
            raise
        self.folder.finish(ready.identity(), {"rows": rows, "parts": ready.parts})
        return ScoredUsers(users, rows, ready.parts, len(self.kept), about_index)

    def _check_there(self, parts: Sequence[int]) -> None:
        """Raises `ClusterError` if this process does not see the files that workers have written."""
        deadline = time.monotonic() + SECONDS_TO_APPEAR
        while missing := [number for number in parts if self.folder.rows(number) is None]:
            if time.monotonic() > deadline:
                file = self.folder.part(missing[0])
                raise _not_shared(f"workers have written {file}, but this process does not see it")
            time.sleep(min(1.0, SECONDS_TO_APPEAR / 10))


def score(job: ScoringJob, workers: Workers, progress: Progress) -> ScoredUsers:
    """Write the answers for all users. Returns the numbers of users and answers."""
    if is_file(job.output):
        return _score_to_file(job, workers, progress)
    work = Work(make_ready(job, progress))
    return work.follow(workers.each(PartScorer, work.ready, work.left), progress)


def _score_to_file(job: ScoringJob, workers: Workers, progress: Progress) -> ScoredUsers:
    check_replaceable(job.output, SCHEMA, overwrite=job.overwrite)
    # Parts are sent to this process, so their size is limited.
    part_users = min(job.part_users, max(1, FILE_ROWS // max(job.k, 1)))
    ready = make_ready(replace(job, part_users=part_users), progress)
    about_index: list[str] = []

    def batches() -> Iterator[pa.RecordBatch]:
        progress("users", 0, ready.users)
        for number, part in enumerate(workers.each(PartScorer, ready, range(ready.parts))):
            assert part.table is not None
            yield from part.table.to_batches()
            progress("users", ready.users_of(number).stop, ready.users)
            about_index.extend([part.about_index] if part.about_index else [])

    rows = write_rows(batches(), SCHEMA, job.output)
    return ScoredUsers(ready.users, rows, ready.parts, 0, about_index[0] if about_index else None)
