"""How the parts of `auto` are weighed: models that are worse than chance, constant ones, and the words."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bundlemage import Recommender, SplitPlan
from bundlemage.data.dataset import binary_matrix
from bundlemage.data.splits import MatchingCases
from bundlemage.evaluation import MatchingEvaluator
from bundlemage.models.base import Interactions, Matcher, Sizes, require
from bundlemage.models.registry import build, joined, make_config
from bundlemage.sample.kinds import dataset_of_kind
from bundlemage.training.choice import Tried
from bundlemage.training.choosing import Comparison, Scored
from bundlemage.training.closed_forms import CLOSED_FORMS, affordable
from tests.small_shop import dataset_of

USERS, BUNDLES = 200, 40
CPU = torch.device("cpu")
Numbers = np.ndarray


def comparison(taken: Numbers) -> Comparison:
    """The comparison of matching, for users who took these bundles and had nothing before."""
    contents = [[number % 4, 4] for number in range(BUNDLES)]
    shop = dataset_of([[user % 4] for user in range(USERS)], [[]] * USERS, contents, 5)
    positives = binary_matrix(np.arange(USERS), taken, (USERS, BUNDLES))
    data = Interactions.of(shop, CPU)
    cases = MatchingCases(np.arange(USERS, dtype=np.int32), positives, None)
    return Comparison("matching", MatchingEvaluator(cases, data), data, Sizes.of(shop))


def scored(compare: Comparison, name: str, scores: Numbers) -> Scored:
    tensor = torch.from_numpy(scores).float()
    return Scored(Tried(name, name, {}, float(compare._ndcg(tensor).mean())), tensor)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(0)


def drawn(random: np.random.Generator, utility: Numbers) -> Numbers:
    """A bundle of each user, with the chances of a softmax."""
    taken: Numbers = np.argmax(utility + random.gumbel(size=utility.shape), axis=1)
    return taken


def test_a_model_that_is_worse_than_chance_is_in_no_blend(random: np.random.Generator) -> None:
    """Alone it says the opposite of the truth. Beside the good model it would have a large factor."""
    good, other = random.normal(size=(2, USERS, BUNDLES))
    compare = comparison(drawn(random, 1.5 * good + 0.7 * other))
    useful = scored(compare, "ease", good)
    misleading = scored(compare, "popularity", other - 0.6 * good - 0.5 * (good + other))
    assert compare.is_useful(useful)
    assert not compare.is_useful(misleading)


def test_where_no_closed_form_helps_bundlemage_has_its_own_name(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mix in which the closed form has no real factor is BundleMage alone, and is called that."""
    truth = random.normal(size=(USERS, BUNDLES))
    compare = comparison(drawn(random, 2 * truth))
    monkeypatch.setattr(compare, "closed_forms", lambda: [scored(compare, "popularity", -truth)])
    monkeypatch.setattr(compare, "scored", lambda *_: scored(compare, "bundlemage", truth))
    sizes = Sizes(USERS, 3, BUNDLES)
    learned = build("bundlemage", make_config("bundlemage", {"embedding_dim": 4}), sizes)
    (part,), choice = compare.best(learned)
    assert (part.model, part.matching) == ("bundlemage", 1.0)
    assert "neither another model nor a blend" in choice.reason


def test_a_bundlemage_that_is_worse_than_chance_is_left_out(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = random.normal(size=(USERS, BUNDLES))
    compare = comparison(drawn(random, 2 * truth))
    monkeypatch.setattr(compare, "closed_forms", lambda: [scored(compare, "ease", truth)])
    monkeypatch.setattr(compare, "scored", lambda *_: scored(compare, "bundlemage", -truth))
    sizes = Sizes(USERS, 3, BUNDLES)
    learned = build("bundlemage", make_config("bundlemage", {"embedding_dim": 4}), sizes)
    parts, choice = compare.best(learned)
    assert [part.model for part in parts] == ["ease"]
    assert "adds too little and is left out" in choice.reason


def test_a_model_with_equal_scores_is_no_candidate() -> None:
    """Nobody has bought anything in training, so popularity tells no bundle from another."""
    compare = comparison(np.arange(USERS) % BUNDLES)
    assert "popularity" not in [each.name for each in compare.closed_forms()]


def test_answers_of_a_model_that_ranks_by_sales_say_so() -> None:
    """For every user they are the best sellers, whatever the user has."""
    shop = dataset_of_kind("best-sellers")
    model = Recommender("popularity", device="cpu").fit(
        shop, SplitPlan("none"), progress=False, calibrate=False
    )
    user = next(user for number, user in enumerate(shop.users) if shop.user_bundle[number].nnz)
    assert {each.source for each in model.recommend(user, 5)} == {"popular"}
    blend = joined([model.model, model.model])
    mixed = joined([model.model, build("ease", make_config("ease", {}), Sizes.of(shop))])
    assert require(blend, Matcher).ranks_by_sales
    assert not require(mixed, Matcher).ranks_by_sales


def test_new_copies_of_best_sellers_do_not_rank_last() -> None:
    """`auto` is mostly popularity here, which has no sales of a new bundle."""
    shop = dataset_of_kind("best-sellers")
    model = Recommender("popularity", device="cpu").fit(shop, SplitPlan("none"), progress=False)
    assumed = model.new_bundle_credit
    assert assumed is not None
    assert assumed.sales > 0
    sales = shop.user_bundle.sum(0).A1
    best = shop.bundles[int(sales.argmax())]
    items = [shop.items[n] for n in shop.bundle_item[int(sales.argmax())].indices]
    user = shop.users[0]
    answers = model.recommend(user, 300, new_bundles={"copy": items}, owned="show")
    ids = [each.id for each in answers]
    assert ids.index("copy") < len(ids) - 1
    like = model.recommend(user, 300, new_bundles={"copy": items}, sells_like={"copy": best}, owned="show")
    assert [each.id for each in like].index("copy") <= 1


@pytest.mark.parametrize(("bundles", "tried"), [(2_000, 3), (4_800, 1), (7_000, 0)])
def test_in_a_large_shop_ease_has_only_its_default_settings(bundles: int, tried: int) -> None:
    """Each setting takes seconds there, and more bundles would take minutes."""
    sizes = Sizes(users=8_000, items=30_000, bundles=bundles)
    ease = [settings for name, settings in CLOSED_FORMS["matching"] if name == "ease"]
    assert sum(affordable("ease", settings, sizes) for settings in ease) == tried
