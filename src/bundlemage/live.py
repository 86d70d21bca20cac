"""A model in a shop that is open: the catalogue as it is now, people as the shop knows them at this moment.

A snapshot never changes. When the catalogue does, a new one takes its place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torch.nn.functional as F
from scipy import sparse

from bundlemage.answering import Questions, rankings
from bundlemage.artifact import artifact_version
from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA, BundleDataset, Catalogue
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.errors import ArtifactError, UnknownIdError, UnsupportedError
from bundlemage.filters import Filter
from bundlemage.models.base import Histories
from bundlemage.models.ragged import Ragged
from bundlemage.ranking import top
from bundlemage.recommender import Recommender
from bundlemage.shop import Recommendation, Shop, Trade, best
from bundlemage.store.records import Bundle, CatalogueChange, Item, ModelRecord, Owned, Sales

NO_SALES = Sales({}, {})


@dataclass(frozen=True)
class Stock:
    """All items and bundles that the shop ever had, at one version of its catalogue."""

    version: int
    items: Mapping[str, Item]
    bundles: Mapping[str, Bundle]

    def after(self, change: CatalogueChange) -> Stock:
        return Stock(
            change.version,
            {**self.items, **{item.id: item for item in change.items}},
            {**self.bundles, **{bundle.id: bundle for bundle in change.bundles}},
        )

    def sellable(self, bundle: Bundle) -> bool:
        """A bundle with an item that is sold no more cannot be sold either."""
        return not bundle.withdrawn and not any(self._gone(name) for name in bundle.items)

    def _gone(self, name: str) -> bool:
        item = self.items.get(name)
        return item is None or item.withdrawn


EMPTY = Stock(0, {}, {})


@dataclass(frozen=True)
class Question:
    """What somebody who has these things is asked about: bundles, or items that complete `partial`."""

    owned: Owned
    k: int
    where: Filter | None = None
    include_owned: bool = False
    partial: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Answer:
    found: list[Recommendation]
    items: int
    """How many items of the history the model knows."""
    bundles: int
    not_in_model: int
    """How many items and bundles of the history it does not know yet."""


class Live:
    """A model and a catalogue, ready to be asked."""

    def __init__(self, recommender: Recommender, stock: Stock, sales: Sales = NO_SALES) -> None:
        if not recommender.model.knows_new_users:
            raise UnsupportedError(
                f"{recommender.model.title} knows only the users it was trained on, so it cannot serve a "
                "shop where people come and buy: 'bundlemage models' lists those that can, under 'new users'"
            )
        self.recommender = recommender
        self.stock = stock
        self.sales = sales
        self.model = recommender.model
        self.shop = Shop(*self._opened())

    def at(self, stock: Stock, sales: Sales | None = None) -> Live:
        """The same model in a shop that has changed."""
        return Live(self.recommender, stock, self.sales if sales is None else sales)

    # ── The catalogue as the model sees it ───────────────────────────────────────────────────────

    def _opened(self) -> tuple[BundleDataset, torch.device, Trade]:
        trained = self.recommender.dataset
        items = [self.stock.items.get(name) or Item(name, withdrawn=True) for name in trained.items]
        later = sorted(name for name in self.stock.bundles if name not in trained.bundles)
        bundles = [self._bundle(name) for name in (*trained.bundles, *later)]
        known = trained.items.known_positions
        contents = [[known[name] for name in bundle.items if name in known] for bundle in bundles]
        dataset = BundleDataset(
            sparse.csr_matrix((0, len(items)), dtype=np.float32),
            sparse.csr_matrix((0, len(bundles)), dtype=np.float32),
            _matrix(contents, len(items)),
            Vocabulary("user", ()),
            trained.items,
            Vocabulary("bundle", [bundle.id for bundle in bundles]),
            Catalogue(
                _table(ITEM_SCHEMA, items, "title", "price", "tags", "stock"),
                _table(BUNDLE_SCHEMA, bundles, "title", "price", "tags", "discount").append_column(
                    "stock", pa.array(self._in_stock(bundles), pa.int64())
                ),
            ),
            trained.name,
        )
        trade = Trade(
            _counts(self.sales.items, (item.id for item in items)),
            _counts(self.sales.bundles, (bundle.id for bundle in bundles)),
            np.array([item.withdrawn for item in items], bool),
            np.array([not self.stock.sellable(bundle) for bundle in bundles], bool),
        )
        return dataset, self.recommender.shop.device, trade

    def _in_stock(self, bundles: Sequence[Bundle]) -> list[int | None]:
        """How often each bundle can be sold: also its items that are newer than the model must be there."""
        stock = {name: item.stock or 0 for name, item in self.stock.items.items()}
        if all(item.stock is None for item in self.stock.items.values()):
            return [None] * len(bundles)
        return [min((stock.get(name, 0) for name in bundle.items), default=0) for bundle in bundles]

    def _bundle(self, name: str) -> Bundle:
        """A bundle of the catalogue; or one of training that the shop does not have."""
        return self.stock.bundles.get(name) or Bundle(name, (), withdrawn=True)

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
        return Answer(found, items, bundles, owned - items - bundles)

    def _histories(self, owned: Sequence[Owned]) -> Histories:
        """What the model does not know yet is passed over."""
        items, bundles = self.shop.dataset.items.known_positions, self._bundle_positions
        return Histories(
            Ragged.from_lists(
                [[items[n] for n in each.items if n in items] for each in owned], self.shop.device
            ),
            Ragged.from_lists(
                [[bundles[n] for n in each.bundles if n in bundles] for each in owned], self.shop.device
            ),
        )

    @cached_property
    def _bundle_positions(self) -> dict[str, int]:
        """Of the bundles that have something in them that the model knows."""
        sizes = np.diff(self.shop.dataset.bundle_item.indptr)
        return {name: place for place, name in enumerate(self.shop.dataset.bundles) if sizes[place]}

    def similar(self, bundle: str, k: int, where: Filter | None = None) -> list[Recommendation]:
        """The bundles whose vectors are nearest to this one's; a score is the cosine between the two."""
        place = self._bundle_positions.get(bundle)
        if place is None:
            raise UnknownIdError("bundle", [bundle], self._bundle_positions)
        candidates = self.shop.bundles(where)
        with torch.inference_mode():
            vectors = self.model.vectors_of_bundles(self.shop.interactions.bundle_item)  # [bundles, d]
            cosines = F.cosine_similarity(vectors, vectors[place : place + 1])
            order = cosines + candidates.hidden
            order[place] = -torch.inf
            values, positions = top(order[None], min(k, len(order)))
        return [
            candidates.answer(position, score, rank, popular=False)
            for rank, (position, score) in enumerate(
                zip(positions[0].tolist(), values[0].tolist(), strict=True), start=1
            )
            if score > -np.inf
        ]

    def item_share(self, owned: Owned) -> float:
        """How far item history speaks for someone, 0 to 1; bundle history has the rest."""
        with torch.inference_mode():
            shares = self.model.item_share(self._histories([owned]), self.shop.interactions.bundle_item)
        return float(shares[0])

    def warm(self) -> Live:
        """Work out now what the first question would have to wait for."""
        for partial in ((), None) if self.model.generates else (None,):
            if partial is None and not self.model.matches:
                continue
            for outcome in self.answer([Question(Owned(), 1, partial=partial)]):
                if isinstance(outcome, Exception):
                    raise outcome
        return self


def record_of(path: Path) -> ModelRecord:
    """A saved model as the store registers it."""
    recommender = Recommender.load(path, device="cpu")
    return ModelRecord(
        artifact_version(path), str(path.resolve()), recommender.model_name, recommender.metrics
    )


def load_published(record: ModelRecord, device: str = "auto") -> Recommender:
    """A registered model, or a message where its folder holds something else by now."""
    path = Path(record.path)
    found = artifact_version(path)
    if found != record.version:
        raise ArtifactError(f"{path} no longer holds the model {record.version}: it was replaced by {found}")
    return Recommender.load(path, device=device)


def _matrix(rows: Sequence[Sequence[int]], columns: int) -> sparse.csr_matrix:
    owners = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    members = np.fromiter((member for row in rows for member in row), np.int64, len(owners))
    ones = np.ones(len(owners), np.float32)
    return sparse.csr_matrix((ones, (owners, members)), shape=(len(rows), columns))


def _table(schema: pa.Schema, things: Sequence[Any], *columns: str) -> pa.Table:
    def column(name: str) -> pa.Array:
        values = [getattr(thing, name) for thing in things]
        return pa.array(
            [list(value) or None for value in values] if name == "tags" else values, schema.field(name).type
        )

    ids = pa.array([thing.id for thing in things], pa.string())
    return pa.table([ids, *map(column, columns)], schema=schema)


def _counts(sales: Mapping[str, int], names: Iterable[str]) -> Any:
    return np.array([sales.get(name, 0) for name in names], np.int64)
