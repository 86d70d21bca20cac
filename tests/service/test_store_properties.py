"""Any ids, titles and tags; and any sequence of calls, against plain dictionaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, update

from bundlemage.data.dataset import BundleDataset
from bundlemage.errors import UnknownThingsError
from bundlemage.store.models import clock, metadata
from bundlemage.store.records import (
    LARGEST_STOCK,
    Bundle,
    InteractionRecord,
    Item,
    Owned,
    Recorded,
    Sales,
    Served,
)
from bundlemage.store.repository import Store
from bundlemage.wire.answers import UserLine
from tests.service.test_store import NOON
from tests.small_shop import datasets

# One database serves all examples of a test; each example empties it first.
AGAIN = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=200).filter(str.strip)
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
MONEY = st.none() | st.floats(0, 1e12)


def emptied(store: Store) -> None:
    with store._database.write() as connection:
        connection.execute(update(clock).values(catalogue=0, model=None))
        for table in reversed(metadata.sorted_tables):
            if table is not clock:
                connection.execute(delete(table))


@AGAIN
@given(
    NAMES,
    NAMES,
    st.none() | TEXTS,
    st.lists(TEXTS).map(tuple),
    MONEY,
    st.none() | st.integers(0, LARGEST_STOCK),
)
def test_ids_titles_and_tags_come_back_as_they_were(
    store: Store, name: str, user: str, title: str | None, tags: tuple[str, ...], price: Any, stock: Any
) -> None:
    emptied(store)
    item = Item(name, title, price, tags, stock)
    bundle = Bundle(name, (name,), title, price, None, tags)
    store.put(item)
    store.put(bundle)
    store.add_served([Served("r", "bundles", user, "m", (name,), NOON)])
    both = [InteractionRecord(user, "item", name), InteractionRecord(user, "bundle", name)]
    assert store.add_interactions(both, idempotency_key=name, caller=user) == Recorded(2, 0)
    assert store.catalogue().items == [item]
    assert store.catalogue().bundles == [bundle]
    assert store.histories([user]) == {user: Owned((name,), (name,))}
    assert store.users(search=user[:1].strip(), limit=1) == [UserLine(id=user, items=1, bundles=1)]
    summary = store.served_since(NOON)
    assert summary.shown == {name: 1}
    assert summary.taken == 1
    found = store.dataset()
    assert (found.users.ids, found.items.ids, found.bundles.ids) == ((user,), (name,), (name,))


@AGAIN
@given(datasets())
def test_any_dataset_survives(store: Store, dataset: BundleDataset) -> None:
    emptied(store)
    store.import_dataset(dataset)
    change = store.catalogue()
    assert [item.id for item in change.items] == sorted(dataset.items)
    for bundle in change.bundles:
        row = dataset.bundle_item[dataset.bundles.position(bundle.id)].indices
        assert bundle.items == tuple(dataset.items[place] for place in row)
    owned = store.histories(dataset.users.ids)
    for position, user in enumerate(dataset.users):
        assert set(owned[user].items) == {dataset.items[n] for n in dataset.user_item[position].indices}
        assert set(owned[user].bundles) == {dataset.bundles[n] for n in dataset.user_bundle[position].indices}


@dataclass
class Model:
    """What a store is, without a database."""

    items: dict[str, Item] = field(default_factory=dict)
    bundles: dict[str, Bundle] = field(default_factory=dict)
    owned: dict[str, tuple[list[str], list[str]]] = field(default_factory=dict)
    changed: dict[tuple[str, str], int] = field(default_factory=dict)
    version: int = 0

    def put(self, things: Any, thing: Any) -> bool:
        new = thing.id not in things
        things[thing.id] = thing
        self.version += 1
        self.changed[type(thing).__name__, thing.id] = self.version
        return new

    def withdraw(self, things: Any, name: str) -> bool:
        if name not in things:
            return False
        return not self.put(things, replace(things[name], withdrawn=True))

    def since(self, version: int) -> tuple[list[Item], list[Bundle]]:
        return (
            [self.items[name] for name in sorted(self.items) if self.changed["Item", name] > version],
            [self.bundles[name] for name in sorted(self.bundles) if self.changed["Bundle", name] > version],
        )

    def add(self, interactions: list[InteractionRecord]) -> Recorded:
        new = 0
        for one in interactions:
            had = self.owned.setdefault(one.user_id, ([], []))[one.kind == "bundle"]
            if one.thing_id not in had:
                had.append(one.thing_id)
                new += 1
        return Recorded(new, len(interactions) - new)


FEW = st.sampled_from(["1", "2", "ä", "A", "a b"])
STEPS = st.one_of(
    st.tuples(st.just("item"), st.builds(Item, FEW, st.none() | FEW, stock=st.none() | st.integers(0, 9))),
    st.tuples(st.just("bundle"), st.builds(Bundle, FEW, st.lists(FEW, unique=True, min_size=1).map(tuple))),
    st.tuples(st.sampled_from(["withdraw item", "withdraw bundle", "erase"]), FEW),
    st.tuples(
        st.just("take"),
        st.lists(st.builds(InteractionRecord, FEW, st.sampled_from(["item", "bundle"]), FEW), max_size=6),
    ),
)


def one_step(store: Store, model: Model, what: str, given: Any) -> None:
    known: dict[str, Mapping[str, Any]] = {"item": model.items, "bundle": model.bundles}
    if what == "item":
        assert store.put(given) == model.put(model.items, given)
    elif what == "bundle" and set(given.items) <= set(model.items):
        assert store.put(given) == model.put(model.bundles, given)
    elif what == "bundle":
        with pytest.raises(UnknownThingsError):
            store.put(given)
    elif what == "withdraw item":
        assert store.withdraw("item", given) == model.withdraw(model.items, given)
    elif what == "withdraw bundle":
        assert store.withdraw("bundle", given) == model.withdraw(model.bundles, given)
    elif what == "erase":
        assert store.erase_user(given) == any(model.owned.pop(given, ([], [])))
    elif all(one.thing_id in known[one.kind] for one in given):
        assert store.add_interactions(given) == model.add(given)
    else:
        with pytest.raises(UnknownThingsError):
            store.add_interactions(given)


@AGAIN
@given(st.lists(STEPS, max_size=30), st.integers(0, 30))
def test_the_store_does_what_dictionaries_would(
    store: Store, steps: list[tuple[str, Any]], since: int
) -> None:
    emptied(store)
    model = Model()
    for what, thing in steps:
        one_step(store, model, what, thing)
    assert store.state().catalogue == model.version
    change = store.catalogue(since)
    assert (change.items, change.bundles) == model.since(since)
    having = {user: things for user, things in model.owned.items() if any(things)}
    found = store.histories(list(having))
    assert {user: (sorted(owned.items), sorted(owned.bundles)) for user, owned in found.items()} == {
        user: (sorted(items), sorted(bundles)) for user, (items, bundles) in having.items()
    }
    assert store.users() == [
        UserLine(id=user, items=len(having[user][0]), bundles=len(having[user][1])) for user in sorted(having)
    ]
    sold = [Counter(name for things in having.values() for name in things[kind]) for kind in (0, 1)]
    assert store.sales() == Sales(*map(dict, sold))
