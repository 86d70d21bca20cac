"""What an index gains where bundles are many: `python -m benchmarks.retrieval`.

A generated shop: items have a genre, a bundle's items are mostly of one. BundleMage has its first weights,
but for the items' vectors, which lie around their genre's, and for sales, a few of which are many: where all
vectors were alike, nothing could be grouped. A product of a person and a bundle differs by about one from
bundle to bundle, as much as sales do.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Iterable
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

from bundlemage import BundleDataset, Recommender
from bundlemage.core.filters import Filter
from bundlemage.core.ranking import Ranking
from bundlemage.core.shop import Shop
from bundlemage.data.dataset import Vocabulary, binary_matrix
from bundlemage.models.base import Histories, Sizes
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.registry import build

GENRES = 200
ITEMS = 100_000
USERS = 4_000
OF_ANOTHER_GENRE = 0.3
K = 10
console = Console(highlight=False, width=140, stderr=True)


def clock() -> float:
    """With one thread, the process's own time: what else the machine does meanwhile does not count."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def main(
    bundles: Annotated[int, typer.Option(help="How many bundles the shop has.")] = 1_000_000,
    dim: Annotated[list[int] | None, typer.Option(help="Of the model's vectors; several times.")] = None,
    least_recall: Annotated[float, typer.Option(help="What the index must find.")] = 0.95,
    exact_users: Annotated[int, typer.Option(help="How many are asked about by exact search.")] = 512,
    threads: Annotated[int, typer.Option(help="Of the CPU.")] = 1,
) -> None:
    """An index against exact search, in one run: a JSON line for each length of vectors, then a table."""
    import faiss

    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)
    lines = [measured(bundles, each, least_recall, exact_users, threads) for each in dim or [64, 200]]
    table = Table("", *(f"d = {line['dim']}" for line in lines), title=f"{bundles:,} bundles, top-{K}")
    for name in lines[0]:
        table.add_row(name, *(f"{line[name]:,.4g}" for line in lines))
    console.print(table)


def measured(bundles: int, dim: int, least_recall: float, exact_users: int, threads: int) -> dict[str, float]:
    recommender = opened(bundles, dim)
    everyone = recommender.shop.everyone()
    some = everyone.rows(torch.arange(exact_users))
    half = Filter(exclude=recommender.dataset.bundles.ids[: bundles // 2])
    asked = {"": (K, None), " of 50": (50, None), " of what half is hidden": (K, half)}
    ask(recommender, everyone.rows(torch.arange(2)))  # tables are made here
    exact_seconds, _ = ask(recommender, some)
    one_by_one = requests(recommender, 20)
    exact = {name: ask(recommender, some, k, where)[1] for name, (k, where) in asked.items()}
    began = clock()
    report = recommender.use_index(least_recall, progress=lambda stage, *_: console.print(f"  {stage}"))
    built = clock() - began
    console.print(str(report))
    found = {name: ask(recommender, some, k, where)[1] for name, (k, where) in asked.items()}
    index_seconds, _ = ask(recommender, everyone)
    line = {
        "bundles": bundles,
        "dim": dim,
        "threads": threads,
        "built and measured, s": built,
        "cells": report.cells,
        "cells looked into": report.probed,
        f"recall@{K} reported": report.recall,
        "score off, 95 of 100": report.score_error,
        "sampled": report.sampled,
        "answered exactly, of 500": report.answered_exactly,
        "looked further, of 500": report.looked_further,
        **{f"recall{name}": recall(exact[name], found[name]) for name in asked},
        "exact, users/s": exact_users / exact_seconds,
        "index, users/s": USERS / index_seconds,
        "times as many": USERS / index_seconds * exact_seconds / exact_users,
        "exact, ms for one": one_by_one,
        "index, ms for one": requests(recommender, 200),
        "peak memory, GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    return line


def ask(
    recommender: Recommender, histories: Histories, k: int = K, where: Filter | None = None
) -> tuple[float, list[set[int]]]:
    """Seconds, and what each was recommended."""
    began = clock()
    rankings = list(recommender.rank_bundles(histories, k, where=where))
    return clock() - began, names(rankings)


def names(rankings: Iterable[Ranking]) -> list[set[int]]:
    return [
        set(positions[:count])
        for ranking in rankings
        for positions, count in zip(ranking.positions.tolist(), ranking.counts.tolist(), strict=True)
    ]


def requests(recommender: Recommender, count: int) -> float:
    """Milliseconds for one user, the median."""
    spent = []
    for user in recommender.dataset.users.ids[:count]:
        began = clock()
        recommender.recommend(user, K)
        spent.append(1000 * (clock() - began))
    return median(spent)


def recall(exact: list[set[int]], found: list[set[int]]) -> float:
    hits = sum(len(there & here) for there, here in zip(exact, found, strict=True))
    return hits / sum(map(len, exact))


def opened(bundles: int, dim: int) -> Recommender:
    """A shop, and a model that took no step."""
    random = np.random.default_rng(0)
    genre = np.sort(random.integers(0, GENRES, ITEMS))
    edges = np.searchsorted(genre, np.arange(GENRES + 1))

    def of_a_genre(rows: int, each: int) -> Any:
        """For each row items of one genre, some of them of any other."""
        own = random.integers(0, GENRES, rows)[:, None]
        inside = edges[own] + (random.random((rows, each)) * (edges[own + 1] - edges[own])).astype(np.int64)
        other = random.integers(0, ITEMS, (rows, each))
        chosen = np.where(random.random((rows, each)) < OF_ANOTHER_GENRE, other, inside)
        return binary_matrix(np.repeat(np.arange(rows), each), chosen.ravel(), (rows, ITEMS))

    owners = np.repeat(np.arange(USERS), 3)
    dataset = BundleDataset(
        of_a_genre(USERS, 20),
        binary_matrix(owners, random.integers(0, bundles, len(owners)), (USERS, bundles)),
        of_a_genre(bundles, 8),
        Vocabulary.numbered("user", USERS),
        Vocabulary.numbered("item", ITEMS),
        Vocabulary.numbered("bundle", bundles),
    )
    recommender = Recommender(embedding_dim=dim, device="cpu", seed=0)
    torch.manual_seed(0)
    model = build(recommender.model_name, recommender.config, Sizes.of(dataset))
    assert isinstance(model, BundleMage)
    shop = Shop(dataset, torch.device("cpu"))
    vectors = random.normal(size=(GENRES, dim))[genre] + random.normal(size=(ITEMS, dim))
    sales = np.floor(2 * random.pareto(1.2, bundles))
    with torch.no_grad():
        model.sales = torch.from_numpy(sales).float()
        model.popularity_weights = torch.ones(2)
        shared = model.item_shared.shape[1]
        model.item_shared.copy_(torch.from_numpy(vectors[:, :shared]))
        model.item_matching.copy_(torch.from_numpy(vectors[:, shared:]))
        model.eval()
        model.train().eval()  # it forgets the tables that it has made
    recommender._fitted = (model, shop)
    return recommender


if __name__ == "__main__":
    typer.run(main)
