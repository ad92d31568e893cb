"""Bytes of the files that jobs have on nodes, by tenant, as the nodes report them."""

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec import Struct
from msgspec.structs import replace

from weft.messages.accounts import AccountRow, UsageGrouping
from weft.messages.files import FilesKept
from weft.messages.series import UsageView
from weft.store import GatewayStore
from weftd.gateway.readmodel.cluster import NODES_MAX, Newest

HEARD_SECONDS_MAX = 900.0  # files on a node that is silent for longer cannot be fetched
FACTS_AT_ONCE = 5000


class Kept(Struct, frozen=True, kw_only=True):
    """Bytes by job and by tenant. Jobs that are no longer stored have none, as their tenant is unknown."""

    of_jobs: dict[str, int]
    of_tenants: dict[str, int]


class KeptFiles:
    """`clock` does not jump."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._told: Newest[tuple[float, FilesKept]] = Newest(NODES_MAX)
        self._tenants: dict[str, str] = {}  # by job, for the jobs that nodes reported

    async def hear(self, told: FilesKept) -> None:
        self._told.put(told.node_id, (self._clock(), told))

    async def of(self, store: GatewayStore) -> Kept | None:
        """None if no node has reported yet."""
        now = self._clock()
        told = [each for at, each in self._told.values() if now - at <= HEARD_SECONDS_MAX]
        if not told:
            return None
        sizes = bytes_by_job(told)
        self._tenants = {job_id: tenant for job_id, tenant in self._tenants.items() if job_id in sizes}
        unknown = sorted(sizes.keys() - self._tenants.keys())
        for begin in range(0, len(unknown), FACTS_AT_ONCE):
            for facts in await store.job_facts(unknown[begin : begin + FACTS_AT_ONCE]):
                self._tenants[facts.id] = facts.tenant
        of_tenants = Counter[str]()
        for job_id, tenant in self._tenants.items():
            of_tenants[tenant] += sizes[job_id]
        return Kept(of_jobs=sizes, of_tenants=dict(of_tenants))


def bytes_by_job(told: Iterable[FilesKept]) -> dict[str, int]:
    """A folder that several nodes share counts once."""
    folders = {(one.job_id, one.area, one.mark): one.bytes for each in told for one in each.folders}
    sizes = Counter[str]()
    for (job_id, _, _), size in folders.items():
        sizes[job_id] += size
    return dict(sizes)


def with_kept(view: UsageView, by: UsageGrouping, kept: Kept | None, *, only: str | None, limit: int) -> UsageView:
    """The account with the bytes of its tenants or jobs, and a row for each tenant that has nothing else in it."""
    if kept is None or by not in (UsageGrouping.TENANT, UsageGrouping.JOB):
        return view
    sizes = kept.of_tenants if by is UsageGrouping.TENANT else kept.of_jobs
    rows = [replace(row, kept_bytes=sizes.get(row.key, 0)) for row in view.rows]
    if by is UsageGrouping.TENANT and not view.left_out:
        more = sorted(sizes.keys() - {row.key for row in rows})
        rows += [
            AccountRow(key=tenant, tenant=tenant, gpu_seconds_held=0.0, kept_bytes=sizes[tenant])
            for tenant in more
            if only in (None, tenant)
        ]
    total = sum(size for tenant, size in kept.of_tenants.items() if only in (None, tenant))
    summed = None if view.total is None else replace(view.total, kept_bytes=total)
    return replace(view, rows=tuple(rows[:limit]), left_out=view.left_out + max(0, len(rows) - limit), total=summed)
