"""A tenant's allowance, from its token or else from the settings; administrators have none."""

from weft.domain.spec import JobSpec
from weft.domain.tenants import Allowance, beyond
from weft.store.tenants import Access
from weftd.gateway.errors import RejectedError

FULL_RETRY_SECONDS = 10.0  # open jobs have to end first: an immediate retry is of no use


class Allowances:
    """`default` is for tenants for which no administrator has set another."""

    def __init__(self, default: Allowance) -> None:
        self.default = default

    def of(self, who: Access) -> Allowance | None:
        """The caller's allowance; None: no bounds."""
        return None if who.admin else who.chosen.over(self.default)


def check(spec: JobSpec, allowance: Allowance | None, *, priority: int | None = None) -> None:
    """Raises RejectedError 403 if the tenant may not have such a job; `priority` replaces the job's own."""
    if allowance is not None and (found := beyond(spec, allowance, priority=priority)) is not None:
        raise RejectedError(403, *found)


def too_much(reason: str, *, field: str = "") -> RejectedError:
    """The refusal of a tenant that has as much open as it may."""
    return RejectedError(429, field, reason, retry_after=FULL_RETRY_SECONDS)
