"""Writes evidence as a sentence in a language: for the customer ("you have"), or for the shop ("the customer
has").

`messages` has the translations. After a change of a text here, update the template and the catalogues:
docs/how-to/reasons.md has the commands.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import get_args

from bundlemage.errors import ConfigError
from bundlemage.messages import catalogue, language_of, language_of_shop
from bundlemage.wire.design_answers import Evidence
from bundlemage.wire.requests import Audience

LONGEST_TITLE = 70
"""Longer titles are cut, so that a sentence with two of them stays readable."""
_QUOTES = {'"': '"', "'": "'", "“": "”", "„": "“", "«": "»", "‘": "’"}
_PREFIX = re.compile(r"[\w-]+:(?=\S*[^\W\d])")
"""The kind of a tag, as in `brand:Acme`. `Star Wars: Rebels` and `size:40` have none to leave out."""
_HAS, _SEEN = ("has_item", "has_bundle", "owns_part"), ("seen_item", "seen_bundle")


class Sentences:
    """Writes sentences in one language for one audience."""

    def __init__(
        self,
        language: str | None = None,
        to: Audience = "customer",
        locale: str = "en",
        *,
        bought_again: bool = False,
    ) -> None:
        """`locale` is the shop's. It decides the language if `language` is None. `bought_again`: customers
        buy the same things again. Raises `ConfigError` if there is no such language, or no such audience."""
        if not isinstance(to, str) or to not in get_args(Audience):
            raise ConfigError(f"'to' is {to!r}; it must be 'customer' or 'shop'")
        self.language = language_of_shop(locale) if language is None else language_of(language)
        self.to_customer, self.bought_again = to == "customer", bought_again
        self._messages = catalogue(self.language)

    def of(self, evidence: Sequence[Evidence]) -> str:
        """Returns one sentence with all the evidence. Empty for a customer if there is none."""
        _ = self._messages.gettext
        if not evidence or evidence[0].code == "nothing":
            return "" if self.to_customer else _("No single item, bundle or tag explains this choice.")
        first, *rest = evidence
        if not rest:
            text = _("Because %(reason)s.") % {"reason": self._clause(first)}
        elif self._is_one_list(first, rest[0]):
            labels = {"first": self._label(first), "second": self._label(rest[0])}
            is_long = first.code == "owns_part" or any(sign in labels["first"] for sign in (",", " and "))
            both = _("%(first)s, and %(second)s") if is_long else _("%(first)s and %(second)s")
            text = _("Because %(reason)s.") % {"reason": self._clause(first, both % labels)}
        else:
            clauses = {"first": self._clause(first), "second": self._clause(rest[0])}
            text = _("Because %(first)s, and %(second)s.") % clauses
        return re.sub(r"(?<=[.!?…])\.$", "", text)  # after a title such as "Who's There?"

    def _is_one_list(self, first: Evidence, second: Evidence) -> bool:
        """Whether one "you have" can stand before both. "A and B from this bundle" would say it of A, too."""
        if second.code == "owns_part" and second.id is not None:
            return False
        return first.code == second.code or any(
            first.code in family and second.code in family for family in (_HAS, _SEEN)
        )

    def _clause(self, evidence: Evidence, label: str | None = None) -> str:
        """Returns a clause without its conjunction. `label` names the items or bundles."""
        _, ngettext = self._messages.gettext, self._messages.ngettext
        count, of = evidence.count or 0, evidence.of or 0
        texts: tuple[str, ...]  # for the customer, and for the shop if that differs
        match evidence.code:
            case "owns_part" if count == of and self.bought_again:
                you = _("you have bought everything in this bundle before")
                texts = you, _("the customer has bought everything in this bundle before")
            case "has_item" | "has_bundle" | "owns_part":
                texts = _("you have %(what)s"), _("the customer has %(what)s")
            case "seen_item" | "seen_bundle":
                texts = _("you were interested in %(what)s"), _("the customer was interested in %(what)s")
            case "bundle_has":
                texts = (_("the bundle already has %(what)s"),)
            case "has_this" if self.bought_again:
                texts = _("you have bought it before"), _("the customer has bought it before")
            case "has_this":
                texts = _("you already have it"), _("the customer already has it")
            case "tag_share" if count == of:
                you = _("all %(of)s of your items are tagged %(tag)s")
                texts = you, _("all %(of)s of the customer's items are tagged %(tag)s")
            case "tag_share":
                you = ngettext(
                    "%(count)s of your %(of)s items is tagged %(tag)s",
                    "%(count)s of your %(of)s items are tagged %(tag)s",
                    count,
                )
                about = ngettext(
                    "%(count)s of the customer's %(of)s items is tagged %(tag)s",
                    "%(count)s of the customer's %(of)s items are tagged %(tag)s",
                    count,
                )
                texts = you, about
            case "whole_history":
                texts = _("it suits what you already have"), _("it suits what the customer already has")
            case "seen_history":
                you = _("it suits what you were interested in")
                texts = you, _("it suits what the customer was interested in")
            case _:  # popular
                bought = ngettext(
                    "%(count)s customer has bought it", "%(count)s customers have bought it", count
                )
                texts = (bought,)
        return texts[0 if self.to_customer else -1] % {
            "what": label or self._label(evidence),
            "tag": self._title(_PREFIX.sub("", evidence.tag or "", count=1)),
            "count": self._number(count),
            "of": self._number(of),
        }

    def _label(self, evidence: Evidence) -> str:
        """Returns what the user or the bundle has: a title, an id or a number of items."""
        _, ngettext = self._messages.gettext, self._messages.ngettext
        count, of = evidence.count or 0, evidence.of or 0
        numbers = {"count": self._number(count), "of": self._number(of)}
        if evidence.title and evidence.title.strip():
            name = self._title(evidence.title)
        elif evidence.id is None:
            name = ngettext("a bundle of %(count)s item", "a bundle of %(count)s items", count) % numbers
        else:
            text = _("bundle %(id)s") if evidence.code in ("has_bundle", "seen_bundle") else _("item %(id)s")
            name = text % {"id": evidence.id}
        if evidence.code != "owns_part":
            return name
        if count == of:
            return _("everything in this bundle")
        if evidence.id is not None:
            return _("%(what)s from this bundle") % {"what": name}
        return (
            ngettext(
                "%(count)s of the %(of)s items in this bundle",
                "%(count)s of the %(of)s items in this bundle",
                count,
            )
            % numbers
        )

    def _title(self, title: str) -> str:
        return self._messages.gettext("%(title)s") % {"title": _tidy(title)}

    def _number(self, count: int) -> str:
        return _written(count, self.language)


@lru_cache(maxsize=4096)
def _written(count: int, language: str) -> str:
    from babel.numbers import format_decimal

    return format_decimal(count, locale=language)


def _tidy(title: str) -> str:
    """Returns a title on one line, without quotes around it, and not too long."""
    text = " ".join(title.split())
    if len(text) > 2 and _QUOTES.get(text[0]) == text[-1] and text[0] not in text[1:-1]:
        text = text[1:-1].strip()
    return text if len(text) <= LONGEST_TITLE else f"{text[: LONGEST_TITLE - 1].rstrip(' ,.:;-')}…"
