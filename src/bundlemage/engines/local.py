"""This machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from bundlemage.engines.base import AnyJob, Engine, Piece, Result, Workers
from bundlemage.errors import ConfigError
from bundlemage.progress import Progress, in_silence

if TYPE_CHECKING:
    from bundlemage.engines.training import TrainingJob
    from bundlemage.models.base import Model
    from bundlemage.training.history import Observer
    from bundlemage.training.loop import TrainingResult
    from bundlemage.tuning.study import Search, Study


class LocalEngine(Engine):
    """One process does a job; training and tuning may have several."""

    name: ClassVar[str] = "local"

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or 1
        self.alone = self.workers == 1

    @contextmanager
    def working(self, doing: str, device: str) -> Iterator[Workers]:
        if not self.alone:
            raise ConfigError(
                f"here, {doing} is done by one process, and --workers says {self.workers}: add --engine ray, "
                "or leave it out"
            )
        yield ThisProcess()

    def train_one(self, job: TrainingJob, model: Model, observers: Sequence[Observer] = ()) -> TrainingResult:
        from bundlemage.engines.processes import train

        return train(job, model, observers, self.workers)

    def tune(self, search: Search, progress: Progress = in_silence) -> Study:
        from bundlemage.training.devices import resolve_device
        from bundlemage.tuning.session import tune

        resolve_device(search.device)
        return tune(search, progress, self.workers)


class ThisProcess:
    """Does all pieces of a job itself."""

    count = 1

    def each(
        self, make: Callable[[AnyJob], Callable[[Piece], Result]], job: AnyJob, pieces: Iterable[Piece]
    ) -> Iterator[Result]:
        """See `Workers.each`."""
        work = make(job)
        return map(work, pieces)
