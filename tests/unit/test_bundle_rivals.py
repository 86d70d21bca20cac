"""BR, EFM and DAM against their equations written out in numpy, and on a shop with a planted answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import SplitPlan
from bundlemage.models.base import Completer, Interactions, Model, Sizes, can
from bundlemage.models.baselines import factors, neural
from bundlemage.models.baselines.factors import BR, EFM
from bundlemage.models.baselines.neural import DAM
from bundlemage.models.config import LearnedConfig, parse_config
from bundlemage.models.ragged import Ragged
from bundlemage.training.loop import TrainingResult, train
from tests.small_shop import dataset_of

KINDS: tuple[type[Model], ...] = (BR, EFM, DAM)
CPU = torch.device("cpu")
TINY: dict[str, Any] = {"embedding_dim": 4, "batch_size": 64, "learning_rate": 0.02, "device": "cpu"}

every_kind = pytest.mark.parametrize("kind", KINDS)
GROUPS, MEMBERS, EACH = 4, 8, 5
"""The planted shop: four groups of users, each with five bundles made of its own ten items."""


def planted() -> BundleDataset:
    """Each user has all but one bundle of the group: the one left out is the answer."""
    user_item, user_bundle = [], []
    for user in range(GROUPS * MEMBERS):
        group, member = user % GROUPS, user // GROUPS
        user_item.append([group * 2 * EACH + (member + step) % (2 * EACH) for step in range(6)])
        user_bundle.append([group * EACH + place for place in range(EACH) if place != member % EACH])
    bundle_item = [
        [group * 2 * EACH + (2 * place + step) % (2 * EACH) for step in range(4)]
        for group in range(GROUPS)
        for place in range(EACH)
    ]
    return dataset_of(user_item, user_bundle, bundle_item, GROUPS * 2 * EACH)


def strange() -> BundleDataset:
    """A user with nothing, users with one kind of thing, an empty bundle, a bundle of one item."""
    return dataset_of([[0, 1], [], [1, 2], []], [[0], [1], [], []], [[0, 1, 2], [], [2], [0, 3]], 4)


def built(kind: type[Model], shop: BundleDataset, **settings: Any) -> tuple[Any, LearnedConfig]:
    torch.manual_seed(3)
    config = parse_config(kind.config_class, TINY | settings)
    assert isinstance(config, LearnedConfig)
    model: Any = kind(config, Sizes.of(shop))
    model.observe(Interactions.of(shop, CPU))
    return model, config


def with_random_weights(kind: type[Model], shop: BundleDataset, **settings: Any) -> Any:
    """Weights large enough that every term of an equation matters."""
    model, _ = built(kind, shop, **settings)
    with torch.no_grad():
        for weights in model.parameters():
            weights.normal_()
    return model.eval()


def trained(kind: type[Model], shop: BundleDataset, **settings: Any) -> tuple[Any, TrainingResult]:
    model, config = built(kind, shop, **({"epochs": 60, "weight_decay": 0.0} | settings))
    return model, train(model, config, SplitPlan("none").divide(shop))


@torch.inference_mode()
def scores_of(model: Any, shop: BundleDataset, later: list[list[int]] | None = None) -> Any:
    data = Interactions.of(shop, CPU)
    contents = data.bundle_item.append(Ragged.from_lists(later)) if later else data.bundle_item
    return model.score_bundles(data.histories(torch.arange(len(shop.users))), contents).numpy()


def weights_of(model: Any) -> dict[str, Any]:
    return {name: value.detach().double().numpy() for name, value in model.state_dict().items()}


def items_of(shop: BundleDataset) -> list[list[int]]:
    return [shop.bundle_item[bundle].indices.tolist() for bundle in range(len(shop.bundles))]


class TestEquations:
    @pytest.mark.parametrize("bundle_bias", [False, True])
    def test_br_is_the_mean_of_its_items_with_size_and_company(self, bundle_bias: bool) -> None:
        shop = strange()
        model = with_random_weights(BR, shop, bundle_bias=bundle_bias, largest_size=3)
        later = [[3, 1, 0, 2], []]
        found, w = scores_of(model, shop, later), weights_of(model)
        for user in range(len(shop.users)):
            for bundle, items in enumerate(items_of(shop) + later):
                expected = w["size_bias"][min(len(items), 3)]
                for item in items:
                    liking = w["item_bias"][item] + np.dot(
                        w["turn_user"] @ w["user_factors"][user], w["turn_item"] @ w["item_factors"][item]
                    )
                    expected += liking / len(items)
                    for other in items:
                        if other != item:
                            together = w["item_factors"][item] * w["item_factors"][other]
                            expected += w["compatibility"] @ together / (len(items) * (len(items) - 1))
                if bundle_bias and bundle < len(shop.bundles):
                    expected += w["bundle_bias"][bundle]
                assert found[user, bundle] == pytest.approx(expected, rel=1e-4, abs=1e-4)

    def test_br_scores_in_training_as_it_does_in_use(self) -> None:
        shop = planted()
        model = with_random_weights(BR, shop, bundle_bias=True)
        data, pairs = Interactions.of(shop, CPU), torch.arange(7)
        torch.manual_seed(0)
        users, taken = data.user_bundle.entries(pairs)
        others = model.negatives["user_bundle"].draw(users, 1)[:, 0]
        torch.manual_seed(0)
        loss = model.loss(model.phases[1], pairs, data).item()
        scores = scores_of(model, shop)
        margin = scores[users, taken] - scores[users, others]
        assert loss == pytest.approx(np.log1p(np.exp(-margin.astype(float))).mean(), rel=1e-4)

    def test_efm_is_a_product_of_factors_with_a_bias(self) -> None:
        shop = strange()
        model = with_random_weights(EFM, shop, bundle_bias=True)
        w = weights_of(model)
        expected = w["user_factors"] @ w["bundle_factors"].T + w["bundle_bias"]
        np.testing.assert_allclose(scores_of(model, shop), expected, rtol=1e-4, atol=1e-4)

    def test_efm_tells_a_bundles_items_from_random_ones(self) -> None:
        # With two items in the bundle and one bundle, whatever is drawn is known up to its place.
        shop = dataset_of([[0]], [[0]], [[0, 1]], 2)
        model = with_random_weights(EFM, shop, shift=3)
        data, pairs = Interactions.of(shop, CPU), torch.arange(2)
        torch.manual_seed(0)
        torch.rand(2)
        drawn = torch.randint(2, (2, 3)).numpy()
        torch.manual_seed(0)
        found = model.loss(factors.CONTENTS, pairs, data).item()
        w, expected = weights_of(model), 0.0
        for item in (0, 1):
            context = w["context_factors"][1 - item] + w["bundle_factors"][0]
            expected += np.log1p(np.exp(-w["item_factors"][item] @ context)) / 2
            for other in drawn[item]:
                expected += np.log1p(np.exp(w["item_factors"][other] @ context)) / 2
        assert found == pytest.approx(expected, rel=1e-4)

    def test_efm_never_takes_an_item_for_its_own_company(self) -> None:
        shop = dataset_of([[0]], [[0]], [list(range(9)), [9]], 10)
        model, _ = built(EFM, shop)
        contents = Interactions.of(shop, CPU).bundle_item
        pairs = torch.arange(9).repeat(200)
        items, others = contents.values[pairs], model.companions(pairs, contents)
        assert bool((items != others).all())
        assert len(set(zip(items.tolist(), others.tolist(), strict=True))) == 9 * 8
        assert model.companions(torch.tensor([9]), contents).tolist() == [9], "a lone item has no other"

    @pytest.mark.parametrize("pooling", ["product", "both"])
    def test_dam_attends_with_the_user_and_judges_with_shared_layers(self, pooling: str) -> None:
        shop = strange()
        settings = {"hidden_dims": (6, 3), "bundle_bias": True, "pooling": pooling}
        model = with_random_weights(DAM, shop, **settings)
        later = [[3, 1]]
        found, w = scores_of(model, shop, later), weights_of(model)
        for user in range(len(shop.users)):
            p = w["user_factors"][user]
            for bundle, items in enumerate(items_of(shop) + later):
                share = np.exp(w["attended_factors"][items] @ p)
                f = (share / share.sum()) @ w["item_factors"][items] if items else np.zeros(4)
                hidden = p * f if pooling == "product" else np.concatenate([p * f, p, f])
                for layer in (0, 1):
                    hidden = w[f"layers.{layer}.weight"] @ hidden + w[f"layers.{layer}.bias"]
                    hidden = hidden.clip(min=0)
                expected = w["judge_bundle.weight"][0] @ hidden
                if bundle < len(shop.bundles):
                    expected += w["bundle_bias"][bundle]
                assert found[user, bundle] == pytest.approx(expected, rel=1e-4, abs=1e-4)

    def test_dam_scores_a_pair_as_it_scores_everything(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shop = planted()
        model = with_random_weights(DAM, shop)
        data, users = Interactions.of(shop, CPU), torch.tensor([5, 0, 5, 31])
        bundles = torch.tensor([3, 19, 0, 7])
        whole = scores_of(model, shop)
        with torch.inference_mode():
            pairs = model.pair_scores(model.user_factors[users], data.bundle_item.rows(bundles))
        np.testing.assert_allclose(pairs.numpy(), whole[users, bundles], rtol=1e-4, atol=1e-4)
        monkeypatch.setattr(neural, "NUMBERS_AT_A_TIME", 1)
        np.testing.assert_allclose(scores_of(model, shop), whole, rtol=1e-4, atol=1e-4)


class TestGeneration:
    @pytest.mark.parametrize("bundle_bias", [False, True])
    def test_an_item_scores_as_the_bundle_it_would_make(self, bundle_bias: bool) -> None:
        shop = strange()
        model = with_random_weights(BR, shop, bundle_bias=bundle_bias, largest_size=2)
        data = Interactions.of(shop, CPU)
        histories = data.histories(torch.arange(4))
        partials = [[], [1], [3, 0], [0, 1, 2]]
        with torch.inference_mode():
            found = model.score_items(histories, Ragged.from_lists(partials), data.bundle_item).numpy()
        for row, partial in enumerate(partials):
            enlarged = [[*partial, item] for item in range(4)]
            expected = scores_of(model, shop, enlarged)[row, len(shop.bundles) :]
            np.testing.assert_allclose(found[row], expected, rtol=1e-4, atol=1e-4)

    def test_a_bundle_is_completed_from_its_own_group(self) -> None:
        shop = planted()
        model, _ = trained(BR, shop)
        data, users = Interactions.of(shop, CPU), torch.arange(GROUPS)
        width = 2 * EACH
        partial = Ragged.from_lists([[group * width, group * width + 1] for group in range(GROUPS)])
        with torch.inference_mode():
            found = model.score_items(data.histories(users), partial, data.bundle_item)
        assert (found.argmax(1) // width).tolist() == list(range(GROUPS))

    def test_only_br_generates(self) -> None:
        assert [can(built(kind, strange())[0], Completer) for kind in KINDS] == [True, False, False]


class TestLearning:
    @every_kind
    @pytest.mark.parametrize("bundle_bias", [False, True])
    def test_loss_falls_and_the_bundle_left_out_comes_first(
        self, kind: type[Model], bundle_bias: bool
    ) -> None:
        shop = planted()
        model, result = trained(kind, shop, bundle_bias=bundle_bias)
        first, last = result.history[0].losses, result.history[-1].losses
        assert set(first) == {phase.name for phase in model.phases}
        for name, before in first.items():
            assert last[name] < 0.8 * before, name
        scores = scores_of(model, shop)
        scores[shop.user_bundle.toarray().astype(bool)] = -np.inf
        users = np.arange(len(shop.users))
        answers = users % GROUPS * EACH + users // GROUPS % EACH
        assert (scores.argmax(1) == answers).mean() > 0.9, "by chance it would be one in sixteen"

    def test_br_can_leave_the_items_factors_to_the_first_stage(self) -> None:
        shop = planted()
        data, pairs = Interactions.of(shop, CPU), torch.arange(8)
        for fine_tune in (True, False):
            model = with_random_weights(BR, shop, fine_tune=fine_tune)
            model.loss(model.phases[1], pairs, data).backward()
            moved = {name for name, weights in model.named_parameters() if weights.grad is not None}
            first_stage = {"user_factors", "item_factors", "item_bias"}
            assert moved & first_stage == (first_stage if fine_tune else set())
            assert {"turn_user", "turn_item", "size_bias", "compatibility"} <= moved

    @pytest.mark.parametrize(
        ("kind", "without", "phase"),
        [(EFM, "item_weight", "items"), (EFM, "content_weight", "contents"), (DAM, "item_weight", "items")],
    )
    def test_a_loss_of_no_weight_is_no_phase(self, kind: type[Model], without: str, phase: str) -> None:
        with_it, _ = built(kind, strange())
        left_out, _ = built(kind, strange(), **{without: 0})
        names = [one.name for one in with_it.phases]
        assert [one.name for one in left_out.phases] == [name for name in names if name != phase]


class TestUnusual:
    @every_kind
    @pytest.mark.parametrize("bundle_bias", [False, True])
    def test_nothing_in_the_data_makes_a_score_infinite(self, kind: type[Model], bundle_bias: bool) -> None:
        shop = strange()
        model, _ = trained(kind, shop, epochs=3, bundle_bias=bundle_bias)
        assert np.isfinite(scores_of(model, shop)).all()
        assert np.isfinite(scores_of(model, shop, [[], [1], [0, 1, 2, 3]])).all()

    @every_kind
    def test_no_users_are_no_rows(self, kind: type[Model]) -> None:
        shop = strange()
        model, _ = built(kind, shop)
        data = Interactions.of(shop, CPU)
        nobody = data.histories(torch.zeros(0, dtype=torch.int64))
        assert model.eval().score_bundles(nobody, data.bundle_item).shape == (0, 4)

    @every_kind
    def test_a_score_does_not_depend_on_who_else_is_asked_about(self, kind: type[Model]) -> None:
        shop = planted()
        model = with_random_weights(kind, shop)
        data, whole = Interactions.of(shop, CPU), scores_of(model, shop)
        with torch.inference_mode():
            one = model.score_bundles(data.histories(torch.tensor([9, 2])), data.bundle_item)
        np.testing.assert_allclose(one.numpy(), whole[[9, 2]], rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("kind", [BR, DAM])
    def test_a_later_bundle_is_judged_by_its_items(self, kind: type[Model]) -> None:
        shop = planted()
        model = with_random_weights(kind, shop)
        again = items_of(shop)[:3]
        scores = scores_of(model, shop, again)
        np.testing.assert_allclose(scores[:, -3:], scores[:, :3], rtol=1e-4, atol=1e-4)

    def test_a_later_bundle_is_between_the_others_where_bundles_go_by_name(self) -> None:
        shop = planted()
        scores = scores_of(with_random_weights(EFM, shop), shop, [[0, 1]])
        assert (scores[:, -1] >= scores[:, :-1].min(1)).all()
        assert (scores[:, -1] <= scores[:, :-1].max(1)).all()

    def test_the_config_comes_back_from_json(self) -> None:
        for kind in KINDS:
            config = parse_config(kind.config_class, TINY)
            assert parse_config(kind.config_class, config.model_dump(mode="json")) == config
