"""Processes on a cluster. Each loads the job once, for example its model, and does many pieces of work.

Processors and GPUs are divided so that all processes fit into the cluster. Otherwise Ray would wait
forever without a message.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple

import ray
from ray.exceptions import OutOfMemoryError, RayActorError

from bundlemage.engines.base import AnyJob, Piece, Result, Workers, with_absolute_paths
from bundlemage.errors import ClusterError, DeviceError
from bundlemage.training.pool import Died, Pool, Task, Work

AHEAD = 2
"""Number of pieces that are given to a process in advance, so it need not wait for the next one."""
LOST_AT_MOST = 3
"""Maximum number of times that a process may die at the same piece. After that, the job fails."""
GPU_UNITS = 10_000
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
    """Returns the resources of the cluster, divided among workers.

    With `workers=None` there is one worker for each GPU or processor.
    `whole_gpus`: processes do not share a GPU, because they train one model together.
    """
    alive = (node["Resources"] for node in ray.nodes() if node["Alive"])
    machines = [Machine(int(has.get("CPU", 0)), int(has.get("GPU", 0))) for has in alive]
    return divided(machines, workers, device, whole_gpus=whole_gpus)


def divided(
    machines: Sequence[Machine], chosen: int | None, device: str, *, whole_gpus: bool = False
) -> Resources:
    """See `resources`. `chosen` is the number of workers. Raises `ClusterError` if they do not fit."""
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
    return Resources(workers, each, gpus=math.floor(GPU_UNITS / sharing) / GPU_UNITS)


def _fitting(machines: Sequence[Machine], chosen: int | None, sharing: int, has: str) -> tuple[int, int]:
    """Returns the number of workers, and the maximum number of processors that each can have."""
    room = _room(machines, 1, sharing)
    workers = chosen or max(1, room)
    if workers > room:
        each = "a GPU and a processor" if sharing else "a processor"
        raise ClusterError(
            f"{workers} workers need {each} each, but the cluster, with {has}, has room for {room}: use "
            "fewer workers"
        )
    most = max(machine.cpus for machine in machines)
    return workers, next(n for n in range(most, 0, -1) if _room(machines, n, sharing) >= workers)


def _room(machines: Sequence[Machine], cpus: int, sharing: int) -> int:
    """Returns how many processes with `cpus` processors fit if `sharing` of them share a GPU (0: no GPU)."""
    return sum(
        min(machine.cpus // cpus, machine.gpus * sharing) if sharing else machine.cpus // cpus
        for machine in machines
    )


# ── Doing pieces of work ─────────────────────────────────────────────────────────────────────────


class RayWorkers(Workers):
    """Processes of a cluster that do the pieces of one job."""

    def __init__(self, resources: Resources) -> None:
        self.resources, self.count = resources, resources.workers

    def each(
        self, make: Callable[[AnyJob], Callable[[Piece], Result]], job: AnyJob, pieces: Iterable[Piece]
    ) -> Iterator[Result]:
        """See `Workers.each`.

        Results are computed in advance, but only enough to keep the processes busy. A process that dies is
        replaced, and its pieces are done again.
        """
        crew: _Crew[Piece] = _Crew(self.resources, partial(make, with_absolute_paths(job)))
        waiting: deque[Any] = deque()
        try:
            for piece in pieces:
                waiting.append(crew.give(piece))
                if len(waiting) >= AHEAD * self.count:
                    yield ray.get(waiting.popleft())
            while waiting:
                yield ray.get(waiting.popleft())
        except (RayActorError, OutOfMemoryError) as error:
            raise ClusterError(
                f"stopped, because a process was lost {LOST_AT_MOST} times at the same piece of work: it may "
                "need more memory than its machine has. Use fewer workers, so that each has more memory, or "
                "larger machines"
            ) from error
        finally:
            crew.dismiss()


class RayPool(Pool[Task, Result]):
    """A `Pool` on a cluster. A process that dies is replaced, and its task is done again."""

    def __init__(self, jobs: int, work: Work[Task, Result], shared: Any, *, gpus: float = 0.0) -> None:
        self.mailbox = ray.remote(num_cpus=0)(_Mailbox).remote()
        # Each task gets one processor, so its result is the same on every machine.
        resources = Resources(jobs, 1, gpus)
        self.crew: _Crew[tuple[int, Task]] = _Crew(
            resources, partial(_asking, work, ray.put(shared), self.mailbox)
        )

    def run(
        self, tasks: Iterable[Task], answer: Callable[[Task, Any], Any]
    ) -> Iterator[tuple[Task, Result | Died]]:
        """See `Pool.run`."""
        waiting, started, running = iter(tasks), list[Task](), dict[Any, Task]()
        question = self.mailbox.question.remote()
        while True:
            while (not running or self.crew.free(1) is not None) and (
                task := next(waiting, None)
            ) is not None:
                running[self.crew.give((len(started), task))] = task
                started.append(task)
            if not running:
                return
            done, _ = ray.wait([question, *self.crew.starting, *running])
            if question in done:
                number, content = ray.get(question)
                self.mailbox.reply.remote(number, answer(started[number], content))
                question = self.mailbox.question.remote()
            for reference in running.keys() & set(done):
                try:
                    result = ray.get(reference)
                except (RayActorError, OutOfMemoryError):
                    result = Died(
                        "its process died several times: it may need more memory than its machine has"
                    )
                yield running.pop(reference), result

    def __exit__(self, *error: object) -> None:
        self.crew.dismiss()
        if ray.is_initialized():
            ray.kill(self.mailbox)


class _Mailbox:
    """Passes questions from tasks to the main process, and the answers back."""

    def __init__(self) -> None:
        self.questions: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        self.answers: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, number: int, content: Any) -> Any:
        self.answers[number] = asyncio.get_running_loop().create_future()
        await self.questions.put((number, content))
        return await self.answers[number]

    async def question(self) -> tuple[int, Any]:
        return await self.questions.get()

    async def reply(self, number: int, answer: Any) -> None:
        if not self.answers[
            number
        ].done():  # it is done if a process asked, died, and its successor asked again
            self.answers[number].set_result(answer)


def _asking(work: Work[Task, Result], shared: Any, mailbox: Any) -> Callable[[tuple[int, Task]], Result]:
    """Returns the function with which a process does a numbered task."""
    content = ray.get(shared)

    def do(piece: tuple[int, Task]) -> Result:
        number, task = piece
        return work(content, task, lambda question: ray.get(mailbox.ask.remote(number, question)))

    return do


class _Crew(Generic[Piece]):
    """Gives each piece to the process with the least work. A process that has not started yet gets none: the
    cluster may be busy with other work, so it may start late."""

    def __init__(self, resources: Resources, make: Callable[[], Callable[[Piece], Any]]) -> None:
        self.most = resources.workers
        # It is no argument of the actor: Ray prints an error if a replaced actor has a large argument.
        self.make = [ray.put(make)]
        # Processes are replaced without limit, but the number of attempts at one piece is limited.
        replaced = {"max_restarts": -1, "max_task_retries": LOST_AT_MOST - 1}
        self.actor = ray.remote(**replaced, **resources.options)(_Process)
        self.workers: list[Any] = []
        self.starting: dict[Any, int] = {}
        self.under_way: dict[Any, int] = {}

    def give(self, piece: Piece) -> Any:
        """Starts a piece. Returns a reference to its result."""
        while (number := self.free(AHEAD)) is None:
            self._wait(None)
        reference = self.workers[number].do.remote(self.make, piece)
        self.under_way[reference] = number
        return reference

    def free(self, limit: int) -> int | None:
        """Returns the number of the process with the least work, or None if it has `limit` pieces or more.
        Starts another process if there are too few."""
        if len(self.workers) < self.most:
            worker = self.actor.remote()
            self.starting[worker.started.remote()] = len(self.workers)
            self.workers.append(worker)
        self._wait(0)
        busy, starting = Counter(self.under_way.values()), set(self.starting.values())
        started = [number for number in range(len(self.workers)) if number not in starting]
        # While processes are still starting, no piece waits behind another: a new process could do it.
        limit = 1 if starting else limit
        return min((number for number in started if busy[number] < limit), key=busy.__getitem__, default=None)

    def _wait(self, seconds: float | None) -> None:
        references = [*self.starting, *self.under_way]
        done, _ = ray.wait(references, num_returns=1 if seconds is None else len(references), timeout=seconds)
        for reference in done:
            if reference in self.starting:
                ray.get(reference)
                del self.starting[reference]
            else:
                del self.under_way[reference]

    def dismiss(self) -> None:
        """End all processes."""
        if ray.is_initialized():  # Ray may have ended with an error
            for worker in self.workers:
                ray.kill(worker)


class _Process:
    def __init__(self) -> None:
        self.work: Callable[[Any], Any] | None = None

    def started(self) -> None:
        """Returns as soon as the process is running."""

    def do(self, make: Sequence[Any], piece: Any) -> Any:
        """Do a piece. `make` refers to the function that prepares the work. It is called once."""
        if self.work is None:  # not in __init__: an error there looks like a dead process
            self.work = ray.get(make[0])()
        return self.work(piece)
