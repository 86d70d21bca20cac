"""The engine for a Ray cluster, or for Ray on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from bundlemage.engines.base import Engine, Workers
from bundlemage.engines.ray.joining import joined
from bundlemage.errors import BundleMageError, ClusterError, MissingExtraError
from bundlemage.progress import Progress, in_silence

if TYPE_CHECKING:
    from bundlemage.engines.training import TrainingJob
    from bundlemage.models.base import Model
    from bundlemage.training.history import Observer
    from bundlemage.training.loop import TrainingResult
    from bundlemage.tuning.study import Search, Study


class RayEngine(Engine):
    """Runs jobs on a Ray cluster. Each job joins the cluster first and leaves it at the end. Ray is imported
    only then.

    Without an address, Ray is started on this machine for each job.
    """

    name: ClassVar[str] = "ray"

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        if find_spec("ray") is None:  # fail before any work is done
            raise MissingExtraError("ray", "the engine 'ray'")
        self.address, self.workers = address, workers

    @contextmanager
    def working(self, doing: str, device: str) -> Iterator[Workers]:
        with self._joined(f"{doing} on Ray"):
            from bundlemage.engines.ray.pool import RayWorkers, resources

            yield RayWorkers(resources(self.workers, device))

    def device_here(self, device: str) -> str:
        """Returns `cpu` instead of a GPU that this machine lacks: the workers use the GPUs."""
        from bundlemage.training.devices import present

        return "cpu" if device.startswith("cuda") and not present(device) else device

    def train_one(self, job: TrainingJob, model: Model, observers: Sequence[Observer] = ()) -> TrainingResult:
        with self._joined("training on Ray"):
            from bundlemage.engines.ray.training import train

            return train(job, self.workers, model, observers)

    def tune(self, search: Search, progress: Progress = in_silence) -> Study:
        with self._joined("tuning on Ray"):
            from bundlemage.engines.ray.pool import RayPool, resources
            from bundlemage.tuning.session import tune

            share = resources(self.workers, search.device)
            return tune(search, progress, share.workers, partial(RayPool, gpus=share.gpus))

    @contextmanager
    def _joined(self, needed_for: str) -> Iterator[None]:
        """Join the cluster for a job. If the process has joined it before, as in tests, it stays joined.

        A BundleMageError that a worker raises is raised here too.
        """
        # Ray shall not send usage reports, and its processes shall not print messages.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        ray = sys.modules.get("ray")  # a broken Ray may end the process that imports it
        with ExitStack() as at_the_end:
            if ray is None or not ray.is_initialized():
                at_the_end.enter_context(joined(self.address, self.workers))
            from ray.exceptions import RayError

            try:
                yield
            except BundleMageError:
                raise
            except Exception as error:
                if cause := _cause(error):
                    raise cause from None
                if isinstance(error, RayError):
                    raise ClusterError(f"{needed_for} failed: {str(error).splitlines()[0]}") from error
                raise


def _cause(error: BaseException | None) -> BundleMageError | None:
    """Returns the BundleMageError inside an error of Ray, or None."""
    while error is not None:
        if isinstance(error, BundleMageError):
            return error
        error = getattr(error, "cause", None) or error.__cause__
    return None
