"""Optuna: which settings to try next, and which trials to stop early.

It remembers nothing by itself: from the trials that are done, it is made anew and gives the same advice. So
there is one store only, the study's folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import TrialState

from bundlemage.models.config import Domain, OneOf, Space
from bundlemage.tuning.study import Trial

WHOLE_TRIALS = 5
"""So many run to their end before any is stopped early."""
ENOUGH_FOR_IMPORTANCE = 10
# Of trials that failed Optuna would learn nothing, and try the same again; to have them stopped is worse than
# all that are complete.
_STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.PRUNED}


class Adviser:
    """Asked for settings, told of epochs and of trials that ended. Several trials may run at a time."""

    def __init__(
        self, space: Space, first: Mapping[str, Any], seed: int, warm_up: int, done: Sequence[Trial]
    ) -> None:
        """`first` is tried before anything is drawn; no trial is stopped before `warm_up` epochs."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.first = first
        self._distributions = {name: _distribution(domain) for name, domain in space.items()}
        self._sampler = _SeededByTrial(seed)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=WHOLE_TRIALS, n_warmup_steps=warm_up)
        self._study = optuna.create_study(direction="maximize", sampler=self._sampler, pruner=pruner)
        self._running: dict[int, Any] = {}
        self._epochs: dict[int, int] = {}
        for trial in done:
            self._study.add_trial(self._frozen(trial))

    def ask(self, number: int) -> dict[str, Any]:
        """The settings of a new trial. They follow from its number, the seed and the trials so far."""
        if number == 0:
            self._study.enqueue_trial(dict(self.first))
        self._sampler.begin(number)
        self._running[number] = trial = self._study.ask(self._distributions)
        return dict(trial.params)

    def stops(self, number: int, epoch: int, value: float) -> bool:
        """Takes note of an epoch: is the trial worse by now than half of the others were?"""
        trial = self._running[number]
        if epoch > self._epochs.get(number, 0):  # a trial that was lost comes by its epochs a second time
            self._epochs[number] = epoch
            trial.report(value, epoch)
        return bool(trial.should_prune())

    def tell(self, trial: Trial) -> None:
        """A trial has ended."""
        told = trial.value if trial.state == "complete" else None
        self._study.tell(self._running.pop(trial.number), told, state=_STATES[trial.state])

    def importance(self, trials: Sequence[Trial]) -> dict[str, float] | None:
        """How much of the spread of the values comes from each setting; None where that cannot be told."""
        judged = [trial for trial in trials if trial.value is not None]
        enough = len(judged) >= ENOUGH_FOR_IMPORTANCE and len({trial.value for trial in judged}) > 1
        if not enough or find_spec("sklearn") is None:
            return None
        # Optuna looks at complete trials only. Those that were stopped are the bad ones: without them, what
        # matters most would seem to matter least. (So it does to PED-ANOVA, Optuna's default, which compares
        # the best trials with the others, when a search has long settled on the better choice.)
        study = optuna.create_study(direction="maximize")
        study.add_trials([self._frozen(replace(trial, state="complete")) for trial in judged])
        forest = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found: Mapping[str, float] = optuna.importance.get_param_importances(study, evaluator=forest)
        return {name: float(part) for name, part in found.items()}

    def _frozen(self, trial: Trial) -> Any:
        last = trial.curve[-1] if trial.curve else None  # what Optuna itself keeps of one that was stopped
        return optuna.trial.create_trial(
            state=_STATES[trial.state],
            value=trial.value if trial.state == "complete" else last,
            params=dict(trial.settings),
            distributions=self._distributions,
            intermediate_values=dict(enumerate(trial.curve, start=1)),
        )


class _SeededByTrial(BaseSampler):  # type: ignore[misc]
    """A tree-structured Parzen estimator whose chance follows from the number of the trial.

    One generator for all would give other settings after a resumption than without it.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.begin(0)

    def begin(self, number: int) -> None:
        drawn = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        self._drawing = TPESampler(seed=drawn)

    def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
        return self._drawing.infer_relative_search_space(study, trial)

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
        return self._drawing.sample_relative(study, trial, search_space)

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        return self._drawing.sample_independent(study, trial, param_name, param_distribution)


def _distribution(domain: Domain) -> Any:
    if isinstance(domain, OneOf):
        return CategoricalDistribution(domain.choices)
    if domain.whole:
        return IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=domain.log)
