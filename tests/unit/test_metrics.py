"""Ranking metrics against scikit-learn, ranx, and a count over every order of tied candidates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from bundlemage.evaluation import KINDS, ranking_metrics
from bundlemage.models.ragged import Ragged
from tests.reference.slow_metrics import AT_K, expected_at_k


def metrics(scores: np.ndarray, relevant: np.ndarray, ks: tuple[int, ...]) -> dict[str, np.ndarray]:
    positives = Ragged.from_lists([np.flatnonzero(row).tolist() for row in relevant])
    found = ranking_metrics(torch.tensor(scores), positives, ks, KINDS)
    return {name: values.numpy() for name, values in found.items()}


@pytest.mark.parametrize("decimals", [0, 1, 8])  # 0 and 1 make many ties
@pytest.mark.parametrize("positives", [1, 4])
def test_ndcg_equals_scikit_learn(decimals: int, positives: int) -> None:
    random = np.random.default_rng(decimals * 10 + positives)
    scores = random.normal(size=(200, 40)).round(decimals)
    relevant = np.zeros((200, 40), bool)
    for row in relevant:
        row[random.choice(40, positives, replace=False)] = True
    for k in (1, 5, 20, 40):
        ours = metrics(scores, relevant, (k,))[f"ndcg@{k}"]
        theirs = [ndcg_score(r[None], s[None], k=k) for r, s in zip(relevant, scores, strict=True)]
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


@pytest.mark.filterwarnings("ignore")  # numba warns of ranx's casts
def test_200_random_cases_equal_ranx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # compiling ranx takes longer than all cases do
    from ranx import Qrels, Run, evaluate

    random = np.random.default_rng(5)
    scores, relevant = random.normal(size=(200, 60)), np.zeros((200, 60), bool)
    for row in relevant:
        row[random.choice(60, random.integers(1, 8), replace=False)] = True
    names = {
        "recall": "recall",
        "ndcg": "ndcg",
        "mrr": "mrr",
        "hit": "hit_rate",
        "precision": "precision",
        "map": "map",
    }
    assert names.keys() == set(KINDS)
    wanted = {str(n): {f"d{each}": 1 for each in np.flatnonzero(row)} for n, row in enumerate(relevant)}
    run = Run({str(n): {f"d{each}": float(x) for each, x in enumerate(row)} for n, row in enumerate(scores)})
    ks = (1, 5, 20)
    evaluate(Qrels(wanted), run, [f"{theirs}@{k}" for theirs in names.values() for k in ks])
    ours = metrics(scores, relevant, ks)
    for kind, theirs in names.items():
        for k in ks:
            expected = [run.scores[f"{theirs}@{k}"][str(n)] for n in range(200)]
            np.testing.assert_allclose(ours[f"{kind}@{k}"], expected, rtol=1e-9, err_msg=f"{kind}@{k}")


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=6).filter(
        lambda rows: any(relevant for _, relevant in rows)
    ),
    st.integers(1, 7),
)
@settings(max_examples=200, deadline=None)
def test_ties_count_as_their_expectation(rows: list[tuple[int, bool]], k: int) -> None:
    scores, relevant = [float(score) for score, _ in rows], [flag for _, flag in rows]
    ours = metrics(np.array([scores]), np.array([relevant]), (k,))
    for kind in KINDS:
        assert ours[f"{kind}@{k}"][0] == pytest.approx(expected_at_k(kind, scores, relevant, k)), kind


@pytest.mark.parametrize("positives", [1, 5])
def test_many_ties_equal_the_mean_over_random_orders(positives: int) -> None:
    random = np.random.default_rng(positives)
    scores, relevant = random.integers(4, size=30).astype(float), np.zeros(30, bool)
    relevant[random.choice(30, positives, replace=False)] = True
    ours = metrics(scores[None], relevant[None], (3, 10))
    orders = [np.lexsort((random.random(30), -scores)).tolist() for _ in range(4000)]
    for kind, slow in AT_K.items():
        for k in (3, 10):
            each = [slow(order, relevant.tolist(), k) for order in orders]
            error = np.std(each) / len(each) ** 0.5
            assert ours[f"{kind}@{k}"][0] == pytest.approx(np.mean(each), abs=5 * error + 1e-12), kind


@pytest.mark.parametrize("positives", [1, 5])
def test_a_constant_scorer_scores_like_chance(positives: int) -> None:
    relevant = np.zeros((1, 100), bool)
    relevant[0, :positives] = True
    ours = metrics(np.zeros((1, 100)), relevant, (5, 20))
    assert ours["recall@5"][0] == pytest.approx(0.05)
    assert ours["recall@20"][0] == pytest.approx(0.20)
    random = np.random.default_rng(0)
    drawn = metrics(random.random((20_000, 100)), np.repeat(relevant, 20_000, 0), (5,))
    assert ours["ndcg@5"][0] == pytest.approx(drawn["ndcg@5"].mean(), abs=0.003)


def test_a_candidate_of_minus_infinity_is_no_candidate() -> None:
    scores = np.array([[1.0, -np.inf, 0.5, -np.inf]])
    assert metrics(scores, np.array([[False, False, True, False]]), (1, 2))["recall@2"][0] == 1


def test_a_score_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="nan or infinite"):
        metrics(np.array([[np.nan, 1.0]]), np.array([[True, False]]), (1,))


def test_a_case_without_positives_has_no_metric() -> None:
    found = metrics(np.zeros((2, 3)), np.array([[False] * 3, [True, False, False]]), (1,))
    for kind in KINDS:
        assert np.isnan(found[f"{kind}@1"][0]), kind
        assert found[f"{kind}@1"][1] == pytest.approx(1 / 3), kind
