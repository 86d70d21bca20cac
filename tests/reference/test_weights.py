"""Weights of events in means and losses, against slow NumPy written from their docstrings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bundlemage.models.base import Interactions
from bundlemage.models.bundlemage import BundleMage
from bundlemage.models.losses import Prior, fitted_weight, multinomial_loss
from bundlemage.models.ragged import Hidden, Ragged, chances, mean_of_rows
from bundlemage.models.sampled import Drawn, sampled_loss
from tests.reference import numpy_bundlemage as paper
from tests.reference.test_beyond_the_paper import (
    BUNDLES,
    DIM,
    USERS,
    Array,
    array,
    cosine,
    generation_scores,
    made,
    mixed,
    rows,
)

ITEM_WEIGHTS = [1.0, 0.2, 3.0, 1.0, 0.5, 0.2, 1.0, 2.0, 0.1, 4.0, 0.7, 1.0, 1.5]
BUNDLE_WEIGHTS = [1.0, 0.25, 2.0, 0.5, 1.0, 0.3, 1.0, 1.0, 5.0]


@pytest.fixture
def data() -> Interactions:
    user_item = [[0, 1, 4], [2], [], [5, 6, 7, 8], [1, 9], [3], [10, 11]]
    user_bundle = [[0, 1], [1], [2, 4], [], [0], [0, 3], [4]]
    bundle_item = [[0, 1, 2], [3, 4], [5], [6, 7, 8, 9], [10, 11, 0], [2, 5]]
    owned, bought, inside = map(Ragged.from_lists, (user_item, user_bundle, bundle_item))
    owned = replace(owned, weights=torch.tensor(ITEM_WEIGHTS))
    return Interactions(owned, replace(bought, weights=torch.tensor(BUNDLE_WEIGHTS)), inside, 12)


def weights_of(ragged: Ragged) -> list[Array]:
    assert ragged.weights is not None
    parts = np.split(ragged.weights.numpy().astype(np.float64), ragged.offsets[1:-1].tolist())
    return list(parts)


def mean(vectors: Array, chosen: list[int], weights: Any) -> Array:
    """Σ w·v / Σ w; zeros for nothing."""
    total = np.zeros(vectors.shape[1])
    for value, weight in zip(chosen, weights, strict=True):
        total += weight * vectors[value]
    return total / sum(weights) if len(weights) else total


class TestMeans:
    def test_a_mean_is_by_weight(self, data: Interactions) -> None:
        table = torch.randn(12, 5, dtype=torch.float64)
        means = array(data.user_item.mean_of(table))
        for row, chosen in enumerate(rows(data.user_item)):
            expected = mean(array(table), chosen, weights_of(data.user_item)[row])
            np.testing.assert_allclose(means[row], expected, atol=1e-12)

    @pytest.mark.parametrize("ratio", [0.0, 0.4])
    def test_hidden_entries_take_their_weights_with_them(self, ratio: float, data: Interactions) -> None:
        table = torch.randn(BUNDLES, 5, dtype=torch.float64, requires_grad=True)
        index, without = torch.tensor([5, 0, 2, 3, 0]), torch.tensor([3, 1, 0, 0, 5])
        torch.manual_seed(3)
        means, sums = mean_of_rows(data.user_bundle, index, table, Hidden(ratio), without)
        torch.manual_seed(3)
        seed = torch.randint(2**31, (1,)) if ratio else torch.zeros(1, dtype=torch.int64)
        slope = torch.randn(5, 5, dtype=torch.float64)
        means.backward(slope)  # type: ignore[no-untyped-call]
        expected_slope = np.zeros((BUNDLES, 5))
        for place, user in enumerate(index.tolist()):
            kept, weights = [], []
            for value, weight in zip(
                rows(data.user_bundle)[user], weights_of(data.user_bundle)[user], strict=True
            ):
                chance = float(chances(seed, torch.tensor(place), torch.tensor(value)))
                if value != without[place] and chance >= ratio:
                    kept.append(value)
                    weights.append(weight)
            np.testing.assert_allclose(array(means)[place], mean(array(table), kept, weights), atol=1e-12)
            assert float(sums[place]) == pytest.approx(sum(weights))
            for value, weight in zip(kept, weights, strict=True):
                expected_slope[value] += weight / sum(weights) * slope[place].numpy()
        assert table.grad is not None
        np.testing.assert_allclose(table.grad.numpy(), expected_slope, atol=1e-7)


class TestLosses:
    def loss(
        self, z: Array, table: Array, positives: Ragged, row_weights: Array, prior: Prior | None
    ) -> float:
        """The mean over rows of −weight · Σ_p w_p · log softmax_p."""
        total = 0.0
        for row, chosen in enumerate(rows(positives)):
            for value, weight in zip(chosen, weights_of(positives)[row], strict=True):
                scores = table @ z[row]
                if prior is not None:
                    scores = scores + array(prior.bias)
                    own = scores.copy()
                    own[chosen] += array(prior.shift)[chosen]
                    scores = own
                total -= row_weights[row] * weight * np.log(paper.softmax(scores)[value])
        return total / len(z)

    @pytest.mark.parametrize("with_prior", [False, True])
    def test_each_positive_counts_by_its_weight(self, with_prior: bool, data: Interactions) -> None:
        random = torch.Generator().manual_seed(0)
        z, table = (torch.randn(n, 4, dtype=torch.float64, generator=random) for n in (USERS, BUNDLES))
        row_weights = torch.rand(USERS, dtype=torch.float64, generator=random)
        positives = data.user_bundle
        prior = None
        if with_prior:
            counts = positives.column_sums(BUNDLES).double()
            own = counts / positives.counts(BUNDLES).clamp(min=1)
            prior = Prior.of_counts(counts, torch.tensor(0.8, dtype=torch.float64), own)
        z.requires_grad_(), table.requires_grad_()
        found = multinomial_loss(z, table, positives, row_weights, prior=prior)
        expected = self.loss(array(z), array(table), positives, array(row_weights), prior)
        assert found.item() == pytest.approx(expected, rel=1e-6)
        slopes = torch.autograd.grad(found, (z, table))
        everything = Drawn(torch.arange(BUNDLES), torch.zeros(BUNDLES, dtype=torch.float64))
        sampled = sampled_loss(z, table, positives, everything, row_weights, prior)
        assert sampled.item() == pytest.approx(expected, rel=1e-6)
        for one, other in zip(slopes, torch.autograd.grad(sampled, (z, table)), strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), atol=1e-7)

    def test_rows_may_be_chosen(self, data: Interactions) -> None:
        z, table = torch.randn(3, 4, dtype=torch.float64), torch.randn(BUNDLES, 4, dtype=torch.float64)
        index = torch.tensor([5, 3, 0])
        found = multinomial_loss(z, table, data.user_bundle, torch.ones(3).double(), index)
        chosen = data.user_bundle.rows(index)
        assert found.item() == pytest.approx(self.loss(array(z), array(table), chosen, np.ones(3), None))


class TestTheModel:
    def vector(self, model: BundleMage, data: Interactions, user: int, without: int | None = None) -> Array:
        items = array(model.matching_embeddings())
        bundles = np.stack([items[inside].mean(0) for inside in rows(data.bundle_item)])
        owned = [
            (bundle, weight)
            for bundle, weight in zip(
                rows(data.user_bundle)[user], weights_of(data.user_bundle)[user], strict=True
            )
            if bundle != without
        ]
        q = mean(bundles, [bundle for bundle, _ in owned], [weight for _, weight in owned])
        p = mean(items, rows(data.user_item)[user], weights_of(data.user_item)[user])
        return mixed(model.premix, p, q, True)

    def sales(self, data: Interactions) -> tuple[Array, Array]:
        """The sum and the mean of the weights of each bundle's sales."""
        sums, counts = np.zeros(BUNDLES), np.zeros(BUNDLES)
        for chosen, weights in zip(rows(data.user_bundle), weights_of(data.user_bundle), strict=True):
            for bundle, weight in zip(chosen, weights, strict=True):
                sums[bundle] += weight
                counts[bundle] += 1
        return sums, sums / np.maximum(counts, 1)

    def test_matching_loss(self, data: Interactions) -> None:
        model = made(data).train()
        items = array(model.matching_embeddings())
        bundles = [items[inside].mean(0) for inside in rows(data.bundle_item)]
        (sales, own), weight, total = self.sales(data), float(model.popularity_weights[0]), 0.0
        assert weight == pytest.approx(fitted_weight(torch.tensor(sales), torch.tensor(own)), rel=1e-6)
        for user, owned in enumerate(rows(data.user_bundle)):
            z = self.vector(model, data, user)
            scores = np.array([cosine(z, vector) for vector in bundles]) / model.config.temperature
            scores += weight * np.log1p(sales)
            left = np.maximum(sales - own, 0)[owned]
            scores[owned] += weight * (np.log1p(left) - np.log1p(sales[owned]))
            total -= (weights_of(data.user_bundle)[user] * np.log(paper.softmax(scores)[owned])).sum()
        loss = model.loss(model.phases[0], torch.arange(USERS), data)
        assert loss.item() == pytest.approx(total / USERS, rel=1e-5)

    def test_generation_loss(self, data: Interactions) -> None:
        """The loss of a pair is multiplied by the weight of the pair."""
        model = made(data).train()
        for pair, user, bundle in ((5, 4, 0), (6, 5, 0), (8, 6, 4)):
            inside = rows(data.bundle_item)[bundle]
            z = self.vector(model, data, user, without=bundle)
            scores = generation_scores(model, data, z, inside)
            counts = np.bincount(data.bundle_item.values, minlength=12)
            weight = float(model.popularity_weights[1])
            scores[inside] += weight * (np.log1p(counts[inside] - 1) - np.log1p(counts[inside]))
            expected = -model.config.generation_weight * np.log(paper.softmax(scores)[inside]).sum()
            loss = model.loss(model.phases[1], torch.tensor([pair]), data)
            assert loss.item() == pytest.approx(BUNDLE_WEIGHTS[pair] * expected, rel=1e-5)

    @pytest.mark.parametrize("task", [0, 1])
    def test_a_sample_of_everything_is_the_whole(self, task: int, data: Interactions) -> None:
        whole, sampled = made(data), made(data, sampled_softmax=1000)
        places = torch.arange(USERS if task == 0 else 9)
        losses = [model.loss(model.phases[task], places, data).item() for model in (whole, sampled)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-6)

    def test_mean_weighting_divides_by_the_weights(self, data: Interactions) -> None:
        model = made(data, loss_weighting="mean")
        weights = model.row_weights(torch.arange(USERS), data)
        sums = [part.sum() or 1.0 for part in weights_of(data.user_bundle)]
        np.testing.assert_allclose(array(weights), 1 / np.array(sums), rtol=1e-6)

    def test_answers_use_the_same_means(self, data: Interactions) -> None:
        model = made(data).eval()
        with torch.no_grad():
            encoded = model.encoded(data.histories(torch.arange(USERS)), data.bundle_item)
        for user in range(USERS):
            np.testing.assert_allclose(array(encoded)[user], self.vector(model, data, user), atol=1e-6)
        assert encoded.shape == (USERS, DIM)
