"""Tuning on this machine: one trial after another, or several at a time in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bundlemage.data.splits import Split
from bundlemage.progress import Progress
from bundlemage.training.devices import resolve_device
from bundlemage.training.pool import Ask, Died, Pool, check_jobs
from bundlemage.tuning.session import Session
from bundlemage.tuning.study import Search, Study
from bundlemage.tuning.trial import Judged, judge


def tune(search: Search, progress: Progress, jobs: int = 1) -> Study:
    """Make the trials that are missing, `jobs` at a time.

    One at a time, with the same seed they are the same, cut off and resumed or not. With more, each begins
    with what is known at that moment, so the sequence depends on which trial ends first.
    Ctrl-C ends early and keeps what is there.
    """
    check_jobs(jobs)
    resolve_device(str({**search.start, **search.settings}.get("device", "auto")))
    session = Session(search, progress)
    jobs = min(jobs, session.missing)
    try:
        if jobs > 1:
            _side_by_side(session, jobs)
        else:
            _one_by_one(session)
    except KeyboardInterrupt:
        return session.study(interrupted=True)
    return session.study()


def _one_by_one(session: Session) -> None:
    for number in session.numbers():
        chosen = session.adviser.ask(number)
        judged = judge(
            session.search.model,
            session.settings(chosen),
            session.split,
            lambda epoch, value, number=number: session.stops(number, epoch, value),  # type: ignore[misc]
        )
        session.keep(number, chosen, judged)


# ── Several at a time ────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Task:
    number: int
    settings: Mapping[str, Any]


@dataclass
class _Running:
    """What is known here of a trial in another process."""

    chosen: Mapping[str, Any]
    curve: list[float] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)

    def lost(self, reason: str) -> Judged:
        return Judged(None, tuple(self.curve), round(time.perf_counter() - self.started, 4), reason=reason)


def _side_by_side(session: Session, jobs: int) -> None:
    running: dict[int, _Running] = {}

    def tasks() -> Iterator[_Task]:
        for number in session.numbers():
            running[number] = _Running(session.adviser.ask(number))
            yield _Task(number, session.settings(running[number].chosen))

    def stops(task: _Task, epoch_value: tuple[int, float]) -> bool:
        running[task.number].curve.append(epoch_value[1])
        return session.stops(task.number, *epoch_value)

    with Pool(jobs, _in_a_process, (session.search.model, session.split)) as pool:
        for task, result in pool.run(tasks(), stops):
            trial = running.pop(task.number)
            judged = trial.lost(result.reason) if isinstance(result, Died) else result
            session.keep(task.number, trial.chosen, judged)


def _in_a_process(shared: tuple[str, Split], task: _Task, ask: Ask) -> Judged:
    model, split = shared
    return judge(model, task.settings, split, lambda epoch, value: bool(ask((epoch, value))))
