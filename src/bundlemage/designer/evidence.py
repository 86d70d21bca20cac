"""Chooses the evidence for an answer: at most two facts, the strongest first.

The model's effects decide which item or bundle is named, and whether the history speaks for the answer at
all. Everything that is counted comes from the tables of the shop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import log
from typing import Literal

import numpy as np
import numpy.typing as npt

from bundlemage.core.filters import Shelf
from bundlemage.core.history import User
from bundlemage.core.shop import Shop
from bundlemage.models.base import Histories
from bundlemage.models.ragged import Ragged
from bundlemage.wire.design_answers import Code, Evidence

Kind = Literal["item", "bundle", "partial"]
MOST = 2
"""Maximum number of facts in a sentence."""
NOTICEABLE = 0.05
"""The smallest effect that is evidence: 5% more likely."""
COMPARABLE = 0.25
"""An item or bundle is named only if its effect is at least this part of the strongest one's."""
IN_LARGE_PART = 0.5
"""A bundle has a tag in large part if at least this share of its items has it."""
FEW_ITEMS = 3
"""With fewer items than this, a user has no share of a tag."""
LEAST_SHARE, LEAST_RATIO, LEAST_LEAD = 0.25, 1.5, 0.1
"""A user's share of a tag is worth a sentence if it is at least this, and above the shop's by this factor and
by this difference."""
_EDITION = re.compile(
    r"\bvol(ume)?\b\W*\w+|\b(anniversary|collector'?s|complete|definitive|deluxe|digital|edition|enhanced"
    r"|extended|gold|goty|hd|legendary|limited|premium|remaster(ed)?|special|standard|the|ultimate)\b"
)
"""What titles of the same thing may differ in: words for an edition, and the number of a volume."""


@dataclass(frozen=True)
class Effect:
    """How much an item or bundle, at a position, raises the fit of an answer."""

    kind: Kind
    place: int
    effect: float


@dataclass(frozen=True)
class Explained:
    """The answer that is explained."""

    kind: Kind
    place: int
    fit: float
    history: float | None
    """The effect of the whole history; None if the model cannot tell."""
    by_sales: bool
    """Whether the answer is the same for everybody, because it is ranked by sales."""


class Facts:
    """What the tables say about a user, and about items and bundles."""

    def __init__(self, shop: Shop, user: User, history: Histories, contents: Ragged) -> None:
        """`history` is the user's. `contents` has the items of each bundle, also of bundles that only the
        history has."""
        self.shop, self.contents = shop, contents
        self.owned, self._bundles = shop.items_of(user), set(history.bundles.strong.values.tolist())
        self._seen: set[tuple[Kind, int]] = set()
        """What the user only looked at, say, and did not buy."""
        kinds: tuple[tuple[Kind, Ragged], ...] = (("item", history.items), ("bundle", history.bundles))
        for kind, rows in kinds:
            if rows.weak is not None:
                self._seen |= {(kind, place) for place in rows.values[rows.weak].tolist()}
        self._tags = cache(lambda item: shop.facts_of_item(item).tags)

    def evidence(self, answer: Explained, effects: Iterable[Effect]) -> tuple[Evidence, ...]:
        """Returns the evidence for an answer. `effects` has the strongest first."""
        if answer.by_sales:
            return (self._popular(answer),)
        part = self._owns_part(answer)
        if self._has(answer):
            return (Evidence(code="has_this"),)
        if part is not None and part.count == part.of:
            return (part,)
        found = self._named(answer, [each for each in _close(effects) if self._is_related(each, answer)])
        if part in found and self._is_from(found, answer):
            found = found[:1]
        is_personal = answer.history is not None and answer.history >= NOTICEABLE
        if is_personal and (tagged := self._tag_share(answer, found[:1])) is not None:
            found = [*found[:1], tagged]
        if is_personal and part is not None and len(found) < MOST and part not in found:
            is_large = (part.count or 0) >= IN_LARGE_PART * (part.of or 1)
            if is_large and not self._is_from(found, answer):
                found.append(part)
        sales = self._sales(answer)
        if not found and (is_personal or answer.fit > 0) and sales[answer.place] > sales.mean():
            found = [self._popular(answer)]
        if not found and is_personal:
            bought = self.owned or self._bundles or not self._seen
            found = [Evidence(code="whole_history" if bought else "seen_history")]
        return tuple(found[:MOST]) or (Evidence(code="nothing"),)

    def _has(self, answer: Explained) -> bool:
        if answer.kind == "bundle":
            return answer.place in self._bundles
        return self.shop.item_shelf.ids[answer.place] in self.owned

    def _named(self, answer: Explained, effects: Iterable[Effect]) -> list[Evidence]:
        """The first items and bundles, none of which repeats another."""
        found: list[Evidence] = []
        named: list[Effect] = []
        for effect in effects:
            fact = self._fact(answer, effect)
            if fact not in found and not any(self._repeats(effect, other) for other in named):
                found.append(fact)
                named.append(effect)
            if len(found) == MOST:
                break
        return found

    def _is_related(self, effect: Effect, answer: Explained) -> bool:
        """Whether a reader sees what a thing has to do with the answer: they share an item, or a tag that
        each has in large part. True if the shop does not say it, because either has no tags."""
        if self._content(effect) & self._content(answer):
            return True
        tags, of_answer = self._main_tags(effect), self._main_tags(answer)
        return not tags or not of_answer or bool(tags & of_answer)

    def _main_tags(self, thing: Effect | Explained) -> set[str]:
        """The tags that a thing has in large part."""
        items = self._content(thing)
        counts = Counter(tag for item in items for tag in set(self._tags(self.shop.item_shelf.ids[item])))
        return {tag for tag, count in counts.items() if count >= IN_LARGE_PART * len(items)}

    def _fact(self, answer: Explained, effect: Effect) -> Evidence:
        shelf, is_seen = self._shelf(effect), (effect.kind, effect.place) in self._seen
        if effect.place >= len(shelf.ids):  # a bundle that only the history has
            code: Code = "seen_bundle" if is_seen else "has_bundle"
            return Evidence(code=code, count=len(self._inside(effect.place)))
        if is_seen:
            code = "seen_bundle" if effect.kind == "bundle" else "seen_item"
            return Evidence(code=code, id=shelf.ids[effect.place], title=shelf.title(effect.place))
        if effect.kind == "item" and answer.kind == "bundle" and effect.place in self._inside(answer.place):
            part = self._owns_part(answer)
            if part is not None:
                return part
        codes: dict[Kind, Code] = {"item": "has_item", "bundle": "has_bundle", "partial": "bundle_has"}
        return Evidence(code=codes[effect.kind], id=shelf.ids[effect.place], title=shelf.title(effect.place))

    def _owns_part(self, answer: Explained) -> Evidence | None:
        """How many of the bundle's items the user has. A single one is named."""
        if answer.kind != "bundle":
            return None
        inside = self.shop.items_in(answer.place)
        owned = sorted(self.owned & inside)
        if not owned:
            return None
        only = owned[0] if len(owned) == 1 < len(inside) else None
        title = None if only is None else self.shop.facts_of_item(only).title
        return Evidence(code="owns_part", id=only, title=title, count=len(owned), of=len(inside))

    def _is_from(self, named: Sequence[Evidence], answer: Explained) -> bool:
        """Whether at least half of the answer's items that the user has are in a bundle that is named
        already."""
        bundles = [each.id for each in named if each.code == "has_bundle" and each.id is not None]
        inside = map(self.shop.items_in, map(self.shop.dataset.bundles.position, bundles))
        both = self.owned & self.shop.items_in(answer.place)
        return any(len(both & items) >= IN_LARGE_PART * len(both) for items in inside)

    def _tag_share(self, answer: Explained, named: Sequence[Evidence]) -> Evidence | None:
        """The tag that the answer has and that distinguishes the user's items most from the shop's."""
        if len(self.owned) < FEW_ITEMS:
            return None
        is_bundle = answer.kind == "bundle"
        items = self.shop.items_in(answer.place) if is_bundle else {self.shop.item_shelf.ids[answer.place]}
        inside = Counter(tag for item in items for tag in set(self._tags(item)))
        title = " ".join(_words(named[0].title or "")) if named else ""
        best: tuple[float, str] | None = None
        of = len(self.owned)
        for tag in sorted(inside):
            count, share = self._owned_tags[tag], self._owned_tags[tag] / of
            usual = self._usual_share(tag)
            if (
                inside[tag] < IN_LARGE_PART * len(items)
                or count < 2
                or share < max(LEAST_SHARE, LEAST_RATIO * usual, usual + LEAST_LEAD)
                or " ".join(_words(tag)) in title  # "you have The Complete X Saga, and … are tagged X"
            ):
                continue
            # The information of the user's share of the tag, weighted by the bundle's share.
            worth = inside[tag] / len(items) * share * log(share / max(usual, 1e-6))
            if best is None or worth > best[0]:
                best = worth, tag
        return best and Evidence(code="tag_share", tag=best[1], count=self._owned_tags[best[1]], of=of)

    @cached_property
    def _owned_tags(self) -> Counter[str]:
        return Counter(tag for item in self.owned for tag in set(self._tags(item)))

    def _usual_share(self, tag: str) -> float:
        """The share of a tag among all items, or among all sales of items if that is larger."""
        shelf, sales = self.shop.item_shelf, self.shop.trade.item_sales
        if not shelf.has("tags"):
            return 0.0
        items = shelf.tagged.get(tag, np.empty(0, np.int64))
        return max(len(items) / len(shelf.ids), float(sales[items].sum() / max(1, sales.sum())))

    def _popular(self, answer: Explained) -> Evidence:
        count = int(self._sales(answer)[answer.place])
        return Evidence(code="popular", count=count) if count else Evidence(code="nothing")

    def _sales(self, answer: Explained) -> npt.NDArray[np.int64]:
        trade = self.shop.trade
        return trade.bundle_sales if answer.kind == "bundle" else trade.item_sales

    def _repeats(self, one: Effect, other: Effect) -> bool:
        """Whether two things are the same to a reader: two editions, or a bundle and an item in it."""
        if one.kind == "bundle" or other.kind == "bundle":
            first, second = self._content(one), self._content(other)
            if first <= second or second <= first:
                return True
        editions = [_without_edition(self._shelf(each).title(each.place) or "") for each in (one, other)]
        return bool(editions[0]) and editions[0] == editions[1]

    def _shelf(self, effect: Effect) -> Shelf:
        return self.shop.bundle_shelf if effect.kind == "bundle" else self.shop.item_shelf

    def _content(self, thing: Effect | Explained) -> set[int]:
        return self._inside(thing.place) if thing.kind == "bundle" else {thing.place}

    def _inside(self, bundle: int) -> set[int]:
        offsets = self.contents.offsets
        return set(self.contents.values[int(offsets[bundle]) : int(offsets[bundle + 1])].tolist())


def _close(effects: Iterable[Effect]) -> list[Effect]:
    """The effects that are noticeable and comparable with the strongest, which is the first."""
    found: list[Effect] = []
    for each in effects:
        if each.effect < max(NOTICEABLE, COMPARABLE * found[0].effect if found else 0.0):
            break
        found.append(each)
    return found


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _without_edition(title: str) -> list[str]:
    return _words(_EDITION.sub(" ", title.casefold()))
