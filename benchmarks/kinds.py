"""How good the choices of `auto`, and some settings of BundleMage, are on generated shops of all kinds.

`python -m benchmarks.kinds --seeds 100-108 --device cuda` trains BundleMage on each kind of shop. For each
way to combine it with closed forms, it prints how far its test nDCG@5 is from that of the best model. The
rules of `auto` were chosen with this. `--settings` prints how other settings change BundleMage's validation
nDCG@5 and its test nDCG@5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from statistics import mean
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from bundlemage import SplitPlan, sample_shop
from bundlemage.data.splits import Split
from bundlemage.evaluation import GenerationEvaluator, MatchingEvaluator, case_metrics, means
from bundlemage.models.auto import LEARNED, AutoConfig
from bundlemage.models.base import Interactions, Model, Sizes
from bundlemage.models.registry import make_config
from bundlemage.sample.kinds import GAMES, KINDS, shop_of_kind
from bundlemage.training.choosing import Comparison, Mix, sampled, validation_cases
from bundlemage.training.closed_forms import fit_closed_form
from bundlemage.training.history import SELECTION_METRIC, kept
from bundlemage.training.loop import train_members

VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "8 steps": {"small_shop_steps": 1},
    "48 steps": {"small_shop_steps": 48},
    "embedding_dim 64": {"embedding_dim": 64},
    "embedding_dim 200": {"embedding_dim": 200},
    "patience 24": {"patience": 24, "epochs": 100},
}
EVALUATORS: Mapping[str, Callable[..., Any]] = {
    "matching": MatchingEvaluator,
    "generation": GenerationEvaluator,
}


def splits(seeds: range, kinds: list[str]) -> Iterator[tuple[str, int, Split]]:
    """Yields each kind of shop with each seed, divided."""
    for seed in seeds:
        for kind in kinds:
            shop = sample_shop(seed=seed).dataset if kind == GAMES else shop_of_kind(kind, seed).dataset
            yield kind, seed, SplitPlan(seed=seed).divide(shop)


def ways(split: Split, seed: int, device: torch.device) -> Iterator[tuple[str, str, float, float]]:
    """Yields for each task and way: the difference from the best single model, and its standard error."""
    config = make_config("auto", {"device": str(device), "seed": seed})
    assert isinstance(config, AutoConfig)
    learned, _ = train_members(LEARNED, config.learned(), split, 1)
    cases, sizes = validation_cases(config, split), Sizes.of(split.dataset)
    data = Interactions.of(split.train, device)
    held_out = None if cases.held_out is None else cases.held_out.to(device)
    width = len(split.dataset.bundles)
    for task, judged_on, tested_on in (
        ("matching", cases.matching, split.test),
        ("generation", cases.generation, split.generation),
    ):
        if not judged_on or not tested_on:
            continue
        without = replace(data, held_out=held_out)
        judge = Comparison(task, EVALUATORS[task](sampled(judged_on, width, seed), without), without, sizes)
        test = Comparison(task, EVALUATORS[task](tested_on, data), data, sizes)
        simple = judge.closed_forms()
        models: dict[str, Model] = {
            each.name: fit_closed_form(each.name, each.tried.settings, sizes, data) for each in simple
        }
        models[LEARNED] = learned
        tested = {name: test.scored(name, {}, model) for name, model in models.items()}
        candidates = {each.name: each for each in [*simple, judge.scored(LEARNED, {}, learned)]}
        best = judge.fitted([max(simple, key=lambda each: each.tried.ndcg)])
        blend, alone = judge.blend(simple), judge.fitted([candidates[LEARNED]])
        mixes: dict[str, Mapping[str, float]] = {
            "the best closed form": best.factors,
            "a blend of closed forms": blend.factors,
            "BundleMage": alone.factors,
            "half BundleMage, half the best closed form": best.half_and_half(alone),
            "half BundleMage, half the blend": blend.half_and_half(alone),
            "fitted weights": judge.blend([*candidates.values()]).factors,
            "auto": {
                part.model: getattr(part, task) * getattr(part, f"{task}_scale")
                for part in judge.best(learned)[0]
            },
        }
        single = max(tested.values(), key=lambda each: each.tried.ndcg)
        oracle = test.judged({single.name: 1.0}, tested).ndcg
        for way, factors in mixes.items():
            found: Mix = test.judged(factors, tested)
            yield task, way, *_difference(found.ndcg, oracle)


def _difference(one: Tensor, other: Tensor) -> tuple[float, float]:
    difference = one - other
    error = float(difference.std()) / len(difference) ** 0.5 if len(difference) > 1 else 0.0
    return float(difference.mean()), error


def variants(split: Split, seed: int, device: torch.device) -> Iterator[tuple[str, str, float]]:
    """Yields for each variant and figure: how much higher it is than with the default settings."""

    def measured(settings: Mapping[str, Any]) -> dict[str, float]:
        config = make_config(LEARNED, {"device": str(device), "seed": seed, **settings})
        model, result = train_members(LEARNED, config, split, 1)
        best = kept(result.history)[0]
        test = case_metrics(model, split, Interactions.of(split.train, device))
        return {
            "validation matching": best.validation.get(SELECTION_METRIC, 0.0),
            "validation generation": best.generation.get(SELECTION_METRIC, 0.0),
            **{f"test {task}": means(values)[SELECTION_METRIC] for task, values in test.items()},
        }

    default = measured({})
    for name, settings in VARIANTS.items():
        for figure, value in measured(settings).items():
            yield name, figure, value - default[figure]


def main(
    seeds: Annotated[str, typer.Option(help="The seeds of the shops, as in 100-108.")] = "100-102",
    device: str = "cpu",
    kind: Annotated[list[str] | None, typer.Option(help="A kind of shop. Repeatable.")] = None,
    settings: Annotated[bool, typer.Option(help="Compare settings of BundleMage instead.")] = False,
) -> None:
    """Compare ways to combine models, or settings of BundleMage, on generated shops."""
    first, _, last = seeds.partition("-")
    console, where = Console(), torch.device(device)
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for name, seed, split in splits(range(int(first), int(last or first) + 1), kind or [GAMES, *KINDS]):
        console.print(f"{name}, seed {seed}", style="dim")
        if settings:
            for variant, figure, difference in variants(split, seed, where):
                found.setdefault((figure, variant), []).append((difference, 0.0))
        else:
            for task, way, difference, error in ways(split, seed, where):
                found.setdefault((task, way), []).append((difference, error))
    table = Table("figure", "way", "shops", "mean difference", "worst", "2 errors below", title="nDCG@5")
    for (figure, way), values in found.items():
        clearly = sum(difference < -2 * error for difference, error in values) if not settings else 0
        differences = [difference for difference, _ in values]
        table.add_row(
            figure,
            way,
            str(len(values)),
            f"{mean(differences):+.4f}",
            f"{min(differences):+.3f}",
            "" if settings else str(clearly),
        )
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
