"""Impossible requests with many rules, and what is wrong with a refusal of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import cycle, islice

import numpy as np

from bundlemage import Recommender
from bundlemage.wire.requests import MOST_ITEMS
from tests.designing import Request, goods_of, rules_of

USER = "u0007"
FEWEST, MOST = 10, 60
"""The number of rules in a request; more if its reasons alone have more."""


class ImpossibleMaker:
    """Makes requests that no bundle can satisfy, each for one or two plain reasons, and with other rules."""

    def __init__(self, recommender: Recommender, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.goods = goods_of(recommender)
        self.ids = list(recommender.dataset.items)
        self.tags = list(self.goods.tagged)
        self.prices = sorted(price for price in self.goods.price.values() if price is not None)
        self.reasons: dict[str, Callable[[], Request]] = {
            "more musts than the size": self.musts,
            "more tags than the size": self.tags_beyond_size,
            "more of a tag than there is": self.tag_beyond_stock,
            "a budget below the cheapest": self.budget,
            "no item with any tag": self.no_tag,
            "a forbidden must": self.forbidden,
            "one per tag, but several": self.one_per,
            "only items out of stock": self.sold_out,
            "every tag in few items": self.every_tag,
            "few items of every tag": self.few_of_every_tag,
            "items without a common tag": self.nothing_in_common,
            "a price that no bundle has": self.between_prices,
            "a narrow price, many tags": self.narrow_price,
            "a narrow price, one per tag": self.narrow_and_one_per,
            "many tags, a low price": self.many_tags_cheap,
            "dearer than the dearest": self.too_dear,
            "a start that breaks rules": self.start,
            "hardly an item allowed": self.forbidden_shop,
            "of everything": self.everything,
        }

    def some(self, names: Iterable[str], count: int) -> list[str]:
        return [str(each) for each in self.random.permutation(list(names))[:count]]

    def number(self, least: int, most: int) -> int:
        return int(self.random.integers(least, most + 1))

    # ── Reasons ──────────────────────────────────────────────────────────────────────────────────

    def musts(self) -> Request:
        size = self.number(2, 8)
        return {"size": (1, size), "must": self.some(self.ids, size + self.number(1, 30))}

    def tags_beyond_size(self) -> Request:
        # In a bundle of three, the items would need more tags than any three items have.
        most = max(len(tags) for tags in self.goods.tags.values())
        return {"size": 3, "at least": dict.fromkeys(self.some(self.tags, 3 * most + self.number(1, 20)), 1)}

    def tag_beyond_stock(self) -> Request:
        (tag,) = self.some((tag for tag in self.tags if len(self.goods.tagged[tag]) < MOST_ITEMS), 1)
        return {"size": (1, 100), "at least": {tag: len(self.goods.tagged[tag]) + 1}}

    def budget(self) -> Request:
        size, discount = self.number(3, 10), (0.0, 0.2, 0.35)[self.number(0, 2)]
        least = sum(self.prices[:size]) * (1 - discount)
        return {"size": size, "budget": round(least * 0.9, 2), "discount": discount}

    def no_tag(self) -> Request:
        tagged = {tag: self.goods.tags[item] for tag in self.tags for item in self.goods.tagged[tag]}
        assert tagged  # every item of the shop has a tag
        return {"at most": dict.fromkeys(self.tags, 0)}

    def forbidden(self) -> Request:
        items = self.some(self.ids, 20)
        return {"size": (1, 100), "must": items[: self.number(1, 3)], "forbid": items}

    def one_per(self) -> Request:
        (tag,) = self.some((tag for tag in self.tags if len(self.goods.tagged[tag]) > 2), 1)
        return {"size": (3, 20), "at least": {tag: self.number(2, 3)}, "one_per": [tag]}

    def sold_out(self) -> Request:
        gone = [item for item, stock in self.goods.stock.items() if not stock]
        return {"size": (1, 20), "must": self.some(gone, self.number(1, 3)), "in_stock": True}

    def every_tag(self) -> Request:
        return {"size": (1, self.number(3, 22)), "at least": dict.fromkeys(self.tags, 1)}

    def few_of_every_tag(self) -> Request:
        return {"size": self.number(60, 100), "at most": dict.fromkeys(self.tags, self.number(1, 2))}

    def nothing_in_common(self) -> Request:
        return {"size": self.number(12, 60), "one_per": ["*"]}

    def between_prices(self) -> Request:
        # All prices end in .99, so those of up to 30 items end in .70 to .99.
        price = self.number(20, 60)
        limits = {"size": (2, self.number(3, 30)), "discount": 0.0}
        return limits | {"budget": (price + 0.1, price + self.number(10, 60) / 100)}

    def narrow_price(self) -> Request:
        # Up to 60 items end in .40 to .99.
        price = self.number(40, 200) + self.number(1, 30) / 100
        least = self.number(10, 30)
        tags = self.some(self.tags, self.number(30, 60))
        at_most = {tag: self.number(0, 2) for tag in tags}
        narrow = round(price, 2), round(price + 0.02, 2)
        limits = {"size": (least, least + self.number(5, 30)), "discount": 0.0}
        return limits | {"budget": narrow, "at most": at_most}

    def narrow_and_one_per(self) -> Request:
        price, least = self.number(40, 200) + 0.1, self.number(2, 12)
        narrow = round(price, 2), round(price + 0.02, 2)
        limits = {"size": (least, least + self.number(5, 20)), "discount": 0.0}
        return limits | {"budget": narrow, "one_per": ["*"]}

    def many_tags_cheap(self) -> Request:
        tags = self.some(self.tags, 60)
        count = self.number(3, 6)
        # Every item has few tags, so there must be many items.
        most = max(len(tags) for tags in self.goods.tags.values())
        least = sum(self.prices[: -(-30 * count // most)])
        rules: Request = {"at least": dict.fromkeys(tags[:30], count)}
        rules |= {"at most": dict.fromkeys(tags[30:], 3)}
        rules |= {"size": (10, 100), "discount": 0.0}
        return rules | {"budget": (round(least * 0.97, 2), round(least * 0.99, 2))}

    def too_dear(self) -> Request:
        size = self.number(3, 10)
        return {"size": (1, size), "budget": (sum(self.prices[-size:]) + self.number(1, 900), None)}

    def start(self) -> Request:
        start = self.some(self.ids, self.number(1, 40))
        tags = {tag for item in start for tag in self.goods.tags[item]}
        return {"start": start, "size": (1, 100), "at most": dict.fromkeys(sorted(tags), 0)}

    def forbidden_shop(self) -> Request:
        size = self.number(2, 12)
        return {"size": size, "forbid": self.some(self.ids, len(self.ids) - size + 1)}

    def everything(self) -> Request:
        """All kinds of rules at once, and too many of each."""
        rules: Request = {"one_per": ["*"], "not_owned": True, "in_stock": True, "budget": (9.0, 12.0)}
        rules["must"] = self.some(self.ids, self.number(3, 12))
        rules["forbid"] = self.some((item for item in self.ids if item not in rules["must"]), 300)
        tags = self.some(self.tags, 40)
        at_most = dict.fromkeys(tags[15:], 1)
        return rules | {"size": (3, 8), "at least": dict.fromkeys(tags[:15], 2), "at most": at_most}

    # ── A request ────────────────────────────────────────────────────────────────────────────────

    def requests(self, count: int) -> Iterable[tuple[str, Request]]:
        """Yields the reason and the request. One in three has two reasons."""
        for number, reason in enumerate(islice(cycle(self.reasons), count)):
            made = self.reasons[reason]()
            if number % 3 == 0:
                second = list(self.reasons)[self.number(0, len(self.reasons) - 1)]
                made = self.merged(self.reasons[second](), made)
            yield reason, self.padded(made)

    def merged(self, one: Request, other: Request) -> Request:
        """The rules of both, and the limits of `other` where both have one."""
        both = one | other
        for name in ("at least", "at most"):
            both[name] = one.get(name, {}) | other.get(name, {})
        for name in ("must", "one_per", "forbid"):
            both[name] = list(dict.fromkeys([*one.get(name, ()), *other.get(name, ())]))
        both["must"] = both["must"][:MOST_ITEMS]
        return both

    def padded(self, made: Request) -> Request:
        """The request, with rules that a bundle could keep, until it has enough rules."""
        request: Request = {"not_owned": False, "in_stock": False} | made
        least, most = request.pop("at least", {}), request.pop("at most", {})
        request["tags"] = {"at least": least, "at most": most}
        wanted = self.number(FEWEST, MOST)
        request["not_owned"] = self.number(0, 1) == 1
        for tag in self.some(self.tags, len(self.tags)):
            if len(rules_of(self.goods, request)) >= wanted:
                break
            if self.number(0, 4):
                most.setdefault(tag, self.number(1, 5))
            else:
                least.setdefault(tag, 1)
        for item in self.some(self.ids, MOST):
            if len(rules_of(self.goods, request)) >= wanted:
                break
            request["must"] = list(dict.fromkeys([*request.get("must", ()), item]))
        return request
