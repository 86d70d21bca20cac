"""Finds the number of sales that the model assumes for a new bundle (the setting `new_bundle_credit`).

A bundle's score grows with its sales, and a new bundle has none yet. With a low number a new bundle is never
shown; with a high number it displaces bundles that users do buy. To find a good number, a model, the probe,
is trained without some bundles. With each of several numbers, the probe then ranks bundles for users who
bought one of these, and for users who bought a known one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bundlemage.data.dataset import Positions, binary_matrix, pairs_of
from bundlemage.data.splits import MatchingCases
from bundlemage.evaluation import cases_at_a_time, ranking_metrics
from bundlemage.models.base import Interactions, SalesScorer, require
from bundlemage.models.config import ModelConfig
from bundlemage.models.ragged import Contents, Ragged
from bundlemage.training.probes import TOO_FEW_BUNDLES, Probes

K = 20
TRIED = 25
"""How many numbers of sales are tried. They lie between the median and the maximum of all bundles' sales."""
MOST_LOST = 0.02
"""The largest share of their nDCG that known bundles may lose."""
MOST_CASES = 2_000

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class AssumedSales:
    """The number of sales assumed for a new bundle, and its metrics on bundles held out of training."""

    sales: float
    median: float
    """The median of all bundles' sales in training. It is assumed if no number is fitted."""
    reason: str
    """How `sales` was chosen, in words."""
    held_out: int = 0
    """The number of bundles that were treated as new."""
    cases: int = 0
    """The number of users for whom new bundles were ranked. Known bundles were ranked for at most as many."""
    at_credit: Mapping[str, float] | None = None
    """The metrics with `sales`: `new_ndcg`, `new_recall`, `known_ndcg` and `known_recall`."""
    at_median: Mapping[str, float] | None = None
    """The same metrics with `median`."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def in_short(self) -> str:
        """One sentence."""
        times = round(self.sales)
        return f"A new bundle is ranked as if it had sold {times:,} time{'' if times == 1 else 's'}."

    def __str__(self) -> str:
        """A paragraph for the model card."""
        text = f"{self.in_short[:-1]}: {self.reason}."
        if self.at_credit is not None and self.at_median is not None:
            chosen, median = (
                {name: f"{value:.4f}" for name, value in metrics.items()}
                for metrics in (self.at_credit, self.at_median)
            )
            text += (
                f" On {self.held_out:,} bundles held out of training, nDCG@{K} of new bundles is "
                f"{chosen['new_ndcg']} (Recall@{K} {chosen['new_recall']}) and of known ones "
                f"{chosen['known_ndcg']} ({chosen['known_recall']}); with the median of all bundles' "
                f"sales, {self.median:,.4g}, they are {median['new_ndcg']} ({median['new_recall']}) and "
                f"{median['known_ndcg']} ({median['known_recall']})."
            )
        return text


def find_assumed_sales(config: ModelConfig, probes: Probes) -> AssumedSales:
    """Returns the number of sales to assume for a new bundle, for a model with this config.

    The model must be a `SalesScorer`, and `probes` are those for it. The result depends only on the training
    data, the settings and the seed.
    """
    split = probes.split
    weights = split.train.bundle_events.weight  # as in the sales that models know
    sales = np.bincount(split.train.user_bundle.indices, weights, minlength=len(split.train.bundles))
    median = float(torch.from_numpy(sales).median()) if len(sales) else 0.0  # the model uses this median too
    setting = getattr(config, "new_bundle_credit", "fit")
    if setting == "median":
        return AssumedSales(median, median, "the median of all bundles' sales, as the settings say")
    if setting != "fit":
        return AssumedSales(float(setting), median, "as the settings say")
    if not probes.parts:
        return _unfitted(median, TOO_FEW_BUNDLES)
    probe = probes.first
    users, bundles = pairs_of(split.train.bought_bundles[:, probe.new])
    if not len(users):
        return _unfitted(median, f"none of the {len(probe.new):,} bundles held out of training has a buyer")
    if not probe.unseen.nnz:
        return _unfitted(
            median, "too few users have bought two bundles to measure how much known bundles lose"
        )
    random = np.random.default_rng([config.seed, 0xC2ED17])
    # Bundles are numbered as by the probe: the bundles that it knows, then those that are new to it.
    new = np.arange(len(probe.known) + len(probe.new)) >= len(probe.known)
    absent = np.zeros_like(new)
    if split.new_bundles is not None:
        # The split itself has new bundles. Some of them are added, so that as many new bundles are ranked
        # here as in the split. The rest are hidden.
        others = np.searchsorted(probe.known, random.permutation(split.new_bundles))
        added = max(0, len(others) - len(probe.new))
        new[others[:added]], absent[others[added:]] = True, True
    chosen_users = random.permutation(np.unique(users))[:MOST_CASES]
    asked = np.isin(users, chosen_users)
    cases = (
        _cases(users[asked], bundles[asked] + len(probe.known), len(new)),
        _cases(*pairs_of(probe.unseen), len(new)),
    )
    grid = np.expm1(np.linspace(np.log1p(median), np.log1p(sales.max()), TRIED))
    data = probe.model.interactions(probe.train, probes.device)
    without_sales = Contents.of(
        Ragged.from_csr(split.train.bundle_item[probe.new], probes.device), torch.zeros(len(probe.new))
    )
    data = replace(data, bundle_item=data.bundle_item.append(without_sales.to(probes.device)))
    of_new, of_known = (
        _metrics(require(probe.model, SalesScorer), each, data, new, absent, grid) for each in cases
    )
    chosen = best_sales(of_new[f"ndcg@{K}"], of_known[f"ndcg@{K}"])
    at_chosen, at_median = (
        {
            f"{kind}_{metric}": float(values[f"{metric}@{K}"][place])
            for kind, values in (("new", of_new), ("known", of_known))
            for metric in ("ndcg", "recall")
        }
        for place in (chosen, 0)
    )
    return AssumedSales(
        float(grid[chosen]),
        median,
        f"this number ranks new bundles best while known ones lose at most {MOST_LOST:.0%} of their nDCG@{K}",
        len(probe.new),
        len(cases[0]),
        at_chosen,
        at_median,
    )


def _unfitted(median: float, why: str) -> AssumedSales:
    return AssumedSales(median, median, f"the median of all bundles' sales, as {why}")


def best_sales(of_new: npt.NDArray[np.float64], of_known: npt.NDArray[np.float64]) -> int:
    """Returns the index of the best number of sales for new and known bundles together.

    `of_new` and `of_known` hold nDCG for each number, the lowest number first. The sum of two ratios is
    maximised: nDCG of new bundles relative to its maximum, and nDCG of known bundles relative to its value
    with the lowest number. A number that costs known bundles more than MOST_LOST is never chosen.
    """
    new = of_new / max(of_new.max(), 1e-12)
    known = of_known / max(of_known[0], 1e-12)
    allowed = of_known >= (1 - MOST_LOST) * of_known[0]
    return int(np.argmax(np.where(allowed, new + known, -np.inf)))


def _cases(users: Positions, bundles: Positions, width: int) -> MatchingCases:
    chosen, case = np.unique(users, return_inverse=True)
    return MatchingCases(chosen, binary_matrix(case, bundles, (len(chosen), width)), None)


def _metrics(
    probe: SalesScorer,
    cases: MatchingCases,
    data: Interactions,
    new: Flags,
    absent: Flags,
    grid: npt.NDArray[np.float64],
) -> dict[str, npt.NDArray[np.float64]]:
    """Returns the mean of each metric over the cases, for each number of sales in `grid`. The
    number only adds a constant to the scores of new bundles, so the model scores the cases once."""
    device = data.user_bundle.device
    users = torch.from_numpy(cases.users.astype(np.int64)).to(device)
    positives = Ragged.from_csr(cases.positives, device)
    places = torch.from_numpy(np.flatnonzero(new)).to(device)
    empty = data.bundle_item.lengths == 0  # a bundle without items cannot be sold
    hidden = empty | torch.from_numpy(absent).to(device)
    totals: dict[str, Tensor] = {}
    probe.eval()
    with torch.inference_mode():
        weights = probe.popularity_bias(torch.from_numpy(grid).to(probe.known_sales()))  # [grid]
        no_sales = probe.popularity_bias(probe.known_sales().new_zeros(()))
        for rows in torch.split(torch.arange(len(users), device=device), cases_at_a_time(len(new))):
            histories = data.histories(users[rows])
            scores = probe.bundle_scores(histories, data.bundle_item)
            scores = scores.masked_fill(histories.bundles.strong.as_mask(len(new)) | hidden, -torch.inf)
            base_scores = scores[:, places] - no_sales
            for number, weight in enumerate(weights):
                scores[:, places] = base_scores + weight
                for name, values in ranking_metrics(scores, positives.rows(rows), (K,)).items():
                    total = totals.setdefault(name, values.new_zeros(len(grid)))
                    total[number] += values.sum()
    return {name: (total / len(users)).cpu().numpy() for name, total in totals.items()}
