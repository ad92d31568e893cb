"""What must come to rest once nothing is wrong any more: sizes are reached, ranks that leave are gone, nothing is left.

Looked at from the outside: at the jobs and nodes as they are stored, and at what runs on the hosts.
"""

from collections.abc import Iterator, Mapping, Sequence

from tests.simulation.history import History
from tests.simulation.machine import Host
from tests.simulation.reasons import Reasons
from tests.simulation.witness import Witness
from tests.support.doubles.store import MemoryStore
from weft.domain.job import Job, JobState
from weft.domain.shares import WHOLE, Share
from weft.domain.sizes import how_resized
from weft.domain.spec import ResizeHow, Role
from weft.planning.growth import live_sizes
from weft.planning.lending.freed_holds import FIRST_SECONDS
from weftd.executor.runs import RunKey

REST_SECONDS = 40.0  # longer than any grace, and than it takes to elect a leader and to hear of all nodes
GIVEN_UP_SECONDS = 70.0  # longer than it takes until a rank is given up whose start hangs, and that should leave
NOT_BEGUN = ", though it never began"
SERVICES_FIRST = ", and no GPU that a service gave back is kept from it any more"
PATIENCE = {NOT_BEGUN: GIVEN_UP_SECONDS, SERVICES_FIRST: FIRST_SECONDS + REST_SECONDS}


class Free:
    """What is free on one node; of each GPU, by index: thousandths of its time, and bytes of its memory."""

    def __init__(self, gpus: dict[int, tuple[int, int]], cpus: float, memory: int) -> None:
        self.gpus, self.cpus, self.memory = gpus, cpus, memory

    def take(self, gpu: int, share: Share | None) -> None:
        time, memory = self.gpus.get(gpu, (0, 0))
        part = (time, memory) if share is None else (share.request, share.memory)
        self.gpus[gpu] = (time - part[0], memory - part[1])

    def holds(self, role: Role) -> int:
        """How many replicas of the role fit."""
        fits = [int((self.cpus + 1e-6) / role.cpus), self.memory // role.memory_bytes]
        if role.gpus:
            fits.append(sum(time == WHOLE for time, _ in self.gpus.values()) // role.gpus)
        if role.share is not None:
            share = role.share.held
            fits.append(sum(min(time // share.request, memory // share.memory) for time, memory in self.gpus.values()))
        return min(fits)


class Quiet:
    """Call `look` every second from when all is healed."""

    def __init__(
        self,
        store: MemoryStore,
        hosts: Sequence[Host],
        witness: Witness,
        history: History,
        reasons: Reasons,
    ) -> None:
        self._store = store
        self._reasons = reasons
        self._hosts = hosts
        self._witness = witness
        self._history = history
        self._since: dict[str, float] = {}  # what is not at rest, and since when
        self._failed: set[str] = set()

    def look(self, now: float) -> None:
        found = set(self._restless())
        self._since = {what: self._since.get(what, now) for what in sorted(found)}
        for what, since in self._since.items():
            seconds = next((long for why, long in PATIENCE.items() if what.endswith(why)), REST_SECONDS)
            if now - since > seconds and what not in self._failed:
                self._failed.add(what)
                self._history.fail(f"no rest: {what}, for {seconds:g} s after all was healed")

    def _restless(self) -> Iterator[str]:
        jobs = [job for job in self._store._jobs.values() if job.state.holding]
        for job in jobs:
            assert job.placement is not None
            if job.state is JobState.RUNNING:
                for one in job.placement.allocations:
                    if one.leaving:
                        begun = RunKey(job.id, job.epoch, one.rank) in self._witness.begun
                        yield f"rank {one.rank} of {job.id} leaves and does not go{'' if begun else NOT_BEGUN}"
            if job.next_placement is not None:
                yield f"{job.id} stops in version {job.version} and does not restart"
        has = {(job.id, job.epoch, one.rank) for job in jobs if job.placement for one in job.placement.allocations}
        for key in self._witness.alive:
            if (key.job_id, key.epoch, key.rank) not in has:
                yield f"{key} runs, and no job has it"
        yield from self._misinformed({job.id: job for job in jobs if job.state is JobState.RUNNING})
        yield from self._missized()
        yield from self._outdated()
        yield from self._reasons.unrecorded()

    def _misinformed(self, running: Mapping[str, Job]) -> Iterator[str]:
        """Runs that are told of other members than their job has."""
        for host in self._hosts:
            for run in host.runs():
                job, members = running.get(run.key.job_id), host.members.get(run.key)
                if run.live and members is not None and job is not None and job.placement is not None:
                    has = [one.rank for one in job.placement.staying]
                    if run.key.epoch == job.epoch and [one.rank for one in members.ranks] != has:
                        yield f"{run.key} is told of other ranks than {has}"

    def _missized(self) -> Iterator[str]:
        """Running jobs that have another size than they should have although there is room for it, in a pool in which
        no job waits or stops."""
        jobs = list(self._store._jobs.values())
        if any(job.state in (JobState.QUEUED, JobState.STOPPING) for job in jobs):
            return
        free = self._free(jobs)
        for job in jobs:
            if job.state is not JobState.RUNNING or job.placement is None or _is_sized(job):
                continue
            if any(one.leaving for one in job.placement.allocations):
                continue
            if job.spec.is_service and job.granted[_only_role(job)] > job.wanted[_only_role(job)]:
                continue  # an update is under way, see `_outdated`
            how = how_resized(job.spec)
            if how is ResizeHow.NEVER or (how is ResizeHow.RESTART and not job.size):
                continue
            if _has_room(job, free, whole=how is ResizeHow.RESTART):
                kept = "" if job.spec.is_service else SERVICES_FIRST
                yield f"{job.id} in version {job.version} has {job.granted} and should have {job.wanted}{kept}"

    def _outdated(self) -> Iterator[str]:
        """Services with replicas of an earlier revision, in a pool in which no job waits or stops, and nothing hinders:
        there is room for one more, or one can leave first."""
        jobs = list(self._store._jobs.values())
        if any(job.state in (JobState.QUEUED, JobState.STOPPING) for job in jobs):
            return
        free = self._free(jobs)
        for job in jobs:
            if job.state is not JobState.RUNNING or job.placement is None or not job.spec.is_service:
                continue
            staying = job.placement.staying
            old = [one.rank for one in staying if one.revision != job.revision]
            role = job.spec.roles[_only_role(job)]
            if old and (len(staying) > 1 or any(node.holds(role) for node in free)):
                yield f"{job.id} in version {job.version} keeps {old} of an earlier revision than {job.revision}"

    def _free(self, jobs: list[Job]) -> list[Free]:
        found: dict[str, Free] = {}
        for node, _ in self._store._nodes.values():
            if node.ready and not node.drained:
                capacity = node.capacity
                gpus = {gpu.index: (WHOLE, gpu.memory) for gpu in capacity.gpus}
                found[node.id] = Free(gpus, capacity.cpus, capacity.memory)
        for job in jobs:
            for one in job.held if job.state.holding else ():
                if one.node_id in found:
                    for gpu in one.gpus:
                        found[one.node_id].take(gpu, one.share)
                    found[one.node_id].cpus -= one.cpus
                    found[one.node_id].memory -= one.memory
        has = {(job.id, job.epoch) for job in jobs if job.state.holding}
        for key, alive in self._witness.alive.items():
            if alive.node_id in found and (key.job_id, key.epoch) not in has:
                for gpu in alive.gpus:
                    found[alive.node_id].gpus.pop(gpu, None)
        return list(found.values())


def _is_sized(job: Job) -> bool:
    """Has the job the size that it should have, or more on GPUs that idle?"""
    most = {one.role: one.most for one in live_sizes(job)} or job.wanted
    return all(job.wanted[role] <= count <= most[role] for role, count in job.granted.items())


def _only_role(job: Job) -> str:
    (name,) = job.spec.roles
    return name


def _has_room(job: Job, free: list[Free], *, whole: bool) -> bool:
    missing = {name: count - job.granted[name] for name, count in job.wanted.items()}
    more = {name: count for name, count in missing.items() if count > 0}
    if not more:
        return True
    if len(more) > 1:
        return False  # whether all fit together is more than is told here
    (name, count), *_ = more.items()
    role = job.spec.roles[name]
    fit = sum(node.holds(role) for node in free)
    return fit >= (count if whole else 1)
