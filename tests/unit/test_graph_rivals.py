"""The models on graphs: LightGCN's, BGCN's and CrossCBR's sums against dense matrices, and that all learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from bundlemage import SplitPlan
from bundlemage.data.dataset import BundleDataset
from bundlemage.models.base import Interactions, Sizes
from bundlemage.models.baselines.factors import PAIRS
from bundlemage.models.baselines.graphs import (
    BGCN,
    GraphModel,
    LightGCN,
    any_of,
    mean_of_overlapping,
    overlap_totals,
)
from bundlemage.models.baselines.views import BundleGT, CoHeat, CrossCBR, MultiCBR, contrastive_loss
from bundlemage.models.config import ModelConfig, parse_config
from bundlemage.models.neighbours import Bipartite
from bundlemage.models.ragged import Ragged
from bundlemage.training.loop import train
from tests.small_shop import dataset_of, datasets, small_shop

CPU = torch.device("cpu")
MODELS: tuple[type[GraphModel], ...] = (LightGCN, BGCN, CrossCBR, MultiCBR, BundleGT, CoHeat)
every_model = pytest.mark.parametrize("model_class", MODELS)
BY_NAME = [model for model in MODELS if model is not CoHeat]
"""Those that know nothing of a bundle that came after training."""

STRANGE = dataset_of([[0], [], [1, 2], []], [[0], [1], [], []], [[0, 1], [], [2], [0]], 3)
"""Users without items, without bundles, without both; a bundle that is empty, and two that nobody has."""


def fresh(model_class: type[GraphModel], config: ModelConfig, sizes: Sizes) -> GraphModel:
    build: Callable[[ModelConfig, Sizes], GraphModel] = model_class
    return build(config, sizes)


def made(
    model_class: type[GraphModel], dataset: BundleDataset, **choices: Any
) -> tuple[GraphModel, Interactions]:
    """A model with random weights that has seen the data."""
    torch.manual_seed(0)
    config = parse_config(model_class.config_class, {"embedding_dim": 6, "device": "cpu"} | choices)
    model = fresh(model_class, config, Sizes.of(dataset))
    data = Interactions.of(dataset, CPU)
    model.observe(data)
    return model, data


def settled(
    model_class: type[GraphModel], dataset: BundleDataset, **choices: Any
) -> tuple[GraphModel, Interactions]:
    model, data = made(model_class, dataset, **choices)
    with torch.no_grad():
        model.settle(data)
    return model.eval(), data


def everyone(model: GraphModel, data: Interactions) -> Tensor:
    with torch.inference_mode():
        return model.score_bundles(data.histories(torch.arange(model.sizes.users)), data.bundle_item)


def dense_step(edges: Any) -> np.ndarray:
    """D^(-1/2) A D^(-1/2) over the nodes of both sides, left ones first."""
    left, right = edges.shape
    adjacency = np.zeros((left + right, left + right))
    adjacency[:left, left:] = edges.toarray()
    adjacency += adjacency.T
    degree = np.maximum(adjacency.sum(1), 1)
    found: np.ndarray = adjacency / np.sqrt(degree[:, None] * degree[None, :])
    return found


def connected(edges: Any, table: np.ndarray) -> np.ndarray:
    """The table of both sides' nodes, zero where a node has no edge."""
    dense = edges.toarray()
    found: np.ndarray = table * (np.concatenate([dense.sum(1), dense.sum(0)]) > 0)[:, None]
    return found


def unit(table: np.ndarray) -> np.ndarray:
    found: np.ndarray = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    return found


def row_mean(edges: Any) -> np.ndarray:
    dense = edges.toarray().astype(float)
    found: np.ndarray = dense / np.maximum(dense.sum(1, keepdims=True), 1)
    return found


def numpy(*tensors: Tensor | None) -> np.ndarray:
    return np.concatenate([tensor.detach().numpy() for tensor in tensors if tensor is not None])


class TestPropagation:
    @settings(max_examples=25, deadline=None)
    @given(datasets())
    def test_lightgcn_is_the_mean_of_powers_of_the_normalised_adjacency(self, dataset: BundleDataset) -> None:
        model, _ = settled(LightGCN, dataset, layers=3)
        assert isinstance(model, LightGCN)
        step = dense_step(dataset.user_bundle)
        table = connected(dataset.user_bundle, numpy(model.users, model.bundles))
        expected = sum(np.linalg.matrix_power(step, power) @ table for power in range(4)) / 4
        np.testing.assert_allclose(numpy(model.user_vectors, model.bundle_vectors), expected, atol=1e-5)

    @every_model
    def test_a_bias_is_added_to_the_scores_of_everyone(self, model_class: type[GraphModel]) -> None:
        shop = small_shop()
        model, data = settled(model_class, shop, bundle_bias=True)
        before = everyone(model, data)
        assert model.bias is not None
        with torch.no_grad():
            model.bias[3] += 2.0
            model.settle(data)
        change = everyone(model, data) - before
        expected = torch.zeros(len(shop.bundles))
        expected[3] = 2
        torch.testing.assert_close(change, expected.expand_as(change), atol=1e-5, rtol=0)

    @settings(max_examples=25, deadline=None)
    @given(datasets())
    def test_crosscbr_adds_up_layers_of_length_one_in_both_views(self, dataset: BundleDataset) -> None:
        model, _ = settled(CrossCBR, dataset, layers=2)
        assert isinstance(model, CrossCBR)
        users = len(dataset.users)

        def view(edges: Any, right: Tensor) -> tuple[np.ndarray, np.ndarray]:
            step, table = dense_step(edges), connected(edges, numpy(model.users, right))
            total = table + unit(step @ table) + unit(step @ step @ table)
            return total[:users], total[users:]

        by_items, items = view(dataset.user_item, model.items)
        by_bundles, bundles = view(dataset.user_bundle, model.bundles)
        np.testing.assert_allclose(numpy(model.user_vectors), np.hstack([by_items, by_bundles]), atol=1e-4)
        expected = np.hstack([row_mean(dataset.bundle_item) @ items, bundles])
        np.testing.assert_allclose(numpy(model.bundle_vectors), expected, atol=1e-4)

    @pytest.mark.parametrize("unit_layers", [False, True])
    def test_bgcn_is_the_convolution_written_with_dense_matrices(self, unit_layers: bool) -> None:
        shop = small_shop()
        model, _ = settled(BGCN, shop, layers=2, unit_layers=unit_layers)
        assert isinstance(model, BGCN)
        joined = unit if unit_layers else np.asarray

        def activated(layer: Any, carried: np.ndarray) -> np.ndarray:
            found = carried @ numpy(layer.weight).T + numpy(layer.bias)
            return np.asarray(np.where(found > 0, found, 0.01 * found))

        count = len(shop.users)
        both = connected(shop.user_item, numpy(model.users, model.items))
        users, items = both[:count], both[count:]
        of_users, of_items = [users], [items]
        for layer in model.item_level:
            both = np.vstack([users, items])
            both = activated(layer, both + dense_step(shop.user_item) @ both)
            users, items = both[:count], both[count:]
            of_users.append(joined(users))
            of_items.append(joined(items))
        content = row_mean(shop.bundle_item) @ np.hstack(of_items)
        both = connected(shop.user_bundle, numpy(model.users, model.bundles))
        users, bundles = both[:count], both[count:]
        of_bundles = [bundles]
        of_users.append(users)
        for layer in model.bundle_level:
            both = np.vstack([users, bundles])
            carried = both + dense_step(shop.user_bundle) @ both
            carried[count:] += explicit_overlap(shop) @ bundles
            both = activated(layer, carried)
            users, bundles = both[:count], both[count:]
            of_users.append(joined(users))
            of_bundles.append(joined(bundles))
        np.testing.assert_allclose(numpy(model.user_vectors), np.hstack(of_users), atol=1e-4)
        np.testing.assert_allclose(numpy(model.bundle_vectors), np.hstack([content, *of_bundles]), atol=1e-4)

    @settings(max_examples=25, deadline=None)
    @given(datasets())
    def test_bgcn_weighs_other_bundles_by_the_items_in_common(self, dataset: BundleDataset) -> None:
        graph = Bipartite.of(Ragged.from_csr(dataset.bundle_item), len(dataset.items))
        table = torch.randn(len(dataset.bundles), 5)
        found = mean_of_overlapping(graph, overlap_totals(graph), table)
        np.testing.assert_allclose(found.numpy(), explicit_overlap(dataset) @ table.numpy(), atol=1e-4)

    def test_the_gradient_of_a_neighbour_sum_is_the_sum_the_other_way(self) -> None:
        graph = Bipartite.of(Ragged.from_lists([[0, 2], [], [2], [1, 2, 3]]), 5)
        left, right = (torch.randn(nodes, 3, dtype=torch.double, requires_grad=True) for nodes in (4, 5))
        assert torch.autograd.gradcheck(graph.sum_to_left, (right,))
        assert torch.autograd.gradcheck(graph.sum_to_right, (left,))
        assert torch.autograd.gradcheck(lambda *tables: graph.spread(*tables), (left, right))

    def test_a_thinned_graph_has_some_of_the_edges_the_same_both_ways(self) -> None:
        graph = Bipartite.of(Interactions.of(small_shop(), CPU).user_item, 90)
        thin = graph.thinned(0.3)
        pairs = set(zip(thin.left.row_of_entry().tolist(), thin.left.values.tolist(), strict=True))
        turned = set(zip(thin.right.values.tolist(), thin.right.row_of_entry().tolist(), strict=True))
        whole = set(zip(graph.left.row_of_entry().tolist(), graph.left.values.tolist(), strict=True))
        assert pairs == turned
        assert pairs < whole
        assert 0.6 < len(pairs) / len(whole) < 0.8


def explicit_overlap(dataset: BundleDataset) -> np.ndarray:
    """The matrix with bundles² entries that the model never makes."""
    content = dataset.bundle_item.toarray().astype(float)
    shared = content @ content.T
    np.fill_diagonal(shared, 0)
    found: np.ndarray = shared / np.maximum(shared.sum(1, keepdims=True), 1)
    return found


class TestLosses:
    def test_the_contrastive_loss_is_infonce_by_cosines(self) -> None:
        one, other = torch.randn(7, 4, dtype=torch.double), torch.randn(7, 4, dtype=torch.double)
        share = np.exp(unit(one.numpy()) @ unit(other.numpy()).T / 0.3)
        expected = -np.log(np.diag(share) / share.sum(1)).mean()
        assert float(contrastive_loss(one, other, 0.3)) == pytest.approx(expected)
        one.requires_grad_()
        other.requires_grad_()
        assert torch.autograd.gradcheck(
            lambda *views: contrastive_loss(views[0], views[1], 0.3), (one, other)
        )

    def test_crosscbr_adds_the_contrast_of_users_and_of_bundles(self) -> None:
        shop = small_shop()
        losses = {}
        for contrast in (0.0, 0.5):
            model, data = made(CrossCBR, shop, contrast=contrast)
            torch.manual_seed(1)  # the same negatives
            losses[contrast] = model.loss(PAIRS, torch.arange(30), data)
        users, bundles = data.user_bundle.entries(torch.arange(30))
        halves = [
            contrastive_loss(table[rows, :6], table[rows, 6:], 0.25)
            for table, rows in zip(model.propagate(), (users, bundles), strict=True)
        ]
        torch.testing.assert_close(losses[0.5] - losses[0.0], 0.5 * (halves[0] + halves[1]) / 2)

    @every_model
    def test_the_penalty_is_half_the_squared_length_of_the_batch_per_pair(
        self, model_class: type[GraphModel]
    ) -> None:
        shop = dataset_of([[0], [1]], [[0], [1]], [[0], [1]], 2)  # one bundle each: the other is the negative
        losses = []
        for penalty in (0.0, 0.1):
            model, data = made(model_class, shop, ego_penalty=penalty)
            losses.append(model.loss(PAIRS, torch.arange(2), data))
        users, bundles = (sum(table.square().sum() for table in tables) for tables in model.ego_tables())
        expected = 0.1 * (users + 2 * bundles) / 2 / 2
        torch.testing.assert_close(losses[1] - losses[0], expected)

    @pytest.mark.parametrize("augmentation", ["edges", "messages", "noise"])
    def test_an_augmentation_disturbs_learning_and_not_scoring(self, augmentation: str) -> None:
        shop = small_shop()
        model, data = made(CrossCBR, shop, augmentation=augmentation)
        plain, _ = settled(CrossCBR, shop)
        assert not torch.equal(model.propagate()[0], model.propagate()[0])
        with torch.no_grad():
            model.settle(data)
        assert model.training, "settling leaves the mode as it was"
        torch.testing.assert_close(model.user_vectors, plain.user_vectors)

    def test_hard_negatives_hold_an_item_of_the_user_and_are_not_the_users(self) -> None:
        shop = small_shop()
        model, _ = made(BGCN, shop, hard_negatives=1.0, negatives=40)
        users = torch.arange(len(shop.users))
        drawn = model.draw(users).numpy()
        share = (shop.user_item @ shop.bundle_item.T).toarray()
        owned = shop.user_bundle.toarray()
        rows = users.numpy()[:, None]
        assert owned[rows, drawn].mean() < 0.002, "all but what four more draws could not avoid"
        easy, _ = made(BGCN, shop, negatives=40)
        by_chance = (share[rows, easy.draw(users).numpy()] > 0).mean()
        assert (share[rows, drawn] > 0).mean() > max(0.7, 1.2 * by_chance)

    def test_any_of_finds_every_entry_of_a_row_and_nothing_else(self) -> None:
        ragged = Ragged.from_lists([[], [3], [4, 5, 6], []])
        found, has = any_of(ragged, torch.tensor([[0], [1], [2], [3]]).expand(-1, 200))
        assert has[:, 0].tolist() == [False, True, True, False]
        assert set(found[1].tolist()) == {3}
        assert set(found[2].tolist()) == {4, 5, 6}


class TestLearning:
    @every_model
    def test_the_loss_falls_and_the_planted_bundle_ranks_first(self, model_class: type[GraphModel]) -> None:
        # Four tastes: users of a taste have its items and five of its six bundles. Each lacks another one.
        users, tastes = 24, 4
        planted = [taste * 6 + (user // tastes) for user in range(users) for taste in [user % tastes]]
        dataset = dataset_of(
            [[user % tastes * 5 + number for number in range(5)] for user in range(users)],
            [[user % tastes * 6 + n for n in range(6) if n != user // tastes] for user in range(users)],
            [[bundle // 6 * 5 + (bundle + step) % 5 for step in range(3)] for bundle in range(24)],
            20,
        )
        split = SplitPlan("none").divide(dataset)
        settings = {"epochs": 15, "learning_rate": 0.02, "batch_size": 40, "embedding_dim": 16}
        model, data = made(model_class, dataset, **settings)
        history = train(model, model.config, split).history
        assert history[-1].losses["pairs"] < 0.7 * history[0].losses["pairs"]
        scores = everyone(model, data)
        scores = scores.masked_fill(data.user_bundle.as_mask(24), -torch.inf)
        assert scores.argmax(1).tolist() == planted

    @every_model
    def test_settled_and_loaded_it_scores_the_same_without_a_graph(
        self, model_class: type[GraphModel]
    ) -> None:
        shop = small_shop()
        model, data = settled(model_class, shop)
        loaded = fresh(model_class, model.config, model.sizes)
        loaded.load_state_dict(model.state_dict())
        assert torch.equal(everyone(model, data), everyone(loaded.eval(), data))

    @every_model
    def test_scores_do_not_change_with_the_batch(self, model_class: type[GraphModel]) -> None:
        model, data = settled(model_class, small_shop())
        some = torch.tensor([7, 3, 50])
        found = model.score_bundles(data.histories(some), data.bundle_item)
        torch.testing.assert_close(found, everyone(model, data)[some])

    @pytest.mark.parametrize("model_class", BY_NAME)
    def test_a_later_bundle_scores_between_those_of_training(self, model_class: type[GraphModel]) -> None:
        model, data = settled(model_class, small_shop())
        contents = data.bundle_item.append(Ragged.from_lists([[1, 2], []]))
        found = model.score_bundles(data.histories(torch.arange(5)), contents)
        assert found.shape == (5, 42)
        known, later = found[:, :40], found[:, 40:]
        assert bool(
            (later >= known.amin(1, keepdim=True)).all() & (later <= known.amax(1, keepdim=True)).all()
        )
        torch.testing.assert_close(found[:, 41], known.mean(1))  # an empty bundle is like no other

    @every_model
    def test_isolated_users_and_bundles_are_finite(self, model_class: type[GraphModel]) -> None:
        model, data = made(model_class, STRANGE, weight_decay=0.01)
        loss = model.loss(PAIRS, torch.arange(2), data)
        learned = [weight for weight in model.parameters() if weight.requires_grad]
        for gradient in torch.autograd.grad(loss, learned):
            assert bool(gradient.isfinite().all())
            assert float(gradient.abs().max()) < 1e3
        with torch.no_grad():
            model.settle(data)
        assert bool(everyone(model, data).isfinite().all())
