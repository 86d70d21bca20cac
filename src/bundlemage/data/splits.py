"""Splits: the part of the data that a model learns from, and the cases that test it afterwards."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from bundlemage.data.chronology import ORDERS, Moments, in_words, microseconds, moments_of, ranks_in_user
from bundlemage.data.dataset import (
    BundleDataset,
    Positions,
    binary_matrix,
    fingerprint,
    pairs_of,
    row_of,
)
from bundlemage.data.events import Mask
from bundlemage.data.leakage import HISTORIES, Leakage, leakage, way_of, without, without_items_of
from bundlemage.errors import ConfigError, Problem

Random = np.random.Generator
PAD = -1
"""Fills candidate rows that are shorter than the longest one."""


@dataclass(frozen=True)
class MatchingCases:
    """Questions of the form: which of these bundles does this user take next?"""

    users: Positions  # [cases]
    positives: sparse.csr_matrix  # [cases, bundles]
    candidates: Positions | None  # [cases, width], positives included, padded with PAD; None: every bundle

    def __len__(self) -> int:
        return len(self.users)

    def chosen(self, rows: slice | Positions) -> MatchingCases:
        """Returns only the cases in these rows."""
        candidates = None if self.candidates is None else self.candidates[rows]
        return MatchingCases(self.users[rows], self.positives[rows], candidates)

    def fingerprint(self) -> str:
        """Returns a SHA-256 over the cases."""
        candidates = np.zeros(0, np.int32) if self.candidates is None else self.candidates
        arrays = (self.users, self.positives.indptr, self.positives.indices, candidates)
        return _sha256(candidates.shape, arrays)


@dataclass(frozen=True)
class GenerationCases:
    """Questions of the form: which of these items complete this bundle for this user?

    Several users may share an incomplete bundle: `partial`, `positives` and `candidates` have one
    row for each held-out bundle, and `bundles` is the row of each case.
    """

    users: Positions  # [cases]; the position after the last user means no history
    bundles: Positions  # [cases], rows of the three matrices below
    partial: sparse.csr_matrix  # [held-out bundles, items]
    positives: sparse.csr_matrix  # [held-out bundles, items]
    candidates: Positions  # [held-out bundles, width], positives included, padded with PAD
    known_as: Positions | None = None  # [held-out bundles]; positions of bundles that training knows
    """If cases come from training bundles: these bundles. They are left out of the users' histories."""
    hidden_items: sparse.csr_matrix | None = None  # [cases, items]
    """Items that are left out of the users' histories as well."""

    def __len__(self) -> int:
        return len(self.users)

    def chosen(self, rows: slice | Positions) -> GenerationCases:
        """Returns only the cases in these rows. The held-out bundles stay as they are."""
        hidden = None if self.hidden_items is None else self.hidden_items[rows]
        return replace(self, users=self.users[rows], bundles=self.bundles[rows], hidden_items=hidden)

    def fingerprint(self) -> str:
        """Returns a SHA-256 over the cases."""
        shown, hidden = self.partial, self.positives
        rows = (shown.indptr, shown.indices, hidden.indptr, hidden.indices)
        shapes = (self.candidates.shape, self.partial.shape)
        return _sha256(shapes, (self.users, self.bundles, *rows, self.candidates))


def _sha256(shapes: tuple[Any, ...], arrays: Iterable[npt.NDArray[np.integer]]) -> str:
    digest = hashlib.sha256(str(shapes).encode())
    for array in arrays:
        digest.update(array.astype("<i8").tobytes())
    return digest.hexdigest()


COLD_PROTOCOLS = ("cold-bundles", "new-bundles", "new-bundles-known")
"""Protocols that treat some bundles as new: no user has them in training."""
PROTOCOLS = ("auto", "paper", "some-users", "full", "time", *COLD_PROTOCOLS, "none")
"""`auto` uses the split that the files define. If there is none, it is `paper`, or `some-users` if `paper`
with the seed 0 would leave less than half of the user-bundle pairs for training."""


@dataclass(frozen=True)
class SplitPlan:
    """How to divide a data set. A saved model keeps it, so that evaluation divides the data the same way."""

    protocol: str = "auto"
    seed: int = 0
    negatives: int = 99
    """The held-out bundle is ranked among this many bundles that the user does not have."""
    positives: int | None = None
    """n: number of hidden items of each held-out bundle; None: n depends on the mean size of bundles."""
    histories: str = "auto"
    """One of `HISTORIES`. `without held-out` removes the items of a user's held-out bundles from the user's
    items, except those that are also in a bundle that the user has in training. `auto` does so if these items
    give away more held-out pairs than by chance, by more than 3% (see `Leakage.found`); otherwise it is
    `as given`."""
    order: str = "auto"
    """One of `ORDERS`: which of a user's bundles are held out. `time`: the last ones. `random`: any. `auto`:
    the last ones if times are known. The protocol `time` always goes by time."""
    test_share: float = 0.2
    """For the protocol `time`: the share of the purchases that are tested, the newest ones."""
    validation_share: float = 0.1
    """For the protocol `time`: the share of the purchases that validate, just before the tested ones."""
    test_from: str | None = None
    """For the protocol `time`: the date from which purchases are tested, in place of a share."""
    validate_from: str | None = None
    """The same for validation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "histories", way_of(self.histories))
        if self.histories not in HISTORIES:
            known = ", ".join(HISTORIES)
            raise ConfigError(f"histories are {self.histories!r}; they can be: {known}")
        if self.protocol not in PROTOCOLS:
            known = ", ".join(PROTOCOLS)
            raise ConfigError(f"unknown protocol {self.protocol!r}; the protocols are: {known}")
        if self.order not in ORDERS:
            raise ConfigError(f"order is {self.order!r}; it can be: {', '.join(ORDERS)}")
        self._check_moments()
        for name, least in (("seed", 0), ("negatives", 1), ("positives", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"split setting {name!r} is {value}; it must be at least {least}")

    def _check_moments(self) -> None:
        for name in ("test_share", "validation_share"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(
                    f"split setting {name!r} is {getattr(self, name)}; it must be between 0 and 1"
                )
        named = [name for name in ("test_from", "validate_from") if getattr(self, name) is not None]
        if named and self.protocol != "time":
            raise ConfigError(f"split setting {named[0]!r} is for the protocol 'time', not {self.protocol!r}")
        first, second = (
            None if text is None else microseconds(text) for text in (self.validate_from, self.test_from)
        )
        if first is not None and second is not None and first >= second:
            raise ConfigError(
                f"validation begins on {self.validate_from}, but it must begin before the test, "
                f"which begins on {self.test_from}"
            )

    def last_first(self, dataset: BundleDataset) -> bool:
        """Whether the last bundles of each user are held out, because their times are known."""
        return self.order != "random" and dataset.bundle_events.at is not None

    def divide(self, dataset: BundleDataset, ready: Split | None = None) -> Split:
        """Returns a split of the data set; `ready` is the one that its files define, if any."""
        if self.protocol == "auto" and ready is not None:
            if self.histories != ready.plan.histories:
                ready = replace(ready, plan=replace(ready.plan, histories=self.histories))
            return self.with_histories(ready)
        if self.protocol == "none":
            return Split(dataset, dataset, None, None, None, "none", self)
        if dataset.bundle_events.at is None and "time" in (self.protocol, self.order):
            raise ConfigError(
                f"{'the protocol' if self.protocol == 'time' else 'the order'} 'time' needs the times of "
                "purchases: add a column 'at' with dates or times to user_bundle, or leave the option out"
            )
        divide = _full_ranking if self.protocol == "full" else _paper
        if self.protocol in COLD_PROTOCOLS:
            divide = _new_bundles
        elif self.protocol == "time":
            divide = _by_time
        elif self.protocol == "some-users" or (self.protocol == "auto" and _few_bundles(dataset)):
            divide = _some_users
        return self.with_histories(divide(dataset, self, np.random.default_rng(self.seed)))

    def with_histories(self, split: Split) -> Split:
        """Returns the split with histories as `histories` says, or the same split if nothing is to remove."""
        leaves_out = self.histories == "without held-out" or (
            self.histories == "auto" and split.leakage.found
        )
        if not leaves_out:
            return split
        dataset, train = split.dataset, split.train
        user_item = without_items_of(split.held_out, dataset.bundle_item, train)
        # A process may have only a part of user_item. Other parts may lack items even if this one does not.
        is_part = any(part is train.user_item for part, _ in train.known_digests)
        if user_item.nnz == train.user_item.nnz and not is_part:
            return split
        # The fingerprint has the digest of the training pairs, too.
        train = _with_items(train, user_item, dataset, "without held-out")
        return replace(split, train=train, histories="without held-out")


@dataclass(frozen=True)
class Split:
    """A divided data set. `train` has the vocabularies of `dataset` and fewer pairs."""

    dataset: BundleDataset
    train: BundleDataset
    validation: MatchingCases | None
    test: MatchingCases | None
    generation: GenerationCases | None
    protocol: str
    """For example `paper`, `authors-mat`, `bgcn`, `cold-bundles`, `none`."""
    plan: SplitPlan = SplitPlan()
    """With the same data, this plan gives the same split; `auto` uses the split that the files define."""
    new_bundles: Positions | None = None
    """Bundles that training knows only by their items, scored as if they had been added later."""
    histories: str = "as given"
    """How users' items are used: `as given` or `without held-out` (see `SplitPlan.histories`)."""
    moments: Moments | None = None
    """For the protocol `time`: when validation and test begin."""

    @cached_property
    def key(self) -> str:
        """A SHA-256 over the training data and every case."""
        cases = [
            part.fingerprint() if part else None for part in (self.validation, self.test, self.generation)
        ]
        new = [] if self.new_bundles is None else [self.new_bundles.tolist()]
        return hashlib.sha256(json.dumps([self.train.fingerprint(), *cases, *new]).encode()).hexdigest()

    @property
    def goes_by_time(self) -> bool:
        """Whether the cases are the last purchases, of all users or of each user."""
        if self.moments is not None:
            return True
        return self.protocol in ("paper", "some-users", "full") and self.plan.last_first(self.dataset)

    @property
    def held_out(self) -> sparse.csr_matrix:
        """The user-bundle pairs that are not in the training data, [users, bundles]."""
        return without(self.dataset.user_bundle, self.train.user_bundle)

    @cached_property
    def leakage(self) -> Leakage:
        """How many held-out pairs the users' items give away, with the histories as given."""
        return leakage(self.held_out, self.dataset)


def held_out_in_words(split: Split) -> str:
    """Returns how the held-out pairs were chosen, as a part of a sentence."""
    if split.moments is not None:
        begin, end = map(in_words, (split.moments.validate_from, split.moments.test_from))
        return f"all but what came from {begin} on; purchases until {end} validate, and later ones are tested"
    if not split.goes_by_time:
        return "the rest is held out"
    whose = "some users" if split.protocol == "some-users" else "each user"
    return f"the last ones of {whose} are held out"


@dataclass(frozen=True)
class Source:
    """Data as a reader returns it."""

    dataset: BundleDataset
    ready: Split | None = None
    """The split that the files themselves define, if they define one."""
    warnings: tuple[Problem, ...] = ()
    """Problems that did not stop the reader, and notes."""
    event_types: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For each table with types of events: how many rows each type has."""


def _paper(dataset: BundleDataset, plan: SplitPlan, random: Random) -> Split:
    """As in the paper's section "Experimental process": 10% of the bundles are held out for generation; one
    bundle of each user is for validation and one for test, ranked among bundles the user does not have."""
    users, _ = pairs_of(dataset.user_bundle)
    held_out, rest, generation = _held_out_bundles(dataset, plan, random)
    counted = rest & _purchases(dataset)
    order = _rank_in_user(dataset, plan, counted, random)
    # As in the published split, the only bundle of a user goes to validation, and a second one to test.
    first, second = counted & (order == 0), counted & (order == 1)
    if plan.last_first(dataset):  # the last bundle is tested, and the one before validates
        last = first & (np.bincount(users[counted], minlength=len(dataset.users)) > 1)[users]
        first, second = (first & ~last) | second, last
    parts = first, second
    return _leave_out(dataset, plan, random, held_out, rest, parts, generation, "paper")


def _some_users(dataset: BundleDataset, plan: SplitPlan, random: Random) -> Split:
    """As `paper`, but only some users have a bundle held out: 15% of the pairs for validation, and 15% for
    test. In a shop where most users have one or two bundles, `paper` would leave hardly any for training."""
    users, _ = pairs_of(dataset.user_bundle)
    held_out, rest, generation = _held_out_bundles(dataset, plan, random)
    counted = rest & _purchases(dataset)
    counts = np.bincount(users[counted], minlength=len(dataset.users))
    eligible = np.flatnonzero(counts > 1)  # they still have a bundle when one is held out
    if len(eligible) < FEWEST_USERS:
        eligible = np.flatnonzero(counts > 0)
    most = min(round(counted.sum() * SHARE_OF_SOME), len(eligible) // 2)
    drawn = random.permutation(eligible)
    first = counted & (_rank_in_user(dataset, plan, counted, random) == 0)
    chosen = (_mask(len(dataset.users), drawn[start : start + most]) for start in (0, most))
    parts = [first & mask[users] for mask in chosen]
    return _leave_out(dataset, plan, random, held_out, rest, (parts[0], parts[1]), generation, "some-users")


SHARE_OF_SOME = 0.15
"""The share of the user-bundle pairs that `some-users` holds out, for validation and for test each."""
FEWEST_USERS = 100
"""`some-users` prefers users with two bundles or more, if the shop has this many of them."""


def _few_bundles(dataset: BundleDataset) -> bool:
    """Whether `paper` would leave less than half of the user-bundle pairs. The seed is fixed, so that splits
    with different seeds have the same protocol."""
    users, bundles = pairs_of(dataset.bought_bundles)
    rest = ~_tenth(dataset, np.random.default_rng(0))[bundles]
    counts = np.bincount(users[rest], minlength=len(dataset.users))
    return bool(np.maximum(counts - 2, 0).sum() * 2 < len(users))


def _tenth(dataset: BundleDataset, random: Random) -> Mask:
    """Draws the bundles that are held out for generation: 10% of those with items and buyers."""
    sold = np.bincount(dataset.bought_bundles.indices, minlength=len(dataset.bundles)) > 0
    usable = np.flatnonzero(sold & (np.diff(dataset.bundle_item.indptr) > 0))
    return _mask(len(sold), random.permutation(usable)[: round(len(usable) * 0.1)])


def _held_out_bundles(
    dataset: BundleDataset, plan: SplitPlan, random: Random
) -> tuple[Mask, Mask, GenerationCases | None]:
    """Holds out 10% of the bundles for generation. Returns a mask of these bundles, a mask of the
    user-bundle pairs with other bundles, and the cases."""
    users, bundles = pairs_of(dataset.user_bundle)
    held_out = _tenth(dataset, random)
    rest = ~held_out[bundles]
    if not held_out.any():
        return held_out, rest, None
    rows, asked = np.cumsum(held_out) - 1, ~rest & _purchases(dataset)
    cases = _completions(dataset, held_out, users[asked], rows[bundles[asked]], plan, random)
    return held_out, rest, cases


def _leave_out(
    dataset: BundleDataset,
    plan: SplitPlan,
    random: Random,
    held_out: Mask,
    rest: Mask,
    parts: tuple[Mask, Mask],
    generation: GenerationCases | None,
    protocol: str,
) -> Split:
    """A split whose `parts` are the pairs for validation and for test. The others in `rest` are learned."""
    users, bundles = pairs_of(dataset.user_bundle)
    train = _training_part(dataset, rest & ~(parts[0] | parts[1]), ~held_out)
    validation, test = (
        leave_one_out(dataset, users[which], bundles[which], held_out, plan.negatives, random)
        for which in parts
    )
    return Split(dataset, train, validation, test, generation, protocol, plan)


def _full_ranking(dataset: BundleDataset, plan: SplitPlan, random: Random) -> Split:
    """70% / 10% / 20% of each user's bundles for training, validation and test, the newest for test. The
    candidates are all bundles that the user does not have in training."""
    users, _ = pairs_of(dataset.user_bundle)
    counted = _purchases(dataset)
    order = np.where(counted, _rank_in_user(dataset, plan, counted, random), len(users))
    count = np.bincount(users[counted], minlength=len(dataset.users))[users]
    to_test = np.maximum((count * 0.2).round(), count > 2)  # users with three bundles are tested on one
    to_validate = np.maximum((count * 0.1).round(), count > 2)
    test, tune = order < to_test, (order >= to_test) & (order < to_test + to_validate)
    validation, testing = (_all_bundles(dataset, part) for part in (tune, test))
    return Split(dataset, _training_part(dataset, ~(test | tune)), validation, testing, None, "full", plan)


def _new_bundles(dataset: BundleDataset, plan: SplitPlan, random: Random) -> Split:
    """A tenth of the bundles is new at test time and another tenth at validation: their items are known, as
    for a bundle that a shop has just created, but no user has them yet.

    `cold-bundles` ranks the bundles that are new at that time among themselves. `new-bundles` tests them
    among all bundles that the user does not have in training. `new-bundles-known` trains on the same data and
    tests one known bundle of each user who has three or more: it measures how much accuracy on known bundles
    is lost because the model assumes sales for new bundles. Validation always ranks only new bundles, because
    it chooses the epoch before the assumed sales are computed.
    """
    users, bundles = pairs_of(dataset.user_bundle)
    draw = random.permutation(len(dataset.bundles))
    tenth = max(1, len(draw) // 10)
    is_test, is_validation = (_mask(len(draw), draw[start : start + tenth]) for start in (0, tenth))
    bought = _purchases(dataset)
    known = ~(is_test | is_validation)[bundles]
    validation = _all_bundles(dataset, bought & is_validation[bundles], np.flatnonzero(is_validation))
    if plan.protocol == "cold-bundles":
        test = _all_bundles(dataset, bought & is_test[bundles], np.flatnonzero(is_test))
        return Split(dataset, _training_part(dataset, known), validation, test, None, plan.protocol, plan)
    counted = known & bought
    count = np.bincount(users[counted], minlength=len(dataset.users))[users]
    held_out = counted & (count > 2) & (_rank_in_user(dataset, plan, counted, random) == 0)
    train = _training_part(dataset, known & ~held_out)
    test = _all_bundles(
        dataset, held_out if plan.protocol == "new-bundles-known" else bought & is_test[bundles]
    )
    new = np.flatnonzero(is_test | is_validation).astype(np.int32)
    return Split(dataset, train, validation, test, None, plan.protocol, plan, new)


def _by_time(dataset: BundleDataset, plan: SplitPlan, random: Random) -> Split:
    """What came before a moment is learned, the next stretch validates, and the last one is tested, with the
    same moments for all users. Nothing after the first moment is learned: no bundles, no items, no weaker
    events. So the histories of all cases end there. The candidates are all bundles that the user does not
    have by then. Bundles that nobody had by then are scored as if they had been added later."""
    at, bought = dataset.bundle_events.at, _purchases(dataset)
    assert at is not None
    moments = moments_of(
        at[bought], plan.test_share, plan.validation_share, plan.test_from, plan.validate_from
    )
    tested = bought & moments.test(at)
    train = _training_part(dataset, moments.training(at))
    if dataset.item_events.at is not None:
        earlier = moments.training(dataset.item_events.at)
        users, items = (positions[earlier] for positions in pairs_of(dataset.user_item))
        user_item = binary_matrix(users, items, dataset.user_item.shape)
        train = _with_items(train, user_item, dataset, f"before {moments}")
    validation, test = (_all_bundles(dataset, part) for part in (bought & moments.validation(at), tested))
    sales = np.bincount(train.bought_bundles.indices, minlength=len(dataset.bundles))
    unsold = np.flatnonzero(sales == 0)
    new = unsold.astype(np.int32) if len(unsold) else None
    split = Split(dataset, train, validation, test, None, "time", plan, new, moments=moments)
    split = plan.with_histories(split)
    return replace(split, generation=_completions_by_time(split, tested, random))


ENOUGH_NEW = 20
"""The protocol `time` completes the bundles that are first sold in the test, if there are this many."""


def _completions_by_time(split: Split, tested: Mask, random: Random) -> GenerationCases | None:
    """Cases of generation with bundles that are first sold in the test, or with a tenth of the sold bundles
    if there are too few. Matching knows the contents, as of a bundle that a shop has just created, but
    generation does not learn them. `tested` marks the user-bundle pairs of the test."""
    dataset, train = split.dataset, split.train
    users, bundles = pairs_of(dataset.user_bundle)
    earlier, sold = (
        np.bincount(bundles[which], minlength=len(dataset.bundles)) > 0 for which in (~tested, tested)
    )
    filled = np.diff(dataset.bundle_item.indptr) > 1
    first_sold = filled & sold & ~earlier
    if first_sold.sum() < ENOUGH_NEW:
        usable = np.flatnonzero(filled & (np.bincount(train.user_bundle.indices, minlength=len(filled)) > 0))
        drawn = random.permutation(usable)[: round(len(usable) * 0.1)]
        if not len(drawn):
            return None
        held_out = _mask(len(filled), drawn)
        return _training_completions(train, held_out, USERS_PER_BUNDLE, split.plan, split.histories, random)
    asked = tested & first_sold[bundles]
    rows = np.cumsum(first_sold) - 1
    cases = _completions(dataset, first_sold, users[asked], rows[bundles[asked]], split.plan, random)
    return replace(cases, known_as=np.flatnonzero(first_sold).astype(np.int32))


VALIDATION_SHARE, MOST_HELD_OUT, USERS_PER_BUNDLE = 0.05, 300, 4
"""To judge generation, training bundles are held out: their share, their maximum number, users per bundle."""
ENOUGH_HELD_OUT, MOST_SHARE = 50, 0.2
"""In a small shop more are held out, because a few bundles judge badly: this many, or at most this share."""
LEAST_BUNDLES = 20
"""If fewer bundles have at least two items, no bundle is held out."""


def completion_cases(
    train: BundleDataset, plan: SplitPlan, histories: str = "as given", not_among: Positions | None = None
) -> tuple[Mask, GenerationCases] | None:
    """Returns a mask of training bundles that are held out to judge generation, and their cases.

    Returns None if the shop has too few bundles. Matching still learns from the held-out bundles. A bundle
    without buyers is completed for a user without a history. With the histories `without held-out`, a case
    hides the items that the user has in this bundle and in no other. No bundle of `not_among` is held out.
    """
    random = np.random.default_rng([plan.seed, 0xB0D1E])
    usable = np.flatnonzero(np.diff(train.bundle_item.indptr) > 1)
    if not_among is not None:
        usable = np.setdiff1d(usable, not_among)
    small = min(ENOUGH_HELD_OUT, round(len(usable) * MOST_SHARE))
    count = min(MOST_HELD_OUT, max(small, round(len(usable) * VALIDATION_SHARE)))
    if len(usable) < LEAST_BUNDLES or not count:
        return None
    held_out = _mask(len(train.bundles), random.permutation(usable)[:count])
    return held_out, _training_completions(train, held_out, USERS_PER_BUNDLE, plan, histories, random)


def new_completion_cases(split: Split, new: Positions, random: Random) -> GenerationCases | None:
    """Returns a case for half of the `new` bundles, which are in the training data. If these are the cases of
    the split, matching learns from them, but generation does not."""
    count = min(MOST_HELD_OUT, len(new) // 2)
    held_out = _mask(len(split.train.bundles), random.permutation(new)[:count])
    if not count:
        return None
    return _training_completions(split.train, held_out, 1, split.plan, split.histories, random)


def _training_completions(
    train: BundleDataset,
    held_out: Mask,
    users_per_bundle: int,
    plan: SplitPlan,
    histories: str,
    random: Random,
) -> GenerationCases:
    chosen = np.flatnonzero(held_out).astype(np.int32)
    buyers = sparse.csc_matrix(train.bought_bundles)
    drawn = [_draw(row_of(buyers, bundle), users_per_bundle, random) for bundle in chosen.tolist()]
    users = [row if len(row) else np.array([len(train.users)]) for row in drawn]
    rows = np.repeat(np.arange(len(users)), [len(row) for row in users])
    cases = replace(_completions(train, held_out, np.concatenate(users), rows, plan, random), known_as=chosen)
    if histories == "without held-out":
        cases = replace(cases, hidden_items=_only_here(train, cases.users, chosen[cases.bundles]))
    return cases


def _only_here(train: BundleDataset, users: Positions, bundles: Positions) -> sparse.csr_matrix:
    """The items of each bundle that are in no other bundle of the user, [pairs, items]."""
    rows, bought = [], train.bought_bundles
    for user, bundle in zip(users.tolist(), bundles.tolist(), strict=True):
        owned = row_of(bought, user) if user < len(train.users) else np.empty(0, np.int32)
        others = np.unique(train.bundle_item[owned[owned != bundle]].indices)
        rows.append(np.setdiff1d(row_of(train.bundle_item, bundle), others))
    lengths = [len(row) for row in rows]
    shape = (len(rows), len(train.items))
    return binary_matrix(np.repeat(np.arange(len(rows)), lengths), np.concatenate(rows), shape)


def _mask(size: int, chosen: npt.NDArray[np.integer]) -> Mask:
    mask = np.zeros(size, bool)
    mask[chosen] = True
    return mask


def _rank_in_user(dataset: BundleDataset, plan: SplitPlan, counted: Mask, random: Random) -> Positions:
    """The rank of each user-bundle pair among the pairs of its user: the newest first, or a random order.
    Pairs outside the mask `counted` rank last."""
    at = dataset.bundle_events.at if plan.last_first(dataset) else None
    return ranks_in_user(pairs_of(dataset.user_bundle)[0], counted, at, random)


def _purchases(dataset: BundleDataset) -> Mask:
    """Marks the user-bundle pairs that can be cases. The others are weaker events, such as views."""
    bought = dataset.bundle_events.purchases
    return np.ones(dataset.user_bundle.nnz, bool) if bought is None else bought


def _with_items(
    train: BundleDataset, user_item: sparse.csr_matrix, dataset: BundleDataset, how: str
) -> BundleDataset:
    """Returns training data with fewer pairs of `user_item`.

    A process may have only a part of these pairs, and all processes must find the same fingerprint. So the
    digest is that of the whole `dataset`, and of the text that says how pairs were chosen from it.
    """
    after = train.with_interactions(user_item=user_item)
    digests = dataset.digests()
    digest = hashlib.sha256(f"{how} {fingerprint(digests)}".encode()).hexdigest()
    events = {name: digest for name in digests if name.startswith("user_item_")}
    # The first digest of a part counts: events may be the same object as before.
    known = ((user_item, {"user_item": digest}), (after.item_events, events), *train.known_digests)
    return replace(after, known_digests=known)


def _training_part(dataset: BundleDataset, pairs: Mask, known: Mask | None = None) -> BundleDataset:
    """The user-bundle pairs in the mask `pairs`, and the items of all bundles, or of those in `known`."""
    users, bundles = pairs_of(dataset.user_bundle)
    bundle_item = dataset.bundle_item
    if known is not None:
        owners, items = pairs_of(bundle_item)
        bundle_item = binary_matrix(owners[known[owners]], items[known[owners]], bundle_item.shape)
    user_bundle = binary_matrix(users[pairs], bundles[pairs], dataset.user_bundle.shape)
    return dataset.with_interactions(user_bundle=user_bundle, bundle_item=bundle_item)


def leave_one_out(
    dataset: BundleDataset,
    users: Positions,
    bundles: Positions,
    held_out: Mask,
    negatives: int,
    random: Random,
) -> MatchingCases:
    """Returns a case for each user-bundle pair. The candidates are this bundle and `negatives` other ones.

    The other bundles are drawn from those that the user did not buy. Bundles in the mask `held_out` are
    not drawn.
    """
    allowed, bought = np.flatnonzero(~held_out), dataset.bought_bundles
    drawn = [
        _draw(np.setdiff1d(allowed, row_of(bought, user), assume_unique=True), negatives, random)
        for user in users
    ]
    candidates = padded([np.concatenate([[bundle], row]) for bundle, row in zip(bundles, drawn, strict=True)])
    positives = binary_matrix(np.arange(len(users)), bundles, (len(users), len(dataset.bundles)))
    return MatchingCases(users, positives, candidates)


def _all_bundles(
    dataset: BundleDataset, pairs: Mask, among: npt.NDArray[np.intp] | None = None
) -> MatchingCases:
    """One case for each user with pairs in the mask `pairs`. These pairs are the positives. The candidates
    are all bundles, or those in `among`."""
    users, bundles = (positions[pairs] for positions in pairs_of(dataset.user_bundle))
    unique, case = np.unique(users, return_inverse=True)
    positives = binary_matrix(case, bundles, (len(unique), len(dataset.bundles)))
    candidates = None if among is None else np.tile(among.astype(np.int32), (len(unique), 1))
    return MatchingCases(unique, positives, candidates)


def positives_by_size(dataset: BundleDataset) -> int:
    """Returns n as in the paper: 1, 5 and 10 if bundles have 6, 37 and 78 items on average."""
    filled = int(np.count_nonzero(np.diff(dataset.bundle_item.indptr)))
    mean = dataset.bundle_item.nnz / max(1, filled)
    return 1 if mean < 15 else 5 if mean < 60 else 10


def _completions(
    dataset: BundleDataset,
    held_out: Mask,
    users: npt.NDArray[np.integer],
    rows: npt.NDArray[np.integer],
    plan: SplitPlan,
    random: Random,
) -> GenerationCases:
    """Cases that hide n items of each held-out bundle. The other candidates are 99 n items outside it.

    `users` and `rows` have an entry for each case: its user, and the row of its held-out bundle.
    """
    positives = plan.positives or positives_by_size(dataset)
    hidden, shown, candidates = [], [], []
    everything = np.arange(len(dataset.items))
    for bundle in np.flatnonzero(held_out).tolist():
        items = random.permutation(row_of(dataset.bundle_item, bundle))
        others = np.delete(everything, items)
        hidden.append(items[:positives])
        shown.append(items[positives:])
        candidates.append(np.concatenate([items[:positives], _draw(others, 99 * positives, random)]))
    partial, answers = (
        binary_matrix(
            np.repeat(np.arange(len(part)), [len(row) for row in part]),
            np.concatenate(part),
            (len(part), len(dataset.items)),
        )
        for part in (shown, hidden)
    )
    return GenerationCases(
        users.astype(np.int32), rows.astype(np.int32), partial, answers, padded(candidates)
    )


def _draw(pool: npt.NDArray[np.integer], count: int, random: Random) -> npt.NDArray[np.integer]:
    return random.choice(pool, size=min(count, len(pool)), replace=False, shuffle=False)


def padded(rows: Sequence[npt.NDArray[np.integer]]) -> Positions:
    """Returns rows of different lengths as one array, filled with `PAD`."""
    table = np.full((len(rows), max(map(len, rows), default=0)), PAD, np.int32)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table
