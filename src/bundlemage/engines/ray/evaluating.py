"""A saved model on the test cases of its data, in chunks over the processes of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from bundlemage.engines.base import Progress, written_out
from bundlemage.engines.evaluating import Chunk, EvaluationJob, Examiner
from bundlemage.engines.ray.cluster import Cluster
from bundlemage.engines.ray.pool import in_order
from bundlemage.engines.ray.resources import device_here, resources
from bundlemage.evaluation.protocols import PerCase
from bundlemage.evaluation.results import Evaluation, evaluation_of


def evaluate(job: EvaluationJob, cluster: Cluster, progress: Progress) -> list[Evaluation]:
    """The values of single cases come back, and their means are taken here, in the order of the cases."""
    given = resources(cluster, job.device)
    job.load(device_here(job.device))
    examiner = Examiner(job)
    chunks = examiner.chunks(given.workers)
    found: list[dict[str, list[PerCase]]] = [{} for _ in examiner.models]
    done, of = 0, sum(len(chunk.cases) for chunk in chunks)
    progress("cases", done, of)
    answers = in_order(given, partial(_asking, written_out(job)), chunks)
    for chunk, values in zip(chunks, answers, strict=True):
        found[chunk.model].setdefault(chunk.task, []).append(values)
        done += len(chunk.cases)
        progress("cases", done, of)
    return [
        evaluation_of(model.model, examiner.split, {task: _joined(parts) for task, parts in of_model.items()})
        for model, of_model in zip(examiner.models, found, strict=True)
    ]


def _asking(job: EvaluationJob) -> Callable[[Chunk], PerCase]:
    return Examiner(job).ask


def _joined(parts: list[PerCase]) -> PerCase:
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
