"""GRAM-SMOT against slow NumPy on a small graph, and what it promises on data with a known answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import SplitPlan
from bundlemage.errors import ConfigError, UnsupportedError
from bundlemage.models.base import Completer, Histories, Interactions, Sizes, can
from bundlemage.models.baselines.gram_smot import (
    BUNDLES,
    ITEMS,
    KINDS,
    TRAINING,
    USERS,
    AttentionLayer,
    GramSmot,
    GramSmotConfig,
    Graph,
    hinge_loss,
    nearness,
    softmax_loss,
)
from bundlemage.models.neighbours import attend
from bundlemage.models.ragged import Ragged
from bundlemage.training.loop import train
from tests.small_shop import dataset_of, small_shop

CPU = torch.device("cpu")
# User 3 has nothing, item 4 is nowhere, bundle 3 is empty and nobody's.
SHOP = dataset_of(
    user_item=[[0, 1], [1, 2, 3], [3], []],
    user_bundle=[[0], [0, 1], [2], []],
    bundle_item=[[0, 1], [2], [0, 3], []],
    item_count=5,
)
SIZES = Sizes.of(SHOP)
EVERYONE = torch.arange(SIZES.users)
DIM = 6


def data_of(shop: BundleDataset = SHOP) -> Interactions:
    return Interactions.of(shop, CPU)


def make(shop: BundleDataset = SHOP, **settings: Any) -> GramSmot:
    torch.manual_seed(1)
    still: dict[str, Any] = {"dropout": 0.0, "edge_dropout": 0.0, "hide_bundles": 0.0}
    small: dict[str, Any] = {"embedding_dim": DIM, "device": "cpu"}
    config = GramSmotConfig(**(small | still | settings))
    model = GramSmot(config, Sizes.of(shop)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.7)
    model.observe(data_of(shop))
    return model


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def dense_edges(from_users: bool = True, without: tuple[str, int, int] | None = None) -> np.ndarray:
    """Who attends to whom, [nodes, nodes], all nodes in one numbering."""
    item, bundle = SIZES.users, SIZES.users + SIZES.items
    found = np.eye(bundle + SIZES.bundles, dtype=bool)
    for name, row, column in (
        ("user_item", 0, item),
        ("user_bundle", 0, bundle),
        ("bundle_item", bundle, item),
    ):
        matrix = getattr(SHOP, name).toarray().astype(bool)
        if without and without[0] == name:
            matrix[without[1], without[2]] = False
        rows, columns = np.nonzero(matrix)
        found[rows + row, columns + column] = found[columns + column, rows + row] = True
    if not from_users:
        found[:, : SIZES.users] = False
    return found


def slow_layer(layer: AttentionLayer, tables: list[np.ndarray], edges: np.ndarray) -> list[np.ndarray]:
    """Graph attention as published, a node and a head at a time."""
    nodes = [(kind, number) for kind in KINDS for number in range(len(tables[kind]))]
    found = [np.zeros_like(table) for table in tables]
    width = DIM // layer.heads
    for place, (kind, number) in enumerate(nodes):
        near = [nodes[other] for other in np.flatnonzero(edges[place])]
        for head in range(layer.heads):
            part = slice(head * width, (head + 1) * width)
            weights = array(layer.project)[kind]
            own = (tables[kind][number] @ weights[kind])[part]
            values = [(tables[kin][n] @ weights[kin])[part] for kin, n in near]
            a = np.concatenate([array(layer.ask)[kind, head], array(layer.offer)[kind, head]])
            scores = [
                np.concatenate([own, value]) @ a + array(layer.offer_bias)[kind, kin, head]
                for (kin, _), value in zip(near, values, strict=True)
            ]
            if not near:
                continue
            exponents = np.exp([score if score > 0 else 0.2 * score for score in scores])
            found[kind][number, part] = (exponents / exponents.sum()) @ np.array(values)
    return found


def slow_places(model: GramSmot) -> list[np.ndarray]:
    own = model.user_vectors
    users = np.zeros((SIZES.users, DIM)) if own is None else array(own)
    tables = [users, array(model.item_vectors), array(model.bundle_vectors)]
    for number, layer in enumerate(model.attention):
        assert isinstance(layer, AttentionLayer)
        found = slow_layer(layer, tables, dense_edges(from_users=own is not None or number > 0))
        if number + 1 < len(model.attention):
            found = [np.where(table > 0, table, np.expm1(table)) for table in found]
        tables = [new + old for new, old in zip(found, tables, strict=True)]
    return tables


class TestAttention:
    @pytest.mark.parametrize("own_vectors", [False, True])
    @pytest.mark.parametrize("layers", [1, 2])
    @pytest.mark.parametrize("heads", [1, 3])
    def test_propagation_is_that_of_the_equations(self, heads: int, layers: int, own_vectors: bool) -> None:
        model = make(heads=heads, layers=layers, user_embedding=own_vectors)
        for fast, slow in zip(model.places(), slow_places(model), strict=True):
            np.testing.assert_allclose(array(fast), slow, rtol=1e-9, atol=1e-12)

    @pytest.mark.parametrize("hidden", [False, True])
    def test_the_gradient_is_that_of_small_differences(self, hidden: bool) -> None:
        near = Graph(data_of(), SIZES).near[USERS]
        nodes = SIZES.users + SIZES.items + SIZES.bundles
        random = torch.Generator().manual_seed(4)
        table = torch.randn(nodes, 4, dtype=torch.float64, generator=random, requires_grad=True)
        asked = torch.randn(SIZES.users, 2, dtype=torch.float64, generator=random, requires_grad=True)
        offered = torch.randn(nodes, 2, dtype=torch.float64, generator=random, requires_grad=True)
        kept = torch.arange(len(near.row)) % 3 > 0 if hidden else None

        def found(table: Tensor, asked: Tensor, offered: Tensor) -> Tensor:
            return attend(table, asked, offered, near, kept)

        assert torch.autograd.gradcheck(found, (table, asked, offered))

    def test_large_scores_do_not_overflow(self) -> None:
        near = Graph(data_of(), SIZES).near[BUNDLES]
        nodes = SIZES.users + SIZES.items + SIZES.bundles
        table = torch.randn(nodes, 4)
        asked = torch.full((SIZES.bundles, 1), 300.0)
        assert attend(table, asked, torch.randn(nodes, 1) * 300, near).isfinite().all()

    def test_a_hidden_pair_is_hidden_both_ways(self) -> None:
        graph, layer = Graph(data_of(), SIZES), AttentionLayer(DIM, 2).double()
        tables = [torch.randn(count, DIM, dtype=torch.float64) for count in (4, 5, 4)]
        kept = torch.ones(graph.pairs + 1, dtype=torch.bool)
        kept[1] = False  # the second pair of user and bundle: user 1, bundle 0
        slow = slow_layer(layer, [array(t) for t in tables], dense_edges(without=("user_bundle", 1, 0)))
        for fast, wanted in zip(layer(tables, graph, kept, tuple(KINDS)), slow, strict=True):
            np.testing.assert_allclose(array(fast), wanted, rtol=1e-9)

    def test_as_many_pairs_are_hidden_as_asked_for_and_no_node_from_itself(self) -> None:
        shop = small_shop()
        graph = Graph(data_of(shop), Sizes.of(shop))
        kept = torch.stack([graph.hide(0.6, 0.2) for _ in range(50)])
        assert kept[:, : graph.bundle_pairs].double().mean() == pytest.approx(0.4, abs=0.02)
        assert kept[:, graph.bundle_pairs : -1].double().mean() == pytest.approx(0.8, abs=0.02)
        assert kept[:, -1].all()


class TestLoss:
    def test_nearness_is_minus_the_squared_distance(self) -> None:
        left, right = torch.randn(3, 5, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
        slow = [[-sum((a - b) ** 2) for b in array(right)] for a in array(left)]
        np.testing.assert_allclose(array(nearness(left, right)), slow, rtol=1e-9)

    def test_the_softmax_is_over_bias_less_distance(self) -> None:
        random = np.random.default_rng(5)
        places, table, bias = random.normal(size=(3, 4)), random.normal(size=(6, 4)), random.normal(size=6)
        taken = [[0, 4], [], [5]]
        total = 0.0
        for place, row in zip(places, taken, strict=True):
            logits = bias - 2.5 * ((place - table) ** 2).sum(1)
            total -= sum(logits[n] - np.log(np.exp(logits).sum()) for n in row)
        near, far, level = (torch.from_numpy(values) for values in (places, table, bias))
        found = softmax_loss(near, far, level, Ragged.from_lists(taken), 2.5)
        assert float(found) == pytest.approx(total / 3, rel=1e-9)

    def test_the_hinge_counts_what_comes_too_near(self) -> None:
        right, wrong = np.array([-1.0, -2.0]), np.array([[-1.2, -0.5, -9.0], [-8.0, -7.0, -9.0]])
        # By hand, for a margin of 0.5: the first positive is short of 0.3, 1.0 and 0; the second of nothing.
        tensors = torch.from_numpy(right), torch.from_numpy(wrong)
        assert float(hinge_loss(*tensors, 0.5, 30, rank_weights=False)) == pytest.approx(1.3 / 3)
        assert float(hinge_loss(*tensors, 0.5, 30)) == pytest.approx(np.log1p(20) * 1.3 / 3)

    @pytest.mark.parametrize("loss", ["softmax", "hinge"])
    @pytest.mark.parametrize("ball", [False, True])
    def test_every_weight_that_is_used_has_a_finite_gradient(self, loss: str, ball: bool) -> None:
        model = make(loss=loss, unit_ball=ball, layers=2, heads=2, user_embedding=True, hide_bundles=0.5)
        names, weights = zip(*model.named_parameters(), strict=True)
        found = torch.autograd.grad(model.loss(TRAINING, EVERYONE, data_of()), weights)
        for name, gradient in zip(names, found, strict=True):
            assert gradient.isfinite().all(), name
            assert gradient.abs().sum() > 0, name

    def test_in_the_unit_ball_no_vector_is_longer_than_one(self) -> None:
        for table in make(unit_ball=True).places():
            assert table.norm(dim=1).max() <= 1 + 1e-9


class TestScores:
    def settled(self, **settings: Any) -> GramSmot:
        model = make(**settings).eval()
        with torch.no_grad():
            model.settle(data_of())
        return model

    def test_bundles_by_distance_and_bias(self) -> None:
        model, data = self.settled(sharpness=2.0), data_of()
        users, _, bundles = slow_places(model)
        bias = array(model.biases())
        slow = [[b - 2 * ((u - v) ** 2).sum() for v, b in zip(bundles, bias, strict=True)] for u in users]
        found = model.score_bundles(data.histories(EVERYONE), data.bundle_item)
        np.testing.assert_allclose(array(found), slow, rtol=1e-9)

    def test_greedy_generation_takes_the_nearest_items_first(self) -> None:
        model, data = self.settled(), data_of()
        users, items, _ = slow_places(model)
        partial = Ragged.from_lists([[0], [], [1, 2], []])
        found = model.score_items(data.histories(EVERYONE), partial, data.bundle_item)
        for user, scores in enumerate(array(found)):
            distance = np.linalg.norm(items - users[user], axis=1)
            assert np.argsort(-scores).tolist() == np.argsort(distance).tolist()

    def test_diversity_is_the_gain_of_a_submodular_value(self) -> None:
        model, data = self.settled(diversity=0.8), data_of()
        users, items, _ = slow_places(model)
        unit = items / np.linalg.norm(items, axis=1, keepdims=True)

        def value(user: int, bundle: list[int]) -> float:
            near = sum(-((users[user] - items[n]) ** 2).sum() for n in bundle)
            pairs = [(a, b) for place, a in enumerate(bundle) for b in bundle[:place]]
            return float(near - 0.8 * sum((1 + unit[a] @ unit[b]) / 2 for a, b in pairs))

        partials = [[0], [], [1, 2], [3]]
        found = model.score_items(data.histories(EVERYONE), Ragged.from_lists(partials), data.bundle_item)
        for user, bundle in enumerate(partials):
            for item in set(range(SIZES.items)) - set(bundle):
                gain = value(user, [*bundle, item]) - value(user, bundle)
                assert float(found[user, item]) == pytest.approx(gain, rel=1e-9)

    def test_a_user_is_scored_the_same_alone_and_in_company(self) -> None:
        model, data = self.settled(), data_of()
        partial = Ragged.from_lists([[0], [], [1, 2], []])
        bundles = model.score_bundles(data.histories(EVERYONE), data.bundle_item)
        items = model.score_items(data.histories(EVERYONE), partial, data.bundle_item)
        for user in EVERYONE:
            alone, rows = data.histories(user[None]), partial.rows(user[None])
            torch.testing.assert_close(model.score_bundles(alone, data.bundle_item)[0], bundles[user])
            torch.testing.assert_close(model.score_items(alone, rows, data.bundle_item)[0], items[user])

    @pytest.mark.parametrize("residual", [False, True])
    def test_nodes_without_edges_have_finite_scores(self, residual: bool) -> None:
        model, data = self.settled(residual=residual), data_of()
        histories = data.histories(EVERYONE)
        assert model.score_bundles(histories, data.bundle_item).isfinite().all()
        assert model.score_items(histories, Ragged.from_lists([[]] * 4), data.bundle_item).isfinite().all()

    def test_a_bundle_that_came_later_is_between_the_others(self) -> None:
        model, data = self.settled(), data_of()
        contents = data.bundle_item.append(Ragged.from_lists([[0, 1]]))
        scores = model.score_bundles(data.histories(EVERYONE), contents)
        assert scores.shape == (SIZES.users, SIZES.bundles + 1)
        assert (scores[:, -1] >= scores[:, :-1].amin(1)).all()
        assert (scores[:, -1] <= scores[:, :-1].amax(1)).all()

    def test_saved_weights_alone_give_the_same_scores(self) -> None:
        model, data = self.settled(), data_of()
        copy = GramSmot(model.config, SIZES).double().eval()
        copy.load_state_dict(model.state_dict())
        histories, partial = data.histories(EVERYONE), Ragged.from_lists([[0], [], [1, 2], []])
        assert torch.equal(
            copy.score_bundles(histories, data.bundle_item), model.score_bundles(histories, data.bundle_item)
        )
        assert torch.equal(
            copy.score_items(histories, partial, data.bundle_item),
            model.score_items(histories, partial, data.bundle_item),
        )

    def test_settling_leaves_training_as_it_was_and_hides_nothing(self) -> None:
        model = make(dropout=0.5, edge_dropout=0.5, hide_bundles=0.9).train()
        with torch.no_grad():
            model.settle(data_of())
        assert model.training
        np.testing.assert_allclose(array(model.user_places), slow_places(model)[USERS], rtol=1e-9)
        np.testing.assert_allclose(array(model.item_places), slow_places(model)[ITEMS], rtol=1e-9)

    def test_strangers_are_refused(self) -> None:
        data = data_of()
        nobody = Histories(Ragged.from_lists([[0]]), Ragged.from_lists([[]]))
        with pytest.raises(UnsupportedError, match="only the users"):
            self.settled().score_bundles(nobody, data.bundle_item)


class TestSettings:
    def test_heads_divide_the_dimensions(self) -> None:
        with pytest.raises(ConfigError, match="'embedding_dim' is 6 and 'heads' is 4"):
            make(heads=4)

    def test_without_the_loss_over_items_it_does_not_generate(self) -> None:
        assert not can(make(item_weight=0.0), Completer)
        assert can(make(), Completer)


def two_camps() -> tuple[BundleDataset, Tensor]:
    """Everyone has the bundles of one camp but one, and half of its items: the missing one is the answer."""
    people, answers = 24, []
    user_item, user_bundle = [], []
    for user in range(people):
        camp, missing = user % 2, user // 2 % 4
        answers.append(4 * camp + missing)
        user_item.append([8 * camp + (user // 2 + step) % 8 for step in range(4)])
        user_bundle.append([4 * camp + bundle for bundle in range(4) if bundle != missing])
    bundle_item = [[8 * (n // 4) + 2 * (n % 4), 8 * (n // 4) + 2 * (n % 4) + 1] for n in range(8)]
    return dataset_of(user_item, user_bundle, bundle_item, 16), torch.tensor(answers)


@pytest.mark.parametrize(
    "settings", [{}, {"loss": "hinge"}, {"layers": 2, "heads": 2, "user_embedding": False}]
)
def test_the_planted_answer_comes_first(settings: dict[str, Any]) -> None:
    shop, answers = two_camps()
    learning: dict[str, Any] = {
        "embedding_dim": 16,
        "epochs": 60,
        "batch_size": 24,
        "learning_rate": 0.01,
        "device": "cpu",
    }
    config = GramSmotConfig(**(learning | settings))
    torch.manual_seed(0)
    model = GramSmot(config, Sizes.of(shop))
    train(model, config, SplitPlan("none").divide(shop))
    data = data_of(shop)
    histories = data.histories(torch.arange(len(answers)))
    with torch.inference_mode():
        scores = model.score_bundles(histories, data.bundle_item)
        items = model.score_items(histories, Ragged.from_lists([[]] * len(answers)), data.bundle_item)
    others = scores.masked_fill(histories.bundles.as_mask(8), -torch.inf)
    assert (others.argmax(1) == answers).float().mean() > 0.95
    camp = torch.arange(len(answers)) % 2
    assert (items.argmax(1) // 8 == camp).all()
