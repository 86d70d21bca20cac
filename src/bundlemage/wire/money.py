"""Prices: how they are written, and how the prices of designed bundles end."""

from __future__ import annotations

import re
from decimal import ROUND_FLOOR, ROUND_HALF_UP, Decimal

from bundlemage.wire.shop import ShopSettings


def price_text(amount: float, settings: ShopSettings) -> str:
    """Returns a price as the shop's locale writes it, such as `1.234,50 €`. Without a currency: `1.234,50`.

    `pages/static/money.js` writes the same in a browser. Digits are always those of English.
    """
    price = _rounded(amount, settings)
    if settings.currency is None and settings.locale == "en":
        return f"{price:,}"
    from babel import Locale  # late: the command line starts faster without Babel
    from babel.numbers import format_currency, format_decimal

    if settings.currency is None:
        pattern = Locale.parse(settings.locale).decimal_formats[None].pattern.replace(".###", ".00")
        return format_decimal(price, pattern, settings.locale)
    text = format_currency(price, settings.currency, locale=settings.locale)
    # Babel does not separate letters from digits, as in `KWD 1.500`.
    return re.sub(r"([^\W\d_]\.?)(?=\d)|(?<=\d)(?=[^\W\d_])", "\\1\xa0", text)


def final_price(amount: float | Decimal, settings: ShopSettings) -> float:
    """Returns the price that a designed bundle costs if `amount` was computed. It is never above that.

    It is rounded to the decimals of the currency, half up, and then down to the next price with the ending
    `price_ending`: the last part of the price, which repeats at the power of ten above the ending. So 0.99
    repeats every 1, 9 every 10, and 80 every 100. An amount below the ending keeps its price. A larger amount
    never has a lower price.
    """
    price = _rounded(amount, settings)
    if settings.price_ending is not None:
        ending = _rounded(settings.price_ending, settings)
        every = Decimal(10) ** (ending.adjusted() + 1) if ending else Decimal(1)
        if price >= ending:
            price = ending + every * ((price - ending) / every).to_integral_value(ROUND_FLOOR)
    return float(price)


def _rounded(amount: float | Decimal, settings: ShopSettings) -> Decimal:
    # The shortest decimal that stands for a float is rounded: 2.675 becomes 2.68, as people expect.
    exact = amount if isinstance(amount, Decimal) else Decimal(repr(float(amount)))
    return exact.quantize(Decimal(1).scaleb(-settings.decimals), ROUND_HALF_UP)
