"""Whether forecast numbers of buyers add up, on new bundles of generated shops of several kinds.

`python -m benchmarks.buyers --models bundlemage,owned-share`. A quarter of the bundles is removed from the
data, as if they did not exist yet. The model is trained and calibrated on the rest, and forecasts how many of
the users buy each removed bundle. The table compares the forecasts with the real numbers of all seeds
together. Users who have all items of a bundle before it exists count in neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from bundlemage.campaigns.chances import Numbers
    from bundlemage.data.dataset import BundleDataset, Positions
    from bundlemage.recommender import Recommender

KINDS = "games,one-buyer,only-in-bundles,one-bundle-users,best-sellers,large-catalogue,near-copies,no-items"
SHARE = 4
"""One bundle of this many is new."""


@dataclass(frozen=True)
class Found:
    """The forecasts for new bundles, and what really happened. Only users who lack an item count."""

    reason: str | None
    """Why there is no forecast."""
    numbers: Numbers  # [4, bundles]
    """The real buyers, the expected ones, and the limits of the interval."""
    apart: bool
    """Whether forecasts differ between bundles."""

    @property
    def observed(self) -> Numbers:
        real: Numbers = self.numbers[0]
        return real

    @property
    def expected(self) -> Numbers:
        expected: Numbers = self.numbers[1]
        return expected

    @property
    def ratio(self) -> float:
        """All expected buyers divided by all real ones."""
        return float(self.expected.sum() / self.observed.sum())

    @property
    def covered(self) -> float:
        """The share of the bundles whose number of buyers lies in their interval."""
        return float(np.mean((self.numbers[2] <= self.observed) & (self.observed <= self.numbers[3])))

    @property
    def half_width(self) -> float:
        """The median half of an interval's width, relative to the forecast."""
        return float(np.median((self.numbers[3] - self.numbers[2]) / 2 / self.expected))

    @property
    def error(self) -> float:
        """The mean squared error, relative to that of one number for all bundles: the mean forecast."""
        one = self.expected.mean()
        return float(((self.expected - self.observed) ** 2).mean() / ((one - self.observed) ** 2).mean())


def main(
    kinds: Annotated[str, typer.Option(help="Kinds of shops.")] = KINDS,
    models: Annotated[str, typer.Option(help="Models, by their names.")] = "bundlemage,owned-share",
    protocols: Annotated[str, typer.Option(help="Protocols of training.")] = "paper,none",
    epochs: Annotated[int | None, typer.Option(help="Fewer epochs, for a try.")] = None,
    seeds: Annotated[str, typer.Option(help="Of the shop, of the new bundles and of training.")] = "0,1,2",
) -> None:
    """Forecast the buyers of new bundles in generated shops, and compare with the real buyers."""
    from bundlemage.cli.texts import seed_list

    columns = ("bundles", "expected", "real", "ratio", "of each seed", "in interval", "± of interval")
    table = Table("shop", "model", "protocol", *columns, "differ", "error")
    for kind in kinds.split(","):
        for model in models.split(","):
            for protocol in protocols.split(","):
                settings = {} if epochs is None or model != "bundlemage" else {"epochs": epochs}
                found = [measure(kind, model, protocol, seed, **settings) for seed in seed_list(seeds)]
                cells = [kind, model, protocol, *_cells(found)]
                typer.echo(" | ".join(cells), err=True)
                table.add_row(*cells)
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def _cells(found: Sequence[Found]) -> list[str]:
    """The sums over the seeds. Seeds without a forecast are named by their reason only."""
    each = [f"{one.ratio:.2f}" if one.reason is None else one.reason for one in found]
    ready = [one for one in found if one.reason is None]
    if not ready:
        return ["–", "–", "–", "–", ", ".join(each), "–", "–", "–", "–"]
    numbers = np.concatenate([one.numbers for one in ready], axis=1)
    all_seeds = Found(None, numbers, apart=any(one.apart for one in ready))
    differing = [one for one in ready if one.apart]
    return [
        f"{len(all_seeds.observed):,}",
        f"{all_seeds.expected.sum():,.1f}",
        f"{all_seeds.observed.sum():,.0f}",
        f"{all_seeds.ratio:.2f}",
        ", ".join(each),
        f"{all_seeds.covered:.0%}",
        f"{all_seeds.half_width:.0%}",
        f"{len(differing)} of {len(ready)}",
        ", ".join(f"{one.error:.2f}" for one in differing) or "–",
    ]


def divided(kind: str, seed: int) -> tuple[BundleDataset, BundleDataset, Positions]:
    """Returns a shop, the shop as it was before a quarter of its bundles, and the positions of these bundles.

    Every group of four bundles that sell alike has one new bundle.
    """
    from bundlemage.sample.generate import sample_shop
    from bundlemage.sample.kinds import GAMES, shop_of_kind
    from bundlemage.training.probes import without_bundles

    shop = sample_shop(seed=seed).dataset if kind == GAMES else shop_of_kind(kind, seed).dataset
    random = np.random.default_rng([seed, 7])
    sales = np.bincount(shop.user_bundle.indices, minlength=len(shop.bundles))
    order = np.lexsort((random.random(len(sales)), sales))
    groups = np.array_split(order, len(order) // SHARE)
    new = np.sort([random.choice(group) for group in groups]).astype(np.int32)
    known = np.setdiff1d(np.arange(len(sales), dtype=np.int32), new)
    return shop, without_bundles(shop, new, known), new


def measure(kind: str, model: str, protocol: str, seed: int = 0, **settings: Any) -> Found:
    """Train on the shop without the new bundles, and forecast these."""
    from bundlemage.data.splits import SplitPlan
    from bundlemage.recommender import Recommender

    shop, before, new = divided(kind, seed)
    options: dict[str, Any] = {"device": "cpu", "seed": seed, **settings}
    recommender = Recommender(model, **options)
    recommender.fit(before, SplitPlan(protocol), progress=False)
    calibration = recommender.new_bundle_calibration
    assert calibration is not None
    bought = shop.user_bundle[:, new].toarray() > 0
    lacks, sums = scored(recommender, shop, new)
    observed = (bought & lacks).sum(0).astype(np.float64)
    if calibration.reason is not None:
        return Found(calibration.reason, observed * [[1], [0], [0], [0]], apart=False)
    limits = np.array([calibration.interval(column) for column in sums.T])
    numbers = np.stack([observed, calibration.expected(sums), *limits.T])
    return Found(None, numbers, apart=calibration.tells_apart)


def scored(
    recommender: Recommender, shop: BundleDataset, new: Positions
) -> tuple[npt.NDArray[np.bool_], Numbers]:
    """Which users lack an item of the new bundles, and the sums from which `score_bundle` forecasts."""
    import torch

    from bundlemage.campaigns.chances import new_log_probabilities
    from bundlemage.campaigns.new_bundles import Owners
    from bundlemage.models.base import Matcher, require
    from bundlemage.models.ragged import Ragged

    calibration = recommender.new_bundle_calibration
    assert calibration is not None
    own, everyone = recommender.shop, recommender.shop.everyone()
    contents = own.interactions.bundle_item
    bundles = Ragged.from_csr(shop.bundle_item[new], own.device)
    with torch.inference_mode():
        forecaster = require(recommender.model, Matcher).forecaster
        logs = new_log_probabilities(forecaster, everyone, contents, bundles)
        lacks = ~Owners(bundles, contents, len(shop.items)).excluded(everyone)
        return lacks.cpu().numpy(), calibration.sums(logs, everyone, lacks, len(contents))


if __name__ == "__main__":
    typer.run(main)
