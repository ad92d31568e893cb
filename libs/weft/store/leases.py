"""Leases and loads of pools, as a scheduler takes them."""

from typing import Protocol

from weft.domain.lease import Lease, Pledge


class LeaseStore(Protocol):
    async def lease(self, name: str) -> Lease | None: ...

    async def take_lease(self, name: str, *, holder: str, seen: Lease | None) -> Lease | None:
        """Take the lease if it is exactly as `seen`, or free; None if another holder was faster."""

    async def renew_lease(self, lease: Lease, *, pledge: Pledge | None = None) -> Lease | None:
        """Renew the lease, with another pledge if one is given."""

    async def release_lease(self, lease: Lease, *, pledge_ends: bool = False) -> None:
        """Give the lease up; `pledge_ends`: no node is held by its pledge any more."""

    async def raise_lease(self, lease: Lease, *, above: int) -> Lease | None:
        """The store went back in time: lift the lease above every epoch heard of, and forget how earlier ones ended."""

    async def settle_lease(self, lease: Lease) -> Lease | None:
        """Record that every run from the time that the store lost has ended."""

    async def lead_by(self, lease: Lease, policy: str, *, preemption_after: float = 0.0, spares: int = 0) -> int:
        """Begin to load the lease's pool, led by this order, placement and backfill, which others may read.
        `preemption_after`: the seconds for which a job runs at least before it is pre-empted; `spares`: the number of
        nodes of each kind that are kept for gangs whose hardware failed.

        Returns the number of the load. What is read of the pool from now on has all that earlier loads admitted: they
        admit nothing more. Raises LeaseLostError.
        """

    async def leaderships(self, name: str) -> list[Lease]:
        """How earlier leaderships ended, as far as known, the oldest first."""
