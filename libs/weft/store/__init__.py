"""The stored state: jobs, allocations, nodes, events. Postgres is the truth, every message is only news of it.

`weft.store.postgres` has the one for a real server; tests have one in memory. One conformance suite holds both. Every
write is one guarded statement that records its event with it; a guard that fails is a value, not an error.

Errors: StoreError
        ├── StoreUnavailableError   cannot be reached, or did not answer in time: whether a write happened is unknown
        ├── LeaseLostError          another owner has taken the lease: nothing was written
        ├── LoadedSinceError        a later load of the pool has begun: nothing was written
        ├── RecordsLostError        the record before this one is not there: nothing was written, the store went back
        ├── UnlawfulError           no such step, or no column holds it: nothing was written, and this is a bug
        ├── DoubleAllocationError   a GPU given beyond what it has: nothing was written, the caller's state is wrong
        ├── KeyReusedError          the idempotency key was used before, for another specification
        ├── TenantFullError         the tenant has as much open as it may: nothing was written
        └── LargeAskWaitsError      large asks of the tenant wait to be done: nothing was written, try again soon
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from weft.domain.cluster import Drain, Node
from weft.domain.dependencies import Ends
from weft.domain.job import Job, JobChange, JobState, Placement
from weft.domain.labels import Marking
from weft.domain.lease import Lease
from weft.domain.quotas import Quota
from weft.domain.selection import Selection
from weft.domain.spec import JobSpec, Kind, Objective, ServiceRules
from weft.domain.tenants import Allowance
from weft.messages.asks import Ask, AskKind, Entrance, Reshare, Scale, Update
from weft.messages.events import Event
from weft.messages.history import Record
from weft.messages.http.status import DatabaseView
from weft.messages.signals import Curve, GpuScore, PairSlowdown, WorkloadClass, WorkloadPenalty
from weft.store.accounts import AccountStore
from weft.store.arrays import ArrayStore
from weft.store.audit import AuditStore
from weft.store.contexts import ContextStore, UploadStore
from weft.store.join_tokens import JoinTokenStore
from weft.store.leases import LeaseStore
from weft.store.people import PeopleStore
from weft.store.schedules import ScheduleStore
from weft.store.secrets import SecretStore
from weft.store.sign_ins import SignIn, SignInStore
from weft.store.submissions import SubmissionStore
from weft.store.tenants import Access, QuotaStore, TenantStore
from weft.store.tuning import TuningStore
from weft.store.webhooks import WebhookStore

ASKS_BYTES_MAX = 1 << 18  # bytes of asks that are read at once, but for the last: a large one takes long to store
LARGE_ASK_BYTES = 64 << 10  # such an ask is not stored while ASKS_BYTES_MAX of its tenant's asks wait
EVENTS_BYTES_MAX = 1 << 20  # bytes of one page of events
LISTED_BYTES_MAX = 16 << 20  # of specifications and revisions of the jobs of one page
UNSENT_BYTES_MAX = 1 << 20  # bytes of the events that are published at once


def bytes_of_job(job: Job) -> int:
    """About what a job counts in a page: its specification and its revisions."""
    return len(msgspec.json.encode(job.spec)) + sum(len(msgspec.json.encode(one.text)) for one in job.revisions)


def may_go_on(page: Sequence[Job], *, limit: int) -> bool:
    """Return True if there may be jobs behind this page of at most `limit` jobs: it is full, or ended by its bytes.
    Another version may have written a specification in more bytes, so half of them are enough."""
    return len(page) == limit or sum(map(bytes_of_job, page)) >= LISTED_BYTES_MAX // 2


class StoreError(Exception):
    """The base of all errors of the store."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached, or did not answer in time."""


class LeaseLostError(StoreError):
    """Another owner has the lease."""


class LoadedSinceError(StoreError):
    """A later load of the pool has begun."""


class RecordsLostError(StoreError):
    """The store lacks the record before this one: it went back in time since."""


class DoubleAllocationError(StoreError):
    """A GPU would have been given beyond its time or its memory."""


class UnlawfulError(StoreError):
    """The store's own rules forbid the write: no such step, or a value that no column holds."""


class KeyReusedError(StoreError):
    """The idempotency key was used before, for another specification."""


class ScheduleTakenError(StoreError):
    """The tenant has a schedule of this name with another specification."""


class TenantFullError(StoreError):
    """The tenant has as much open as it may; the text names the limit, and what is used of it."""


class LargeAskWaitsError(StoreError):
    """Large asks of the tenant wait to be done; the text says how large."""

    def __init__(self, waiting_bytes: int) -> None:
        super().__init__(
            f"requests of this tenant with {waiting_bytes} bytes are not done yet; a request of more than"
            f" {LARGE_ASK_BYTES} bytes is taken while fewer than {ASKS_BYTES_MAX} wait"
        )


class Unsent(Struct, frozen=True, kw_only=True):
    """An event in the outbox. Each time that it is put there, it has another `entry`."""

    entry: int
    event: Event


def is_full(page: Sequence[Event], limit: int, bytes_max: int = EVENTS_BYTES_MAX) -> bool:
    """Return True if a page of events ends at one of its bounds: more events may follow."""
    return len(page) >= limit or sum(len(event.data) for event in page) >= bytes_max


class JobsKept(Struct, frozen=True, kw_only=True):
    """For how many seconds a pool keeps the jobs that are over; one that ended before then may have been deleted."""

    pool: str
    seconds: float
    forgotten_before: float


class OpenService(Struct, frozen=True, kw_only=True):
    """The facts that a router reads of an open service. `wanted`: replicas that it should have; `served`: a
    replica of it was ready once."""

    id: str
    tenant: str
    pool: str
    name: str
    seq: int  # the order of submission
    kind: Kind
    rules: ServiceRules
    objective: Objective | None
    wanted: int
    state: JobState
    epoch: int
    version: int
    priority: int
    placement: Placement | None
    served: bool = False


class GatewayStore(
    SubmissionStore,
    ArrayStore,
    TenantStore,
    SignInStore,
    AuditStore,
    PeopleStore,
    QuotaStore,
    AccountStore,
    WebhookStore,
    ScheduleStore,
    JoinTokenStore,
    SecretStore,
    ContextStore,
    UploadStore,
    Protocol,
):
    """What the gateway may do: it alone writes tenants, tokens and submissions; the scheduler carries out its asks."""

    async def ask(
        self,
        kind: AskKind,
        *,
        subject_id: str,
        pool: str,
        tenant: str,
        at: float,
        priority: int = 0,
        scale: Scale | None = None,
        share: Reshare | None = None,
        update: Update | None = None,
        entry: Entrance | None = None,
        gpu: int | None = None,
        drain: Drain | None = None,
        marking: Marking | None = None,
        who: str = "",
        adds_bytes: int = 0,
        allowance: Allowance | None = None,
    ) -> None:
        """Store one ask for the scheduler of `pool`. `who`: the name of the person who asks; empty: a token does. The
        ask counts for its tenant by its bytes until it is done, or by
        `adds_bytes`, what is stored once it is done, if that is more. Raises TenantFullError where the tenant would
        have more than its `allowance`, None being without bounds; an ask without contents is always stored. Raises
        LargeAskWaitsError for a large ask while as much of its tenant waits as the scheduler takes in at once."""

    async def job(self, job_id: str) -> Job | None: ...

    async def jobs(
        self,
        *,
        tenant: str | None,
        states: Sequence[JobState] = (),
        name: str = "",
        limit: int = 100,
        before: int = 0,
        elements: bool = True,
        bytes_max: int = LISTED_BYTES_MAX,
    ) -> list[Job]:
        """Jobs, the newest first; of one tenant or of all; `before` is a `seq` to page on. `elements`: those of arrays
        too. All but the last have fewer than `bytes_max` together: see `may_go_on`."""

    async def jobs_selected(
        self,
        selection: Selection,
        *,
        tenant: str | None,
        states: Sequence[JobState] = (),
        limit: int = 100,
        before: int = 0,
        bytes_max: int = LISTED_BYTES_MAX,
    ) -> list[Job]:
        """As `jobs`, only those that meet the conditions of the selection."""

    async def ask_selected(
        self,
        kind: AskKind,
        selection: Selection,
        *,
        of: str | None,
        states: Sequence[JobState],
        limit: int,
        tenant: str,
        at: float,
        who: str = "",
    ) -> dict[str, int]:
        """Ask the same of the open jobs of a selection, of the tenant `of` or of all, in one statement: at most `limit`
        of those that it is not asked of yet. `tenant` asks. Returns the number of jobs by pool."""

    async def ids_beginning(self, prefix: str, *, tenant: str | None, limit: int) -> list[str]:
        """The ids of jobs that begin so, the newest first; of one tenant or of all."""
        ...

    async def story(
        self,
        job_id: str,
        *,
        after: str = "",
        before: str = "",
        newest: bool = False,
        events: Sequence[str] = (),
        limit: int = 1000,
        bytes_max: int = EVENTS_BYTES_MAX,
    ) -> list[Event]:
        """A page of a job's events, in order: the first behind the cursor `after`, or with `newest` the last before the
        cursor `before`. `events`: only those with one of these names. `limit` and `bytes_max` are as in `events`."""
        ...

    async def last_told(self, topic: str, subject_ids: Sequence[str], *, events: Sequence[str]) -> list[Event]:
        """The newest event with one of these names of each of these jobs or nodes (`topic`), if there is one."""

    async def events(
        self,
        *,
        after: str = "",
        before: str = "",
        tenant: str | None = None,
        newest: bool = False,
        limit: int = 1000,
        bytes_max: int = EVENTS_BYTES_MAX,
    ) -> list[Event]:
        """A page of events behind the cursor `after`; none ever appears later before one that was returned.

        `newest`: the last ones instead, before the cursor `before` if there is one. A page has at most `limit` events,
        and all but the last that was read have fewer than `bytes_max` bytes together: at least one event, and
        `is_full` if more may follow. Node events have no tenant: only readers of all tenants get them.
        """
        ...

    async def scores(self, *, pool: str, since: float = 0.0, nodes: Sequence[str] = ()) -> list[GpuScore]: ...

    async def classes(self, *, pool: str, since: float = 0.0) -> list[WorkloadClass]: ...

    async def penalties(self, *, pool: str, since: float = 0.0) -> list[WorkloadPenalty]: ...

    async def curves(self, *, pool: str, subjects: Sequence[str]) -> list[Curve]: ...

    async def curves_of_models(self, *, pool: str, since: float = 0.0, limit: int) -> list[Curve]: ...

    async def policy(self, *, pool: str) -> str:
        """The order, placement and backfill of the pool's last leader; empty if none was stored."""

    async def preemption_after(self, *, pool: str) -> float:
        """The seconds for which a job runs at least before it is pre-empted, by the pool's last leader; 0: none."""

    async def spares(self, *, pool: str) -> int:
        """The number of nodes of each kind that are kept as spares, by the pool's last leader."""

    async def nodes(self, *, pool: str | None = None) -> list[Node]: ...

    async def holding_jobs(self, *, pool: str) -> list[Job]: ...

    async def queued_jobs(self, *, pool: str, known: Mapping[str, Job] = {}) -> list[Job]:
        """The waiting jobs, in the order of submission; unchanged jobs of `known` (by id) are not read again."""
        ...

    async def history(
        self, *, pool: str, after: tuple[int, int] = (0, 0), limit: int = 100, bytes_max: int = 1 << 20
    ) -> list[Record]:
        """Records of a pool behind an epoch and number, in that order, as many as `bytes_max` hold; one at least."""

    async def jobs_of(self, job_ids: Sequence[str]) -> list[Job]: ...

    async def ended_last(self, *, pool: str, since: float, limit: int) -> list[str]:
        """The ids of the jobs that ended since then, those that ended last first, at most `limit`."""
        ...

    async def ends_of(self, ids: Sequence[str]) -> list[Ends]:
        """As a scheduler's."""
        ...

    async def specifications(self, job_ids: Sequence[str], *, bytes_max: int) -> dict[str, JobSpec]:
        """The specifications of these jobs, by id: as many as `bytes_max` hold, at least one. A job that is not stored
        is left out."""

    async def jobs_kept(self) -> list[JobsKept]:
        """The retention of each pool that keeps jobs for a limited time."""

    async def database_status(self) -> DatabaseView: ...


class RelayStore(Protocol):
    """What the relay may do: take events out of the outbox once they are published."""

    async def unsent(self, *, limit: int) -> list[Unsent]:
        """Events to publish, in the order of their ids: at most `limit`, all but the last with fewer than
        `UNSENT_BYTES_MAX` bytes together, and the oldest of all.

        Tenants are served in turn: an event is read before another one if its tenant has fewer bytes to publish up to
        it. The events of one tenant, and so of one job, keep their order.
        """

    async def unsent_count(self) -> int: ...

    async def sent(self, published: Sequence[Unsent]) -> None:
        """Take these entries out of the outbox. One that came back since stays, however late this is done."""

    async def resend(self, *, since: float) -> int:
        """Put every event since then into the outbox again; returns how many.

        All that waits then, these and the others, has new entries.
        """

    async def fill_stream(self, stream_id: str, *, since: float) -> int:
        """`resend`, unless this is the stream that it was done for last: once for each stream, and again where the
        store came back as it was before that. Returns how many."""


class SchedulerStore(RelayStore, LeaseStore, Protocol):
    """What a scheduler may do: it alone writes jobs, allocations and nodes. Every write carries its lease."""

    async def admit(self, lease: Lease, *, load: int, pool: str, limit: int) -> list[Job]:
        """Make jobs of submissions; each is returned once, here or by `open_jobs` of a later load.

        `load`: the number of the pool's latest load (0: there was none). At most `limit` jobs, and fewer where their
        specifications are large: of each tenant in turn, its oldest first. Raises LeaseLostError, LoadedSinceError:
        then nothing is admitted.
        """

    async def asks(self, *, pool: str, limit: int, bytes_max: int = ASKS_BYTES_MAX) -> list[Ask]:
        """The users' asks except submissions: of each tenant in turn, its oldest first. An ask about a subject of which
        another tenant asked something before is left out until that is done. All but the last have fewer than
        `bytes_max` together."""

    async def drop_asks(self, lease: Lease, ask_ids: Sequence[int]) -> None: ...

    async def open_jobs(self, *, pool: str) -> list[Job]:
        """Every job that is not final."""

    async def holding_jobs(self, *, pool: str) -> list[Job]: ...

    async def job(self, job_id: str) -> Job | None: ...

    async def jobs_of(self, job_ids: Sequence[str]) -> list[Job]: ...

    async def ends_of(self, ids: Sequence[str]) -> list[Ends]:
        """How far these jobs and arrays are, of whichever pool; one that is not known has a `total` of 0."""
        ...

    async def take(self, lease: Lease, changes: Sequence[JobChange], *, record: Record | None = None) -> list[bool]:
        """Store each step whose job is still at its version, with its event; True where stored. A job may take several
        steps in one call; with a step that is left out, its later ones are too. GPUs are compared once all are taken.

        A step with an `ask` deletes that ask. `record`: the decision's inputs; no step is stored without it.
        Raises LeaseLostError, RecordsLostError, DoubleAllocationError, UnlawfulError: then nothing is taken.
        """

    async def record(self, lease: Lease, record: Record) -> None:
        """Add one record to the history of the lease's pool. Raises LeaseLostError, RecordsLostError.

        A record that does not begin follows the one numbered before it, which must be there.
        """

    async def trim_history(self, lease: Lease, *, before: float, bytes_max: int) -> int:
        """Drop records older than `before`, and the oldest beyond `bytes_max`; returns how many were dropped.

        The history left opens with a record that `begins`; the newest such record stays, and all behind it. If there is
        too much to drop at once, the oldest are dropped, and the next call continues.
        """

    async def nodes(self, *, pool: str | None = None) -> list[Node]: ...

    async def save_node(
        self,
        lease: Lease,
        node: Node,
        *,
        event: str,
        cause: str,
        at: float | None = None,
        ask: int = 0,
        load: int | None = None,
    ) -> None:
        """Store a node as it is now; with an `event` (joined, changed, lost, returned, drained, resumed), record it.

        `at` is when that happened; None: when the node was last seen. `load`: the number of the pool's latest load, so
        that a write which lands after the next one changes nothing that its leader has read; None: whichever it is.
        Raises LeaseLostError, LoadedSinceError: then nothing is stored.
        """

    async def remove_node(self, lease: Lease, node_id: str, *, cause: str, at: float, load: int | None = None) -> None:
        """Delete a node that is gone for good, and record the event `removed`. Without such a node, do nothing.

        `load` and the errors are as in `save_node`.
        """

    async def forget_jobs(self, lease: Lease, *, before: float, kept_seconds: float, limit: int) -> int:
        """Delete at most `limit` jobs of the lease's pool that ended before then, the oldest first, with all that is
        stored of them, and at most as many node events. Returns how many jobs and node events were deleted.

        A job stays while an ask for it is open, or while one of its events is not published. Raises LeaseLostError.
        """

    async def touch_nodes(self, lease: Lease, node_ids: Sequence[str], *, at: float) -> None:
        """Store that these nodes last reported at `at`."""

    async def scores(self, *, pool: str, since: float = 0.0, nodes: Sequence[str] = ()) -> list[GpuScore]:
        """Scores of the pool's stored nodes: those stored `since` then, and all of `nodes`."""
        ...

    async def classes(self, *, pool: str, since: float = 0.0) -> list[WorkloadClass]:
        """Classes stored since then."""

    async def slowdowns(self) -> list[PairSlowdown]:
        """How jobs of two classes slow each other down on one GPU, in order."""

    async def penalties(self, *, pool: str, since: float = 0.0) -> list[WorkloadPenalty]:
        """Locality penalties of workloads stored since then, the newest last; without their points."""

    async def curves_of_models(self, *, pool: str, since: float = 0.0, limit: int) -> list[Curve]:
        """The newest curves of workloads that ran on GPUs of several models, stored since then, the newest last."""

    async def quotas(self, *, pool: str | None = None) -> list[Quota]:
        """The quotas of the pool, by name."""

    async def decayed_use(self, *, pool: str, at: float, half_life: float) -> dict[str, float]:
        """What each tenant has used, in GPU-seconds that count half after each half-life (seconds), without what jobs
        hold now. A job that held GPUs several times counts as if it had held them at once, until its last end."""


class ScorerStore(Protocol):
    """What the scorer may do: it alone writes scores."""

    async def nodes(self, *, pool: str | None = None) -> list[Node]: ...

    async def save_scores(self, scores: Sequence[GpuScore], *, at: float) -> None: ...

    async def scores(self, *, pool: str, since: float = 0.0, nodes: Sequence[str] = ()) -> list[GpuScore]: ...

    async def holding_jobs(self, *, pool: str) -> list[Job]: ...

    async def ended_jobs(self, *, tenants: Sequence[str], since: float, until: float, label: str) -> list[Job]:
        """Jobs of these tenants that succeeded from `since` to before `until` and have the label `label` with the value
        1, oldest first."""

    async def save_classes(self, classes: Sequence[WorkloadClass], *, pool: str) -> None: ...

    async def classes(self, *, pool: str, since: float = 0.0) -> list[WorkloadClass]: ...

    async def forget_classes(self, *, pool: str, before: float) -> None:
        """Delete classes stored before then."""

    async def save_slowdowns(self, slowdowns: Sequence[PairSlowdown]) -> None:
        """Keep each, unless a surer one is stored: the confidence of a stored one counts half after each day."""

    async def slowdowns(self) -> list[PairSlowdown]: ...

    async def forget_slowdowns(self, *, before: float) -> int:
        """Delete slowdowns stored before then; returns how many."""

    async def save_penalties(self, penalties: Sequence[WorkloadPenalty], *, pool: str) -> None: ...

    async def penalties_of(self, *, pool: str, workloads: Sequence[str]) -> list[WorkloadPenalty]:
        """The locality penalties of these workloads, with the points that show them."""

    async def forget_penalties(self, *, before: float) -> int:
        """Delete penalties stored before then, of every pool; returns how many."""

    async def forget_curves(self, *, before: float) -> int:
        """Delete curves stored before then, of every pool; returns how many."""

    async def forget_scores(self, *, before: float) -> int:
        """Delete scores stored before then whose node is gone; returns how many."""

    async def save_curves(self, curves: Sequence[Curve]) -> None: ...

    async def curves(self, *, pool: str, subjects: Sequence[str]) -> list[Curve]: ...


class RouterStore(Protocol):
    """What a router may do: it reads which jobs serve requests, where they are, and whose a token is."""

    async def open_services(self, *, job_ids: Sequence[str] | None = None) -> list[OpenService]:
        """The jobs that serve requests and are not over, in the order of submission; of these ids, or all. A job that
        is not admitted yet is left out."""

    async def nodes(self, *, pool: str | None = None) -> list[Node]: ...

    async def access(self, token_hash: bytes, *, at: float) -> Access | None:
        """The rights of the token, if it is valid at that time."""

    async def redeem_code(
        self,
        code_hash: bytes,
        session_hash: bytes,
        *,
        job: str,
        at: float,
        source: str,
        request: str = "",
        challenge: str = "",
    ) -> SignIn | None:
        """Exchange a one-time code for a session of one job's service; None: the code is worth nothing there."""


class ReviewStore(TuningStore, Protocol):
    """What the reallocator may do: it alone writes envelopes, and asks the scheduler for other limits."""

    async def nodes(self, *, pool: str | None = None) -> list[Node]: ...

    async def holding_jobs(self, *, pool: str) -> list[Job]: ...

    async def queued_jobs(self, *, pool: str, known: Mapping[str, Job] = {}, limit: int | None = None) -> list[Job]:
        """The waiting jobs, the first `limit` of them, in the order of submission; those of `known` that have not
        changed are not read again."""

    async def quotas(self, *, pool: str | None = None) -> list[Quota]: ...

    async def services(self, *, pool: str, known: Mapping[str, Job] = {}) -> list[Job]:
        """The services that hold a place, those without a replica among them, in the order of submission. Those of
        `known` that have not changed are not read again."""

    async def penalties(self, *, pool: str, since: float = 0.0) -> list[WorkloadPenalty]: ...

    async def curves(self, *, pool: str, subjects: Sequence[str]) -> list[Curve]: ...

    async def scores(self, *, pool: str, since: float = 0.0, nodes: Sequence[str] = ()) -> list[GpuScore]: ...
