"""The processors and GPUs of each process of a job, so that the cluster has room for all of them at once.

Ray itself would wait in silence for room that never comes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import ray

from bundlemage.errors import ClusterError, DeviceError

SMALLEST = 10_000
"""Ray counts GPUs in parts of one in 10,000. Shares are rounded down, so that the last one has room, too."""


@dataclass(frozen=True)
class Resources:
    """The number of processes. Each has its own processors, which Ray makes the number of its threads, and a
    GPU or a part of one."""

    workers: int
    cpus: int
    gpus: float = 0.0

    @property
    def options(self) -> dict[str, float]:
        """The same as options of a Ray actor."""
        return {"num_cpus": self.cpus} | ({"num_gpus": self.gpus} if self.gpus else {})


class Machine(NamedTuple):
    """One machine of a cluster."""

    cpus: int
    gpus: int


def resources(workers: int | None, device: str, *, whole_gpus: bool = False) -> Resources:
    """For the number of workers that the user chose, or else one for each GPU, or else for each processor.

    `whole_gpus`: no two processes share a GPU, as the processes of one training cannot.
    """
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    machines = [Machine(int(has.get("CPU", 0)), int(has.get("GPU", 0))) for has in alive]
    return divided(machines, workers, device, whole_gpus=whole_gpus)


def divided(
    machines: Sequence[Machine], chosen: int | None, device: str, *, whole_gpus: bool = False
) -> Resources:
    """Divide machines among the chosen number of workers; raises `ClusterError` if there is no room."""
    cpus, gpus = (sum(column) for column in zip(*machines, strict=True))
    on_gpus = device == "auto" or device.startswith("cuda")
    if device.startswith("cuda") and not gpus:
        raise DeviceError(f"device {device!r} is not present on any machine of the cluster; use auto or cpu")
    if not gpus or not on_gpus:
        return Resources(*_fitting(machines, chosen, 0, f"{cpus} processors"))
    workers = chosen or gpus
    fewest = 1 if whole_gpus else -(-workers // gpus)
    most = 1 if whole_gpus else workers  # on one GPU, where it has the processors for them
    sharing = next((n for n in range(fewest, most) if _room(machines, 1, n) >= workers), most)
    workers, each = _fitting(machines, chosen, sharing, f"{gpus} GPUs and {cpus} processors")
    return Resources(workers, each, gpus=math.floor(SMALLEST / sharing) / SMALLEST)


def _fitting(machines: Sequence[Machine], chosen: int | None, sharing: int, has: str) -> tuple[int, int]:
    """How many workers, and the most processors that each of them can have."""
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
    """How many processes find room with `cpus` processors each; `sharing` of them share a GPU (0: no GPU)."""
    return sum(
        min(machine.cpus // cpus, machine.gpus * sharing) if sharing else machine.cpus // cpus
        for machine in machines
    )
