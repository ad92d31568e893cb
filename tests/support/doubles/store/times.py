"""Times as Postgres has them."""


def micro(at: float) -> float:
    """Times are kept to the microsecond."""
    return round(at, 6)
