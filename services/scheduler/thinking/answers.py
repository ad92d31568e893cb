"""The answer to a node: as many runs as fit one message, the shared part of each job once, and only what is new."""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import msgspec
from msgspec import Struct, structs

from libs.messages.nodes import JOBS, JobOrder, Leader, NodeDesired, NodeReported, StartRun
from services.scheduler.thinking.orders import OrderBytes, as_jobs

ANSWER_BYTES_MAX = 6 << 20  # the bus carries 8 MiB; a node without an answer would end all its runs
ANSWER_RUNS_MAX = 8192  # on one node: its reports name every run and must fit a message too
DIGEST_BYTES = 12

_encode = msgspec.json.Encoder().encode


class Carried(Struct, frozen=True):
    """The runs of a node that one answer carries, and the jobs that it leaves out."""

    runs: tuple[StartRun, ...]
    left_out: frozenset[str] = frozenset()  # jobs that must wait until all their ranks there fit the answer
    never: frozenset[str] = frozenset()  # jobs left out that would not fit an answer of their own


class Answers:
    """Builds the answers and remembers the last one of each node, so that an unchanged one costs next to nothing."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[tuple[StartRun, ...], tuple[JobOrder, ...], str]] = {}

    def forget(self) -> None:
        self._last.clear()

    def answer(
        self,
        report: NodeReported,
        runs: tuple[StartRun, ...],
        orders: Mapping[str, JobOrder],
        *,
        leader: Leader | None = None,
        strict: bool = False,
    ) -> NodeDesired:
        """The answer to a report, in the form that the executor reads."""
        if JOBS not in report.reads:
            return NodeDesired(seq=report.seq, runs=runs, leader=leader, strict=strict)
        last = self._last.get(report.node_id)
        if last is None or last[0] != runs:
            jobs = as_jobs(runs, orders)
            last = self._last[report.node_id] = (runs, jobs, digest_of_jobs(jobs))
        _, jobs, digest = last
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


def carried(
    runs: Sequence[StartRun], known: Sequence[bool], loads: Mapping[str, OrderBytes], *, shared: bool
) -> Carried:
    """As many of `runs` as one answer carries: all that the node has (`known`), then the other jobs that still fit.

    `shared`: the node reads orders that hold the shared part of a job's ranks once.
    """
    room = _Room(loads, shared=shared)
    if room.take(runs):
        return Carried(tuple(runs))
    room = _Room(loads, shared=shared)
    kept = [run for run, has in zip(runs, known, strict=True) if has]
    full = not room.take(kept)
    new: dict[str, list[StartRun]] = {}
    for run, has in zip(runs, known, strict=True):
        if not has:
            new.setdefault(run.job_id, []).append(run)
    left_out: set[str] = set()
    for job_id, of_job in new.items():
        if not full and room.take(of_job):
            kept += of_job
        else:
            left_out.add(job_id)
    never = {job_id for job_id in left_out if not _Room(loads, shared=shared).take(new[job_id])}
    return Carried(tuple(kept), frozenset(left_out), frozenset(never))


class _Room:
    """The bytes and runs that one answer still has room for."""

    def __init__(self, loads: Mapping[str, OrderBytes], *, shared: bool) -> None:
        self._loads = loads
        self._shared = shared
        self._bytes = ANSWER_BYTES_MAX
        self._runs = ANSWER_RUNS_MAX
        self._jobs: set[str] = set()

    def take(self, runs: Sequence[StartRun]) -> bool:
        """Take all of `runs`, or none; returns whether they fit."""
        new_jobs = {run.job_id for run in runs} - self._jobs
        needed = sum(self._rank_bytes(run) for run in runs)
        if self._shared:
            needed += sum(self._loads[job_id].shared for job_id in new_jobs)
        if needed > self._bytes or len(runs) > self._runs:
            return False
        self._bytes -= needed
        self._runs -= len(runs)
        self._jobs |= new_jobs
        return True

    def _rank_bytes(self, run: StartRun) -> int:
        load = self._loads[run.job_id]
        return load.rank if self._shared else load.alone
