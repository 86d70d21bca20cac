"""Computes the processors and GPUs of each process of a job, so that all processes fit into the cluster.

If they do not fit, Ray waits forever without a message.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import ray

from bundlemage.errors import ClusterError, DeviceError

SMALLEST = 10_000
"""Ray counts GPUs in units of 1/10,000. Shares are rounded down, so their sum is at most one GPU."""


@dataclass(frozen=True)
class Resources:
    """The number of processes, and the processors and GPUs of each. `gpus` may be a part of a GPU. Ray
    gives a process as many threads as processors."""

    workers: int
    cpus: int
    gpus: float = 0.0

    @property
    def options(self) -> dict[str, float]:
        """The resources as options of a Ray actor."""
        return {"num_cpus": self.cpus} | ({"num_gpus": self.gpus} if self.gpus else {})


class Machine(NamedTuple):
    """One machine of a cluster."""

    cpus: int
    gpus: int


def resources(workers: int | None, device: str, *, whole_gpus: bool = False) -> Resources:
    """For the number of workers that the user chose, or else one for each GPU, or else for each processor.

    `whole_gpus`: no two processes share a GPU. The processes of one training must not.
    """
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    machines = [Machine(int(has.get("CPU", 0)), int(has.get("GPU", 0))) for has in alive]
    return divided(machines, workers, device, whole_gpus=whole_gpus)


def divided(
    machines: Sequence[Machine], chosen: int | None, device: str, *, whole_gpus: bool = False
) -> Resources:
    """Divide machines among the chosen number of workers. Raises `ClusterError` if they do not fit."""
    cpus, gpus = (sum(column) for column in zip(*machines, strict=True))
    on_gpus = device == "auto" or device.startswith("cuda")
    if device.startswith("cuda") and not gpus:
        raise DeviceError(f"device {device!r} is not present on any machine of the cluster; use auto or cpu")
    if not gpus or not on_gpus:
        return Resources(*_fitting(machines, chosen, 0, f"{cpus} processors"))
    workers = chosen or gpus
    fewest = 1 if whole_gpus else -(-workers // gpus)
    most = 1 if whole_gpus else workers  # all workers on one GPU, if its machine has enough processors
    sharing = next((n for n in range(fewest, most) if _room(machines, 1, n) >= workers), most)
    workers, each = _fitting(machines, chosen, sharing, f"{gpus} GPUs and {cpus} processors")
    return Resources(workers, each, gpus=math.floor(SMALLEST / sharing) / SMALLEST)


def _fitting(machines: Sequence[Machine], chosen: int | None, sharing: int, has: str) -> tuple[int, int]:
    """Returns the number of workers, and the maximum number of processors that each can have."""
    room = _room(machines, 1, sharing)
    workers = chosen or max(1, room)
    if workers > room:
        each = "a GPU and a processor" if sharing else "a processor"
        raise ClusterError(
            f"{workers} workers want {each} each, and the cluster, with {has}, has room for {room}: ask "
            "for fewer workers"
        )
    most = max(machine.cpus for machine in machines)
    return workers, next(n for n in range(most, 0, -1) if _room(machines, n, sharing) >= workers)


def _room(machines: Sequence[Machine], cpus: int, sharing: int) -> int:
    """Returns how many processes fit, with `cpus` processors each and `sharing` on a GPU (0: no GPU)."""
    return sum(
        min(machine.cpus // cpus, machine.gpus * sharing) if sharing else machine.cpus // cpus
        for machine in machines
    )
