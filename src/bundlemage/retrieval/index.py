"""An index over a shop's bundles.

Bundles are grouped into cells of vectors that are near each other (FAISS, "IVF-flat"), and a search looks
only into the cells whose middle fits a person best. What it finds is scored and ranked as in an exact search.
A score is a probability over all bundles, though, and the sum over all of them is what an index is there to
avoid: so that sum is estimated, from the bundles that were found and a fixed sample of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bundlemage.core.answering import Questions, exact_ranking, rows_at_a_time
from bundlemage.core.ranking import Ranker, Ranking, top
from bundlemage.core.shop import FILTERS_KEPT, Kept, Shop
from bundlemage.errors import MissingExtraError
from bundlemage.models.base import Factors, Histories, Model
from bundlemage.models.ragged import Ragged

MEASURED_AT = 10
"""Recall is measured among the ten best."""
POINTS_IN_A_CELL = 64
"""How many bundles the middle of a cell is learned from."""
ROUNDS = 10
"""Of k-means."""
AT_A_TIME = 2**16
"""How many bundles go into the index together: bounds what is copied meanwhile."""
FURTHER = 4
"""How many times as many cells are looked into where some held too few."""
OWNED_LOOKED_PAST = 256
"""How many of a person's own bundles a search goes past; where it meets more, the answer is exact."""


@dataclass(frozen=True)
class _View:
    """What a filter leaves of the bundles in the index."""

    hidden: Tensor  # [candidates]
    left: int
    selector: Any
    """For FAISS; None: all of them."""


class BundleIndex:
    """A shop's bundles, grouped. Several threads may ask it."""

    def __init__(
        self,
        model: Model,
        shop: Shop,
        factors: Factors,
        asked: Histories,
        most_share: float,
        seed: int,
        say: Callable[[str], None],
    ) -> None:
        self.model = model
        self.shop = shop
        self.factors = factors
        self._hidden = shop.bundles().hidden  # what is never shown at all is not in the index
        self._views: Kept[_View] = Kept(FILTERS_KEPT)
        members = (self._hidden == 0).nonzero()[:, 0].cpu()
        self.size = len(members)
        self.cells = max(1, min(self.size, round(2 * math.sqrt(self.size))))
        self.most_cells = max(1, int(self.cells * most_share))
        """More would take as long as a look at all."""
        self.probed = 1
        # What differs in a cell should be what hardly tells in a score: a person's vector weighs differences
        # of vectors by about its own size, those of a bias by one. (Measured: twice that is best.)
        people = model.factors_of_people(asked, shop.interactions.bundle_item)
        self._scale = 2 * float(people.square().mean().sqrt()) or 1.0
        self._usually_owned = float(asked.bundles.lengths.float().mean())
        self._cells = self._grouped(members, seed, say)

    @property
    def width(self) -> int:
        """How many scores are worked out for a person, about."""
        return len(self.sample) + OWNED_LOOKED_PAST

    # ── Building ─────────────────────────────────────────────────────────────────────────────────

    def _grouped(self, members: Tensor, seed: int, say: Callable[[str], None]) -> Any:
        faiss = faiss_or_fail()
        dim = self.factors.vectors.shape[1] + 1
        random = np.random.default_rng(seed)
        points = min(self.size, self.cells * POINTS_IN_A_CELL)
        chosen = torch.from_numpy(np.sort(random.choice(self.size, points, replace=False)))
        say(f"grouping {self.size:,} bundles into {self.cells:,} cells")
        means = faiss.Kmeans(
            dim,
            self.cells,
            niter=ROUNDS,
            seed=seed,
            max_points_per_centroid=points,
            min_points_per_centroid=1,
        )
        means.train(self._points(members[chosen]))
        # Which cell a bundle is in goes by distance, so that cells are alike in size; which cells are looked
        # into, by the product. With the product for both, long vectors draw all bundles into a few cells.
        nearest, middles = faiss.IndexFlatL2(dim), faiss.IndexFlatIP(dim)
        nearest.add(means.centroids)
        middles.add(means.centroids)
        cells = faiss.IndexIVFFlat(middles, dim, self.cells, faiss.METRIC_INNER_PRODUCT)
        cells.is_trained = True
        for part in torch.split(members, AT_A_TIME):
            vectors, names = self._points(part), part.numpy()
            places = np.ascontiguousarray(nearest.search(vectors, 1)[1][:, 0])
            pointers = (faiss.swig_ptr(array) for array in (vectors, names, places))
            cells.add_core(len(names), *pointers)
        return cells

    def _points(self, bundles: Tensor) -> npt.NDArray[np.float32]:
        """[vector; bias / scale], whose product with [person; scale] is the score."""
        rows = bundles.to(self.factors.vectors.device)
        points = torch.cat([self.factors.vectors[rows], self.factors.bias[rows, None] / self._scale], dim=1)
        return _for_faiss(points)

    def take_sample(self, size: int, seed: int) -> None:
        """Bundles by which to estimate the sum over all: drawn by what each has for everyone, exp(bias)."""
        vectors, bias = self.factors.vectors, self.factors.bias.double()
        total = torch.logsumexp(bias, 0)
        upto = (bias - total).exp().cumsum(0).cpu().numpy()
        drawn = np.searchsorted(upto, np.random.default_rng(seed).random(size) * upto[-1], side="right")
        chosen, times = np.unique(np.minimum(drawn, len(upto) - 1), return_counts=True)
        self.sample = torch.from_numpy(chosen).to(vectors.device)
        self._sample_vectors = vectors[self.sample].T.contiguous()  # [d, sample]
        # A draw stands for exp(total) / size, so with its product for that times exp(product).
        weights = torch.from_numpy(np.log(times / size)).to(vectors.device) + total
        self._sample_weights = weights.to(vectors.dtype)
        place = torch.full((len(vectors),), -1, dtype=torch.int32, device=vectors.device)
        place[self.sample] = torch.arange(len(self.sample), dtype=torch.int32, device=vectors.device)
        self._place_in_sample = place

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────

    def rank(self, questions: Questions, ranker: Ranker, k: int, include_owned: bool) -> Ranking:
        """The k best for each question. An answer may miss a bundle that is about as good as the last of
        them; it names nothing that it must not, and no fewer than there are."""
        k = min(k, len(ranker.shares))
        found, searched, lacking = self.searched(questions, ranker.hidden, k, include_owned)
        rest = (~questions.nothing & (~searched | lacking)).nonzero()[:, 0]
        for part in torch.split(rest, rows_at_a_time(len(ranker.shares), self.shop.device)):
            answers = exact_ranking(self.model, questions.rows(part), ranker, k, include_owned)
            _put(found, part, answers)
        popular = questions.nothing.nonzero()[:, 0]
        if len(popular):  # whoever has nothing gets the same
            any_scores = self.factors.vectors.new_zeros(1, len(ranker.shares))
            _put(
                found, popular, ranker.rank(any_scores, torch.ones_like(popular[:1], dtype=torch.bool), [], k)
            )
        return found

    def searched(
        self, questions: Questions, hidden: Tensor, k: int, include_owned: bool, *, once: bool = False
    ) -> tuple[Ranking, Tensor, Tensor]:
        """Rankings by the index alone; True for those it has searched for; True for those of them for whom
        there is more than it found, though it looked further and further, or `once`."""
        view, asked = self._view(hidden), ~questions.nothing
        found = _empty(len(asked), k, self.factors.vectors)
        searched, lacking = torch.zeros_like(asked), torch.zeros_like(asked)
        cells, further = self._effort(k, view), self._further(questions.histories, k, include_owned)
        while cells <= self.most_cells:
            open_still = ~searched if once else ~searched | lacking
            rows = (asked & open_still & (further < 1)).nonzero()[:, 0]
            if len(rows):
                some = questions if len(rows) == len(asked) else questions.rows(rows)
                answers, lacking[rows] = self._found(some, view, k, cells, include_owned)
                searched[rows] = True
                _put(found, rows, answers)
            further, cells = further - 1, cells * FURTHER
        return found, searched, lacking

    def _view(self, hidden: Tensor) -> _View:
        """What is left where so much is hidden."""
        if len(hidden) > len(self._hidden):  # with new bundles, it is another one each time
            return self._seen(hidden)
        # What is kept keeps its tensor, too, so that no other can have its address meanwhile.
        return self._views.get(id(hidden), lambda: self._seen(hidden))

    def _seen(self, hidden: Tensor) -> _View:
        known = hidden[: len(self._hidden)]
        shown = known == 0
        if hidden is self._hidden or torch.equal(known, self._hidden):
            return _View(hidden, self.size, None)
        bits = np.packbits(shown.cpu().numpy(), bitorder="little")
        return _View(hidden, int(shown.sum()), faiss_or_fail().IDSelectorBitmap(bits))

    def _effort(self, k: int, view: _View) -> int:
        """The k best of what a filter leaves are spread over as many more cells as there are more to look at
        until k are found."""
        if not view.left:
            return self.probed
        return math.ceil(self.probed * max(1.0, k / MEASURED_AT) * self.size / view.left)

    def _further(self, histories: Histories, k: int, include_owned: bool) -> Tensor:
        """How many times further each person's search begins: the bundles of somebody who has many, more
        than twice as many as others, are in just the cells that fit best."""  # [rows]
        owned = histories.bundles.lengths.float() * (not include_owned)
        depth = (k + owned) / (k + 2 * self._usually_owned)
        return (depth.clamp(min=1).log() / math.log(FURTHER)).ceil()

    def _found(
        self, questions: Questions, view: _View, k: int, cells: int, include_owned: bool
    ) -> tuple[Ranking, Tensor]:
        """Rankings, and True for the rows where the index found too few."""
        histories, contents, hidden = questions.histories, questions.contents, view.hidden
        people = self.model.factors_of_people(histories, contents)
        owned = histories.bundles
        past = 0 if include_owned or not len(owned) else min(int(owned.lengths.max()), OWNED_LOOKED_PAST)
        positions = self._search(people, k + past, cells, view)  # [rows, found], -1 for none
        missing = positions < 0
        positions = positions.clamp(min=0)
        scores = (self.factors.vectors[positions] @ people[:, :, None])[:, :, 0]
        scores += self.factors.bias[positions]
        scores = scores.masked_fill(missing, -torch.inf)
        rest = self._others(people, positions.masked_fill(missing, -1))
        new = len(hidden) - len(self._hidden)
        if new:  # few, so all of them are looked at
            factors = self.model.factors_of_bundles(contents, start=len(self._hidden))
            later = torch.arange(len(self._hidden), len(hidden), device=positions.device)
            positions = torch.cat([positions, later.expand(len(positions), -1)], dim=1)
            scores = torch.cat([scores, people @ factors.vectors[:new].T + factors.bias[:new]], dim=1)
        total = torch.logaddexp(torch.logsumexp(scores, 1), rest)  # [rows]
        order = scores + hidden[positions].to(scores.dtype)
        left = (hidden[len(self._hidden) :] == 0).sum().add(view.left).expand(len(people))
        if not include_owned:
            order = order.masked_fill(_among(positions, owned, len(contents)), -torch.inf)
            left = left - _counted(owned, hidden)
        values, best = top(order, min(k, order.shape[1]))
        counts = torch.isfinite(values).sum(1)
        chances = (scores.gather(1, best) - total[:, None]).exp()
        ranking = Ranking(positions.gather(1, best), chances, counts, questions.nothing)
        return ranking, counts < left.clamp(max=k)

    def _search(self, people: Tensor, count: int, cells: int, view: _View) -> Tensor:
        """Positions in ascending order: of equal scores, the first in the data is to come first."""
        if not view.left:
            return torch.full((len(people), count), -1, device=people.device)
        asked = _for_faiss(torch.cat([people, people.new_full((len(people), 1), self._scale)], dim=1))
        settings = faiss_or_fail().SearchParametersIVF(nprobe=cells, sel=view.selector)
        _, found = self._cells.search(asked, count, params=settings)
        return torch.from_numpy(np.sort(found, axis=1)).to(people.device)

    def _others(self, people: Tensor, found: Tensor) -> Tensor:
        """The logarithm of the sum of exp(score) over all bundles but those found, as the sample has it."""
        terms = people @ self._sample_vectors + self._sample_weights  # [rows, sample]
        place = torch.where(found < 0, -1, self._place_in_sample[found.clamp(min=0)])
        rows, columns = (place >= 0).nonzero(as_tuple=True)
        terms[rows, place[rows, columns].long()] = -torch.inf
        return torch.logsumexp(terms, 1)  # [rows]


def _among(positions: Tensor, owned: Ragged, columns: int) -> Tensor:
    """Which of the positions in each row are in the same row of `owned`."""  # [rows, found] bool
    rows = torch.arange(len(positions), device=positions.device)
    return torch.isin(positions + rows[:, None] * columns, owned.values + owned.row_of_entry() * columns)


def _counted(owned: Ragged, hidden: Tensor) -> Tensor:
    """How many in each row would be shown, if they were not owned."""  # [rows]
    there = owned.keep(owned.values < len(hidden))  # bundles without a name are no candidates
    return there.keep(hidden[there.values] == 0).lengths


def _empty(rows: int, k: int, like: Tensor) -> Ranking:
    whole = torch.zeros(rows, k, dtype=torch.int64, device=like.device)
    return Ranking(whole, like.new_zeros(rows, k), whole[:, 0].clone(), whole[:, 0].bool())


def _put(ranking: Ranking, rows: Tensor, others: Ranking) -> None:
    """Other answers for some rows."""
    for mine, theirs in (
        (ranking.positions, others.positions),
        (ranking.chances, others.chances),
        (ranking.counts, others.counts),
        (ranking.popular, others.popular),
    ):
        mine[rows] = theirs.to(mine.dtype)


def _for_faiss(points: Tensor) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = points.float().cpu().contiguous().numpy()
    return array


def faiss_or_fail() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("index", "an index over bundles") from None
    return faiss
