"""One trial: train by the one loop, and be judged by validation. Both engines do it by this."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bundlemage.data.splits import Split
from bundlemage.errors import BundleMageError, ConfigError, NoModelYetError
from bundlemage.evaluation.protocols import MatchingExam, means
from bundlemage.models.base import Interactions, Matcher, Model, Sizes, can
from bundlemage.models.registry import build, make_config
from bundlemage.training.devices import resolve_device
from bundlemage.training.history import SELECTION_METRIC, EpochRecord, Observer
from bundlemage.training.loop import train

Report = Callable[[int, float], bool]
"""Told each epoch and its value; True: stop here."""


@dataclass(frozen=True)
class Judged:
    """What became of a training."""

    value: float | None
    curve: tuple[float, ...]
    seconds: float
    stopped: bool = False
    reason: str | None = None
    """Why it failed."""


def blind(split: Split) -> Split:
    """A split in which nothing of the test is left: no case, and no pair that is held out."""
    return Split(split.train, split.train, split.validation, None, None, split.protocol, split.plan)


def judge(model_name: str, settings: Mapping[str, Any], split: Split, report: Report) -> Judged:
    """Train once. Whatever goes wrong with these settings is a result, too: others may do."""
    started, watch = time.perf_counter(), _Watch(report)
    stopped, value, reason = False, None, None
    try:
        value = _fit(model_name, settings, split, watch)
    except _Stop:
        value, stopped = max(watch.curve), True
    except NoModelYetError:  # that is the user's wish and no failure
        raise KeyboardInterrupt from None
    except Exception as error:
        reason = str(error) if isinstance(error, BundleMageError) else f"{type(error).__name__}: {error}"
    seconds = round(time.perf_counter() - started, 4)
    return Judged(value, tuple(watch.curve), seconds, stopped, reason)


def must_match(model: Model) -> None:
    """A model is judged by the bundles that it recommends."""
    if not can(model, Matcher):
        raise ConfigError(
            f"{model.title}, as it is set, completes bundles and recommends none, so it has no validation "
            f"{SELECTION_METRIC} to be judged by, and cannot be tuned. 'bundlemage models' says which match"
        )


class _Stop(Exception):  # noqa: N818 - no error
    """Out of the training loop."""


class _Watch(Observer):
    def __init__(self, report: Report) -> None:
        self.report = report
        self.curve: list[float] = []

    def on_epoch(self, record: EpochRecord) -> None:
        assert record.value is not None
        self.curve.append(record.value)
        if self.report(record.epoch, self.curve[-1]):
            raise _Stop


def _fit(model_name: str, settings: Mapping[str, Any], split: Split, watch: _Watch) -> float:
    config = make_config(model_name, settings)
    model = build(model_name, config, Sizes.of(split.dataset))
    must_match(model)
    assert split.validation is not None
    if train(model, config, split, observers=[watch]).interrupted:
        raise KeyboardInterrupt
    if watch.curve:
        return max(watch.curve)
    # A model that counts or solves has no epochs, and is asked once.
    data = Interactions.of(split.train, resolve_device(config.device))
    return means(MatchingExam(split.validation, data).metrics(model))[SELECTION_METRIC]
