"""A Ray cluster, or Ray on this machine alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from bundlemage.engines.base import Engine, Workers
from bundlemage.engines.ray.cluster import Cluster
from bundlemage.progress import Progress, in_silence

if TYPE_CHECKING:
    from bundlemage.engines.training import TrainingJob
    from bundlemage.models.base import Model
    from bundlemage.training.history import Observer
    from bundlemage.training.loop import TrainingResult
    from bundlemage.tuning.study import Search, Study


class RayEngine(Engine):
    """Each job connects to the cluster and leaves it again. Nothing of Ray is imported before."""

    name: ClassVar[str] = "ray"

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        self.cluster = Cluster(address, workers)

    @contextmanager
    def working(self, doing: str, device: str) -> Iterator[Workers]:
        with self.cluster.joined(f"{doing} on Ray"):
            from bundlemage.engines.ray.pool import RayWorkers
            from bundlemage.engines.ray.resources import resources

            yield RayWorkers(resources(self.cluster, device))

    def device_here(self, device: str) -> str:
        """This process needs no GPU where the workers have one."""
        from bundlemage.training.devices import present

        return "cpu" if device.startswith("cuda") and not present(device) else device

    def train_one(self, job: TrainingJob, model: Model, observers: Sequence[Observer] = ()) -> TrainingResult:
        with self.cluster.joined("training on Ray"):
            from bundlemage.engines.ray.training import train

            return train(job, self.cluster, model, observers)

    def tune(self, search: Search, progress: Progress = in_silence) -> Study:
        with self.cluster.joined("tuning on Ray"):
            from bundlemage.engines.ray.pool import RayPool
            from bundlemage.engines.ray.resources import resources
            from bundlemage.tuning.session import tune

            share = resources(self.cluster, search.device)
            return tune(search, progress, share.workers, partial(RayPool, gpus=share.gpus))
