"""A snapshot never changes. When the catalogue does, another one takes its place."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from bundlemage.campaigns.audience import forecast
from bundlemage.campaigns.forecasts import BundleForecast
from bundlemage.core.answering import Questions, nearest, rankings, rows_at_a_time
from bundlemage.core.bulk import slices
from bundlemage.core.filters import Filter
from bundlemage.core.shop import Recommendation, Shelves, Shop, Trade, best
from bundlemage.designer.design import Designs, design
from bundlemage.designer.explain import Explanation, explain_bundles, explain_item
from bundlemage.errors import UnknownIdError, UnsupportedError
from bundlemage.live.layout import Layout
from bundlemage.live.shelves import RecordShelf
from bundlemage.live.stock import Stock
from bundlemage.models.base import Histories
from bundlemage.models.ragged import Ragged
from bundlemage.recommender import Recommender
from bundlemage.store.records import Bundle, CatalogueChange, Item, Owned, Sales
from bundlemage.wire.design import DesignRequest

NO_SALES = Sales({}, {})


@dataclass(frozen=True)
class Question:
    """What somebody who has these things is asked about: bundles, or items that complete `partial`."""

    owned: Owned
    k: int
    where: Filter | None = None
    include_owned: bool = False
    partial: tuple[str, ...] | None = None


@dataclass(frozen=True)
class HistoryKnown:
    """How much of a history the model goes by."""

    items: int
    bundles: int
    not_in_model: int
    """How many items and bundles it does not know yet."""


@dataclass(frozen=True)
class Answer:
    found: list[Recommendation]
    known: HistoryKnown


class Live:
    """A model and a catalogue, ready to be asked."""

    def __init__(self, recommender: Recommender, stock: Stock, sales: Sales = NO_SALES) -> None:
        if not recommender.model.knows_new_users:
            raise UnsupportedError(
                f"{recommender.model.title} knows only the users it was trained on, so it cannot serve a "
                "shop where people come and buy: 'bundlemage models' lists those that can, under 'new users'"
            )
        self.recommender = recommender
        self.model = recommender.model
        recommender.settle_credit()  # a loaded model has been through it
        known = self.model.known_sales().cpu() if self.model.credits_new_bundles else None
        layout = Layout.of(recommender.dataset, stock.bundles, recommender.shop.device, known)
        bundles, items = len(layout.dataset.bundles), len(layout.dataset.items)
        nothing = Trade(
            np.zeros(items, np.int64),
            np.zeros(bundles, np.int64),
            np.ones(items, bool),
            np.ones(bundles, bool),
        )
        everything = CatalogueChange(stock.version, list(stock.items.values()), list(stock.bundles.values()))
        self._open(layout, stock, sales, nothing, np.zeros(bundles, bool), everything)

    def after(self, change: CatalogueChange, sales: Sales | None = None) -> Live:
        """The same model in a shop that has changed: what has not is taken over, not worked out again."""
        live = object.__new__(Live)
        live.recommender, live.model = self.recommender, self.model
        layout = self._layout.after(change.bundles)
        more = len(layout.dataset.bundles) - len(self._layout.dataset.bundles)
        live._open(
            layout,
            self.stock.after(change),
            self.sales if sales is None else sales,
            self.shop.trade.with_more_bundles(more),
            np.concatenate([self._in_stock, np.zeros(more, bool)]),
            change,
            counted=self.sales if sales is None else None,
        )
        return live

    # ── The catalogue as the model sees it ───────────────────────────────────────────────────────

    def _open(
        self,
        layout: Layout,
        stock: Stock,
        sales: Sales,
        trade: Trade,
        in_stock: npt.NDArray[np.bool_],
        change: CatalogueChange,
        counted: Sales | None = None,
    ) -> None:
        """Bring what is known by place up to a change. `counted` are the sales that `trade` has already."""
        self._layout, self.stock, self.sales, self._in_stock = layout, stock, sales, in_stock
        dataset = layout.dataset
        items, bundles = dataset.items.known_positions, dataset.bundles.known_positions
        if sales is not counted:
            trade = trade.selling(
                _counts(sales.items, dataset.items.ids), _counts(sales.bundles, dataset.bundles.ids)
            )
        for item in change.items:
            if item.id in items:
                trade.items_gone[items[item.id]] = item.withdrawn
        for name in stock.affected(change):
            bundle, place = stock.bundles[name], bundles[name]
            trade.bundles_gone[place] = not stock.sellable(bundle)
            in_stock[place] = stock.in_stock(bundle)
        item_shelf = RecordShelf(dataset.items, stock.items, Item)
        stocked = functools.partial(_stocked, stock, in_stock)
        bundle_shelf = RecordShelf(dataset.bundles, stock.bundles, _unknown_bundle, stocked)
        self.shop = Shop(
            dataset, layout.device, trade, Shelves(item_shelf, bundle_shelf), layout.interactions
        )

    def in_model(self, item: str) -> bool:
        return item in self.shop.dataset.items

    def recommendable(self, bundle: Bundle) -> bool:
        """Whether anyone can be shown it now: it is sold, and the model knows something that is in it."""
        return self.stock.sellable(bundle) and any(map(self.in_model, bundle.items))

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────

    def answer(self, questions: Sequence[Question]) -> list[Answer | Exception]:
        """All of them at once, those that ask for the same kind of thing in one pass of the model."""
        alike: dict[Any, list[int]] = defaultdict(list)
        for number, question in enumerate(questions):
            alike[question.partial is None, question.where, question.include_owned].append(number)
        answers: dict[int, Answer | Exception] = {}
        for numbers in alike.values():
            try:
                found: Sequence[Answer | Exception] = self._answer_alike([questions[n] for n in numbers])
            except Exception as error:
                found = [error] * len(numbers)
            answers.update(zip(numbers, found, strict=True))
        return [answers[number] for number in range(len(questions))]

    def _answer_alike(self, questions: Sequence[Question]) -> list[Answer]:
        where, include_owned = questions[0].where, questions[0].include_owned
        histories, partial = self._histories([question.owned for question in questions]), None
        if questions[0].partial is None:
            self.recommender.check_matches()
            candidates = self.shop.bundles(where)
        else:
            self.recommender.check_generates()
            candidates = self.shop.items(where)
            known = self.shop.dataset.items.known_positions
            rows = [[known[name] for name in q.partial or () if name in known] for q in questions]
            partial = Ragged.from_lists(rows, self.shop.device)
        asked = Questions(histories, self.shop.interactions.bundle_item, partial)
        most = max(question.k for question in questions)
        (ranking,) = rankings(self.model, [asked], candidates, most, include_owned=include_owned)
        return [
            self._told(question, found[: question.k], items, bundles)
            for question, found, items, bundles in zip(
                questions,
                best(ranking, candidates),
                histories.items.lengths.tolist(),
                histories.bundles.lengths.tolist(),
                strict=True,
            )
        ]

    def _told(self, question: Question, found: list[Recommendation], items: int, bundles: int) -> Answer:
        owned = len(question.owned.items) + len(question.owned.bundles)
        return Answer(found, HistoryKnown(items, bundles, owned - items - bundles))

    def known_of(self, owned: Owned) -> HistoryKnown:
        items = sum(name in self.shop.dataset.items for name in owned.items)
        bundles = sum(name in self._layout.filled for name in owned.bundles)
        return HistoryKnown(items, bundles, len(owned.items) + len(owned.bundles) - items - bundles)

    def _histories(self, owned: Sequence[Owned]) -> Histories:
        """What the model does not know yet is passed over."""
        items, bundles = self.shop.dataset.items.known_positions, self._layout.filled
        return Histories(
            Ragged.from_lists(
                [[items[n] for n in each.items if n in items] for each in owned], self.shop.device
            ),
            Ragged.from_lists(
                [[bundles[n] for n in each.bundles if n in bundles] for each in owned], self.shop.device
            ),
        )

    def similar(self, bundle: str, k: int, where: Filter | None = None) -> list[Recommendation]:
        """The bundles whose vectors are nearest to this one's; a score is the cosine between the two."""
        place = self._layout.filled.get(bundle)
        if place is None:
            raise UnknownIdError("bundle", [bundle], self._layout.filled)
        contents = self.shop.interactions.bundle_item
        with torch.inference_mode():
            vector = self.model.vectors_of_bundles(contents)[place : place + 1]
        return nearest(self.model, contents, vector, self.shop.bundles(where), k, but=place)

    def item_share(self, owned: Owned) -> float:
        """How far item history speaks for someone, 0 to 1; bundle history has the rest."""
        with torch.inference_mode():
            shares = self.model.item_share(self._histories([owned]), self.shop.interactions.bundle_item)
        return float(shares[0])

    # ── Designing ────────────────────────────────────────────────────────────────────────────────

    def design(self, owned: Owned, request: DesignRequest) -> Designs:
        """Whole bundles for someone. It may take long: any thread may do it, while others are answered."""
        self.recommender.check_generates()
        return design(self.model, self.shop, *self._one(owned), request)

    def explain_bundles(self, owned: Owned, bundles: Sequence[str]) -> list[Explanation]:
        """Why each of these bundles."""
        self.recommender.check_matches()
        unknown = [name for name in bundles if name not in self._layout.filled]
        if unknown:
            raise UnknownIdError("bundle", unknown, self._layout.filled)
        places = [self._layout.filled[name] for name in bundles]
        return explain_bundles(self.model, self.shop, *self._one(owned), places)

    def explain_item(self, owned: Owned, item: str, partial: Sequence[str]) -> Explanation:
        """Why an item, as an addition to others. Of these, what the model does not know is passed over."""
        self.recommender.check_generates()
        items = self.shop.dataset.items
        place = items.position(item)
        inside = tuple(items.positions(items.known(partial)).tolist())
        return explain_item(self.model, self.shop, *self._one(owned), place, inside)

    def score_bundle(
        self, people: Callable[[], Iterable[Mapping[str, Owned]]], items: Sequence[str], **asked: Any
    ) -> BundleForecast:
        """The audience of a bundle that does not exist yet, among people who are given by pages, more than
        once. It may take long, as `design`. What else may be asked is as `audience.forecast` has it."""
        self.recommender.check_matches()
        rows = rows_at_a_time(len(self.shop.dataset.bundles), self.shop.device)

        def everyone() -> Iterator[tuple[list[str], Histories]]:
            for page in people():
                names, start = list(page), 0
                for part in slices(self._histories(list(page.values())), rows):
                    yield names[start : start + len(part)], part
                    start += len(part)

        calibration = self.recommender.calibration
        return forecast(self.model, self.shop, everyone, items, calibration=calibration, **asked)

    def _one(self, owned: Owned) -> tuple[Histories, Ragged]:
        return self._histories([owned]), self.shop.interactions.bundle_item

    def warm(self) -> Live:
        """Work out now what the first question would have to wait for."""
        for partial in ((), None) if self.model.generates else (None,):
            if partial is None and not self.model.matches:
                continue
            for outcome in self.answer([Question(Owned(), 1, partial=partial)]):
                if isinstance(outcome, Exception):
                    raise outcome
        return self


def _stocked(stock: Stock, in_stock: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | None:
    """None where the shop says nothing of any stock."""
    return in_stock if any(item.stock is not None for item in stock.items.values()) else None


def _unknown_bundle(name: str) -> Bundle:
    """A bundle of training that the shop does not have."""
    return Bundle(name, ())


def _counts(sales: Mapping[str, int], names: Sequence[str]) -> npt.NDArray[np.int64]:
    return np.array([sales.get(name, 0) for name in names], np.int64)
