"""One process against several on one data set: the same losses and metrics, and how long an epoch takes.

python -m benchmarks.processes --data FOLDER --device cuda --epochs 30
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from tempfile import TemporaryDirectory

from bundlemage.engines.base import engine
from bundlemage.engines.training import TrainingJob
from bundlemage.readers.load import read
from bundlemage.recipe import Recipe
from bundlemage.recommender import Recommender


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="sample")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--engine", default="local")
    chosen = parser.parse_args()
    recipe = Recipe("bundlemage", {"epochs": chosen.epochs, "device": chosen.device, "seed": 0})
    source = read(chosen.data)
    split = recipe.plan().divide(source.dataset, source.ready)
    one = recipe.recommender().fit(split, progress=False, calibrate=False)
    _print(one, one, "one process")
    for item_tables in ("replicated", "sharded"):
        with TemporaryDirectory() as folder:
            job = TrainingJob(chosen.data, recipe, Path(folder) / "run", item_tables=item_tables)
            several = engine(chosen.engine, workers=chosen.workers).train(job)
        _print(several, one, f"{chosen.workers} processes, {item_tables}")


def _print(found: Recommender, one: Recommender, who: str) -> None:
    apart = max(
        abs(mine.losses[phase] / theirs.losses[phase] - 1)
        for mine, theirs in zip(found.history, one.history, strict=False)
        for phase in mine.losses
    )
    seconds = sorted(record.seconds for record in found.history)
    last, best = found.history[-1], max(record.validation["ndcg@5"] for record in found.history)
    print(
        json.dumps(
            {
                "who": who,
                "epochs": len(found.history),
                "losses of the last": {phase: round(loss, 4) for phase, loss in last.losses.items()},
                "validation ndcg@5 of the last": round(last.validation["ndcg@5"], 4),
                "of the best": round(best, 4),
                "losses apart at most": float(f"{apart:.2g}"),
                "seconds an epoch, median": seconds[len(seconds) // 2],
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
