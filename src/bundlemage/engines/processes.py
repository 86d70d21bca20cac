"""Several training processes on this machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from bundlemage.engines.training import TrainingJob, train_part
from bundlemage.errors import BundleMageError, ClusterError, ConfigError
from bundlemage.models.base import Model
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import Event, Observer, Teller, show
from bundlemage.training.loop import TrainingResult
from bundlemage.training.pool import end_with_the_command

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
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context = multiprocessing.get_context("spawn")
    events = context.Queue()
    processes = []
    for rank in range(workers):
        own = f"cuda:{rank % gpus}" if device.type == "cuda" else str(device)
        what = (job, rank, workers, store.port, backend, own, events)
        processes.append(context.Process(target=_process, args=what, name=f"rank {rank}", daemon=True))
        processes[-1].start()
    interrupted = False
    try:
        for event in _events(events, processes):
            show(event, observers)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for process in processes:
            process.terminate()
            process.join()
        for observer in observers:
            observer.on_end()
    took = time.perf_counter() - started
    return job.finish(model, took, f"{workers} × {device}", interrupted=interrupted)


def _events(events: Any, processes: Sequence[Any]) -> Iterator[Event]:
    """Yield events until all processes have ended; raise an error that says why one has failed."""
    errors: list[Exception] = []
    until: float | None = None
    while True:
        alive = any(process.is_alive() for process in processes)
        try:
            event = events.get(timeout=0.2)
        except Empty:
            event = None
            if not alive:
                break
        if event is not None and event[0] == "error":
            errors.append(event[1]["error"])
        elif event is not None:
            yield event
        if until is None and (errors or any(process.exitcode for process in processes)):
            until = time.monotonic() + SECONDS_FOR_REASONS
        if until is not None and time.monotonic() > until:
            break
    # The error of the first process is the reason; that others then miss it is not.
    for error in sorted(errors, key=lambda error: isinstance(error, ClusterError)):
        if not isinstance(error, ClusterError) or not _killed(processes):
            raise error
    if signals := _killed(processes):
        raise ClusterError(f"a training process was killed by {signals[0]}; {GO_ON}")
    if codes := [process.exitcode for process in processes if process.exitcode]:
        raise ClusterError(f"a training process ended with the code {codes[0]}; {GO_ON}")


def _killed(processes: Sequence[Any]) -> list[str]:
    return [signal.Signals(-process.exitcode).name for process in processes if (process.exitcode or 0) < 0]


def _process(
    job: TrainingJob, rank: int, size: int, port: int, backend: str, device: str, events: Any
) -> None:
    threading.Thread(target=end_with_the_command, daemon=True).start()
    try:
        with _member(rank, size, port, backend, device):
            train_part(job, device, [Teller(events.put)])
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except Exception as error:
        if not isinstance(error, BundleMageError):
            what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            error = ClusterError(f"a training process failed ({what}); {GO_ON}")
        events.put(("error", {"error": error}))
        raise SystemExit(2) from None


@contextmanager
def _member(rank: int, size: int, port: int, backend: str, device: str) -> Iterator[None]:
    if device == "cpu":
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // size))
    else:
        torch.cuda.set_device(device)
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
