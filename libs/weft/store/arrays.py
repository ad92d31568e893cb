"""Arrays, as the gateway reads them and asks for their elements."""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from weft.domain.job import Cause, Job, JobState
from weft.domain.spec import JobSpec
from weft.domain.tenants import Allowance
from weft.messages.asks import AskKind

ARRAYS_BYTES_MAX = 16 << 20


class ArrayKept(Struct, frozen=True, kw_only=True):
    """An array: how many of its elements are in each state. `spec`: of the first element that is kept; `waiting_for`:
    why one that waits does; `started_at`: when the first that is kept began, `ended_at`: when the last so far ended."""

    id: str
    name: str
    tenant: str
    pool: str
    seq: int  # the order of submission, of its first element
    submitted_at: float
    submitter: str = ""
    spec: JobSpec
    states: dict[JobState, int]
    started_at: float | None = None
    ended_at: float | None = None
    waiting_for: Cause | None = None

    @property
    def total(self) -> int:
        return sum(self.states.values())

    @property
    def over(self) -> bool:
        return all(state.final for state in self.states)


class ArrayStore(Protocol):
    async def array_jobs(
        self, array: str, *, states: Sequence[JobState] = (), limit: int = 100, after: int = 0
    ) -> list[Job]:
        """The next `limit` elements of an array behind the `seq` `after`; of those, the ones in these states."""

    async def arrays(
        self,
        *,
        ids: Sequence[str] = (),
        tenant: str | None = None,
        opened: bool = False,
        limit: int = 100,
        bytes_max: int = ARRAYS_BYTES_MAX,
    ) -> list[ArrayKept]:
        """The arrays with these ids; else the newest, or those that are not over (`opened`), of a tenant or of all. The
        specifications of all but the last have fewer than `bytes_max` together."""

    async def array_named(self, name: str, *, tenant: str | None) -> str | None:
        """The id of the newest array with this name, of a tenant or of all."""
        ...

    async def ask_elements(
        self,
        kind: AskKind,
        *,
        array: str,
        states: Sequence[JobState],
        job_ids: Sequence[str] = (),
        tenant: str,
        at: float,
        allowance: Allowance | None = None,
        who: str = "",
    ) -> int:
        """Store an ask for each element in one of these states, of all or of those named; returns how many. `who`: the
        name of the person; empty: a token is used. One that has such an ask already gets no other. Raises
        TenantFullError where a requeue would open too much: then nothing is asked."""
