"""A divided step is the same step: losses and gradients in double precision, where rounding hides nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch import Tensor

from bundlemage.data.events import Events
from bundlemage.models.base import Interactions, Sizes
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.config import BundleMageConfig
from bundlemage.models.division import ALONE, DividedItems, DividedUsers, Division, Processes
from bundlemage.recipe import Recipe
from bundlemage.sample.generate import sample_shop

THREE = 3  # of which some get a row more than others
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "learned": {"learn_temperature": True, "popularity_weight": 0.5, "item_popularity_weight": 0.7},
    "weighted": {"weighted": True},
    "equations": {
        **Recipe.find("youshu/bundlemage-paper").settings,
        **{"masking": "row", "loss_weighting": "mean", "embedding_dim": 8},
    },
    "weighted equations": {
        **Recipe.find("youshu/bundlemage-paper").settings,
        **{"masking": "row", "loss_weighting": "mean", "embedding_dim": 8, "weighted": True},
    },
}


def _step(settings: dict[str, Any], kind: str, group: Processes | None) -> dict[str, Tensor]:
    """The loss of each phase and the gradient of each weight, put together from all processes."""
    torch.manual_seed(1)
    shop = sample_shop(users=80, items=101, bundles=40).dataset
    settings = dict(settings)
    if settings.pop("weighted", False):
        random, strengths = np.random.default_rng(0), np.array([0.25, 1, 2.5], np.float32)
        events = [
            Events(weight=random.choice(strengths, each.nnz)) for each in (shop.user_item, shop.user_bundle)
        ]
        shop = replace(shop, item_events=events[0], bundle_events=events[1])
    data = Interactions.of(shop, torch.device("cpu"))
    sizes = Sizes(80, data.items, len(data.bundle_item))
    model = BundleMage(BundleMageConfig.model_validate({"embedding_dim": 8, **settings}), sizes).double()
    division: Division = ALONE
    if group is not None:
        division = (
            DividedUsers(group, 80) if kind == "users" else DividedItems(group, sizes.items, sizes.bundles)
        )
        model.divide(division)
    data = division.part_of(data)
    model.observe(data)
    found: dict[str, Tensor] = {}
    for phase in model.phases:
        torch.manual_seed(2)
        many = 80 if phase.over == "users" else len(data.user_bundle.values)
        model.zero_grad()
        loss = model.loss(phase, torch.randperm(many)[:50], data)
        loss.backward()  # type: ignore[no-untyped-call]
        division.add_gradients(model)
        whole = division.add_losses(loss.detach().clone().reshape(1))
        found[f"{phase.name} loss"] = whole
        for name, parameter in model.named_parameters():
            if parameter.grad is None:
                continue
            slope: Tensor | None = parameter.grad
            if group is not None and kind == "items" and name in model.divided_tables:
                slope = group.gathered(parameter.grad, sizes.items)
            if slope is not None:
                found[f"{phase.name} {name}"] = slope
    return found


def _one_of_three(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=THREE)
    group = Processes.current()
    for name, settings in SETTINGS.items():
        for kind in ("users", "items"):
            found = _step(settings, kind, group)
            if group.leads:
                torch.save(found, f"{folder}/{name}-{kind}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("three")
    processes.spawn(_one_of_three, args=(str(folder),), nprocs=THREE)  # type: ignore[no-untyped-call, attr-defined]
    return folder


@pytest.mark.parametrize("kind", ["users", "items"])
@pytest.mark.parametrize("name", SETTINGS)
def test_three_processes_give_the_loss_and_the_gradients_of_one(three: Path, name: str, kind: str) -> None:
    expected, found = _step(SETTINGS[name], kind, None), torch.load(three / f"{name}-{kind}.pt")
    assert found.keys() == expected.keys()
    assert {"matching loss", "generation loss", "matching item_shared"} <= found.keys()
    for what, wanted in expected.items():
        assert wanted.abs().max() > 0
        torch.testing.assert_close(found[what].reshape(wanted.shape), wanted, rtol=1e-9, atol=1e-12)


def test_shares_are_whole_and_even() -> None:
    for count in (0, 1, 7, 100):
        shares = [Processes(rank, THREE).share(count) for rank in range(THREE)]
        assert [row for share in shares for row in share] == [*range(count)]
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
