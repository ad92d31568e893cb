"""The answer to a node: as many runs as fit one message, the shared part of each job once, and only what is new."""

from collections.abc import Callable, Container, Mapping, Sequence
from hashlib import blake2b

import msgspec
from msgspec import Struct, structs

from weft.messages.nodes import JobOrder, Leader, NodeDesired, NodeReported, RankOrder
from weftd.scheduler.thinking.state.orders import OrderBytes

ANSWER_BYTES_MAX = 6 << 20  # the bus carries 8 MiB; a node without an answer would end all its runs
ANSWER_RUNS_MAX = 8192  # on one node: its reports name every run and must fit a message too
DIGEST_BYTES = 12

_encode = msgspec.json.Encoder().encode

RankKey = tuple[str, int, int]  # job, epoch, rank


class Carried(Struct, frozen=True):
    """The orders for a node that one answer carries, and the jobs with ranks that it leaves out."""

    orders: tuple[JobOrder, ...]
    left_out: frozenset[str] = frozenset()  # jobs that must wait until all their ranks there fit the answer
    never: frozenset[str] = frozenset()  # jobs left out that would not fit an answer of their own


class Answers:
    """Builds the answers and remembers the last one of each node, so that an unchanged one costs next to nothing."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[JobOrder, ...], str]] = {}

    def forget(self) -> None:
        self._last.clear()

    def answer(
        self,
        report: NodeReported,
        orders: tuple[JobOrder, ...],
        *,
        leader: Leader | None = None,
        strict: bool = False,
    ) -> NodeDesired:
        """The answer to a report."""
        last = self._last.get(report.node_id)
        if last is None or last[0] != orders:
            last = self._last[report.node_id] = (orders, digest_of_jobs(orders))
        jobs, digest = last
        if report.holds == digest:
            return NodeDesired(seq=report.seq, leader=leader, digest=digest, unchanged=True, strict=strict)
        return NodeDesired(seq=report.seq, leader=leader, jobs=jobs, digest=digest, strict=strict)


def digest_of_jobs(jobs: Sequence[JobOrder]) -> str:
    """The digest of the bytes of the orders, sorted by job and rank: every leader has the same for equal orders."""
    in_order = [
        structs.replace(one, ranks=tuple(sorted(one.ranks, key=lambda rank: rank.rank)))
        for one in sorted(jobs, key=lambda one: (one.job_id, one.epoch))
    ]
    return blake2b(_encode(in_order), digest_size=DIGEST_BYTES).hexdigest()


def key_of(order: JobOrder, rank: RankOrder) -> RankKey:
    return order.job_id, order.epoch, rank.rank


def for_ranks(order: JobOrder, wanted: Callable[[RankOrder], bool]) -> JobOrder:
    """The order without the ranks that are not wanted; the same object if all are."""
    ranks = tuple(rank for rank in order.ranks if wanted(rank))
    return order if len(ranks) == len(order.ranks) else structs.replace(order, ranks=ranks)


def known_part(order: JobOrder, known: Container[RankKey]) -> JobOrder:
    """The order for the ranks that are `known`."""
    return for_ranks(order, lambda rank: key_of(order, rank) in known)


def carried(orders: Sequence[JobOrder], known: Container[RankKey], loads: Mapping[str, OrderBytes]) -> Carried:
    """As many of the ranks as one answer carries: all that the node has (`known`), then those of each other job that
    still fit."""
    free_capacity = _Room(loads)
    if free_capacity.take(orders):
        return Carried(tuple(orders))
    free_capacity = _Room(loads)
    there = [known_part(order, known) for order in orders]
    full = not free_capacity.take([order for order in there if order.ranks])
    found: list[JobOrder] = []
    left_out: dict[str, JobOrder] = {}
    for order, has in zip(orders, there, strict=True):
        new = _without(order, has)
        if not new.ranks or (not full and free_capacity.take([new])):
            found.append(order)
            continue
        left_out[order.job_id] = new
        if has.ranks:
            found.append(has)
    never = {job_id for job_id, new in left_out.items() if not _Room(loads).take([new])}
    return Carried(tuple(found), frozenset(left_out), frozenset(never))


def _without(order: JobOrder, other: JobOrder) -> JobOrder:
    """The order without the ranks of the other."""
    ranks = {rank.rank for rank in other.ranks}
    return for_ranks(order, lambda rank: rank.rank not in ranks)


class _Room:
    """The bytes and runs that one answer still has room for."""

    def __init__(self, loads: Mapping[str, OrderBytes]) -> None:
        self._loads = loads
        self._bytes = ANSWER_BYTES_MAX
        self._runs = ANSWER_RUNS_MAX
        self._jobs: set[str] = set()

    def take(self, orders: Sequence[JobOrder]) -> bool:
        """Take all ranks of `orders`, or none; returns whether they fit."""
        new_jobs = {order.job_id for order in orders} - self._jobs
        needed = sum(self._loads[job_id].shared for job_id in new_jobs)
        needed += sum(self._loads[order.job_id].rank * len(order.ranks) for order in orders)
        runs = sum(len(order.ranks) for order in orders)
        if needed > self._bytes or runs > self._runs:
            return False
        self._bytes -= needed
        self._runs -= runs
        self._jobs |= new_jobs
        return True
