"""How soon impossible requests are refused: `python -m benchmarks.refusals`, on one thread.

The requests have many rules, on the sample shop. Another solver checks each refusal: that no bundle satisfies
the rules of the conflict, that each of them is needed, and that the changes help.
"""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from bundlemage.errors import OutOfTimeError
from bundlemage.wire.design import ImpossibleDesignError
from tests.designing import goods_of, owned_by, small_sample, wrongly_refused
from tests.impossible import USER, ImpossibleMaker

console = Console(highlight=False)


def main(
    requests: Annotated[int, typer.Option(min=1, help="Random requests.")] = 200,
    seed: Annotated[int, typer.Option(help="Other requests.")] = 0,
) -> None:
    """Refuse impossible requests; exit with 1 if any refusal is wrong, or not found in time."""
    torch.set_num_threads(1)
    recommender = small_sample()[0]
    goods, owned = goods_of(recommender), owned_by(recommender, USER)
    recommender.design(USER, n=1)  # what is computed only once
    seconds, smallest = defaultdict[str, list[float]](list), defaultdict[str, int](int)
    processor, wrong = defaultdict[str, list[float]](list), 0
    for reason, request in ImpossibleMaker(recommender, seed).requests(requests):
        began, worked = time.perf_counter(), time.process_time()
        try:
            recommender.design(USER, **request)
            texts = ["a bundle was designed"]
        except ImpossibleDesignError as error:
            took = time.perf_counter() - began, time.process_time() - worked
            texts = wrongly_refused(goods, owned, request, error)
            for name in (reason, "all"):
                seconds[name].append(took[0])
                processor[name].append(took[1])
                smallest[name] += error.smallest
        except OutOfTimeError as error:
            texts = [str(error)]
        wrong += bool(texts)
        for text in texts:
            console.print(f"{reason}, {request}: {text}")
    table = Table(title=f"{requests} impossible requests, {wrong} wrong refusals", title_justify="left")
    names = ("reason", "refused", "median s", "worst s", "median CPU s", "worst CPU s", "smallest proven")
    for name in names:
        table.add_column(name, justify="left" if name == "reason" else "right")
    for name in (*(each for each in seconds if each != "all"), *("all" for _ in seconds["all"][:1])):
        figures = [at(taken[name]) for taken in (seconds, processor) for at in (np.median, np.max)]
        table.add_row(
            name, str(len(seconds[name])), *(f"{figure:.2f}" for figure in figures), str(smallest[name])
        )
    console.print(table)
    raise typer.Exit(int(wrong > 0))


if __name__ == "__main__":
    typer.run(main)
