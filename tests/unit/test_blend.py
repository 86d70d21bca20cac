"""A blend scores by the weighted sum of its members' scores, with weights of its own for each task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from bundlemage import Recommender, SplitPlan
from bundlemage.errors import UnsupportedError
from bundlemage.models.base import (
    Completer,
    Embedder,
    Gated,
    Histories,
    Indexable,
    Interactions,
    Matcher,
    Model,
    SalesScorer,
    Sizes,
    can,
    require,
)
from bundlemage.models.blend import Blend
from bundlemage.models.ragged import Ragged
from bundlemage.models.registry import build, make_config
from bundlemage.training.loop import train
from tests.small_shop import PLAIN, QUICK, small_shop

Array = npt.NDArray[np.float64]
SPLIT = SplitPlan("none").divide(small_shop())
DATA = Interactions.of(SPLIT.train, torch.device("cpu"))
CONTENTS = DATA.bundle_item
SETTINGS: dict[str, dict[str, Any]] = {
    "ours": {"model": "bundlemage", **QUICK, **PLAIN, "epochs": 1},
    "ease": {"model": "ease"},
    "knn": {"model": "item-knn"},
    "popular": {"model": "popularity"},
    "together": {"model": "co-occurrence"},
    "ease items": {"model": "ease-items"},
    "indexable": {"model": "br", "epochs": 1, "embedding_dim": 8, "batch_size": 512},
}


@pytest.fixture(scope="module")
def known() -> dict[str, Model]:
    """Fitted models."""
    found = {}
    for key, given in SETTINGS.items():
        settings = {"device": "cpu", **given}
        name = settings.pop("model")
        config = make_config(name, settings)
        model = build(name, config, Sizes.of(SPLIT.dataset))
        train(model, config, SPLIT)
        found[key] = model
    return found


def people(*rows: int) -> Histories:
    return DATA.histories(torch.tensor(rows or range(20)))


def summed(members: Sequence[Model], weights: Sequence[float], method: str, *arguments: Any) -> Array:
    """The weighted sum of the members' results, in NumPy."""
    total: Array = np.zeros(())
    for member, weight in zip(members, weights, strict=True):
        if weight:
            total = total + weight * getattr(member, method)(*arguments).double().numpy()
    return total


def is_close(found: torch.Tensor, expected: Array) -> bool:
    scale = max(1.0, float(np.abs(expected).max()))
    return found.shape == expected.shape and bool(
        np.allclose(found.double().numpy(), expected, atol=2e-5 * scale)
    )


BLENDS = {
    "two that do both": (("ours", "popular"), (0.3, 2.0), (1.5, 0.01)),
    "one for each task": (("ours", "ease"), (0.0, 1.0), (1.0, 0.0)),
    "closed forms": (("ease", "together", "knn", "ease items"), (2.0, 0.0, 0.5, 0.0), (0.0, 3.0, 0.0, 0.7)),
    "one without weight": (("popular", "together"), (1.0, 0.0), (1.0, 0.0)),
    "ours with a closed form of each task": (
        ("ours", "ease", "together"),
        (0.5, 40.0, 0.0),
        (0.25, 0.0, 2.0),
    ),
}


@pytest.fixture(params=BLENDS)
def blend(request: pytest.FixtureRequest, known: dict[str, Model]) -> Blend:
    names, matching, generation = BLENDS[request.param]
    return Blend([known[name] for name in names], matching, generation, "Blend")


class TestSums:
    @torch.inference_mode()
    def test_bundles(self, blend: Blend) -> None:
        members: list[Any] = list(blend.members)
        users, some = people(), torch.arange(6).repeat(20, 1) * 3
        new = Ragged.from_lists([[1, 5, 7], [2], []])
        for method, arguments in {
            "score_bundles": (users, CONTENTS),
            "score_candidates": (users, some, CONTENTS),
            "score_new_bundles": (users, CONTENTS, new),
        }.items():
            expected = summed(members, blend.matching, method, *arguments)
            assert is_close(getattr(blend, method)(*arguments), expected), method
        scores = blend.score_bundles(users, CONTENTS)
        later = blend.score_bundles(users, CONTENTS.append(new))
        assert torch.allclose(later[:, : len(CONTENTS)], scores, atol=1e-4)
        assert torch.allclose(
            blend.score_candidates(users, some, CONTENTS), scores.gather(1, some), rtol=1e-4, atol=1e-4
        )

    @torch.inference_mode()
    def test_items(self, blend: Blend) -> None:
        members: list[Any] = list(blend.members)
        users, some = people(), torch.arange(6).repeat(20, 1) * 3
        partial = Ragged.from_lists([[row % 7, 9] if row % 3 else [] for row in range(20)])
        for method, arguments in {
            "score_items": (users, partial, CONTENTS),
            "score_item_candidates": (users, partial, some, CONTENTS),
        }.items():
            expected = summed(members, blend.generation, method, *arguments)
            assert is_close(getattr(blend, method)(*arguments), expected), method

    @torch.inference_mode()
    def test_explanations_are_scores_less_their_mean(self, blend: Blend) -> None:
        """A user may occur in several rows, and in another order."""
        users = people()
        which, chosen = torch.tensor([4, 0, 4, 19]), torch.tensor([1, 0, 5, 30])
        among = len(CONTENTS)
        encoded = blend.encoded(users, CONTENTS)
        scores = summed(list(blend.members), blend.matching, "score_bundles", users, CONTENTS)  # type: ignore[arg-type]
        rows = which.numpy()
        expected = scores[rows, chosen.numpy()] - scores.mean(1)[rows]
        assert is_close(blend.bundle_fit(encoded, which, chosen, CONTENTS, among), expected)
        partial = Ragged.from_lists([[1], [2, 3], [], [8]])
        picked = people(*rows.tolist())
        scores = summed(list(blend.members), blend.generation, "score_items", picked, partial, CONTENTS)  # type: ignore[arg-type]
        expected = scores[np.arange(4), chosen.numpy()] - scores.mean(1)
        assert is_close(blend.item_fit(encoded, which, partial, chosen, CONTENTS), expected)

    @torch.inference_mode()
    def test_vectors_have_the_mean_cosine(self, blend: Blend) -> None:
        embedders = [member for member in blend.members if can(member, Embedder)]  # type: ignore[arg-type]
        assert blend.does(Embedder) == bool(embedders)
        if not embedders:
            with pytest.raises(UnsupportedError, match="similar"):
                require(blend, Embedder)
            return

        def cosines(vectors: torch.Tensor) -> Array:
            table = vectors.double().numpy()
            table = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
            return np.asarray(table @ table.T)

        for method, arguments in (("vectors_of_items", ()), ("vectors_of_bundles", (CONTENTS,))):
            each = [getattr(member, method)(*arguments) for member in embedders]
            filled = np.flatnonzero(np.all([own.norm(dim=1).numpy() > 0 for own in each], axis=0))
            expected = np.mean([cosines(own) for own in each], axis=0)[np.ix_(filled, filled)]
            found = cosines(getattr(blend, method)(*arguments))[np.ix_(filled, filled)]
            assert np.allclose(found, expected, atol=1e-5)

    @torch.inference_mode()
    def test_factors_of_an_index_multiply_to_the_scores(self, known: dict[str, Model]) -> None:
        names = ("indexable", "ours", "together")
        blend = Blend([known[name] for name in names], (0.3, 2.0, 0.0), (0.0, 0.0, 1.0), "Blend")
        assert can(blend, Indexable)
        users = people()
        factors = blend.factors_of_bundles(CONTENTS)
        expected = summed(list(blend.members), blend.matching, "score_bundles", users, CONTENTS)  # type: ignore[arg-type]
        found = blend.factors_of_users(users, CONTENTS) @ factors.vectors.T + factors.bias
        assert is_close(found, expected)
        later = blend.factors_of_bundles(CONTENTS, 30)
        assert torch.equal(later.vectors, factors.vectors[30:])
        assert torch.equal(later.bias, factors.bias[30:])

    @torch.inference_mode()
    def test_sales_count_with_the_weight_of_the_member(self, known: dict[str, Model]) -> None:
        ours = require(known["ours"], SalesScorer)
        blend = Blend([ours, known["ease"]], (0.25, 3.0), (1.0, 0.0), "Blend")
        assert can(blend, SalesScorer)
        sales = torch.tensor([0.0, 1.0, 20.0])
        assert torch.allclose(blend.popularity_bias(sales), 0.25 * ours.popularity_bias(sales))
        assert torch.equal(blend.known_sales(), ours.known_sales())
        new, users = Ragged.from_lists([[1, 5, 7]]), people()
        found = []
        for assumed in (1.0, 30.0):
            blend.assume_sales(assumed)
            found.append(blend.score_new_bundles(users, CONTENTS, new))
        gain = 0.25 * (ours.popularity_bias(torch.tensor(30.0)) - ours.popularity_bias(torch.tensor(1.0)))
        assert gain > 0.01
        assert torch.allclose(found[1] - found[0], gain.expand(20, 1), atol=1e-4)


class TestWhatItCanDo:
    def test_it_has_the_tasks_of_its_members(self, blend: Blend) -> None:
        assert can(blend, Matcher)
        assert can(blend, Completer)
        gated = any(can(blend.member(number), Gated) for number, _ in blend.factors_for(Matcher))
        assert can(blend, Gated) == gated

    def test_without_a_weight_there_is_no_task(self, known: dict[str, Model]) -> None:
        matches = Blend([known["ease"], known["knn"]], (1.0, 1.0), (0.0, 0.0), "Two that match")
        completes = Blend([known["together"]], (0.0,), (1.0,), "One that completes")
        with pytest.raises(UnsupportedError, match=r"Two that match .* does not complete bundles"):
            require(matches, Completer)
        with pytest.raises(UnsupportedError, match=r"One that completes .* does not recommend bundles"):
            require(completes, Matcher)
        assert can(matches, Matcher)
        assert can(completes, Completer)
        for part in (SalesScorer, Gated, Embedder, Indexable):
            with pytest.raises(UnsupportedError, match="Two that match"):
                require(matches, part)

    def test_a_weight_for_a_task_that_the_member_does_not_have(self, known: dict[str, Model]) -> None:
        wrong = Blend([known["ease"]], (1.0,), (1.0,), "EASE")
        with pytest.raises(UnsupportedError):
            require(wrong, Completer)

    def test_it_is_indexable_only_if_every_member_that_matches_is(self, known: dict[str, Model]) -> None:
        both = [known["ours"], known["ease"]]
        assert can(Blend(both, (1.0, 0.0), (1.0, 0.0), "Ours"), Indexable)
        assert not can(Blend(both, (1.0, 0.1), (1.0, 0.0), "Both"), Indexable)

    def test_one_that_needs_known_users_makes_it_need_them(self, known: dict[str, Model]) -> None:
        config = make_config("bpr", {"epochs": 1, "device": "cpu"})
        bpr = build("bpr", config, Sizes.of(SPLIT.dataset))
        assert Blend([known["ours"], known["ease"]], (1, 1), (1, 0), "Both").knows_new_users
        assert not Blend([known["ours"], bpr], (1, 1), (1, 0), "Both").knows_new_users

    @torch.inference_mode()
    def test_the_gate_is_that_of_the_members_that_have_one(self, known: dict[str, Model]) -> None:
        blend = Blend([known["ease"], known["ours"]], (1.0, 0.5), (0.0, 1.0), "Both")
        users = people()
        assert torch.allclose(
            blend.item_share(users, CONTENTS), require(known["ours"], Gated).item_share(users, CONTENTS)
        )


def test_equal_answers_as_the_sum_through_the_recommender(known: dict[str, Model]) -> None:
    """A recommender with a blend ranks by the weighted sum."""
    fitted = Recommender(
        "auto",
        **QUICK,
        parts=[
            {"model": "ease", "matching": 0.4, "matching_scale": 30.0},
            {"model": "popularity", "matching": 0.6, "matching_scale": 0.5},
            {"model": "co-occurrence", "generation": 1.0},
        ],
    ).fit(SPLIT, progress=False, calibrate=False)
    users = people(3)
    with torch.inference_mode():
        scores = summed(
            [known["ease"], known["popular"]], (0.4 * 30.0, 0.6 * 0.5), "score_bundles", users, CONTENTS
        )[0]
    best = [SPLIT.dataset.bundles[int(place)] for place in np.argsort(-scores)[:6]]
    user = SPLIT.dataset.users[3]
    assert [answer.id for answer in fitted.recommend(user, 6, owned="show", stock="show")] == best
