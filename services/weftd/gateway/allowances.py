"""A tenant's allowance, from its token or else from the settings; administrators have none."""

from msgspec import Struct

from weft.domain.spec import JobSpec
from weft.domain.tenants import Allowance, Use, beyond
from weft.store.tenants import Access, TenantStore
from weftd.gateway.errors import RejectedError
from weftd.gateway.readmodel.cluster import Newest

FULL_MAX = 1000  # tenants that are known to have no room

FULL_RETRY_SECONDS = 10.0  # open jobs have to end first: an immediate retry is of no use


class Allowances:
    """`default` applies to tenants for which no administrator has set limits."""

    def __init__(self, default: Allowance) -> None:
        self.default = default

    def of(self, who: Access) -> Allowance | None:
        """The caller's allowance; None: no bounds."""
        return None if who.admin else who.chosen.over(self.default)


def check(spec: JobSpec, allowance: Allowance | None, *, priority: int | None = None) -> None:
    """Raises RejectedError 403 if the tenant may not have such a job; `priority` replaces the job's own."""
    if allowance is not None and (found := beyond(spec, allowance, priority=priority)) is not None:
        raise RejectedError(403, *found)


class NoRoomError(RejectedError):
    """The tenant is at a limit of its open jobs; `field` is the part of the request that is too large."""

    def __init__(self, reason: str, *, field: str = "") -> None:
        super().__init__(429, field, reason, retry_after=FULL_RETRY_SECONDS)


class _Refused(Struct, frozen=True):
    """A refused large body, and the use of its tenant at that time."""

    size: int
    use: Use
    allowance: Allowance | None
    reason: str
    field: str


class NoRoom:
    """Refused large bodies. Another one is refused before it is read while its tenant has at least as much open as
    then."""

    def __init__(self, *, store: TenantStore, allowances: Allowances) -> None:
        self._store = store
        self._allowances = allowances
        self._refused: Newest[_Refused] = Newest(FULL_MAX)

    async def check(self, who: Access, size: int) -> None:
        """Raises NoRoomError if a body of `size` bytes would be refused like the last one."""
        known = self._refused.get(who.tenant)
        if known is None or size < known.size or self._allowances.of(who) != known.allowance:
            return
        use = await self._use(who.tenant)
        if use is not None and use.jobs >= known.use.jobs and use.spec_bytes >= known.use.spec_bytes:
            raise NoRoomError(known.reason, field=known.field)
        self._refused.forget(who.tenant)

    async def note(self, who: Access, size: int, refusal: NoRoomError) -> None:
        """Note that a body of `size` bytes was refused because its tenant has too much open."""
        if (use := await self._use(who.tenant)) is not None:
            self._refused.put(who.tenant, _Refused(size, use, self._allowances.of(who), refusal.reason, refusal.field))

    async def _use(self, tenant: str) -> Use | None:
        kept = await self._store.tenants(tenant=tenant, limit=1)
        return kept[0].use if kept else None
