"""How well items that came after training are ranked, by what the catalogue says about them.

`python -m benchmarks.cold_items sample` takes a fifth of the items out of the training data, trains, and puts
them back with their catalogue only. It prints nDCG@5 of test cases about known and about cold items, without
and with content.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from bundlemage import SplitPlan, read, sample_shop
from bundlemage.data.cold_items import ColdItems, cold_items
from bundlemage.data.dataset import BundleDataset
from bundlemage.evaluation import GenerationEvaluator, MatchingEvaluator, means
from bundlemage.models.base import ContentLearner, Interactions, Model, require
from bundlemage.models.registry import make_config
from bundlemage.sample.kinds import KINDS, shop_of_kind
from bundlemage.training.loop import train_members


def dataset_of(data: str, seed: int) -> BundleDataset:
    """The data: a generated shop with this seed, or what a reader finds."""
    if data == "sample":
        return sample_shop(seed=seed).dataset
    return shop_of_kind(data, seed).dataset if data in KINDS else read(data).dataset


def ndcg(model: Model, cases: ColdItems, dataset: BundleDataset) -> dict[str, tuple[float, int]]:
    """nDCG@5 and the number of cases, for each task and kind of item. Bundles have all their items again."""
    data = Interactions.of(cases.split.train, torch.device("cpu"))
    data = replace(data, bundle_item=Interactions.of(dataset, torch.device("cpu")).bundle_item)
    found = {}
    for kind, asked in cases.generation.items():
        found[f"completion, {kind}"] = means(GenerationEvaluator(asked, data).metrics(model)), len(asked)
    for kind, matched in cases.matching.items():
        found[f"matching, {kind}"] = means(MatchingEvaluator(matched, data).metrics(model)), len(matched)
    return {name: (each.get("ndcg@5", float("nan")), count) for name, (each, count) in found.items()}


def measure(data: str, seed: int) -> dict[str, tuple[float, float, int]]:
    """nDCG@5 without and with content, and the number of cases."""
    dataset = dataset_of(data, seed)
    cases = cold_items(dataset, SplitPlan(seed=seed))
    config = make_config("bundlemage", {"seed": seed, "device": "cpu"})
    model, _ = train_members("bundlemage", config, cases.split, 1)
    without = ndcg(model, cases, dataset)
    assert dataset.catalogue is not None
    require(model, ContentLearner).learn_content(dataset.catalogue.items, cases.split.train)
    after = ndcg(model, cases, dataset)
    return {name: (without[name][0], after[name][0], count) for name, (_, count) in without.items()}


def main(
    data: Annotated[list[str], typer.Argument(help="sample, a kind of generated shop, or a folder")],
    seed: Annotated[int, typer.Option(help="seed of the shop, the split and the model")] = 0,
) -> None:
    """Measure cold items on some data sets."""
    table = Table("data", "cases", "without content", "with content", "number")
    for each in data:
        for name, (without, after, count) in measure(each, seed).items():
            table.add_row(each.rpartition("/")[2], name, f"{without:.4f}", f"{after:.4f}", f"{count:,}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
