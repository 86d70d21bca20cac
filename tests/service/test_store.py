"""What the store keeps, and how it answers, on each kind of database."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.dialects import sqlite

from bundlemage.data.dataset import Vocabulary
from bundlemage.data.events import UNDATED
from bundlemage.errors import (
    DataError,
    ExistsError,
    IdempotencyError,
    StoreError,
    SupersededError,
    UnknownThingsError,
    UnstorableError,
)
from bundlemage.store import histories
from bundlemage.store.records import (
    Bundle,
    CatalogueChange,
    Entry,
    InteractionRecord,
    Item,
    Key,
    ModelRecord,
    Owned,
    Recorded,
    Sales,
    Served,
    ServedSummary,
    State,
)
from bundlemage.store.repository import Store
from bundlemage.wire.answers import UserLine
from tests.small_shop import dataset_of, shop_with_details, small_shop

NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
LAMP = Item("lamp", "A lamp", 9.5, ("home", "light"), 3)
RUG = Item("rug", "A rug", 20.0, ("home",), 0)
ROOM = Bundle("room", ("rug", "lamp"), "A room", 25.0, 0.15, ("home",))
ODD_IDS = ["", "   ", "a\nb", "a\x00b", "\ud800", "x" * 201]


@pytest.fixture
def shop(store: Store) -> Store:
    """A store with two items and a bundle of them."""
    store.put(LAMP)
    store.put(RUG)
    store.put(ROOM)
    return store


def took(
    user: str, thing: str, at: datetime | None = None, request_id: str | None = None
) -> InteractionRecord:
    return InteractionRecord(user, "bundle" if thing == ROOM.id else "item", thing, at, request_id)


def item_of(store: Store, name: str) -> Item | None:
    return next((item for item in store.catalogue().items if item.id == name), None)


def bundle_of(store: Store, name: str) -> Bundle | None:
    return next((bundle for bundle in store.catalogue().bundles if bundle.id == name), None)


# Whole datasets


def test_a_new_store_is_empty(store: Store) -> None:
    assert store.is_empty()
    assert store.state() == State(0, None)
    assert store.catalogue() == CatalogueChange(0, [], [])
    assert store.users() == []
    assert store.sales() == Sales({}, {})
    assert store.models() == []
    assert store.keys() == []
    assert not store.has_keys()


def test_a_dataset_comes_out_as_it_went_in(store: Store) -> None:
    given = small_shop()
    told: list[tuple[str, float, float]] = []
    store.import_dataset(given, lambda stage, done, of, *_: told.append((stage, done, of)))
    found = store.dataset()
    assert found.fingerprint() == given.fingerprint()
    assert given.catalogue is not None
    assert found.catalogue is not None
    assert found.catalogue.items.equals(given.catalogue.items)
    assert found.catalogue.bundles.equals(given.catalogue.bundles)
    rows = given.user_item.nnz + given.user_bundle.nnz + given.bundle_item.nnz + 90 + 40
    assert told[-1] == ("rows", rows, rows)
    done = [step[1] for step in told]
    assert done == sorted(done)


def test_an_imported_dataset_is_catalogue_and_history(store: Store) -> None:
    store.import_dataset(dataset_of([[2, 0], []], [[0], []], [[1, 2]], 3))
    assert not store.is_empty()
    change = store.catalogue()
    assert change.version == store.state().catalogue == 1
    assert change.items == [Item("i0"), Item("i1"), Item("i2")]
    assert change.bundles == [Bundle("b0", ("i1", "i2"))]
    assert store.histories(["u0", "u1"]) == {"u0": Owned(("i0", "i2"), ("b0",)), "u1": Owned()}
    store.add_interactions([took("u0", "i1")])
    assert store.histories(["u0"])["u0"].items == ("i0", "i2", "i1")  # what was imported came before


def test_sales_are_still_looked_up_by_thing_after_an_import(store: Store) -> None:
    store.import_dataset(dataset_of([[0]], [[0]], [[0]], 1))
    with store._database.read() as connection:
        query = "SELECT name FROM sqlite_master WHERE type = 'index'"
        if not store._database.is_sqlite:
            query = "SELECT indexname FROM pg_indexes"
        names = set(connection.exec_driver_sql(query).scalars())
    assert {"ix_user_item_item_id", "ix_user_bundle_bundle_id"} <= names


def test_what_came_later_is_training_data_too(shop: Store) -> None:
    with pytest.raises(DataError, match="user_item: there are column names but no rows"):
        shop.dataset()
    shop.add_interactions([took("ann", "lamp"), took("ann", "room")])
    shop.withdraw("item", "rug")
    shop.withdraw("bundle", "room")
    found = shop.dataset()
    assert (found.users.ids, found.items.ids, found.bundles.ids) == (("ann",), ("lamp", "rug"), ("room",))
    assert found.catalogue is not None
    assert found.catalogue.items["stock"].to_pylist() == [3, 0]
    assert found.catalogue.bundles["tags"].to_pylist() == [["home"]]


def test_a_dataset_goes_only_into_an_empty_store(shop: Store) -> None:
    before = shop.catalogue()
    with pytest.raises(StoreError, match="already has a catalogue"):
        shop.import_dataset(small_shop())
    assert shop.catalogue() == before


@pytest.mark.parametrize("odd", ["a\tb", "x" * 201])
def test_an_id_that_no_address_can_carry_is_not_imported(store: Store, odd: str) -> None:
    given = dataset_of([[0]], [[0]], [[0]], 1, users=Vocabulary("user", [odd]))
    with pytest.raises(UnstorableError, match=r"the user id .* Give the user another id"):
        store.import_dataset(given)
    assert store.is_empty()


# The catalogue


def test_an_item_is_put_and_put_again(store: Store) -> None:
    assert item_of(store, "lamp") is None
    assert store.put(LAMP)
    assert item_of(store, "lamp") == LAMP
    assert not store.put(Item("lamp", stock=2))
    assert item_of(store, "lamp") == Item("lamp", stock=2)  # all of it is what was given last


def test_a_bundle_keeps_the_order_of_its_items(shop: Store) -> None:
    assert bundle_of(shop, "room") == ROOM
    assert shop.catalogue().bundles == [ROOM]
    turned = Bundle("room", ("lamp", "rug"))
    assert not shop.put(turned)
    assert bundle_of(shop, "room") == turned
    assert not shop.put(Bundle("room", ("lamp",)))
    assert shop.catalogue().bundles == [Bundle("room", ("lamp",))]


def test_a_bundle_of_unknown_items_is_refused(shop: Store) -> None:
    before = shop.state()
    with pytest.raises(UnknownThingsError, match="there are no items 'b', 'a' in the catalogue") as raised:
        shop.put(Bundle("odd", ("b", "lamp", "a")))
    assert (raised.value.kind, raised.value.ids) == ("item", ("b", "a"))
    assert bundle_of(shop, "odd") is None
    assert shop.state() == before


def test_what_is_withdrawn_is_marked_and_can_come_back(shop: Store) -> None:
    assert shop.withdraw("item", "lamp")
    assert shop.withdraw("bundle", "room")
    item, bundle = item_of(shop, "lamp"), bundle_of(shop, "room")
    assert item is not None
    assert item.withdrawn
    assert bundle is not None
    assert bundle.withdrawn
    assert bundle.items == ROOM.items
    assert not shop.put(LAMP)
    assert item_of(shop, "lamp") == LAMP
    before = shop.state()
    assert not shop.withdraw("item", "room")
    assert not shop.withdraw("bundle", "lamp")
    assert shop.state() == before


def test_the_catalogue_tells_what_changed_since(shop: Store) -> None:
    before = shop.state().catalogue
    assert shop.catalogue(before) == CatalogueChange(before, [], [])
    shop.withdraw("item", "rug")
    change = shop.catalogue(before)
    assert change.version == shop.state().catalogue == before + 1
    assert [item.id for item in change.items] == ["rug"]
    assert change.bundles == []
    shop.put(ROOM)
    assert shop.catalogue(change.version).bundles == [ROOM]
    assert shop.catalogue(change.version).items == []


@pytest.mark.parametrize("odd", ODD_IDS)
def test_an_odd_id_is_never_kept_and_never_found(shop: Store, odd: str) -> None:
    for put in (
        lambda: shop.put(Item(odd)),
        lambda: shop.put(Bundle(odd, ("lamp",))),
        lambda: shop.put(Bundle("b", (odd,))),
        lambda: shop.add_interactions([took(odd, "lamp")]),
        lambda: shop.add_interactions([took("ann", odd)]),
        lambda: shop.add_interactions([took("ann", "lamp")], idempotency_key=odd),
    ):
        with pytest.raises(UnstorableError, match=r" id .* (is empty|characters|control character)"):
            put()
    for find in (shop.key, shop.model):
        assert find(odd) is None
    assert shop.histories([odd]) == {odd: Owned()}
    assert not shop.withdraw("item", odd)
    assert not shop.erase_user(odd)
    assert shop.users(search=odd) == []


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (Item("i", price=-1), "the price of item 'i' is -1; expected a number 0 or more"),
        (Item("i", price=float("nan")), "is nan"),
        (Item("i", stock=2**53 + 1), "the stock of item 'i'"),
        (Item("i", title="a\0b"), "which is not text"),
        (Item("i", tags=("\udc00",)), "which is not text"),
        (Bundle("b", ("lamp", "lamp")), "has the item 'lamp' twice"),
        (Bundle("b", ("lamp",), discount=20), "from 0 to 1, or nothing"),
    ],
)
def test_a_value_that_training_would_choke_on_is_refused(shop: Store, odd: Item | Bundle, words: str) -> None:
    with pytest.raises(UnstorableError, match=words):
        shop.put(odd)
    assert item_of(shop, "i") is None
    assert bundle_of(shop, "b") is None


# Interactions


def test_histories_are_told_oldest_first(shop: Store) -> None:
    shop.add_interactions([took("ann", "lamp", NOON + timedelta(hours=1)), took("ann", "rug", NOON)])
    shop.add_interactions([took("ann", "room")])
    shop.add_interactions([took("bob", "lamp", NOON), took("bob", "rug", NOON)])
    assert shop.histories(["bob", "nobody", "ann", "bob"]) == {
        "bob": Owned(("lamp", "rug")),
        "nobody": Owned(),
        "ann": Owned(("rug", "lamp"), ("room",)),
    }
    assert shop.histories([]) == {}


def test_a_thing_is_had_once(shop: Store) -> None:
    twice = [took("ann", "lamp"), took("ann", "room"), took("ann", "lamp")]
    assert shop.add_interactions(twice) == Recorded(new=2, known=1)
    assert shop.add_interactions(twice) == Recorded(new=0, known=3)
    assert shop.add_interactions([]) == Recorded(0, 0)
    assert shop.histories(["ann"])["ann"] == Owned(("lamp",), ("room",))


def test_interactions_are_recorded_all_or_not_at_all(shop: Store) -> None:
    with pytest.raises(UnknownThingsError, match="there is no bundle 'none' in the catalogue") as raised:
        shop.add_interactions([took("ann", "lamp"), InteractionRecord("ann", "bundle", "none")])
    assert (raised.value.kind, raised.value.ids) == ("bundle", ("none",))
    many = [took("ann", f"none {number}") for number in range(7)]
    with pytest.raises(UnknownThingsError, match=r"'none 4' and 2 more in the catalogue"):
        shop.add_interactions(many)
    with pytest.raises(UnstorableError, match="has no time zone"):
        shop.add_interactions([took("ann", "lamp"), took("ann", "rug", NOON.replace(tzinfo=None))])
    assert shop.histories(["ann"]) == {"ann": Owned()}


def test_what_was_withdrawn_can_still_have_been_bought(shop: Store) -> None:
    shop.withdraw("item", "lamp")
    assert shop.add_interactions([took("ann", "lamp")]).new == 1


def test_an_idempotency_key_is_answered_once(shop: Store) -> None:
    given = [took("ann", "lamp", NOON), took("ann", "room")]
    assert shop.add_interactions(given, idempotency_key="k", caller="c") == Recorded(2, 0)
    elsewhere = [took("ann", "lamp", NOON.astimezone(timezone(timedelta(hours=5)))), took("ann", "room")]
    for same in (given, elsewhere):
        assert shop.add_interactions(same, idempotency_key="k", caller="c") == Recorded(2, 0, replayed=True)
    with pytest.raises(IdempotencyError, match="'k' was used before for other interactions"):
        shop.add_interactions([took("ann", "rug")], idempotency_key="k", caller="c")
    assert shop.histories(["ann"])["ann"].items == ("lamp",)
    # Another caller's key is another key, and so is one that failed.
    assert shop.add_interactions([took("bob", "rug")], idempotency_key="k", caller="d") == Recorded(1, 0)
    with pytest.raises(UnknownThingsError):
        shop.add_interactions([took("ann", "none")], idempotency_key="l", caller="c")
    assert shop.add_interactions([took("ann", "rug")], idempotency_key="l", caller="c") == Recorded(1, 0)


def test_an_idempotency_key_is_forgotten_after_a_week(
    shop: Store, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [took("ann", "lamp")]
    shop.add_interactions(given, idempotency_key="old", caller="c")
    monkeypatch.setattr(histories, "KEYS_KEPT_FOR", timedelta(0))
    later = Store.open(store_url)
    later.add_interactions([took("ann", "rug")], idempotency_key="new", caller="c")
    assert later.add_interactions(given, idempotency_key="old", caller="c") == Recorded(0, 1)
    later.close()


def test_users_are_found_by_the_beginning_of_their_id(shop: Store) -> None:
    names = ["a", "ab", "ab\U0010ffff", "ab\U0010ffffz", "abc", "ac", "b", "B", "ä", "a_", "a%", "a\ud7ff"]
    shop.add_interactions([took(name, "lamp") for name in names])
    shop.add_interactions([took("ab", "room"), took("ab", "rug"), took("only bundles", "room")])
    ordered = sorted([*names, "only bundles"])
    assert [user.id for user in shop.users()] == ordered
    for prefix in ["", "a", "ab", "ab\U0010ffff", "a_", "a%", "a\ud7ff", "\U0010ffff", "x"]:
        wanted = [name for name in ordered if name.startswith(prefix)]
        assert [user.id for user in shop.users(search=prefix)] == wanted
        assert [user.id for user in shop.users(prefix, limit=2)] == wanted[:2]
        assert [user.id for user in shop.users(prefix, after="ab", limit=3)] == [
            name for name in wanted if name > "ab"
        ][:3]
    assert shop.user_count() == len(ordered)
    assert shop.user_ids(3) == ordered[:3]
    assert shop.user_ids(100, after="ab") == [name for name in ordered if name > "ab"]
    assert shop.users("ab", limit=1) == [UserLine(id="ab", items=2, bundles=1)]
    assert shop.users("only") == [UserLine(id="only bundles", items=0, bundles=1)]


def test_a_sample_of_users_is_seeded_and_fair(shop: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user with a long history is drawn as often as one with a short history."""
    assert shop.sample_of_users(5) == ([], 0)
    assert shop.user_count() == 0
    names = sorted([*(f"u{number:03}" for number in range(60)), "ä", "B", "only bundles", "z"])
    shop.add_interactions([took(name, "lamp") for name in names if name != "only bundles"])
    shop.add_interactions([took(name, "rug") for name in names[:30]])
    shop.add_interactions([took(name, "room") for name in ("only bundles", *names[:10])])
    assert shop.sample_of_users(100) == shop.sample_of_users(64) == (names, 64)
    monkeypatch.setattr(histories, "_READ_AT_ONCE", 7)
    times: Counter[str] = Counter()
    for seed in range(200):
        chosen, of = shop.sample_of_users(16, seed)
        assert (len(set(chosen)), of) == (16, 64)
        assert chosen == sorted(chosen)
        times.update(chosen)
    assert shop.sample_of_users(16, 3) == shop.sample_of_users(16, 3)
    assert shop.sample_of_users(16, 3) != shop.sample_of_users(16, 4)
    # Each is drawn 50 times on average, with a standard deviation of 6.
    assert set(times) == set(names)
    assert 25 < min(times.values()) <= max(times.values()) < 75
    erased = shop.sample_of_users(16)[0][0]
    assert shop.erase_user(erased)
    chosen, of = shop.sample_of_users(63)
    assert (chosen, of) == ([name for name in names if name != erased], 63)


def test_a_user_can_be_erased(shop: Store) -> None:
    shop.add_interactions([took("ann", "lamp"), took("ann", "room"), took("bob", "lamp")])
    shop.add_served([Served("r", "bundles", name, "m", ("room",), NOON) for name in ("ann", "bob")])
    assert shop.erase_user("ann")
    assert not shop.erase_user("ann")
    assert shop.histories(["ann", "bob"]) == {"ann": Owned(), "bob": Owned(("lamp",))}
    assert shop.served_since(NOON).answers == 1
    shop.add_served([Served("r", "items", "cat", "m", (), NOON)])
    assert shop.erase_user("cat")  # someone who only ever asked


def test_sales_count_users(shop: Store) -> None:
    shop.add_interactions([took("ann", "lamp"), took("bob", "lamp"), took("bob", "room")])
    assert shop.sales() == Sales({"lamp": 2}, {"room": 1})


# Answers


def test_answers_are_counted_and_attributed(shop: Store) -> None:
    shop.put(Bundle("🛋 two", ("lamp",)))
    hour = timedelta(hours=1)
    shop.add_served(
        [
            Served("r1", "bundles", "ann", "m", ("room", "🛋 two"), NOON),
            Served("r2", "bundles", "ann", "m", ("room",), NOON + hour),
            Served("r3", "bundles", None, "m", ("room",), NOON),
            Served("r4", "items", "ann", "m", ("lamp",), NOON),
            Served("r5", "bundles", "bob", "m", ("room",), NOON),
            Served("r5", "bundles", "cat", "m", (), NOON),
        ]
    )
    shop.add_served([])
    assert shop.served_since(NOON) == ServedSummary(6, {"room": 4, "🛋 two": 1}, 0)
    shop.add_interactions([took("ann", "room", NOON + 2 * hour, "r2"), took("cat", "room", NOON + hour)])
    shop.add_interactions([took("bob", "room", NOON - hour)])  # had it before it was shown
    assert shop.served_since(NOON).taken == 1
    shop.add_interactions([InteractionRecord("bob", "bundle", "🛋 two", NOON + hour)])  # was shown only to ann
    assert shop.served_since(NOON) == ServedSummary(6, {"room": 4, "🛋 two": 1}, 1)
    assert shop.served_since(NOON + hour) == ServedSummary(1, {"room": 1}, 1)
    assert shop.served_since(NOON, most=1) == ServedSummary(1, {"room": 1}, 1, NOON + hour)
    assert shop.served_since(NOON + hour, most=1).cut_at is None
    assert shop.forget_served(NOON + hour) == 5
    assert shop.served_since(NOON) == ServedSummary(1, {"room": 1}, 1)


def test_what_was_taken_is_looked_up_by_its_key(store: Store) -> None:
    shown = [[bundle for bundle in range(50) if bundle != user] for user in range(40)]
    store.import_dataset(dataset_of([[0]] * 40, shown, [[0]] * 50, 1))
    store.add_served(
        [Served("r", "bundles", f"u{user}", "m", ("b0", f"b{user}"), NOON) for user in range(40)]
    )
    asked: list[tuple[str, Any]] = []

    def note(_: Any, __: Any, statement: str, parameters: Any, *more: Any) -> None:
        asked.append((statement, parameters))

    database = store._database
    event.listen(database._snapshot, "before_cursor_execute", note)
    store.served_since(NOON)
    event.remove(database._snapshot, "before_cursor_execute", note)
    ((statement, parameters),) = (each for each in asked if "user_bundle" in each[0])
    explain = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
    with database.read() as connection:
        rows = connection.exec_driver_sql(f"{explain} {statement}", parameters)
        steps = [str(row[-1]) for row in rows if "user_bundle" in str(row[-1])]
    key = "SEARCH user_bundle USING PRIMARY KEY (user_id=? AND bundle_id=?)"
    assert steps == [key] if database.is_sqlite else "Index Scan using pk_user_bundle" in steps[0]
    assert not any("Seq Scan" in step for step in steps)


def test_what_was_imported_was_not_taken_from_an_answer(store: Store) -> None:
    store.import_dataset(dataset_of([[0]], [[0]], [[0]], 1))
    store.add_served([Served("r", "bundles", "u0", "m", ("b0",), NOON)])
    assert store.served_since(NOON).taken == 0


# Models, keys and sessions


def test_a_model_can_be_published_only_if_nothing_was(store: Store) -> None:
    first, second = (ModelRecord(name, f"models/{name}", "popularity") for name in "ab")
    store.publish(first, instead_of=None)
    with pytest.raises(SupersededError, match="should replace no model, but a serves now"):
        store.publish(second, instead_of=None)
    assert store.state().model == "a"
    store.publish(second)
    assert store.state().model == "b"


def test_only_a_model_with_a_record_can_be_selected(store: Store) -> None:
    first, second = (ModelRecord(version, f"models/{version}", "popularity") for version in ("v1", "v2"))
    store.publish(first)
    store.publish(second)
    assert store.select_model("v1")
    assert store.state().model == "v1"
    assert store.forget_model("v2")
    assert not store.select_model("v2")
    assert not store.select_model("a\x00b")
    assert store.state().model == "v1"
    assert [record.version for record in store.models()] == ["v1"]


def test_the_model_published_last_is_to_serve(store: Store) -> None:
    first = ModelRecord("v1", "models/v1", "bundlemage", {"ndcg@5": 0.25, "of": ["a"]}, NOON)
    store.publish(first)
    assert store.state() == State(0, "v1")
    store.publish(ModelRecord("v2", "models/v2", "popularity"))
    assert store.state().model == "v2"
    second = store.model("v2")
    assert second is not None
    assert second.published_at is not None
    assert abs(second.published_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert store.models() == [second, first]
    store.publish(first)  # back to it
    assert store.state().model == "v1"
    assert store.models() == [second, first]
    assert store.model("v1") == first
    assert store.model("v3") is None


def test_a_model_takes_the_place_only_of_the_one_it_was_made_for(store: Store) -> None:
    first, second, third = (ModelRecord(name, f"models/{name}", "bundlemage", {}, NOON) for name in "abc")
    with pytest.raises(SupersededError, match="the new model should replace a, but no model serves now"):
        store.publish(second, instead_of="a")
    store.publish(first)
    store.publish(second, instead_of="a")
    assert store.state().model == "b"
    with pytest.raises(SupersededError) as raised:
        store.publish(third, instead_of="a")
    assert raised.value.serving == "b"
    assert store.state().model == "b"
    assert store.models() == [second, first]


def test_keys_are_kept_and_revoked(store: Store) -> None:
    first, second = Key("k1", "read", "till", b"\x00\xff", NOON), Key("k2", "admin", "boss", b"d", NOON)
    store.add_key(first)
    store.add_key(second)
    assert store.has_keys()
    assert store.keys() == [first, second]
    assert store.key("k1") == first
    assert store.key("k3") is None
    with pytest.raises(StoreError):
        store.add_key(first)
    assert store.revoke_key("k1")
    revoked = store.key("k1")
    assert revoked is not None
    assert revoked.revoked_at is not None
    assert store.revoke_key("k1")
    assert store.key("k1") == revoked  # the time at which it was first revoked
    assert not store.revoke_key("k3")
    assert store.has_keys()
    store.revoke_key("k2")
    assert not store.has_keys()


def test_a_session_ends_by_itself_by_hand_and_with_its_key(store: Store) -> None:
    key = Key("k", "write", "till", b"d", NOON)
    store.add_key(key)
    now = datetime.now(UTC)
    for digest, until in ((b"a", now + timedelta(hours=1)), (b"b", now + timedelta(hours=1)), (b"c", now)):
        store.add_session(digest, "k", until)
    assert store.session(b"a") == key
    assert store.session(b"c") is None
    assert store.session(b"d") is None
    store.end_session(b"a")
    store.end_session(b"a")
    assert store.session(b"a") is None
    assert store.session(b"b") == key
    store.revoke_key("k")
    assert store.session(b"b") is None
    with pytest.raises(StoreError):
        store.add_session(b"e", "no key", now)


def test_what_is_to_be_new_replaces_nothing(shop: Store) -> None:
    before, version = bundle_of(shop, "room"), shop.state().catalogue
    assert before is not None
    with pytest.raises(ExistsError, match="'room'"):
        shop.put(replace(before, title="another"), only_new=True)
    with pytest.raises(ExistsError, match="'lamp'"):
        shop.put(Item("lamp", "another"), only_new=True)
    assert (bundle_of(shop, "room"), shop.state().catalogue) == (before, version)
    assert shop.put(replace(before, id="other room"), only_new=True)
    assert shop.withdraw("bundle", "other room")
    with pytest.raises(ExistsError):
        shop.put(replace(before, id="other room"), only_new=True)


def test_some_fields_are_changed_and_the_others_stay(shop: Store) -> None:
    before = shop.catalogue()
    lamp = next(item for item in before.items if item.id == "lamp")
    assert shop.change("item", "lamp", {"price": 3.5}) == replace(lamp, price=3.5)
    room = next(bundle for bundle in before.bundles if bundle.id == "room")
    assert shop.change("bundle", "room", {"items": ("lamp",)}) == replace(room, items=("lamp",))
    since = shop.catalogue(before.version)
    assert list(since.items) == [replace(lamp, price=3.5)]
    assert list(since.bundles) == [replace(room, items=("lamp",))]
    assert shop.change("item", "nothing", {"price": 1.0}) is None
    assert shop.change("bundle", "nothing", {"price": 1.0}) is None
    with pytest.raises(UnknownThingsError):
        shop.change("bundle", "room", {"items": ("nothing",)})
    assert shop.catalogue(before.version) == since


def test_what_a_bundle_is_expected_to_sell_is_kept(store: Store) -> None:
    store.put(Item("lamp"))
    store.put(Bundle("old", ("lamp",)))
    number, like = (
        Bundle("number", ("lamp",), expected_sales=12.5),
        Bundle("like", ("lamp",), sells_like="old"),
    )
    for bundle in (number, like):
        store.put(bundle)
    found = {bundle.id: bundle for bundle in store.catalogue().bundles}
    assert (found["number"], found["like"]) == (number, like)
    assert store.change("bundle", "like", {"sells_like": None, "expected_sales": 3.0}) == Bundle(
        "like", ("lamp",), expected_sales=3.0
    )
    for wrong, words in (
        (Bundle("x", ("lamp",), expected_sales=-1.0), "the expected sales of bundle 'x' is -1.0"),
        (Bundle("x", ("lamp",), expected_sales=1.0, sells_like="old"), "both 'expected_sales' and"),
        (Bundle("x", ("lamp",), sells_like="x"), "sell like itself"),
    ):
        with pytest.raises(UnstorableError, match=words):
            store.put(wrong)
    with pytest.raises(UnknownThingsError, match="none"):
        store.put(Bundle("x", ("lamp",), sells_like="none"))
    assert "x" not in {bundle.id for bundle in store.catalogue().bundles}


def test_histories_are_found_by_an_index() -> None:
    """A condition `… = 1` would make SQLite read the interactions of all users for every answer."""
    query = str(histories._histories(True).compile(dialect=sqlite.dialect()))
    assert query.count("user_id IN (SELECT value FROM json_each(?)) GROUP BY") == 2


def test_what_was_taken_and_shown_is_told_with_its_time(store: Store) -> None:
    store.import_dataset(dataset_of([[0]], [[0]], [[0], [1], [0, 1]], 2))
    moment = int(NOON.timestamp()) * 1_000_000
    store.add_interactions(
        [
            InteractionRecord("eve", "bundle", "b1", NOON, "r1"),
            InteractionRecord("eve", "bundle", "b2", NOON + timedelta(microseconds=1)),
            InteractionRecord("eve", "item", "i1", NOON),
        ]
    )
    assert list(store.request_ids()) == [("eve", "b1", "r1")]
    assert store.entries("bundle", "eve") == [
        Entry("b1", NOON),
        Entry("b2", NOON + timedelta(microseconds=1)),
    ]
    assert store.entries("item", "u0") == [Entry("i0")]  # what was imported has no time
    found = store.dataset()
    assert found.bundle_events.at is not None
    assert found.bundle_events.at.tolist() == [moment, moment + 1, UNDATED]
    assert found.bundle_events.weight is None

    store.add_served(
        [
            Served("r1", "bundles", "eve", "m1", ("b1", "b2"), NOON),
            Served("r2", "items", "eve", "m2", ("i1",), NOON + timedelta(hours=1)),
            Served("r3", "bundles", "bob", "m3", (), NOON + timedelta(hours=2)),
            Served("r4", "bundles", None, "m1", ("b1",), NOON),
        ]
    )
    assert list(store.lists_shown_to(["eve"])) == [("eve", "r1", moment, ["b1", "b2"])]
    assert [user for user, *_ in store.lists_shown_to(["bob", "eve"])] in (["bob", "eve"], ["eve", "bob"])
    assert list(store.lists_shown_to([])) == []
    assert store.models_in_use(NOON) == {"m1", "m2", "m3"}
    assert store.models_in_use(NOON + timedelta(hours=2)) == {"m3"}


def test_a_model_is_forgotten_unless_it_serves(store: Store) -> None:
    for version in ("v1", "v2"):
        store.publish(ModelRecord(version, f"/models/{version}", "bundlemage"))
    assert not store.forget_model("v2")
    assert store.forget_model("v1")
    assert store.forget_model("never there")
    assert [record.version for record in store.models()] == ["v2"]


def test_costs_and_images_go_into_the_store_and_out_again(store: Store) -> None:
    data = shop_with_details()
    store.import_dataset(data)
    out = store.dataset().catalogue
    assert out is not None
    assert data.catalogue is not None
    assert out.items.equals(data.catalogue.items)
    assert out.bundles.equals(data.catalogue.bundles)
    first = store.catalogue().items[1]
    assert (first.cost, first.image_url) == (
        data.catalogue.items["cost"][1].as_py(),
        f"https://pictures.example/{first.id}.jpg",
    )
    changed = store.change("item", first.id, {"cost": 7.25, "image_url": None})
    assert isinstance(changed, Item)
    assert (changed.cost, changed.image_url, changed.price) == (7.25, None, first.price)
    for wrong in ({"cost": -1.0}, {"image_url": "javascript:alert(1)"}):
        with pytest.raises(UnstorableError, match=r"cost of item|image_url"):
            store.change("item", first.id, wrong)
