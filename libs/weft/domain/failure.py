"""Classes of failures: which fault ended a try of a job, and which nodes its next try avoids."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct

from weft.domain.cause import Cause, CauseCode

FAILURES_KEPT = 2
BLAMED_MAX = 8  # if nobody knows which node of a larger gang failed, none of them is avoided
_SIGKILL, _SIGBUS = 137, 135


class FailureClass(StrEnum):
    """The fault that ended a try."""

    PROGRAM = "program"  # its own exit status, a command that is not there
    MEMORY = "memory"  # it used more memory than it asked for
    LIMIT = "limit"  # its time limit
    GPU = "gpu"  # hardware
    NETWORK = "network"  # its ranks lost their connection to each other, and none of them failed before
    NODE = "node"  # an image, a mount or a disk of its node, or the node itself
    STORE = "store"  # Weft itself, or the object store of its data
    UNKNOWN = "unknown"  # it vanished, or somebody killed it


_C, _F = CauseCode, FailureClass
_CLASSES: Mapping[CauseCode, FailureClass] = {
    _C.EXITED: _F.PROGRAM,
    _C.RANK_ENDED: _F.PROGRAM,
    _C.CANNOT_START: _F.PROGRAM,
    _C.UNCONTROLLED: _F.PROGRAM,
    _C.NEVER_READY: _F.PROGRAM,
    _C.SIZE_FAILED: _F.PROGRAM,
    _C.OUT_OF_MEMORY: _F.MEMORY,
    _C.TIME_LIMIT: _F.LIMIT,
    _C.GPU_FAILED: _F.GPU,
    _C.START_FAILED: _F.NODE,
    _C.START_TIMEOUT: _F.NODE,
    _C.STOP_TIMEOUT: _F.NODE,
    _C.PORT_TAKEN: _F.NODE,
    _C.OBJECT_STORE: _F.STORE,
    _C.NODE_LOST: _F.NODE,
    _C.NODE_STOPPED: _F.NODE,
    _C.NOT_STORED: _F.STORE,
    _C.DECISION_FAILED: _F.STORE,
    _C.RUN_LOST: _F.UNKNOWN,
    _C.HUNG: _F.UNKNOWN,
}
_AVOIDED = frozenset({_F.NODE, _F.NETWORK, _F.UNKNOWN})
TIMED_OUT = "timed_out"  # the number of a cause: the last lines of the rank show that it waited for others in vain
_TIMEOUTS = (
    ("Watchdog caught collective operation timeout", "a collective of NCCL timed out"),
    ("Some NCCL operations have failed or timed out", "a collective of NCCL timed out"),
    ("Timeout at NCCL work", "a collective of NCCL timed out"),
    ("[Gloo] Timed out waiting", "a collective of Gloo timed out"),
    ("ncclRemoteError", "the connection of NCCL to another rank broke"),
    ("Connection closed by peer", "the connection to another rank broke"),
    ("RendezvousTimeoutError", "not all ranks came to the rendezvous of torch in time"),
    ("DistStoreError", "a rank did not reach the store of torch in time"),
)


FAULTS: Mapping[FailureClass, str] = {
    FailureClass.PROGRAM: "its program failed",
    FailureClass.MEMORY: "it needs more memory than it asks for",
    FailureClass.LIMIT: "it reached its time limit",
    FailureClass.GPU: "a GPU failed",
    FailureClass.NODE: "its node failed it",
    FailureClass.NETWORK: "its ranks lost each other",
    FailureClass.STORE: "Weft could not store or decide what followed, or an object store did not give its data",
    FailureClass.UNKNOWN: "nothing shows whose fault it was",
}
"""Each class in words."""


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A try of a job that failed. `nodes`: those of the ranks that failed, as far as they are known; `step`: the last
    step that it reported."""

    kind: FailureClass
    nodes: tuple[str, ...] = ()
    step: float | None = None


def timeout_in(lines: Iterable[str]) -> str:
    """The time-out of NCCL, Gloo or torch that these lines of a rank show; empty if they show none.

    The rank that reports it is rarely the one to blame: it waited for another rank.
    """
    known = list(lines)
    return next((meaning for pattern, meaning in _TIMEOUTS if any(pattern in line for line in known)), "")


def class_of_cause(cause: Cause) -> FailureClass | None:
    """The class of a failure with this cause; None if it is no failure, as where a job was pre-empted.

    A program that was killed by SIGKILL or SIGBUS may be a victim: of a full disk, of a person, of the kernel.
    """
    if TIMED_OUT in cause.numbers:
        return _F.NETWORK
    kind = _CLASSES.get(cause.code)
    if kind is _F.PROGRAM and cause.numbers.get("exit_code") in (_SIGKILL, _SIGBUS):
        return _F.UNKNOWN
    return kind


def blamed_of(cause: Cause, nodes: Mapping[int, str]) -> tuple[str, ...]:
    """The nodes of the ranks that failed, of all `nodes` by rank; empty if nobody knows which of many failed."""
    rank = None if TIMED_OUT in cause.numbers else cause.numbers.get("rank")
    if rank is not None and rank in nodes:
        return (nodes[int(rank)],)
    every = sorted(set(nodes.values()))
    if cause.by in every:
        return (cause.by,)
    return tuple(every) if len(every) <= BLAMED_MAX else ()


def avoided(failures: Sequence[Failure]) -> tuple[str, ...]:
    """The nodes that the next try avoids while it fits elsewhere: those of its latest failures that are not its own
    fault.

    The same step on different nodes is the program, and the same node at different steps is the node (as NVIDIA's
    resiliency extension judges what recurs).
    """
    last = failures[-FAILURES_KEPT:]
    found = {node for each in last if each.kind in _AVOIDED for node in each.nodes}
    if len(last) == FAILURES_KEPT:
        one, other = last
        known = one.step is not None and other.step is not None
        shared = set(one.nodes) & set(other.nodes)
        if known and one.step == other.step and one.nodes and other.nodes and not shared:
            return ()
        if known and one.step != other.step and {one.kind, other.kind} <= {*_AVOIDED, _F.PROGRAM}:
            found |= shared
    return tuple(sorted(found))
