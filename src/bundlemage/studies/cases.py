"""Case studies: what a fitted model says to people, chosen by a rule and never by hand.

The same incomplete bundle completed for users of different taste (the paper's Fig. 1b), and an unpopular but
right item where popularity is wrong (its Fig. "case2").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.stats import rankdata

from bundlemage.data.dataset import BundleDataset
from bundlemage.data.splits import PAD, GenerationCases, Split
from bundlemage.models.base import Interactions, Model
from bundlemage.models.ragged import Ragged
from bundlemage.readers import pathak

PEOPLE = 3
TASTE_TAGS = 3
ANSWERS = 3
LEAST_ITEMS = 8
"""Whose taste is told by fewer items than this is nobody to tell a taste of."""
_ROWS = 512

TASTE_RULE = (
    "Of the held-out bundles that still show two items or more, all of them sold in training, the one for "
    "which the model has the most different first items among the test users, whatever they own (of equals "
    "the one with the most test users, then the first). Of those users who own "
    f"{LEAST_ITEMS} tagged items or more, the one who leans most on any tag: the share of the user's items "
    "with the tag, less the share of all sold items with it. Then the next, with another tag and another "
    f"first item if there is one, up to {PEOPLE}. Each is shown the items that the model scores highest of "
    "all items of the shop that are not in the bundle and that the user does not own."
)
UNPOPULAR_RULE = (
    "Of all generation test cases in which the model's first item is right and the most popular candidate is "
    "wrong, the one whose right item is the least popular (the first of equals). The candidates are those of "
    "the test. “Top 38%” means that 38% of the shop's items are as popular or more so."
)
NO_LEAK_NOTE = (
    "In this study a user's items are the games of the user's training bundles alone: with the games of the "
    "held-out bundles, which the reconstruction has too, the right answer would stand in the question."
)


@dataclass(frozen=True)
class ItemCard:
    id: str
    title: str
    tags: tuple[str, ...]
    top: float
    """The item's rank by number of users, as a share of all items: 0.01 is among the most popular 1%."""


@dataclass(frozen=True)
class Leaning:
    tag: str
    share: float
    """Of the user's items."""
    usual: float
    """Of all user-item pairs."""


@dataclass(frozen=True)
class TasteUser:
    user: str
    items: int
    """How many the user owns in the training data."""
    taste: tuple[Leaning, ...]
    """The tags that the user leans on most, strongest first."""
    answers: tuple[ItemCard, ...]
    """What the model would add, best first."""


@dataclass(frozen=True)
class TasteCase:
    bundle: str
    users: int
    """How many test users the bundle has."""
    shown: tuple[ItemCard, ...]
    hidden: tuple[ItemCard, ...]
    people: tuple[TasteUser, ...]
    by_taste: int
    """How many different first items the model has for these people if what they own is counted in: one
    means that their answers differ, if they do, by what they own and not by the model's view of them."""
    bundles: int
    """How many held-out bundles have two test users or more."""
    personal: int
    """For how many of those the first item is not the same for all test users, owned ones counted in."""


@dataclass(frozen=True)
class UnpopularCase:
    bundle: str
    user: str
    taste: tuple[Leaning, ...]
    shown: tuple[ItemCard, ...]
    right: ItemCard
    popular: ItemCard
    """What popularity says, which is wrong."""
    alike: int
    """How many cases there are to choose from: the model right, popularity wrong."""
    opposite: int
    """How many there are the other way about."""
    cases: int


@dataclass(frozen=True)
class CaseStudy:
    dataset: str
    model: str
    notes: tuple[str, ...]
    taste: TasteCase | None
    unpopular: UnpopularCase | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def fair_split(split: Split) -> Split:
    """For data whose items were worked out from its bundles: items of the training bundles alone."""
    if split.dataset.name != pathak.PARTIAL_NAME:
        return split
    train = split.train
    known = pathak.items_of_bundles(train.user_bundle, train.bundle_item)
    notes = (*split.dataset.notes, NO_LEAK_NOTE)
    return replace(
        split, train=train.with_interactions(user_item=known), dataset=replace(split.dataset, notes=notes)
    )


def case_study(model: Model, split: Split, label: str) -> CaseStudy:
    """Both cases of a fitted model on a split with generation cases and a catalogue."""
    shop = _Shop(split)
    taste = unpopular = None
    if split.generation is not None and len(split.generation):
        questions = _Questions(model, split, split.generation)
        taste = _taste_case(questions, shop)
        unpopular = _unpopular_case(questions, shop)
    return CaseStudy(split.dataset.name, label, split.dataset.notes, taste, unpopular)


class _Shop:
    """Names, tags and popularity, from the training data."""

    def __init__(self, split: Split) -> None:
        self.data: BundleDataset = split.train
        self.sales = np.bincount(self.data.user_item.indices, minlength=len(self.data.items))
        self.top = rankdata(-self.sales, method="max") / max(1, len(self.sales))
        catalogue = self.data.catalogue
        tags = catalogue.items["tags"].to_pylist() if catalogue else [None] * len(self.data.items)
        self.tags: list[tuple[str, ...]] = [tuple(row or ()) for row in tags]
        self.titles = catalogue.item_titles() if catalogue else [None] * len(self.data.items)
        self.tag_names = sorted({tag for row in self.tags for tag in row})
        column = {tag: number for number, tag in enumerate(self.tag_names)}
        self.has_tag = np.zeros((len(self.data.items), len(self.tag_names)), np.float64)
        for item, row in enumerate(self.tags):
            self.has_tag[item, [column[tag] for tag in row]] = 1
        self.usual = self.sales @ self.has_tag / max(1, int(self.sales.sum()))  # [tags]

    def card(self, item: int) -> ItemCard:
        title = self.titles[item] or self.data.items[item]
        return ItemCard(self.data.items[item], title, self.tags[item], float(self.top[item]))

    def cards(self, items: Sequence[int]) -> tuple[ItemCard, ...]:
        return tuple(map(self.card, items))

    def owned(self, user: int) -> npt.NDArray[np.int32]:
        matrix = self.data.user_item
        found: npt.NDArray[np.int32] = matrix.indices[matrix.indptr[user] : matrix.indptr[user + 1]]
        return found

    def shares(self, user: int) -> npt.NDArray[np.float64]:
        """The share of the user's tagged items that has each tag; zeros for who has none."""
        rows = self.has_tag[self.owned(user)]
        found: npt.NDArray[np.float64] = rows.sum(0) / max(1, int(rows.any(1).sum()))
        return found

    def tagged(self, user: int) -> int:
        return int(self.has_tag[self.owned(user)].any(1).sum())

    def taste(self, user: int) -> tuple[Leaning, ...]:
        shares = self.shares(user)
        order = np.argsort(self.usual - shares, kind="stable")[:TASTE_TAGS]
        return tuple(
            Leaning(self.tag_names[tag], float(shares[tag]), float(self.usual[tag]))
            for tag in order
            if shares[tag] > self.usual[tag]
        )

    def bundle(self, position: int | None, row: int) -> str:
        if position is None:
            return f"held-out bundle {row}"
        return self.data.bundle_title(position) or f"bundle {self.data.bundles[position]}"


class _Questions:
    """The generation cases of a split, and a model to ask."""

    def __init__(self, model: Model, split: Split, cases: GenerationCases) -> None:
        self.model, self.cases, self.dataset = model, cases, split.dataset
        self.device = next(iter(model.state_dict().values()), torch.empty(0)).device
        self.data = Interactions.of(split.train, self.device)
        self.partial = Ragged.from_csr(cases.partial, self.device)

    def scores(self, users: npt.NDArray[Any], rows: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The score of every item, for each user and row of the incomplete bundles."""
        self.model.eval()
        with torch.inference_mode():
            who, which = (torch.from_numpy(part.astype(np.int64)).to(self.device) for part in (users, rows))
            found = self.model.score_items(
                self.data.histories(who), self.partial.rows(which), self.data.bundle_item
            )
        scores: npt.NDArray[np.float64] = found.double().cpu().numpy()
        return scores

    def shown(self, row: int) -> list[int]:
        return _row(self.cases.partial, row)

    def hidden(self, row: int) -> list[int]:
        return _row(self.cases.positives, row)

    def bundle_position(self, row: int) -> int | None:
        """Which of the shop's bundles this is: the one with these items; None if several have them."""
        whole = set(self.shown(row)) | set(self.hidden(row))
        contents = self.dataset.bundle_item
        overlap = np.asarray(contents[:, sorted(whole)].sum(1)).ravel()
        same = np.flatnonzero((overlap == len(whole)) & (np.diff(contents.indptr) == len(whole)))
        return int(same[0]) if len(same) == 1 else None


def _row(matrix: Any, row: int) -> list[int]:
    found: list[int] = matrix.indices[matrix.indptr[row] : matrix.indptr[row + 1]].tolist()
    return found


def _taste_case(questions: _Questions, shop: _Shop) -> TasteCase | None:
    """`TASTE_RULE`."""
    cases = questions.cases
    users_of = np.bincount(cases.bundles, minlength=cases.partial.shape[0])
    shown = np.diff(cases.partial.indptr)
    firsts = {
        row: _different_firsts(questions, cases.users[cases.bundles == row], row)
        for row in np.flatnonzero(users_of > 0).tolist()
    }
    possible = [row for row in firsts if shown[row] >= 2 and shop.sales[questions.shown(row)].all()]
    if not possible:
        return None
    row = max(possible, key=lambda row: (firsts[row], users_of[row], -row))
    people, answers = _leaning_people(
        np.unique(cases.users[cases.bundles == row]).tolist(), questions, shop, row
    )
    if not people:
        return None
    told = [
        TasteUser(shop.data.users[user], len(shop.owned(user)), shop.taste(user), shop.cards(best))
        for user, best in zip(people, answers, strict=True)
    ]
    shared = [row for row in firsts if users_of[row] > 1]
    return TasteCase(
        shop.bundle(questions.bundle_position(row), row),
        int(users_of[row]),
        shop.cards(questions.shown(row)),
        shop.cards(questions.hidden(row)),
        tuple(told),
        _different_firsts(questions, np.array(people), row),
        len(shared),
        sum(firsts[other] > 1 for other in shared),
    )


def _open_scores(
    questions: _Questions, shop: _Shop, users: Sequence[int], row: int
) -> npt.NDArray[np.float64]:
    """Scores of what each user may be offered for a bundle; -∞ for what is in it or owned."""
    scores = questions.scores(np.array(users), np.full(len(users), row))
    scores[:, questions.shown(row)] = -np.inf
    for user, own in zip(users, scores, strict=True):
        own[shop.owned(user)] = -np.inf
    return scores


def _different_firsts(questions: _Questions, users: npt.NDArray[Any], row: int) -> int:
    """How many first items there are among these users, whatever they own."""
    firsts: set[int] = set()
    for start in range(0, len(users), _ROWS):
        chunk = users[start : start + _ROWS]
        scores = questions.scores(chunk, np.full(len(chunk), row))
        scores[:, questions.shown(row)] = -np.inf
        firsts.update(scores.argmax(1).tolist())
    return len(firsts)


def _leaning_people(
    users: Sequence[int], questions: _Questions, shop: _Shop, row: int
) -> tuple[list[int], list[list[int]]]:
    """Those who lean most on a tag that nobody chosen before leans most on, and their answers, the first of
    which nobody chosen before has, as long as there are such people."""
    known = [user for user in users if shop.tagged(user) >= LEAST_ITEMS]
    if not known or not shop.tag_names:
        return [], []
    scores = _open_scores(questions, shop, known, row)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :ANSWERS]
    leanings = np.stack([shop.shares(user) - shop.usual for user in known])  # [users, tags]
    chosen: list[int] = []
    for _ in range(min(PEOPLE, len(known))):
        another = ~np.isin(order[:, 0], order[chosen, 0])
        fresh = np.where(another[:, None], leanings, -np.inf)
        wanted = fresh if fresh.max() > 0 else leanings
        best = np.unravel_index(int(wanted.argmax()), leanings.shape)
        if leanings[best] <= 0:
            break
        chosen.append(int(best[0]))
        leanings[best[0], :], leanings[:, best[1]] = -np.inf, -np.inf
    answers = [[item for item in order[one].tolist() if np.isfinite(scores[one, item])] for one in chosen]
    return [known[one] for one in chosen], answers


def _unpopular_case(questions: _Questions, shop: _Shop) -> UnpopularCase | None:
    """`UNPOPULAR_RULE`."""
    cases = questions.cases
    best: tuple[float, int, int] | None = None
    alike = opposite = 0
    for start in range(0, len(cases), _ROWS):
        chunk = np.arange(start, min(start + _ROWS, len(cases)))
        rows = cases.bundles[chunk]
        scores = questions.scores(cases.users[chunk], rows)
        for number, row, own in zip(chunk.tolist(), rows.tolist(), scores, strict=True):
            right, wrong = _parts(cases, row)
            if not len(right) or not len(wrong):
                continue
            # Right means above every wrong one: a tie is no knowledge.
            model_right = own[right].max() > own[wrong].max()
            popular_right = shop.sales[right].max() > shop.sales[wrong].max()
            popular_wrong = shop.sales[right].max() < shop.sales[wrong].max()
            opposite += bool(popular_right and not model_right)
            if model_right and popular_wrong:
                alike += 1
                item = int(right[own[right].argmax()])
                if best is None or shop.top[item] > best[0]:
                    best = (float(shop.top[item]), number, item)
    if best is None:
        return None
    _, number, item = best
    row, user = int(cases.bundles[number]), int(cases.users[number])
    wrong = _parts(cases, row)[1]
    return UnpopularCase(
        shop.bundle(questions.bundle_position(row), row),
        shop.data.users[user],
        shop.taste(user),
        shop.cards(questions.shown(row)),
        shop.card(item),
        shop.card(int(wrong[shop.sales[wrong].argmax()])),
        alike,
        opposite,
        len(cases),
    )


def _parts(cases: GenerationCases, row: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Right and wrong candidates of an incomplete bundle."""
    candidates = cases.candidates[row]
    candidates = candidates[candidates != PAD]
    right = np.isin(candidates, _row(cases.positives, row))
    return candidates[right], candidates[~right]
