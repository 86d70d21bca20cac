"""Whether forecast numbers of buyers add up, on new bundles of generated shops of several kinds.

`python -m benchmarks.buyers --models bundlemage,owned-share`. A quarter of the bundles is removed from the
data, as if they did not exist yet. The model is trained and calibrated on the rest, and forecasts how many of
the users buy each removed bundle. The table compares the forecasts with the real numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from bundlemage.campaigns.new_bundles import ForecastGroup
    from bundlemage.data.dataset import BundleDataset, Positions
    from bundlemage.recommender import Recommender

KINDS = "games,one-buyer,only-in-bundles,one-bundle-users,best-sellers,large-catalogue,near-copies,no-items"
SHARE = 4
"""One bundle of this many is new."""


@dataclass(frozen=True)
class Found:
    """The forecasts for new bundles, and what really happened."""

    kind: str
    model: str
    protocol: str
    reason: str | None
    """Why there is no forecast."""
    expected: npt.NDArray[np.float64]  # [bundles]
    observed: npt.NDArray[np.float64]  # [bundles]
    covered: float
    """The share of the bundles whose number of buyers lies in their interval."""
    groups: tuple[ForecastGroup, ...]

    @property
    def ratio(self) -> float:
        """All expected buyers divided by all real ones."""
        return float(self.expected.sum() / self.observed.sum())


def main(
    kinds: Annotated[str, typer.Option(help="Kinds of shops.")] = KINDS,
    models: Annotated[str, typer.Option(help="Models, by their names.")] = "bundlemage,owned-share",
    protocols: Annotated[str, typer.Option(help="Protocols of training.")] = "paper,none",
    epochs: Annotated[int | None, typer.Option(help="Fewer epochs, for a try.")] = None,
    seed: Annotated[int, typer.Option(help="Of the shop, of the new bundles and of training.")] = 0,
) -> None:
    """Forecast the buyers of new bundles in generated shops, and compare with the real buyers."""
    table = Table(
        "shop", "model", "protocol", "bundles", "expected", "real", "ratio", "in interval", "groups"
    )
    for kind in kinds.split(","):
        for model in models.split(","):
            for protocol in protocols.split(","):
                settings = {} if epochs is None or model != "bundlemage" else {"epochs": epochs}
                cells = _cells(measure(kind, model, protocol, seed, **settings))
                typer.echo(" | ".join(cells), err=True)
                table.add_row(*cells)
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(table)


def _cells(found: Found) -> list[str]:
    first = [found.kind, found.model, found.protocol, f"{len(found.observed):,}"]
    if found.reason is not None:
        return [*first, "–", f"{found.observed.sum():,.0f}", "–", "–", found.reason]
    good = sum(group.holds for group in found.groups)
    total = [f"{found.expected.sum():,.1f}", f"{found.observed.sum():,.0f}", f"{found.ratio:.2f}"]
    return [*first, *total, f"{found.covered:.0%}", f"{good} of {len(found.groups)}"]


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
    from bundlemage.campaigns.new_bundles import groups_of
    from bundlemage.data.splits import SplitPlan
    from bundlemage.recommender import Recommender

    shop, before, new = divided(kind, seed)
    options: dict[str, Any] = {"device": "cpu", "seed": seed, **settings}
    recommender = Recommender(model, **options)
    recommender.fit(before, SplitPlan(protocol), progress=False)
    calibration = recommender.new_bundle_calibration
    assert calibration is not None
    observed = np.bincount(shop.user_bundle.indices, minlength=len(shop.bundles))[new].astype(np.float64)
    if calibration.reason is not None:
        return Found(kind, model, protocol, calibration.reason, np.zeros(len(new)), observed, 0.0, ())
    expected, resampled = forecasts(recommender, shop, new)
    limits = [calibration.interval(totals) for totals in resampled]
    inside = [low <= real <= high for (low, high), real in zip(limits, observed, strict=True)]
    groups = groups_of(expected, observed, resampled, calibration.dispersion_of_sums)
    return Found(kind, model, protocol, None, expected, observed, float(np.mean(inside)), groups)


def forecasts(
    recommender: Recommender, shop: BundleDataset, new: Positions
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The same numbers as those of `score_bundle`, for all new bundles at once."""  # [new], [new, resamples]
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
        lacks = ~Owners(bundles, contents, len(shop.items)).have_all(everyone)
        chances = calibration.chances(logs, everyone, len(contents)) * lacks
        resampled = [
            (calibration.resampled_chances(logs[:, n], everyone, len(contents)) * lacks[:, [n]])
            .double()
            .sum(0)
            for n in range(len(new))
        ]
    return chances.double().sum(0).cpu().numpy(), torch.stack(resampled).cpu().numpy()


if __name__ == "__main__":
    typer.run(main)
