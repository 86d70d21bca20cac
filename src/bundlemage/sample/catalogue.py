"""What the labels in the sample shop say: titles, tags, prices, stock and discounts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from scipy import sparse

from bundlemage.data.dataset import BUNDLE_SCHEMA, ITEM_SCHEMA, Catalogue
from bundlemage.data.vocabulary import Vocabulary
from bundlemage.sample import words
from bundlemage.sample.draws import Integers, Random, pick
from bundlemage.sample.tastes import GENRE_PACK, Tastes

_PRICES = np.array([299, 499, 499, 799, 999, 999, 1499, 1499, 1999, 1999, 2499, 2999, 3999, 5999])  # cents
_DISCOUNTS = np.array([10, 15, 20, 20, 25, 30, 30, 40, 50, 60])  # per cent
_SOLD_OUT_SHARE = 0.06
_MOST_STOCK = 500


def label(
    random: Random, tastes: Tastes, bundle_item: sparse.csr_matrix, items: Vocabulary, bundles: Vocabulary
) -> Catalogue:
    cents = _PRICES[pick(random, len(_PRICES), len(items))]
    return Catalogue(
        items=_items(random, tastes, items, cents),
        bundles=_bundles(random, tastes, bundles, bundle_item.astype(np.int64) @ cents),
    )


def _items(random: Random, tastes: Tastes, ids: Vocabulary, cents: Integers) -> pa.Table:
    sold_out = random.random(len(ids)) < _SOLD_OUT_SHARE
    columns: dict[str, Any] = {
        "item_id": ids.to_arrow(),
        "title": words.game_titles(
            random, tastes.item_genre.tolist(), tastes.item_line.tolist(), tastes.lines
        ),
        "price": cents / 100,
        "tags": _item_tags(random, tastes),
        "stock": np.where(sold_out, 0, 1 + pick(random, _MOST_STOCK, len(ids))),
    }
    return pa.table(columns, schema=ITEM_SCHEMA)


def _item_tags(random: Random, tastes: Tastes) -> list[list[str]]:
    """Genre, a second genre, two flavours, and the series or studio."""
    count, genres, flavours = len(tastes.item_genre), len(words.GENRES), len(words.FLAVOURS)
    second = (tastes.item_genre + 1 + pick(random, genres - 1, count)) % genres
    flavour = pick(random, flavours, count)
    another = (flavour + 1 + pick(random, flavours - 1, count)) % flavours
    numbers = (column.tolist() for column in (tastes.item_genre, second, flavour, another, tastes.item_line))
    return [
        [words.GENRES[g].name, words.GENRES[s].name, words.FLAVOURS[f], words.FLAVOURS[a], tastes.lines[n]]
        for g, s, f, a, n in zip(*numbers, strict=True)
    ]


def _bundles(random: Random, tastes: Tastes, ids: Vocabulary, full_cents: Integers) -> pa.Table:
    percent = _DISCOUNTS[pick(random, len(_DISCOUNTS), len(ids))]
    genre, line = tastes.bundle_genre.tolist(), tastes.bundle_line.tolist()
    columns: dict[str, Any] = {
        "bundle_id": ids.to_arrow(),
        "title": words.bundle_titles(random, genre, line, tastes.lines),
        "price": full_cents * (100 - percent) // 100 / 100,
        "tags": [
            [tastes.genres[g], "genre pack" if n == GENRE_PACK else tastes.lines[n]]
            for g, n in zip(genre, line, strict=True)
        ],
        "discount": percent / 100,
    }
    return pa.table(columns, schema=BUNDLE_SCHEMA)
