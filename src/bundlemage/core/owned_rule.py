"""What the rule about owned bundles costs or gains on held-out cases, and the best share for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from bundlemage.core.ownership import Goods
from bundlemage.data.dataset import Positions
from bundlemage.data.splits import PAD, MatchingCases
from bundlemage.evaluation import MatchingEvaluator, cases_at_a_time, ranking_metrics
from bundlemage.models.base import Interactions, Model
from bundlemage.wire.shop import ShopSettings

SHARES = (0.5, 2 / 3, 0.75, 0.9, 1.0)
"""The shares that `best_share` compares. With 1 only bundles that are wholly owned change their place."""
FEWEST_CASES = 200
"""With fewer validation cases, no share is chosen."""
K = 5
OFTEN = 0.05
"""If at least this share of the purchases are of wholly owned bundles, customers seem to buy such bundles."""
FEWEST_TESTED = 50
"""With fewer test cases, nothing is said about such purchases."""


@dataclass(frozen=True)
class RuleEffect:
    """nDCG@5 of matching on the test cases, with and without the shop's rule about owned bundles."""

    rule: str
    mostly_owned: float
    without: float
    with_rule: float
    wholly_owned: float
    """The share of the purchases in the test cases that are of a bundle of which the user owned all items."""
    cases: int
    """The number of test cases."""

    def __str__(self) -> str:
        if self.rule == "show":
            return (
                "Users are also shown bundles that they have (owned=show). The figures are about the others: "
                "the test cases are bundles that the user did not have."
            )
        how = f"owned={self.rule}, mostly_owned={self.mostly_owned:.2g}"
        change = round(self.with_rule, 4) - round(self.without, 4)  # the figures that are printed
        told = f"The rule about owned bundles ({how}) "
        if change:
            told += (
                f"{'raises' if change > 0 else 'lowers'} nDCG@{K} by {abs(change):.4f}, from "
                f"{self.without:.4f} to {self.with_rule:.4f}."
            )
        else:
            told += f"changes nothing: nDCG@{K} is {self.without:.4f} with and without it."
        if self.wholly_owned < OFTEN or self.cases < FEWEST_TESTED:
            return told
        return (
            f"{told} In {self.wholly_owned:.0%} of the test purchases, the customer owned all items of the "
            "bundle already, alone or inside other bundles. If customers buy such bundles, train with --shop "
            "owned=show."
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def effect(
    model: Model,
    cases: MatchingCases,
    data: Interactions,
    settings: ShopSettings,
    new: Positions | None = None,
) -> RuleEffect:
    """Returns what the rule of the shop does to nDCG@5. `data` are the histories, and `new` the bundles that
    are new in the cases."""
    rules = [] if settings.owned == "show" else [settings]
    (without, *found), wholly_owned = _figures(model, cases, data, rules, new)
    with_rule = found[0] if found else without
    return RuleEffect(settings.owned, settings.mostly_owned, without, with_rule, wholly_owned, len(cases))


def best_share(model: Model, cases: MatchingCases, data: Interactions) -> float | None:
    """Returns the share from which a bundle counts as mostly owned that has the highest nDCG@5 under the rule
    `demote`; of equally good ones the highest. None if there are too few cases."""
    if len(cases) < FEWEST_CASES:
        return None
    rules = [ShopSettings(owned="demote", mostly_owned=share) for share in SHARES]
    (_, *found), _ = _figures(model, cases, data, rules, None)
    return max(zip(found, SHARES, strict=True))[1]


def _figures(
    model: Model,
    cases: MatchingCases,
    data: Interactions,
    rules: Sequence[ShopSettings],
    new: Positions | None,
) -> tuple[list[float], float]:
    """Returns the mean nDCG@5 without a rule and then with each rule, and the share of the right bundles of
    which users own all items. All are found in one pass."""
    evaluator, goods = MatchingEvaluator(cases, data, (K,), new), Goods(data.bundle_item, data.items)
    parts: list[list[torch.Tensor]] = [[] for _ in range(1 + len(rules))]
    wholly_owned = right = 0
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for chunk in torch.split(
            torch.arange(len(cases), device=evaluator.device), cases_at_a_time(evaluator.width)
        ):
            scores, positives = evaluator.score(model, chunk)
            parts[0].append(ranking_metrics(scores, positives, (K,))[f"ndcg@{K}"])
            owned = goods.owned(data.histories(evaluator.users[chunk]), data.bundle_item)
            candidates = None if evaluator.candidates is None else evaluator.candidates[chunk]
            for part, rule in zip(parts[1:], rules, strict=True):
                demoted = goods.demoted(owned, rule.owned, rule.mostly_owned)
                assert demoted is not None
                change = scores.new_zeros(len(chunk), len(data.bundle_item))
                change[demoted.rows, demoted.bundles] = demoted.shares.to(scores.dtype).log()
                if candidates is not None:
                    change = change.gather(1, candidates.clamp(min=0)).masked_fill(candidates == PAD, 0.0)
                part.append(ranking_metrics(scores + change, positives, (K,))[f"ndcg@{K}"])
            whole = goods.whole(owned)
            if candidates is not None:
                whole = whole.gather(1, candidates.clamp(min=0)).masked_fill(candidates == PAD, False)
            wholly_owned += int(whole[positives.row_of_entry(), positives.values].sum())
            right += len(positives.values)
    model.train(was_training)
    return [float(torch.nanmean(torch.cat(part))) for part in parts], wholly_owned / max(1, right)
