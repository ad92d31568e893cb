"""Whose jobs a caller may see."""

from collections.abc import Sequence

from weft.domain.job import Job
from weft.store.tenants import Access


def may_see(who: Access, tenant: str) -> bool:
    return who.admin or tenant == who.tenant


def seen_of(jobs: Sequence[Job], who: Access) -> Sequence[Job]:
    """The jobs that the caller may see, in their order; faster for ten thousand jobs than one check each."""
    return jobs if who.admin else [job for job in jobs if job.tenant == who.tenant]
