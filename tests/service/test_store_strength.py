"""What the store keeps of views, purchases and returns, and which of them counts."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

import numpy as np
import pytest

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.events import UNDATED, Events
from bundlemage.errors import IdempotencyError, UnstorableError
from bundlemage.store.records import Bundle, Entry, InteractionRecord, Item, Owned, Recorded, Sales, Served
from bundlemage.store.repository import Store
from tests.small_shop import matrix_of, small_shop

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
THINGS: list[tuple[Literal["item", "bundle"], str]] = [("item", "lamp"), ("bundle", "room")]
MICROSECONDS = int(NOON.timestamp()) * 1_000_000


@pytest.fixture
def shop(store: Store) -> Store:
    """A store with two items and two bundles."""
    for name in ("lamp", "rug"):
        store.put(Item(name))
    store.put(Bundle("room", ("lamp", "rug")))
    store.put(Bundle("hall", ("rug",)))
    return store


def event(
    name: str | None, hours: int = 0, user: str = "ann", thing: str = "lamp", **more: Any
) -> InteractionRecord:
    """A view, a purchase or a return, so many hours after noon."""
    weight = {"view": 0.2, "cart": 0.5, "buy": 1.0, "return": -1.0, None: None}[name]
    kind: Literal["item", "bundle"] = "bundle" if thing in ("room", "hall") else "item"
    return InteractionRecord(user, kind, thing, NOON + hours * HOUR, None, weight, name, **more)


@pytest.mark.parametrize(
    ("events", "kept", "new"),
    [
        ([("view", 0), ("buy", 1)], ("buy", 1), 2),  # the strongest counts
        ([("buy", 0), ("view", 1)], ("buy", 0), 1),
        ([("view", 0), ("view", 1)], ("view", 0), 1),  # of equal ones the first
        ([("buy", 1), ("buy", 0)], ("buy", 1), 1),
        ([("buy", 0), ("return", 1)], ("return", 1), 2),  # a later return takes it back
        ([("return", 1), ("buy", 0)], ("return", 1), 1),
        ([("buy", 0), ("return", 0)], ("return", 0), 2),
        ([("return", 0), ("buy", 0)], ("return", 0), 1),
        ([("buy", 0), ("return", 1), ("buy", 2)], ("buy", 2), 3),  # and a still later purchase counts again
        ([("buy", 0), ("return", 1), ("view", 2)], ("view", 2), 3),
        ([("buy", 2), ("return", 1)], ("buy", 2), 1),  # what arrives late does not count
        ([("return", 0), ("return", 2), ("buy", 1)], ("return", 2), 2),
    ],
)
def test_which_of_several_events_counts(
    shop: Store, events: list[tuple[str, int]], kept: tuple[str, int], new: int
) -> None:
    """At once in one request, and one after the other."""
    for user, parts in (("ann", [events]), ("bob", [[each] for each in events])):
        recorded = [
            shop.add_interactions([event(name, hours, user) for name, hours in part]) for part in parts
        ]
        assert sum(each.new for each in recorded) == new
        assert sum(each.known for each in recorded) == len(events) - new
        (found,) = shop.entries("item", user)
        assert (found.event, found.at) == (kept[0], NOON + kept[1] * HOUR)


def test_the_end_is_the_same_for_events_in_any_order(shop: Store) -> None:
    """As long as no rejection lies between weaker and stronger events, whatever arrives first."""
    events = [("view", 0), ("buy", 1), ("return", 3), ("buy", 2)]
    for number, order in enumerate(itertools.permutations(events)):
        user = f"user {number}"
        shop.add_interactions([event(name, hours, user) for name, hours in order])
        assert shop.entries("item", user)[0].event == "return"
        again = shop.add_interactions([event(name, hours, user) for name, hours in order])
        assert again == Recorded(0, 4)  # a repeated request changes nothing


def test_a_purchase_without_a_weight_is_as_before(shop: Store) -> None:
    plain = InteractionRecord("ann", "item", "lamp", NOON)
    assert shop.add_interactions([plain]) == Recorded(1, 0)
    assert shop.add_interactions([replace(plain, at=NOON + HOUR)]) == Recorded(0, 1)
    assert shop.add_interactions([replace(plain, weight=1.0, event="buy")]) == Recorded(0, 1)
    assert shop.histories(["ann"])["ann"] == Owned(("lamp",))
    assert shop.entries("item", "ann") == [Entry("lamp", NOON)]


def test_a_history_has_weights_and_what_was_rejected(shop: Store) -> None:
    shop.add_interactions(
        [
            event("view", 2, thing="lamp"),
            event("buy", 1, thing="rug"),
            event("return", 3, thing="room"),
            event("cart", 4, thing="hall"),
            event("buy", user="bob", thing="room"),
            event("return", user="eve", thing="lamp"),
        ]
    )
    ann = Owned(("rug", "lamp"), ("hall",), (1.0, 0.2), (0.5,), (), ("room",))
    bob, eve = Owned((), ("room",)), Owned(rejected_items=("lamp",))
    assert shop.histories(["ann", "bob", "eve", "joe"]) == {
        "ann": ann,
        "bob": bob,
        "eve": eve,
        "joe": Owned(),
    }
    dated = shop.histories(["ann", "joe"], times=True)
    at = MICROSECONDS + 3_600_000_000
    assert dated["ann"] == replace(ann, times=((at, at + 3_600_000_000), (at + 3 * 3_600_000_000,)))
    assert dated["joe"].times == ((), ())
    quick = shop.histories(["ann"], in_order=False)["ann"]
    assert dict(zip(quick.items, quick.item_weights or (), strict=True)) == {"rug": 1.0, "lamp": 0.2}
    assert shop.erase_user("ann")
    assert shop.histories(["ann"]) == {"ann": Owned()}
    assert shop.entries("bundle", "ann") == []


def test_only_purchases_are_sales(shop: Store) -> None:
    shop.add_interactions([event("view", user=user) for user in ("ann", "bob")])
    assert shop.sales() == Sales({"lamp": 2}, {})  # without a purchase, the weights are no such scale
    shop.add_interactions([event("buy", user="eve"), event("cart", user="eve", thing="room")])
    shop.add_interactions([event("return", user="joe"), event("return", user="joe", thing="hall")])
    assert shop.sales() == Sales({"lamp": 1}, {"room": 1})
    shop.add_interactions([event("buy", thing="room")])
    assert shop.sales() == Sales({"lamp": 1}, {"room": 1})


def test_purchases_of_bundles_are_counted_by_month(shop: Store) -> None:
    def at(text: str) -> datetime:
        return datetime.fromisoformat(f"{text}+00:00")

    times = {"ann": "2026-01-31T23:00", "bob": "2026-02-01T00:00", "eve": "2026-02-28T23:59"}
    events = [replace(event("buy", user=user, thing="room"), at=at(text)) for user, text in times.items()]
    viewed = replace(event("view", user="joe", thing="room"), at=at("2026-03-01T00:00"))
    item = replace(event("buy", user="joe"), at=at("2026-03-01T00:00"))
    shop.add_interactions([*events, viewed, item])
    assert list(shop.sales().by_month.items()) == [("2026-01", 1), ("2026-02", 2)]


def test_a_view_is_no_taking(shop: Store) -> None:
    shop.add_served([Served("r", "bundles", "ann", "m", ("room", "hall"), NOON)])
    shop.add_interactions([event("view", 1, thing="room"), event("return", 1, thing="hall")])
    assert shop.served_since(NOON).taken == 0
    shop.add_interactions([event("buy", 2, thing="room")])
    assert shop.served_since(NOON).taken == 1


def test_weak_pairs_are_counted_by_their_index(store: Store) -> None:
    store.import_dataset(small_shop())
    with store._database.read() as connection:
        query = "SELECT sql FROM sqlite_master WHERE type = 'index'"
        if not store._database.is_sqlite:
            query = "SELECT indexdef FROM pg_indexes"
        found = [text for text in connection.exec_driver_sql(query).scalars() if text and "weak" in text]
    assert len(found) == 2
    assert all("weight < " in text for text in found)


@pytest.mark.parametrize("weight", [0.0, float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_says_nothing_is_refused(shop: Store, weight: float) -> None:
    with pytest.raises(UnstorableError, match=r"the weight of an interaction is .*; expected a number above"):
        shop.add_interactions([InteractionRecord("ann", "item", "lamp", NOON, None, weight)])
    assert shop.histories(["ann"]) == {"ann": Owned()}


def test_a_key_stands_for_one_strength(shop: Store) -> None:
    viewed = [event("view")]
    assert shop.add_interactions(viewed, idempotency_key="k") == Recorded(1, 0)
    assert shop.add_interactions(viewed, idempotency_key="k") == Recorded(1, 0, replayed=True)
    again = [replace(viewed[0], weight=0.3)]  # another model may give views another weight
    assert shop.add_interactions(again, idempotency_key="k").replayed
    for other in (event("buy"), replace(viewed[0], event=None), replace(viewed[0], event=None, weight=None)):
        with pytest.raises(IdempotencyError):
            shop.add_interactions([other], idempotency_key="k")


def shop_of_events(seed: int = 0) -> BundleDataset:
    """The small shop, with times, weights and rejected pairs."""
    data, chance = small_shop(), np.random.default_rng(seed)

    def events(matrix: Any) -> Events:
        at = chance.integers(10**15, 2 * 10**15, matrix.nnz)
        at[chance.random(matrix.nnz) < 0.2] = UNDATED
        weight = chance.choice(np.array([0.2, 0.5, 1, 3], np.float32), matrix.nnz)
        rows = [
            set(chance.choice(matrix.shape[1], 2).tolist()) - set(matrix[row].indices.tolist())
            for row in range(matrix.shape[0])
        ]
        return Events(at, weight, matrix_of(rows, matrix.shape[1]))

    return replace(data, item_events=events(data.user_item), bundle_events=events(data.user_bundle))


def test_times_weights_and_rejections_come_out_as_they_went_in(store: Store) -> None:
    given = shop_of_events()
    store.import_dataset(given)
    found = store.dataset()
    assert found.fingerprint() == given.fingerprint()
    assert found.item_events.weight is not None
    assert given.bundle_events.rejected is not None
    user = given.users[3]
    history = store.histories([user])[user]
    names = {given.items[place] for place in given.user_item[3].indices.tolist()}
    assert set(history.items) == names
    assert set(history.rejected_bundles) == {
        given.bundles[place] for place in given.bundle_events.rejected[3].indices.tolist()
    }


def test_a_time_before_the_first_day_that_utc_has_is_read_as_this_day(shop: Store) -> None:
    early = datetime.min.replace(tzinfo=timezone(14 * HOUR))
    shop.add_interactions([InteractionRecord("ann", kind, name, early) for kind, name in THINGS])
    assert shop.entries("item", "ann") == [Entry("lamp", datetime.min.replace(tzinfo=UTC))]
    at = shop.dataset().item_events.at
    assert at is not None
    assert at.tolist() == [-62_135_596_800_000_000]


@pytest.mark.parametrize("fact", ["at", "weight", "rejected"])
def test_each_fact_goes_through_the_store_alone(store: Store, fact: str) -> None:
    given = shop_of_events()
    alone = replace(
        given,
        item_events=Events(**{fact: getattr(given.item_events, fact)}),
        bundle_events=Events(),
    )
    store.import_dataset(alone)
    assert store.dataset().fingerprint() == alone.fingerprint()


def test_the_store_agrees_with_a_plain_model_of_it(shop: Store) -> None:
    """Random events of a few pairs, also of several users in one request, against rules in Python."""
    chance = random.Random(5)
    kept: dict[tuple[str, str], InteractionRecord] = {}
    weights = {"view": 0.2, "cart": 0.5, "buy": 1.0, "return": -1.0}
    for _ in range(60):
        sent = [
            event(chance.choice(list(weights)), chance.randrange(5), chance.choice("ab"), thing)
            for thing in chance.choices(["lamp", "rug", "room"], k=chance.randint(1, 4))
        ]
        new = 0
        for each in sorted(sent, key=lambda record: record.kind == "bundle"):
            key, after = (each.user_id, each.thing_id), weights[each.event or ""]
            old = kept.get(key)
            if old is not None:
                assert old.at is not None
                assert each.at is not None
                before = weights[old.event or ""]
                if before < 0:
                    counts = each.at > old.at
                else:
                    counts = each.at >= old.at if after < 0 else after > before
                if not counts:
                    continue
            kept[key], new = each, new + 1
        assert shop.add_interactions(sent).new == new
    for user in "ab":
        for kind in ("item", "bundle"):
            found = {entry.thing_id: (entry.event, entry.at) for entry in shop.entries(kind, user)}
            assert found == {
                thing: (each.event, each.at)
                for (owner, thing), each in kept.items()
                if owner == user and each.kind == kind
            }
