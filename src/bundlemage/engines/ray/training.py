"""Training on a cluster: Ray Train starts the processes, tells PyTorch of them, and replaces what dies."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Sequence
from queue import Empty
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.util.queue import Queue

from bundlemage.engines.processes import GO_ON
from bundlemage.engines.ray.cluster import Cluster
from bundlemage.engines.training import Teller, TrainingJob, show, train_part
from bundlemage.errors import BundleMageError, ClusterError
from bundlemage.models.base import Model
from bundlemage.training.history import Observer
from bundlemage.training.loop import TrainingResult

REPLACED_AT_MOST = 3
"""How often workers that died are replaced before training is given up."""


def train(
    job: TrainingJob, cluster: Cluster, model: Model, observers: Sequence[Observer] = ()
) -> TrainingResult:
    started, on_gpus = time.perf_counter(), _on_gpus(job)
    workers = _workers(cluster, "GPU" if on_gpus else "CPU")
    job = job.begin()
    scratch = job.folder.with_name(f"{job.folder.name}.ray")  # of Ray Train itself, on shared storage
    events, refusals = (Queue(actor_options={"num_cpus": 0}) for _ in range(2))
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"job": job, "events": events, "refusals": refusals},
        torch_config=TorchConfig(backend="nccl" if on_gpus else "gloo"),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=on_gpus),
        run_config=RunConfig(
            name="run",
            storage_path=str(scratch.resolve()),
            failure_config=FailureConfig(max_failures=REPLACED_AT_MOST),
        ),
    )
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    given_up: Exception | None = None
    interrupted = False
    try:
        with _Audience(events, observers):
            trainer.fit()
    except KeyboardInterrupt:
        interrupted = True
    except Exception as error:
        given_up = error
    shutil.rmtree(scratch, ignore_errors=True)
    if not refusals.empty():
        raise refusals.get()
    if given_up is not None:
        why = (str(given_up).splitlines() or [type(given_up).__name__])[0]
        raise ClusterError(
            f"training on Ray failed ({why}); workers that die are replaced {REPLACED_AT_MOST} times. {GO_ON}"
        ) from given_up
    took, where = time.perf_counter() - started, f"{workers} × {'cuda' if on_gpus else 'cpu'}"
    return job.finish(model, took, where, interrupted=interrupted)


def _workers(cluster: Cluster, kind: str) -> int:
    """As many as are asked for, or as there is room for: Ray would wait for more without a word."""
    there = int(ray.cluster_resources().get(kind, 0))
    workers = cluster.asked or max(1, there)
    if workers > there:
        raise ClusterError(
            f"{workers} workers want a {kind} each, and the cluster has {there}: ask for fewer workers"
        )
    return workers


def _on_gpus(job: TrainingJob) -> bool:
    device = job.recipe.recommender().config.device
    there = ray.cluster_resources().get("GPU", 0) > 0
    if device.startswith("cuda") and not there:
        raise ClusterError(f"device {device!r}: the cluster has no GPU; use auto or cpu")
    return there and device != "cpu"


def _worker(config: dict[str, Any]) -> None:
    refusals = config["refusals"]
    if not refusals.empty():
        return  # nothing that a new worker would do better
    try:
        train_part(config["job"], str(get_device()), [Teller(config["events"].put)])
    except BundleMageError as error:
        refusals.put(error)
        raise  # so that nobody waits for this one


class _Audience:
    """Shows what the first worker tells, while Ray Train keeps this process waiting."""

    def __init__(self, events: Queue, observers: Sequence[Observer]) -> None:
        self.events, self.observers = events, observers
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look_on, daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()
        for observer in self.observers:
            observer.on_end()
        self.events.shutdown(force=True)

    def _look_on(self) -> None:
        while True:
            ending = self.over.is_set()
            try:
                event = self.events.get(timeout=0.2)
            except Empty:
                if ending:
                    return
                continue
            show(event, self.observers)
