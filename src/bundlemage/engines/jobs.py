"""Jobs with a saved model: evaluating it on the test cases of its data, and running a campaign.

Several processes may share the work. In a campaign they compute scores in advance, and this process chooses
the bundles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import torch

from bundlemage.artifact.files import describe_artifact
from bundlemage.campaigns.plan import Offer
from bundlemage.campaigns.run import run_campaign
from bundlemage.campaigns.settings import Campaign, CampaignSummary
from bundlemage.core.filters import Filter
from bundlemage.data.splits import Source, Split
from bundlemage.engines.base import Workers
from bundlemage.errors import ConfigError
from bundlemage.evaluation import PerCase, case_metrics, cases_at_a_time
from bundlemage.measures.slices import check_columns
from bundlemage.models.base import Completer, Interactions, Matcher, can
from bundlemage.progress import Progress
from bundlemage.readers.load import is_sample, read
from bundlemage.recommender import Recommender
from bundlemage.scorecard import (
    Command,
    Competitor,
    Scorecard,
    beyond_accuracy,
    commands,
    competitors,
    scorecard_of,
)

Task: TypeAlias = Literal["matching", "generation"]


@dataclass(frozen=True)
class ModelJob:
    """A job that uses a saved model. The loaded model is kept, but not sent to other processes."""

    model: Path
    """The folder of the model."""
    device: str = field(default="auto", kw_only=True)

    @cached_property
    def recommender(self) -> Recommender:
        """The model, loaded when it is first needed."""
        return Recommender.load(self.model, device=self.device)

    def load(self, device: str) -> None:
        """Load the model on `device` unless it is loaded already."""
        if "recommender" not in vars(self):
            vars(self)["recommender"] = replace(self, device=device).recommender

    def __getstate__(self) -> dict[str, Any]:
        return {part.name: getattr(self, part.name) for part in fields(self)}


# ── Evaluating ───────────────────────────────────────────────────────────────────────────────────


class Chunk(NamedTuple):
    """Some cases of one task, and the number of the model to evaluate."""

    model: int
    task: Task
    cases: range


@dataclass(frozen=True)
class EvaluationJob(ModelJob):
    """A model to evaluate, and the location of its data. A sample shop needs no location."""

    location: str | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    """For a database: the table or query for each part of the data, such as `user_item`."""
    events: Mapping[str, float] | None = None
    """The weights of types of events. None: those with which the model's data was read."""
    slice_by: Sequence[str] = ()
    """Columns of the catalogue that the test cases are divided by."""

    @cached_property
    def read_from(self) -> str:
        """The location of the data."""
        if self.location is not None:
            return self.location
        name = str(describe_artifact(self.model)[1]["dataset"]["name"])
        if not is_sample(name):
            raise ConfigError(
                f"no data to evaluate on: this model was trained on {name!r}. "
                "Give its location, as in 'bundlemage evaluate DIR PATH'"
            )
        return name  # the name of a sample shop is its location

    @cached_property
    def source(self) -> Source:
        """The data, read when it is first needed."""
        events = self.events
        if events is None:
            events = describe_artifact(self.model)[1]["dataset"].get("events")
        return read(self.read_from, self.tables, events)

    @property
    def command(self) -> Command:
        """Gives the command that trains another model in place of this one."""
        return commands(self.recommender, self.read_from, self.model, self.tables)

    @cached_property
    def split(self) -> Split:
        return self.recommender.plan.divide(self.source.dataset, self.source.ready)

    @property
    def data_changed(self) -> bool:
        """Whether the data differs from the data that the model was trained on."""
        return self.source.dataset.fingerprint() != self.recommender.dataset.fingerprint()

    @cached_property
    def models(self) -> list[Competitor]:
        """The model, and closed forms to compare it with."""
        self.recommender.check_same_shop(self.split)
        return competitors(self.recommender, self.split)

    @cached_property
    def _interactions(self) -> Interactions:
        return self.recommender.model.interactions(self.split.train, self.recommender.shop.device)

    def chunks(self, processes: int) -> list[Chunk]:
        """Returns all cases of all models, in chunks for this number of processes.

        Chunks consist of the same batches that a single process uses: the last digit of a score depends on
        the batch in which it is computed.
        """
        chunks, test, generation = list[Chunk](), self.split.test, self.split.generation
        for number, model in enumerate(self.models):
            sizes = model.model.sizes
            tasks: list[tuple[Task, int, int]] = []  # with the numbers of cases and of candidates
            if test and can(model.model, Matcher):
                tasks.append(("matching", len(test), sizes.bundles))
            if generation and can(model.model, Completer):
                tasks.append(("generation", len(generation), sizes.items))
            for task, count, width in tasks:
                ranges = _cut(count, cases_at_a_time(width), 4 * processes)
                chunks += [Chunk(number, task, cases) for cases in ranges]
        return chunks

    def measure(self, chunk: Chunk) -> PerCase:
        """Returns the metrics of each case of a chunk."""
        rows = slice(chunk.cases.start, chunk.cases.stop)
        test, generation = self.split.test, self.split.generation
        split = replace(
            self.split,
            test=test.chosen(rows) if test and chunk.task == "matching" else None,
            generation=generation.chosen(rows) if generation and chunk.task == "generation" else None,
        )
        metrics = case_metrics(self.models[chunk.model].model, split, self._interactions)[chunk.task]
        return {name: values.cpu() for name, values in metrics.items()}


def evaluate(job: EvaluationJob, workers: Workers, progress: Progress) -> Scorecard:
    """Returns the figures of the model and of closed forms. Workers compute the metrics of single cases.
    This process computes the means in the order of the cases: the number of workers does not matter."""
    check_columns(job.split, job.slice_by)
    chunks = job.chunks(workers.count)
    by_model: list[dict[str, list[PerCase]]] = [{} for _ in job.models]
    done, total = 0, sum(len(chunk.cases) for chunk in chunks)
    progress("cases", done, total)
    for chunk, values in zip(chunks, workers.each(attrgetter("measure"), job, chunks), strict=True):
        by_model[chunk.model].setdefault(chunk.task, []).append(values)
        done += len(chunk.cases)
        progress("cases", done, total)
    measured = [{task: _joined(parts) for task, parts in tasks.items()} for tasks in by_model]
    card = scorecard_of(job.models, measured, job.split, job.command, job.slice_by)
    return beyond_accuracy(card, job.models, job.recommender, job.split)


def _joined(parts: list[PerCase]) -> PerCase:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _cut(count: int, batch: int, pieces: int) -> Sequence[range]:
    """Returns at most `pieces` ranges that together cover `count` cases. Each consists of whole batches."""
    batches = -(-count // batch)
    step = -(-batches // pieces) * batch
    return [range(start, min(start + step, count)) for start in range(0, count, max(1, step))]


# ── Campaigns ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class CampaignJob(ModelJob):
    """Choose bundles for all users of a model, or for `users`. The results are written to a folder."""

    output: Path
    users: tuple[str, ...] | None = None
    where: Filter | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of `campaigns.settings.Campaign`, by name."""
    resume: bool = False

    @cached_property
    def offer(self) -> Offer:
        """The bundles that the campaign may show, with their limits."""
        settings, model = Campaign.of(where=self.where or Filter(), **self.settings), self.recommender
        return Offer.of(settings, model.model, model.shop, model.calibration, model.shop_settings)


def campaign(job: CampaignJob, workers: Workers, progress: Progress) -> CampaignSummary:
    """Run the campaign. This process chooses for one user at a time, because users share the limits."""
    ask = partial(workers.each, attrgetter("offer.scored"), job)
    return run_campaign(job.offer, job.output, job.users, resume=job.resume, progress=progress, ask=ask)
