"""MultiCBR, BundleGT and CoHeat: what each has that the other models on graphs have not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from bundlemage import SplitPlan
from bundlemage.data.dataset import BundleDataset
from bundlemage.models.base import Interactions, Learner, Matcher, Model, Sizes, require
from bundlemage.models.baselines.factors import PAIRS
from bundlemage.models.baselines.views import BundleGT, CoHeat, MultiCBR, agreement_loss, contrastive_loss
from bundlemage.models.neighbours import Neighbours, attend, product_shares
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import build, make_config
from bundlemage.training.loop import train
from tests.small_shop import dataset_of, small_shop

CPU = torch.device("cpu")


def seen(name: str, dataset: BundleDataset, **choices: Any) -> tuple[Model, Interactions]:
    """A model with its first weights that has seen the data."""
    config = make_config(name, {"embedding_dim": 6, "device": "cpu"} | choices)
    model, data = build(name, config, Sizes.of(dataset)), Interactions.of(dataset, CPU)
    model.observe(data)
    with torch.no_grad():
        require(model, Learner).settle(data)
    return model.eval(), data


def unit(table: np.ndarray) -> np.ndarray:
    found: np.ndarray = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    return found


def view(edges: Any, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One step of LightGCN, of length one, added to the vectors of nodes that have an edge."""
    dense = edges.toarray().astype(float)
    by_left, by_right = dense.sum(1), dense.sum(0)
    step = dense / np.sqrt(np.maximum(by_left[:, None], 1) * np.maximum(by_right[None, :], 1))
    left, right = left * (by_left > 0)[:, None], right * (by_right > 0)[:, None]
    return left + unit(step @ right), right + unit(step.T @ left)


def row_mean(edges: Any) -> np.ndarray:
    dense = edges.toarray().astype(float)
    found: np.ndarray = dense / np.maximum(dense.sum(1, keepdims=True), 1)
    return found


def weights_of(model: Model) -> dict[str, np.ndarray]:
    return {name: weight.detach().numpy() for name, weight in model.named_parameters()}


def all_scores(model: Model, data: Interactions) -> np.ndarray:
    with torch.inference_mode():
        scores = require(model, Matcher).score_bundles(
            data.histories(torch.arange(model.sizes.users)), data.bundle_item
        )
    found: np.ndarray = scores.numpy()
    return found


TINY = dataset_of(
    [[0, 1], [], [1, 2, 4], [3], [2]],
    [[0], [1, 2], [0, 2], [], [2]],
    [[0, 1], [], [2, 4], [0, 3, 4]],
    5,
)
"""Users without items or bundles, an empty bundle, and one that nobody has."""


class TestMultiCBR:
    SHARES: ClassVar = {"user_bundle_weight": 0.5, "user_item_weight": 0.3, "bundle_item_weight": 0.2}

    def test_fused_vectors_are_the_weighted_sums_of_three_views(self) -> None:
        model, data = seen("multicbr", TINY, **self.SHARES)
        assert isinstance(model, MultiCBR)
        weight = weights_of(model)
        users, items, bundles = weight["users"], weight["items"], weight["bundles"]
        first_users, first_bundles = view(TINY.user_bundle, users, bundles)
        second_users, spread_items = view(TINY.user_item, users, items)
        second_bundles = row_mean(TINY.bundle_item) @ spread_items
        third_bundles, spread_items = view(TINY.bundle_item, bundles, items)
        third_users = row_mean(TINY.user_item) @ spread_items
        fused_users = 0.5 * first_users + 0.3 * second_users + 0.2 * third_users
        fused_bundles = 0.5 * first_bundles + 0.3 * second_bundles + 0.2 * third_bundles
        np.testing.assert_allclose(model.user_vectors.numpy(), fused_users, atol=1e-5)
        np.testing.assert_allclose(model.bundle_vectors.numpy(), fused_bundles, atol=1e-5)
        np.testing.assert_allclose(all_scores(model, data), fused_users @ fused_bundles.T, atol=1e-5)

    def test_a_view_without_weight_does_not_count(self) -> None:
        model, _ = seen("multicbr", TINY, user_item_weight=0.0, bundle_item_weight=0.0)
        assert isinstance(model, MultiCBR)
        with torch.no_grad():
            before = model.propagate()
            model.items.add_(1)
            torch.testing.assert_close(model.propagate(), before)

    def test_the_contrast_is_of_fused_vectors_with_themselves_or_a_disturbed_copy(self) -> None:
        shop, rows = small_shop(), torch.arange(30)
        losses = {}
        for contrast in (0.0, 0.5):
            model, data = seen("multicbr", shop, contrast=contrast)
            torch.manual_seed(1)  # the same negatives
            losses[contrast] = require(model, Learner).loss(PAIRS, rows, data)
        assert isinstance(model, MultiCBR)
        tables = zip(model.propagate(), data.user_bundle.entries(rows), strict=True)
        both = sum(contrastive_loss(table[chosen], table[chosen], 0.25) for table, chosen in tables)
        torch.testing.assert_close(losses[0.5] - losses[0.0], 0.5 * both / 2)
        noisy, _ = seen("multicbr", shop, augmentation="noise")
        noisy.train()
        torch.manual_seed(1)
        once = require(noisy, Learner).loss(PAIRS, rows, data)
        assert not torch.equal(once, require(noisy, Learner).loss(PAIRS, rows, data))
        torch.manual_seed(1)
        assert torch.equal(once, require(noisy, Learner).loss(PAIRS, rows, data)), (
            "all chance follows from the seed"
        )


def neighbours(lists: list[list[int]], nodes: int) -> Neighbours:
    edges = Ragged.from_lists(lists)
    return Neighbours(edges.row_of_entry(), edges.values, len(lists), nodes)


def slow_attention(
    tokens_of: list[list[int]], queries: np.ndarray, keys: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    found = np.zeros((len(tokens_of), tokens.shape[1]))
    for row, mine in enumerate(tokens_of):
        if mine:
            share = np.exp(keys[mine] @ queries[row])
            found[row] = share / share.sum() @ tokens[mine]
    return found


def lists_of(matrix: Any) -> list[list[int]]:
    return [matrix[row].indices.tolist() for row in range(matrix.shape[0])]


class TestBundleGT:
    LISTS: ClassVar = [[0, 3, 1], [], [3], [2, 1, 0, 3]]

    def test_weights_of_a_rows_tokens_add_up_to_one(self) -> None:
        near = neighbours(self.LISTS, 5)
        share = product_shares(torch.randn(4, 2) * 50, torch.randn(5, 2), near)
        assert bool((share >= 0).all())
        totals = torch.zeros(4).index_add(0, near.row, share)
        torch.testing.assert_close(totals, torch.tensor([1.0, 0.0, 1.0, 1.0]))

    def test_hidden_tokens_have_no_weight_and_the_others_share_it(self) -> None:
        near = neighbours(self.LISTS, 5)
        kept = torch.tensor([True, False, True, False, True, True, True, False])
        share = product_shares(torch.randn(4, 2), torch.randn(5, 2), near, kept)
        assert share[~kept].tolist() == [0, 0, 0]
        totals = torch.zeros(4).index_add(0, near.row, share)
        torch.testing.assert_close(totals, torch.tensor([1.0, 0.0, 0.0, 1.0]))

    def test_the_gradient_of_attention_is_right(self) -> None:
        near = neighbours(self.LISTS, 5)
        tables = [
            torch.randn(*shape, dtype=torch.double, requires_grad=True) for shape in ((4, 2), (5, 2), (5, 3))
        ]
        assert torch.autograd.gradcheck(
            lambda *given: attend(given[2], given[0], given[1], near, product=True), tables
        )

    def test_scores_are_those_of_a_slow_version(self) -> None:
        model, data = seen("bundlegt", TINY, attention_dim=3)
        assert isinstance(model, BundleGT)
        weight = weights_of(model)
        users_by_bundles, bundles = view(TINY.user_bundle, weight["users"], weight["bundles"])
        users_by_items, items = view(TINY.user_item, weight["users"], weight["items"])

        def asked(name: str, table: np.ndarray) -> np.ndarray:
            return np.asarray(table @ weight[f"{name}.weight"].T)

        query = asked("bundle_query", bundles) / np.sqrt(3)
        strategy = slow_attention(lists_of(TINY.bundle_item), query, asked("item_key", items), items)
        tokens = np.vstack([strategy, items])
        keys = np.vstack([asked("user_bundle_key", strategy), asked("user_item_key", items)])
        owned = [
            [*taken, *(item + len(TINY.bundles) for item in has)]
            for taken, has in zip(lists_of(TINY.user_bundle), lists_of(TINY.user_item), strict=True)
        ]
        query = asked("user_query", users_by_bundles + users_by_items) / np.sqrt(3)
        users = users_by_items + slow_attention(owned, query, keys, tokens)
        expected = users_by_bundles @ bundles.T + users @ strategy.T
        np.testing.assert_allclose(all_scores(model, data), expected, atol=1e-5)

    def test_tokens_are_hidden_while_learning_alone(self) -> None:
        model, _ = seen("bundlegt", small_shop(), attention_dropout=0.5)
        assert isinstance(model, BundleGT)
        calm = model.propagate()[0]
        assert torch.equal(calm, model.propagate()[0])
        model.train()
        assert not torch.equal(calm, model.propagate()[0])


GROUPS, PER_GROUP = 4, 8


def tastes() -> BundleDataset:
    """Four groups of users; each has its own ten items, and its own six bundles of three of these. The last
    bundle of each group is one that nobody has bought."""
    users = GROUPS * PER_GROUP
    chance = np.random.default_rng(0)
    mine = [[user % GROUPS * 10 + int(n) for n in chance.permutation(10)[:6]] for user in range(users)]
    taken = [[user % GROUPS * 6 + int(n) for n in chance.permutation(5)[:3]] for user in range(users)]
    contents = [[bundle // 6 * 10 + int(n) for n in chance.permutation(10)[:3]] for bundle in range(24)]
    return dataset_of(mine, taken, contents, GROUPS * 10)


class TestCoHeat:
    def learned(self, **choices: Any) -> tuple[CoHeat, Interactions]:
        shop = tastes()
        settings = {
            "embedding_dim": 16,
            "learning_rate": 0.02,
            "batch_size": 40,
            "epochs": 25,
            "heating_epochs": 10,
        }
        model, data = seen("coheat", shop, **settings, **choices)
        assert isinstance(model, CoHeat)
        train(model, model.config, SplitPlan("none").divide(shop))
        return model, data

    @pytest.mark.parametrize("bundle_bias", [False, True])
    def test_a_new_bundle_of_a_groups_items_ranks_first_for_that_group(self, bundle_bias: bool) -> None:
        model, data = self.learned(bundle_bias=bundle_bias)
        new = Ragged.from_lists([[group * 10 + n for n in (1, 4, 8)] for group in range(GROUPS)])
        everyone = data.histories(torch.arange(GROUPS * PER_GROUP))
        scores = model.score_new_bundles(everyone, data.bundle_item, new)  # [users, groups]
        group_of = torch.arange(GROUPS * PER_GROUP) % GROUPS
        assert scores.argmax(1).tolist() == group_of.tolist()
        # Those that nobody bought were negatives of their own group while learning, so a few go wrong.
        cold = model.score_bundles(everyone, data.bundle_item)[:, 5::6]
        assert float((cold.argmax(1) == group_of).float().mean()) > 0.8, "by chance it would be a quarter"

    @pytest.mark.parametrize("bundle_bias", [False, True])
    def test_a_bundle_without_sales_scores_as_a_new_one_with_its_items(self, bundle_bias: bool) -> None:
        model, data = self.learned(bundle_bias=bundle_bias)
        unsold = data.bundle_item.rows(torch.tensor([5, 11]))
        everyone = data.histories(torch.arange(GROUPS * PER_GROUP))
        scores = model.score_bundles(everyone, data.bundle_item.append(unsold))
        assert scores.shape == (GROUPS * PER_GROUP, 26)
        torch.testing.assert_close(scores[:, 24:], scores[:, [5, 11]])

    def test_history_weighs_more_the_more_a_bundle_has_sold_and_less_as_it_gets_hot(self) -> None:
        shop = dataset_of([[0]] * 6, [[0], [0, 1], [0, 1], [0], [], [0]], [[0], [0], [0]], 1)
        model, _ = seen("coheat", shop, highest_temperature=8.0, heating_epochs=10)
        assert isinstance(model, CoHeat)
        with torch.no_grad():
            cold = model.history_weights()[:, 0].clone()
            model.epochs_done.fill_(5)
            warm = model.history_weights()[:, 0].clone()
            model.epochs_done.fill_(100)
            hot = model.history_weights()[:, 0].clone()
        sales = np.array([5, 2, 0])
        for found, temperature in ((cold, 1.0), (warm, np.sqrt(8)), (hot, 8.0)):
            np.testing.assert_allclose(found.numpy(), np.tanh(sales / temperature), rtol=1e-5)

    def test_scores_are_the_weighted_sum_of_two_views(self) -> None:
        model, data = seen("coheat", TINY)
        weight = weights_of(model)
        history = view(TINY.user_bundle, weight["history_users"], weight["bundles"])
        users, items = view(TINY.user_item, weight["users"], weight["items"])
        share = np.tanh(TINY.user_bundle.toarray().sum(0))
        by_items = users @ (row_mean(TINY.bundle_item) @ items).T
        expected = share * (history[0] @ history[1].T) + (1 - share) * by_items
        np.testing.assert_allclose(all_scores(model, data), expected, atol=1e-5)

    def test_it_heats_by_epochs_and_goes_on_where_it_was(self, tmp_path: Path) -> None:
        split = SplitPlan("none").divide(tastes())
        states = []
        for folder, stages in ((tmp_path / "whole", (4,)), (tmp_path / "halves", (2, 4))):
            for epochs in stages:
                model, _ = seen("coheat", split.train, batch_size=40, epochs=epochs)
                assert isinstance(model, CoHeat)
                train(model, model.config, split, folder=folder, resume=len(stages) > 1)
            states.append(model.state_dict())
        assert float(states[0]["epochs_done"]) == pytest.approx(4)
        for name, tensor in states[0].items():
            assert torch.equal(tensor, states[1][name]), name

    def test_agreement_is_alignment_and_uniformity(self) -> None:
        one, other = (unit(np.random.default_rng(seed).normal(size=(5, 3))) for seed in (0, 1))

        def uniformity(rows: np.ndarray) -> float:
            apart = ((rows[:, None] - rows[None]) ** 2).sum(2)
            return float(np.log(np.exp(-2 * apart).mean()))

        expected = ((one - other) ** 2).sum(1).mean() + (uniformity(one) + uniformity(other)) / 2
        found = agreement_loss(torch.from_numpy(one), torch.from_numpy(other))
        assert float(found) == pytest.approx(expected)
