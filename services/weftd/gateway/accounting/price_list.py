"""The price list, read once."""

from pathlib import Path

from weft.service import SettingsError
from weftd.gateway.thinking.accounting.prices import Prices, PricesError, read_prices

BYTES_MAX = 1 << 20


def read_prices_file(path: str) -> Prices | None:
    """None without a path. Raises SettingsError."""
    if not path:
        return None
    try:
        with Path(path).open("rb") as file:
            data = file.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise PricesError(f"more than {BYTES_MAX} bytes")
        return read_prices(data.decode())
    except (OSError, UnicodeDecodeError, PricesError) as error:
        raise SettingsError(f"GATEWAY_PRICES_FILE: {path}: {error}") from error
