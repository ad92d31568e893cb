"""Hourly prices of GPUs by model: exact decimals, from a list in TOML.

currency = "EUR"

[gpu_hour]
"NVIDIA H100 80GB HBM3" = 2.49
"*" = 1.20                        # every other model; without it those have no price
"""

import tomllib
from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation, localcontext
from typing import Any

from msgspec import Struct

ANY = "*"
PLACES = 6  # decimal places of a price, and of shown costs
PRICE_MAX = Decimal(1_000_000)
MODELS_MAX = 1000
HOUR = 3600 * 10**9  # in thousandths of a GPU times microseconds
_FIELDS = frozenset({"currency", "gpu_hour"})


class PricesError(ValueError):
    """The list is refused; the text names the field."""


class Prices(Struct, frozen=True):
    """Millionths of the currency for one hour of one GPU, by model."""

    currency: str = ""
    millionths: Mapping[str, int] = {}

    def of(self, model: str) -> int | None:
        return self.millionths.get(model, self.millionths.get(ANY))


def read_prices(text: str) -> Prices:
    """Raises PricesError."""
    try:
        given = tomllib.loads(text, parse_float=Decimal)
    except (tomllib.TOMLDecodeError, RecursionError, InvalidOperation) as error:
        raise PricesError(f"not TOML: {error}") from error
    for name in given:
        if name not in _FIELDS:
            raise PricesError(f"{name[:100]!r}: no such field; there is {', '.join(sorted(_FIELDS))}")
    currency, listed = given.get("currency"), given.get("gpu_hour")
    if not isinstance(currency, str) or not (1 <= len(currency) <= 16) or not currency.isprintable():
        raise PricesError('currency: expected a short text such as "EUR"')
    if not isinstance(listed, dict) or not listed or len(listed) > MODELS_MAX:
        raise PricesError(f"gpu_hour: expected a table of 1 to {MODELS_MAX} prices by model")
    return Prices(currency, {model: _millionths(model, price) for model, price in listed.items()})


def _millionths(model: str, price: Any) -> int:
    if isinstance(price, bool) or not isinstance(price, int | Decimal):
        raise PricesError(f"gpu_hour.{model[:100]}: expected a number such as 2.49")
    exact = Decimal(price)
    if not exact.is_finite() or not 0 <= exact <= PRICE_MAX:
        raise PricesError(f"gpu_hour.{model[:100]}: expected a price from 0 to {PRICE_MAX}")
    scaled = exact.scaleb(PLACES)
    if scaled != scaled.to_integral_value():
        raise PricesError(f"gpu_hour.{model[:100]}: more than {PLACES} places behind the point")
    return int(scaled)


def cost(held: Mapping[str, int], prices: Prices) -> str | None:
    """The cost of held GPU time, given by model in thousandths of a GPU times microseconds. It is rounded once, at the
    end. None if a model has no price."""
    total = 0
    for model, amount in held.items():
        price = prices.of(model)
        if price is None and amount:
            return None
        total += amount * (price or 0)
    with localcontext() as exact:
        exact.prec = 100
        value = Decimal(total).scaleb(-PLACES) / HOUR
        return f"{value.quantize(Decimal(1).scaleb(-PLACES), rounding=ROUND_HALF_EVEN):f}"
