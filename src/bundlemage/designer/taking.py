"""How likely users take a bundle: its probability among all bundles of the shop, by the matching scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bundlemage.core.answering import SCORES_AT_A_TIME
from bundlemage.core.filters import Filter
from bundlemage.core.ownership import Demoted, Goods
from bundlemage.core.shop import Candidates, Shop
from bundlemage.designer.constraints import Floats, Integers, Items
from bundlemage.models.base import Histories, Matcher, Model, can, require
from bundlemage.models.ragged import Ragged
from bundlemage.wire.shop import ShopSettings


class Taking:
    """The log-probabilities that users take bundles, each among the bundles of the shop and itself.

    A bundle that does not exist yet is scored as `recommend(new_bundles=…)` scores it, with the number of
    sales that the model assumes for a new bundle. For several users, the result is the logarithm of the mean
    of their probabilities. A user who may not get a bundle counts with the probability 0.
    """

    def __init__(
        self,
        model: Model,
        histories: Histories,
        contents: Ragged,
        owned: Ragged,
        shop: Shop,
        settings: ShopSettings,
        not_owned: bool,
        tick: Callable[[], None] | None = None,
    ) -> None:
        """`owned` has the items of each user (see `Shop.owned`). If there are several users, `not_owned` says
        whether those who have any item of a bundle do not count. Otherwise only those who have all its items
        do not count, and nobody is left out in a shop with `owned=show`."""
        self.model, self.histories, self.contents, self.shop = model, histories, contents, shop
        self.owned, self.one_user = owned, len(histories) == 1
        self.able = can(model, Matcher)
        """Whether the model scores bundles. If not, all methods raise `UnsupportedError`."""
        self._settings, self._not_owned, self._tick = settings, not_owned, tick

    @cached_property
    def _scores(self) -> Tensor:
        """The scores of the shop's bundles."""  # [users, bundles]
        with torch.inference_mode():
            scores = require(self.model, Matcher).bundle_scores(self.histories, self.contents)
            # Bundles that only the histories have come last. They are not in the shop.
            return scores[:, : len(self.shop.dataset.bundles)]

    @cached_property
    def _log_sums(self) -> Tensor:
        with torch.inference_mode():
            return self._scores.logsumexp(1, keepdim=True)  # [users, 1]

    @cached_property
    def _owned(self) -> Tensor:
        """1 for each item that a user has."""  # [items, users]
        return self._marked(self.owned)

    @cached_property
    def _rejected(self) -> Tensor | None:
        """1 for each item that a user rejected; None if nobody rejected an item."""  # [items, users]
        rejected = self.histories.rejected_items
        return None if rejected is None else self._marked(rejected)

    def _marked(self, rows: Ragged) -> Tensor:
        """1 for each item of each user. Items that are newer than the model are left out."""
        marked = torch.zeros(len(self.histories), len(self.shop.dataset.items), device=self.contents.device)
        users, items = rows.row_of_entry(), rows.values
        known = items < marked.shape[1]
        marked[users[known], items[known]] = 1
        return marked.T.contiguous()  # [items, users]

    def logs(self, bundles: Sequence[Items]) -> Floats:
        """Returns the log-probability of each bundle, given by the positions of its items."""  # [bundles]
        return self._logs_of(Ragged.from_lists(bundles, self.contents.device))

    def logs_with(self, bundles: Sequence[Items], items: Sequence[Integers]) -> list[Floats]:
        """Returns for each bundle the log-probabilities of the bundle with each of some more items."""
        parts = [
            np.column_stack([np.tile(np.asarray(bundle, np.int64), (len(more), 1)), more])
            for bundle, more in zip(bundles, items, strict=True)
        ]
        lengths = np.concatenate([np.full(len(part), part.shape[1]) for part in parts])
        values = torch.from_numpy(np.concatenate([part.ravel() for part in parts]))
        offsets = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
        device = self.contents.device
        logs = self._logs_of(Ragged(values.to(device), offsets.to(device)))
        return np.split(logs, np.cumsum([len(part) for part in parts])[:-1])

    def _logs_of(self, bundles: Ragged) -> Floats:
        matcher, found = require(self.model, Matcher), []
        at_once = max(1, SCORES_AT_A_TIME // len(self.histories))
        for start in range(0, len(bundles), at_once):
            if self._tick is not None:
                self._tick()
            places = torch.arange(start, min(start + at_once, len(bundles)), device=bundles.device)
            with torch.inference_mode():
                new = bundles.rows(places)
                scores = matcher.score_new_bundles(self.histories, self.contents, new)
                self.model.checked("score_new_bundles", scores, len(self.histories), len(new))
                logs = scores - torch.logaddexp(scores, self._log_sums)
                found.append(self._mean(logs, new))
        return np.concatenate([*found, np.zeros(0)])

    def _mean(self, logs: Tensor, bundles: Ragged) -> Floats:
        if len(logs) > 1:
            if self._not_owned or self._settings.owned != "show":
                has = bundles.sum_of(self._owned).T  # [users, bundles]
                barred = has > 0 if self._not_owned else has == bundles.lengths
                # Not quite 0, so that a bundle which nobody may get still has a finite value.
                logs = logs.masked_fill(barred, -100.0)
            if self._rejected is not None:
                logs = logs.masked_fill(bundles.sum_of(self._rejected).T > 0, -100.0)
            logs = logs.logsumexp(0, keepdim=True) - float(np.log(len(logs)))
        means: Floats = logs[0].double().cpu().numpy()
        return means

    # ── One user: ranks, and the bundles of the shop ─────────────────────────────────────────────

    @property
    def _is_ranked(self) -> bool:
        """Whether ranks are known: for one user with a history, if the model does not rank by sales alone."""
        has_history = len(self.histories.items.values) + len(self.histories.bundles.values) > 0
        return self.one_user and has_history and self.able and not require(self.model, Matcher).ranks_by_sales

    @cached_property
    def _candidates(self) -> Candidates:
        return self.shop.bundles(stock=self._settings.stock)

    def _rank(self, scores: Tensor, last: Tensor) -> Tensor:
        """Returns the rank of each score among the bundles of the shop. `last` marks those of bundles that
        rank after all that are in stock."""
        available = self._candidates.available
        first = self._rivals if available is None else self._rivals + available
        others = self._rivals.masked_fill(torch.isfinite(first), -torch.inf)
        in_stock = 1 + (first > scores[:, None]).sum(1)
        return torch.where(
            last, 1 + torch.isfinite(first).sum() + (others > scores[:, None]).sum(1), in_stock
        )

    @cached_property
    def _rivals(self) -> Tensor:
        """The scores by which the bundles of the shop are ranked, under its rule for owned bundles; -∞ for
        those that are not recommended."""
        with torch.inference_mode():
            scores = self._scores[0] + self._candidates.hidden
            goods = self.shop.goods(self.contents)
            demoted, barred = self._demoted(goods), goods.barred(self.histories)
            if barred is not None:
                scores[barred.values[barred.values < len(scores)]] = -torch.inf
            if demoted is None:
                return scores  # [bundles]
            known = demoted.bundles < len(scores)  # the others are only in the history
            scores[demoted.bundles[known]] += demoted.shares[known].log()
            has = self.histories.bundles.strong.values
            scores[has[has < len(scores)]] = -torch.inf
            return scores

    def _demoted(self, goods: Goods) -> Demoted | None:
        """Returns what the shop's rule says about these bundles, for what the user owns."""
        return goods.demoted(self.owned, self._settings.owned, self._settings.mostly_owned)

    def ranks(self, bundles: Sequence[Items]) -> list[int | None]:
        """Returns the rank of each new bundle in a recommendation of the shop's bundles and itself.

        None if the rank is not known, or if the bundle would not be recommended, because of what the user
        owns or because it is sold out."""
        if not self._is_ranked:
            return [None for _ in bundles]
        shelf, stock = self.shop.item_shelf, self._settings.stock
        sold_out = torch.tensor([bool(shelf.sold_out[list(items)].any()) for items in bundles])
        with torch.inference_mode():
            new = Ragged.from_lists(bundles, self.contents.device)
            scores = require(self.model, Matcher).score_new_bundles(self.histories, self.contents, new)
            scores, sold_out = scores[0].clone(), sold_out.to(scores.device)
            demoted = self._demoted(Goods(new, self.shop.goods(self.contents).items))
            if demoted is not None:
                scores[demoted.bundles] += demoted.shares.log()
            shown = torch.isfinite(scores) & ~(sold_out & (stock == "hide"))
            ranks = self._rank(scores, sold_out & (stock == "last"))
        return [
            rank if is_shown else None for rank, is_shown in zip(ranks.tolist(), shown.tolist(), strict=True)
        ]

    def rank_of_existing(self, place: int) -> int | None:
        """Returns the rank of a bundle of the shop; None if it is not known."""
        if not self._is_ranked:
            return None
        available, score = self._candidates.available, self._rivals[[place]]
        is_last = (
            torch.zeros_like(score, dtype=torch.bool)
            if available is None
            else ~torch.isfinite(available[[place]])
        )
        return int(self._rank(score, is_last))

    def existing(self, in_stock: bool) -> tuple[Integers, Floats]:
        """Returns the bundles of the shop that users may get, the likeliest first, and their
        log-probabilities."""
        with torch.inference_mode():
            logs = self._scores - self._log_sums  # [users, bundles]
            means = self._mean(logs, self.contents.rows(torch.arange(logs.shape[1], device=logs.device)))
        hidden = self.shop.bundles(Filter(in_stock=True) if in_stock else None).hidden.cpu().numpy()
        shown = hidden == 0
        if self.one_user:
            shown &= np.isfinite(self._rivals.cpu().numpy())
        order = np.argsort(-means, kind="stable")
        order = order[shown[order]]
        return order, means[order]
