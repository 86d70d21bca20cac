"""Whether the audience that is foretold for a new bundle is the one that it really had, on bundles of Youshu.

`python -m benchmarks.audience --seeds 0,1,2`. A tenth of the bundles is unknown until the test, another tenth
is for choosing the epoch. For each held-out bundle that somebody took, users are ranked by the calibrated
chance and by three plain rules.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.setting import youshu_folder

if TYPE_CHECKING:
    from bundlemage.data.splits import Split
    from bundlemage.recommender import Recommender

RECIPE = "youshu/bundlemage"
BEST = 0.01
"""The share of the users among whom the lift counts the buyers."""

Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Ranked:
    """How well a rule ranks users; the mean over bundles."""

    auc: float
    lift: float
    """How many times as many buyers are among the best as among everyone."""


@dataclass(frozen=True)
class Found:
    seed: int
    bundles: int
    """That were held out."""
    taken: int
    """Those of them that somebody took: for these, users are ranked."""
    buyers: int
    rules: Mapping[str, Ranked]
    foretold: float
    """Buyers of all bundles together, as many as the chances say."""
    correlation: float
    """Spearman's, between the foretold and the real number of buyers of each bundle."""
    calibration: Mapping[str, float]
    epochs: int
    best_epoch: int
    fit_seconds: float
    calibration_seconds: float


def main(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data: Annotated[Path | None, typer.Option(help="Youshu's folder.")] = None,
    seeds: Annotated[str, typer.Option(help="Of the split and of training, e.g. 0,1,2.")] = "0,1,2",
    epochs: Annotated[int | None, typer.Option(help="Fewer than the recipe has, for a try.")] = None,
    validation: Annotated[
        bool, typer.Option("--validation", help="Ask about the bundles of validation, to choose by.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every run here, too.")] = None,
) -> None:
    """Train on Youshu without some bundles, foretell who will take those, and look who did."""
    from bundlemage.cli.texts import seed_list
    from bundlemage.readers.load import read

    folder = youshu_folder(str(data) if data else None)
    if folder is None:
        raise SystemExit("skipped: Youshu is not here: name its folder with --data, or set BUNDLEMAGE_DATA")
    dataset = read(folder / "bgcn").dataset
    found = []
    for seed in seed_list(seeds):
        found.append(measure(dataset, seed, device, epochs, validation=validation))
        typer.echo(json.dumps(asdict(found[-1])), err=True)
        if json_file is not None:
            json_file.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    _show(found, "validation" if validation else "test")


def measure(dataset: Any, seed: int, device: str, epochs: int | None, *, validation: bool) -> Found:
    """One training, and its audiences."""
    from scipy.stats import spearmanr

    from bundlemage.data.splits import SplitPlan
    from bundlemage.recipe import Recipe

    split = SplitPlan("cold-bundles", seed).divide(dataset)
    settings = {"seed": seed, "device": device} | ({} if epochs is None else {"epochs": epochs})
    recommender = Recipe.find(RECIPE).changed(settings, {}).recommender()
    started = time.perf_counter()
    recommender.fit(split, progress=False, calibrate=False)
    fitted = time.perf_counter()
    recommender.calibrate(split)
    calibrated = time.perf_counter()
    calibration = recommender.new_bundle_calibration
    assert calibration is not None
    assert recommender.training is not None
    cases = split.validation if validation else split.test
    assert cases is not None
    assert cases.candidates is not None
    bundles = np.unique(cases.candidates)
    bought = np.asarray(split.dataset.user_bundle[:, bundles].todense()) > 0  # [users, bundles]
    chances = foretold(recommender, split, bundles)
    rules = {"calibrated chance": chances, **plain_rules(split, bundles)}
    return Found(
        seed=seed,
        bundles=len(bundles),
        taken=int(bought.any(0).sum()),
        buyers=int(bought.sum()),
        rules={name: ranked(scores, bought) for name, scores in rules.items()},
        foretold=float(chances.sum()),
        correlation=float(spearmanr(chances.sum(0), bought.sum(0)).statistic),
        calibration={name: getattr(calibration, name) for name in ("intercept", "level", "activity", "fit")},
        epochs=len(recommender.history),
        best_epoch=recommender.training.best_epoch or 0,
        fit_seconds=round(fitted - started, 2),
        calibration_seconds=round(calibrated - fitted, 3),
    )


def foretold(recommender: Recommender, split: Split, bundles: npt.NDArray[np.int32]) -> Scores:
    """The chance of each user to take each bundle, by the histories of training."""  # [users, bundles]
    import torch

    from bundlemage.campaigns.chances import new_log_probabilities, sigmoid
    from bundlemage.campaigns.new_bundles import shifts
    from bundlemage.core.answering import rows_at_a_time, slices
    from bundlemage.models.base import Interactions

    model, device = recommender.model, recommender.shop.device
    calibration = recommender.new_bundle_calibration
    assert calibration is not None
    data = Interactions.of(split.train, device)
    new = data.bundle_item.rows(torch.from_numpy(bundles.astype(np.int64)).to(device))
    everyone = data.histories(torch.arange(len(data.user_item), device=device))
    parts, sums = [], np.zeros((3, len(bundles)))
    with torch.inference_mode():
        for histories in slices(everyone, rows_at_a_time(len(data.bundle_item), device)):
            logs = new_log_probabilities(model, histories, data.bundle_item, new)
            sums += calibration.sums(logs, histories, torch.ones_like(logs), len(data.bundle_item))
            parts.append(calibration.logits(logs, histories).cpu().numpy())
    logits = np.concatenate(parts)
    return sigmoid((logits + shifts(logits, calibration.expected(sums))).astype(np.float64))


def plain_rules(split: Split, bundles: npt.NDArray[np.int32]) -> dict[str, Scores]:
    """What a shop could do without a model."""
    train = split.train
    wanted = train.bundle_item[bundles]
    sizes = np.maximum(np.asarray(wanted.sum(1)).ravel(), 1)
    inside = (train.user_item + train.user_bundle @ train.bundle_item > 0).astype(np.float64)
    counts = np.diff(train.user_bundle.indptr).astype(np.float64)
    return {
        "items the user has": np.asarray((train.user_item @ wanted.T).todense()) / sizes,
        "items the user has, also in bundles": np.asarray((inside @ wanted.T).todense()) / sizes,
        "bundles the user has": np.repeat(counts[:, None], len(bundles), axis=1),
    }


def ranked(scores: Scores, bought: npt.NDArray[np.bool_]) -> Ranked:
    """Ties count as the mean over all their orders."""
    columns = [(scores[:, n], bought[:, n]) for n in np.flatnonzero(bought.any(0))]
    return Ranked(mean(auc(*column) for column in columns), mean(lift(*column) for column in columns))


def auc(scores: Scores, bought: npt.NDArray[np.bool_]) -> float:
    """The chance that a buyer ranks above someone who is none."""
    from scipy.stats import rankdata

    buyers = int(bought.sum())
    above = rankdata(scores)[bought].sum() - buyers * (buyers + 1) / 2
    return float(above / (buyers * (len(bought) - buyers)))


def lift(scores: Scores, bought: npt.NDArray[np.bool_], share: float = BEST) -> float:
    room = max(1, round(len(scores) * share))
    edge = np.partition(scores, -room)[-room]
    above, level = scores > edge, scores == edge
    hits = bought[above].sum() + (room - above.sum()) * bought[level].mean()
    return float(hits / room / bought.mean())


def _show(found: list[Found], part: str) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    seeds = [f"seed {one.seed}" for one in found]
    table = Table("users ranked by", "", *seeds, "mean ± sd", title=f"Youshu, new bundles of {part}")
    for rule in found[0].rules:
        _row(table, rule, "AUC", [one.rules[rule].auc for one in found], "{:.4f}")
        _row(table, "", f"lift@{BEST:.0%}", [one.rules[rule].lift for one in found], "{:.1f}")
    table.add_section()
    figures: dict[str, tuple[Callable[[Found], float], str]] = {
        "new bundles": (lambda one: one.bundles, "{:,.0f}"),
        "that somebody took": (lambda one: one.taken, "{:,.0f}"),
        "their buyers": (lambda one: one.buyers, "{:,.0f}"),
        "foretold / real buyers": (lambda one: one.foretold / one.buyers, "{:.3f}"),
        "rank correlation over bundles": (lambda one: one.correlation, "{:.3f}"),
        "best epoch": (lambda one: one.best_epoch, "{:.0f}"),
        "seconds to calibrate": (lambda one: one.calibration_seconds, "{:.2f}"),
    }
    for name, (value, form) in figures.items():
        _row(table, name, "", [value(one) for one in found], form)
    console.print(table)


def _row(table: Table, name: str, unit: str, values: list[float], form: str) -> None:
    spread = f" ± {form.format(stdev(values))}" if len(values) > 1 else ""
    table.add_row(name, unit, *map(form.format, values), form.format(mean(values)) + spread)


if __name__ == "__main__":
    typer.run(main)
