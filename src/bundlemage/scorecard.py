"""A model's test figures beside those of closed forms that take seconds, and what the figures mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from shlex import quote
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from bundlemage.data.splits import PAD, GenerationCases, MatchingCases, Split
from bundlemage.evaluation import Evaluation, PerCase, case_metrics, evaluation_of, suspicious
from bundlemage.models.auto import LEARNED, TASKS, Auto
from bundlemage.models.base import Completer, Interactions, Matcher, Model, Sizes, can
from bundlemage.recommender import Recommender
from bundlemage.training.choosing import best_closed_forms
from bundlemage.training.closed_forms import fit_closed_form
from bundlemage.training.history import SELECTION_METRIC

FEWEST_CASES = 50
"""With fewer cases, chance decides too much."""
ERRORS_APART = 2.0
"""Two models differ clearly if the difference is more than this many standard errors."""
MOST_SCORES = 2**30
"""In a shop with more test scores than this, only popularity is tested beside the model."""
K = 5
Values: TypeAlias = npt.NDArray[np.float64]
ByTask: TypeAlias = Mapping[str, PerCase]
"""The metrics of each case, for each task."""


@dataclass(frozen=True)
class Competitor:
    """A fitted model in a table, and the options of `bundlemage train` that train it."""

    model: Model
    options: str = ""


@dataclass(frozen=True)
class Scorecard:
    """The test figures of a model (the first row) and of its competitors, and sentences about them."""

    rows: tuple[Evaluation, ...]
    findings: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"test": [row.to_json() for row in self.rows], "findings": list(self.findings)}


def competitors(recommender: Recommender, split: Split) -> list[Competitor]:
    """Returns the model, and closed forms fitted on the same split for the tasks of the model.

    The closed forms have the settings that are best on validation cases. For `auto`, BundleMage comes before
    them if it is available: after training, or if it is a part of the model. In a very large shop, the only
    closed form is popularity.
    """
    model, device = recommender.model, recommender.shop.device
    found = [Competitor(model)]
    learned = None if recommender.training is None else recommender.training.learned
    if isinstance(model, Auto):
        learned = learned or model.part(LEARNED)
    if learned is not None:
        found.append(Competitor(learned, f"--model {LEARNED}"))
    choice = recommender.choice
    forms = choice.closed_forms() if choice is not None else best_closed_forms(split, device)
    sizes, data = Sizes.of(split.dataset), Interactions.of(split.train, device)
    tasks = [kind for kind in (Matcher, Completer) if can(model, kind)]
    for name, settings in forms:
        if name != "popularity" and not quickly_tested(split):
            continue
        other = fit_closed_form(name, settings, sizes, data)
        if name != recommender.model_name and any(can(other, kind) for kind in tasks):
            options = "".join(f" --set {key}={value}" for key, value in settings.items())
            found.append(Competitor(other, f"--model {name}{options}"))
    return found


def quickly_tested(split: Split) -> bool:
    """Whether a closed form can score all bundles for all test cases in seconds."""
    return split.test is None or len(split.test) * len(split.dataset.bundles) <= MOST_SCORES


def scorecard(recommender: Recommender, split: Split, command: str = "") -> Scorecard:
    """Returns the test figures of a model and its competitors.

    `command` is the beginning of the command that trains a competitor: `bundlemage train PATH -o DIR`.
    """
    recommender.check_same_shop(split)
    data = Interactions.of(split.train, recommender.shop.device)
    found = competitors(recommender, split)
    measured = [case_metrics(each.model, split, data) for each in found]
    return scorecard_of(found, measured, split, command)


def scorecard_of(
    models: Sequence[Competitor], measured: Sequence[ByTask], split: Split, command: str = ""
) -> Scorecard:
    """Makes a scorecard of metrics that are measured already. The first model is the one in question. The
    others have only figures for its tasks."""
    measured = [{task: by_task[task] for task in measured[0] if task in by_task} for by_task in measured]
    rows = tuple(
        evaluation_of(each.model, split, by_task) for each, by_task in zip(models, measured, strict=True)
    )
    found = [*suspicious(rows)]
    for task in TASKS:
        if getattr(rows[0], task):
            found += _findings(task, models, measured, split, command)
    return Scorecard(rows, tuple(found))


def _findings(
    task: str, models: Sequence[Competitor], measured: Sequence[ByTask], split: Split, command: str
) -> Iterator[str]:
    cases = split.test if task == "matching" else split.generation
    assert cases is not None
    able = [
        (each, _grouped(by_task[task][SELECTION_METRIC], cases))
        for each, by_task in zip(models, measured, strict=True)
        if task in by_task
    ]
    (own, figures), others = able[0], able[1:]
    means = [float(values.mean()) for _, values in able]
    if len(cases) < FEWEST_CASES:
        yield (
            f"{task.capitalize()} has {len(cases):,} test cases: with fewer than {FEWEST_CASES}, chance "
            "decides too much for these figures to mean anything."
        )
    if max(means) == 0:
        yield f"In {task} every model scores 0, so the figures say nothing about which one is better."
        return
    if min(means) > 0.999:
        yield f"In {task} every model scores 1: the test cases are too easy to tell models apart."
        return
    chance = chance_of(cases)
    for other, values in able:
        difference, error = _difference(values, np.full_like(values, chance))
        if other.model.name == "popularity" and difference < min(-ERRORS_APART * error, -0.1 * chance):
            yield (
                f"In {task} popularity (nDCG@5 {values.mean():.4f}) is worse than a random order "
                f"({chance:.4f}): what is held out differs from what is in training, so read these figures "
                "with care."
            )
    if others:
        best, values = max(others, key=lambda each: float(each[1].mean()))
        difference, error = _difference(values, figures)
        versus = f"nDCG@5 {values.mean():.4f} against {figures.mean():.4f}"
        if 0 < difference <= ERRORS_APART * error:
            yield (
                f"In {task} {best.model.title} is higher than {own.model.title}, but within chance: "
                f"{versus}, {difference:.4f} ± {error:.4f} more."
            )
        elif -ERRORS_APART * error < difference < 0 and best.model.name != LEARNED:
            yield (
                f"In {task} {best.model.title}, which takes seconds, is as good as {own.model.title} within "
                f"chance: {versus}, {-difference:.4f} ± {error:.4f} less."
            )
        elif difference > ERRORS_APART * error:
            hint = f" To use it: {command} {best.options}" if command else ""
            if can(own.model, Matcher) and not can(best.model, Matcher):
                hint = f" It completes bundles and does nothing else.{hint}"
            mean = " as a mean over held-out bundles" if task == "generation" else ""
            yield (
                f"In {task} {best.model.title} is better than {own.model.title}: nDCG@5{mean} "
                f"{values.mean():.4f} against {figures.mean():.4f}, {difference:.4f} ± {error:.4f} more."
                f"{hint}"
            )


def chance_of(cases: MatchingCases | GenerationCases) -> float:
    """The nDCG@5 of a random order."""
    positives = np.diff(cases.positives.indptr)
    if cases.candidates is None:
        width = np.full(len(positives), cases.positives.shape[1])
    else:
        width = (cases.candidates != PAD).sum(1)
    gains = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, K + 2)))])  # of the first 0 to K places
    filled = positives > 0
    positives, width = positives[filled], width[filled]
    expected = positives * gains[np.minimum(width, K)] / width
    return float((expected / gains[np.minimum(positives, K)]).mean()) if filled.any() else 0.0


def _grouped(values: torch.Tensor, cases: MatchingCases | GenerationCases) -> Values:
    """The mean of each group of cases. The users of one held-out bundle are asked the same question."""
    each = values.double().cpu().numpy()
    group = cases.bundles if isinstance(cases, GenerationCases) else np.arange(len(each))
    filled = ~np.isnan(each)
    _, group = np.unique(group[filled], return_inverse=True)
    counts = np.bincount(group)
    return np.bincount(group, each[filled]) / counts if len(counts) else np.zeros(1)


def _difference(one: Values, other: Values) -> tuple[float, float]:
    """The mean difference, and its standard error."""
    difference = one - other
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else np.inf
    return float(difference.mean()), float(error)


def command_to_train(location: str, output: object) -> str:
    """The beginning of a command that trains another model in place of this one."""
    return f"bundlemage train {quote(location)} -o {quote(str(output))} --overwrite"
