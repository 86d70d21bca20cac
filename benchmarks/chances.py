"""Whether the chances of a campaign are right, for likely and for unlikely bundles.

`python -m benchmarks.chances` trains on shops, and compares the chances with the held-out test purchases, in
bands of the chance. The calibration has not seen them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

BANDS = (0.0, 0.005, 0.02, 0.05, 0.1, 1.0)


def bands_of(location: str, seed: int, epochs: int | None) -> list[tuple[float, float]]:
    """The expected and the real number of purchases in each band."""
    from bundlemage import Recommender, SplitPlan
    from bundlemage.campaigns.chances import scored_pairs
    from bundlemage.readers.load import read

    split = SplitPlan(seed=seed).divide(read(location).dataset)
    settings: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    model = Recommender("auto", device="cpu", seed=seed, **settings).fit(split, progress=False)
    if model.calibration is None or split.test is None:
        raise typer.BadParameter(f"{location} has no validation or no test cases")
    tested = replace(split, validation=split.test)
    logs, bundles, weights, bought = scored_pairs(model.model, tested, model.shop.device)
    odds = model.calibration.log_odds(torch.from_numpy(logs), torch.log1p(torch.from_numpy(bundles)))
    chances = torch.sigmoid(odds).numpy()
    band = np.searchsorted(BANDS[1:-1], chances, side="right")
    return [
        (float((weights * chances)[band == n].sum()), float((weights * bought)[band == n].sum()))
        for n in range(len(BANDS) - 1)
    ]


def main(
    shops: Annotated[str, typer.Option(help="Shops, as for train.")] = "sample",
    seeds: Annotated[str, typer.Option(help="Of the split and of training.")] = "0,1,2",
    epochs: Annotated[int | None, typer.Option(help="Fewer epochs, for a try.")] = None,
) -> None:
    """Print the expected and the real purchases in bands of the chance."""
    console = Console(highlight=False)
    table = Table("shop", "seed", *(f"{low:g} to {high:g}" for low, high in pairwise(BANDS)))
    table.title = "Expected / real purchases, by the chance"
    for shop in shops.split(","):
        for seed in map(int, seeds.split(",")):
            found = bands_of(shop, seed, epochs)
            table.add_row(shop, str(seed), *(f"{expected:.0f} / {real:.0f}" for expected, real in found))
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
