"""Tuning on a cluster: Ray Tune runs the trials side by side. The adviser that chooses settings and stops
trials is the same as on one machine, so both engines search alike and can continue each other's study.

Ray's own OptunaSearch is not used: on resume it restarts its random generator, and its stopping rules forget
the earlier trials.
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

from bundlemage.data.splits import Split
from bundlemage.engines.ray.cluster import Cluster
from bundlemage.engines.ray.resources import Resources, resources
from bundlemage.progress import Progress
from bundlemage.tuning.session import Judged, Session
from bundlemage.tuning.study import Search, Study
from bundlemage.tuning.trials import judge

QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # Ray Tune writes no files for each trial
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C ends the search, not only Ray Tune
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output prints to stdout in any case
}

LOST_AT_MOST = 2
"""How often a trial is repeated whose process was lost, for example with its machine, before it fails."""


def tune(search: Search, cluster: Cluster, progress: Progress) -> Study:
    """Run the trials that are missing, as many at a time as there are workers.

    With one worker they are those of the local engine. With more, each starts with what is known at that
    moment, so the sequence depends on which trial ends first.
    """
    share = resources(cluster, str({**search.start, **search.settings}.get("device", "auto")))
    session = Session(search, progress)
    os.environ.update(QUIET)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # the error of a trial is stored with it
    scratch = search.output.resolve() / "ray"  # for Ray Tune itself; this program does not read it
    shutil.rmtree(scratch, ignore_errors=True)
    keeper, interrupted = _TrialKeeper(session), False
    try:
        if session.missing:
            _tuner(session, share, keeper, scratch).fit()
    except KeyboardInterrupt:
        interrupted = True
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if keeper.error is not None:
        raise keeper.error
    return session.study(interrupted)


def _tuner(session: Session, share: Resources, keeper: _TrialKeeper, scratch: Path) -> Any:
    work = ray_tune.with_resources(
        # The data is read once, and is once in the memory of each machine.
        ray_tune.with_parameters(
            _trial, split=session.split, model=session.search.model, fixed=session.fixed
        ),
        {"cpu": 1, "gpu": share.gpus},  # a trial on one processor is the same on each machine
    )
    return ray_tune.Tuner(
        work,
        tune_config=ray_tune.TuneConfig(
            search_alg=_Asking(session, keeper),
            scheduler=_Stopping(session),
            num_samples=-1,  # until the search ends
            max_concurrent_trials=share.workers,
            reuse_actors=True,
        ),
        run_config=ray_tune.RunConfig(
            name="trials", storage_path=str(scratch), callbacks=[keeper], verbose=0
        ),
    )


def _trial(config: dict[str, Any], split: Split, model: str, fixed: Mapping[str, Any]) -> None:
    """One trial, in a process of the cluster."""

    def report(epoch: int, value: float) -> bool:
        ray_tune.report({"epoch": epoch, "value": value})
        return False  # a trial that is stopped does not return from there

    judged = judge(model, {**fixed, **config["chosen"]}, split, report)
    ray_tune.report({"ended": True, "best": judged.value, "seconds": judged.seconds, "reason": judged.reason})


class _NotStored:
    """Ray Tune stores its parts to resume from them; a search is resumed from the folder of the study."""

    def __getstate__(self) -> dict[str, Any]:
        return {}


class _Asking(_NotStored, Searcher):  # type: ignore[misc]
    """Gives Ray Tune the settings that the adviser chooses."""

    def __init__(self, session: Session, keeper: _TrialKeeper) -> None:
        super().__init__()
        self.session, self.keeper = session, keeper
        self.numbers: Iterator[int] = session.numbers()

    def suggest(self, trial_id: str) -> Any:
        keeper = self.keeper
        if keeper.error is not None:
            return Searcher.FINISHED
        if keeper.lost:
            return keeper.lost.pop()
        number = next(self.numbers, None)
        if number is None:  # a trial that runs may still be lost, and be repeated
            return None if keeper.running else Searcher.FINISHED
        keeper.running[number] = 0
        return {"number": number, "chosen": self.session.adviser.ask(number)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """The adviser learns of a trial when it is on disk."""

    def save(self, checkpoint_path: str) -> None:
        """The folder of the study is the only store."""

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


class _TrialKeeper(_NotStored, ray_tune.Callback):  # type: ignore[misc]
    """Stores each trial when it ends, with what it has reported."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.curves: dict[int, list[float]] = {}
        self.running: dict[int, int] = {}
        """How often the process of each running trial was lost."""
        self.lost: list[dict[str, Any]] = []
        """Trials to repeat."""
        self.error: Exception | None = None
        """An error that ends the search, such as a full disk. Ray Tune would log it and continue."""

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
        """The process of a trial was lost."""
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
