"""What a change of the catalogue costs a live service: `python -m benchmarks.catalogue`.

A generated shop with many bundles and random weights. After each change the next answer is waited for, as
whoever asks next does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Annotated, TypeVar

import numpy as np
import torch
import typer
from rich.console import Console

from bundlemage import BundleDataset, Recommender, SplitPlan
from bundlemage.data.dataset import Vocabulary, binary_matrix
from bundlemage.live import EMPTY, Live, Question
from bundlemage.store.records import Bundle, CatalogueChange, Item, Owned

T = TypeVar("T")
REPEATS = 5
ASKED = Question(Owned(("1", "2"), ("3",)), 10)
console = Console(highlight=False)


def main(
    bundles: Annotated[int, typer.Option(help="How many bundles the shop has.")] = 100_000,
    items: Annotated[int, typer.Option(help="How many items.")] = 50_000,
    dim: Annotated[int, typer.Option(help="Of the model's vectors.")] = 200,
) -> None:
    """Milliseconds from a change to the next answer, the median of five; one CPU thread."""
    torch.set_num_threads(1)
    live = opened(bundles, items, dim)
    some = live.stock.bundles["7"]
    part = live.stock.items[some.items[0]]
    for what, change in (
        ("nothing", CatalogueChange(2, [], [])),
        ("a bundle's price", CatalogueChange(2, [], [replace(some, price=1.0)])),
        ("an item is withdrawn", CatalogueChange(2, [replace(part, withdrawn=True)], [])),
        ("a new bundle", CatalogueChange(2, [], [Bundle("new", some.items[:3])])),
    ):
        spent = []
        for _ in range(REPEATS):
            seconds, _answer = clocked(lambda change=change: live.after(change).answer([ASKED]))  # type: ignore[misc]
            live.answer([ASKED])  # the model has the first contents at hand again
            spent.append(1000 * seconds)
        console.print(f"{what:<22}{median(spent):8.1f} ms")


def opened(bundles: int, items: int, dim: int) -> Live:
    random = np.random.default_rng(0)

    def pairs(rows: int, columns: int, each: int) -> object:
        owners = np.repeat(np.arange(rows), each)
        return binary_matrix(owners, random.integers(0, columns, rows * each), (rows, columns))

    users = 500
    dataset = BundleDataset(
        pairs(users, items, 20),
        pairs(users, bundles, 5),
        pairs(bundles, items, 10),
        Vocabulary.numbered("user", users),
        Vocabulary.numbered("item", items),
        Vocabulary.numbered("bundle", bundles),
    )
    recommender = Recommender(embedding_dim=dim, epochs=1, device="cpu")
    recommender.fit(dataset, SplitPlan("none"), progress=False, calibrate=False)
    contents = dataset.bundle_item
    catalogue = CatalogueChange(
        1,
        [Item(name, f"item {name}", 1.0, ("some",), 3) for name in dataset.items],
        [
            Bundle(
                name,
                tuple(map(str, contents.indices[contents.indptr[n] : contents.indptr[n + 1]])),
                price=9.0,
            )
            for n, name in enumerate(dataset.bundles)
        ],
    )
    seconds, live = clocked(lambda: Live(recommender, EMPTY.after(catalogue)).warm())
    console.print(f"{bundles:,} bundles, {items:,} items, d = {dim}: opened in {seconds:.1f} s")
    return live


def clocked(work: Callable[[], T]) -> tuple[float, T]:
    started = time.perf_counter()
    outcome = work()
    return time.perf_counter() - started, outcome


if __name__ == "__main__":
    typer.run(main)
