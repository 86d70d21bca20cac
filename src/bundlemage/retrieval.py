"""An index over a shop's bundles. It is refused if its recall is too low compared to an exact search.

Bundles are grouped into cells of similar vectors (FAISS, "IVF-flat"), and a search looks only into the cells
whose centres fit a user best. The bundles in them are scored and ranked as in an exact search. A score is a
probability over all bundles, which needs a sum over all of them. That sum is estimated, from the bundles that
the search found and a fixed sample of the others.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bundlemage.core.answering import Batch, batch_of, exact_ranking, rows_at_a_time, slices, without_history
from bundlemage.core.ranking import Ranker, Ranking, top
from bundlemage.core.shop import FILTERS_KEPT, Shop
from bundlemage.errors import ConfigError, MissingExtraError, RecallError, check_whole, is_number
from bundlemage.models.base import Factors, Histories, Indexable, Model, require
from bundlemage.models.ragged import Ragged, offsets_of
from bundlemage.progress import Progress
from bundlemage.wire.shop import ShopSettings

LEAST_BUNDLES = 20_000
"""With fewer bundles, an exact search is faster for one user. (For many users an index is still faster.)"""
RECALL_USERS = 500
"""The number of users in the sample that measures recall."""
SAMPLES = (2**12, 2**13, 2**14, 2**15)
"""Sizes of the bundle sample that estimates a sum over all bundles. The first good enough size is used."""
MOST_SCORE_ERROR = 0.05
"""Maximum relative error of a score for 95% of users. If it is larger, a larger sample is tried."""
MEASURED_AT = 10
"""Recall is measured on the ten best bundles."""
POINTS_IN_A_CELL = 64
"""The number of bundles per cell, on average, from which k-means learns the centres."""
ROUNDS = 10
"""Rounds of k-means."""
AT_A_TIME = 2**16
"""The number of bundles that are added to the index together. This limits the memory for copies."""
CELL_GROWTH = 4
"""The factor by which the number of searched cells grows if a search found too few bundles."""
MOST_OWNED_SKIPPED = 256
"""Maximum number of bundles that a search skips or demotes because the user owns them or most of their items.
A user with more gets an exact search."""


@dataclass(frozen=True)
class IndexReport:
    """The size and the quality of an index."""

    bundles: int
    kind: Literal["ivf-flat", "exact"]
    recall: float
    """The share of the users' ten best bundles (by an exact search) that the index finds."""
    asked: int
    """The number of users for whom the recall was measured."""
    score_error: float
    """For 95% of users, the relative error of scores is at most this. The scores of all bundles of a user are
    wrong by the same factor, so their order and their ratios are exact."""
    seconds: float
    """The time to build the index and to measure it."""
    answered_exactly: int = 0
    """The number of these users with so many bundles that their search is exact. `recall` excludes them."""
    looked_further: int = 0
    """The number of these users for whom the searched cells had too few bundles. This lowers `recall`. A real
    request would then search more cells, and at last all bundles."""
    cells: int = 0
    probed: int = 0
    """The number of cells that a search for ten bundles reads. With larger k or a filter it is larger."""
    sampled: int = 0
    """The number of bundles in the sample that estimates the sum over all bundles."""

    def __str__(self) -> str:
        if self.kind == "exact":
            return (
                f"{self.bundles:,} bundles: an exact search is faster for so few, so the search stays exact"
            )
        return (
            f"{self.bundles:,} bundles in {self.cells:,} cells, {self.probed:,} of them searched: recall@"
            f"{MEASURED_AT} {self.recall:.3f} ({self.asked:,} users), scores within {self.score_error:.1%} "
            f"(95% of users), {self.seconds:.1f} s to build and measure"
        )


def build_index(
    model: Model,
    shop: Shop,
    least_recall: float,
    rules: ShopSettings,
    *,
    least_bundles: int,
    most_share: float,
    seed: int,
    progress: Progress,
) -> tuple[BundleIndex | None, IndexReport]:
    """Build an index. Returns the index, or None if there are too few bundles for one; and its report.

    The parameters are those of `Asker.use_index`, and `rules` are the settings of the shop. Raises
    `RecallError` if the recall is too low.
    """
    for name, share in (("least_recall", least_recall), ("most_share", most_share)):
        if not (is_number(share) and 0 < share <= 1):
            raise ConfigError(f"{name!r} is {share!r}; it must be a share above 0 and up to 1")
    check_whole("least_bundles", least_bundles, 0)
    check_whole("seed", seed, 0, 2**31 - 1)
    began = time.perf_counter()
    faiss_or_fail()
    searched = require(model, Indexable)
    with torch.inference_mode():
        factors = searched.factors_of_bundles(shop.interactions.bundle_item)
        shown = int((shop.bundles().hidden == 0).sum())
        if shown < max(1, least_bundles):
            return None, IndexReport(shown, "exact", 1.0, 0, 0.0, time.perf_counter() - began)
        histories = _some_users(shop, seed)
        index = BundleIndex(searched, shop, factors, histories, rules, most_share, seed, progress)
        index.take_sample(SAMPLES[0], seed)
        users, ranker = len(histories), shop.bundles().ranker()
        progress(f"exact search for {users:,} users, to measure recall", 0, 0)
        parts = slices(histories, rows_at_a_time(len(ranker.shares), shop.device))
        batches = [batch_of(shop, part, shop.interactions.bundle_item) for part in parts]
        exact = [(batch, exact_ranking(searched, batch, ranker, MEASURED_AT, rules)) for batch in batches]
        efforts = [2**step for step in range(index.most_cells.bit_length()) if 2**step < index.most_cells]
        for effort in (*efforts, index.most_cells):
            index.probed = effort
            recall, error, exactly, lacking = _measured(index, exact)
            progress("cells searched", effort, index.cells, f"recall@{MEASURED_AT} {recall:.3f}")
            if recall >= least_recall:
                break
        else:
            raise RecallError(
                f"the index finds {recall:.2%} of the {MEASURED_AT} best bundles of {users:,} users "
                f"when it searches {index.probed:,} of {index.cells:,} cells, but least_recall "
                f"is {least_recall:.2%}. The index is not used, and the search stays exact. Lower "
                "least_recall, raise most_share, or do not use an index"
            )
        for size in SAMPLES[1:]:
            if error > MOST_SCORE_ERROR:
                index.take_sample(size, seed)
                error = _measured(index, exact)[1]
    return index, IndexReport(
        bundles=shown,
        kind="ivf-flat",
        recall=recall,
        asked=users,
        score_error=error,
        seconds=time.perf_counter() - began,
        answered_exactly=exactly,
        looked_further=lacking,
        cells=index.cells,
        probed=index.probed,
        sampled=len(index.sample),
    )


def _some_users(shop: Shop, seed: int) -> Histories:
    """The histories of a random sample of the users who have an item or a bundle."""
    users = (~without_history(shop.everyone())).nonzero()[:, 0].cpu().numpy()
    if not len(users):
        raise RecallError(
            "no user of this shop has an item or a bundle, so an index cannot be measured: do not use one"
        )
    chosen = np.random.default_rng(seed).choice(users, min(RECALL_USERS, len(users)), replace=False)
    return shop.interactions.histories(torch.from_numpy(chosen).to(shop.device))


def _measured(
    index: BundleIndex, exact_answers: list[tuple[Batch, Ranking]]
) -> tuple[float, float, int, int]:
    """Compares an index with exact answers.

    Returns the share of the exact answers that the index finds; the 95% quantile over users of the largest
    relative error of a score, for bundles in both rankings; the number of users who own so many bundles that
    the index is not used; and the number of users for whom it found too few bundles in the first cells.
    """
    hits = expected = exactly = lacking = 0
    errors = []
    for batch, exact in exact_answers:
        k, ranker = exact.positions.shape[1], index.shop.bundles().ranker()
        ranking, searched, short = index.searched(batch, ranker, k, index.rules, once=True)
        best, indexed = _positions(exact), _positions(ranking)
        same = (best[:, :, None] == indexed[:, None, :]) & (best >= 0)[:, :, None]  # [user, place, place]
        hits += int(same.sum())
        expected += int(exact.counts[searched].sum())
        exactly += int((~searched).sum())
        lacking += int(short.sum())
        row, place, place_in_index = same.nonzero(as_tuple=True)
        chances = exact.chances[row, place].clamp(min=torch.finfo(exact.chances.dtype).tiny)
        error = ((ranking.chances[row, place_in_index] - chances) / chances).abs()
        errors.append(error.new_zeros(len(exact)).scatter_reduce(0, row, error, "amax").cpu())
    recall = hits / expected if expected else 0.0
    return recall, float(torch.cat(errors).quantile(0.95)), exactly, lacking


def _positions(ranking: Ranking) -> Tensor:
    """The positions in a ranking, with -1 in the unused places of each row."""
    places = torch.arange(ranking.positions.shape[1], device=ranking.positions.device)
    return ranking.positions.masked_fill(places >= ranking.counts[:, None], -1)


@dataclass(frozen=True)
class _View:
    """The bundles in the index that a filter allows."""

    hidden: Tensor  # [candidates]: 0, or -∞ for a bundle that must not be shown
    left: int
    """The number of these bundles."""
    selector: Any
    """The bundles for FAISS to search; None: all."""


class BundleIndex:
    """A shop's bundles in cells of similar bundles. Several threads may use one index."""

    def __init__(
        self,
        model: Indexable,
        shop: Shop,
        factors: Factors,
        sample: Histories,
        rules: ShopSettings,
        most_share: float,
        seed: int,
        progress: Progress,
    ) -> None:
        self.model = model
        self.shop = shop
        self.factors = factors
        self.rules = rules
        """The rules by which recall is measured."""
        self._hidden = shop.bundles().hidden  # bundles that are never shown are not in the index
        self._views = lru_cache(FILTERS_KEPT)(self._seen)
        members = (self._hidden == 0).nonzero()[:, 0].cpu()
        self.size = len(members)
        self.cells = max(1, min(self.size, round(2 * math.sqrt(self.size))))
        self.most_cells = max(1, int(self.cells * most_share))
        """The maximum number of cells to search: more would take as long as an exact search."""
        self.probed = 1
        # Bundles in a cell should have similar scores. A score is user · vector + bias: the vector's entries
        # are multiplied by the user's entries, the bias by 1. So the bias is divided by the typical size of a
        # user's entries, to be on the same scale as the vector. (Twice that size gave the best results.)
        users = model.factors_of_users(sample, shop.interactions.bundle_item)
        self._scale = 2 * float(users.square().mean().sqrt()) or 1.0
        batch = batch_of(shop, sample, shop.interactions.bundle_item)
        self._mean_aside = float(_Aside.of(batch, rules).counts.float().mean())
        self._cells = self._grouped(members, seed, progress)

    @property
    def width(self) -> int:
        """The approximate number of scores that are computed for one user."""
        return len(self.sample) + MOST_OWNED_SKIPPED

    # ── Building ─────────────────────────────────────────────────────────────────────────────────

    def _grouped(self, members: Tensor, seed: int, progress: Progress) -> Any:
        faiss = faiss_or_fail()
        dim = self.factors.vectors.shape[1] + 1
        random = np.random.default_rng(seed)
        points = min(self.size, self.cells * POINTS_IN_A_CELL)
        chosen = torch.from_numpy(np.sort(random.choice(self.size, points, replace=False)))
        progress(f"grouping {self.size:,} bundles into {self.cells:,} cells", 0, 0)
        limits = {"max_points_per_centroid": points, "min_points_per_centroid": 1}
        means = faiss.Kmeans(dim, self.cells, niter=ROUNDS, seed=seed, **limits)
        means.train(self._points(members[chosen]))
        # Bundles go to the cell with the nearest centre, so that cells have similar sizes; a search takes the
        # cells with the highest product. With the product for both, long vectors would attract all bundles.
        nearest, middles = faiss.IndexFlatL2(dim), faiss.IndexFlatIP(dim)
        nearest.add(means.centroids)
        middles.add(means.centroids)
        cells = faiss.IndexIVFFlat(middles, dim, self.cells, faiss.METRIC_INNER_PRODUCT)
        cells.is_trained = True
        for part in torch.split(members, AT_A_TIME):
            vectors, names = self._points(part), part.numpy()
            places = np.ascontiguousarray(nearest.search(vectors, 1)[1][:, 0])
            cells.add_core(len(names), *map(faiss.swig_ptr, (vectors, names, places)))
        return cells

    def _points(self, bundles: Tensor) -> npt.NDArray[np.float32]:
        """[vector; bias / scale], whose product with [user; scale] is the score."""
        rows = bundles.to(self.factors.vectors.device)
        points = torch.cat([self.factors.vectors[rows], self.factors.bias[rows, None] / self._scale], dim=1)
        return _for_faiss(points)

    def take_sample(self, size: int, seed: int) -> None:
        """Draw the sample that estimates the sum over all bundles, with probabilities ∝ exp(bias)."""
        vectors, bias = self.factors.vectors, self.factors.bias.double()
        total = torch.logsumexp(bias, 0)
        sums = (bias - total).exp().cumsum(0).cpu().numpy()
        drawn = np.searchsorted(sums, np.random.default_rng(seed).random(size) * sums[-1], side="right")
        chosen, times = np.unique(np.minimum(drawn, len(sums) - 1), return_counts=True)
        self.sample = torch.from_numpy(chosen).to(vectors.device)
        self._sample_vectors = vectors[self.sample].T.contiguous()  # [d, sample]
        # A draw adds exp(total) / size × exp(user · vector) to the estimate. The weights
        # are the logs of the constant factor, for all draws of a bundle.
        weights = torch.from_numpy(np.log(times / size)).to(vectors.device) + total
        self._sample_weights = weights.to(vectors.dtype)
        place = torch.full((len(vectors),), -1, dtype=torch.int32, device=vectors.device)
        place[self.sample] = torch.arange(len(self.sample), dtype=torch.int32, device=vectors.device)
        self._place_in_sample = place

    # ── Searching ────────────────────────────────────────────────────────────────────────────────

    def rank(
        self, batch: Batch, ranker: Ranker, k: int, rules: ShopSettings, depth: int | None = None
    ) -> Ranking:
        """Returns the k best bundles for each row of the batch.

        With `depth`, the search is as thorough as for so many bundles. It finds k all the same.
        An answer may miss a bundle that is about as good as the last one. It never contains a hidden bundle,
        and is never shorter than the exact answer.
        """
        k = min(k, len(ranker.shares))
        ranking, searched, lacking = self.searched(batch, ranker, k, rules, depth=depth)
        alike = batch.no_history & (batch.owned.lengths == 0)
        if batch.barred is not None:
            alike &= batch.barred.lengths == 0
        rest = (~alike & (~searched | lacking)).nonzero()[:, 0]
        for part in torch.split(rest, rows_at_a_time(len(ranker.shares), self.shop.device)):
            _put(ranking, part, exact_ranking(self.model, batch.rows(part), ranker, k, rules))
        popular = alike.nonzero()[:, 0]
        if len(popular):  # all users who own nothing get the same answer
            any_scores = self.factors.vectors.new_zeros(1, len(ranker.shares))
            is_popular = torch.ones_like(popular[:1], dtype=torch.bool)
            _put(ranking, popular, ranker.rank(any_scores, is_popular, [], k))
        return ranking

    def searched(
        self,
        batch: Batch,
        ranker: Ranker,
        k: int,
        rules: ShopSettings,
        *,
        once: bool = False,
        depth: int | None = None,
    ) -> tuple[Ranking, Tensor, Tensor]:
        """Returns rankings by the index alone, a mask of the rows that were searched, and a mask of the rows
        for which too few bundles were found. Unless `once`, these are searched again in more cells.

        Sold-out bundles that rank last are not searched. A row that needs some of them has too few.
        """
        view = self._view(ranker.hidden if ranker.available is None else ranker.available)
        has_history, aside = ~batch.no_history, _Aside.of(batch, rules)
        ranking = _empty(len(has_history), k, self.factors.vectors)
        searched, lacking = torch.zeros_like(has_history), torch.zeros_like(has_history)
        cells, further = self._effort(depth or k, view), self._further(aside.counts, depth or k)
        while cells <= self.most_cells:
            unfinished = ~searched if once else ~searched | lacking
            rows = (has_history & unfinished & (further < 1)).nonzero()[:, 0]
            if len(rows):
                whole = len(rows) == len(has_history)
                some, apart = (batch, aside) if whole else (batch.rows(rows), aside.chosen(rows))
                answers, lacking[rows] = self._searched_once(some, view, ranker, k, cells, apart)
                searched[rows] = True
                _put(ranking, rows, answers)
            further, cells = further - 1, cells * CELL_GROWTH
        return ranking, searched, lacking

    def _view(self, hidden: Tensor) -> _View:
        """The bundles in the index that `hidden` does not hide."""
        # With new bundles, `hidden` is another tensor in each call, so a cache would not help.
        return self._seen(hidden) if len(hidden) > len(self._hidden) else self._views(hidden)

    def _seen(self, hidden: Tensor) -> _View:
        known = hidden[: len(self._hidden)]
        shown = known == 0
        if hidden is self._hidden or torch.equal(known, self._hidden):
            return _View(hidden, self.size, None)
        bits = np.packbits(shown.cpu().numpy(), bitorder="little")
        return _View(hidden, int(shown.sum()), faiss_or_fail().IDSelectorBitmap(bits))

    def _effort(self, k: int, view: _View) -> int:
        """The number of cells to search. It is larger if a filter leaves few bundles, or if k is large."""
        if not view.left:
            return self.probed
        return math.ceil(self.probed * max(1.0, k / MEASURED_AT) * self.size / view.left)

    def _further(self, aside: Tensor, k: int) -> Tensor:
        """How often the number of cells is multiplied by `CELL_GROWTH` before each user's first search. If a
        user has more than twice the mean number of bundles that are skipped or demoted, these fill the best
        cells. `aside` is the number of these bundles."""  # [rows]
        depth = (k + aside.float()) / (k + 2 * self._mean_aside)
        return (depth.clamp(min=1).log() / math.log(CELL_GROWTH)).ceil()

    def _searched_once(
        self, batch: Batch, view: _View, ranker: Ranker, k: int, cells: int, aside: _Aside
    ) -> tuple[Ranking, Tensor]:
        """Returns rankings, and a mask of the rows for which the index found too few bundles."""
        histories, contents, hidden = batch.histories, batch.contents, view.hidden
        users = self.model.factors_of_users(histories, contents)
        most = int(aside.counts.max()) if len(histories) else 0
        # The k best are among the first k and as many more as there are skipped or demoted ones.
        past = min(most, MOST_OWNED_SKIPPED)
        positions = self._search(users, k + past, cells, view)  # [rows, k + past], -1 for none
        missing = positions < 0
        positions = positions.clamp(min=0)
        scores = (self.factors.vectors[positions] @ users[:, :, None])[:, :, 0]
        scores += self.factors.bias[positions]
        scores = scores.masked_fill(missing, -torch.inf)
        rest = self._others(users, positions.masked_fill(missing, -1))
        new = len(hidden) - len(self._hidden)
        if new:  # new bundles are few, so all of them are scored
            factors = self.model.factors_of_bundles(contents, start=len(self._hidden))
            later = torch.arange(len(self._hidden), len(hidden), device=positions.device)
            positions = torch.cat([positions, later.expand(len(positions), -1)], dim=1)
            scores = torch.cat([scores, users @ factors.vectors[:new].T + factors.bias[:new]], dim=1)
            columns = ranker.places[positions].argsort(1)
            positions, scores = positions.gather(1, columns), scores.gather(1, columns)
        total = torch.logaddexp(torch.logsumexp(scores, 1), rest)  # [rows]
        order = scores + hidden[positions].to(scores.dtype)
        shown = (ranker.hidden == 0).sum().expand(len(users))
        changes = aside.changes(positions, len(contents)).to(order.dtype)
        order = order + changes
        left = shown - aside.left_out(ranker.hidden)
        values, best = top(order, min(k, order.shape[1]), ranker.shares[positions])
        counts = torch.isfinite(values).sum(1)
        chances = (scores.gather(1, best) - total[:, None]).exp()
        ranking = Ranking(positions.gather(1, best), chances, counts, batch.no_history, values)
        # With more of them than were skipped, a bundle that was not found may be better than a demoted one.
        uncertain = (aside.counts > past) & ((torch.isfinite(order) & (changes == 0)).sum(1) < k)
        return ranking, (counts < left.clamp(max=k)) | uncertain

    def _search(self, users: Tensor, count: int, cells: int, view: _View) -> Tensor:
        """The positions of the best bundles, in ascending order, as `top` needs it to break ties by id."""
        if not view.left:
            return torch.full((len(users), count), -1, device=users.device)
        queries = _for_faiss(torch.cat([users, users.new_full((len(users), 1), self._scale)], dim=1))
        settings = faiss_or_fail().SearchParametersIVF(nprobe=cells, sel=view.selector)
        _, positions = self._cells.search(queries, count, params=settings)
        return torch.from_numpy(np.sort(positions, axis=1)).to(users.device)

    def _others(self, users: Tensor, positions: Tensor) -> Tensor:
        """The log of the sum of exp(score) over all bundles at other positions, estimated from the sample."""
        terms = users @ self._sample_vectors + self._sample_weights  # [rows, sample]
        place = torch.where(positions < 0, -1, self._place_in_sample[positions.clamp(min=0)])
        rows, columns = (place >= 0).nonzero(as_tuple=True)
        terms[rows, place[rows, columns].long()] = -torch.inf
        return torch.logsumexp(terms, 1)  # [rows]


@dataclass(frozen=True)
class _Aside:
    """The bundles that a search skips or demotes, because the user has them or owns most of their items."""

    bundles: Ragged
    """The bundles for each user, in ascending order."""
    shares: Tensor  # [entries]
    """The share of the bundle's items that is missing. 0: the bundle is not shown."""

    @classmethod
    def of(cls, batch: Batch, rules: ShopSettings) -> _Aside:
        found = batch.goods.demoted(batch.owned, rules.owned, rules.mostly_owned)
        gone, width = batch.left_out(rules.owned), len(batch.contents)
        keys = [each.row_of_entry() * width + each.values for each in gone]
        shares = [torch.zeros_like(each, dtype=torch.float32) for each in keys]
        if found is not None:
            keys.append(found.rows * width + found.bundles)
            shares.append(found.shares)
        if not keys:
            none = batch.owned.keep(torch.zeros_like(batch.owned.values, dtype=torch.bool))
            return cls(none, none.values.float())
        different, which = torch.unique(torch.cat(keys), return_inverse=True)
        lowest = torch.ones(len(different), device=different.device)
        lowest = lowest.scatter_reduce(0, which, torch.cat(shares), "amin")
        lengths = torch.bincount(different.div(width, rounding_mode="floor"), minlength=len(batch.owned))
        return cls(Ragged(different % width, offsets_of(lengths)), lowest)

    @property
    def counts(self) -> Tensor:
        """The number of these bundles for each user."""  # [rows]
        return self.bundles.lengths

    def chosen(self, rows: Tensor) -> _Aside:
        """Returns the same for the chosen users."""
        entries = Ragged(torch.arange(len(self.shares), device=rows.device), self.bundles.offsets)
        return _Aside(self.bundles.rows(rows), self.shares[entries.rows(rows).values])

    def changes(self, positions: Tensor, columns: int) -> Tensor:
        """The logarithm of the missing share at each position; 0 for bundles that are not set aside."""
        if not len(self.shares):
            return torch.zeros_like(positions, dtype=torch.float32)
        keys = self.bundles.row_of_entry() * columns + self.bundles.values  # ascending
        asked = positions + torch.arange(len(positions), device=positions.device)[:, None] * columns
        at = torch.searchsorted(keys, asked).clamp(max=len(keys) - 1)
        return torch.where(keys[at] == asked, self.shares[at].log(), 0.0)

    def left_out(self, hidden: Tensor) -> Tensor:
        """The number of bundles that `hidden` allows and that each user must not see."""  # [rows]
        gone = self.bundles.keep((self.shares <= 0) & (self.bundles.values < len(hidden)))
        return gone.keep(hidden[gone.values] == 0).lengths


def _empty(rows: int, k: int, like: Tensor) -> Ranking:
    whole = torch.zeros(rows, k, dtype=torch.int64, device=like.device)
    numbers = like.new_zeros(rows, k)
    return Ranking(whole, numbers, whole[:, 0].clone(), whole[:, 0].bool(), numbers.clone())


def _put(ranking: Ranking, rows: Tensor, others: Ranking) -> None:
    """Replace these rows of a ranking by the rows of `others`."""
    for name, values in vars(ranking).items():
        values[rows] = getattr(others, name).to(values.dtype)


def _for_faiss(points: Tensor) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = points.float().cpu().contiguous().numpy()
    return array


def faiss_or_fail() -> Any:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("index", "an index over bundles") from None
    return faiss
