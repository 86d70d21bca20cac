"""The purchases that test a retrained model and the serving model.

A purchase is prompted if the bundle was in a list that the service had shown to the user. Prompted purchases
are no test cases, because a model that chose the list would be tested on its own choice. The other purchases
are of bundles that were not shown. So each of them tests only how a model orders bundles that were not shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from bundlemage.data.dataset import BundleDataset, Positions, Vocabulary, pairs_of, row_of
from bundlemage.data.events import UNDATED, Events
from bundlemage.data.splits import Split
from bundlemage.live import Stock
from bundlemage.retraining.unseen import unseen_pairs
from bundlemage.store.records import Owned, Sales
from bundlemage.store.repository import Store
from bundlemage.wire.requests import FUTURE

CASE_SHARE, MOST_CASES = 1 / 2, 2_000
"""Of the users with a suitable purchase, the share whose newest purchase is a case, and the most cases."""
PLACES = 20
"""By default, this many bundles of a shown list count as shown: hardly anybody looks at the later ones."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Pairs = npt.NDArray[np.intp]
"""Indices of user-bundle pairs, in the order of a dataset's matrix."""
Mask = npt.NDArray[np.bool_]
Microseconds = npt.NDArray[np.int64]
Random = np.random.Generator


@dataclass(frozen=True)
class Case:
    """A purchase: what the user had before, the bundle, and the bundles that had been shown to the user."""

    history: Owned
    bundle: str
    shown: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Times:
    """The time of each pair of a dataset, in microseconds since 1970, or `UNDATED`."""

    items: Microseconds  # [user-item pairs]
    bundles: Microseconds  # [user-bundle pairs]
    requests: Mapping[int, str] = field(default_factory=dict)
    """For each user-bundle pair that was written with a request id: this id."""

    @classmethod
    def of(cls, store: Store, dataset: BundleDataset) -> Times:
        """Returns the times of the dataset, and reads the request ids from the store."""
        items, bundles = (
            np.full(matrix.nnz, UNDATED) if events.at is None else events.at
            for matrix, events in (
                (dataset.user_item, dataset.item_events),
                (dataset.user_bundle, dataset.bundle_events),
            )
        )
        return cls(items, bundles, _requests(store.request_ids(), dataset))

    def first_of_users(self, dataset: BundleDataset) -> Microseconds:
        """Returns the time of each user's first item or bundle."""
        first = np.full(len(dataset.users), np.iinfo(np.int64).max)
        np.minimum.at(first, pairs_of(dataset.user_item)[0], self.items)
        np.minimum.at(first, pairs_of(dataset.user_bundle)[0], self.bundles)
        return first


@dataclass(frozen=True)
class Purchases:
    """The purchases that test both models, and what the new model must not learn from."""

    cases: tuple[Case, ...]
    """At most one purchase of each user."""
    pairs: Pairs
    """The user-bundle pair of each case."""
    later_items: Mask  # [user-item pairs]
    later_bundles: Mask  # [user-bundle pairs]
    """The pairs that the new model must not learn from. They include the cases."""
    prompted: int
    """The number of purchases that would be suitable, but were prompted."""
    since: datetime | None
    """The cases are purchases since this time; None if they were drawn at random."""

    def left_out(self) -> Purchases:
        """Returns the same without cases: the new model may learn from everything."""
        return replace(
            self,
            cases=(),
            pairs=self.pairs[:0],
            later_items=np.zeros_like(self.later_items),
            later_bundles=np.zeros_like(self.later_bundles),
        )

    def earlier_sales(self, dataset: BundleDataset) -> Sales:
        """Returns the number of users of each item and bundle, without later purchases."""

        def counts(matrix: Any, events: Events, later: Mask, things: Vocabulary) -> dict[str, int]:
            counted = ~later if events.purchases is None else ~later & events.purchases
            sold = np.bincount(matrix.indices[counted], minlength=len(things))
            return dict(zip(things, sold.tolist(), strict=True))

        return Sales(
            counts(dataset.user_item, dataset.item_events, self.later_items, dataset.items),
            counts(dataset.user_bundle, dataset.bundle_events, self.later_bundles, dataset.bundles),
        )


def choose_purchases(
    store: Store,
    dataset: BundleDataset,
    learned: Split,
    stock: Stock,
    min_cases: int,
    random: Random,
    places: int = PLACES,
) -> Purchases:
    """Returns the test cases for matching. `learned` is what the serving model has learned (`learned_by`).
    The first `places` bundles of a list count as shown.

    A purchase is suitable if it was in neither the training nor the validation data of the serving model, if
    it was not prompted, if its time is not in the future, if the bundle can be sold now, and if the user has
    another item or bundle. (All models recommend the bestsellers to a user without a history.) The cases are
    the newest suitable purchases of the users who bought last, and the tested model learns only from what was
    bought before all of them. If too few purchases have a time, or if all have the same, a random one of each
    user is a case.
    """
    users, bundles = pairs_of(dataset.user_bundle)
    entries = (stock.bundles.get(name) for name in dataset.bundles)
    for_sale = np.array([bool(entry and entry.items and stock.sellable(entry)) for entry in entries], bool)
    owns = np.diff(dataset.user_item.indptr) + np.diff(dataset.user_bundle.indptr)
    times = Times.of(store, dataset)
    past = times.bundles <= _microseconds(datetime.now(UTC) + FUTURE)
    suitable = unseen_pairs(dataset, learned) & for_sale[bundles] & (owns[users] > 1) & past
    purchases = dataset.bundle_events.purchases
    suitable &= True if purchases is None else purchases
    shown_to = {dataset.users[user] for user in users[suitable].tolist()}
    lists = ShownLists(store, shown_to, times.requests, places)
    unprompted = suitable.copy()
    for pair in np.flatnonzero(suitable).tolist():
        user, bundle = dataset.users[users[pair]], dataset.bundles[bundles[pair]]
        at = int(times.bundles[pair])
        unprompted[pair] = not lists.prompted(user, bundle, at, times.requests.get(pair))
    dated = np.flatnonzero(unprompted & (times.bundles > times.first_of_users(dataset)[users]))
    since = _since(times.bundles[dated], users[dated], min_cases)
    if since is None:
        pairs = one_of_each(users, random.permutation(np.flatnonzero(unprompted)))
        later_items, later_bundles = np.zeros(len(times.items), bool), np.zeros(len(users), bool)
        later_bundles[pairs] = True
    else:
        newest = dated[np.argsort(-times.bundles[dated], kind="stable")]
        pairs = one_of_each(users, newest[times.bundles[newest] >= since])
        later_items, later_bundles = times.items >= since, times.bundles >= since
    cases = []
    for pair in pairs.tolist():
        shown = lists.before(dataset.users[users[pair]], int(times.bundles[pair]))
        history = _history(dataset, pair, None if since is None else times)
        cases.append(Case(history, dataset.bundles[bundles[pair]], shown))
    return Purchases(
        tuple(cases),
        pairs,
        later_items,
        later_bundles,
        int(suitable.sum() - unprompted.sum()),
        None if since is None else _EPOCH + timedelta(microseconds=since),
    )


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // timedelta(microseconds=1)


def _history(dataset: BundleDataset, pair: int, times: Times | None) -> Owned:
    """Returns what the user of a pair had before it. Without times, it is all that the user has except the
    bundle."""
    of_items, of_bundles = dataset.user_item, dataset.user_bundle
    user = int(np.searchsorted(of_bundles.indptr, pair, side="right")) - 1
    had = np.ones(len(row_of(of_items, user)), bool), row_of(of_bundles, user) != of_bundles.indices[pair]
    if times is not None:  # what was bought together with the bundle would give it away
        at = times.bundles[pair]
        had = (
            times.items[of_items.indptr[user] : of_items.indptr[user + 1]] < at,
            times.bundles[of_bundles.indptr[user] : of_bundles.indptr[user + 1]] < at,
        )
    return owned_by(dataset, user, *had)


def owned_by(dataset: BundleDataset, user: int, items: Mask, bundles: Mask) -> Owned:
    """Returns a part of a user's history: `items` and `bundles` mark the entries in it."""
    parts: dict[str, Any] = {}
    times: list[tuple[int, ...]] = []
    for matrix, events, ids, kept in (
        (dataset.user_item, dataset.item_events, dataset.items, items),
        (dataset.user_bundle, dataset.bundle_events, dataset.bundles, bundles),
    ):
        entries = np.arange(*matrix.indptr[user : user + 2])[kept]
        parts[f"{ids.kind}s"] = tuple(ids[place] for place in matrix.indices[entries].tolist())
        if events.weight is not None:
            parts[f"{ids.kind}_weights"] = tuple(events.weight[entries].tolist())
        times.append((UNDATED,) * len(entries) if events.at is None else tuple(events.at[entries].tolist()))
    return Owned(**parts, times=(times[0], times[1]))


def _since(times: Microseconds, users: Positions, min_cases: int) -> int | None:
    """Returns a time such that enough users have a purchase since then; None if that is not possible."""
    everyone = len(np.unique(users))
    if everyone < min_cases or len(np.unique(times)) < 2:
        return None
    wanted = min(max(min_cases, round(everyone * CASE_SHARE)), max(min_cases, MOST_CASES))
    newest_first = np.argsort(-times, kind="stable")
    _, first = np.unique(users[newest_first], return_index=True)  # the newest purchase of each user
    return int(times[newest_first][np.sort(first)[wanted - 1]])


class ShownLists:
    """The bundles that the service has shown to users, and when it showed each of them first."""

    def __init__(self, store: Store, users: Iterable[str], requests: Mapping[int, str], places: int) -> None:
        """`requests` are the request ids of purchases. If a purchase names its list, every place of the list
        counts. Otherwise only the first `places` do."""
        self._first: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self._by_request: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
        named = set(requests.values())
        for user, request, at, ids in store.lists_shown_to(sorted(users)):
            first = self._first[user]
            for bundle in ids[:places]:
                first[bundle] = min(at, first.get(bundle, at))
            if request in named:
                self._by_request[user, request].update(ids)

    def before(self, user: str, at: int) -> frozenset[str]:
        """Returns the bundles that were shown to a user at a time or earlier."""
        return frozenset(bundle for bundle, first in self._first.get(user, {}).items() if first <= at)

    def prompted(self, user: str, bundle: str, at: int, request: str | None) -> bool:
        """Whether a purchase followed a list with the bundle.

        The shop may name the list by its request id. If no list of the user has this id, the list was shown
        to somebody without a user id or is no longer stored. Then the shop is believed.
        """
        if self._first.get(user, {}).get(bundle, at + 1) <= at:
            return True
        return request is not None and bundle in self._by_request.get((user, request), {bundle})


def _requests(rows: Iterable[tuple[str, str, str]], dataset: BundleDataset) -> dict[int, str]:
    """Returns the request ids of user-bundle pairs that have one."""
    users, bundles = dataset.users.known_positions, dataset.bundles.known_positions
    matrix = dataset.user_bundle
    found: dict[int, str] = {}
    for user, bundle, request in rows:
        row, column = users.get(user, -1), bundles.get(bundle, -1)
        if row < 0 or column < 0:  # the dataset was read a moment earlier, so it lacks what is newer
            continue
        place = int(matrix.indptr[row] + np.searchsorted(row_of(matrix, row), column))
        if place < matrix.indptr[row + 1] and matrix.indices[place] == column:
            found[place] = request
    return found


def one_of_each(users: Positions, pairs: Pairs) -> Pairs:
    """Returns the first of these pairs of each user who has any."""
    _, first = np.unique(users[pairs], return_index=True)
    return pairs[first]
