"""Shares of GPUs that follow their use: a computing notebook gets more of its GPU, and less again afterwards.

Only shares of jobs with tuning `on` change, on nodes that enforce shares. A request grows when its ranks have used
nearly all of it for a while and the GPU has more: to what they use, at most to the limit. It shrinks when they hardly
use it: to what they use, at least to what the job asked for, or to its `tuning.share_min`. While jobs wait, no share
grows, and grown shares shrink back: a request is guaranteed, and free capacity is for waiting jobs. Shares that a user
set by `weft share` do not shrink.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from math import inf

from msgspec import Struct

from weft.domain.cluster import NOT_HELD_TO_SHARES, Node
from weft.domain.job import Allocation, Cause, CauseCode, Job, JobState
from weft.domain.shares import WHOLE, Share, thousandths
from weft.domain.spec import TuningMode
from weft.messages.asks import Reshare
from weft.messages.signals import Finding, NodeSampled
from weft.tuning.envelope import mode_of

WINDOW_SECONDS = 20.0
WINDOW_FULL = 0.8  # fraction of a window that must be measured
SAMPLES_MAX = 64  # of one rank
GROWS_AT, SHRINKS_AT = 0.9, 0.5  # used fraction of the request
MARGIN = 1.2  # multiple of the use
STEP_LEAST = 20  # thousandths: smaller changes are not made
COOL_DOWN_SECONDS = 30.0

_Rank = tuple[str, int, int]


class ResharedJobs(Struct, frozen=True, kw_only=True):
    """The shares to request, by job, and the advised shares of jobs whose tuning only advises."""

    shares: Mapping[str, Reshare] = {}
    findings: tuple[Finding, ...] = ()


class ShareTuner:
    """`tuning`: the pool's mode, for jobs that set none; off is final. Times are seconds on one clock."""

    def __init__(self, *, pool: str, tuning: TuningMode) -> None:
        self._pool = pool
        self._tuning = tuning
        self._used: dict[_Rank, deque[tuple[float, float]]] = {}  # when, and the part of the GPU
        self._rested: dict[str, float] = {}  # by job: end of its pause
        self._given: dict[str, int] = {}  # by job: the last request set here

    def observe(self, sampled: NodeSampled, *, now: float) -> None:
        if sampled.pool != self._pool:
            return
        for run in sampled.runs:
            if run.share is not None and run.share.used is not None:
                samples = self._used.setdefault((run.job_id, run.epoch, run.rank), deque(maxlen=SAMPLES_MAX))
                samples.append((now, run.share.used))

    def decide(self, holding: Iterable[Job], nodes: Iterable[Node], *, waiting: bool, now: float) -> ResharedJobs:
        """`waiting`: True if jobs of the pool wait for capacity."""
        holding = list(holding)
        # The shares of services follow their load.
        running = [job for job in holding if job.state is JobState.RUNNING and job.placement is not None]
        jobs = [job for job in running if not job.spec.is_service]
        self._forget(jobs)
        nodes = list(nodes)
        loose = {node.id for node in nodes if NOT_HELD_TO_SHARES in node.not_enforced}
        left = _left(holding, nodes)
        shares: dict[str, Reshare] = {}
        findings: list[Finding] = []
        for job in sorted(jobs, key=lambda job: job.seq):
            mode = mode_of(job, self._tuning)
            if mode is TuningMode.OFF or now < self._rested.get(job.id, -inf):
                continue
            if any(one.node_id in loose for one in job.held):
                continue
            asked = self._wanted(job, left, waiting=waiting, now=now)
            if asked is None:
                continue
            assert asked.cause is not None
            if mode is TuningMode.ON:
                shares[job.id] = asked
            findings.append(
                Finding(
                    code="share",
                    job_id=job.id,
                    sentence=f"{job.name}: {asked.cause.sentence}",
                    numbers=asked.cause.numbers,
                )
            )
        return ResharedJobs(shares=shares, findings=tuple(findings))

    def asked(self, shares: Mapping[str, Reshare], *, now: float) -> None:
        """Note that these commands are stored."""
        for job_id, share in shares.items():
            self._rested[job_id] = now + COOL_DOWN_SECONDS
            if share.request is not None:
                self._given[job_id] = share.request
            for key in [key for key in self._used if key[0] == job_id]:
                del self._used[key]  # its use with another share says little about its use now

    def _wanted(self, job: Job, left: dict[tuple[str, int], int], *, waiting: bool, now: float) -> Reshare | None:
        """Another share for one role of the job."""
        assert job.placement is not None
        for name, role in job.spec.roles.items():
            ranks = [one for one in job.placement.staying if one.role == name and one.share is not None]
            if role.share is None or not ranks:
                continue
            has = ranks[0].share
            assert has is not None, "only ranks with shares are looked at"
            base, share_min = role.share.held.request, job.spec.tuning.share_min
            is_ours = self._given.get(job.id) == has.request
            used = self._most_used(job, ranks, now)
            if waiting and is_ours and has.request > base:
                return _reshare(job, name, has, base, "jobs wait for room", used)
            if used is None:
                continue
            aim = thousandths(used * MARGIN)
            if used * WHOLE >= GROWS_AT * has.request and not waiting:
                room = min(left.get((one.node_id, one.gpus[0]), 0) // _on_one(ranks, one) for one in ranks)
                more = min(aim, has.limit, has.request + room)
                if more >= has.request + STEP_LEAST:
                    for one in ranks:
                        left[one.node_id, one.gpus[0]] -= more - has.request
                    return _reshare(job, name, has, more, "it uses all of it", used)
            less = max(1, aim, base if share_min is None else min(base, thousandths(share_min)))
            may_shrink = is_ours or share_min is not None
            if may_shrink and used * WHOLE <= SHRINKS_AT * has.request and less <= has.request - STEP_LEAST:
                return _reshare(job, name, has, less, "it uses little of it", used)
        return None

    def _most_used(self, job: Job, ranks: Iterable[Allocation], now: float) -> float | None:
        """The mean part of its GPU that the busiest rank used in the window; None if unknown for a rank."""
        most = 0.0
        for one in ranks:
            samples = [
                each for each in self._used.get((job.id, job.epoch, one.rank), ()) if each[0] > now - WINDOW_SECONDS
            ]
            if not samples or samples[-1][0] - samples[0][0] < WINDOW_FULL * WINDOW_SECONDS:
                return None
            most = max(most, sum(part for _, part in samples) / len(samples))
        return most

    def _forget(self, jobs: Iterable[Job]) -> None:
        epochs = {job.id: job.epoch for job in jobs}
        self._used = {key: samples for key, samples in self._used.items() if epochs.get(key[0]) == key[1]}
        self._rested = {job_id: until for job_id, until in self._rested.items() if job_id in epochs}
        self._given = {job_id: request for job_id, request in self._given.items() if job_id in epochs}


def _reshare(job: Job, role: str, has: Share, request: int, why: str, used: float | None) -> Reshare:
    sentence = f"{role}: {has.request / WHOLE:g} → {request / WHOLE:g} of a GPU: {why}"
    numbers = {"was": has.request / WHOLE, "becomes": request / WHOLE}
    if used is not None:
        numbers["used"] = round(used, 3)
        sentence += f" ({used:.0%} of the GPU's time lately)"
    cause = Cause(code=CauseCode.SHARE_USED, sentence=sentence, numbers=numbers)
    return Reshare(request=request, role=role, epoch=job.epoch, instead_of=has.request, cause=cause)


def _left(jobs: Iterable[Job], nodes: Iterable[Node]) -> dict[tuple[str, int], int]:
    """Thousandths that no job holds, by GPU."""
    left = {(node.id, gpu.index): WHOLE for node in nodes for gpu in node.capacity.gpus}
    for job in jobs:
        for one in job.held:
            for gpu in one.gpus:
                if (one.node_id, gpu) in left:
                    left[one.node_id, gpu] -= WHOLE if one.share is None else one.share.request
    return left


def _on_one(ranks: Iterable[Allocation], other: Allocation) -> int:
    """Number of these ranks on the GPU of `other`."""
    return sum((one.node_id, one.gpus) == (other.node_id, other.gpus) for one in ranks)
