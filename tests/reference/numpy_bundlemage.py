"""Section "Proposed Method" of the paper in slow, obvious NumPy: one function for each equation.

Written from the paper alone, so that it can be wrong only in ways of its own. Everything is float64.
Vectors stand for one user or one bundle, and matrices keep the paper's orientation: item embeddings
are columns (E is [d, items]), the affiliation X is [items, bundles], a layer is y = W x + b. Where
the paper divides by a norm that is zero (an empty history, an empty bundle), the result is zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Layers = tuple[Array, Array, Array, Array]
"""(A1, a1, A2, a2) of a two-layered network."""
PairProbabilities = Mapping[tuple[int, int], Array]
"""x̂_b^(u) for each (user, bundle) pair."""


class Parameters(TypedDict):
    """A plain dict of the trainable arrays; d is the embedding size, s of it shared."""

    shared: Array  # [s, items]
    matching_own: Array  # [d - s, items]
    generation_own: Array  # [d - s, items]
    W1: Array  # [d, 2d]
    b1: Array  # [d]
    fnn1: Layers  # [d/2, d], [d/2], [d, d/2], [d]
    W2: Array  # [d/2, d]
    b2: Array  # [d/2]
    W3: Array  # [d/2, d]
    b3: Array  # [d/2]
    fnn2: Layers  # as fnn1


def matching_embeddings(parameters: Parameters) -> Array:
    """Figure `shared`: each e_i^(1) = [shared_i; own_i^(1)]."""
    return np.concatenate([parameters["shared"], parameters["matching_own"]], axis=0)


def generation_embeddings(parameters: Parameters) -> Array:
    """Figure `shared`: each e_i^(2) = [shared_i; own_i^(2)], the same shared half as in E^(1)."""
    return np.concatenate([parameters["shared"], parameters["generation_own"]], axis=0)


def item_rep(E1: Array, v_u: Array) -> Array:
    """eq:item_rep  p_u = (1 / ‖v_u‖₁) E^(1) v_u"""
    return _divide(E1 @ v_u, np.abs(v_u).sum())


def bundle_embeddings(E1: Array, X: Array) -> Array:
    """The matrix E^(1) X D⁻¹ [d, bundles] of eq:bundle_rep, where D_bb = Σ_i X_ib."""
    columns = [_divide(E1 @ X[:, b], X[:, b].sum()) for b in range(X.shape[1])]
    return np.stack(columns, axis=1)


def bundle_rep(E1: Array, X: Array, masked_r_u: Array) -> Array:
    """eq:bundle_rep  q_u = (1 / ‖r̈_u‖₁) E^(1) X D⁻¹ r̈_u"""
    return _divide(bundle_embeddings(E1, X) @ masked_r_u, np.abs(masked_r_u).sum())


def gate(W1: Array, b1: Array, p_u: Array, q_u: Array) -> Array:
    """eq:gate, first line  g_u = σ(W^(1) [p_u; q_u] + b^(1))"""
    gates: Array = sigmoid(W1 @ np.concatenate([p_u, q_u]) + b1)
    return gates


def latent_user(parameters: Parameters, p_u: Array, q_u: Array) -> Array:
    """eq:gate, second line (PreMix)  z_u = FNN^(1)(g_u ⊙ p_u + (1 - g_u) ⊙ q_u)"""
    g_u = gate(parameters["W1"], parameters["b1"], p_u, q_u)
    return feed_forward(parameters["fnn1"], g_u * p_u + (1.0 - g_u) * q_u)


def latent_user_average(parameters: Parameters, p_u: Array, q_u: Array) -> Array:
    """The variant BundleMage-Avg  z_u = FNN^(1)(½ (p_u + q_u))"""
    return feed_forward(parameters["fnn1"], 0.5 * (p_u + q_u))


def matching_prob(E1: Array, X: Array, z_u: Array) -> Array:
    """eq:matching_prob  r̂_u = softmax((E^(1) X D⁻¹)ᵀ z_u)"""
    return softmax(bundle_embeddings(E1, X).T @ z_u)


def incomplete_bundle_rep(E2: Array, masked_x_b: Array) -> Array:
    """eq:incomplete_bundle_rep  z_b = (1 / ‖ẍ_b‖₁) E^(2) ẍ_b"""
    return _divide(E2 @ masked_x_b, np.abs(masked_x_b).sum())


def pair_rep(parameters: Parameters, z_u: Array, z_b: Array) -> Array:
    """eq:pair_rep  z'_u = W^(2) z_u + b^(2),  z'_b = W^(3) z_b + b^(3),  z_b^(u) = FNN^(2)([z'_u; z'_b])"""
    user = parameters["W2"] @ z_u + parameters["b2"]
    bundle = parameters["W3"] @ z_b + parameters["b3"]
    return feed_forward(parameters["fnn2"], np.concatenate([user, bundle]))


def reconstruction(E2: Array, z_bu: Array) -> Array:
    """eq:reconstruction  x̂_b^(u) = softmax(E^(2)ᵀ z_b^(u))"""
    return softmax(E2.T @ z_bu)


def matching_loss(r: Array, r_hat: Array) -> float:
    """eq:matching_loss  L_mat = -(1/N_u) Σ_u (1/‖r_u‖₁) Σ_{b∈Ω(r_u)} r_ub log r̂_ub

    r and r_hat are [users, bundles]. A user without bundles adds nothing but is one of the N_u.
    """
    total = 0.0
    for r_u, r_hat_u in zip(r, r_hat, strict=True):
        if r_u.any():
            total += sum(r_u[b] * np.log(r_hat_u[b]) for b in np.flatnonzero(r_u)) / r_u.sum()
    return float(-total / len(r))


def matching_loss_plain_sum(r: Array, r_hat: Array) -> float:
    """The same without 1/‖r_u‖₁: summed over a user's positives, averaged over users."""
    total = 0.0
    for r_u, r_hat_u in zip(r, r_hat, strict=True):
        total += sum(r_u[b] * np.log(r_hat_u[b]) for b in np.flatnonzero(r_u))
    return float(-total / len(r))


def generation_loss(r: Array, X: Array, x_hat: PairProbabilities) -> float:
    """eq:generation_loss  L_gen = -(1/N_u) Σ_u (1/‖r_u‖₁) Σ_{b∈Ω(r_u)} (1/‖x_b‖₁) Σ_{i∈Ω(x_b)} x_bi log x̂_bi

    r is [users, bundles], X is [items, bundles]; a user without bundles is still one of the N_u.
    """
    total = 0.0
    for u, r_u in enumerate(r):
        for b in np.flatnonzero(r_u):
            x_b = X[:, b]
            if x_b.any():
                total += _log_likelihood(x_b, x_hat[u, int(b)]) / x_b.sum() / r_u.sum()
    return float(-total / len(r))


def generation_loss_plain_sum(pairs: Sequence[tuple[int, int]], X: Array, x_hat: PairProbabilities) -> float:
    """The same without norms: summed over a pair's positives, averaged over (user, bundle) pairs."""
    return float(-sum(_log_likelihood(X[:, b], x_hat[u, b]) for u, b in pairs) / len(pairs))


def recommendation_loss(matching: float, generation: float) -> float:
    """The objective  L_rec = L_mat + L_gen"""
    return matching + generation


def feed_forward(layers: Layers, x: Array) -> Array:
    """FNN: ℝᵈ → ℝ^(d/2) → ℝᵈ, a ReLU between the two layers and nothing after the second."""
    A1, a1, A2, a2 = layers
    output: Array = A2 @ np.maximum(A1 @ x + a1, 0.0) + a2
    return output


def sigmoid(x: Array) -> Array:
    return np.array([1.0 / (1.0 + np.exp(-value)) for value in x])


def softmax(scores: Array) -> Array:
    # Shifting every score alike changes nothing but keeps exp within range.
    powers = np.exp(scores - scores.max())
    probabilities: Array = powers / powers.sum()
    return probabilities


def _log_likelihood(x_b: Array, x_hat_b: Array) -> float:
    return float(sum(x_b[i] * np.log(x_hat_b[i]) for i in np.flatnonzero(x_b)))


def _divide(vector: Array, norm: float) -> Array:
    return vector / norm if norm else np.zeros_like(vector)
