"""Training on a cluster: Ray Train starts processes and connects them for PyTorch. If one dies, the training
continues with new processes."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Sequence
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device
from ray.util.queue import Queue

from bundlemage.engines.ray.pool import resources
from bundlemage.engines.training import RESUME_HINT, TrainingJob, train_part
from bundlemage.errors import BundleMageError, ClusterError
from bundlemage.models.base import Model
from bundlemage.training.history import Forwarder, Observer, show
from bundlemage.training.loop import TrainingResult

REPLACED_AT_MOST = 3
"""Maximum number of times that dead workers are replaced. After that, the training fails."""
NO_ROOM_YET = "WorkerGroupStartupTimeoutError"
"""The error of Ray Train when other work has taken the processors or GPUs. The job waits for them."""


def train(
    job: TrainingJob, workers: int | None, model: Model, observers: Sequence[Observer] = ()
) -> TrainingResult:
    """Train one model with the processes of a cluster. Returns the history."""
    started = time.perf_counter()
    share = resources(workers, job.device, whole_gpus=True)
    job = job.begin()
    scratch = job.folder.with_name(f"{job.folder.name}.ray")  # for Ray Train itself, on shared storage
    events, errors = (Queue(actor_options={"num_cpus": 0}) for _ in range(2))
    run = RunConfig(name="run", storage_path=str(scratch.resolve()), failure_config=_never_again())
    trainer = TorchTrainer(
        _worker,
        train_loop_config={"job": job, "events": events, "errors": errors},
        torch_config=TorchConfig(backend="nccl" if share.gpus else "gloo"),
        scaling_config=ScalingConfig(
            num_workers=share.workers,
            use_gpu=bool(share.gpus),
            resources_per_worker={"CPU": share.cpus, "GPU": share.gpus},
        ),
        run_config=run,
    )
    logging.getLogger("ray.train").setLevel(logging.ERROR)
    failure: Exception | None = None
    interrupted = False

    def show_all() -> None:
        """Show the progress of the first worker, until the event None."""
        for event in iter(events.get, None):
            show(event, observers)

    watching = threading.Thread(target=show_all, daemon=True)
    watching.start()
    failed = 0
    while failed <= REPLACED_AT_MOST and errors.empty():
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.parent.mkdir(parents=True, exist_ok=True)
        failure = None
        try:
            trainer.fit()
            break
        except (KeyboardInterrupt, SystemExit):  # Ray Train answers Ctrl-C with SystemExit
            interrupted = True
            break
        except Exception as error:
            failure = getattr(error, "controller_failure", error)
            failed += type(failure).__name__ != NO_ROOM_YET
    events.put(None)
    watching.join()
    events.shutdown(force=True)
    for observer in observers:
        observer.on_end()
    shutil.rmtree(scratch, ignore_errors=True)
    if not errors.empty():
        raise errors.get()
    if failure is not None:
        why = (str(failure).splitlines() or [type(failure).__name__])[0].rstrip(".:")
        raise ClusterError(
            f"training on Ray failed {failed} times ({why}); dead workers are replaced at most "
            f"{REPLACED_AT_MOST} times. {RESUME_HINT}"
        ) from failure
    seconds, where = time.perf_counter() - started, f"{share.workers} × {'cuda' if share.gpus else 'cpu'}"
    return job.finish(model, seconds, where, interrupted=interrupted)


def _never_again() -> FailureConfig:
    """Returns settings with which Ray Train replaces no worker. By default, it has no limit for workers that
    die while they start, and counts them separately from those that die later."""
    config = FailureConfig(max_failures=0, controller_failure_limit=0)
    config.max_preemption_failures = 0  # older versions of Ray do not take it as an argument
    return config


def _worker(config: dict[str, Any]) -> None:
    try:
        train_part(config["job"], str(get_device()), [Forwarder(config["events"].put)])
    except BundleMageError as error:
        config["errors"].put(error)
        raise  # otherwise the other processes would wait for this one
