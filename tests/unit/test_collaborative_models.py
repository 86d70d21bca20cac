"""BPR, NCF and VAE-CF against their publications' equations, and on a shop with a planted answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import SplitPlan
from bundlemage.models.base import Histories, Interactions, Learner, Matcher, Model, Sizes, require
from bundlemage.models.baselines import neural
from bundlemage.models.baselines.factors import BPR, BPRConfig
from bundlemage.models.baselines.neural import NCF, VAECF, NCFConfig, VAECFConfig
from bundlemage.models.config import LearnedConfig, ModelConfig
from bundlemage.models.ragged import Ragged
from bundlemage.training.loop import TrainingResult, train
from tests.small_shop import dataset_of

CLASSES: tuple[type[Model], ...] = (BPR, NCF, VAECF)
CPU = torch.device("cpu")
TINY: dict[str, Any] = {
    "embedding_dim": 8,
    "hidden_dim": 16,
    "batch_size": 64,
    "learning_rate": 0.03,
    "device": "cpu",
}

GROUP, GROUPS = 6, 4
"""The planted shop: four groups of users, each with six bundles of its own."""


def planted() -> BundleDataset:
    """Each user has all but one of the bundles of a group: the one left out is the answer.

    Bundle 0 is everybody's, and the last two users have nothing.
    """
    taken = []
    for user in range(GROUP * GROUPS * 2):
        group, missing = user % GROUPS, (user // GROUPS) % GROUP
        taken.append([0] + [1 + group * GROUP + place for place in range(GROUP) if place != missing])
    count = 1 + GROUP * GROUPS
    rows = [*taken, [], []]
    return dataset_of([[0]] * len(rows), rows, [[0]] * count, 1)


def answers() -> list[int]:
    return [1 + user % GROUPS * GROUP + (user // GROUPS) % GROUP for user in range(GROUP * GROUPS * 2)]


@pytest.fixture(scope="module")
def shop() -> BundleDataset:
    return planted()


@pytest.fixture(scope="module")
def data(shop: BundleDataset) -> Interactions:
    return Interactions.of(shop, CPU)


def built(kind: type[Model], shop: BundleDataset, **settings: Any) -> tuple[Model, LearnedConfig]:
    known = kind.config_class.model_fields
    config = kind.config_class(**{key: value for key, value in (TINY | settings).items() if key in known})
    assert isinstance(config, LearnedConfig)
    torch.manual_seed(config.seed)
    return kind(config, Sizes.of(shop)), config


def fitted(kind: type[Model], shop: BundleDataset, **settings: Any) -> tuple[Model, TrainingResult]:
    model, config = built(kind, shop, **settings)
    return model, train(model, config, SplitPlan("none").divide(shop))


def roughened(model: Model) -> Model:
    """All weights large enough that every part of the model shows in its scores."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(0, 0.5)
    return model.eval()


def two_sorts(kind: type[Model], **settings: Any) -> tuple[Model, Interactions]:
    """One user, with bundle 0; the other bundles are all like bundle 1, so whichever is drawn is known."""
    shop = dataset_of([[0]], [[0]], [[0]] * 40, 1)
    data = Interactions.of(shop, CPU)
    model = roughened(built(kind, shop, **settings)[0])
    model.observe(data)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name in ("bundle_vectors", "bundle_factors", "bundle_bias"):
                weight[2:] = weight[1]
    return model, data


def scores_of(model: Model, data: Interactions, users: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return require(model, Matcher).score_bundles(data.histories(torch.tensor(users)), data.bundle_item)


every_class = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.name)
by_user = pytest.mark.parametrize("kind", CLASSES[:2], ids=lambda kind: kind.name)


@pytest.fixture(scope="module", params=CLASSES, ids=lambda kind: kind.name)
def learned(request: pytest.FixtureRequest, shop: BundleDataset) -> tuple[Model, TrainingResult]:
    return fitted(request.param, shop, epochs=15)


class TestThePlantedAnswer:
    def test_the_loss_falls(self, learned: tuple[Model, TrainingResult]) -> None:
        losses = [next(iter(record.losses.values())) for record in learned[1].history]
        assert losses[-1] < 0.8 * losses[0]

    def test_the_bundle_that_was_left_out_ranks_first_among_those_the_user_has_not(
        self, learned: tuple[Model, TrainingResult], data: Interactions
    ) -> None:
        users = list(range(len(answers())))
        owned = data.user_bundle.rows(torch.tensor(users)).as_mask(len(data.bundle_item))
        first = scores_of(learned[0], data, users).masked_fill(owned, -torch.inf).argmax(1)
        right = np.mean(first.numpy() == answers())
        assert right > 0.9, "by chance it would be one in twenty"

    def test_users_without_bundles_get_the_popular_one_first(
        self, learned: tuple[Model, TrainingResult], data: Interactions
    ) -> None:
        nothing = scores_of(learned[0], data, [len(answers()), len(answers()) + 1])
        assert nothing.argmax(1).tolist() == [0, 0]


class TestScores:
    @every_class
    def test_a_row_does_not_depend_on_the_others(
        self, kind: type[Model], shop: BundleDataset, data: Interactions
    ) -> None:
        model = roughened(built(kind, shop)[0])
        whole = scores_of(model, data, [3, 49, 7, 3])
        torch.testing.assert_close(whole[2:3], scores_of(model, data, [7]))
        torch.testing.assert_close(whole[0], whole[3])
        assert not torch.allclose(whole[0], whole[2])

    @every_class
    def test_bundles_that_came_later_are_between_others_and_nobody_asked_is_no_trouble(
        self, kind: type[Model], shop: BundleDataset, data: Interactions
    ) -> None:
        model = roughened(built(kind, shop)[0])
        more = data.bundle_item.append(Ragged.from_lists([[0], []]))
        histories = data.histories(torch.tensor([0, 5]))
        with torch.inference_mode():
            scores = require(model, Matcher).score_bundles(histories, more)
            assert require(model, Matcher).score_bundles(
                data.histories(torch.tensor([], dtype=torch.int64)), more
            ).shape == (
                0,
                len(more),
            )
        known, later = scores[:, :-2], scores[:, -2:]
        assert bool(
            (later >= known.amin(1, keepdim=True)).all() & (later <= known.amax(1, keepdim=True)).all()
        )

    @by_user
    def test_a_model_with_a_vector_for_each_user_asks_for_nothing_else(
        self, kind: type[Model], shop: BundleDataset, data: Interactions
    ) -> None:
        model = roughened(built(kind, shop)[0])
        assert not model.knows_new_users
        empty = Ragged.from_lists([[]])
        with torch.inference_mode():
            alone = require(model, Matcher).score_bundles(
                Histories(empty, empty, torch.tensor([4])), data.bundle_item
            )
        torch.testing.assert_close(alone, scores_of(model, data, [4]))

    @by_user
    def test_negatives_are_asked_for_as_often_as_set(
        self, kind: type[Model], shop: BundleDataset, data: Interactions, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, _ = built(kind, shop, negatives=7)
        model.observe(data)
        negatives: Any = model.negatives["user_bundle"]  # type: ignore[index]
        drawn: list[torch.Tensor] = []
        draw = negatives.draw

        def watched(*given: Any) -> torch.Tensor:
            drawn.append(draw(*given))
            return drawn[-1]

        monkeypatch.setattr(negatives, "draw", watched)
        require(model, Learner).loss(require(model, Learner).phases[0], torch.arange(10), data)
        assert [tuple(found.shape) for found in drawn] == [(10, 7)]
        users, _ = data.user_bundle.entries(torch.arange(10))
        assert not bool(negatives.owns(users[:, None], drawn[0]).any())


class TestBPR:
    def test_before_any_step_the_biases_are_at_their_best(self) -> None:
        # Bundle 0 was taken by three users, 1 by one, 2 by nobody; a count is one more than that.
        shop = dataset_of([[0]] * 4, [[0], [0], [0], [1]], [[0]] * 3, 1)
        model = built(BPR, shop)[0]
        model.observe(Interactions.of(shop, CPU))
        bias = model.get_parameter("bundle_bias").detach()
        torch.testing.assert_close(bias.exp(), torch.tensor([4.0, 2.0, 1.0]))

    def test_scores_are_an_inner_product_and_a_bias(self, shop: BundleDataset, data: Interactions) -> None:
        model = roughened(built(BPR, shop)[0])
        weight = {name: value.detach().numpy() for name, value in model.named_parameters()}
        expected = weight["user_vectors"][[2, 6]] @ weight["bundle_vectors"].T + weight["bundle_bias"]
        np.testing.assert_allclose(scores_of(model, data, [2, 6]).numpy(), expected, rtol=1e-4, atol=1e-5)

    def test_the_loss_compares_the_scores_of_scoring(self) -> None:
        model, data = two_sorts(BPR, negatives=3)
        taken, other = scores_of(model, data, [0])[0, :2].tolist()
        loss = require(model, Learner).loss(require(model, Learner).phases[0], torch.tensor([0]), data)
        assert loss.item() == pytest.approx(np.log1p(np.exp(other - taken)), rel=1e-5)


def neumf(weight: dict[str, np.ndarray], user: int, bundle: int) -> float:
    """Eq. 12 of He et al., a pair at a time, the first layer whole."""
    factors = weight["user_factors"][user] * weight["bundle_factors"][bundle]
    value = np.concatenate([weight["user_vectors"][user], weight["bundle_vectors"][bundle]])
    first = np.hstack([weight["user_part.weight"], weight["bundle_part.weight"]])
    value = np.maximum(first @ value + weight["bundle_part.bias"], 0)
    for layer in range(2):
        value = weight[f"hidden.{layer}.weight"] @ value + weight[f"hidden.{layer}.bias"]
        value = np.maximum(value, 0)
    join = np.concatenate([weight["join_factors"], weight["join_hidden"]])
    return float(join @ np.concatenate([factors, value]) + weight["bundle_bias"][bundle])


class TestNCF:
    def model(self, shop: BundleDataset, **settings: Any) -> NCF:
        model = roughened(built(NCF, shop, **settings)[0])
        assert isinstance(model, NCF)
        return model

    def test_scores_are_the_publications_equation(self, shop: BundleDataset, data: Interactions) -> None:
        model = self.model(shop)
        weight = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
        expected = [[neumf(weight, user, bundle) for bundle in range(len(shop.bundles))] for user in (1, 8)]
        np.testing.assert_allclose(scores_of(model, data, [1, 8]).numpy(), expected, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("at_a_time", [1, 500, 2**24])
    def test_scoring_in_chunks_is_scoring_pair_by_pair(
        self, shop: BundleDataset, data: Interactions, monkeypatch: pytest.MonkeyPatch, at_a_time: int
    ) -> None:
        monkeypatch.setattr(neural, "HIDDEN_AT_A_TIME", at_a_time)
        model = self.model(shop, dropout=0.3)  # which scoring must not have
        users = list(range(11))
        pairs = torch.arange(len(shop.bundles)).expand(len(users), -1)
        with torch.inference_mode():
            plain = model.pair_logits(torch.tensor(users), pairs)
        torch.testing.assert_close(scores_of(model, data, users), plain)

    def test_the_loss_is_the_log_loss(self) -> None:
        model, data = two_sorts(NCF, negatives=3)
        chance = scores_of(model, data, [0])[0].sigmoid().numpy()
        loss = require(model, Learner).loss(require(model, Learner).phases[0], torch.tensor([0]), data)
        assert loss.item() == pytest.approx(-(np.log(chance[0]) + 3 * np.log(1 - chance[1])) / 4, rel=1e-4)

    def test_before_any_step_the_biases_are_the_odds_of_having_been_taken(self) -> None:
        # Four pairs, three negatives each, drawn among three bundles: four draws of each bundle on average.
        shop = dataset_of([[0]] * 4, [[0], [0], [0], [1]], [[0]] * 3, 1)
        model = built(NCF, shop, negatives=3)[0]
        model.observe(Interactions.of(shop, CPU))
        bias = model.get_parameter("bundle_bias").detach()
        torch.testing.assert_close(bias.exp(), torch.tensor([4.0, 2.0, 1.0]) / 5)

    def test_layers_halve_and_one_is_enough(self, shop: BundleDataset, data: Interactions) -> None:
        widths = [layer.out_features for layer in self.model(shop, layers=5).hidden]
        assert widths == [4, 2, 1, 1]
        assert bool(scores_of(self.model(shop, layers=1), data, [0]).isfinite().all())


class TestVAECF:
    def model(self, shop: BundleDataset, **settings: Any) -> VAECF:
        model = built(VAECF, shop, hidden_dim=5, **settings)[0]
        assert isinstance(model, VAECF)
        return model

    def test_the_loss_without_chance_is_the_publications(
        self, shop: BundleDataset, data: Interactions
    ) -> None:
        model = roughened(self.model(shop, kl_weight=0.3, anneal_steps=10))
        assert isinstance(model, VAECF)
        model.steps_done.fill_(5)  # half of the way: β = 0.15
        users = [0, 7, len(answers())]  # the last has no bundle
        taken = shop.user_bundle[users].toarray().astype(float)  # [rows, bundles]
        weight = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
        length = np.linalg.norm(taken, axis=1, keepdims=True)
        hidden = np.tanh(taken / np.maximum(length, 1) @ weight["encoder_table"] + weight["encoder_bias"])
        latent = hidden @ weight["latent.weight"].T + weight["latent.bias"]
        mean, variance = latent[:, :8], np.exp(latent[:, 8:])
        decoded = np.tanh(mean @ weight["decoder.weight"].T + weight["decoder.bias"])
        logits = decoded @ weight["decoder_table"].T + weight["decoder_bias"]
        log_chance = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        divergence = 0.5 * (mean**2 + variance - 1 - np.log(variance)).sum(1)
        expected = (-(taken * log_chance).sum(1) + 0.15 * divergence).mean()

        found = model.loss(model.phases[0], torch.tensor(users), data)
        assert found.item() == pytest.approx(expected, rel=1e-4)
        np.testing.assert_allclose(scores_of(model, data, users).numpy(), logits, rtol=1e-4, atol=1e-4)

    def test_the_kl_weight_rises_in_a_line_while_training_and_then_stays(
        self, shop: BundleDataset, data: Interactions
    ) -> None:
        model = self.model(shop, kl_weight=0.4, anneal_steps=4)
        weights = []
        for _ in range(6):
            weights.append(model.kl_weight_now().item())
            model.loss(model.phases[0], torch.arange(3), data)
        assert weights == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.4])
        model.eval()
        model.loss(model.phases[0], torch.arange(3), data)
        assert model.steps_done.item() == 6, "a look at the loss is no step"
        assert self.model(shop, kl_weight=0.4, anneal_steps=0).kl_weight_now().item() == pytest.approx(0.4)

    def test_a_resumed_run_goes_on_annealing(self, shop: BundleDataset, tmp_path: Path) -> None:
        split = SplitPlan("none").divide(shop)
        settings = {"kl_weight": 1.0, "anneal_steps": 20, "batch_size": 10}
        whole, config = built(VAECF, shop, epochs=4, **settings)
        train(whole, config, split)
        half, config = built(VAECF, shop, epochs=2, **settings)
        train(half, config, split, folder=tmp_path)
        resumed, config = built(VAECF, shop, epochs=4, **settings)
        train(resumed, config, split, folder=tmp_path, resume=True)
        assert isinstance(resumed, VAECF)
        assert resumed.steps_done.item() == 4 * 5
        for name, tensor in whole.state_dict().items():
            assert torch.equal(tensor, resumed.state_dict()[name]), name

    def test_the_biases_begin_as_the_logarithm_of_sales_if_asked(
        self, shop: BundleDataset, data: Interactions
    ) -> None:
        usual, asked = self.model(shop), self.model(shop, bundle_bias=True)
        for model in (usual, asked):
            model.observe(data)
        sales = np.asarray(shop.user_bundle.sum(0)).ravel()
        np.testing.assert_allclose(asked.decoder_bias.detach().numpy(), np.log1p(sales), rtol=1e-6)
        assert float(usual.decoder_bias.detach().abs().max()) < 0.01

    def test_training_hides_bundles_and_draws_the_latent_vector_and_scoring_does_neither(
        self, shop: BundleDataset, data: Interactions
    ) -> None:
        model = roughened(self.model(shop, dropout=0.5))
        users = torch.arange(20)
        assert torch.equal(
            *(require(model, Learner).loss(require(model, Learner).phases[0], users, data) for _ in range(2))
        )
        model.train()
        assert not torch.equal(
            *(require(model, Learner).loss(require(model, Learner).phases[0], users, data) for _ in range(2))
        )

    def test_a_new_user_with_the_same_bundles_gets_the_same_scores(
        self, shop: BundleDataset, data: Interactions
    ) -> None:
        model = roughened(self.model(shop))
        bundles = data.user_bundle.rows(torch.tensor([9])).values.tolist()
        later = len(shop.bundles)  # one that came after training: it says nothing to this model
        new = Histories(Ragged.from_lists([[]]), Ragged.from_lists([[*bundles, later]]))
        with torch.inference_mode():
            scores = require(model, Matcher).score_bundles(new, data.bundle_item)
        torch.testing.assert_close(scores, scores_of(model, data, [9]))


@pytest.mark.parametrize(
    ("config_class", "wrong"),
    [
        (BPRConfig, {"negatives": 0}),
        (NCFConfig, {"layers": 0}),
        (NCFConfig, {"dropout": 1.0}),
        (VAECFConfig, {"kl_weight": -1}),
        (VAECFConfig, {"anneal_steps": -1}),
    ],
)
def test_settings_without_a_meaning_are_refused(
    config_class: type[ModelConfig], wrong: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        config_class(**wrong)
