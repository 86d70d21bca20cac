"""A running search: it trains models with different settings and compares them on validation cases."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeAlias

from bundlemage.data.splits import Split
from bundlemage.errors import BundleMageError, ConfigError, MissingExtraError, NoModelYetError
from bundlemage.evaluation import MatchingEvaluator, means
from bundlemage.models.base import Matcher, Model, Sizes, can
from bundlemage.models.config import Between, Domain, ModelConfig, OneOf, Space, parse_config
from bundlemage.models.registry import AUTO, build, make_config, model_class
from bundlemage.progress import Progress
from bundlemage.readers.load import read
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, Observer
from bundlemage.training.loop import train
from bundlemage.training.pool import Ask, Died, Pool, check_jobs
from bundlemage.training.validation import ValidationCases
from bundlemage.tuning.study import Search, Study, StudyFolder, Trial

Task: TypeAlias = tuple[int, dict[str, Any]]
"""The number of a trial, and the settings that were chosen for it."""
Shared: TypeAlias = tuple[str, dict[str, Any], Split]
"""The model's name, the fixed settings and the data. All trials share them."""
WITHOUT_EFFECT = frozenset({"device"})
"""Settings that do not change the result of a trial. A study may continue on another device."""

NEVER = {
    "seed": "the best seed is luck, not a better setting",
    "device": "the device does not change how good a model is",
}
"""Settings that cannot be searched for, each with the reason."""
MOST_CHECKED = 10_000
"""Maximum number of values to check in a range of whole numbers."""


def blind(split: Split) -> Split:
    """Returns the split without its test cases and without held-out pairs. Tuning must not see them."""
    return replace(split, dataset=split.train, test=None, generation=None, new_bundles=None)


def check_matches(model: Model) -> None:
    """Raises ConfigError if a model does not recommend bundles. Trials are compared by recommendations."""
    if not can(model, Matcher):
        raise ConfigError(
            f"{model.title}, with these settings, completes bundles and recommends none, so it has no "
            f"validation {SELECTION_METRIC} and cannot be tuned. 'bundlemage models' lists models and tasks"
        )


class Session:
    """The state of a search. The constructor checks the whole request before the first training."""

    def __init__(self, search: Search, progress: Progress) -> None:
        try:
            from bundlemage.tuning.adviser import Adviser
        except ImportError:
            raise MissingExtraError("tune", "tuning") from None
        self.started = time.monotonic()
        self.search, self.progress = search, progress
        tiny = self._prepare()
        self.folder = StudyFolder(search.output)
        self.folder.check(resume=search.resume)
        progress("reading the data", 0, 0)
        source = read(search.location, search.tables, search.events)
        split = search.plan.divide(source.dataset, source.ready)
        self.warnings, self.leakage, self.split = source.warnings, split.leakage, blind(split)
        validation = self.split.validation
        if not validation:
            raise ConfigError(
                f"the protocol {self.split.protocol} leaves no validation cases in this data, so trials "
                "cannot be compared: choose another protocol with --protocol, or add data"
            )
        self.metric = ValidationCases.of(tiny, make_config(search.model, self.fixed), self.split).metric
        # Defaults are part of the identity: a new version may change them.
        first = make_config(search.model, {**self.fixed, **self.first})
        identity = {
            "model": search.model,
            "settings": first.model_dump(mode="json", exclude={*self.space, *WITHOUT_EFFECT}),
            "space": {name: domain.to_json() for name, domain in self.space.items()},
            "split": asdict(search.plan),
            "metric": self.metric,
            "training data": self.split.train.fingerprint(),
            "validation data": validation.fingerprint(),
        }
        self.trials = {trial.number: trial for trial in self.folder.open(identity)}
        warm_up = max(2, getattr(first, "epochs", 0) // 10)
        self.adviser = Adviser(self.space, self.first, search.seed, warm_up, [*self.trials.values()])
        self._keep_best()  # the program may have been killed before it wrote best.toml
        self._show_progress()

    def _prepare(self) -> Model:
        """Checks the request, and sets `space`, `fixed` and `first`. Returns a tiny model."""
        search = self.search
        if "seed" in {**search.start, **search.settings}:
            raise ConfigError(
                "'seed' cannot be among the model's settings: set the seed of the search instead"
            )
        if search.model == AUTO:
            raise ConfigError(
                "a study searches the settings of one model: use --model bundlemage. "
                "'train --model auto' takes the settings that it finds"
            )
        config_class = model_class(search.model).config_class
        config = make_config(search.model, {**search.start, **search.settings})
        tiny = build(search.model, config, Sizes(1, 1, 1))
        check_matches(tiny)
        self.space = chosen_space(config_class, search.space, search.settings)
        if not self.space:
            raise ConfigError(
                f"there is nothing to search for: {search.model} has no space of its own, or all its "
                "settings are fixed. Name settings with --space; 'bundlemage models NAME' lists the settings"
            )
        start = {name: value for name, value in search.start.items() if name not in search.settings}
        self.fixed: dict[str, Any] = {
            **{name: value for name, value in start.items() if name not in self.space},
            **search.settings,
            "seed": search.seed,
        }
        self.first = first_point(config_class, self.space, {**start, **self.fixed})
        return tiny

    @property
    def missing(self) -> list[int]:
        """The numbers of the trials that are still to run."""
        return [number for number in range(self.search.trials) if number not in self.trials]

    @property
    def best(self) -> Trial | None:
        """The best trial so far."""
        return self.study(importance=False).best

    def run(self, pool: Pool[Task, Trial]) -> None:
        """Run the missing trials until the time is up. At least one trial always runs."""
        most_seconds = self.search.timeout or math.inf
        running: dict[int, tuple[float, dict[int, float]]] = {}  # number → start, values by epoch

        def tasks() -> Iterator[Task]:
            for number in self.missing:
                if self.trials and time.monotonic() - self.started >= most_seconds:
                    return
                running[number] = time.perf_counter(), {}
                yield number, self.adviser.ask(number)

        def stops(task: Task, report: tuple[int, float]) -> bool:
            epoch, value = report
            running[task[0]][1][epoch] = value
            return self.stops(task[0], epoch, value)

        for (number, chosen), trial in pool.run(tasks(), stops):
            started, curve = running.pop(number)
            if isinstance(trial, Died):
                trial = Trial.ended(number, chosen, [*curve.values()], started, reason=trial.reason)
            self.keep(trial)

    def stops(self, number: int, epoch: int, value: float) -> bool:
        """Record the value of an epoch of a trial. Return whether the trial must stop."""
        self._show_progress(f"trial {number + 1}, epoch {epoch}")
        return self.adviser.stops(number, epoch, value)

    def keep(self, trial: Trial) -> None:
        """Write a finished trial to the folder first, then use its result."""
        before = self.best
        self.folder.keep(trial)
        self.trials[trial.number] = trial
        if self.best is not before:
            self._keep_best()
        self.adviser.tell(trial)
        name = f"trial {trial.number + 1} of {self.search.trials}"
        self.progress(name, 1, 1, self._with_best(trial.described(self.metric)))
        self._show_progress()

    def _keep_best(self) -> None:
        if self.best is not None:
            settings = {**self.fixed, **self.best.settings}
            kept = {name: value for name, value in settings.items() if name not in WITHOUT_EFFECT}
            self.folder.keep_best(self.search.model, kept, asdict(self.search.plan), self.search.events)

    def _show_progress(self, note: str = "") -> None:
        self.progress("trials", len(self.trials), self.search.trials, note and self._with_best(note))

    def _with_best(self, note: str) -> str:
        return note if self.best is None else f"{note}; best {self.metric} {self.best.value:.4f}"

    def study(self, interrupted: bool = False, importance: bool = True) -> Study:
        """Returns the results so far. With `importance`, also the importance of each setting."""
        return Study(
            self.search.output,
            self.search.model,
            tuple(self.trials[number] for number in sorted(self.trials)),
            self.search.trials,
            time.monotonic() - self.started,
            interrupted,
            self.adviser.importance([*self.trials.values()]) if importance else None,
            self.warnings,
            self.metric,
            self.leakage,
            self.split.histories,
        )


def make_trial(shared: Shared, task: Task, ask: Ask) -> Trial:
    """Train once and return the trial. `ask((epoch, value))` returns whether to stop early.

    If training fails, a failed trial is returned and the search continues: other settings may work.
    """
    (name, fixed, split), (number, chosen) = shared, task
    started, curve = time.perf_counter(), list[float]()
    interrupted, stopped, value, reason = False, False, None, None
    try:
        config = make_config(name, {**fixed, **chosen})
        model = build(name, config, Sizes.of(split.dataset))
        check_matches(model)
        interrupted = train(model, config, split, observers=[_Curve(curve, ask)]).interrupted
        if curve:
            value = max(curve)
        else:  # a model without epochs is evaluated once, after training
            assert split.validation is not None
            data = model.interactions(split.train, resolve_device(config.device))
            value = means(MatchingEvaluator(split.validation, data).metrics(model))[SELECTION_METRIC]
    except _Stop:
        value, stopped = max(curve), True
    except NoModelYetError:  # the user pressed Ctrl-C
        raise KeyboardInterrupt from None
    except Exception as error:
        reason = str(error) if isinstance(error, BundleMageError) else f"{type(error).__name__}: {error}"
    if interrupted:
        raise KeyboardInterrupt
    return Trial.ended(number, chosen, curve, started, value, stopped=stopped, reason=reason)


class _Stop(Exception):  # noqa: N818 - no error
    """Raised to leave the training loop."""


class _Curve(Observer):
    def __init__(self, curve: list[float], ask: Ask) -> None:
        self.curve, self.ask = curve, ask

    def on_epoch(self, record: EpochRecord) -> None:
        assert record.value is not None
        self.curve.append(record.value)
        if self.ask((record.epoch, record.value)):
            raise _Stop


def tune(
    search: Search, progress: Progress, jobs: int = 1, pool: Callable[..., Pool[Task, Trial]] = Pool
) -> Study:
    """Run the missing trials, `jobs` at a time, in the processes of a `pool`. Returns all results.

    With one job, the same seed gives the same trials, even if the search is interrupted and resumed. With
    more jobs, the settings of a trial depend on the trials that have finished by then, so the order in which
    trials finish matters. Ctrl-C ends the search early and keeps the finished trials.
    """
    check_jobs(jobs)
    session = Session(search, progress)
    try:
        shared: Shared = (search.model, session.fixed, session.split)
        with pool(max(1, min(jobs, len(session.missing))), make_trial, shared) as processes:
            session.run(processes)
    except KeyboardInterrupt:
        return session.study(interrupted=True)
    return session.study()


def chosen_space(config_class: type[ModelConfig], changes: Space, fixed: Mapping[str, Any]) -> Space:
    """Returns the space of `config_class`, with `changes` and without the `fixed` settings.

    Raises ConfigError if a value in the space is not a valid setting.
    """
    for name in changes:
        if name in NEVER:
            raise ConfigError(f"{name!r} cannot be searched for: {NEVER[name]}. Set it with --set")
        if name in fixed:
            raise ConfigError(
                f"{name!r} is both fixed to {fixed[name]!r} and in the space to search: choose one of the two"
            )
    declared = config_class.space
    combined = {**declared, **{name: _fitted(config_class, name, domain) for name, domain in changes.items()}}
    space = {name: domain for name, domain in combined.items() if name not in fixed}
    for name, domain in space.items():
        for value in _values(domain):
            try:
                parse_config(config_class, {**fixed, name: value})
            except ConfigError as error:
                hint = ""
                if isinstance(domain, Between) and domain.whole:
                    hint = f". Name the values one by one, e.g. {name}={domain.low},{domain.high}"
                raise ConfigError(f"the space of {name!r} is {domain}: {error}{hint}") from None
    return space


def first_point(config_class: type[ModelConfig], space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of the first trial: `settings`, or else the defaults. So the best trial is at
    least as good as these.

    A value that is not in the space is replaced by the middle of the space.
    """
    config = parse_config(config_class, settings)
    return {
        name: value if (value := getattr(config, name)) in domain else domain.middle
        for name, domain in space.items()
    }


def _fitted(config_class: type[ModelConfig], name: str, domain: Domain) -> Domain:
    """Returns a domain with the setting's type, and with a logarithmic scale if the config class has one."""
    field, declared = config_class.model_fields.get(name), config_class.space.get(name)
    is_float = field is not None and field.annotation is float
    if isinstance(domain, OneOf):
        return OneOf(
            *(float(choice) if is_float and type(choice) is int else choice for choice in domain.choices)
        )
    low, high = (float(end) if is_float else end for end in (domain.low, domain.high))
    return Between(low, high, domain.log or (isinstance(declared, Between) and declared.log))


def _values(domain: Domain) -> Iterable[Any]:
    """Returns the values to check as settings: all choices, the whole numbers of a range, or its ends."""
    if isinstance(domain, OneOf):
        return domain.choices
    if domain.whole:
        low, high = int(domain.low), int(domain.high)
        return {*range(low, min(high, low + MOST_CHECKED) + 1), high}
    return domain.low, domain.high
