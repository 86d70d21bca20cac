"""The model against the slow NumPy version of every equation, written from the paper alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse

from bundlemage.models.base import Histories, Interactions, Sizes
from bundlemage.models.bundlemage import GENERATION, MATCHING, BundleMage
from bundlemage.models.config import BundleMageConfig
from bundlemage.models.losses import BLOCK_ENTRIES
from bundlemage.models.ragged import Ragged
from bundlemage.recipe import Recipe
from tests.reference import numpy_bundlemage as paper

USERS, ITEMS, BUNDLES, DIM = 6, 11, 5, 8


@pytest.fixture
def matrices() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    user_item = (random.random((USERS, ITEMS)) < 0.3).astype(float)
    user_bundle = (random.random((USERS, BUNDLES)) < 0.5).astype(float)
    bundle_item = (random.random((BUNDLES, ITEMS)) < 0.4).astype(float)
    user_item[0] = 0  # a user known by bundles alone
    user_bundle[:, 0] = 1  # everyone has a bundle: the equations divide by its number
    bundle_item[2], bundle_item[3] = 0, 0
    bundle_item[3, 4] = 1  # an empty bundle, and a bundle of one item
    return {"user_item": user_item, "user_bundle": user_bundle, "bundle_item": bundle_item}


def make(**settings: Any) -> BundleMage:
    torch.manual_seed(0)
    plain = {"dropout": 0.0, "mask_bundles": 0.0, "mask_items": 0.0, "embedding_dim": DIM}
    defaults = {**Recipe.find("youshu/bundlemage-paper").settings, **plain}
    model = BundleMage(BundleMageConfig(**(defaults | settings)), Sizes(USERS, ITEMS, BUNDLES)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.7)
    return model


def parameters_of(model: BundleMage) -> paper.Parameters:
    def array(tensor: torch.Tensor) -> np.ndarray:
        return tensor.detach().numpy()

    def layers(network: Any) -> paper.Layers:
        first, _, second = network
        return array(first.weight), array(first.bias), array(second.weight), array(second.bias)

    weigh = model.premix.weigh
    return {
        "shared": array(model.item_shared).T,
        "matching_own": array(model.item_matching).T,
        "generation_own": array(model.item_generation).T,
        "W1": array(weigh.weight) if weigh else np.zeros((DIM, 2 * DIM)),
        "b1": array(weigh.bias) if weigh else np.zeros(DIM),
        "fnn1": layers(model.premix.transform),
        "W2": array(model.project_user.weight),
        "b2": array(model.project_user.bias),
        "W3": array(model.project_bundle.weight),
        "b3": array(model.project_bundle.bias),
        "fnn2": layers(model.join),
    }


def interactions(matrices: dict[str, np.ndarray]) -> Interactions:
    ragged = {name: Ragged.from_csr(sparse.csr_matrix(matrix)) for name, matrix in matrices.items()}
    return Interactions(
        ragged["user_item"], ragged["user_bundle"], ragged["bundle_item"], matrices["bundle_item"].shape[1]
    )


def learning(matrices: dict[str, np.ndarray], **settings: Any) -> tuple[BundleMage, Interactions]:
    model, data = make(**settings).train(), interactions(matrices)
    model.observe(data)
    return model, data


def paper_user(model: BundleMage, v_u: np.ndarray, r_u: np.ndarray, X: np.ndarray) -> np.ndarray:
    parameters = parameters_of(model)
    E1 = paper.matching_embeddings(parameters)
    p_u, q_u = paper.item_rep(E1, v_u), paper.bundle_rep(E1, X, r_u)
    mix = paper.latent_user if model.config.mixer == "gate" else paper.latent_user_average
    return mix(parameters, p_u, q_u)


def paper_matching(model: BundleMage, matrices: dict[str, np.ndarray]) -> np.ndarray:
    X = matrices["bundle_item"].T
    E1 = paper.matching_embeddings(parameters_of(model))
    return np.stack(
        [
            paper.matching_prob(E1, X, paper_user(model, v_u, r_u, X))
            for v_u, r_u in zip(matrices["user_item"], matrices["user_bundle"], strict=True)
        ]
    )


def paper_generation(
    model: BundleMage, matrices: dict[str, np.ndarray], u: int, x_b: np.ndarray
) -> np.ndarray:
    parameters = parameters_of(model)
    E2 = paper.generation_embeddings(parameters)
    z_u = paper_user(model, matrices["user_item"][u], matrices["user_bundle"][u], matrices["bundle_item"].T)
    return paper.reconstruction(E2, paper.pair_rep(parameters, z_u, paper.incomplete_bundle_rep(E2, x_b)))


VARIANTS: list[dict[str, Any]] = [
    {},
    {"mixer": "average"},
    {"shared_fraction": 0.0},
    {"shared_fraction": 1.0},
    {"shared_fraction": 0.25},
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_matching_probabilities(variant: dict[str, Any], matrices: dict[str, np.ndarray]) -> None:
    model, data = make(**variant).eval(), interactions(matrices)
    with torch.no_grad():
        scores = model.score_bundles(data.histories(torch.arange(USERS)), data.bundle_item)
    np.testing.assert_allclose(scores.softmax(1), paper_matching(model, matrices), rtol=1e-10)


@pytest.mark.parametrize("variant", VARIANTS)
def test_generation_probabilities(variant: dict[str, Any], matrices: dict[str, np.ndarray]) -> None:
    model, data = make(**variant).eval(), interactions(matrices)
    partial = matrices["bundle_item"][[0, 1, 2, 3, 4, 0]]
    with torch.no_grad():
        scores = model.score_items(
            data.histories(torch.arange(USERS)), Ragged.from_csr(sparse.csr_matrix(partial)), data.bundle_item
        )
    expected = [paper_generation(model, matrices, u, x_b) for u, x_b in enumerate(partial)]
    np.testing.assert_allclose(scores.softmax(1), np.stack(expected), rtol=1e-10)


def test_gate(matrices: dict[str, np.ndarray]) -> None:
    model = make()
    parameters = parameters_of(model)
    p, q = np.random.default_rng(0).normal(size=(2, DIM))
    expected = paper.gate(parameters["W1"], parameters["b1"], p, q)
    with torch.no_grad():
        gate = model.premix.gate(torch.tensor(p)[None], torch.tensor(q)[None])[0]
    np.testing.assert_allclose(gate, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("weighting", "expected"), [("mean", paper.matching_loss), ("sum", paper.matching_loss_plain_sum)]
)
def test_matching_loss(weighting: str, expected: Any, matrices: dict[str, np.ndarray]) -> None:
    model, data = learning(matrices, loss_weighting=weighting)
    loss = model.loss(MATCHING, torch.arange(USERS), data)
    by_paper = expected(matrices["user_bundle"], paper_matching(model, matrices))
    assert loss.item() == pytest.approx(by_paper, rel=1e-10)


@pytest.mark.parametrize("weighting", ["mean", "sum"])
def test_generation_loss(weighting: str, matrices: dict[str, np.ndarray]) -> None:
    model, data = learning(matrices, loss_weighting=weighting)
    pairs = [(int(u), int(b)) for u, b in np.argwhere(matrices["user_bundle"])]
    predicted = {(u, b): paper_generation(model, matrices, u, matrices["bundle_item"][b]) for u, b in pairs}
    loss = model.loss(GENERATION, torch.arange(len(pairs)), data)
    X = matrices["bundle_item"].T
    if weighting == "mean":
        by_paper = paper.generation_loss(matrices["user_bundle"], X, predicted)
    else:
        by_paper = paper.generation_loss_plain_sum(pairs, X, predicted)
    assert loss.item() == pytest.approx(by_paper, rel=1e-10)


def test_a_hidden_target_is_out_of_its_owners_history_alone(matrices: dict[str, np.ndarray]) -> None:
    model, data = learning(matrices, hide_target=True)
    pairs = [(int(u), int(b)) for u, b in np.argwhere(matrices["user_bundle"])]
    predicted = {}
    for u, b in pairs:
        without = {**matrices, "user_bundle": matrices["user_bundle"].copy()}
        without["user_bundle"][u, b] = 0
        predicted[u, b] = paper_generation(model, without, u, matrices["bundle_item"][b])
    loss = model.loss(GENERATION, torch.arange(len(pairs)), data)
    by_paper = paper.generation_loss_plain_sum(pairs, matrices["bundle_item"].T, predicted)
    assert loss.item() == pytest.approx(by_paper, rel=1e-10)


@pytest.mark.parametrize("phase", [0, 1])
def test_gradients_match_finite_differences(phase: int, matrices: dict[str, np.ndarray]) -> None:
    """The loss finishes its gradient by hand, so it is checked against the loss itself."""
    model, data = learning(matrices)
    rows = torch.arange(USERS)

    def loss() -> torch.Tensor:
        return model.loss(model.phases[phase], rows, data)

    torch.autograd.backward(loss())
    random = np.random.default_rng(1)
    for name, parameter in model.named_parameters():
        if parameter.grad is None:  # the generation network plays no part in matching
            assert phase == 0
            assert name.startswith(("item_generation", "project", "join"))
            continue
        place = tuple(int(random.integers(size)) for size in parameter.shape)
        with torch.no_grad():
            value = parameter[place].item()
            parameter[place] = value + 1e-6
            above = loss().item()
            parameter[place] = value - 1e-6
            below = loss().item()
            parameter[place] = value
        numeric = (above - below) / 2e-6
        assert parameter.grad[place].item() == pytest.approx(numeric, rel=1e-4, abs=1e-7), name


def test_blocks_change_nothing(matrices: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = learning(matrices)
    whole = model.loss(GENERATION, torch.arange(8), data)
    torch.autograd.backward(whole)
    expected = model.item_shared.grad
    assert expected is not None
    model.zero_grad()
    monkeypatch.setitem(BLOCK_ENTRIES, "cpu", 2 * ITEMS)
    monkeypatch.setattr("bundlemage.models.losses.FEWEST_ROWS", 1)
    blocked = model.loss(GENERATION, torch.arange(8), data)
    torch.autograd.backward(blocked)
    assert blocked.item() == pytest.approx(whole.item(), rel=1e-12)
    assert model.item_shared.grad is not None
    torch.testing.assert_close(model.item_shared.grad, expected)


@pytest.mark.parametrize("weighting", ["mean", "sum"])
@pytest.mark.parametrize("hide_target", [False, True])
def test_a_sample_of_the_whole_catalogue_is_the_paper_too(
    weighting: str, hide_target: bool, matrices: dict[str, np.ndarray]
) -> None:
    settings: dict[str, Any] = {"loss_weighting": weighting, "hide_target": hide_target}
    model, data = learning(matrices, sampled_softmax=ITEMS, **settings)
    matching = paper_matching(model, matrices)
    r, X = matrices["user_bundle"], matrices["bundle_item"].T
    of_matching = paper.matching_loss if weighting == "mean" else paper.matching_loss_plain_sum
    loss = model.loss(MATCHING, torch.arange(USERS), data)
    assert loss.item() == pytest.approx(of_matching(r, matching), rel=1e-10)
    pairs = [(int(u), int(b)) for u, b in np.argwhere(r)]
    predicted = {}
    for u, b in pairs:
        history = {**matrices, "user_bundle": r.copy()}
        history["user_bundle"][u, b] = 0 if hide_target else 1
        predicted[u, b] = paper_generation(model, history, u, matrices["bundle_item"][b])
    loss = model.loss(GENERATION, torch.arange(len(pairs)), data)
    if weighting == "mean":
        by_paper = paper.generation_loss(r, X, predicted)
    else:
        by_paper = paper.generation_loss_plain_sum(pairs, X, predicted)
    assert loss.item() == pytest.approx(by_paper, rel=1e-10)


@pytest.mark.parametrize("sampled", [0, ITEMS])
def test_a_popularity_bias_is_the_logarithm_of_sales(sampled: int, matrices: dict[str, np.ndarray]) -> None:
    """Not of the paper: it multiplies each bundle's probability by one more than its sales. While learning,
    the user's own purchase is not among them."""
    model, data = learning(matrices, popularity_weight=1.0, fit_popularity=False, sampled_softmax=sampled)
    sales, taken = matrices["user_bundle"].sum(0), matrices["user_bundle"]
    likely = paper_matching(model, matrices) * (1 + sales - taken)
    likely /= likely.sum(1, keepdims=True)
    loss = model.loss(MATCHING, torch.arange(USERS), data)
    by_paper = paper.matching_loss_plain_sum(matrices["user_bundle"], likely)
    assert loss.item() == pytest.approx(by_paper, rel=1e-6)  # the logarithm is kept in float32
    model.double().eval()
    likely = paper_matching(model, matrices) * (1 + sales)
    likely /= likely.sum(1, keepdims=True)
    with torch.no_grad():
        scores = model.score_bundles(data.histories(torch.arange(USERS)), data.bundle_item)
    np.testing.assert_allclose(scores.softmax(1), likely, rtol=1e-5)


def test_empty_histories_and_bundles_give_finite_scores(matrices: dict[str, np.ndarray]) -> None:
    model, data = make().eval(), interactions(matrices)
    nobody = Histories(Ragged.from_lists([[], []]), Ragged.from_lists([[], [2]]))
    with torch.no_grad():
        assert model.score_bundles(nobody, data.bundle_item).isfinite().all()
        assert model.score_items(nobody, Ragged.from_lists([[], [1]]), data.bundle_item).isfinite().all()
