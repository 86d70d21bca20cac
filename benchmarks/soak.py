"""The live service under load for a long time, with kills and changes of models: `python -m benchmarks.soak`.

The capacity is measured first, in a closed loop. Then requests come at fixed times, at 70% of the capacity,
and a tenth of them write. In two of three phases the service is killed every 20 s and started again, as a
supervisor would do it. In the phase between them nothing is killed, because only a process that runs for long
shows whether its memory grows. The model is changed every 30 s. At the end every confirmed write must be in
the store.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError

import numpy as np
import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from benchmarks.load import Load, Outcome, Plan, console, merged, table_of
from benchmarks.serving import Serving, databases

PHASES = (("kills", 0.4), ("quiet", 0.4), ("kills", 0.2))
SETTLED = 3.0
"""For this number of seconds after a restart, requests may still fail or be refused. If requests have to wait
for a connection in this time, it begins again."""
SHORTEST_LIFE = 5.0
"""Seconds between a restart and the next kill, at least."""
PATIENCE = 1.0
"""Seconds for which a request waits for a free connection."""
FLAT = 0.05
"""Memory is flat if it rises by less than this share of itself in the phase without kills. In a phase with
kills, it may rise by twice as much from the first process to the last."""
FEW = 0.001
"""The share of requests that may be refused with 503 while the service runs. The client and the retraining
use the same cores, so for moments the service answers more slowly than requests come."""
WARM = 0.3
"""Memory is measured from the beginning of a phase, but judged only after this share of the phase."""
Window = tuple[float, float]


@dataclass
class Phase:
    """One phase and what happened in it."""

    name: str
    seconds: float
    outcome: Outcome = field(default_factory=Outcome)
    windows: list[Window] = field(default_factory=list)
    """The times in which the service was away: from a kill until it has settled."""
    memory: list[tuple[float, float]] = field(default_factory=list)
    """Time and megabytes: every second, or in a phase with kills just before each kill."""
    kills: int = 0

    def unexpected(self, timeout: float) -> Counter[str]:
        """Failures that no kill explains, and refusals if there are more than `FEW` allows. A kill never
        explains a wrong status."""
        found: Counter[str] = Counter()
        for at, kind in self.outcome.failures:
            began = at - timeout if kind == "timeout" else at
            if kind.startswith("status") or not self.away(began, at):
                found[kind] += 1
        refused = sum(not self.away(at, at) for at in self.outcome.refusals)
        if refused > FEW * self.outcome.requests:
            found["status 503"] = refused
        return found

    def extend_window(self, now: float) -> None:
        """Make the last window longer, because requests that waited during it are still being sent."""
        if self.windows and now < self.windows[-1][1]:
            self.windows[-1] = (self.windows[-1][0], max(self.windows[-1][1], now + SETTLED))

    def away(self, began: float, ended: float) -> bool:
        return any(begin <= ended and began <= end for begin, end in self.windows)

    def rise(self) -> tuple[float, float] | None:
        """How memory rose during the phase, by a straight line: megabytes, and as a share of the mean."""
        if not self.memory:
            return None
        times, sizes = np.array(self.memory).T
        warm = times >= self.outcome.began + WARM * self.seconds
        if warm.sum() < 5:
            return None
        slope = float(np.polyfit(times[warm], sizes[warm], 1)[0])
        rise = slope * float(times[warm][-1] - times[warm][0])
        return rise, rise / float(sizes[warm].mean())


@dataclass
class Soak:
    """The service, and what is done to it."""

    serving: Serving
    plan: Plan
    kill_every: float
    reload_every: float
    retrain_every: float
    phases: list[Phase] = field(default_factory=list)
    changes: Counter[str] = field(default_factory=Counter)
    """Reloads and retrainings, by how they ended."""
    failed_reloads: list[tuple[float, float, Exception]] = field(default_factory=list)
    """When each began and ended, and why it failed."""
    findings: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    dice: random.Random = field(default_factory=lambda: random.Random(0))

    def run(self, seconds: float, progress: Progress) -> None:
        changing = [threading.Thread(target=each) for each in (self._reload, self._retrain)]
        for thread in changing:
            thread.start()
        try:
            for number, (name, share) in enumerate(PHASES):
                phase = Phase(name, share * seconds)
                self.phases.append(phase)
                self._run_phase(number, phase, progress)
        finally:
            self.ended.set()
            for thread in changing:
                thread.join()

    def _run_phase(self, number: int, phase: Phase, progress: Progress) -> None:
        changed = {"name": f"soak{number}", "seed": number, "seconds": phase.seconds}
        load = Load(Plan(**{**vars(self.plan), **changed}))
        phase.outcome = load.outcome
        loading = threading.Thread(target=load.run)
        task = progress.add_task(f"phase {number + 1}, {phase.name}", total=None)
        loading.start()
        next_kill = time.perf_counter() + self.kill_every
        try:
            while loading.is_alive():
                loading.join(1.0)
                now = time.perf_counter()
                if phase.name == "kills" and now >= next_kill and loading.is_alive():
                    phase.memory.append((now, self.serving.memory()))
                    self._kill(phase)
                    next_kill = max(next_kill + self.kill_every, time.perf_counter() + SHORTEST_LIFE)
                elif phase.name == "quiet":
                    phase.memory.append((now, self.serving.memory()))
                if load.is_late():
                    phase.extend_window(time.perf_counter())
                progress.update(task, description=self._told(number, phase))
        finally:
            load.stopped = True
            loading.join()

    def _told(self, number: int, phase: Phase) -> str:
        outcome = phase.outcome
        memory = f", {phase.memory[-1][1]:.0f} MB" if phase.memory else ""
        return (
            f"phase {number + 1}, {phase.name}: {outcome.requests:,} requests, {phase.kills} kills, "
            f"{len(outcome.refused):,} refused, {len(outcome.failures):,} failed{memory}"
        )

    def _kill(self, phase: Phase) -> None:
        """Kill the service and start it again. With workers, every other kill is of one worker, and the
        service replaces it."""
        began = time.perf_counter()
        phase.kills += 1
        processes = self.serving.processes()
        if self.serving.workers is not None and phase.kills % 2:
            with suppress(ProcessLookupError):
                os.kill(self.dice.choice(processes[1:]), signal.SIGKILL)
            deadline = began + 60
            while len(self.serving.processes()) < len(processes) and time.perf_counter() < deadline:
                time.sleep(0.05)
        else:
            self.serving.kill()
            self.serving.start()
        self.serving.wait_until_ready()
        phase.windows.append((began, time.perf_counter() + SETTLED))

    def _reload(self) -> None:
        """Change between the two models again and again. It may fail while the service is away."""
        turn = 0
        while not self.ended.wait(self.reload_every):
            turn += 1
            began = time.perf_counter()
            try:
                self.serving.reload(self.serving.versions[turn % 2])
                self.changes["reloads"] += 1
            except (OSError, HTTPException, ValueError, RuntimeError) as error:
                self.changes[f"reloads that failed ({type(error).__name__})"] += 1
                self.failed_reloads.append((began, time.perf_counter(), error))

    def _retrain(self) -> None:
        command = self.serving.command("bundlemage", "retrain", "--db", self.serving.db)
        command = ["nice", "-n", "19", *command, "--epochs", "2", "--force", "--device", "cpu"]
        log = self.serving.folder / "retrain"
        while not self.ended.wait(self.retrain_every):
            with log.open("ab") as output:
                process = subprocess.Popen(
                    command,
                    env=self.serving.environment(),
                    cwd=self.serving.folder,
                    stdout=output,
                    stderr=output,
                )
            while process.poll() is None and not self.ended.wait(0.5):
                pass
            if self.ended.is_set():
                process.kill()
                process.wait()
                return
            if process.returncode:
                said = log.read_text(errors="replace")[-3000:]
                self.findings.append(f"'bundlemage retrain' ended with {process.returncode}: {said}")
                return
            self.changes["retrainings"] += 1

    def judge(self, bundles: Sequence[bytes]) -> None:
        """Add everything that is wrong to the findings. Call it when the service has ended."""
        from tests.torture.shop import faults_of_log

        for number, phase in enumerate(self.phases):
            where = f"phase {number + 1}, {phase.name}"
            unexpected = phase.unexpected(self.plan.timeout)
            self.findings += [f"{where}: {count:,} × {kind}" for kind, count in unexpected.items()]
            rise = phase.rise()
            if rise is not None and rise[1] > (FLAT if phase.name == "quiet" else 2 * FLAT):
                self.findings.append(f"{where}: memory rose by {rise[0]:.0f} MB ({rise[1]:.1%})")
            self.findings += self._lost(f"soak{number}", phase.outcome, bundles)
        self.findings += self.unexpected_reloads()
        # For each worker that was killed here, the first process logs that it ended with this status.
        expected = f"ended with status {-signal.SIGKILL}"
        faults = faults_of_log(self.serving.log, most=1000)
        self.findings += [fault for fault in faults if expected not in fault][:20]

    def unexpected_reloads(self) -> list[str]:
        """Failed reloads that no kill explains. A kill never explains a wrong status."""
        return [
            f"a reload failed: {error}"
            for began, ended, error in self.failed_reloads
            if isinstance(error, HTTPError) or not any(phase.away(began, ended) for phase in self.phases)
        ]

    def _lost(self, name: str, outcome: Outcome, bundles: Sequence[bytes]) -> list[str]:
        from bundlemage.store.repository import Store

        found = []
        store = Store.open(self.serving.db)
        try:
            for numbers, must in ((outcome.acknowledged, True), (outcome.unknown, False)):
                for start in range(0, len(numbers), 500):
                    users = {f"{name}-{number}": number for number in numbers[start : start + 500]}
                    for user, owned in store.histories(list(users)).items():
                        expected = (bundles[users[user] % len(bundles)].decode(),)
                        if owned.bundles != expected and (must or owned.bundles):
                            found.append(f"a write of {user} is {owned.bundles}; expected {expected}")
        finally:
            store.close()
        return [f"{len(found):,} writes are lost or wrong; the first: {found[0]}"] if found else []


def main(
    minutes: Annotated[float, typer.Option(help="How long the three phases take together.")] = 30,
    db: Annotated[
        str, typer.Option(help="sqlite, postgresql (started for this), or the URL of an empty database.")
    ] = "sqlite",
    users: Annotated[int, typer.Option(help="How many users the store knows.")] = 20_000,
    share: Annotated[float, typer.Option(help="The rate, as a share of the capacity.")] = 0.7,
    writes: Annotated[float, typer.Option(help="The share of requests that write.")] = 0.1,
    workers: Annotated[
        int | None, typer.Option(help="Passed on to 'bundlemage serve'. Then single workers are killed, too.")
    ] = None,
    kill_every: Annotated[float, typer.Option(help="Seconds between kills.")] = 20,
    reload_every: Annotated[float, typer.Option(help="Seconds between changes of the model.")] = 30,
    retrain_every: Annotated[float, typer.Option(help="Seconds between retrainings.")] = 240,
    epochs: Annotated[int | None, typer.Option(help="Epochs of the first two models, for a trial.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures here, too.")] = None,
) -> None:
    """Load, kills, reloads and retraining for a long time. Exit code 1 if anything is lost or wrong."""
    with tempfile.TemporaryDirectory(prefix="bundlemage-soak-") as scratch, ExitStack() as stack:
        url = stack.enter_context(databases(db, Path(scratch)))()
        serving = Serving(Path(scratch) / "shop", url, workers=workers)
        with console.status(f"training two models, writing {users:,} users"):
            serving.fill(users, epochs)
        stack.callback(serving.kill)
        serving.start()
        serving.wait_until_ready()
        plan = Plan(serving.address, 5, users=users, writes=writes)
        with console.status("measuring the capacity"):
            Load(Plan(**{**vars(plan), "name": "warm"})).run()
            measured = Load(Plan(**{**vars(plan), "name": "capacity", "seconds": 15.0})).run().figures()
        capacity = measured["reads"]["per_second"] + measured["writes"]["per_second"]
        plan = Plan(**{**vars(plan), "connections": 256, "rate": share * capacity, "patience": PATIENCE})
        console.print(f"capacity {capacity:,.0f} requests/s with 16 connections; now {plan.rate:,.0f}/s")
        soak = Soak(serving, plan, kill_every, reload_every, retrain_every)
        bundles = Load(plan).bundles
        columns = (TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            soak.run(60 * minutes, progress)
        serving.stop()
        with console.status("looking for every confirmed write"):
            soak.judge(bundles)
    figures = _described(soak, capacity, minutes, db)
    _show(soak, figures)
    if json_file:
        json_file.write_text(json.dumps(figures, indent=2))
    if soak.findings:
        raise typer.Exit(1)


def _described(soak: Soak, capacity: float, minutes: float, db: str) -> dict[str, Any]:
    whole = merged(phase.outcome for phase in soak.phases)
    return {
        "minutes": minutes,
        "db": db.partition(":")[0],
        "workers": soak.serving.workers,
        "capacity": capacity,
        "rate": soak.plan.rate,
        "confirmed_writes": len(whole.acknowledged),
        "unconfirmed_writes": len(whole.unknown),
        "changes": dict(soak.changes),
        "phases": [
            {
                "name": phase.name,
                "kills": phase.kills,
                "away_s": sum(end - begin for begin, end in phase.windows),
                "memory_mb": [round(size, 1) for _, size in phase.memory],
                "memory_rise": phase.rise(),
                **phase.outcome.figures(),
            }
            for phase in soak.phases
        ],
        "findings": soak.findings,
    }


def _show(soak: Soak, figures: dict[str, Any]) -> None:
    phases = figures["phases"]
    console.print(table_of((f"phase {at + 1}, {each['name']}", each) for at, each in enumerate(phases)))
    for at, each in enumerate(phases):
        rise, sizes = each["memory_rise"], each["memory_mb"]
        flat = (
            "too short to say" if rise is None else f"{rise[0]:+.0f} MB ({rise[1]:+.1%}) by a straight line"
        )
        span = f"{sizes[0]:.0f} → {sizes[-1]:.0f} MB, " if sizes else ""
        console.print(
            f"phase {at + 1}: {each['kills']} kills, {each['away_s']:.0f} s away; memory {span}{flat}",
            soft_wrap=True,
        )
    changes = ", ".join(f"{count} {name}" for name, count in soak.changes.items()) or "no change of the model"
    console.print(
        f"{figures['confirmed_writes']:,} writes confirmed, {figures['unconfirmed_writes']:,} not; {changes}",
        soft_wrap=True,
    )
    for finding in soak.findings:
        console.print(finding, markup=False, style="red", soft_wrap=True)
    if not soak.findings:
        console.print("nothing is lost, no answer is wrong, few are refused, and memory is flat")


if __name__ == "__main__":
    typer.run(main)
