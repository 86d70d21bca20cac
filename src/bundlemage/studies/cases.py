"""Case studies: answers of a fitted model for single users. A rule chooses the cases, never a person.

The first study completes one incomplete bundle for users with different tastes (the paper's Fig. 1b). In the
second, the model is right with an unpopular item, and the most popular item is wrong (Fig. "case2").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata

from bundlemage.data.dataset import BundleDataset, row_of
from bundlemage.data.splits import PAD, GenerationCases, Split
from bundlemage.models.base import Completer, Model, require
from bundlemage.models.ragged import Ragged

USERS = 3
TASTE_TAGS = 3
ANSWERS = 3
LEAST_ITEMS = 8
"""Minimum number of tagged items needed to describe a user's taste."""
_ROWS = 512


@dataclass(frozen=True)
class ItemCard:
    """An item as a case study shows it."""

    id: str
    title: str
    tags: tuple[str, ...]
    top: float
    """The item's rank by number of users, as a share of all items: 0.01 means the most popular 1%."""


@dataclass(frozen=True)
class Leaning:
    """A tag that is more frequent among a user's items than usual."""

    tag: str
    share: float
    """Share of the user's tagged items that have the tag."""
    usual: float
    """Share of all (user, owned item) pairs whose item has the tag."""


@dataclass(frozen=True)
class TasteUser:
    """A user of a case study, and the model's answers for this user."""

    user: str
    items: int
    """Number of items that the user owns in the training data."""
    taste: tuple[Leaning, ...]
    """The tags that are most above their usual share, strongest first."""
    answers: tuple[ItemCard, ...]
    """The items that the model would add, best first."""


@dataclass(frozen=True)
class TasteCase:
    """One incomplete bundle, completed for users with different tastes."""

    bundle: str
    users: int
    """Number of test users of the bundle."""
    shown: tuple[ItemCard, ...]
    hidden: tuple[ItemCard, ...]
    people: tuple[TasteUser, ...]
    by_taste: int
    """Number of different top answers for these users when items that they own may be answers. If it is 1,
    their answers differ only because owned items are left out."""
    bundles: int
    """Number of held-out bundles with two test users or more."""
    personal: int
    """Number of those bundles for which the test users' top answers differ, even if owned items may be
    answers."""


@dataclass(frozen=True)
class UnpopularCase:
    """A test case in which the model is right and popularity is wrong."""

    bundle: str
    user: str
    taste: tuple[Leaning, ...]
    shown: tuple[ItemCard, ...]
    right: ItemCard
    popular: ItemCard
    """The most popular candidate, which is wrong."""
    alike: int
    """Number of cases in which the model is right and popularity is wrong."""
    opposite: int
    """Number of cases in which popularity is right and the model is wrong."""
    cases: int
    """Total number of cases."""


@dataclass(frozen=True)
class CaseStudy:
    """Both case studies of one model on one dataset. A study is None if no case fits its rule."""

    dataset: str
    model: str
    notes: tuple[str, ...]
    taste: TasteCase | None
    unpopular: UnpopularCase | None


def case_study(model: Model, split: Split, label: str) -> CaseStudy:
    """Returns both case studies of a fitted model on a split. `label` is the model's name in the report."""
    taste = unpopular = None
    if split.generation is not None and len(split.generation):
        chooser = _Chooser(model, split, split.generation)
        taste, unpopular = chooser.taste_case(), chooser.unpopular_case()
    return CaseStudy(split.dataset.name, label, split.dataset.notes, taste, unpopular)


class _Chooser:
    """Chooses cases among a split's generation cases. Titles, tags and sales come from the training data."""

    def __init__(self, model: Model, split: Split, cases: GenerationCases) -> None:
        self.model, self.cases, self.dataset = model, cases, split.dataset
        self.device = next(iter(model.state_dict().values()), torch.empty(0)).device
        self.interactions = model.interactions(split.train, self.device)
        self.partial = Ragged.from_csr(cases.partial, self.device)
        self.data: BundleDataset = split.train
        self.owned = partial(row_of, self.data.user_item)
        self.shown, self.hidden = partial(row_of, cases.partial), partial(row_of, cases.positives)
        self.sales = np.bincount(self.data.user_item.indices, minlength=len(self.data.items))
        self.top = rankdata(-self.sales, method="max") / max(1, len(self.sales))
        catalogue = self.data.catalogue
        tags = catalogue.items["tags"].to_pylist() if catalogue else [None] * len(self.data.items)
        self.tags: list[tuple[str, ...]] = [tuple(row or ()) for row in tags]
        self.titles = catalogue.items["title"].to_pylist() if catalogue else [None] * len(self.data.items)
        self.tag_names = sorted({tag for row in self.tags for tag in row})
        column = {tag: number for number, tag in enumerate(self.tag_names)}
        self.has_tag = np.zeros((len(self.data.items), len(self.tag_names)), np.float64)
        for item, row in enumerate(self.tags):
            self.has_tag[item, [column[tag] for tag in row]] = 1
        self.usual = self.sales @ self.has_tag / max(1, int(self.sales.sum()))  # [tags]

    def cards(self, *items: int) -> tuple[ItemCard, ...]:
        names = ((item, self.data.items[item]) for item in items)
        return tuple(
            ItemCard(name, self.titles[item] or name, self.tags[item], float(self.top[item]))
            for item, name in names
        )

    def shares(self, user: int) -> npt.NDArray[np.float64]:
        """Returns the share of each tag among the user's tagged items; zeros if the user has none."""
        rows = self.has_tag[self.owned(user)]
        shares: npt.NDArray[np.float64] = rows.sum(0) / max(1, int(rows.any(1).sum()))
        return shares

    def taste(self, user: int) -> tuple[Leaning, ...]:
        shares = self.shares(user)
        order = np.argsort(self.usual - shares, kind="stable")[:TASTE_TAGS]
        return tuple(
            Leaning(self.tag_names[tag], float(shares[tag]), float(self.usual[tag]))
            for tag in order
            if shares[tag] > self.usual[tag]
        )

    def bundle_name(self, row: int) -> str:
        """Returns the name of the bundle with these items; a number unless exactly one bundle has them."""
        whole = sorted({*self.shown(row), *self.hidden(row)})
        contents = self.dataset.bundle_item
        overlap = np.asarray(contents[:, whole].sum(1)).ravel()
        same = np.flatnonzero((overlap == len(whole)) & (np.diff(contents.indptr) == len(whole)))
        if len(same) != 1:
            return f"held-out bundle {row}"
        return self.data.bundle_title(int(same[0])) or f"bundle {self.data.bundles[int(same[0])]}"

    def scores(self, users: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Returns the scores of all items for each pair of a user and a row of the incomplete bundles."""
        self.model.eval()
        with torch.inference_mode():
            user, row = (torch.from_numpy(part.astype(np.int64)).to(self.device) for part in (users, rows))
            answers = require(self.model, Completer).score_items(
                self.interactions.histories(user), self.partial.rows(row), self.interactions.bundle_item
            )
        scores: npt.NDArray[np.float64] = answers.double().cpu().numpy()
        return scores

    def scores_of_others(self, users: npt.NDArray[Any], row: int) -> npt.NDArray[np.float64]:
        """Returns each user's scores of all items for one bundle; -∞ for the items in the bundle."""
        scores = self.scores(users, np.full(len(users), row))
        scores[:, self.shown(row)] = -np.inf
        return scores

    def different_firsts(self, users: npt.NDArray[Any], row: int) -> int:
        """Returns the number of different first items of these users. Owned items may be first."""
        firsts: set[int] = set()
        for start in range(0, len(users), _ROWS):
            firsts.update(self.scores_of_others(users[start : start + _ROWS], row).argmax(1).tolist())
        return len(firsts)

    def taste_case(self) -> TasteCase | None:
        """Returns the case that `taste_rule` in `report.j2` describes; None if no case fits."""
        cases = self.cases
        users_of = np.bincount(cases.bundles, minlength=cases.partial.shape[0])
        firsts = {
            row: self.different_firsts(cases.users[cases.bundles == row], row)
            for row in np.flatnonzero(users_of > 0).tolist()
        }
        possible = [row for row in firsts if len(self.shown(row)) >= 2 and self.sales[self.shown(row)].all()]
        if not possible:
            return None
        row = max(possible, key=lambda row: (firsts[row], users_of[row], -row))
        chosen = self.leaning_users(np.unique(cases.users[cases.bundles == row]).tolist(), row)
        if not chosen:
            return None
        shared = [row for row in firsts if users_of[row] > 1]
        return TasteCase(
            bundle=self.bundle_name(row),
            users=int(users_of[row]),
            shown=self.cards(*self.shown(row)),
            hidden=self.cards(*self.hidden(row)),
            people=tuple(
                TasteUser(self.data.users[user], len(self.owned(user)), self.taste(user), self.cards(*best))
                for user, best in chosen.items()
            ),
            by_taste=self.different_firsts(np.array(list(chosen)), row),
            bundles=len(shared),
            personal=sum(firsts[other] > 1 for other in shared),
        )

    def leaning_users(self, users: Sequence[int], row: int) -> dict[int, list[int]]:
        """Returns user → answers for up to USERS users. Each is chosen for the strongest remaining
        preference for a tag; no two share a tag or, if possible, a first answer."""
        known = [user for user in users if self.has_tag[self.owned(user)].any(1).sum() >= LEAST_ITEMS]
        if not known or not self.tag_names:
            return {}
        scores = self.scores_of_others(np.array(known), row)
        for user, user_scores in zip(known, scores, strict=True):
            user_scores[self.owned(user)] = -np.inf
        order = np.argsort(-scores, axis=1, kind="stable")[:, :ANSWERS]
        leanings = np.stack([self.shares(user) - self.usual for user in known])  # [users, tags]
        chosen: list[int] = []
        for _ in range(min(USERS, len(known))):
            new_first = ~np.isin(order[:, 0], order[chosen, 0])
            fresh = np.where(new_first[:, None], leanings, -np.inf)
            allowed = fresh if fresh.max() > 0 else leanings
            best = np.unravel_index(int(allowed.argmax()), leanings.shape)
            if leanings[best] <= 0:
                break
            chosen.append(int(best[0]))
            leanings[best[0], :], leanings[:, best[1]] = -np.inf, -np.inf
        return {
            known[place]: [item for item in order[place].tolist() if np.isfinite(scores[place, item])]
            for place in chosen
        }

    def unpopular_case(self) -> UnpopularCase | None:
        """Returns the case that `unpopular_rule` in `report.j2` describes; None if no case fits."""
        cases, sales = self.cases, self.sales
        best: tuple[float, int, int] | None = None
        alike = opposite = 0
        for start in range(0, len(cases), _ROWS):
            numbers = np.arange(start, min(start + _ROWS, len(cases)))
            rows = cases.bundles[numbers]
            scores = self.scores(cases.users[numbers], rows)
            for number, row, values in zip(numbers.tolist(), rows.tolist(), scores, strict=True):
                right, wrong = self.candidates(row)
                if not len(right) or not len(wrong):
                    continue
                # The right item must be above every wrong one: a tie does not count.
                model_right = values[right].max() > values[wrong].max()
                opposite += bool(sales[right].max() > sales[wrong].max() and not model_right)
                if model_right and sales[right].max() < sales[wrong].max():
                    alike += 1
                    item = int(right[values[right].argmax()])
                    if best is None or self.top[item] > best[0]:
                        best = (float(self.top[item]), number, item)
        if best is None:
            return None
        _, number, item = best
        row, user = int(cases.bundles[number]), int(cases.users[number])
        wrong = self.candidates(row)[1]
        right_card, popular_card = self.cards(item, int(wrong[sales[wrong].argmax()]))
        return UnpopularCase(
            bundle=self.bundle_name(row),
            user=self.data.users[user],
            taste=self.taste(user),
            shown=self.cards(*self.shown(row)),
            right=right_card,
            popular=popular_card,
            alike=alike,
            opposite=opposite,
            cases=len(cases),
        )

    def candidates(self, row: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """Returns the right and the wrong candidates for an incomplete bundle."""
        candidates = self.cases.candidates[row]
        candidates = candidates[candidates != PAD]
        right = np.isin(candidates, self.hidden(row))
        return candidates[right], candidates[~right]
