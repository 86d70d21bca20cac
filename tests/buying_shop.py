"""A shop with a planted truth, whose customers mostly buy from the first five bundles that they are shown.

Every user has tastes, and every bundle belongs to one taste and has a quality. Both together are the chance
that the user wants the bundle. A model is better if it ranks the bundles that users want higher.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from bundlemage import Recommender
from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import SplitPlan
from bundlemage.live import EMPTY, Live, record_of
from bundlemage.retraining.run import Retrained, retrain
from bundlemage.store.records import InteractionRecord, Owned, Served
from bundlemage.store.repository import Store
from tests.small_shop import dataset_of

TASTES, BUNDLES, ITEMS = 6, 60, 900
"""There are so many items that users rarely own all items of a bundle which they have not bought."""
FIRST_DAY = datetime(2026, 3, 1, tzinfo=UTC)
SHOWN, SEEN, FROM_THE_LIST = 10, 5, 0.7


@dataclass(frozen=True)
class BuyingShop:
    """The users' wishes, and the shop's data before the simulated days."""

    wishes: Any  # [users, bundles], the chance that a user's next wish is this bundle
    dataset: BundleDataset
    random: np.random.Generator

    @classmethod
    def of(cls, seed: int, users: int, bought: int) -> BuyingShop:
        """`bought` is the number of bundles that each user has bought before the simulated days."""
        random = np.random.default_rng(seed)
        tastes = random.dirichlet(np.full(TASTES, 0.2), users)
        quality = np.exp(random.normal(0, 0.7, BUNDLES))
        wishes = (tastes[:, np.arange(BUNDLES) % TASTES] + 0.01) * quality
        wishes /= wishes.sum(1, keepdims=True)
        contents = [
            (random.permutation(ITEMS // TASTES)[:4] * TASTES + bundle % TASTES).tolist()
            for bundle in range(BUNDLES)
        ]
        items = [random.permutation(ITEMS)[:3].tolist() for _ in range(users)]
        owned = [random.choice(BUNDLES, bought, replace=False, p=row).tolist() for row in wishes]
        return cls(wishes, dataset_of(items, owned, contents, ITEMS), random)

    def open(self, store: Store, path: Path, model: Recommender) -> None:
        """Write the shop into a store, and publish the model to serve."""
        store.import_dataset(self.dataset)
        store.publish(record_of(model.save(path)))

    def trained(self, model: str, **settings: Any) -> Recommender:
        """A model that has learned from all that was bought before the simulated days."""
        recommender = Recommender(model, device="cpu", **settings)
        return recommender.fit(self.dataset, SplitPlan("none"), progress=False)

    def trade(
        self, store: Store, model: Recommender, days: int, shown: int = SHOWN, visits: float = 0.4
    ) -> None:
        """Let users visit the shop for some days. What they see and buy is recorded as by the service. The
        service returns the best `shown` bundles, and the users look at the first five."""
        live = Live(model, EMPTY.after(store.catalogue()), store.sales())
        version = store.state().model or ""
        for day in range(days):
            visitors = np.flatnonzero(self.random.random(len(self.wishes)) < visits)
            names = [f"u{user}" for user in visitors]
            histories = store.histories(names)
            lists = live.recommend_many([histories[name] for name in names], shown)
            at = FIRST_DAY + timedelta(days=day)
            served, bought = [], []
            for number, (user, name, answer) in enumerate(zip(visitors, names, lists, strict=True)):
                ids = tuple(each.id for each in answer)
                now = at + timedelta(minutes=number)
                served.append(Served(f"r{day}-{name}", "bundles", name, version, ids, now))
                bundle = self._chosen(user, histories[name], ids)
                bought.append(InteractionRecord(name, "bundle", bundle, now + timedelta(seconds=30)))
            store.add_served(served)
            store.add_interactions(bought)

    def _chosen(self, user: Any, history: Owned, ids: tuple[str, ...]) -> str:
        chances = self.wishes[user].copy()
        chances[[int(name[1:]) for name in history.bundles]] = 0
        if self.random.random() < FROM_THE_LIST:
            seen = np.isin(np.arange(BUNDLES), [int(name[1:]) for name in ids[:SEEN]])
            chances[~seen] = 0
        return f"b{self.random.choice(BUNDLES, p=chances / chances.sum())}"

    def truth(self, store: Store, model: Recommender) -> float:
        """The expected nDCG@10 of a model for what users want next."""
        live = Live(model, EMPTY.after(store.catalogue()), store.sales())
        names = [f"u{user}" for user in range(len(self.wishes))]
        histories = store.histories(names)
        lists = live.recommend_many([histories[name] for name in names], 10)
        gains = 1 / np.log2(np.arange(10) + 2)
        total = 0.0
        for user, (name, answer) in enumerate(zip(names, lists, strict=True)):
            left = self.wishes[user].copy()
            left[[int(bundle[1:]) for bundle in histories[name].bundles]] = 0
            places = [int(each.id[1:]) for each in answer]
            total += float((left[places] / left.sum()) @ gains[: len(places)])
        return total / len(names)


@dataclass(frozen=True)
class Trial:
    """A retraining after some days of trade, and how good both models truly are."""

    published: bool
    serving: float
    candidate: float
    """Of the published model. If none was published: of the same kind of model, fitted on all data."""
    outcome: Retrained


def tried(seed: int, serving: str, candidate: str | None, folder: Path, **size: Any) -> Trial:
    """Serve one model for some days, then retrain as another one, or as the same if `candidate` is None."""
    size = {"users": 600, "days": 10, "bought": 6, "shown": SHOWN} | size
    store = Store.open(f"sqlite:///{folder}/shop-{seed}.db")
    try:
        shop = BuyingShop.of(seed, size["users"], size["bought"])
        old = shop.trained(serving)
        shop.open(store, folder / f"model-{seed}", old)
        shop.trade(store, old, size["days"], size["shown"])
        outcome = retrain(store, model=candidate, settings={"device": "cpu"})
        assert (store.state().model == outcome.version) == outcome.published
        if outcome.path is not None:
            new = Recommender.load(outcome.path, device="cpu")
        else:
            new = Recommender(candidate or serving, device="cpu")
            new.fit(store.dataset(), SplitPlan("none"), progress=False)
        return Trial(outcome.published, shop.truth(store, old), shop.truth(store, new), outcome)
    finally:
        store.close()
