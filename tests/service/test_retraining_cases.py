"""The test cases of a retraining: what was prompted, what is newest, and which bundles are new."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundlemage import Recommender
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import Split, SplitPlan, leave_one_out
from bundlemage.errors import UnsupportedError
from bundlemage.live import EMPTY, record_of
from bundlemage.models.auto import Auto
from bundlemage.models.registry import MODELS
from bundlemage.retraining.holding_out import completions_of, hold_out, questions_of
from bundlemage.retraining.purchases import PLACES, Purchases, choose_purchases
from bundlemage.retraining.run import retrain
from bundlemage.retraining.unseen import learned_by, new_bundles
from bundlemage.store.records import Bundle, InteractionRecord, Served
from bundlemage.store.repository import Store
from bundlemage.training.closed_forms import CLOSED_FORMS
from tests.buying_shop import BUNDLES, tried
from tests.growing_shop import (
    ITEMS_OF_A_TASTE,
    TASTES,
    early_model,
    early_shop,
    open_early,
    sell,
)
from tests.small_shop import dataset_of, pairs_of

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
NO_BUNDLE = np.zeros(0, np.int32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of ten users, who have an item each, and eight bundles that nobody has yet."""
    opened = Store.open(f"sqlite:///{tmp_path}/cases.db")
    contents = [[bundle, (bundle + 1) % 8] for bundle in range(8)]
    owned = [[0] if user == 0 else [] for user in range(10)]
    opened.import_dataset(dataset_of([[user % 8] for user in range(10)], owned, contents, 8))
    yield opened
    opened.close()


def bought(store: Store, user: str, bundle: str, at: datetime, request_id: str | None = None) -> None:
    store.add_interactions([InteractionRecord(user, "bundle", bundle, at, request_id)])


def shown(store: Store, user: str | None, ids: tuple[str, ...], at: datetime, **fields: Any) -> None:
    store.add_served([Served(fields.get("id", "r"), fields.get("kind", "bundles"), user, "m", ids, at)])


def chosen(store: Store, serving: BundleDataset, min_cases: int = 1, places: int = PLACES) -> Purchases:
    model = Recommender("popularity", device="cpu").fit(serving, SplitPlan("none"), progress=False)
    stock, random = EMPTY.after(store.catalogue()), np.random.default_rng(0)
    return choose_purchases(store, store.dataset(), learned_by(model), stock, min_cases, random, places)


# ── Prompted or not ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("user", "ids", "hours", "fields", "request_id", "prompted"),
    [
        ("u1", ("b2", "b3"), -1, {}, None, True),
        ("u1", ("b2", "b3"), -20 * 24, {}, None, True),
        ("u1", ("b2", "b3"), 0, {}, None, True),  # the shop's clock may be coarse
        ("u1", ("b2", "b3"), +1, {}, None, False),
        ("u1", ("b2", "b4"), -1, {}, None, False),
        ("u2", ("b2", "b3"), -1, {}, None, False),
        ("u1", ("b3",), -1, {"kind": "items"}, None, False),  # an item of the same name
        ("u1", ("b2", "b3"), +1, {"id": "x"}, "x", True),  # the shop names the list, so the clocks differ
        ("u1", ("b2", "b4"), -1, {"id": "x"}, "x", False),  # a list without the bundle
        (None, ("b2", "b3"), -1, {"id": "x"}, "x", True),  # shown before the user was known
        ("u1", ("b2", "b4"), -1, {"id": "x"}, "forgotten", True),
    ],
)
def test_a_purchase_is_prompted_if_the_bundle_was_shown_to_the_user(
    store: Store,
    user: str | None,
    ids: tuple[str, ...],
    hours: int,
    fields: dict[str, Any],
    request_id: str | None,
    prompted: bool,
) -> None:
    before = store.dataset()
    shown(store, user, ids, NOON + hours * HOUR, **fields)
    bought(store, "u1", "b3", NOON, request_id)
    found = chosen(store, before)
    assert found.prompted == prompted
    assert [case.bundle for case in found.cases] == ([] if prompted else ["b3"])
    if not prompted:
        earlier = user == "u1" and hours < 0 and not fields.get("kind")
        assert found.cases[0].shown == (frozenset(ids) if earlier else frozenset())


def test_too_few_unprompted_purchases_are_no_ground_to_train(store: Store, tmp_path: Path) -> None:
    model = Recommender("popularity", device="cpu").fit(store.dataset(), SplitPlan("none"), progress=False)
    store.publish(record_of(model.save(tmp_path / "model")))
    for user in range(8):
        shown(store, f"u{user}", ("b2", "b3"), NOON)
        bought(store, f"u{user}", "b3" if user < 6 else "b4", NOON + HOUR)
    waiting = retrain(store, min_cases=3)
    assert (waiting.published, waiting.cases, waiting.prompted, waiting.training) == (False, 2, 6, None)
    assert "2 users have a bundle that is new to the serving model (6 other new purchases" in waiting.reason
    assert "3 are needed" in waiting.reason
    forced = retrain(store, min_cases=3, force=True)
    assert forced.published
    assert forced.comparison is None


def test_only_the_first_places_of_a_list_count_as_shown(store: Store) -> None:
    before = store.dataset()
    shown(store, "u1", ("b7", "b6", "b3", "b2"), NOON)
    bought(store, "u1", "b3", NOON + HOUR)
    found = chosen(store, before, places=2)
    assert found.prompted == 0
    assert found.cases[0].shown == {"b7", "b6"}
    assert chosen(store, before, places=3).prompted == 1

    bought(
        store, "u2", "b3", NOON + HOUR, "x"
    )  # the user has come from this list, so its place does not matter
    shown(store, "u2", ("b7", "b6", "b3", "b2"), NOON, id="x")
    assert chosen(store, before, places=2).prompted == 1


def popularity(store: Store, path: Path, histories: str = "auto") -> Recommender:
    """Publishes a model that has learned from all that the store has."""
    plan = SplitPlan("none", histories=histories)
    model = Recommender("popularity", device="cpu").fit(store.dataset(), plan, progress=False)
    store.publish(record_of(model.save(path)))
    return model


def test_it_is_said_if_the_store_has_hardly_any_list(store: Store, tmp_path: Path) -> None:
    popularity(store, tmp_path / "model")
    for user in range(8):
        bought(store, f"u{user}", "b3", NOON + user * HOUR)
    without = retrain(store, min_cases=3, force=True)
    assert without.comparison is not None
    assert without.with_list == 0
    (warning,) = without.warnings
    assert "for 0 of the 4 cases" in warning
    assert "mails" in warning

    store.publish(record_of(tmp_path / "model"))
    for user in range(8):
        shown(store, f"u{user}", ("b2", "b4"), NOON)
    known = retrain(store, min_cases=3, force=True)
    assert (known.with_list, known.warnings) == (4, ())
    assert retrain(store, min_cases=3).warnings == ()  # nothing was compared


# ── Views and returns ────────────────────────────────────────────────────────────────────────────────


def told(store: Store, user: str, bundle: str, at: datetime, weight: float) -> None:
    store.add_interactions([InteractionRecord(user, "bundle", bundle, at, None, weight)])


def test_only_purchases_are_cases_and_histories_have_weights(store: Store) -> None:
    before = store.dataset()
    for user in range(8):
        told(store, f"u{user}", "b1", NOON, 0.2)
        bought(store, f"u{user}", "b5", NOON + (1 + user) * HOUR)
        told(store, f"u{user}", "b6", NOON + 9 * HOUR, 0.5)
    told(store, "u7", "b5", NOON + 10 * HOUR, -1)  # returned
    found = chosen(store, before)
    dataset = store.dataset()
    users, bundles = dataset.user_bundle.nonzero()
    asked = {(dataset.users[users[pair]], dataset.bundles[bundles[pair]]) for pair in found.pairs}
    assert {bundle for _, bundle in asked} == {"b5"}
    assert {user for user, _ in asked} > {"u6", "u5", "u4"} - {"u7"}
    case = found.cases[-1]
    assert case.bundle == "b5"
    assert case.history.bundles == ("b1",)
    assert list(case.history.bundle_weights or ()) == [pytest.approx(0.2)]
    assert case.history.times is not None
    assert case.history.times[1] == (int(NOON.timestamp()) * 1_000_000,)
    assert set(found.earlier_sales(dataset).bundles.values()) <= {0, 1, 2, 3, 4}
    assert found.earlier_sales(dataset).bundles["b1"] == 0  # it was only viewed
    split = hold_out(dataset, found, NO_BUNDLE, SplitPlan("none", 0, 3), np.random.default_rng(0))
    assert split.validation is None or not set(split.validation.positives.nonzero()[1]) & {1, 6}
    assert split.train.bundle_events.weight is not None


def test_a_retraining_learns_from_weights_times_and_returns(store: Store, tmp_path: Path) -> None:
    popularity(store, tmp_path / "model")
    for user in range(8):
        told(store, f"u{user}", "b1", NOON, 0.2)
        bought(store, f"u{user}", "b5", NOON + (1 + user) * HOUR)
    told(store, "u0", "b7", NOON, -1)
    splits: list[Split] = []
    outcome = retrain(store, min_cases=3, force=True, on_split=lambda split, _: splits.append(split))
    assert outcome.published
    events = splits[0].dataset.bundle_events
    assert events.at is not None
    assert events.weight is not None
    assert events.rejected is not None
    assert sorted(set(events.weight.tolist())) == [pytest.approx(0.2), 1]
    assert events.rejected.nnz == 1
    assert splits[0].train.bundle_events.weight is not None


# ── The newest ───────────────────────────────────────────────────────────────────────────────────────


def test_the_newest_purchases_are_held_out_and_nothing_later_is_learned(store: Store) -> None:
    before = store.dataset()
    for user in range(8):  # one after another: u0 at 12, u1 at 13 and so on
        bought(store, f"u{user}", "b5", NOON + user * HOUR)
    bought(store, "u7", "b6", NOON + 7 * HOUR)  # together with b5
    bought(store, "u6", "b1", NOON + 7 * HOUR)
    shown(store, "u5", ("b2",), NOON)
    bought(store, "u5", "b2", NOON + 8 * HOUR)  # prompted, so it is no case
    item = InteractionRecord("u4", "item", "i7", NOON + 7 * HOUR)
    earlier = InteractionRecord("u4", "item", "i6", NOON + HOUR)
    store.add_interactions([item, earlier])

    found = chosen(store, before)
    # Half of the eight users: the newest purchases of u7, u6, u5 and u4.
    assert found.since == NOON + 4 * HOUR
    dataset = store.dataset()
    users, bundles = dataset.user_bundle.nonzero()
    asked = {(dataset.users[users[pair]], dataset.bundles[bundles[pair]]) for pair in found.pairs}
    assert asked - {("u7", "b5"), ("u7", "b6")} == {("u6", "b1"), ("u5", "b5"), ("u4", "b5")}
    assert len(asked) == 4
    assert found.prompted == 1
    cases = dict(zip((dataset.users[users[pair]] for pair in found.pairs), found.cases, strict=True))
    assert cases["u7"].history.bundles == ()  # what was bought together would give it away
    assert cases["u6"].history.bundles == ("b5",)
    assert set(cases["u4"].history.items) == {"i4", "i6"}
    assert cases["u5"].shown == {"b2"}

    split = hold_out(dataset, found, NO_BUNDLE, SplitPlan("none", 0, 3), np.random.default_rng(0))
    assert split.validation is not None
    rows, columns = split.validation.positives.nonzero()
    pairs = pairs_of(split.train.user_bundle) | set(zip(split.validation.users[rows], columns, strict=True))
    learned = {(dataset.users[user], dataset.bundles[bundle]) for user, bundle in pairs}
    assert learned == {("u0", "b0"), ("u0", "b5"), ("u1", "b5"), ("u2", "b5"), ("u3", "b5")}
    owned = {(dataset.users[user], dataset.items[item]) for user, item in pairs_of(split.train.user_item)}
    assert ("u4", "i6") in owned
    assert ("u4", "i7") not in owned
    sales = found.earlier_sales(dataset)
    assert sales.bundles["b5"] == 4
    assert sales.bundles["b1"] == 0


def test_without_different_times_the_cases_are_random(store: Store) -> None:
    before = store.dataset()
    for user in range(4):
        bought(store, f"u{user}", "b5", NOON)
        bought(store, f"u{user}", "b6", NOON)
    found = chosen(store, before)
    assert found.since is None
    assert len(found.cases) == 4
    assert {len(case.history.bundles) for case in found.cases} == {1, 2}  # u0 has an old one, too
    assert found.later_bundles.sum() == 4
    assert not found.later_items.any()

    bought(store, "u5", "b1", NOON + HOUR)
    assert chosen(store, before).since is not None
    assert chosen(store, before, min_cases=6).since is None  # too few users have a purchase with a time


def test_a_history_lacks_the_items_that_give_the_bundle_away(store: Store) -> None:
    before = store.dataset()
    for user in range(8):
        bought(store, f"u{user}", "b5", NOON + user * HOUR)
        store.add_interactions([InteractionRecord(f"u{user}", "item", name, NOON) for name in ("i5", "i6")])
    found, dataset = chosen(store, before), store.dataset()
    split = hold_out(dataset, found, NO_BUNDLE, SplitPlan("none", 0, 3), np.random.default_rng(0))
    assert split.histories == "without held-out"
    assert any("i5" in case.history.items for case in found.cases)
    assert not any("i5" in case.history.items for case in questions_of(split, found))
    as_given = replace(split, histories="as given")
    assert questions_of(as_given, found) == list(found.cases)


@pytest.mark.parametrize("others", [0, 150])
def test_the_newest_items_do_not_give_a_bundle_away(store: Store, others: int) -> None:
    """Here no item of the training data gives a bundle away. With `others`, few of the held-out pairs do."""
    for number in range(others):
        for bundle in ("b6", "b7"):
            bought(store, f"v{number}", bundle, NOON - HOUR)
    before = store.dataset()
    for user in range(1, 8):
        at = NOON + user * HOUR
        bought(store, f"u{user}", "b2", at)
        if user > 4:
            moment = at - timedelta(seconds=1)
            items = [InteractionRecord(f"u{user}", "item", name, moment) for name in ("i2", "i3")]
            store.add_interactions(items)
    found, dataset = chosen(store, before), store.dataset()
    assert sum("i2" in case.history.items for case in found.cases) == 3
    for histories in ("auto", "without held-out", "as given"):
        plan = SplitPlan("none", 0, 3, histories=histories)
        split = hold_out(dataset, found, NO_BUNDLE, plan, np.random.default_rng(0))
        given_away = sum("i2" in case.history.items for case in questions_of(split, found))
        assert given_away == (3 if histories == "as given" else 0)
        assert split.plan == plan


def test_a_purchase_in_the_far_future_is_no_case(store: Store, tmp_path: Path) -> None:
    popularity(store, tmp_path / "model")
    before = store.dataset()
    for user in range(8):
        bought(store, f"u{user}", "b3", NOON + user * HOUR)
    expected = [(case.history, case.bundle) for case in chosen(store, before).cases]
    for user in range(10):
        bought(store, f"u{user}", "b4", datetime(9999, 1, 1, tzinfo=UTC))
    found = chosen(store, before)
    assert found.since == NOON + 4 * HOUR
    assert [(case.history, case.bundle) for case in found.cases] == expected
    assert {case.bundle for case in chosen(store, before, min_cases=9).cases} == {"b3"}  # also at random
    outcome = retrain(store, min_cases=3, force=True)
    assert outcome.path is not None
    learned = Recommender.load(outcome.path, device="cpu").model.get_buffer("bundle_counts")
    assert learned.tolist() == [1, 0, 0, 8, 10, 0, 0, 0]
    assert retrain(store, min_cases=3).cases == 0  # it does not test each later model


@pytest.mark.parametrize("histories", ["auto", "as given"])
def test_a_published_model_has_learned_from_everything(store: Store, tmp_path: Path, histories: str) -> None:
    popularity(store, tmp_path / "model", histories)
    for user in range(8):
        bought(store, f"u{user}", "b3", NOON + user * HOUR)
    outcome = retrain(store, min_cases=3)
    assert outcome.published
    assert outcome.path is not None
    assert outcome.reason.endswith("; it was then trained again on all 9 user-bundle pairs")
    model = Recommender.load(outcome.path, device="cpu")
    assert model.model.get_buffer("bundle_counts").tolist() == [1, 0, 0, 8, 0, 0, 0, 0]
    assert model.held_out == 0
    assert model.plan.histories == histories
    assert model.metrics["final"]["held_out_before"] == 5  # four cases, and an earlier bundle of u0
    assert model.metrics["retrain"]["reason"] == outcome.reason


# ── Completing bundles ───────────────────────────────────────────────────────────────────────────────


def with_new_bundles(store: Store, count: int) -> None:
    """Adds bundles of one taste each, which nobody has bought."""
    random = np.random.default_rng(5)
    for number in range(count):
        items = random.permutation(ITEMS_OF_A_TASTE)[:4] + ITEMS_OF_A_TASTE * (number % TASTES)
        store.put(Bundle(f"n{number}", tuple(f"i{item}" for item in items)))


def test_a_model_that_completes_bundles_clearly_worse_is_not_published(tmp_path: Path) -> None:
    store = Store.open(f"sqlite:///{tmp_path}/shop.db")
    open_early(store, early_model(tmp_path / "shop"))
    sell(store)
    with_new_bundles(store, 58)
    never: dict[str, Any] = {"generation_weight": 1e-9, "generation_temperature": 100.0, "residual": False}
    never |= {"select_by": "matching"}
    unknown = retrain(store, settings=never, models=tmp_path / "models")
    assert unknown.new_bundles == 58  # half of them are 29, and 30 are needed
    assert unknown.generation is None
    assert unknown.published

    with_new_bundles(store, 80)
    store.publish(record_of(tmp_path / "shop"))
    refused = retrain(store, settings=never, models=tmp_path / "models")
    assert refused.generation is not None
    assert refused.generation.cases == 40
    assert refused.generation.clearly_below(0)
    assert refused.comparison is not None
    assert refused.comparison.difference >= 0  # alone, this would be enough
    assert not refused.published
    assert refused.reason.startswith("in completing bundles its ndcg@10 of ")
    assert refused.test[0].generation_cases == 40

    good = retrain(store, models=tmp_path / "models")
    assert good.published
    assert good.generation is not None
    assert good.generation.candidate["ndcg@10"] > refused.generation.candidate["ndcg@10"]
    store.close()


@pytest.mark.parametrize("name", ["bundlemage", "co-occurrence", "ppmi-svd", "ease-items"])
def test_generation_does_not_learn_the_bundles_that_test_it(name: str, tmp_path: Path) -> None:
    """Other contents of the held-out bundles make no difference to a model that does not learn them."""
    assert name in MODELS
    early = early_shop()
    rest = np.arange(20, 40)
    contents = early.bundle_item.tolil()
    contents[rest] = 0
    serving = Recommender("popularity", device="cpu")
    serving.fit(early.with_interactions(bundle_item=contents.tocsr()), SplitPlan("none"), progress=False)
    assert new_bundles(early, learned_by(serving)).tolist() == rest.tolist()
    of_all = Recommender("popularity", device="cpu").fit(early, SplitPlan("none"), progress=False)
    assert len(new_bundles(early, learned_by(of_all))) == 0

    store = Store.open(f"sqlite:///{tmp_path}/empty.db")
    none = choose_purchases(store, early, learned_by(of_all), EMPTY, 1, np.random.default_rng(0))
    store.close()
    split = hold_out(early, none, rest.astype(np.int32), SplitPlan("none", 0, 5), np.random.default_rng(0))
    assert split.generation is not None
    assert split.generation.known_as is not None
    assert len(completions_of(split)) == 10
    for case in completions_of(split):
        assert len(case.partial) == 3
        assert len(case.hidden) == 1

    def scores(split: Split) -> Any:
        settings: dict[str, Any] = {"embedding_dim": 8, "epochs": 2} if name == "bundlemage" else {}
        model = Recommender(name, device="cpu", **settings)
        model.fit(split, progress=False, calibrate=False)
        return [
            [(each.id, each.score) for each in model.complete("u1", ["i1", item], 5)]
            for item in ("i2", "i12")
        ]

    other = split.train.bundle_item.tolil()
    tested = split.generation.known_as
    other[tested] = other[tested][:, ::-1]
    unbought = split.train.user_bundle.multiply(0)
    without_buyers = replace(
        split, train=split.train.with_interactions(user_bundle=unbought), validation=None, test=None
    )
    changed = replace(
        without_buyers,
        train=without_buyers.train.with_interactions(bundle_item=other.tocsr()),
    )
    assert scores(without_buyers) == scores(changed)
    assert scores(without_buyers) != scores(replace(changed, generation=None))


def test_the_parts_of_auto_do_not_learn_the_bundles_that_test_them(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closed forms that complete bundles must not know the contents of the tested bundles."""
    early = early_shop()
    of_all = Recommender("popularity", device="cpu").fit(early, SplitPlan("none"), progress=False)
    random = np.random.default_rng(0)
    none = choose_purchases(store, early, learned_by(of_all), EMPTY, 1, random)
    split = hold_out(early, none, np.arange(20, 40, dtype=np.int32), SplitPlan("none", 0, 5), random)
    assert split.generation is not None
    tested = split.generation.known_as
    assert tested is not None
    monkeypatch.setitem(CLOSED_FORMS, "generation", (("co-occurrence", {"user_weight": 0.0}),))
    # A validation case, or `auto` would compare nothing; and BundleMage learns nothing, so it is not chosen.
    users, bundles = (row[:1] for row in early.user_bundle.nonzero())
    validation = leave_one_out(early, users, bundles, np.zeros(40, bool), 5, random)
    split = replace(split, validation=validation)
    model = Recommender("auto", device="cpu", embedding_dim=8, epochs=1, learning_rate=1e-9)
    model.fit(split, progress=False, calibrate=False)
    assert isinstance(model.model, Auto)
    part = model.model.part("co-occurrence")
    assert part is not None
    learned = set(part.get_buffer("holders").tolist())
    assert learned
    assert not learned & set(tested.tolist())


# ── Who wins ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [0, 1])
def test_a_shop_that_sells_what_it_shows_gets_the_better_model(seed: int, tmp_path: Path) -> None:
    """Twenty seeds and more models are in tests/slow."""
    found = tried(seed, "owned-share", "item-knn", tmp_path, users=400, days=8)
    assert found.candidate > 1.5 * found.serving
    assert found.published
    assert found.outcome.prompted > 3 * found.outcome.cases
    assert found.outcome.since is not None
    assert f"{found.outcome.prompted:,} prompted purchases were left out" in found.outcome.reason


@pytest.mark.parametrize("seed", [0, 1])
def test_a_shop_that_sells_what_it_shows_does_not_get_a_worse_model(seed: int, tmp_path: Path) -> None:
    found = tried(seed, "item-knn", "owned-share", tmp_path, users=400, days=8)
    assert found.candidate < found.serving - 0.1
    assert not found.published


def test_a_shop_that_asks_for_long_lists_gets_the_better_model_too(tmp_path: Path) -> None:
    """Its service returns all bundles, and its users look at the first five."""
    found = tried(0, "owned-share", "item-knn", tmp_path, users=400, days=8, shown=BUNDLES)
    assert found.candidate > 1.5 * found.serving
    assert found.published


def test_a_model_that_cannot_complete_bundles_does_not_replace_one_that_can(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="ItemKNN with these settings completes no bundles"):
        tried(0, "popularity", "item-knn", tmp_path, users=60, days=1)
