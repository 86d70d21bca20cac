"""The bundles that a campaign may show, their values for each user, and the limits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from bundlemage.campaigns.chances import Calibration, chances_of
from bundlemage.campaigns.limits import MONEY, Block, Floats, Limits, Whole, highest
from bundlemage.campaigns.settings import Campaign
from bundlemage.core.answering import rows_at_a_time
from bundlemage.core.shop import Shop
from bundlemage.errors import ConfigError
from bundlemage.models.base import Histories, Matcher, Model, require


@dataclass(frozen=True)
class Scored:
    """The chances and values of all candidates for a block of users."""

    block: Block
    chances: Floats  # [users, candidates]
    unconstrained: float
    """The total value if each user were shown their best bundles, without limits."""
    unknown: int
    """The number of users without a history."""


class Offer:
    """The candidates of a campaign, as positions in the shop, with their prices and limits."""

    def __init__(self, settings: Campaign, model: Model, shop: Shop, calibration: Calibration | None) -> None:
        self.settings, self.model, self.shop, self.calibration = settings, model, shop, calibration
        takings = settings.value == "takings"
        self.prices = _prices(shop, needed=takings)  # [bundles of the shop], NaN if unknown
        costs = None if settings.budget is None else _discount_costs(shop)
        through = np.isfinite(shop.bundles(settings.where).hidden.cpu().numpy())
        known = np.ones_like(through) if costs is None else np.isfinite(costs)
        known &= np.isfinite(self.prices) | (not takings)
        self.left_out = int((through & ~known).sum())
        """Number of bundles that pass the filters, but have no price or discount although it is needed."""
        self.wanted = np.flatnonzero(through & known)
        """Positions of all bundles that pass the filters and have the needed price and discount."""
        if not len(self.wanted):
            raise ConfigError(
                "there is no bundle to show: no bundle of the shop passes the filters"
                + (" and has a known price and discount" if through.any() else "")
            )
        stock = stock_of(shop) if settings.stock else None

        def limits_of(bundles: Whole) -> Limits:
            return Limits(
                shop.dataset.bundle_item[bundles],
                stock,
                settings.shown_at_most,
                None if costs is None else np.rint(costs[bundles] * MONEY).astype(np.int64),
                settings.budget,
            )

        limits = limits_of(self.wanted)
        most = limits.affordable(limits.room)
        self.bundles = self.wanted[most >= 1 if settings.reserve == "shown" else most > 0]
        """[candidates]: the wanted bundles that the limits allow to show at least once."""
        if not len(self.bundles):
            raise ConfigError(
                f"there is no bundle to show: {len(self.wanted):,} bundles pass the filters, but the limits "
                "do not allow any of them. Raise the budget, or check the stock"
            )
        self.limits = limits_of(self.bundles)

    def _everything(self, users: Whole) -> tuple[Floats, int]:
        """Returns the chance of each wanted bundle (0 for bundles that a user has), and the number of users
        without a history. For these a bundle's chance is its share of all sales."""
        parts, unknown = [], 0
        rows = rows_at_a_time(len(self.shop.dataset.bundles), self.shop.device)
        with torch.inference_mode():
            for start in range(0, len(users), rows):
                places = torch.from_numpy(users[start : start + rows]).to(self.shop.device)
                chances, without = self._chances(self.shop.interactions.histories(places))
                parts.append(chances.cpu())
                unknown += without
        return torch.cat(parts).numpy().astype(np.float64), unknown

    def _chances(self, histories: Histories) -> tuple[torch.Tensor, int]:
        contents = self.shop.interactions.bundle_item
        scores = require(self.model, Matcher).bundle_scores(histories, contents)
        logs = scores.float().log_softmax(1)
        nothing = (histories.items.lengths == 0) & (histories.bundles.lengths == 0)
        logs[nothing] = self.shop.bundles().shares.clamp(min=1e-30).log()
        chances = chances_of(self.calibration, logs, histories)
        chances[histories.bundles.row_of_entry(), histories.bundles.values] = 0.0
        return chances[:, torch.from_numpy(self.wanted).to(chances.device)], int(nothing.sum())

    def scored(self, users: Whole) -> Scored:
        """Returns chances and values for these users. `users` are positions in the shop."""
        chances, unknown = self._everything(users)
        values = chances * self.prices[self.wanted] if self.settings.value == "takings" else chances
        unconstrained = float(highest(values, self.settings.per_user).sum())
        if len(self.bundles) < len(self.wanted):
            there = np.searchsorted(self.wanted, self.bundles)
            chances, values = chances[:, there], values[:, there]
        shares = chances if self.settings.reserve == "expected" else None
        return Scored(Block(values, shares), chances, unconstrained, unknown)

    def name(self, kind: str, thing: int) -> str:
        """Returns the id of the item or bundle that a limit belongs to, or `all` for the budget."""
        if kind == "budget":
            return "all"
        data = self.shop.dataset
        return data.items[thing] if kind == "stock" else data.bundles[int(self.bundles[thing])]

    def fingerprints(self, users: Whole) -> dict[str, str]:
        """Returns checksums of everything that the result depends on, except the settings."""
        catalogue = hashlib.sha256(self.shop.trade.bundles_gone.tobytes())
        for shelf in (self.shop.item_shelf, self.shop.bundle_shelf):
            if shelf.catalogue is not None:
                catalogue.update(_bytes(shelf.catalogue))
        model = hashlib.sha256(f"{self.model.name} {self.calibration}".encode())
        model.update(self.shop.dataset.fingerprint().encode())
        for name, weights in sorted(self.model.state_dict().items()):
            model.update(name.encode() + weights.detach().cpu().contiguous().numpy().tobytes())
        return {
            "model": model.hexdigest(),
            "catalogue": catalogue.hexdigest(),
            "users": hashlib.sha256(users.astype("<i8").tobytes()).hexdigest(),
        }


def _bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def stock_of(shop: Shop) -> Whole:
    """Returns the stock of each item; 0 if it is unknown, as in filters."""
    stock: Whole = shop.item_shelf.column("stock").fill_null(0).to_numpy().astype(np.int64)
    return np.maximum(stock, 0)


def _prices(shop: Shop, *, needed: bool) -> Floats:
    try:
        return shop.bundle_shelf.prices
    except ConfigError:
        if needed:
            raise ConfigError(
                "takings are not known, because no bundle has a price: put a column 'price' into the table "
                "of bundles and train again, or maximise sales"
            ) from None
        return np.full(len(shop.dataset.bundles), np.nan)


def _discount_costs(shop: Shop) -> Floats:
    """The cost of each bundle's discount: the sum of its items' prices, times the discount."""
    table = shop.bundle_shelf.catalogue
    if table is None or table["discount"].null_count == len(table):
        raise ConfigError(
            "a budget limits the cost of discounts, and no bundle has a discount. Put a column 'discount' "
            "into the table of bundles (0.2 is 20% off) and train again, or leave the budget out"
        )
    discounts: Floats = table["discount"].to_numpy().astype(np.float64)
    try:
        prices = shop.item_shelf.prices
    except ConfigError as error:
        raise ConfigError(f"the cost of discounts is unknown: {error}") from None
    contents = shop.dataset.bundle_item
    row = np.repeat(np.arange(contents.shape[0]), np.diff(contents.indptr))
    return discounts * np.bincount(row, prices[contents.indices], minlength=contents.shape[0])
