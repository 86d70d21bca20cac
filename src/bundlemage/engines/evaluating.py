"""A saved model on the test cases of its data: what both engines do alike, and all of it in this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from bundlemage.data.splits import GenerationCases, MatchingCases, Source, Split
from bundlemage.engines.base import Progress, in_silence
from bundlemage.engines.people import trained_on
from bundlemage.errors import ConfigError
from bundlemage.evaluation.protocols import PerCase, cases_at_a_time
from bundlemage.evaluation.results import Evaluation, case_metrics
from bundlemage.models.base import Interactions
from bundlemage.readers.load import SAMPLE, read
from bundlemage.recommender import Recommender, beside_popularity

Task: TypeAlias = Literal["matching", "generation"]


@dataclass(frozen=True)
class EvaluationJob:
    """A model in a folder, and the data that it was trained on. Not said: the built-in shop, if it was that.

    What it names is read once, when it is first asked for, and does not travel.
    """

    model: Path
    location: str | None = None
    tables: Mapping[str, str] = field(default_factory=dict)
    """For a database."""
    device: str = "auto"

    @cached_property
    def recommender(self) -> Recommender:
        return Recommender.load(self.model, device=self.device)

    def load(self, device: str) -> None:
        """The model on this device, for a process that lets others work."""
        if "recommender" not in self.__dict__:
            self.__dict__["recommender"] = Recommender.load(self.model, device=device)

    @cached_property
    def source(self) -> Source:
        if self.location is None and (name := trained_on(self.model)["name"]) != SAMPLE:
            raise ConfigError(
                f"on what data? This model was trained on {name!r}: "
                "name its place, as in 'bundlemage evaluate DIR PATH'"
            )
        return read(self.location or SAMPLE, self.tables)

    @cached_property
    def split(self) -> Split:
        return self.recommender.plan.divide(self.source.dataset, self.source.ready)

    @property
    def data_changed(self) -> bool:
        return self.source.dataset.fingerprint() != self.recommender.dataset.fingerprint()

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}


def evaluate(job: EvaluationJob, progress: Progress = in_silence) -> list[Evaluation]:
    models = beside_popularity(job.recommender, job.split)
    rows = []
    for number, model in enumerate(models):
        progress("models", number, len(models))
        rows.append(model.evaluate(job.split))
    return rows


class Chunk(NamedTuple):
    """Some cases of one task, to be asked of one of the models."""

    model: int
    task: Task
    cases: range


class Examiner:
    """What one process needs to ask any chunk; read when the first one comes."""

    def __init__(self, job: EvaluationJob) -> None:
        job.recommender.check_same_shop(job.split)
        self.split = job.split
        self.models = beside_popularity(job.recommender, job.split)

    def chunks(self, processes: int) -> list[Chunk]:
        """All that is to be asked. Each is a whole number of the batches that one process alone would make:
        numbers differ in the last place with the batch that they are worked out in."""
        return [
            Chunk(number, task, cases)
            for number, model in enumerate(self.models)
            for task, count, width in self._tasks(model)
            for cases in _cut(count, cases_at_a_time(width), 4 * processes)
        ]

    def _tasks(self, model: Recommender) -> Iterator[tuple[Task, int, int]]:
        sizes = model.model.sizes
        if self.split.test and model.model.matches:
            yield "matching", len(self.split.test), sizes.bundles
        if self.split.generation and model.model.generates:
            yield "generation", len(self.split.generation), sizes.items

    @cached_property
    def _data(self) -> Interactions:
        return Interactions.of(self.split.train, self.models[0].shop.device)

    def ask(self, chunk: Chunk) -> PerCase:
        some = replace(self.split, test=None, generation=None)
        if chunk.task == "matching":
            assert self.split.test is not None
            some = replace(some, test=_matching(self.split.test, chunk.cases))
        else:
            assert self.split.generation is not None
            some = replace(some, generation=_generation(self.split.generation, chunk.cases))
        found = case_metrics(self.models[chunk.model].model, some, self._data)[chunk.task]
        return {name: values.cpu() for name, values in found.items()}


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
