"""Chooses the parts of `auto`: for each task the best of BundleMage and closed forms, or a blend of them.

All candidates are compared on the validation cases, by the log-likelihood of what users took and by nDCG@5.
Test cases are not used. A blend is a weighted mean of log-probabilities. Its weights make the validation
cases most likely, or BundleMage has half of the weight. `Comparison.best` tries blends in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize
from torch import Tensor

from bundlemage.data.splits import Split
from bundlemage.evaluation import Evaluator, GenerationEvaluator, MatchingEvaluator, ranking_metrics
from bundlemage.models.auto import LEARNED, TASKS, Auto, AutoConfig, AutoPart
from bundlemage.models.base import Completer, Embedder, Interactions, Matcher, Model, Sizes, can
from bundlemage.models.config import parse_config
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import build, make_config, model_class
from bundlemage.progress import Progress, in_silence
from bundlemage.training.choice import Choice, TaskChoice, Tried
from bundlemage.training.closed_forms import CLOSED_FORMS, affordable, fit_closed_form
from bundlemage.training.history import SELECTION_METRIC
from bundlemage.training.validation import ValidationCases, learning_data

Factors: TypeAlias = npt.NDArray[np.float64]
"""A factor for the scores of each candidate."""
MOST_CASES, MOST_SCORES = 4_000, 2**23
"""The maximum number of validation cases and of their scores; more than that are sampled."""
MOST_PARTS, LEAST_SHARE = 3, 0.05
"""A blend has at most this many parts, each with at least this weight."""
SOME, STRONG = 1.0, 4.0
"""By how many standard errors the log-likelihood of the cases must rise. These numbers were chosen on
generated shops with the seeds 100 to 108 (docs/results.md)."""
LEAST_SPREAD = 1e-9
"""A model whose scores differ by less than this ranks nothing."""
LEAST_FACTOR = 1e-6
"""The factor of a model, relative to the spread of its scores, that ranks the cases worse than chance."""
RIDGE = 1e-3
"""A small penalty on the factors of a blend. It keeps them finite if the cases are few."""


def choose(
    config: AutoConfig,
    split: Split,
    learned: Model,
    ensemble: int = 1,
    *,
    device: torch.device,
    progress: Progress = in_silence,
) -> tuple[Auto, Choice]:
    """Returns the best model for a split, and the reasons.

    `learned` is BundleMage, trained on the split with `config.learned()`.
    """
    found = {
        task: _nothing_to_compare(task) if comparison is None else comparison.best(learned)
        for task, comparison in _comparisons(config, split, device, progress)
    }
    parts = _joined({task: own for task, (own, _) in found.items()}, ensemble)
    sizes, data = Sizes.of(split.dataset), learning_data(split, device, config.chosen_half_life)
    fitted: dict[str, Model] = {LEARNED: learned}
    for part in parts:
        if part.model != LEARNED:
            fitted[part.model] = fit_closed_form(part.model, part.settings, sizes, data)
    auto = Auto(config.model_copy(update={"parts": parts}), sizes, fitted).to(device).eval()
    return auto, Choice(**{task: choice for task, (_, choice) in found.items()})


def best_closed_forms(
    split: Split, device: torch.device, progress: Progress = in_silence, half_life: float | None = None
) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns the closed forms that take seconds, with the settings that are best on validation cases.

    Without validation cases, they have the first settings of `CLOSED_FORMS`.
    """
    comparisons = _comparisons(parse_config(AutoConfig, {"half_life": half_life}), split, device, progress)
    found = [each.tried for _, own in comparisons if own is not None for each in own.closed_forms()]
    return with_untried({each.model: each.settings for each in found}, Sizes.of(split.dataset))


def with_untried(
    compared: Mapping[str, Mapping[str, Any]], sizes: Sizes
) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns closed forms with their best settings. Those that were not compared, because there were no
    cases, have the first settings of `CLOSED_FORMS`."""
    found = dict(compared)
    for name, settings in (each for task in TASKS for each in CLOSED_FORMS[task]):
        if name not in found and affordable(name, settings, sizes):
            found[name] = settings
    return list(found.items())


def _comparisons(
    config: AutoConfig, split: Split, device: torch.device, progress: Progress
) -> Iterator[tuple[str, Comparison | None]]:
    """Yields a comparison for each task; None if there are no validation cases for it."""
    cases = validation_cases(config, split)
    held_out = None if cases.held_out is None else cases.held_out.to(device)
    data = replace(Interactions.of(split.train, device, config.chosen_half_life), held_out=held_out)
    for task in TASKS:
        if config.tasks not in ("both", task):
            continue
        task_cases = cases.matching if task == "matching" else cases.generation
        if task_cases is None or not len(task_cases):
            yield task, None
            continue
        kind = MatchingEvaluator if task == "matching" else GenerationEvaluator
        chosen = sampled(task_cases, len(split.dataset.bundles), config.seed)
        sizes = Sizes.of(split.dataset)
        yield task, Comparison(task, kind(chosen, data), data, sizes, progress)


def _nothing_to_compare(task: str) -> tuple[list[AutoPart], TaskChoice]:
    reason = "There are no validation cases, so nothing could be compared"
    return [_part(task, LEARNED, {}, 1.0, 1.0)], TaskChoice(reason)


def fit_parts(
    config: AutoConfig, split: Split, learned: Model | None, ensemble: int, device: torch.device
) -> Auto:
    """Fits the parts that `config` names, without comparing them. `learned` is BundleMage, if it is one; it
    has `ensemble` members."""
    sizes, data = Sizes.of(split.dataset), learning_data(split, device, config.chosen_half_life)
    fitted = {} if learned is None else {LEARNED: learned}
    parts = tuple(
        part.model_copy(update={"ensemble": ensemble}) if part.model == LEARNED else part
        for part in config.parts
    )
    auto = Auto(config.model_copy(update={"parts": parts}), sizes, fitted).to(device)
    for member in auto.members:
        if member is not learned:
            member.observe(data)  # type: ignore[operator]
    return auto.eval()


def validation_cases(config: AutoConfig, split: Split) -> ValidationCases:
    """The cases on which BundleMage has chosen its epoch. It has not learned from them."""
    probe = build(LEARNED, config.learned(), Sizes(1, 1, 1))
    return ValidationCases.of(probe, config.learned(), split)


def sampled(cases: Any, width: int, seed: int) -> Any:
    """At most `MOST_CASES` of the cases, fewer if they have many candidates."""
    width = width if cases.candidates is None else cases.candidates.shape[1]
    most = max(1, min(MOST_CASES, MOST_SCORES // max(1, width)))
    if len(cases) <= most:
        return cases
    rows = np.random.default_rng([seed, 0xA070]).permutation(len(cases))[:most]
    return cases.chosen(np.sort(rows))


@dataclass(frozen=True)
class Scored:
    """A candidate, and its scores of the cases."""

    tried: Tried
    scores: Tensor  # [cases, width], 0 where there is no candidate

    @property
    def name(self) -> str:
        return self.tried.model

    def spread(self, missing: Tensor) -> float:
        """The standard deviation of the scores, 0 if there are fewer than two."""
        scores = self.scores[~missing]
        return float(scores.std()) if len(scores) > 1 else 0.0


@dataclass(frozen=True)
class Mix:
    """A weighted sum of candidates' scores, with the factors that make the positives most likely."""

    factors: Mapping[str, float]
    ndcg: Tensor  # [groups]
    likelihood: Tensor  # [groups], the mean log-probability of the positives

    @property
    def mean_likelihood(self) -> float:
        """The mean of `likelihood`."""
        return float(self.likelihood.mean())

    def is_likelier_than(self, other: Mix, errors: float) -> bool:
        """Whether the positives are likelier by more than this number of standard errors."""
        gain = self.likelihood - other.likelihood
        error = float(gain.std()) / math.sqrt(len(gain)) if len(gain) > 1 else math.inf
        return float(gain.mean()) > errors * error

    def is_better_than(self, other: Mix, errors: float) -> bool:
        """Whether the positives are likelier by this number of standard errors, and nDCG@5 is higher."""
        return self.is_likelier_than(other, errors) and float((self.ndcg - other.ndcg).mean()) > 0

    def half_and_half(self, other: Mix) -> dict[str, float]:
        """The factors of a mix in which both count alike."""
        names = {**self.factors, **other.factors}
        return {name: (self.factors.get(name, 0.0) + other.factors.get(name, 0.0)) / 2 for name in names}


class Comparison:
    """Compares the candidates for one task."""

    def __init__(
        self,
        task: str,
        evaluator: Evaluator,
        data: Interactions,
        sizes: Sizes,
        progress: Progress = in_silence,
    ) -> None:
        self.task, self.evaluator, self.data, self.sizes = task, evaluator, data, sizes
        self.progress = progress
        # The users of a held-out bundle are asked the same question, so they count as one group.
        group = getattr(evaluator, "bundles", torch.arange(evaluator.cases, device=evaluator.device))
        _, self.group = torch.unique(group, return_inverse=True)
        self.positives, self.missing = self._columns()

    def _columns(self) -> tuple[Ragged, Tensor]:
        """The columns of the positives, and a mask of the columns without a candidate."""
        nothing = build("popularity", make_config("popularity", {}), self.sizes)
        scores, positives = self._raw_scores(nothing.to(self.evaluator.device).eval())
        return positives, scores.isneginf()

    def _raw_scores(self, model: Model) -> tuple[Tensor, Ragged]:
        chunks = torch.split(torch.arange(self.evaluator.cases, device=self.evaluator.device), 1024)
        with torch.inference_mode():
            parts = [self.evaluator.score(model, chunk) for chunk in chunks]
        positives = parts[0][1]
        for _, further in parts[1:]:
            positives = positives.append(further)
        return torch.cat([scores.float() for scores, _ in parts]), positives

    def best(self, learned: Model | None) -> tuple[list[AutoPart], TaskChoice]:
        """Returns the parts for the task, and the reason.

        The candidates are tried from simple to complex, and a complex one must be better. BundleMage has
        chosen its epoch on the same cases, which flatters it. So it first joins a closed form with half of
        the weight. It gets more only on strong evidence, or if no closed form is better than chance.
        """
        simple = self.closed_forms()
        candidates = {each.name: each for each in simple}
        useful = [each for each in simple if self.is_useful(each)]
        best = self.fitted([max(useful or simple, key=lambda each: each.tried.ndcg)])
        blend = self.blend(useful) if useful else best
        now = blend if blend.is_better_than(best, SOME) else best
        if learned is not None and can(learned, Matcher if self.task == "matching" else Completer):
            own = self.scored(LEARNED, {}, learned)
            candidates[LEARNED] = own
            if self.is_useful(own):
                alone = self.fitted([own])
                halves = [closed.half_and_half(alone) for closed in (best, blend)]
                for factors in halves if useful else [alone.factors]:
                    half = self.judged(factors, candidates)
                    now = half if half.is_better_than(now, 0.0) else now
                for mix in (self.blend([*useful, own]), alone):
                    now = mix if mix.is_likelier_than(now, STRONG) else now
        chosen = [each for name, each in candidates.items() if name in now.factors]
        shares = self._shares(now, chosen)
        return self._parts(now, chosen, shares), self._choice(now, [*candidates.values()], shares)

    def closed_forms(self) -> list[Scored]:
        """The best settings of each closed form that takes seconds."""
        best: dict[str, Scored] = {}
        constant: list[Scored] = []  # they tell no candidate from another, as popularity without any sales
        tried = CLOSED_FORMS[self.task]
        for number, (model, settings) in enumerate(tried):
            self.progress(f"closed forms for {self.task}", number, len(tried))
            if affordable(model, settings, self.sizes):
                fitted = fit_closed_form(model, settings, self.sizes, self.data)
                scored = self.scored(model, settings, fitted)
                if scored.spread(self.missing) < LEAST_SPREAD:
                    constant.append(scored)
                elif model not in best or scored.tried.ndcg > best[model].tried.ndcg:
                    best[model] = scored
        self.progress(f"closed forms for {self.task}", len(tried), len(tried))
        return list(best.values()) or constant[:1]

    def scored(self, name: str, settings: Mapping[str, Any], model: Model) -> Scored:
        scores = self._raw_scores(model)[0].masked_fill(self.missing, 0.0)
        return Scored(Tried(name, model.title, settings, float(self._ndcg(scores).mean())), scores)

    def _ndcg(self, scores: Tensor) -> Tensor:
        """nDCG@5 of each group: a user, or a held-out bundle."""
        scores = scores.masked_fill(self.missing, -torch.inf)
        each = ranking_metrics(scores, self.positives, (5,))[SELECTION_METRIC]
        return self._by_group(each.nan_to_num())

    def _by_group(self, each: Tensor) -> Tensor:
        counts = torch.bincount(self.group)
        return each.new_zeros(len(counts)).index_add_(0, self.group, each) / counts

    # ── Weights ──────────────────────────────────────────────────────────────────────────────────

    def is_useful(self, candidate: Scored) -> bool:
        """Whether the scores of a candidate make the positives likelier than equal scores do."""
        factor = self.fitted([candidate]).factors[candidate.name]
        return factor * candidate.spread(self.missing) > 2 * LEAST_FACTOR

    def blend(self, candidates: Sequence[Scored]) -> Mix:
        """The best mix of useful candidates. Those with a small weight are left out."""
        mix = self.fitted(candidates)
        shares = self._shares(mix, candidates)
        kept = sorted(candidates, key=lambda each: -shares[each.name])[:MOST_PARTS]
        kept = [each for each in kept if shares[each.name] >= LEAST_SHARE]
        return self.fitted(kept) if len(kept) < len(candidates) else mix

    def fitted(self, candidates: Sequence[Scored]) -> Mix:
        """The mix of these candidates with the highest likelihood of the positives."""
        row, lengths = self.positives.row_of_entry(), self.positives.lengths
        cases = (lengths > 0).float() / max(1, int((lengths > 0).sum()))  # [cases], all count alike
        entries = cases[row] / lengths[row]
        spread = [max(each.spread(self.missing), LEAST_SPREAD) for each in candidates]
        scaled = [each.scores / width for each, width in zip(candidates, spread, strict=True)]
        own = [float((scores[row, self.positives.values] * entries).sum()) for scores in scaled]

        def loss(factors: Factors) -> tuple[float, Factors]:
            """Minus the mean log-likelihood, with a penalty, and its gradient."""
            total = self._sum(scaled, factors)
            normaliser = total.logsumexp(1)
            chances = (total - normaliser[:, None]).exp_()
            expected = [float(((chances * scores).sum(1) * cases).sum()) for scores in scaled]
            value = float((normaliser * cases).sum()) - factors @ np.array(own)
            ridge = RIDGE * factors
            return value + float(ridge @ factors) / 2, np.array(expected) - np.array(own) + ridge

        count = len(candidates)
        found = minimize(loss, np.full(count, 1 / count), jac=True, bounds=[(0.0, None)] * count)
        least = LEAST_FACTOR if count == 1 else 0.0  # a model alone keeps its order even if it is not useful
        factors = np.maximum(found.x, least) / np.array(spread)
        chosen = {
            each.name: float(factor) for each, factor in zip(candidates, factors, strict=True) if factor
        }
        return self.judged(chosen, {each.name: each for each in candidates})

    def judged(self, factors: Mapping[str, float], candidates: Mapping[str, Scored]) -> Mix:
        """The mix with these factors."""
        scores = [candidates[name].scores for name in factors]
        total = self._sum(scores, np.array([*factors.values()]))
        logs, row = total - total.logsumexp(1, keepdim=True), self.positives.row_of_entry()
        each = logs[row, self.positives.values] / self.positives.lengths[row]
        likelihood = self._by_group(logs.new_zeros(len(logs)).index_add_(0, row, each))
        return Mix(factors, self._ndcg(total), likelihood)

    def _sum(self, scores: Sequence[Tensor], factors: Factors) -> Tensor:
        """A weighted sum of scores, with -∞ where there is no candidate."""
        total = torch.zeros_like(self.missing, dtype=torch.float32)
        for factor, each in zip(factors.tolist(), scores, strict=True):
            total.add_(each, alpha=factor)
        return total.masked_fill_(self.missing, -torch.inf)

    def _shares(self, mix: Mix, candidates: Sequence[Scored]) -> dict[str, float]:
        """The weight of each candidate's log-probabilities in a mix. They add up to 1."""
        weights = {
            each.name: mix.factors.get(each.name, 0.0) / self.fitted([each]).factors[each.name]
            for each in candidates
        }
        total = sum(weights.values()) or 1.0
        return {name: weight / total for name, weight in weights.items()}

    # ── The result ───────────────────────────────────────────────────────────────────────────────

    def _parts(self, mix: Mix, chosen: Sequence[Scored], shares: Mapping[str, float]) -> list[AutoPart]:
        parts = []
        for each in chosen:
            share = max(0.0001, round(shares[each.name], 4))
            # BundleMage alone keeps its own probabilities.
            scale = 1.0 if each.name == LEARNED and len(chosen) == 1 else mix.factors[each.name] / share
            parts.append(_part(self.task, each.name, each.tried.settings, share, scale))
        return parts

    def _choice(self, mix: Mix, candidates: Sequence[Scored], shares: Mapping[str, float]) -> TaskChoice:
        chosen = [each for each in candidates if each.name in shares]
        tried = [replace(each.tried, weight=round(shares.get(each.name, 0.0), 4)) for each in candidates]
        ndcg = float(mix.ndcg.mean())
        closed = [each.tried for each in chosen if each.name != LEARNED]
        learned = next((each.tried for each in candidates if each.name == LEARNED), None)
        reason = f"On {self.evaluator.cases:,} validation cases nDCG@5 is {ndcg:.4f}"
        if len(chosen) > 1:
            best = max(closed, key=lambda each: each.ndcg)
            reason += f"; {best.title} alone has {best.ndcg:.4f}"
        else:
            reason += ", and neither another model nor a blend is clearly better"
        flattered = learned is not None and learned.ndcg >= ndcg
        if learned is not None and LEARNED not in shares:
            reason += f". {learned.title} ({learned.ndcg:.4f}) adds too little and is left out"
            if flattered:
                reason += ": it has chosen its epoch on these cases, which flatters it"
        elif learned is not None and len(chosen) > 1:
            reason += f" and {learned.title} alone {learned.ndcg:.4f}"
            if flattered:
                reason += (
                    f". {learned.title} has chosen its epoch on these cases, which flatters it, so it gets "
                    "more than half only on strong evidence"
                )
        tried.sort(key=lambda each: -each.ndcg)
        return TaskChoice(reason, self.evaluator.cases, ndcg, tuple(tried))


def _part(task: str, model: str, settings: Mapping[str, Any], weight: float, scale: float) -> AutoPart:
    weights: dict[str, Any] = {task: weight, f"{task}_scale": scale}
    return AutoPart(model=model, settings=dict(settings), **weights)


def _joined(found: Mapping[str, list[AutoPart]], ensemble: int) -> tuple[AutoPart, ...]:
    """The parts of both tasks. A model that is in both is one part."""
    parts: dict[str, AutoPart] = {}
    for task, own in found.items():
        for part in own:
            weights = {name: getattr(part, name) for name in (task, f"{task}_scale")}
            known = parts.get(part.model, part)
            members = ensemble if part.model == LEARNED else 1
            parts[part.model] = known.model_copy(update={**weights, "ensemble": members})
    if not any(issubclass(model_class(name), Embedder) for name in parts):
        parts["co-occurrence"] = AutoPart(model="co-occurrence")  # its vectors tell similar bundles
    return tuple(parts.values())
