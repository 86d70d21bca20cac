"""Tuning on a cluster: Ray Tune runs the trials side by side; what to try and what to stop is asked of the
same adviser as on one machine, so that both engines search alike and share a study.

Ray's own OptunaSearch is not used: it begins its chance anew when a search is resumed, and its stopping
rules forget the trials of before.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ray import tune as ray_tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from bundlemage.data.progress import Progress
from bundlemage.data.splits import Split
from bundlemage.engines.ray.cluster import Cluster
from bundlemage.engines.ray.resources import Resources, resources
from bundlemage.tuning.session import Session
from bundlemage.tuning.study import Search, Study
from bundlemage.tuning.trial import Judged, judge

QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no files of its own for each trial
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is ours
    "RAY_AIR_NEW_OUTPUT": "0",  # the other one prints to stdout however quiet it is told to be
}

LOST_AT_MOST = 2
"""How often a trial whose process is lost, as with its machine, is begun again before it has failed."""


def tune(search: Search, cluster: Cluster, progress: Progress) -> Study:
    """Make the trials that are missing, as many at a time as there are workers.

    With one worker they are those of the local engine. With more, each begins with what is known at that
    moment, so the sequence depends on which trial ends first.
    """
    given = resources(cluster, str({**search.start, **search.settings}.get("device", "auto")))
    session = Session(search, progress)
    os.environ.update(QUIET)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what goes wrong with a trial is kept with it
    scratch = search.output.resolve() / "ray"  # of Ray Tune itself; nothing is read from it again
    shutil.rmtree(scratch, ignore_errors=True)
    watch, interrupted = _Watch(session), False
    try:
        if session.missing:
            _tuner(session, given, watch, scratch).fit()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if watch.error is not None:
        raise watch.error
    return session.study(interrupted)


def _tuner(session: Session, given: Resources, watch: _Watch, scratch: Path) -> Any:
    work = ray_tune.with_resources(
        # The data is read once, and lies once in the memory of each machine.
        ray_tune.with_parameters(
            _trial, split=session.split, model=session.search.model, fixed=session.fixed
        ),
        {"cpu": 1, "gpu": given.gpus},  # a trial on one processor is the same on each machine
    )
    return ray_tune.Tuner(
        work,
        tune_config=ray_tune.TuneConfig(
            search_alg=_Asking(session, watch),
            scheduler=_Stopping(session),
            num_samples=-1,  # until no more is asked for
            max_concurrent_trials=given.workers,
            reuse_actors=True,
        ),
        run_config=ray_tune.RunConfig(name="trials", storage_path=str(scratch), callbacks=[watch], verbose=0),
    )


def _trial(config: dict[str, Any], split: Split, model: str, fixed: Mapping[str, Any]) -> None:
    """One trial, in a process of the cluster."""

    def report(epoch: int, value: float) -> bool:
        ray_tune.report({"epoch": epoch, "value": value})
        return False  # one that is stopped does not come back from there

    judged = judge(model, {**fixed, **config["chosen"]}, split, report)
    ray_tune.report({"ended": True, "best": judged.value, "seconds": judged.seconds, "reason": judged.reason})


class _NotStored:
    """Ray Tune keeps a copy of its parts to resume from; a search is resumed from the study's folder."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Asking(_NotStored, Searcher):  # type: ignore[misc]
    """Settings for Ray Tune, from the adviser."""

    def __init__(self, session: Session, watch: _Watch) -> None:
        super().__init__()
        self.session, self.watch = session, watch
        self.numbers: Iterator[int] = session.numbers()

    def suggest(self, trial_id: str) -> Any:
        watch = self.watch
        if watch.error is not None:
            return Searcher.FINISHED
        if watch.lost:
            return watch.lost.pop()
        number = next(self.numbers, None)
        if number is None:  # while one runs it may yet be lost, and be made again
            return None if watch.running else Searcher.FINISHED
        watch.running[number] = 0
        return {"number": number, "chosen": self.session.adviser.ask(number)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """The adviser is told when the trial is on disk."""

    def save(self, checkpoint_path: str) -> None:
        """The study's folder is the only store."""

    def restore(self, checkpoint_path: str) -> None:
        """See `save`."""


class _Stopping(_NotStored, FIFOScheduler):  # type: ignore[misc]
    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session

    def on_trial_result(self, tune_controller: Any, trial: Any, result: Mapping[str, Any]) -> str:
        if "epoch" in result and self.session.stops(trial.config["number"], result["epoch"], result["value"]):
            return str(TrialScheduler.STOP)
        return str(TrialScheduler.CONTINUE)


class _Watch(_NotStored, ray_tune.Callback):  # type: ignore[misc]
    """Keeps what trials report, and each trial as it ends."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.curves: dict[int, list[float]] = {}
        self.running: dict[int, int] = {}
        """How often each trial that runs has been lost."""
        self.lost: list[dict[str, Any]] = []
        """Trials that are to be made again."""
        self.error: Exception | None = None
        """Ray Tune would log it and go on; a full disk, for one, is to end the search."""

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: Mapping[str, Any], **info: Any
    ) -> None:
        if "epoch" in result:
            self.curves.setdefault(trial.config["number"], []).append(result["value"])

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        last, curve = trial.last_result, tuple(self.curves.pop(trial.config["number"], ()))
        if last.get("ended"):
            self._keep(trial, Judged(last["best"], curve, last["seconds"], reason=last["reason"]))
        else:
            self._keep(trial, Judged(max(curve), curve, last["time_total_s"], stopped=True))

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """What a trial cannot tell of itself: its process was lost."""
        number = trial.config["number"]
        curve = tuple(self.curves.pop(number, ()))
        self.running[number] += 1
        if self.running[number] <= LOST_AT_MOST:
            self.lost.append(dict(trial.config))
            return
        reason = "its process was lost again and again: it may need more memory than there is"
        self._keep(trial, Judged(None, curve, trial.last_result.get("time_total_s", 0.0), reason=reason))

    def _keep(self, trial: Any, judged: Judged) -> None:
        del self.running[trial.config["number"]]
        try:
            self.session.keep(trial.config["number"], trial.config["chosen"], judged)
        except Exception as error:
            self.error = self.error or error
