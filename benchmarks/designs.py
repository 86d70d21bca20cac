"""How well designed bundles suit the person they are for: `python -m benchmarks.designs`, on one thread.

For people of the sample shop, or of a model or data of your own, with the default settings of a design. The
rank of a design is its rank for the person among all bundles of the shop. Each answer goes through the tests'
independent checker. For comparison, the same is asked with `matching=0`: items that fit to each other.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from bundlemage import Recommender, sample_shop
from bundlemage.readers.load import read
from tests.designing import Judge, goods_of, owned_by, violations

console = Console(highlight=False)
app = typer.Typer(add_completion=False)


@dataclass(frozen=True)
class Found:
    """What the first proposals for the people are like."""

    name: str
    people: int
    first_ten: float
    """The share of first proposals with a rank of 10 or better."""
    median_rank: float
    fit: float
    """The median of the geometric mean of the items' probabilities."""
    better_existing: float
    """The share of answers that name a better bundle of the shop."""
    violations: int
    median_ms: float


def asked(recommender: Recommender, people: list[str], name: str, **request: Any) -> Found:
    goods = goods_of(recommender)
    ranks, times, fits, better, wrong = [], [], [], 0, 0
    for person in people:
        began = time.perf_counter()
        answer = recommender.design(person, **request)
        times.append(1000 * (time.perf_counter() - began))
        ranks.append(answer[0].expected_rank or np.nan)
        fits.append(answer[0].score)
        better += answer.better_existing is not None
        judge = Judge(recommender, goods, person)
        owned = owned_by(recommender, person)
        wrong += len(violations(goods, owned, request, list(answer), judge))
    return Found(
        name,
        len(people),
        float(np.mean(np.array(ranks) <= 10)),
        float(np.median(ranks)),
        float(np.median(fits)),
        better / len(people),
        wrong,
        float(np.median(times)),
    )


@app.command()
def main(
    model: Annotated[Path | None, typer.Option(help="A trained model.")] = None,
    data: Annotated[Path | None, typer.Option(help="Data of your own, or published.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="How long to train on --data.")] = None,
    people: Annotated[int, typer.Option(min=1, help="The number of people.")] = 200,
    seed: Annotated[int, typer.Option(help="Other people.")] = 0,
) -> None:
    """Design bundles for people; exit with 1 if any rule is broken."""
    torch.set_num_threads(1)
    if model is not None:
        recommender = Recommender.load(model, device="cpu")
    elif data is not None:
        settings: dict[str, Any] = {"embedding_dim": 32, "device": "cpu", "epochs": epochs or 8}
        recommender = Recommender(**settings).fit(read(data), progress=False)
    else:
        recommender = Recommender("auto", device="cpu").fit(sample_shop().dataset, progress=False)
    ids = recommender.dataset.users.ids
    chosen = [ids[place] for place in np.random.default_rng(seed).permutation(len(ids))[:people]]
    recommender.design(chosen[0], n=1)  # what is computed only once
    rows = [
        asked(recommender, chosen, "default"),
        asked(recommender, chosen, "matching=0", matching=0.0),
        asked(recommender, chosen, "not_owned=False", not_owned=False),
    ]
    table = Table(title=f"{recommender.dataset}", title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(row.name, justify="right")
    for name, form in (
        ("people", ",d"),
        ("first_ten", ".1%"),
        ("median_rank", "g"),
        ("fit", ".2%"),
        ("better_existing", ".1%"),
        ("violations", "d"),
        ("median_ms", ".0f"),
    ):
        table.add_row(name.replace("_", " "), *(format(getattr(row, name), form) for row in rows))
    console.print(table)
    raise typer.Exit(int(any(row.violations for row in rows)))


if __name__ == "__main__":
    app()
