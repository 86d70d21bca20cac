"""Train by a recipe with several seeds, and print the mean test metrics of both tasks.

    python -m benchmarks.accuracy --recipe youshu/bundlemage --seeds 0 1 2 \
        --matching DATA/youshu/authors/mat --generation DATA/youshu/authors/gen
"""

from __future__ import annotations

import argparse
import json
import statistics
from typing import Any

from bundlemage.data.load import read
from bundlemage.recipe import Recipe
from bundlemage.training.history import SELECTION_METRIC


def run(task: str, location: str, recipe: Recipe, seed: int, overrides: dict[str, Any]) -> dict[str, Any]:
    source = read(location)
    seeded = recipe.changed({**overrides, "seed": seed}, {})
    split = seeded.plan().divide(source.dataset, source.ready)
    model = seeded.recommender().fit(split)
    training = model.training
    assert training is not None
    best = training.history[training.best_epoch - 1]
    found = model.evaluate(split).to_json()[task]
    return {
        "task": task,
        "data": f"{split.dataset.name} ({split.protocol})",
        "seed": seed,
        "device": training.device,
        "seconds": round(training.seconds, 1),
        "best_epoch": training.best_epoch,
        "validation": round(best.validation[SELECTION_METRIC], 4),
        "test": {name: round(value, 4) for name, value in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--matching", help="data whose matching test is reported")
    parser.add_argument("--generation", help="data whose generation test is reported")
    parser.add_argument("--set", nargs="*", default=[], help="settings as key=value, over the recipe's")
    arguments = parser.parse_args()
    recipe = Recipe.find(arguments.recipe)
    overrides = {key: json.loads(value) for key, value in (pair.split("=", 1) for pair in arguments.set)}
    for task in ("matching", "generation"):
        location = getattr(arguments, task)
        if location is None:
            continue
        runs = []
        for seed in arguments.seeds:
            runs.append(run(task, location, recipe, seed, overrides))
            print(json.dumps(runs[-1]), flush=True)
        mean = {name: round(statistics.mean(r["test"][name] for r in runs), 4) for name in runs[0]["test"]}
        print(json.dumps({"task": task, "seeds": arguments.seeds, "mean": mean}), flush=True)


if __name__ == "__main__":
    main()
