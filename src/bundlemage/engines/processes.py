"""Several training processes on this machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bundlemage.engines.training import TrainingJob, train_part
from bundlemage.errors import BundleMageError, ClusterError, ConfigError
from bundlemage.models.base import Model
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import Observer, Teller, show
from bundlemage.training.loop import TrainingResult
from bundlemage.training.pool import Ask, Died, Pool

SECONDS_FOR_REASONS = 2.0
"""How long the others may give a reason after one process has failed."""
GO_ON = "--resume goes on from the last checkpoint, if there is one"


def train(
    job: TrainingJob, model: Model, observers: Sequence[Observer] = (), workers: int = 1
) -> TrainingResult:
    """Start the processes, show the progress of the first one, and wait for all."""
    started = time.perf_counter()
    device = resolve_device(job.device)
    if device.index is not None and workers > 1:
        raise ConfigError(f"device '{device}' is one GPU, and there are {workers} workers: write 'cuda'")
    job, gpus = job.begin(), torch.cuda.device_count()
    backend = "nccl" if device.type == "cuda" and workers <= gpus else "gloo"
    devices = [f"cuda:{rank % gpus}" if device.type == "cuda" else str(device) for rank in range(workers)]
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    failures: list[Exception | Died] = []
    interrupted = False
    try:
        with Pool(workers, _train_part, (job, workers, store.port, backend)) as pool:
            for _, failure in pool.run(enumerate(devices), lambda _, event: show(event, observers)):
                if failure is not None:
                    failures.append(failure)
                    timer = threading.Timer(SECONDS_FOR_REASONS, pool.terminate)
                    timer.daemon = True
                    timer.start()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for observer in observers:
            observer.on_end()
    if failures:
        raise _reason(failures)
    took = time.perf_counter() - started
    return job.finish(model, took, f"{workers} × {device}", interrupted=interrupted)


def _reason(failures: Sequence[Exception | Died]) -> Exception:
    """What went wrong first. That the other processes then miss the one that failed is no reason."""

    def order(failure: Exception | Died) -> int:
        if isinstance(failure, Died):
            return 1 if failure.how != "SIGTERM" else 3  # we have ended it
        return 2 if isinstance(failure, ClusterError) else 0

    first = min(failures, key=order)
    if isinstance(first, Died):
        return ClusterError(f"a training process died ({first.how}); {GO_ON}")
    return first


def _train_part(
    shared: tuple[TrainingJob, int, int, str], task: tuple[int, str], ask: Ask
) -> Exception | None:
    """The work of one process; returns the error if it fails."""
    (job, size, port, backend), (rank, device) = shared, task
    try:
        if device != "cpu":
            torch.cuda.set_device(device)
        store = TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size)
        try:
            train_part(job, device, [Teller(ask)])
        finally:
            dist.destroy_process_group()
    except BundleMageError as error:
        return error
    except Exception as error:
        what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        return ClusterError(f"a training process failed ({what}); {GO_ON}")
    return None
