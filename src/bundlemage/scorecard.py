"""A model's test figures beside those of closed forms that take seconds, and what the figures mean."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from bundlemage.core.owned_rule import RuleEffect, effect
from bundlemage.data.splits import PAD, PROTOCOLS, GenerationCases, MatchingCases, Split, SplitPlan
from bundlemage.errors import ConfigError
from bundlemage.evaluation import (
    Evaluation,
    PerCase,
    case_metrics,
    evaluation_of,
    holm,
    paired_p,
    suspicious,
)
from bundlemage.measures.lists import list_measures
from bundlemage.measures.meaning import MEANING, SLICE_METRICS
from bundlemage.measures.slices import SlicedFigures, case_groups, sliced, slicings
from bundlemage.measures.steering import SteeringPoint, steering_curve
from bundlemage.models.auto import LEARNED, TASKS, Auto
from bundlemage.models.base import Completer, Matcher, Model, Sizes, can
from bundlemage.progress import Progress, in_silence
from bundlemage.readers.address import may_hold_a_password
from bundlemage.readers.pairs import written
from bundlemage.recommender import Recommender
from bundlemage.training.choosing import best_closed_forms, with_untried
from bundlemage.training.closed_forms import fit_closed_form
from bundlemage.training.history import SELECTION_METRIC
from bundlemage.training.validation import learning_data

FEWEST_CASES, FEWEST_GROUPS = 50, 10
"""With fewer cases, or cases of fewer held-out bundles, chance decides too much."""
LEVEL = 0.05
"""Two models differ clearly if the p-value of a paired t-test is below this."""
MOST_SCORES = 2**30
"""In a shop with more test scores than this, only popularity is tested beside the model."""
K = 5
Values: TypeAlias = npt.NDArray[np.float64]
Command: TypeAlias = Callable[["Competitor"], str]
"""Returns the command that trains a competitor."""
ByTask: TypeAlias = Mapping[str, PerCase]
"""The metrics of each case, for each task."""
BySlice: TypeAlias = Mapping[str, tuple[SlicedFigures, ...]]


@dataclass(frozen=True)
class Competitor:
    """A fitted model in a table, and the settings that it was chosen with."""

    model: Model
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Scorecard:
    """The test figures of a model (the first row) and of its competitors, and sentences about them."""

    rows: tuple[Evaluation, ...]
    findings: tuple[str, ...] = ()
    rule: RuleEffect | None = None
    """What the shop's rule about owned bundles does to the figures. None if matching is not tested."""

    slices: BySlice = field(default_factory=dict)
    """The model's figures in slices of the test cases, for each task."""

    def to_json(self) -> dict[str, Any]:
        return {
            **figures_json(self.rows, self.slices),
            "findings": list(self.findings),
            "owned_rule": None if self.rule is None else self.rule.to_json(),
        }


def figures_json(rows: Sequence[Evaluation], slices: BySlice) -> dict[str, Any]:
    """Returns the figures of models as `metrics.json` has them, with what each measure means."""
    return {
        "test": [row.to_json() for row in rows],
        "slices": {task: [way.to_json() for way in ways] for task, ways in slices.items()},
        "meaning": MEANING,
    }


def steering_of(
    recommender: Recommender, split: Split, progress: Progress = in_silence
) -> list[SteeringPoint]:
    """Returns what variety and matched popularity cost on the test cases of matching. Raises `ConfigError` if
    there are none."""
    if not split.test or not len(split.test) or not can(recommender.model, Matcher):
        raise ConfigError(
            "there are no test cases of matching, so the cost of variety cannot be measured: train with a "
            "protocol that holds some out, such as --protocol paper, and without --final"
        )
    data = recommender.model.interactions(split.train, recommender.shop.device)
    question = (recommender.model, split, split.test, data, recommender.shop_settings)
    return steering_curve(*question, progress)


def competitors(recommender: Recommender, split: Split) -> list[Competitor]:
    """Returns the model, and closed forms fitted on the same split for the tasks of the model.

    The closed forms have the settings that are best on validation cases. For `auto`, BundleMage comes before
    them if it is available: after training, or if it is a part of the model. In a very large shop, the only
    closed form is popularity.
    """
    model, device = recommender.model, recommender.shop.device
    found = [Competitor(model)]
    if split.test is None and split.generation is None:
        return found
    learned = None if recommender.training is None else recommender.training.learned
    if isinstance(model, Auto):
        learned = learned or model.part(LEARNED)
    if learned is not None:
        found.append(Competitor(learned))
    sizes, choice = Sizes.of(split.dataset), recommender.choice
    forms: list[tuple[str, Mapping[str, Any]]] = [("popularity", {})]
    if quickly_tested(split):
        forms = (
            best_closed_forms(split, device, half_life=model.half_life)
            if choice is None
            else with_untried(choice.closed_forms(), sizes)
        )
    data = learning_data(split, device, model.half_life)
    tasks = [kind for kind in (Matcher, Completer) if can(model, kind)]
    for name, settings in forms:
        other = fit_closed_form(name, settings, sizes, data)
        if name != recommender.model_name and any(can(other, kind) for kind in tasks):
            found.append(Competitor(other, settings))
    return found


def quickly_tested(split: Split) -> bool:
    """Whether a closed form can score all bundles for all test cases in seconds."""
    return split.test is None or len(split.test) * len(split.dataset.bundles) <= MOST_SCORES


def scorecard(
    recommender: Recommender, split: Split, command: Command | None = None, slice_by: Sequence[str] = ()
) -> Scorecard:
    """Returns the test figures of a model and its competitors. `slice_by` names columns of the catalogue."""
    recommender.check_same_shop(split)
    data = recommender.model.interactions(split.train, recommender.shop.device)
    found = competitors(recommender, split)
    measured = [case_metrics(each.model, split, data) for each in found]
    card = scorecard_of(found, measured, split, command, slice_by)
    return beyond_accuracy(card, found, recommender, split)


def beyond_accuracy(
    card: Scorecard, models: Sequence[Competitor], recommender: Recommender, split: Split
) -> Scorecard:
    """Adds the measures of the models' lists, and what the rule about owned bundles does to the first
    model's figures."""
    if split.test is None or card.rows[0].matching is None:
        return card
    data = recommender.model.interactions(split.train, recommender.shop.device)
    lists = list_measures([each.model for each in models], split, data)
    rows = tuple(replace(row, lists=each) for row, each in zip(card.rows, lists, strict=True))
    rule = effect(recommender.model, split.test, data, recommender.shop_settings, split.new_bundles)
    return replace(card, rows=rows, rule=rule)


def scorecard_of(
    models: Sequence[Competitor],
    measured: Sequence[ByTask],
    split: Split,
    command: Command | None = None,
    slice_by: Sequence[str] = (),
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
    slices = {}
    for task, ways in slicings(split, slice_by).items():
        if task in measured[0]:
            own = measured[0][task]
            values = {name: own[name].double().cpu().numpy() for name in SLICE_METRICS if name in own}
            groups = case_groups(split, task)
            slices[task] = tuple(sliced(values, way, groups) for way in ways)
    return Scorecard(rows, tuple(found), slices=slices)


def _findings(
    task: str,
    models: Sequence[Competitor],
    measured: Sequence[ByTask],
    split: Split,
    command: Command | None,
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
    few = _few(task, len(cases), len(figures))
    if few:
        yield few
    if max(means) == 0:
        yield f"In {task} every model scores 0, so the figures say nothing about which one is better."
        return
    if min(means) > 0.999:
        yield f"In {task} every model scores 1: the test cases are too easy to tell models apart."
        return
    if not few:
        yield from _worse_than_chance(task, able, chance_of(cases), split)
        if others:
            yield from _best_rival(task, own, figures, others, command)


def _few(task: str, cases: int, groups: int) -> str:
    """A sentence if there are too few cases to compare models; otherwise an empty text."""
    if cases < FEWEST_CASES:
        return (
            f"{task.capitalize()} has {cases:,} test cases: with fewer than {FEWEST_CASES}, chance "
            "decides too much for these figures to mean anything."
        )
    if groups < FEWEST_GROUPS:
        return (
            f"All {cases:,} test cases of {task} come from {groups:,} held-out bundles: with fewer than "
            f"{FEWEST_GROUPS}, chance decides too much for these figures to mean anything."
        )
    return ""


def _worse_than_chance(
    task: str, able: Sequence[tuple[Competitor, Values]], chance: float, split: Split
) -> Iterator[str]:
    """Sentences about rules that are worse than a random order."""
    for each, values in able:
        name, mean = each.model.name, float(values.mean())
        rule = name == "popularity" or (name == "owned-share" and split.histories != "as given")
        if (
            not rule
            or mean >= 0.9 * chance
            or (paired_p(values, np.full_like(values, chance)) or 0.0) >= LEVEL
        ):
            continue
        found = (
            f"In {task} {each.model.title} (nDCG@5 {mean:.4f}) is worse than a random order ({chance:.4f}): "
        )
        if name == "popularity":
            yield f"{found}what is held out differs from what is in training. Read these figures with care."
        else:
            yield (
                f"{found}without the items of held-out bundles, the histories may also lack items that users "
                "had before. Then figures are too low, and another model may be the best: compare with "
                "--histories as-given."
            )


def _best_rival(
    task: str,
    own: Competitor,
    figures: Values,
    others: Sequence[tuple[Competitor, Values]],
    command: Command | None,
) -> Iterator[str]:
    """A sentence about the best of the other models, if it is better or about as good."""
    kind = " as a mean over held-out bundles" if task == "generation" else ""
    ps = [paired_p(values, figures) for _, values in others]
    corrected = holm([1.0 if p is None else p for p in ps])
    mean = float(figures.mean())
    better = [
        (each, values)
        for (each, values), p in zip(others, corrected, strict=True)
        if p < LEVEL and values.mean() > mean
    ]
    if better:
        best, values = max(better, key=lambda pair: float(pair[1].mean()))
        text = (
            f"In {task} {best.model.title} is better than {own.model.title}: nDCG@5{kind} "
            f"{values.mean():.4f} against {mean:.4f}, {_apart(values, figures)} more."
        )
        if can(own.model, Matcher) and not can(best.model, Matcher):
            text += " It completes bundles and does nothing else."
        yield f"{text} To use it: {command(best)}" if command else text
        return
    place = int(np.argmax([values.mean() for _, values in others]))
    (best, values), p = others[place], ps[place]
    versus = f"nDCG@5{kind} {values.mean():.4f} against {mean:.4f}, {_apart(values, figures)}"
    if values.mean() > mean:
        yield (
            f"In {task} {best.model.title} is higher than {own.model.title}, but within chance: "
            f"{versus} more."
        )
    elif values.mean() < mean and p is not None and p >= LEVEL and best.model.name != LEARNED:
        yield (
            f"In {task} {best.model.title}, which takes seconds, is as good as {own.model.title} within "
            f"chance: {versus} less."
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


def _apart(one: Values, other: Values) -> str:
    """The difference of two means, with its standard error."""
    difference = one - other
    error = difference.std(ddof=1) / np.sqrt(len(difference))
    return f"{abs(difference.mean()):.4f} ± {error:.4f}"


def commands(
    recommender: Recommender, location: str, output: Path, tables: Mapping[str, str], *, final: bool = False
) -> Command:
    """Returns a function for the command that trains a competitor in place of the model in `output`.

    The command has the same data and the same split. An address that may hold a password is left out.
    """
    plan, start = recommender.plan, SplitPlan()
    config = recommender.config.model_dump(mode="json", exclude_defaults=True, exclude={"parts", "device"})
    options = [f"--table={name}={text}" for name, text in tables.items()]
    if events := recommender.dataset.event_weights:
        options.append(f"--events={written(events)}")
    if plan.protocol in PROTOCOLS and plan.protocol != start.protocol:
        options.append(f"--protocol={plan.protocol}")
    if plan.seed != start.seed:
        options.append(f"--split-seed={plan.seed}")
    if plan.histories != start.histories:
        options.append(f"--histories={plan.histories.replace(' ', '-')}")
    options += [
        f"--{name.replace('_', '-')}={value}"
        for name in ("order", "test_from", "validate_from")
        if (value := getattr(plan, name)) != getattr(start, name)
    ]
    if "seed" in config:
        options.append(f"--seed={config.pop('seed')}")
    if final:
        options.append("--final")
    shown = "DATABASE_URL" if may_hold_a_password(location) else location

    def command(competitor: Competitor) -> str:
        learned = competitor.model.name == LEARNED
        settings = config if learned else competitor.settings
        own = [f"--set={name}={value}" for name, value in settings.items()]
        if learned and recommender.ensemble > 1:
            own.append(f"--ensemble={recommender.ensemble}")
        words = ["bundlemage", "train", shown, "-o", str(output), "--overwrite", *options]
        return shlex.join([*words, f"--model={competitor.model.name}", *own])

    return command
