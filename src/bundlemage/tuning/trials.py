"""Trials: one training that is judged by validation cases, and all trials of a search on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from bundlemage.data.splits import Split
from bundlemage.errors import BundleMageError, NoModelYetError
from bundlemage.evaluation.protocols import MatchingExam, means
from bundlemage.models.base import Interactions, Sizes
from bundlemage.models.registry import build, make_config
from bundlemage.progress import Progress
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, Observer
from bundlemage.training.loop import train
from bundlemage.training.pool import Ask, Died, Pool, check_jobs
from bundlemage.tuning.session import Judged, Session, check_matches
from bundlemage.tuning.study import Search, Study

Report = Callable[[int, float], bool]
"""Is told each epoch and its value. It returns True to stop the trial."""


def judge(model_name: str, settings: Mapping[str, Any], split: Split, report: Report) -> Judged:
    """Trains once. An error is a result, too, because other settings may work."""
    started, curve = time.perf_counter(), list[float]()
    stopped, value, reason = False, None, None
    try:
        value = _fit(model_name, settings, split, _Curve(curve, report))
    except _Stop:
        value, stopped = max(curve), True
    except NoModelYetError:  # the user interrupted
        raise KeyboardInterrupt from None
    except Exception as error:
        reason = str(error) if isinstance(error, BundleMageError) else f"{type(error).__name__}: {error}"
    return Judged(value, tuple(curve), round(time.perf_counter() - started, 4), stopped, reason)


class _Stop(Exception):  # noqa: N818 - no error
    """Leaves the training loop."""


class _Curve(Observer):
    def __init__(self, curve: list[float], report: Report) -> None:
        self.curve, self.report = curve, report

    def on_epoch(self, record: EpochRecord) -> None:
        assert record.value is not None
        self.curve.append(record.value)
        if self.report(record.epoch, self.curve[-1]):
            raise _Stop


def _fit(model_name: str, settings: Mapping[str, Any], split: Split, watch: _Curve) -> float:
    config = make_config(model_name, settings)
    model = build(model_name, config, Sizes.of(split.dataset))
    check_matches(model)
    assert split.validation is not None
    if train(model, config, split, observers=[watch]).interrupted:
        raise KeyboardInterrupt
    if watch.curve:
        return max(watch.curve)
    # A model that counts or solves has no epochs, and is asked once.
    data = Interactions.of(split.train, resolve_device(config.device))
    return means(MatchingExam(split.validation, data).metrics(model))[SELECTION_METRIC]


def tune(search: Search, progress: Progress, jobs: int = 1) -> Study:
    """Runs the trials that are missing, `jobs` at a time.

    One at a time, trials with the same seed are the same, also if the search is cut off and resumed. With
    more jobs, each trial starts with what is known at that moment, so the sequence depends on which trial
    ends first. Ctrl-C ends the search early and keeps the finished trials.
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


class _Running(NamedTuple):
    """A trial in another process, as this process knows it."""

    chosen: Mapping[str, Any]
    curve: list[float]
    started: float


def _side_by_side(session: Session, jobs: int) -> None:
    running: dict[int, _Running] = {}

    def tasks() -> Iterator[tuple[int, dict[str, Any]]]:
        for number in session.numbers():
            running[number] = _Running(session.adviser.ask(number), [], time.perf_counter())
            yield number, session.settings(running[number].chosen)

    def stops(task: tuple[int, dict[str, Any]], epoch_value: tuple[int, float]) -> bool:
        running[task[0]].curve.append(epoch_value[1])
        return session.stops(task[0], *epoch_value)

    with Pool(jobs, _in_a_process, (session.search.model, session.split)) as pool:
        for (number, _), result in pool.run(tasks(), stops):
            chosen, curve, started = running.pop(number)
            if isinstance(result, Died):
                seconds = round(time.perf_counter() - started, 4)
                result = Judged(None, tuple(curve), seconds, reason=result.reason)
            session.keep(number, chosen, result)


def _in_a_process(shared: tuple[str, Split], task: tuple[int, dict[str, Any]], ask: Ask) -> Judged:
    model, split = shared
    return judge(model, task[1], split, lambda epoch, value: bool(ask((epoch, value))))
