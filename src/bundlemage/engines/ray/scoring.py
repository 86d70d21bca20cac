"""The best bundles of every user, on Ray Data: each process loads the model once and writes its parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import ray.data

from bundlemage.engines.base import Progress, written_out
from bundlemage.engines.ray.cluster import Cluster
from bundlemage.engines.ray.pool import AHEAD, LOST_AT_MOST, given_up
from bundlemage.engines.ray.resources import Resources, resources
from bundlemage.engines.scoring import PartDone, PartScorer, Ready, Scored, ScoringJob, Work, make_ready
from bundlemage.errors import BundleMageError


def score(job: ScoringJob, cluster: Cluster, progress: Progress) -> Scored:
    given = resources(cluster, job.device)
    work = Work(make_ready(written_out(job), progress))
    return work.follow(_anywhere(work.ready, work.left, given), progress)


def _anywhere(ready: Ready, left: list[int], given: Resources) -> Iterator[PartDone]:
    """The parts that are left, as they get done. Nothing comes back but counts."""
    if not left:
        return
    processes = ray.data.ActorPoolStrategy(
        size=min(given.workers, len(left)), max_tasks_in_flight_per_actor=AHEAD
    )
    done = ray.data.from_items(left, override_num_blocks=len(left)).map_batches(
        _Scorer, fn_constructor_args=(ready,), compute=processes, batch_size=1, **given.options
    )
    for row in done.iter_rows():
        if row["error"] is not None:
            raise row["error"]
        yield PartDone(row["number"], row["rows"], row["about_index"])


class _Scorer:
    def __init__(self, ready: Ready) -> None:
        self.ready = ready
        self.score: PartScorer | None = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        number, rows, about_index = int(batch["item"][0]), 0, None
        # An error is an answer, too: raised here, Ray Data would print it as a fault of its own; and raised
        # while the process starts, as in building an index, Ray would start others, again and again.
        error = np.empty(1, object)
        try:
            self.score = self.score or PartScorer(self.ready)
            # Ray Data does a part that kills its process again without end, and takes no word against it.
            if self.score.folder.tries(number) > LOST_AT_MOST:
                raise given_up()
            _, rows, about_index = self.score(number)
        except BundleMageError as raised:
            error[0] = raised
        return {
            "number": [number],
            "rows": [rows],
            "about_index": np.array([about_index], object),
            "error": error,
        }
