"""What a tenant may take, as its token says and else by the settings; administrators take what they like."""

from libs.domain.spec import JobSpec
from libs.domain.tenants import Allowance, beyond
from libs.store import Access
from services.gateway.errors import RejectedError

FULL_RETRY_SECONDS = 10.0  # what a tenant has open ends with its jobs: asking at once again is of no use


class Allowances:
    """`default` is for tenants for whom no administrator chose another."""

    def __init__(self, default: Allowance) -> None:
        self.default = default

    def of(self, who: Access) -> Allowance | None:
        """None: without bounds."""
        return None if who.admin else who.chosen.over(self.default)


def check(spec: JobSpec, allowance: Allowance | None, *, priority: int | None = None) -> None:
    """Raises RejectedError 403 where the tenant may not have such a job; `priority`: instead of the job's own."""
    if allowance is not None and (found := beyond(spec, allowance, priority=priority)) is not None:
        raise RejectedError(403, *found)


def too_much(reason: str) -> RejectedError:
    """The tenant has as much open as it may."""
    return RejectedError(429, "", reason, retry_after=FULL_RETRY_SECONDS)
