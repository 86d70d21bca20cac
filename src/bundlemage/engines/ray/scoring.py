"""The best bundles of every user, on Ray Data: each process loads the model once and writes its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import ray.data

from bundlemage.engines.base import Progress
from bundlemage.engines.ray.cluster import Cluster
from bundlemage.engines.ray.pool import AHEAD, resources
from bundlemage.engines.scoring import PartDone, PartScorer, Ready, Scored, ScoringJob, Work, make_ready
from bundlemage.errors import BundleMageError


def score(job: ScoringJob, cluster: Cluster, progress: Progress) -> Scored:
    ready = make_ready(job, progress)
    work = Work(ready)
    return work.follow(_anywhere(ready, work.left, cluster), progress)


def _anywhere(ready: Ready, left: list[int], cluster: Cluster) -> Iterator[PartDone]:
    """The parts that are left, as they get done. Nothing comes back but counts."""
    if not left:
        return
    given = resources(cluster, ready.job.device)
    processes = ray.data.ActorPoolStrategy(
        size=min(cluster.workers, len(left)), max_tasks_in_flight_per_actor=AHEAD
    )
    done = ray.data.from_items(left, override_num_blocks=len(left)).map_batches(
        _Scorer, fn_constructor_args=(ready,), compute=processes, batch_size=1, **given
    )
    for row in done.iter_rows():
        if row["error"] is not None:
            raise row["error"]
        yield PartDone(row["number"], row["rows"])


class _Scorer:
    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self.score: PartScorer | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        number, rows = int(batch["item"][0]), 0
        # An error is an answer, too: raised here, Ray Data would print it as a fault of its own; and raised
        # while the process starts, as in building an index, Ray would start others, again and again.
        error = np.empty(1, object)
        try:
            self.score = self.score or PartScorer(self.ready)
            rows = self.score(number).rows
        except BundleMageError as raised:
            error[0] = raised
        return {"number": [number], "rows": [rows], "error": error}
