"""What each choice of the default recipe does to accuracy and time, on validation cases of Youshu.

`python -m benchmarks.choices`. Matching is validated on the cases that choose the epoch, too. Generation is
validated on a tenth of the training bundles, held out once more: no test case is asked anything.
"""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.setting import Setting, Skipped, youshu

RECIPE = "youshu/bundlemage"
INNER_SEED = 123
GOOD_ENOUGH = 0.44
PAPER = {
    "learning_rate": 0.001,
    "weight_average": 0.0,
    "popularity_bias": False,
    "pairs_per_bundle": 0,
    "hide_target": False,
}
CHOICES: dict[str, dict[str, Any]] = {
    "the recipe": {},
    "the paper's settings": PAPER,
    "1 user per bundle and epoch": {"pairs_per_bundle": 1},
    "2 users": {"pairs_per_bundle": 2},
    "8 users": {"pairs_per_bundle": 8},
    "all users": {"pairs_per_bundle": 0},
    "no popularity bias": {"popularity_bias": False},
    "no averaged weights": {"weight_average": 0.0},
    "weights averaged by 0.995": {"weight_average": 0.995},
    "learning rate 0.001": {"learning_rate": 0.001},
    "learning rate 0.002": {"learning_rate": 0.002},
    "learning rate 0.008": {"learning_rate": 0.008},
    "learning rate falls (cosine)": {"schedule": "cosine"},
    "batches of 1,000": {"batch_size": 1000},
    "batches of 4,000": {"batch_size": 4000},
    "400 dimensions": {"embedding_dim": 400},
    "sampled softmax, 1,024": {"sampled_softmax": 1024},
    "sampled softmax, 4,096": {"sampled_softmax": 4096},
    "sampled softmax, 16,384": {"sampled_softmax": 16384},
}


@dataclass(frozen=True)
class Job:
    choice: str
    seed: int
    task: str
    setting: Setting
    epochs: int | None


@dataclass(frozen=True)
class Found:
    choice: str
    seed: int
    task: str
    figures: dict[str, float | None]


def main(
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    data: Annotated[Path | None, typer.Option(help="Youshu's folder.")] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="This choice alone.")] = None,
    seeds: Annotated[str, typer.Option(help="E.g. 0,1,2.")] = "0",
    workers: Annotated[
        int, typer.Option(min=1, help="Runs at a time; with several, seconds say little.")
    ] = 1,
    epochs: Annotated[int | None, typer.Option(help="Fewer than the recipe has, for a try.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write every run here, too.")] = None,
) -> None:
    """Train the recipe of Youshu with one choice changed at a time, and print what validation says."""
    for name in only or ():
        if name not in CHOICES:
            raise typer.BadParameter(f"{name!r} is none of: {', '.join(CHOICES)}")
    setting = Setting(device, None, False, str(data) if data else None, None, "")
    jobs = [
        Job(choice, int(seed), task, setting, epochs)
        for choice in only or CHOICES
        for seed in seeds.split(",")
        for task in ("matching", "generation")
    ]
    found: list[Found] = []
    for one in _all(jobs, workers):
        found.append(one)
        typer.echo(f"[{len(found)}/{len(jobs)}] {json.dumps(asdict(one))}", err=True)
        if json_file is not None:
            json_file.write_text(json.dumps([asdict(each) for each in found], indent=2) + "\n")
    _show(found)


def _all(jobs: list[Job], workers: int) -> Iterator[Found]:
    if workers == 1:
        yield from map(measure, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(measure, jobs)


def measure(job: Job) -> Found:
    """One training."""
    from bundlemage.data.splits import SplitPlan, hold_out_bundles
    from bundlemage.evaluation.protocols import generation_metrics, means
    from bundlemage.models.base import Interactions
    from bundlemage.recipe import Recipe

    split = youshu(job.setting, "authors/mat" if job.task == "matching" else "authors/gen")
    if job.task == "generation":
        train, cases = hold_out_bundles(split.train, SplitPlan(positives=5), INNER_SEED)
        split = replace(split, train=train, generation=cases, test=None)
    settings = {**CHOICES[job.choice], "seed": job.seed, "device": job.setting.device}
    if job.epochs is not None:
        settings["epochs"] = job.epochs
    recommender = Recipe.find(RECIPE).changed(settings, {}).recommender().fit(split, progress=False)
    values = [record.validation["ndcg@5"] for record in recommender.history]
    figures: dict[str, float | None] = {
        "validation ndcg@5": max(values),
        "best epoch": 1 + values.index(max(values)),
        "epochs to good enough": next((n for n, value in enumerate(values, 1) if value >= GOOD_ENOUGH), None),
        "seconds an epoch": median(record.seconds for record in recommender.history),
    }
    if job.task == "generation":
        assert split.generation is not None
        data = Interactions.of(split.train, recommender.shop.device)
        inner = means(generation_metrics(recommender.model, split.generation, data))
        figures |= {f"inner {name}": inner[name] for name in ("ndcg@5", "ndcg@20")}
    return Found(job.choice, job.seed, job.task, figures)


def _show(found: list[Found]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=140)
    headings = (
        "choice",
        "matching nDCG@5",
        f"epochs to {GOOD_ENOUGH}",
        "best epoch",
        "s/epoch",
        "generation nDCG@5",
        "nDCG@20",
        "seeds",
    )
    table = Table(*headings, title="Youshu, validation cases; the mean over seeds")
    for choice in dict.fromkeys(one.choice for one in found):
        runs = {
            task: [one.figures for one in found if (one.choice, one.task) == (choice, task)]
            for task in ("matching", "generation")
        }
        matching, generation = runs["matching"], runs["generation"]
        table.add_row(
            choice,
            _mean(matching, "validation ndcg@5"),
            _mean(matching, "epochs to good enough", 0),
            _mean(matching, "best epoch", 0),
            _mean(matching, "seconds an epoch", 3),
            _mean(generation, "inner ndcg@5"),
            _mean(generation, "inner ndcg@20"),
            str(len(matching)),
        )
    console.print(table)


def _mean(runs: Iterable[dict[str, float | None]], name: str, digits: int = 4) -> str:
    values = [run[name] for run in runs]
    known = [value for value in values if value is not None]
    return f"{mean(known):.{digits}f}" if known and len(known) == len(values) else "–"


if __name__ == "__main__":
    try:
        typer.run(main)
    except Skipped as reason:
        raise SystemExit(f"skipped: {reason}") from None
