"""Leases and loads of pools, in memory."""

from msgspec import structs

from weft.domain.lease import Lease, Pledge
from weft.store import LeaseLostError, LoadedSinceError


class MemoryLeases:
    def __init__(self) -> None:
        super().__init__()
        self._leases: dict[str, Lease] = {}
        self._loads: dict[str, int] = {}  # how often each pool was loaded
        self._leaderships: dict[str, dict[int, Lease]] = {}  # how each leadership ended, by epoch
        self._policies: dict[str, tuple[str, float, int]] = {}  # by the name of a lease

    async def lease(self, name: str) -> Lease | None:
        return self._leases.get(name)

    async def take_lease(self, name: str, *, holder: str, seen: Lease | None) -> Lease | None:
        held = self._leases.get(name)
        free = held is None or not held.holder
        unchanged = held is not None and seen is not None and (held.epoch, held.seq) == (seen.epoch, seen.seq)
        if not (free or unchanged):
            return None
        if held is None:
            return self._keep_lease(Lease(name=name, holder=holder, epoch=1, seq=0))
        self._end_leadership(held)
        return self._keep_lease(structs.replace(held, holder=holder, epoch=held.epoch + 1, seq=0))

    async def renew_lease(self, lease: Lease, *, pledge: Pledge | None = None) -> Lease | None:
        held = self._held(lease)
        if held is None:
            return None
        return self._keep_lease(structs.replace(held, seq=held.seq + 1, pledge=pledge or held.pledge))

    async def release_lease(self, lease: Lease, *, pledge_ends: bool = False) -> None:
        if (held := self._held(lease)) is not None:
            self._end_leadership(held)
            pledge = structs.replace(held.pledge, seconds=0.0) if pledge_ends else held.pledge
            self._keep_lease(structs.replace(held, holder="", pledge=pledge))

    async def raise_lease(self, lease: Lease, *, above: int) -> Lease | None:
        held = self._held(lease)
        if held is None:
            return None
        self._leaderships.pop(lease.name, None)
        return self._keep_lease(structs.replace(held, epoch=max(held.epoch, above) + 1, seq=0, went_back=True))

    async def settle_lease(self, lease: Lease) -> Lease | None:
        held = self._held(lease)
        return None if held is None else self._keep_lease(structs.replace(held, went_back=False))

    async def lead_by(self, lease: Lease, policy: str, *, preemption_after: float = 0.0, spares: int = 0) -> int:
        self._must_hold(lease)
        self._policies[lease.name] = policy, preemption_after, spares
        self._loads[lease.name] = self._loads.get(lease.name, 0) + 1
        return self._loads[lease.name]

    async def policy(self, *, pool: str) -> str:
        return self._policies.get(pool, ("", 0.0, 0))[0]

    async def preemption_after(self, *, pool: str) -> float:
        return self._policies.get(pool, ("", 0.0, 0))[1]

    async def spares(self, *, pool: str) -> int:
        return self._policies.get(pool, ("", 0.0, 0))[2]

    async def leaderships(self, name: str) -> list[Lease]:
        return [ended for _, ended in sorted(self._leaderships.get(name, {}).items())]

    def _keep_lease(self, lease: Lease) -> Lease:
        self._leases[lease.name] = lease
        return lease

    def _end_leadership(self, lease: Lease) -> None:
        if lease.holder:
            ended = self._leaderships.setdefault(lease.name, {})
            ended[lease.epoch] = structs.replace(lease, went_back=False, pledge=Pledge())

    def _held(self, lease: Lease) -> Lease | None:
        """The lease as it is now, if it still has the same owner."""
        held = self._leases.get(lease.name)
        return held if held is not None and (held.holder, held.epoch) == (lease.holder, lease.epoch) else None

    def _must_hold(self, lease: Lease) -> None:
        if self._held(lease) is None:
            raise LeaseLostError(f"lease {lease.name} is no longer held by {lease.holder} in epoch {lease.epoch}")

    def _must_have_loaded_last(self, lease: Lease, load: int | None) -> None:
        if load is not None and self._loads.get(lease.name, 0) != load:
            raise LoadedSinceError(f"load {load} of {lease.name} is not its latest")
