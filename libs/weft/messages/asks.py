"""Asks: the changes to jobs and nodes that users and the reallocator want, on their way to the scheduler."""

from enum import StrEnum
from typing import ClassVar

from msgspec import Struct

from weft.domain.cluster import Drain
from weft.domain.job import Cause
from weft.domain.labels import Marking
from weft.domain.tenants import actor_text
from weft.messages import Message


class AskKind(StrEnum):
    SUBMIT = "submit"
    CANCEL = "cancel"
    REQUEUE = "requeue"
    PRIORITISE = "prioritise"
    DRAIN = "drain"
    RESUME = "resume"
    RETURN = "return"
    TUNE = "tune"
    SCALE = "scale"
    SHARE = "share"
    UPDATE = "update"
    ENTER = "enter"
    MARK = "mark"


class RankTuning(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits that one rank should have from now on; None leaves one as it is. Cores, bytes, bytes per second."""

    rank: int
    cpus: float | None = None
    memory: int | None = None
    egress: int | None = None


class Tune(Struct, frozen=True, kw_only=True):
    """Other limits for ranks of a running job, and why. Done whole or not at all: only in that epoch, and only if the
    ranks' nodes have the additional room."""

    epoch: int
    ranks: tuple[RankTuning, ...]
    cause: Cause


class Scale(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The size that a job should have from now on: replicas by role, a role that is not named as it is.

    `epoch`: only in that epoch; None: in any. `instead_of`: only if the job should still have these replicas, so that
    no plan undoes what a user asked for meanwhile. `gpu_model`: the model of GPUs on which it should run from now on;
    empty: as it is. `cause`: why, if not its user asks.
    """

    size: dict[str, int]
    gpu_model: str = ""
    epoch: int | None = None
    instead_of: dict[str, int] = {}
    cause: Cause | None = None


class Reshare(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The share of a GPU that each rank of a running job should have from now on, in thousandths; None leaves one as it
    is. `role`: of the ranks of that role; empty: of the only one that has shares. `epoch`: only in that epoch; None: in
    any. `instead_of`: only if they still have this request, so that nothing undoes what a user asked for meanwhile.
    `cause`: why, if not its user asks."""

    request: int | None = None
    limit: int | None = None
    role: str = ""
    epoch: int | None = None
    instead_of: int | None = None
    cause: Cause | None = None


class Update(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the replicas of a service should run from now on; None leaves one as it is. `env` is added to what there is:
    an empty text takes a variable away."""

    image: str | None = None
    command: tuple[str, ...] | None = None
    env: dict[str, str] | None = None


class Entrance(Struct, frozen=True, kw_only=True):
    """A person entered a run of a job in that epoch, or left it: for its story alone."""

    epoch: int
    cause: Cause


class Ask(Struct, frozen=True, kw_only=True):
    """One ask, stored until the scheduler has done it. `subject_id` is a job's or a node's id.

    `tune`, `scale`, `share` and `update` come with the kinds of those names, `entry` with `enter`. Only the reallocator
    tunes; it and users scale and share. `why`: of a cancel, if its user did not ask for it. `gpu`: the GPU
    that a `return` has used again; None: the node and all of its GPUs. `drain`: why, and for how long, a node is
    drained. `marking`: other labels and taints of a node. `who`: the name of the person who asked; empty for a token.
    """

    id: int
    kind: AskKind
    subject_id: str
    tenant: str
    at: float
    priority: int = 0
    tune: Tune | None = None
    scale: Scale | None = None
    share: Reshare | None = None
    update: Update | None = None
    entry: Entrance | None = None
    why: Cause | None = None
    gpu: int | None = None
    drain: Drain | None = None
    marking: Marking | None = None
    who: str = ""

    @property
    def by(self) -> str:
        return actor_text(self.tenant, self.who)


class AskStored(Message, frozen=True, kw_only=True):
    """Gateway or reallocator → scheduler: an ask was stored, read it now."""

    subject: ClassVar[str] = "weft.asks.{pool}"
    pool: str


class OutboxFilled(Message, frozen=True, kw_only=True):
    """Gateway or scheduler → relay: events wait in the outbox, publish them now."""

    subject: ClassVar[str] = "weft.outbox"


class SubmitAnswered(Struct, frozen=True, kw_only=True):
    """The reply to a request on `weft.submit`, whose payload is the specification itself (JSON or YAML).

    Headers: `Authorization: Bearer TOKEN`, `Idempotency-Key`, `Content-Type`. `retry_after` above 0: the seconds after
    which the request may be repeated.
    """

    job_id: str = ""
    created: bool = False
    error: str = ""
    field: str = ""
    retry_after: float = 0.0
