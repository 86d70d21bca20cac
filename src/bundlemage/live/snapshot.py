"""A model with the current catalogue. A snapshot never changes: a change of the catalogue makes a new one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bundlemage.artifact.files import artifact_version, describe_artifact
from bundlemage.asker import Asker
from bundlemage.core.filters import Filter
from bundlemage.core.history import History, Id, NewBundles, User
from bundlemage.core.shop import ExpectedSales, Recommendation, Shop, Trade
from bundlemage.errors import ArtifactError, UnknownIdError, UnsupportedError
from bundlemage.live.bundle_rows import BundleRows
from bundlemage.live.catalogue import Stock, shelves
from bundlemage.models.base import Completer, Histories, Matcher, SalesScorer, can
from bundlemage.models.ragged import Ragged
from bundlemage.recommender import Recommender
from bundlemage.store.records import Bundle, CatalogueChange, ModelRecord, Owned, Sales
from bundlemage.wire.answers import Known

NO_SALES = Sales({}, {})
UNPUBLISHED = ModelRecord("", "", "", {})


@dataclass(frozen=True)
class Question:
    """A request for the best bundles of a user, or for items that complete the bundle `partial`."""

    user: str | Owned
    """The id of a user in the store, or a history."""
    k: int
    where: Filter | None = None
    include_owned: bool = False
    partial: tuple[str, ...] | None = None


class LiveShop(Shop):
    """A shop that skips items and bundles of a history if they are newer than the model."""

    def __init__(self, rows: BundleRows, trade: Trade, stock: Stock, in_stock: npt.NDArray[np.bool_]) -> None:
        dataset = rows.dataset
        columns = shelves(dataset.items, dataset.bundles, stock, in_stock)
        super().__init__(dataset, rows.device, trade, columns, rows.interactions)
        self.filled = rows.filled

    def encode(
        self,
        users: Sequence[User],
        new: NewBundles | None = None,
        expected: ExpectedSales | None = None,
    ) -> tuple[Histories, Ragged]:
        """Returns the histories as positions, and the items of the shop's bundles. Users must be histories.
        `new` is not supported: new bundles belong in the catalogue."""
        histories = [user for user in users if isinstance(user, History)]
        if new or len(histories) < len(users):
            raise UnsupportedError("a live shop takes only histories, and bundles of its catalogue")
        items, bundles = self.dataset.items.known_positions, self.filled
        encoded = Histories(
            _positions([history.items for history in histories], items, self),
            _positions([history.bundles for history in histories], bundles, self),
        )
        return encoded, self.interactions.bundle_item

    def item_positions(self, items: Sequence[Id]) -> list[int]:
        """Positions of the items that the model knows, in ascending order, each once."""
        known = self.dataset.items.known_positions
        return sorted({known[name] for name in map(str, items) if name in known})

    def bundle_position(self, bundle: Id) -> int:
        """The position of a bundle. Raises UnknownIdError if the model knows none of its items."""
        if str(bundle) not in self.filled:
            raise UnknownIdError("bundle", [str(bundle)], self.filled)
        return self.filled[str(bundle)]


def _positions(rows: Sequence[Sequence[Any]], known: Mapping[str, int], shop: Shop) -> Ragged:
    return Ragged.from_lists([[known[name] for name in row if name in known] for row in rows], shop.device)


class Live(Asker):
    """A model and a catalogue, ready for questions."""

    def __init__(
        self,
        recommender: Recommender,
        stock: Stock,
        sales: Sales = NO_SALES,
        record: ModelRecord = UNPUBLISHED,
    ) -> None:
        """`record` is the store's record of a published model."""
        super().__init__()
        model = recommender.model
        if not model.knows_new_users:
            raise UnsupportedError(
                f"{model.title} knows only the users it was trained on, so it cannot serve a shop with new "
                "users: 'bundlemage models' lists the models that can, under 'new users'"
            )
        self.recommender, self.calibration, self.record = recommender, recommender.calibration, record
        self.stock, self.sales = stock, sales
        known = model.known_sales().cpu() if can(model, SalesScorer) else None
        self._rows = BundleRows.of(recommender.dataset, recommender.shop.device, known)
        bundles, items = len(self._rows.dataset.bundles), len(self._rows.dataset.items)
        nothing_sold = np.zeros(items, np.int64), np.zeros(bundles, np.int64)
        self._trade = Trade(*nothing_sold, np.ones(items, bool), np.ones(bundles, bool))
        self._in_stock = np.zeros(bundles, bool)
        in_order = sorted(stock.bundles.values(), key=lambda bundle: bundle.id)
        self._apply(CatalogueChange(stock.version, list(stock.items.values()), in_order), sales)

    def after(self, change: CatalogueChange, sales: Sales | None = None) -> Live:
        """Returns the same model with the catalogue after a change. Only changed parts are computed again."""
        live = copy(self)
        live.stock = self.stock.after(change)
        live.sales = self.sales if sales is None else sales
        live._apply(change, sales)
        return live

    def _apply(self, change: CatalogueChange, sales: Sales | None) -> None:
        """Apply a change to the rows and arrays of this snapshot. `stock` already includes the change.

        `sales` is None if the sales have not changed. Arrays are replaced: other snapshots share them.
        """
        before, stock = len(self._rows.dataset.bundles), self.stock
        self._rows = self._rows.after(change.bundles)
        dataset = self._rows.dataset
        more = len(dataset.bundles) - before
        trade = self._trade.with_more_bundles(more)
        self._in_stock = np.concatenate([self._in_stock, np.zeros(more, bool)])
        items, bundles = dataset.items.known_positions, dataset.bundles.known_positions
        if sales is not None:
            trade = replace(
                trade,
                item_sales=np.array([sales.items.get(name, 0) for name in dataset.items], np.int64),
                bundle_sales=np.array([sales.bundles.get(name, 0) for name in dataset.bundles], np.int64),
            )
        for item in change.items:
            if item.id in items:
                trade.items_gone[items[item.id]] = item.withdrawn
        for name in stock.affected(change):
            bundle, place = stock.bundles[name], bundles[name]
            trade.bundles_gone[place] = not stock.sellable(bundle)
            self._in_stock[place] = stock.in_stock(bundle)
        self._trade = trade
        self._fitted = (self.recommender.model, LiveShop(self._rows, trade, stock, self._in_stock))

    def in_model(self, item: str) -> bool:
        """Whether the model knows an item."""
        return item in self.dataset.items

    def recommendable(self, bundle: Bundle) -> bool:
        """Whether a bundle can be recommended now: it is on sale, and the model knows one of its items."""
        return self.stock.sellable(bundle) and any(map(self.in_model, bundle.items))

    def known_of(self, history: History) -> Known:
        """The number of items and bundles of a history that the model uses, and that it does not know."""
        known_items = self.dataset.items.known_positions
        items = sum(name in known_items for name in history.items)
        bundles = sum(name in self._rows.filled for name in history.bundles)
        newer = len(history.items) + len(history.bundles) - items - bundles
        return Known(items=items, bundles=bundles, not_in_model=newer)

    def answer(self, questions: Sequence[Question]) -> list[list[Recommendation] | Exception]:
        """Returns for each question its answer or an exception. `user` must be a history in each question.

        Questions of the same kind with the same filter are answered together by the model.
        """
        alike: dict[Any, list[int]] = defaultdict(list)
        for number, question in enumerate(questions):
            alike[question.partial is None, question.where, question.include_owned].append(number)
        outcomes: dict[int, list[Recommendation] | Exception] = {}
        for numbers in alike.values():
            try:
                outcomes.update(
                    zip(numbers, self._answer_alike([questions[n] for n in numbers]), strict=True)
                )
            except Exception as error:
                outcomes.update(dict.fromkeys(numbers, error))
        return [outcomes[number] for number in range(len(questions))]

    def _answer_alike(self, questions: Sequence[Question]) -> list[list[Recommendation]]:
        first, most = questions[0], max(question.k for question in questions)
        if first.partial is None:
            users = [question.user for question in questions]
            answers = self.recommend_many(users, most, where=first.where, include_owned=first.include_owned)
        else:
            cases = [(question.user, question.partial or ()) for question in questions]
            answers = self.complete_many(cases, most, where=first.where, include_owned=first.include_owned)
        return [best[: question.k] for question, best in zip(questions, answers, strict=True)]

    def warm(self) -> Live:
        """Fill all caches now, so that the first question need not wait. Returns the same object."""
        if can(self.model, Matcher):
            self.recommend(Owned(), 1)
        if can(self.model, Completer):
            self.complete(Owned(), (), 1)
        return self


# ── Saved models and their records in the store ────────────────────────────────────────────────────


def record_of(path: Path) -> ModelRecord:
    """Makes the store's record of a saved model."""
    version, config, metrics = describe_artifact(path)
    return ModelRecord(version, str(path.resolve()), config["model"], metrics)


def load_published(record: ModelRecord, device: str = "auto") -> Recommender:
    """Read a registered model. Raises ArtifactError if its folder now holds another model."""
    path = Path(record.path)
    version = artifact_version(path)
    if version != record.version:
        raise ArtifactError(
            f"{path} no longer holds the model {record.version}: it was replaced by {version}"
        )
    return Recommender.load(path, device=device)
