"""Which copies of data a node drops when others need their place. Pure."""

from collections.abc import Collection, Iterable

from msgspec import Struct


class Copy(Struct, frozen=True, kw_only=True):
    """One copy in the cache of a node. `used_at`: when a run last began with it, in seconds."""

    digest: str
    tenant: str
    size: int
    used_at: float


def dropped_for(
    size: int, copies: Collection[Copy], *, bytes_max: int, in_use: Collection[str]
) -> tuple[Copy, ...] | None:
    """The copies to drop so that `size` more bytes fit; None if they do not fit beside those in use.

    Each time the tenant with the most bytes gives up the copy that it used the longest ago, so that one tenant with
    many copies cannot displace those of the others. With one tenant this is the least recently used copy.

    Example: of 10 bytes, alice has copies of 5 and 3, bob has one of 2. For 4 more alice's older copy goes.
    """
    over = sum(copy.size for copy in copies) + size - bytes_max
    left = sorted((copy for copy in copies if copy.digest not in in_use), key=lambda copy: (copy.used_at, copy.digest))
    held = _bytes_by_tenant(copies)
    dropped: list[Copy] = []
    while over > 0:
        if not left:
            return None
        most = max({copy.tenant for copy in left}, key=lambda tenant: (held[tenant], tenant))
        copy = next(copy for copy in left if copy.tenant == most)
        left.remove(copy)
        dropped.append(copy)
        held[most] -= copy.size
        over -= copy.size
    return tuple(dropped)


def _bytes_by_tenant(copies: Iterable[Copy]) -> dict[str, int]:
    held: dict[str, int] = {}
    for copy in copies:
        held[copy.tenant] = held.get(copy.tenant, 0) + copy.size
    return held
