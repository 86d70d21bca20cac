"""Asks Optuna which settings to try next, and which trials to stop early.

The adviser writes no files. A new adviser that is given the finished trials gives the same advice, so only
the study's folder must be kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import TPESampler
from optuna.trial import TrialState

from bundlemage.models.config import Domain, OneOf, Space
from bundlemage.tuning.study import Trial

WHOLE_TRIALS = 5
"""The number of trials at the start that always run to their end. Later trials may be stopped early."""
ENOUGH_FOR_IMPORTANCE = 10
"""Minimum number of trials needed to estimate the importance of settings."""
# Optuna ignores failed trials and would repeat them. So they are reported as pruned: these count as worse
# than all complete trials.
_STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.PRUNED}


class Adviser:
    """Chooses the settings of trials, from earlier results. Several trials may run at a time."""

    def __init__(
        self, space: Space, first: Mapping[str, Any], seed: int, warm_up: int, done: Sequence[Trial]
    ) -> None:
        """`first` are the settings of the first trial, `done` the trials that have already finished. No trial
        is stopped before `warm_up` epochs."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.first, self.seed = first, seed
        self._distributions = {name: _distribution(domain) for name, domain in space.items()}
        pruner = optuna.pruners.MedianPruner(n_startup_trials=WHOLE_TRIALS, n_warmup_steps=warm_up)
        self._study = optuna.create_study(direction="maximize", pruner=pruner)
        self._running: dict[int, Any] = {}
        self._epochs: dict[int, int] = {}
        for trial in done:
            self._study.add_trial(self._frozen(trial))

    def ask(self, number: int) -> dict[str, Any]:
        """Return the settings of a new trial. They depend on its number, the seed and the trials so far."""
        if number == 0:
            self._study.enqueue_trial(dict(self.first))
        # Each trial has its own generator. With one for all, a resumed search would choose other settings.
        trial_seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        self._study.sampler = TPESampler(seed=trial_seed)
        self._running[number] = trial = self._study.ask(self._distributions)
        return dict(trial.params)

    def stops(self, number: int, epoch: int, value: float) -> bool:
        """Record the value of an epoch. Return whether to stop the trial, as it is worse than half of the
        earlier trials at the same epoch."""
        trial = self._running[number]
        if epoch > self._epochs.get(number, 0):  # a trial that is run again repeats its epochs
            self._epochs[number] = epoch
            trial.report(value, epoch)
        return bool(trial.should_prune())

    def tell(self, trial: Trial) -> None:
        """Record the result of a finished trial."""
        value = trial.value if trial.state == "complete" else None
        self._study.tell(self._running.pop(trial.number), value, state=_STATES[trial.state])

    def importance(self, trials: Sequence[Trial]) -> dict[str, float] | None:
        """Return for each setting the share of the variance of the trials' values that it explains; None with
        too few trials or without scikit-learn."""
        successful = [trial for trial in trials if trial.value is not None]
        enough = len(successful) >= ENOUGH_FOR_IMPORTANCE and len({trial.value for trial in successful}) > 1
        if not enough or find_spec("sklearn") is None:
            return None
        # Optuna uses complete trials only. Stopped trials have bad settings: without them, the most important
        # setting would seem unimportant. So they are passed as complete. Optuna's
        # default, PED-ANOVA, has the same fault, because late trials all use the better choice.
        study = optuna.create_study(direction="maximize")
        study.add_trials([self._frozen(replace(trial, state="complete")) for trial in successful])
        forest = optuna.importance.FanovaImportanceEvaluator(seed=0)
        shares: Mapping[str, float] = optuna.importance.get_param_importances(study, evaluator=forest)
        return {name: float(share) for name, share in shares.items()}

    def _frozen(self, trial: Trial) -> Any:
        """Returns a finished trial in Optuna's form."""
        last = trial.curve[-1] if trial.curve else None  # Optuna uses the last value for a stopped trial
        return optuna.trial.create_trial(
            state=_STATES[trial.state],
            value=trial.value if trial.state == "complete" else last,
            params=dict(trial.settings),
            distributions=self._distributions,
            intermediate_values=dict(enumerate(trial.curve, start=1)),
        )


def _distribution(domain: Domain) -> Any:
    if isinstance(domain, OneOf):
        return CategoricalDistribution(domain.choices)
    if domain.whole:
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=domain.log)
