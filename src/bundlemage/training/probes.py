"""Trains models without some bundles, to see how a model treats bundles that are new to it.

Some bundles of the training data are treated as new: they are removed with all their purchases, and a model
of the same kind, the probe, is trained without them. What really happened with these bundles tells how to use
the scores of new bundles: how many sales to assume for them (`training.assumed_sales`), and how many users
will buy them (`campaigns.new_bundles`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse

from bundlemage.data.dataset import BundleDataset, Positions, binary_matrix, pairs_of
from bundlemage.data.leakage import leakage, without_items_of
from bundlemage.data.splits import COLD_PROTOCOLS, PAD, Split, SplitPlan
from bundlemage.models.base import Model
from bundlemage.models.config import LearnedConfig, ModelConfig
from bundlemage.models.registry import make_config
from bundlemage.training.loop import train_members

LEAST_BUNDLES = 40
"""If fewer bundles with items have a buyer, none is held out: all are needed for training."""
TOO_FEW_BUNDLES = f"fewer than {LEAST_BUNDLES} bundles with items have a buyer, too few to hold any out"
HELD_OUT, MOST_SHARE, MOST_HELD_OUT = 0.1, 0.2, 500
"""The share of the bundles that one probe does without. It is larger, up to the second number, in a small
shop. The third number is the most bundles."""
WANTED, MOST_PROBES = 80, 3
"""If one probe does without fewer bundles than this, more probes are trained, at most this many in all."""
MOST_PURCHASES, MOST_PURCHASES_SHARE = 2_000, 0.1
"""The most purchases of known bundles that the probe must predict, and the most of all such purchases."""
FEWEST_EPOCHS = 3

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Probe:
    """A model that was trained without some bundles. It numbers the bundles that it knows from 0 on."""

    model: Model
    train: BundleDataset
    """What the probe was trained on."""
    known: Positions
    """The positions in the shop of the bundles that the probe knows, in the probe's order."""
    new: Positions
    """The positions in the shop of the bundles that are new to the probe."""
    unseen: sparse.csr_matrix  # [users, known]
    """Purchases of known bundles that were not in training either."""


class Probes:
    """The probes for a model that was trained on a split. Each is trained when it is first needed."""

    def __init__(
        self,
        model: str,
        config: ModelConfig,
        split: Split,
        device: torch.device,
        *,
        epochs: int,
        members: int = 1,
    ) -> None:
        """The model has this name and config, and was trained for `epochs` epochs. An ensemble has several
        members, and its probe has as many: the mean of several scores varies less than a single score."""
        self.split, self.device, self.seed = split, device, config.seed
        self._model, self._config, self._epochs, self._members = model, config, epochs, members
        self._random = np.random.default_rng([config.seed, 0xC2ED17])
        self.parts = _parts(split, self._random)
        """The bundles that each probe does without. There are none if the shop has too few bundles."""

    @cached_property
    def first(self) -> Probe:
        """The first probe. It is kept, because it is used twice."""
        return self._probe(self.parts[0], predicts=True)

    def __iter__(self) -> Iterator[Probe]:
        if self.parts:
            yield self.first
            for part in self.parts[1:]:
                yield self._probe(part, predicts=False)

    def _probe(self, new: Positions, *, predicts: bool) -> Probe:
        known = np.setdiff1d(np.arange(len(self.split.train.bundles), dtype=np.int32), new)
        data = without_bundles(self.split.train, new, known)
        users, bundles = pairs_of(data.user_bundle)
        unseen = np.zeros(len(users), bool)
        if predicts:
            buyers = np.unique(pairs_of(self.split.train.bought_bundles[:, new])[0])
            bought = data.bundle_events.purchases
            bought = np.ones(len(users), bool) if bought is None else bought
            most = min(MOST_PURCHASES, len(buyers), int(bought.sum() * MOST_PURCHASES_SHARE))
            unseen[bought] = _one_each(users[bought], most, self._random)
        learned, left_out = (
            binary_matrix(users[which], bundles[which], data.user_bundle.shape) for which in (~unseen, unseen)
        )
        data = data.with_interactions(user_bundle=learned)
        if self.split.histories == "without held-out":
            user_item = without_items_of(left_out, data.bundle_item, data)
            data = data.with_interactions(user_item=user_item)
        settings = self._config.model_dump()
        changed = {"new_bundle_credit": "median", "device": str(self.device)}
        settings |= {name: value for name, value in changed.items() if name in settings}
        if isinstance(self._config, LearnedConfig):
            settings["epochs"] = max(FEWEST_EPOCHS, self._epochs)
        config = make_config(self._model, settings)
        plan = SplitPlan("none")
        model, result = train_members(self._model, config, plan.divide(data), self._members)
        if result.interrupted:
            raise KeyboardInterrupt
        model.eval()
        return Probe(model, data, known, new, left_out)


def without_bundles(dataset: BundleDataset, new: Positions, known: Positions) -> BundleDataset:
    """Returns a data set as it was before the bundles `new` were bought. It has only the bundles `known`.

    If users' items show which of the new bundles they bought, these items are removed, too.
    """
    before = dataset.only_bundles(known)
    users, bundles = pairs_of(dataset.user_bundle)
    is_new = np.isin(bundles, new)
    bought = binary_matrix(users[is_new], bundles[is_new], dataset.user_bundle.shape)
    if not leakage(bought, dataset).found:
        return before
    return before.with_interactions(user_item=without_items_of(bought, dataset.bundle_item, before))


def new_in(split: Split) -> Positions:
    """Returns the bundles that no user has in training because the split treats them as new."""
    if split.new_bundles is not None:
        return split.new_bundles
    if split.protocol not in COLD_PROTOCOLS:
        return np.empty(0, np.int32)
    cases = [part.candidates for part in (split.validation, split.test) if part is not None]
    found = np.unique(np.concatenate([each.ravel() for each in cases if each is not None]))
    return np.setdiff1d(found, PAD).astype(np.int32)


def _parts(split: Split, random: np.random.Generator) -> list[Positions]:
    """Draws the bundles for each probe. No bundle is drawn twice.

    The bundles are sorted by sales and cut into groups. Each probe gets one bundle of each group. So best
    sellers have the same share among the drawn bundles as among all, and mean sales are about the same.
    """
    sales = np.bincount(split.train.bought_bundles.indices, minlength=len(split.train.bundles))
    usable = np.diff(split.train.bundle_item.indptr) > 0
    usable[new_in(split)] = False
    if np.count_nonzero(sales[usable]) < LEAST_BUNDLES:
        return []
    places = np.flatnonzero(usable)
    share = round(len(places) * HELD_OUT)
    if share < WANTED:
        share = min(WANTED, round(len(places) * MOST_SHARE))
    count = min(MOST_HELD_OUT, share)
    probes = min(MOST_PROBES, -(-WANTED // count))
    order = places[np.lexsort((random.random(len(places)), sales[places]))]
    drawn = [random.permutation(group)[:probes] for group in np.array_split(order, count)]
    return [np.sort(part).astype(np.int32) for part in np.stack(drawn, axis=1)]


def _one_each(users: Positions, most: int, random: np.random.Generator) -> Flags:
    """Marks a random purchase of each user who has at least two, of at most `most` users."""
    order = np.lexsort((random.random(len(users)), users))
    first = order[np.searchsorted(users, np.unique(users))]
    first = first[np.bincount(users)[users[first]] > 1]
    marked = np.zeros(len(users), bool)
    marked[random.permutation(first)[:most]] = True
    return marked
