"""Generated shops of any size, made by a process of their own: what making them takes is not measured.

A shop is kept as a saved model that has seen the data but took no step, so it can be trained on and asked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from bundlemage.sample.generate import sample_shop

if TYPE_CHECKING:
    from benchmarks.setting import Setting
    from bundlemage.data.dataset import BundleDataset
    from bundlemage.recommender import Recommender


class ShopSize(TypedDict):
    """The settings of `sample_shop` for the size of a shop."""

    users: int
    items: int
    bundles: int
    items_per_user: float
    bundles_per_user: float
    items_per_bundle: float


def generated_data(size: ShopSize, setting: Setting) -> BundleDataset:
    """A shop to train on."""
    from bundlemage.artifact.files import load_artifact

    return load_artifact(_folder(size, 2, setting)).dataset


def generated_recommender(size: ShopSize, dim: int, setting: Setting) -> Recommender:
    """A shop to ask, with vectors of this length. What its answers are is of no interest, how soon is."""
    from bundlemage.recommender import Recommender

    return Recommender.load(_folder(size, dim, setting), device=setting.device)


def _folder(size: ShopSize, dim: int, setting: Setting) -> Path:
    name = "-".join(f"{number:g}" for number in (*size.values(), dim) if isinstance(number, int | float))
    folder = Path(setting.scratch) / name
    if setting.tiny and not folder.exists():
        generate(size, dim, folder)
    if not folder.exists():
        order = [sys.executable, "-m", "benchmarks.generated", json.dumps(size), str(dim), str(folder)]
        subprocess.run(order, check=True)
    return folder


def generate(size: ShopSize, dim: int, folder: Path) -> None:
    """Write a shop of this size with a model's first weights."""
    import torch

    from bundlemage.artifact.files import Artifact, save_artifact
    from bundlemage.data.splits import SplitPlan
    from bundlemage.models.base import Interactions, Learner, Sizes, require
    from bundlemage.models.registry import build, make_config

    dataset = sample_shop(**size).dataset
    settings = make_config("bundlemage", {"embedding_dim": dim, "device": "cpu"})
    model = build("bundlemage", settings, Sizes.of(dataset))
    data = Interactions.of(dataset, torch.device("cpu"))
    model.observe(data)
    with torch.no_grad():
        require(model, Learner).settle(data)
    config = {
        "model": "bundlemage",
        "settings": settings.model_dump(mode="json"),
        "protocol": "none",
        "split": asdict(SplitPlan("none")),
    }
    save_artifact(Artifact(config, dict(model.state_dict()), dataset, metrics={}, history=""), folder)


if __name__ == "__main__":
    generate(json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
