"""Waiting jobs: who is placed, for whom room is made, for whom room is kept, and why the others go on waiting."""

from collections.abc import Sequence

from libs.domain.job import Allocation, Cause, CauseCode, Job, JobEvent, JobState, Placement, Step
from libs.domain.quantity import duration_text
from libs.messages.nodes import RunSeen, RunState
from libs.planning.preemption import Clearing, Holder, clearing_for
from libs.planning.room import NoRoom, Shape, gpus_of
from services.scheduler import lives
from services.scheduler.orders import master_port
from services.scheduler.picture import Picture

_S, _E, _C = JobState, JobEvent, CauseCode

LOOK_AGAIN_SECONDS = 1.0  # between two looks for whom to pre-empt for the same job
STOPPING_PRIORITY = -(10**9)  # whoever is stopping anyhow is asked before all others


class Waiting:
    """`patience_seconds`: a job that waited this long holds back the smaller ones behind it.

    At most `steps_max` steps are decided at once; the rest in the next tick.
    """

    def __init__(self, picture: Picture, *, patience_seconds: float, steps_max: int) -> None:
        self._picture = picture
        self._patience_seconds = patience_seconds
        self._steps_max = steps_max
        self._unfit: dict[Shape, tuple[int, Cause]] = {}  # what did not fit, and how often room had grown by then
        self._making_room: dict[str, Clearing] = {}  # what is being cleared for whom
        self._looked_at: dict[str, float] = {}

    def decide(self, now: float, *, why_not_yet: Cause | None = None) -> list[Step]:
        """Steps for those who wait. `why_not_yet`: nothing is placed now, and this is why."""
        picture = self._picture
        for job_id in sorted(one for one in picture.backing_off if picture.jobs[one].not_before <= now):
            picture.backing_off.remove(job_id)
            picture.queue.add(picture.jobs[job_id])
            picture.unexplained.add(job_id)
        self._mind_strays()
        for of_waiting in (self._making_room, self._looked_at):
            for job_id in [job_id for job_id in of_waiting if job_id not in picture.queue]:
                del of_waiting[job_id]
        if why_not_yet is not None:
            return self._put_off(why_not_yet, now)
        steps, causes = self._place_waiting(now)
        return steps + self._explain_waiting(causes, now)

    def _mind_strays(self) -> None:
        """A job that a node still runs, though nobody placed it there, is not placed before that has ended."""
        picture = self._picture
        strays = picture.strays_by_job()
        for job_id in sorted(picture.kept_out - strays.keys()):
            picture.kept_out.remove(job_id)
            picture.queue.add(picture.jobs[job_id])
            picture.unexplained.add(job_id)
        for job_id in strays:
            if job_id in picture.queue:
                picture.queue.remove(job_id)
                picture.kept_out.add(job_id)
                picture.unexplained.add(job_id)

    def _put_off(self, cause: Cause, now: float) -> list[Step]:
        """Say why nothing is placed, to whom nothing was said yet; to all where it is for long. All are told again."""
        steps: list[Step] = []
        for job_id in sorted(self._picture.unexplained):
            job = self._picture.jobs.get(job_id)
            if len(steps) >= self._steps_max or job is None or job.state is not _S.QUEUED:
                continue
            known = job.waiting_for
            if known is None or (cause.code is _C.STORE_RESTORED and known.code is not cause.code):
                steps += self._picture.go(job, _E.WAITING, cause, now)
        return steps

    def _place_waiting(self, now: float) -> tuple[list[Step], dict[Shape, Cause]]:
        """Places for those who fit, in order; and for each shape that does not, why."""
        steps: list[Step] = []
        causes: dict[Shape, Cause] = {}
        reserved: list[str] = []
        grown = 0
        walk = self._picture.queue.served()
        while len(steps) < self._steps_max and (head := walk.next()) is not None:
            job, shape = self._picture.jobs[head[0]], head[1]
            found = self._find(shape, remember=not reserved)
            if not isinstance(found, Cause):
                steps += self._place(job, found, now)
                walk.placed()
                continue
            causes[shape] = _held_back(found) if reserved else found
            walk.blocked()
            steps += self._make_room(job, shape, now)
            if not reserved and (reserved := self._claim(job, shape, now)):
                grown = self._picture.room.grown
                self._picture.room.close(reserved)
        if reserved:
            self._picture.room.reopen(reserved)
            self._picture.room.grown = grown
        return steps, causes

    def _find(self, shape: Shape, *, remember: bool) -> tuple[Allocation, ...] | Cause:
        """Ask the room; what did not fit need not be asked again until something was given back."""
        known = self._unfit.get(shape)
        if remember and known is not None and known[0] == self._picture.room.grown:
            return known[1]
        found = self._picture.room.place(shape)
        if not isinstance(found, NoRoom):
            return found
        if remember:
            self._unfit[shape] = (self._picture.room.grown, found.cause)
        return found.cause

    def _place(self, job: Job, allocations: tuple[Allocation, ...], now: float) -> list[Step]:
        address = self._picture.nodes[allocations[0].node_id].address
        port = master_port(job, ranks=len(allocations), taken=self._picture.ports.get(address, ()))
        why = _why_there(allocations)
        placement = Placement(allocations=allocations, master_address=address, master_port=port, why=why)
        return self._picture.go(job, _E.PLACED, Cause(code=_C.FITS, sentence=why), now, placement=placement)

    def _make_room(self, job: Job, shape: Shape, now: float) -> list[Step]:
        """Pre-empt for a job that does not fit. While those who give way are stopping, no others are asked."""
        if self._leaving_for(job) or now < self._looked_at.get(job.id, 0.0) + LOOK_AGAIN_SECONDS:
            return []
        self._making_room.pop(job.id, None)
        self._looked_at[job.id] = now
        holders = self._who_may_leave(job)
        room = self._picture.room
        clearing = clearing_for(shape, priority=job.priority, room=room, holders=holders) if holders else None
        if clearing is None:
            return []
        self._making_room[job.id] = clearing
        steps: list[Step] = []
        names: list[str] = []
        for held in [self._picture.jobs[victim.job_id] for victim in clearing.victims]:
            names.append(held.id)
            sentence = f"pre-empted by {job.id}: priority {job.priority} over {held.priority}"
            steps += lives.stop(self._picture, held, Cause(code=_C.PREEMPTED, sentence=sentence, by=job.id), now)
        sentence = f"room is being made: {', '.join(names)} must stop first"
        cause = Cause(code=_C.MAKING_ROOM, sentence=sentence, numbers={"stopping": float(len(clearing.victims))})
        self._picture.unexplained.discard(job.id)
        return steps + self._picture.go(job, _E.WAITING, cause, now)

    def _leaving_for(self, job: Job) -> list[Job]:
        """Who gives way for `job` and has not gone yet. One that came back meanwhile is no longer leaving."""
        clearing = self._making_room.get(job.id)
        asked = [self._picture.jobs.get(victim.job_id) for victim in clearing.victims] if clearing else []
        return [held for held in asked if held is not None and held.state is _S.STOPPING]

    def _who_may_leave(self, job: Job) -> list[Holder]:
        """Whoever is stopping anyhow, before all others; then those that `job` may pre-empt."""
        holders: list[Holder] = []
        for held in (self._picture.jobs[job_id] for job_id in self._picture.runs.holding):
            stopping = held.state is _S.STOPPING
            if held.placement is not None and (stopping or (held.spec.preemptible and held.priority < job.priority)):
                holders.append(
                    Holder(
                        job_id=held.id,
                        priority=STOPPING_PRIORITY if stopping else held.priority,
                        started_at=held.started_at or held.since,
                        allocations=held.placement.allocations,
                    )
                )
        return holders

    def _claim(self, job: Job, shape: Shape, now: float) -> list[str]:
        """Nodes kept from the jobs behind it: those being cleared for it or, once it waited long, the emptiest."""
        if self._leaving_for(job):
            return list(self._making_room[job.id].nodes)
        if now - job.since < self._patience_seconds:
            return []
        return self._emptiest(shape)

    def _emptiest(self, shape: Shape) -> list[str]:
        """The nodes that would hold the whole shape if they were empty, those with most GPUs free first."""
        wanted = gpus_of(shape)
        nodes = sorted(self._picture.room.open_nodes, key=lambda room: (-len(room.free), room.node.id))
        claimed: list[str] = []
        for room in nodes:
            if wanted <= 0:
                break
            if room.models:
                claimed.append(room.node.id)
                wanted -= len(room.models)
        return claimed

    def _explain_waiting(self, causes: dict[Shape, Cause], now: float) -> list[Step]:
        """Say once why each job waits that was not placed; `weft explain` says it anew whenever asked."""
        steps: list[Step] = []
        strays = self._picture.strays_by_job()
        for job_id in sorted(self._picture.unexplained):
            if len(steps) >= self._steps_max:
                break
            job = self._picture.jobs.get(job_id)
            if job is None or job.state is not _S.QUEUED:
                self._picture.unexplained.discard(job_id)
                continue
            if job_id in self._picture.backing_off:
                sentence = f"tries again in {duration_text(job.not_before - now)}"
                cause = Cause(code=_C.BACKOFF, sentence=sentence, numbers={"not_before": job.not_before})
            elif job_id in self._picture.kept_out:
                cause = _still_runs(*strays[job_id])
            elif (known := causes.get(self._picture.queue.shape(job_id))) is not None:
                cause = known
            else:
                continue  # its turn comes in the next tick
            self._picture.unexplained.discard(job_id)
            if job.waiting_for is None or job.waiting_for.code is not cause.code:
                steps += self._picture.go(job, _E.WAITING, cause, now)
        return steps


def _still_runs(node_id: str, run: RunSeen) -> Cause:
    what = "has ended, which must be taken note of first" if run.state is RunState.EXITED else "still runs"
    sentence = f"rank {run.rank} of epoch {run.epoch} {what} on node {node_id}: two epochs never run at once"
    return Cause(code=_C.STILL_RUNS, sentence=sentence, by=node_id, numbers={"epoch": float(run.epoch)})


def _held_back(cause: Cause) -> Cause:
    sentence = f"an older or more important job ahead of it needs the room; besides, it {cause.sentence}"
    return Cause(code=_C.HELD_BACK, sentence=sentence, numbers=cause.numbers)


def _why_there(allocations: Sequence[Allocation]) -> str:
    nodes = list(dict.fromkeys(allocation.node_id for allocation in allocations))
    gpus = sum(len(allocation.gpus) for allocation in allocations)
    if len(nodes) == 1:
        what = f"{gpus} GPU{'' if gpus == 1 else 's'}" if gpus else "its CPUs and memory"
        return f"{nodes[0]} is the fullest node that still had {what} free together"
    return f"no node holds all {len(allocations)} ranks; these {len(nodes)} nodes, the emptiest first, are the fewest"
