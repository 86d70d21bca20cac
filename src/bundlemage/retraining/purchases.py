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
from itertools import islice

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, Positions, Vocabulary, pairs_of, row_of
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
LONG_AGO = np.iinfo(np.int64).min
"""Stands for the time of an interaction without a time. Such interactions were imported first."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_READ_AT_ONCE = 100_000
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
    """The time of each pair of a dataset, in microseconds since 1970, or `LONG_AGO`."""

    items: Microseconds  # [user-item pairs]
    bundles: Microseconds  # [user-bundle pairs]
    requests: Mapping[int, str] = field(default_factory=dict)
    """For each user-bundle pair that was written with a request id: this id."""

    @classmethod
    def of(cls, store: Store, dataset: BundleDataset) -> Times:
        """Reads the times from the store."""
        items, _ = _times(store.dated("item"), dataset.user_item, dataset.users, dataset.items)
        bundles, requests = _times(store.dated("bundle"), dataset.user_bundle, dataset.users, dataset.bundles)
        return cls(items, bundles, requests)

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

        def counts(matrix: sparse.csr_matrix, later: Mask, things: Vocabulary) -> dict[str, int]:
            sold = np.bincount(matrix.indices[~later], minlength=len(things))
            return dict(zip(things, sold.tolist(), strict=True))

        return Sales(
            counts(dataset.user_item, self.later_items, dataset.items),
            counts(dataset.user_bundle, self.later_bundles, dataset.bundles),
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
    return Owned(
        tuple(dataset.items[item] for item in row_of(of_items, user)[had[0]]),
        tuple(dataset.bundles[bundle] for bundle in row_of(of_bundles, user)[had[1]]),
    )


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


def _times(
    rows: Iterable[tuple[str, str, int, str | None]],
    matrix: sparse.csr_matrix,
    users: Vocabulary,
    things: Vocabulary,
) -> tuple[Microseconds, dict[int, str]]:
    """Returns the time of each pair of a matrix, and the request ids of pairs that have one."""
    row, column = pairs_of(matrix)
    width = len(things)
    keys = row.astype(np.int64) * width + column  # ascending
    times, requests = np.full(len(keys), LONG_AGO), dict[int, str]()
    unread = iter(rows)
    while batch := list(islice(unread, _READ_AT_ONCE)):
        names, ids, at, request = zip(*batch, strict=True)
        user, thing = (
            np.fromiter((known.known_positions.get(name, -1) for name in part), np.int64)
            for known, part in ((users, names), (things, ids))
        )
        places = np.searchsorted(keys, user * width + thing)
        # The dataset was read a moment earlier, so it lacks what is newer.
        known = (user >= 0) & (thing >= 0) & (places < len(keys))
        known[known] = keys[places[known]] == (user * width + thing)[known]
        times[places[known]] = np.array(at, np.int64)[known]
        requests |= {
            int(places[number]): request[number]
            for number in np.flatnonzero(known).tolist()
            if request[number] is not None
        }
    return times, requests


def one_of_each(users: Positions, pairs: Pairs) -> Pairs:
    """Returns the first of these pairs of each user who has any."""
    _, first = np.unique(users[pairs], return_index=True)
    return pairs[first]
