"""What BundleMage has beyond the paper, against slow NumPy written from its settings' docstrings."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bundlemage.models.base import Interactions, Sizes
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.config import BundleMageConfig
from bundlemage.models.ragged import Ragged
from tests.reference import numpy_bundlemage as paper

USERS, ITEMS, BUNDLES, DIM = 7, 12, 6, 8
Array = np.ndarray


@pytest.fixture
def data() -> Interactions:
    user_item = [[0, 1, 4], [2], [], [5, 6, 7, 8], [1, 9], [3], [10, 11]]
    user_bundle = [[0, 1], [1], [2, 4], [], [0], [0, 3], [4]]
    bundle_item = [[0, 1, 2], [3, 4], [5], [6, 7, 8, 9], [10, 11, 0], [2, 5]]
    owned, bought, inside = map(Ragged.from_lists, (user_item, user_bundle, bundle_item))
    return Interactions(owned, bought, inside, ITEMS)


def made(data: Interactions, **settings: Any) -> BundleMage:
    torch.manual_seed(0)
    quiet = {"dropout": 0.0, "item_dropout": 0.0, "mask_bundles": 0.0, "mask_items": 0.0}
    config = BundleMageConfig.model_validate({"embedding_dim": DIM, **quiet, **settings})
    model = BundleMage(config, Sizes(USERS, ITEMS, BUNDLES)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "log_temperatures":
                parameter.normal_(0, 0.7)
    model.observe(data)
    return model


def array(tensor: torch.Tensor) -> Array:
    found: Array = tensor.detach().numpy()
    return found


def layer(linear: nn.Linear, x: Array) -> Array:
    found: Array = array(linear.weight) @ x + array(linear.bias)
    return found


def mixed(premix: Any, one: Array, other: Array, residual: bool) -> Array:
    gate = paper.sigmoid(layer(premix.weigh, np.concatenate([one, other])))
    mix = gate * one + (1 - gate) * other
    hidden = np.maximum(layer(premix.transform[0], mix), 0)
    out: Array = layer(premix.transform[2], hidden)
    return mix + out if residual else out


def cosine(one: Array, other: Array) -> float:
    lengths = np.linalg.norm(one) * np.linalg.norm(other)
    return float(one @ other / lengths) if lengths else 0.0


def rows(ragged: Ragged) -> list[list[int]]:
    ends = ragged.offsets.tolist()
    return [ragged.values[a:b].tolist() for a, b in pairwise(ends)]


def mean(vectors: Array, chosen: list[int]) -> Array:
    found: Array = vectors[chosen].mean(0) if chosen else np.zeros(vectors.shape[1])
    return found


def user_vector(model: BundleMage, data: Interactions, user: int, without: int | None = None) -> Array:
    items = array(model.matching_embeddings())
    bundles = np.stack([mean(items, inside) for inside in rows(data.bundle_item)])
    owned = [bundle for bundle in rows(data.user_bundle)[user] if bundle != without]
    residual = model.config.residual
    return mixed(model.premix, mean(items, rows(data.user_item)[user]), mean(bundles, owned), residual)


def matching_scores(model: BundleMage, data: Interactions, user: int) -> Array:
    items = array(model.matching_embeddings())
    z = user_vector(model, data, user)
    sales = np.bincount(data.user_bundle.values, minlength=BUNDLES)
    weight = float(model.popularity_weights[0])
    return np.array(
        [
            cosine(z, mean(items, inside)) / model.config.temperature + weight * np.log1p(count)
            for inside, count in zip(rows(data.bundle_item), sales, strict=True)
        ]
    )


def generation_scores(model: BundleMage, data: Interactions, z: Array, partial: list[int]) -> Array:
    items = array(model.generation_embeddings())
    inside = mean(items, partial)
    pair = mixed(model.pair_mix, layer(model.carry_user, z), inside, model.config.residual)
    counts = np.bincount(data.bundle_item.values, minlength=ITEMS)
    weight = float(model.popularity_weights[1])
    return np.array(
        [
            cosine(pair, vector) / model.config.generation_temperature + weight * np.log1p(count)
            for vector, count in zip(items, counts, strict=True)
        ]
    )


VARIANTS: list[dict[str, Any]] = [
    {},
    {"residual": False},
    {"temperature": 0.7, "generation_temperature": 0.3},
    {"fit_popularity": False, "popularity_weight": 0.4, "item_popularity_weight": 0.0},
    {"learn_temperature": True},
]


@pytest.mark.parametrize("settings", VARIANTS)
def test_matching_scores_are_cosines_by_temperature_and_popularity(
    settings: dict[str, Any], data: Interactions
) -> None:
    model = made(data, **settings).eval()
    with torch.no_grad():
        scores = array(model.score_bundles(data.histories(torch.arange(USERS)), data.bundle_item))
    for user in range(USERS):
        np.testing.assert_allclose(scores[user], matching_scores(model, data, user), atol=1e-6)


@pytest.mark.parametrize("settings", VARIANTS)
def test_generation_scores_mix_user_and_bundle_by_a_gate(
    settings: dict[str, Any], data: Interactions
) -> None:
    model = made(data, **settings).eval()
    partial = [[0, 1], [], [5], [6, 7, 8], [11], [2, 3], [4]]
    with torch.no_grad():
        histories = data.histories(torch.arange(USERS))
        scores = array(model.score_items(histories, Ragged.from_lists(partial), data.bundle_item))
    for user in range(USERS):
        z = user_vector(model, data, user)
        np.testing.assert_allclose(scores[user], generation_scores(model, data, z, partial[user]), atol=1e-6)


def test_a_training_purchase_is_not_among_the_sales_that_foretell_it(data: Interactions) -> None:
    """The matching loss: for a user's own bundles, one sale less than all others see."""
    model = made(data).train()
    sales = np.bincount(data.user_bundle.values, minlength=BUNDLES)
    weight, total = float(model.popularity_weights[0]), 0.0
    for user, owned in enumerate(rows(data.user_bundle)):
        scores = matching_scores(model, data, user)
        scores[owned] += weight * (np.log1p(sales[owned] - 1) - np.log1p(sales[owned]))
        total -= np.log(paper.softmax(scores)[owned]).sum()
    loss = model.loss(model.phases[0], torch.arange(USERS), data)
    assert loss.item() == pytest.approx(total / USERS, rel=1e-6)


def test_a_bundle_without_a_buyer_is_completed_for_nobody(data: Interactions) -> None:
    """The generation loss of bundle 5, which nobody has: an empty history, and its own items not counted."""
    model = made(data).train()
    pairs = len(data.user_bundle.values)
    loss = model.loss(model.phases[1], torch.tensor([pairs + 5]), data)
    nobody = mixed(model.premix, np.zeros(DIM), np.zeros(DIM), True)
    inside = rows(data.bundle_item)[5]
    scores = generation_scores(model, data, nobody, inside)
    counts = np.bincount(data.bundle_item.values, minlength=ITEMS)
    weight = float(model.popularity_weights[1])
    scores[inside] += weight * (np.log1p(counts[inside] - 1) - np.log1p(counts[inside]))
    expected = -model.config.generation_weight * np.log(paper.softmax(scores)[inside]).sum()
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_propagation_adds_the_mean_of_the_bundles_that_hold_an_item(data: Interactions) -> None:
    model = made(data, propagation=1)
    items = array(model.matching_embeddings())
    contents = rows(data.bundle_item)
    bundles = np.stack([mean(items, inside) for inside in contents])
    holding = [[place for place, inside in enumerate(contents) if item in inside] for item in range(ITEMS)]
    expected = np.stack([(items[item] + mean(bundles, holding[item])) / 2 for item in range(ITEMS)])
    np.testing.assert_allclose(array(model.matching_table()), expected, atol=1e-12)
    with torch.no_grad():
        model.settle(data)
        model.eval()
        by_settled = model.vectors_of_bundles(data.bundle_item)
    np.testing.assert_allclose(array(by_settled)[0], expected[contents[0]].mean(0), atol=1e-12)
