"""What each process of a job is given of a cluster, such that there is room for all of them at once.

Ray would wait without a word for room that never comes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import ray

from bundlemage.engines.ray.cluster import Cluster
from bundlemage.errors import ClusterError, DeviceError

SMALLEST = 10_000
"""Ray counts in parts of so many; a share that is rounded up would leave no room for the last one."""


@dataclass(frozen=True)
class Resources:
    """So many processes; and what is each one's own: processors, which Ray makes the number of its threads,
    and a GPU or a part of one."""

    workers: int
    cpus: int
    gpus: float = 0.0

    @property
    def options(self) -> dict[str, float]:
        """As Ray's actors are told."""
        return {"num_cpus": self.cpus} | ({"num_gpus": self.gpus} if self.gpus else {})


class Machine(NamedTuple):
    cpus: int
    gpus: int


def resources(cluster: Cluster, device: str, *, whole_gpus: bool = False) -> Resources:
    """For as many workers as were asked for; if none were, one for each GPU, or else for each processor.

    `whole_gpus`: no two processes share one, as those of one training cannot.
    """
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    machines = [Machine(int(has.get("CPU", 0)), int(has.get("GPU", 0))) for has in alive]
    return divided(machines, cluster.asked, device, whole_gpus=whole_gpus)


def divided(
    machines: Sequence[Machine], asked: int | None, device: str, *, whole_gpus: bool = False
) -> Resources:
    cpus, gpus = (sum(column) for column in zip(*machines, strict=True))
    on_gpus = device == "auto" or device.startswith("cuda")
    if device.startswith("cuda") and not gpus:
        raise DeviceError(f"device {device!r} is not present on any machine of the cluster; use auto or cpu")
    if not gpus or not on_gpus:
        return Resources(*_fitting(machines, asked, 0, f"{cpus} processors"))
    workers = asked or gpus
    fewest = 1 if whole_gpus else -(-workers // gpus)
    most = 1 if whole_gpus else workers  # on one GPU, where it has the processors for them
    sharing = next((n for n in range(fewest, most) if _room(machines, 1, n) >= workers), most)
    chosen = _fitting(machines, asked, sharing, f"{gpus} GPUs and {cpus} processors")
    return Resources(*chosen, gpus=math.floor(SMALLEST / sharing) / SMALLEST)


def _fitting(machines: Sequence[Machine], asked: int | None, sharing: int, there: str) -> tuple[int, int]:
    """How many workers, and the most processors that each of them can have."""
    room = _room(machines, 1, sharing)
    workers = asked or max(1, room)
    if workers > room:
        each = "a GPU and a processor" if sharing else "a processor"
        raise ClusterError(
            f"{workers} workers want {each} each, and the cluster, with {there}, has room for {room}: ask "
            "for fewer workers"
        )
    most = max(machine.cpus for machine in machines)
    return workers, next(n for n in range(most, 0, -1) if _room(machines, n, sharing) >= workers)


def _room(machines: Sequence[Machine], cpus: int, sharing: int) -> int:
    """How many processes with so many processors each, and with so many of them on a GPU, if on any."""
    return sum(
        min(machine.cpus // cpus, machine.gpus * sharing) if sharing else machine.cpus // cpus
        for machine in machines
    )
