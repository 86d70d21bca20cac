"""A saved model on the test cases of its data, in chunks that several processes may share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import torch

from bundlemage.artifact.files import describe_artifact
from bundlemage.data.splits import GenerationCases, MatchingCases, Source, Split
from bundlemage.engines.base import ModelJob, Workers
from bundlemage.errors import ConfigError
from bundlemage.evaluation.protocols import Evaluation, PerCase, case_metrics, cases_at_a_time, evaluation_of
from bundlemage.models.base import Completer, Interactions, Matcher, can
from bundlemage.progress import Progress
from bundlemage.readers.load import SAMPLE, read
from bundlemage.recommender import Recommender, beside_popularity

Task: TypeAlias = Literal["matching", "generation"]


@dataclass(frozen=True)
class EvaluationJob(ModelJob):
    """A model, and the data that it was trained on; by default the built-in shop, if it was that."""

    location: str | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    """The table or query of `user_item` and so on, for a database."""

    @cached_property
    def source(self) -> Source:
        """The data, read when it is first needed."""
        if self.location is None and (name := describe_artifact(self.model)[1]["dataset"]["name"]) != SAMPLE:
            raise ConfigError(
                f"on what data? This model was trained on {name!r}: "
                "give its location, as in 'bundlemage evaluate DIR PATH'"
            )
        return read(self.location or SAMPLE, self.tables)

    @cached_property
    def split(self) -> Split:
        return self.recommender.plan.divide(self.source.dataset, self.source.ready)

    @cached_property
    def examiner(self) -> Examiner:
        """Asks the models, which are loaded or fitted when it is first needed."""
        return Examiner(self)

    @property
    def data_changed(self) -> bool:
        """Whether the data is not what the model was trained on."""
        return self.source.dataset.fingerprint() != self.recommender.dataset.fingerprint()


def evaluate(job: EvaluationJob, workers: Workers, progress: Progress) -> list[Evaluation]:
    """Evaluate the model and popularity. The workers return the values of single cases; their means are taken
    here, in the order of the cases, so that they do not depend on the number of workers."""
    examiner = job.examiner
    chunks = examiner.chunks(workers.count)
    by_model: list[dict[str, list[PerCase]]] = [{} for _ in examiner.models]
    done, of = 0, sum(len(chunk.cases) for chunk in chunks)
    progress("cases", done, of)
    for chunk, values in zip(chunks, workers.each(_asking, job, chunks), strict=True):
        by_model[chunk.model].setdefault(chunk.task, []).append(values)
        done += len(chunk.cases)
        progress("cases", done, of)
    return [
        evaluation_of(model.model, examiner.split, {task: _joined(parts) for task, parts in tasks.items()})
        for model, tasks in zip(examiner.models, by_model, strict=True)
    ]


def _asking(job: EvaluationJob) -> Callable[[Chunk], PerCase]:
    return job.examiner.ask


def _joined(parts: list[PerCase]) -> PerCase:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


class Chunk(NamedTuple):
    """Some cases of one task, for one of the models."""

    model: int
    task: Task
    cases: range


class Examiner:
    """The models and the cases of a job."""

    def __init__(self, job: EvaluationJob) -> None:
        job.recommender.check_same_shop(job.split)
        self.split = job.split
        self.models = beside_popularity(job.recommender, job.split)

    def chunks(self, processes: int) -> list[Chunk]:
        """All cases of all models, as chunks for so many processes.

        Each chunk is a whole number of the batches that a single process makes: a score differs in its last
        digit with the batch that it is computed in.
        """
        return [
            Chunk(number, task, cases)
            for number, model in enumerate(self.models)
            for task, count, width in self._tasks(model)
            for cases in _cut(count, cases_at_a_time(width), 4 * processes)
        ]

    def _tasks(self, model: Recommender) -> Iterator[tuple[Task, int, int]]:
        sizes = model.model.sizes
        if self.split.test and can(model.model, Matcher):
            yield "matching", len(self.split.test), sizes.bundles
        if self.split.generation and can(model.model, Completer):
            yield "generation", len(self.split.generation), sizes.items

    @cached_property
    def _data(self) -> Interactions:
        return Interactions.of(self.split.train, self.models[0].shop.device)

    def ask(self, chunk: Chunk) -> PerCase:
        """The metrics of each case of a chunk."""
        some = replace(self.split, test=None, generation=None)
        if chunk.task == "matching":
            assert self.split.test is not None
            some = replace(some, test=_matching(self.split.test, chunk.cases))
        else:
            assert self.split.generation is not None
            some = replace(some, generation=_generation(self.split.generation, chunk.cases))
        metrics = case_metrics(self.models[chunk.model].model, some, self._data)[chunk.task]
        return {name: values.cpu() for name, values in metrics.items()}


def _cut(count: int, batch: int, pieces: int) -> Sequence[range]:
    batches = -(-count // batch)
    step = -(-batches // pieces) * batch
    return [range(start, min(start + step, count)) for start in range(0, count, max(1, step))]


def _matching(cases: MatchingCases, some: range) -> MatchingCases:
    these = slice(some.start, some.stop)
    candidates = None if cases.candidates is None else cases.candidates[these]
    return MatchingCases(cases.users[these], cases.positives[these], candidates)


def _generation(cases: GenerationCases, some: range) -> GenerationCases:
    """Held-out bundles are few, and stay as they are."""
    these = slice(some.start, some.stop)
    return replace(cases, users=cases.users[these], bundles=cases.bundles[these])
