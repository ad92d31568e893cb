"""Why a job waits, or why it is where it is, as the API answers it: a stable code, a sentence, the numbers, and the
jobs that hold its room. `weft.planning.reasons.explain` makes it."""

from msgspec import Struct

from weft.domain.failure import FailureClass
from weft.domain.job import Cause, JobState
from weft.domain.schedules import ScheduledRun
from weft.domain.shares import Share
from weft.domain.sizes import RoleSize
from weft.domain.spec import ResizeHow
from weft.messages.eta import Estimate, Sooner
from weft.messages.http.services import ServiceView
from weft.messages.signals import ShareSample


class Borrows(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tenant that holds more than it is guaranteed. `tenant` is empty where the reader may not know it."""

    tenant: str = ""
    gpus: float


class QuotaSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The quota of a job's tenant, in GPUs: what it is guaranteed, holds, and may hold (None: no limit). `borrows`:
    what it holds beyond its guarantee; `lends`: how much of its guarantee is in use by others; `borrowers`: the tenants
    that hold more than they are guaranteed, the largest first."""

    tenant: str
    group: str = ""
    guaranteed: float = 0.0
    holds: float = 0.0
    limit: float | None = None
    borrows: float = 0.0
    lends: float = 0.0
    borrowers: tuple[Borrows, ...] = ()


class LentSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The GPUs that a job lent to a service. `ranks`: the number of its ranks that left; 0: all, and the job waits."""

    service: str
    name: str = ""
    tenant: str = ""
    gpus: float
    ranks: int = 0
    since: float = 0.0


class HolderSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that holds what another waits for. `ends_at`: by its time limit at the latest, if it has one; `eta`: when
    it ends, as its own explanation has it."""

    job_id: str
    name: str
    tenant: str
    state: JobState
    priority: int
    gpus: float
    nodes: tuple[str, ...]
    since: float
    ends_at: float | None = None
    eta: Estimate | None = None
    submitter: str = ""


class ClosedSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node that takes no work and has room for a waiting replica. `by`, `since`: of its drain, if they are known."""

    node_id: str
    drained: bool
    ready: bool
    gpus_free: int
    by: str = ""
    since: float | None = None


class SilentSeen(Struct, frozen=True, kw_only=True):
    """A node on which the job is, and for how long it has not reported."""

    node_id: str
    seconds: float


class BesideSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run that holds another share of the same GPU. `used`: the part of the GPU's time, 0–1, that it used lately;
    None: not known, or another tenant's."""

    job_id: str
    name: str = ""
    tenant: str = ""
    rank: int = 0
    share: Share
    used: float | None = None


class ShareSeen(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The share of a GPU that a rank holds. `got`: the GPU time that it got lately, if its node knows. `enforced`: the
    node holds jobs to their shares. `beside`: the runs that hold other shares of the same GPU."""

    rank: int
    node_id: str
    gpu: int
    share: Share
    enforced: bool = True
    got: ShareSample | None = None
    beside: tuple[BesideSeen, ...] = ()


class Explanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`estimate_at`: when it could start at the latest, by time limits; None: unknown.

    `policy`: the order, the placement and the backfill in force; `held_back_for`: the job that room is kept for.
    `closed`: nodes that have room and take no work; `silent`: nodes of a placed job that do not report;
    `stopped_for`: why the epoch before this one ended, of a job that is back in the queue. Of a job that may have
    several sizes, `size`: by role; `resize`: how it takes another while it runs, or why it does not (`keeps_size_for`);
    `sized_for`: why it should have the size that it should have, None: as it was submitted; `resized_for`: why its size
    changed last. `shares`: what the first of its ranks hold of GPUs, of a job that shares them. `service`: of a
    job that serves requests. `lent`: what the job lent to services; it grows back once there is room again. `quota`: of
    its tenant, where quotas are in force. `eta`: when it starts, or, of a job that runs, ends; `sooner`: what would let
    it start sooner. `fault`: the class of a job's failure. `submitter`: the name of the person who submitted it.
    `scheduled`: the schedule, if the job is a run of one.
    """

    job_id: str
    name: str
    state: JobState
    code: str
    sentence: str
    numbers: dict[str, float] = {}
    holders: tuple[HolderSeen, ...] = ()
    ahead: int = 0
    estimate_at: float | None = None
    policy: str = ""
    held_back_for: str = ""
    closed: tuple[ClosedSeen, ...] = ()
    silent: tuple[SilentSeen, ...] = ()
    stopped_for: Cause | None = None
    size: dict[str, RoleSize] = {}
    resize: ResizeHow | None = None
    keeps_size_for: str = ""
    sized_for: Cause | None = None
    resized_for: Cause | None = None
    shares: tuple[ShareSeen, ...] = ()
    service: ServiceView | None = None
    noted: Cause | None = None
    lent: tuple[LentSeen, ...] = ()
    quota: QuotaSeen | None = None
    eta: Estimate | None = None
    sooner: tuple[Sooner, ...] = ()
    fault: FailureClass | None = None
    submitter: str = ""
    scheduled: ScheduledRun | None = None
