"""Why a step of a job was taken, for programs and for people."""

from enum import StrEnum

from msgspec import Struct


class CauseCode(StrEnum):
    """Why a step was taken. Stable: people and programs match on these."""

    SUBMITTED = "submitted"
    FITS = "fits"  # there was room
    NODE_REPORTED = "node-reported"  # a node saw it happen
    EXITED = "exited"  # every rank ended with status 0, or one with another
    OUT_OF_MEMORY = "out-of-memory"  # a rank was killed, as it used more memory than it asked for
    START_FAILED = "start-failed"  # image missing, command not found, …
    CANNOT_START = "cannot-start"  # the same, where another try on that node would end the same way
    OBJECT_STORE = "object-store"  # an object store did not give the data of a run, or take its outputs
    PORT_TAKEN = "port-taken"  # something else listens where the gang should meet
    START_TIMEOUT = "start-timeout"
    ORDERS_FULL = "orders-full"  # the answer to its node has no room for it
    RUN_LOST = "run-lost"  # the node no longer knows the run, or how it ended
    NODE_STOPPED = "node-stopped"  # the node itself ended the run: it was cut off, or shut down
    UNCONTROLLED = "uncontrolled"  # it used a GPU outside its share, in a pool or on a node that ends such jobs
    RANK_ENDED = "rank-ended"  # one rank of a gang failed, so the others must stop
    TIME_LIMIT = "time-limit"
    STOP_TIMEOUT = "stop-timeout"  # a node could not end it in time: what still runs there keeps its GPUs
    PREEMPTED = "preempted"
    UPSCALED = "upscaled"  # a rank has more CPUs, memory or network: that holds it back
    RECLAIMED = "reclaimed"  # a rank has less of what it leaves unused
    REBALANCED = "rebalanced"  # one rank gave to another of the same job
    KEPT = "kept"  # what was tried paid: the limits or the size stay
    OUTSCALED = "outscaled"  # one more replica of the role that holds it back is tried
    ROLLED_BACK = "rolled-back"  # what was tried did not pay: it is as before, as far as there is room
    MOVED = "moved"  # it runs faster elsewhere, by more than the move costs
    NODE_LOST = "node-lost"
    NODE_DRAINED = "node-drained"  # a person empties its node: it goes elsewhere
    HUNG = "hung"  # none of its ranks shows a sign of work
    WENT_ON = "went-on"  # it counts as hung no longer
    HELD_IDLE = "held-idle"  # uses none of its GPUs, and is stopped soon if that goes on
    IDLE_STOPPED = "idle-stopped"  # used none of its GPUs for longer than it may
    GPU_FAILED = "gpu-failed"  # a GPU that it holds is out of use: it goes elsewhere
    CANCEL_ASKED = "cancel-asked"
    STOPPED_EARLY = "stopped-early"  # other elements of its sweep were better at the same step
    REQUEUE_ASKED = "requeue-asked"
    PRIORITY_ASKED = "priority-asked"
    SCALE_ASKED = "scale-asked"
    SHARE_ASKED = "share-asked"
    SHARE_USED = "share-used"  # a share of a GPU follows its use
    PARTITIONED = "partitioned"  # the partition planner gave it another size
    GREW = "grew"  # ranks joined
    SHRANK = "shrank"  # ranks leave
    RANKS_LEFT = "ranks-left"  # ranks that were to leave are gone
    CORE_DONE = "core-done"  # its core, or the roles of `done_when`, ended with status 0: the other ranks stop
    RANK_LOST = "rank-lost"  # a rank beyond the core ended: the job goes on without it
    REPLICA_ENDED = "replica-ended"  # a replica of a service ended, and is started again
    NEVER_READY = "never-ready"  # no replica of a service became ready
    LOAD = "load"  # as many replicas, or as much of a GPU, as the requests to a service need
    UPDATE_ASKED = "update-asked"
    ENTERED = "entered"  # a person got a shell, a command or a connection in one of its runs
    LEFT = "left"  # that is over
    PROCESS_KILLED = "process-killed"  # the kernel killed a process of a run for memory, and the run went on
    OUTPUT_WAITS = "output-waits"  # the disk of its node takes nothing: its output waits for room
    OUTPUT_LOST = "output-lost"  # output that waited for room when its run ended was dropped
    SHM_FULL = "shm-full"  # its /dev/shm was full when it was killed by SIGBUS
    UPDATE_FAILED = "update-failed"  # a replica of the new revision did not become ready: the one before comes back
    REPLACED = "replaced"  # a replica of the revision before leaves, since one of the new revision is ready
    OVER_QUOTA = "over-quota"  # its tenant or group holds as much as it may
    QUOTA_RECLAIMED = "quota-reclaimed"  # gives back what its tenant borrowed of another's guarantee
    LENT = "lent"  # gives way to a service that needs more than what is free
    PAID_BACK = "paid-back"  # a service needs no longer what it had borrowed
    SIZE_FAILED = "size-failed"  # it ended soon after it took another size: it goes back to the size before
    NO_ROOM = "no-room"  # does not fit what is free now
    NO_NODES = "no-nodes"  # the pool has no node that takes work
    TOO_BIG = "too-big"  # would not fit the pool even if it were empty
    BACKOFF = "backoff"  # waits before its next try
    MAKING_ROOM = "making-room"  # jobs it pre-empts are stopping
    HELD_BACK = "held-back"  # would fit, but an older job ahead of it needs the room
    STILL_RUNS = "still-runs"  # a node still has a run of an earlier epoch, and two never run at once
    STORE_RESTORED = "store-restored"  # the store went back in time: what ran since must have ended first
    DEPENDENCY = "dependency"  # waits for what becomes of another job
    DEPENDENCY_FAILED = "dependency-failed"  # what it waited for can no longer be
    SINGLETON = "singleton"  # an earlier job of its name comes first
    ARRAY_FULL = "array-full"  # its array runs no more elements at once
    NOT_STORED = "not-stored"  # what followed for it was refused by the store
    DECISION_FAILED = "decision-failed"  # the scheduler has a mistake that shows each time it decides about it
    OTHER = "other"  # told by a later version, with a code that this one does not know

    @classmethod
    def _missing_(cls, value: object) -> "CauseCode":
        return cls.OTHER


CANCELS = frozenset({CauseCode.CANCEL_ASKED, CauseCode.STOPPED_EARLY, CauseCode.IDLE_STOPPED})
"""Why a job that stops is cancelled, whatever it is that stops it otherwise."""

HELD_FOR = frozenset({CauseCode.DEPENDENCY, CauseCode.SINGLETON, CauseCode.ARRAY_FULL})
"""Why a waiting job does not stand in the queue: other jobs come first, whatever room there is."""


class Cause(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why, for programs (`code`, `by`, `numbers`) and for people (`sentence`). `by` is a job, node or tenant id."""

    code: CauseCode
    sentence: str = ""
    by: str = ""
    numbers: dict[str, float] = {}
