"""Reasons: leaving the named thing out changes the fit by what is stated, and tastes are recognised."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from bundlemage import History, Recommender
from bundlemage.core.history import Id, User
from bundlemage.errors import ConfigError, UnknownIdError, UnsupportedError
from bundlemage.models.base import Completer, Gated, Matcher, require
from bundlemage.models.ragged import Ragged
from bundlemage.sample.generate import Tastes
from tests.designing import numbers, small_sample, taste_of_reasons
from tests.small_shop import QUICK, small_shop

CLOSE = 1e-5
NAMELESS = ["g0010", "g0020", "g0030"]


@pytest.fixture(scope="module")
def trained() -> tuple[Recommender, Tastes]:
    return small_sample()


@pytest.fixture(scope="module")
def model(trained: tuple[Recommender, Tastes]) -> Recommender:
    return trained[0]


@pytest.fixture(scope="module")
def tastes(trained: tuple[Recommender, Tastes]) -> Tastes:
    return trained[1]


def history_of(model: Recommender, user: User) -> History:
    if isinstance(user, History):
        return user
    dataset = model.dataset
    row = dataset.users.position(str(user))
    return History(
        [dataset.items.ids[place] for place in dataset.user_item[row].indices],
        [dataset.bundles.ids[place] for place in dataset.user_bundle[row].indices],
    )


@torch.no_grad()
def fit_of_bundle(model: Recommender, user: User, bundle: str) -> float:
    """Its score less the mean over the shop's bundles, from all the scores."""
    histories, contents = model.shop.encode([user])
    scores = (
        require(model.model, Matcher)
        .score_bundles(histories, contents)[0, : len(model.dataset.bundles)]
        .double()
    )
    return float(scores[model.dataset.bundles.position(bundle)] - scores.mean())


@torch.no_grad()
def fit_of_item(model: Recommender, user: User, partial: Sequence[Id], item: str) -> float:
    histories, contents = model.shop.encode([user])
    inside = Ragged.from_lists([model.shop.item_positions(partial)])
    scores = require(model.model, Completer).score_items(histories, inside, contents)[0].double()
    return float(scores[model.dataset.items.position(item)] - scores.mean())


@torch.no_grad()
def gate_of(model: Recommender, user: User) -> float:
    return float(require(model.model, Gated).item_share(*model.shop.encode([user]))[0])


def without(history: History, reason: Any) -> History:
    return History(
        [item for item in history.items if reason.kind != "item" or item != reason.id],
        [bundle for bundle in history.bundles if reason.kind != "bundle" or bundle != reason.id],
    )


PEOPLE: list[User] = [
    "u0001",
    "u0007",
    "u0300",
    History(items=["g0001", "g0002"], bundles=["b0003"]),
    History(items=["g0001"]),
    History(bundles=["b0003", "b0004"]),
]


class TestTheIdentity:
    @pytest.mark.parametrize("user", PEOPLE, ids=str)
    def test_of_a_bundle(self, model: Recommender, user: User) -> None:
        history = history_of(model, user)
        for bundle in ["b0001", model.recommend(user, 1)[0].id]:
            told = model.explain(user, bundle=bundle)
            assert numbers(told).fit == pytest.approx(fit_of_bundle(model, user, bundle), abs=CLOSE)
            assert numbers(told).gate == pytest.approx(gate_of(model, user), abs=1e-6)
            assert sorted((reason.kind, reason.id) for reason in numbers(told).reasons) == sorted(
                [("item", item) for item in history.items] + [("bundle", owned) for owned in history.bundles]
            )
            for reason in numbers(told).reasons:
                left_out = fit_of_bundle(model, without(history, reason), bundle)
                assert reason.without == pytest.approx(left_out, abs=CLOSE), reason
                assert reason.effect == pytest.approx(numbers(told).fit - reason.without, abs=1e-6)
            self.sorted_and_named(model, told)

    @pytest.mark.parametrize("partial", [[], ["g0005"], ["g0005", "g0006", "g0007"]], ids=len)
    @pytest.mark.parametrize("user", PEOPLE, ids=str)
    def test_of_an_item(self, model: Recommender, user: User, partial: list[str]) -> None:
        history = history_of(model, user)
        for item in ["g0100", model.complete(user, partial, 1)[0].id]:
            told = model.explain(user, item=item, items=partial)
            assert numbers(told).fit == pytest.approx(fit_of_item(model, user, partial, item), abs=CLOSE)
            assert numbers(told).gate == pytest.approx(gate_of(model, user), abs=1e-6)
            assert sorted((reason.kind, reason.id) for reason in numbers(told).reasons) == sorted(
                [("item", owned) for owned in history.items]
                + [("bundle", owned) for owned in history.bundles]
                + [("partial", inside) for inside in partial]
            )
            for reason in numbers(told).reasons:
                rest = [inside for inside in partial if reason.kind != "partial" or inside != reason.id]
                left_out = fit_of_item(model, without(history, reason), rest, item)
                assert reason.without == pytest.approx(left_out, abs=CLOSE), reason
                assert reason.effect == pytest.approx(numbers(told).fit - reason.without, abs=1e-6)
            self.sorted_and_named(model, told)

    def sorted_and_named(self, model: Recommender, told: Any) -> None:
        effects = [reason.effect for reason in numbers(told).reasons]
        assert effects == sorted(effects, reverse=True), "the strongest first"
        dataset = model.dataset
        for reason in numbers(told).reasons:
            if reason.kind == "bundle":
                assert reason.title == dataset.bundle_title(dataset.bundles.position(reason.id))
            else:
                assert reason.title == dataset.item_title(dataset.items.position(reason.id))
        assert isinstance(numbers(told).reasons, tuple)

    def test_a_bundle_without_a_name_is_a_reason_too(self, model: Recommender) -> None:
        told = model.explain(History(items=["g0001"], bundles=["b0003", NAMELESS]), bundle="b0009")
        assert len(numbers(told).reasons) == 3
        named = [("item", "g0001"), ("bundle", "b0003")]
        (nameless,) = [reason for reason in numbers(told).reasons if (reason.kind, reason.id) not in named]
        assert nameless.kind == "bundle"
        rest = fit_of_bundle(model, History(items=["g0001"], bundles=["b0003"]), "b0009")
        assert nameless.without == pytest.approx(rest, abs=CLOSE)

    def test_nobody_in_particular_has_no_reasons_of_a_history(self, model: Recommender) -> None:
        assert numbers(model.explain(History(), bundle="b0001")).reasons == ()
        (only,) = numbers(model.explain(History(), item="g0001", items=["g0002"])).reasons
        assert (only.kind, only.id) == ("partial", "g0002")

    def test_what_design_tells_is_what_explain_tells(self, model: Recommender) -> None:
        (design,) = model.design("u0007", start=["g0001"], size=2, n=1)
        item = design.items[-1]
        assert item.why is not None
        told = model.explain("u0007", item=item.id, items=["g0001"])
        assert numbers(item.why).fit == pytest.approx(numbers(told).fit, abs=CLOSE)
        assert [(reason.kind, reason.id) for reason in numbers(item.why).reasons[:3]] == [
            (reason.kind, reason.id) for reason in numbers(told).reasons[:3]
        ]

    def test_what_design_tells_holds_for_the_rest_of_the_bundle(self, model: Recommender) -> None:
        """Each added item is explained by the bundle that it is in: the items before it, or all others."""
        (design,) = model.design("u0007", size=3, n=1)
        ids = [item.id for item in design.items]
        for place, item in enumerate(design.items):
            assert item.why is not None
            partial = {reason.id for reason in numbers(item.why).reasons if reason.kind == "partial"}
            assert partial in (set(ids[:place]), set(ids) - {item.id})
            fit = fit_of_item(model, "u0007", sorted(partial), item.id)
            assert numbers(item.why).fit == pytest.approx(fit, abs=CLOSE)


class TestTaste:
    """The sample shop says which genre each thing was planted with."""

    @pytest.mark.parametrize("kind", ["item", "bundle"])
    def test_the_strongest_reason_mostly_has_the_taste(
        self, model: Recommender, tastes: Tastes, kind: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        found, chance, asked = taste_of_reasons(model, tastes, kind, users=60)
        with capsys.disabled():
            print(f"\nstrongest reason for an added {kind} of its genre: {found:.0%} of {asked}, "
                  f"by chance {chance:.0%}")  # fmt: skip
        assert found > 0.5
        assert found > chance + 0.1


class TestMalformed:
    @pytest.mark.parametrize(
        "wrong", [{}, {"bundle": "b0001", "item": "g0001"}, {"bundle": "b0001", "items": ["g0001"]}], ids=str
    )
    def test_one_thing_is_explained_at_a_time(self, model: Recommender, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            model.explain("u0007", **wrong)

    @pytest.mark.parametrize(
        "wrong", [{"bundle": "b9999"}, {"item": "g9999"}, {"item": "g0001", "items": ["g9999"]}], ids=str
    )
    def test_unknown_ids_are_named(self, model: Recommender, wrong: dict[str, Any]) -> None:
        with pytest.raises(UnknownIdError, match="9999"):
            model.explain("u0007", **wrong)

    def test_an_item_that_is_inside_already(self, model: Recommender) -> None:
        with pytest.raises(ConfigError, match="g0001"):
            model.explain("u0007", item="g0001", items=["g0001"])

    def test_a_model_that_does_not_do_it_says_so(self) -> None:
        cases: Any = (("matching", {"item": "g0001"}), ("generation", {"bundle": "b0001"}))
        for learned, wrong in cases:
            half = Recommender(**QUICK, tasks=learned).fit(small_shop(), progress=False)
            with pytest.raises(UnsupportedError):
                half.explain("u0007", **wrong)


def test_a_model_without_a_gate_gives_reasons_all_the_same(model: Recommender) -> None:
    shares = Recommender("owned-share", device="cpu").fit(model.dataset, progress=False)
    told = shares.explain("u0007", bundle="b0001")
    assert numbers(told).gate is None
    history = history_of(model, "u0007")
    assert len(numbers(told).reasons) == len(history.items) + len(history.bundles)
    for reason in numbers(told).reasons:
        assert reason.without == pytest.approx(
            fit_of_bundle(shares, without(history, reason), "b0001"), abs=CLOSE
        )


def test_a_model_that_knows_its_users_by_name_alone_has_no_reasons_to_give(model: Recommender) -> None:
    """Whatever is left out of a history, its answer is the same: that is no explanation."""
    by_name = Recommender("bpr", **QUICK).fit(small_shop(), progress=False)
    with pytest.raises(UnsupportedError):
        by_name.explain("u0007", bundle="b0001")
