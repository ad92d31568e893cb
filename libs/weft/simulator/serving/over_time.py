"""All services of a simulation beside its jobs: each takes free GPUs, then extras of elastic jobs, and gives them back.

What they hold is taken from the same room as what jobs hold, by the same placement. Elastic jobs lend only where a
partition planner sizes them: it lets them grow again, but not onto a GPU that was returned less than `rest_s` ago.
Where the order of service lets jobs be preempted, services come before all of them.

Replicas with shares of one GPU divide all of its time by their shares, as if each were always busy: none gets less than
its share, and none more than its limit. Beside training that takes what is left, each gets its share alone.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from zlib import crc32

import numpy as np
from msgspec import Struct, structs

from weft.domain.cluster import Request
from weft.domain.job import Allocation
from weft.domain.shares import Share
from weft.domain.spec import Kind
from weft.planning.finding import find
from weft.planning.preemption import by_job, select_victims
from weft.planning.resource_request import PlacementRequest, RoleRequest
from weft.planning.scores import TYPICAL, GpuKey
from weft.serving.loads import Autoscaler, Goal
from weft.serving.policies import autoscaler
from weft.simulator.counted import Counted, Trajectory
from weft.simulator.event_queue import EventQueue, What
from weft.simulator.job import SimulatedJob
from weft.simulator.lives import Lives
from weft.simulator.serving.rates import arrivals_of, drawn
from weft.simulator.serving.served import SimulatedReplica, SimulatedService
from weft.simulator.serving.service import WHOLE, Services, TraceService
from weft.simulator.sizing import SizesOverTime

ROLE = "replica"
STARTS = 1000  # drawn start times of a service, which are used again after that
BEFORE_ALL = -1  # the tier of services: before every job's

MakeAutoscaler = Callable[[TraceService, Goal, float], Autoscaler]
"""The autoscaler of one service, and the time at which it begins."""


class Serving(Struct, frozen=True, kw_only=True):
    """The services of a simulation, and the name and the making of their autoscalers."""

    services: Services
    name: str
    make: MakeAutoscaler


def serving_of(services: Services, name: str) -> Serving:
    """With the production autoscaler of that name. It knows how long replicas take to start, as a running service
    does."""

    def make(trace: TraceService, goal: Goal, at: float) -> Autoscaler:
        return autoscaler(name, goal, at=at, start=trace.start.mean_s)

    return Serving(services=services, name=name, make=make)


class ServicesOverTime:
    def __init__(
        self,
        serving: Serving,
        *,
        lives: Lives,
        event_queue: EventQueue,
        jobs: Mapping[str, SimulatedJob],
        sizing: SizesOverTime | None,
        preempts: bool,
        seed: int,
    ) -> None:
        services = self._how = serving.services
        self.name = serving.name
        self._lives, self._free_capacity = lives, lives.free_capacity
        self._event_queue, self._jobs = event_queue, jobs
        self._sizing = sizing
        self._preempts = preempts
        self._returned: list[tuple[float, str]] = []  # when which node got a GPU back from a service
        self._open = 0
        self.served = [_served(trace, services, serving.make, seed) for trace in services.services]
        if sizing is not None:
            sizing.serving = self._held

    @property
    def are_open(self) -> bool:
        """True if services are still there."""
        return self._open > 0

    def begin(self) -> None:
        self._open = len(self.served)
        for number, service in enumerate(self.served):
            for _ in range(service.trace.want):
                allocation = self._find(service)
                if allocation is None:
                    break
                self._take(allocation)
                service.begin_ready(allocation, 0.0, score=self._score(allocation))
                self._divide([allocation])
            self._event_queue.add(0.0, What.SERVES, number)

    def outcomes(self) -> tuple[Counted, ...]:
        return tuple(service.outcome() for service in self.served)

    def trajectories(self) -> tuple[Trajectory, ...]:
        return tuple(service.trajectory() for service in self.served)

    def look(self, now: float, number: int) -> bool:
        """Look at one service; whether the room of jobs changed."""
        service = self.served[number]
        if now >= self._how.lasts_s:
            return self._end(service, now)
        service.advance(now)
        changed = self._release(service, service.gone(now), now)
        service.decide(now, self._room_for(service))
        changed |= self._reshare(service, now)
        changed |= self._resize(service, now)
        soon = now + self._how.every_s
        if not service.staying and now < service.requests.next_at < soon:
            soon = service.requests.next_at  # the first request for a service without replicas is news
        self._event_queue.add(min(soon, self._how.lasts_s), What.SERVES, number)
        return changed

    def node_fails(self, now: float, node_id: str) -> None:
        """The replicas on the node are gone at once."""
        for service in self.served:
            lost = [each for each in service.replicas.values() if each.allocation.node_id == node_id]
            if lost:
                service.advance(now)
                for replica in lost:
                    service.remove(replica, now)
                self._release(service, lost, now)

    # sizes

    def _resize(self, service: SimulatedService, now: float) -> bool:
        more = service.wanted - len(service.staying)
        if more < 0:
            for replica in _leaving(service, -more):
                service.drain(replica)
            return self._release(service, service.gone(now), now)
        changed = False
        for _ in range(more):
            lender, after_s = None, 0.0
            allocation = self._find(service)
            if allocation is None:
                lender = self._borrow(service, now)
                allocation = self._find(service) if lender is not None else None
                after_s = self._how.lend_s
            if allocation is None:
                break
            self._take(allocation)
            service.place(allocation, now, score=self._score(allocation), after_s=after_s, lender=lender)
            self._divide([allocation])
            changed = True
        return changed

    def _reshare(self, service: SimulatedService, now: float) -> bool:
        """Give every replica the share that is wanted, where its GPU has as much left."""
        changed = False
        for replica in service.replicas.values():
            wanted, held = service.share, replica.allocation.share
            if wanted is None or held is None or replica.draining or held.request == wanted:
                continue
            gpus = self._free_capacity.nodes[replica.allocation.node_id].gpus
            left = gpus.left_of(replica.allocation.gpus[0])
            most = held.request + (0 if left is None else left.time)
            if most <= held.request < wanted:
                continue
            share = structs.replace(held, request=min(wanted, most))
            after = structs.replace(replica.allocation, share=share)
            self._give_back([replica.allocation])
            self._take(after)
            service.reshare(replica, after, now)
            self._divide([after])
            changed = True
        return changed

    def _end(self, service: SimulatedService, now: float) -> bool:
        service.end(now)
        for replica in service.replicas.values():
            self._give_back([replica.allocation])
        allocations = [replica.allocation for replica in service.replicas.values()]
        service.replicas.clear()
        self._divide(allocations)
        self._open -= 1
        self._plan_again(now)
        return True

    def _release(self, service: SimulatedService, gone: Sequence[SimulatedReplica], now: float) -> bool:
        """The GPUs of these replicas are free again."""
        for replica in gone:
            self._give_back([replica.allocation])
            self._returned.append((now, replica.allocation.node_id))
        if gone:
            self._divide([replica.allocation for replica in gone])
            self._plan_again(now + self._how.rest_s)
        return bool(gone)

    def _plan_again(self, at: float) -> None:
        if self._sizing is not None:
            self._sizing.needed(at)

    # GPUs

    def _request(self, service: SimulatedService) -> Request:
        trace = service.trace
        if service.share is None:
            return Request(gpus=trace.gpus, cpus=1e-6, memory=1)
        most = max(service.share, trace.share_most or service.share)
        share = Share(request=service.share, limit=most, memory=1, kind=Kind.INFERENCE)
        return Request(gpus=0, cpus=1e-6, memory=1, share=share)

    def _find(self, service: SimulatedService) -> Allocation | None:
        beside = tuple(
            (replica.allocation.node_id, gpu)
            for replica in service.replicas.values()
            if replica.share is not None
            for gpu in replica.allocation.gpus
        )
        asked = PlacementRequest(job_class="", key=service.trace.name, beside=beside)
        place = find(self._free_capacity, (RoleRequest(ROLE, 1, 1, self._request(service)),), asked)
        return None if not place else structs.replace(place[0], rank=service.new_rank(), extra=True)

    def _score(self, allocation: Allocation) -> float:
        scores = self._free_capacity.scores
        of_class = scores.of(scores.classes[0]) if scores.classes else {}
        return max((of_class.get((allocation.node_id, gpu), TYPICAL) for gpu in allocation.gpus), default=TYPICAL)

    def _take(self, allocation: Allocation) -> None:
        free = self._free_capacity.gpus_free
        self._free_capacity.take(allocation)
        self._lives.running.free += self._free_capacity.gpus_free - free

    def _give_back(self, allocations: Sequence[Allocation]) -> None:
        free = self._free_capacity.gpus_free
        self._free_capacity.give_back_all(allocations)
        self._lives.running.free += self._free_capacity.gpus_free - free

    def _divide(self, changed: Sequence[Allocation]) -> None:
        """Divide the time of these shared GPUs among the replicas there again."""
        gpus = {(each.node_id, gpu) for each in changed if each.share is not None for gpu in each.gpus}
        if not gpus:
            return
        there: dict[GpuKey, list[tuple[SimulatedService, SimulatedReplica, Share]]] = {}
        for service in self.served:
            for replica in service.replicas.values():
                share = replica.allocation.share
                if share is not None and (key := (replica.allocation.node_id, replica.allocation.gpus[0])) in gpus:
                    there.setdefault(key, []).append((service, replica, share))
        for holders in there.values():
            whole = WHOLE if self._how.beside_training else sum(share.request for _, _, share in holders)
            for service, replica, share in holders:
                service.retime(replica, min(share.limit, max(share.request, WHOLE * share.request // whole)))

    def _room_for(self, service: SimulatedService) -> int:
        """How many more replicas would fit, also on lent GPUs; an approximation if a replica has several GPUs."""
        free = self._free_capacity.gpus_free + sum(len(extras) for _, extras in self._lenders())
        return int(free / service.trace.held(service.share))

    def _held(self, now: float) -> Mapping[str, int]:
        """How many GPUs of each node elastic jobs cannot have: services hold them, or returned them lately."""
        self._returned = [(at, node) for at, node in self._returned if at > now - self._how.rest_s]
        held: set[GpuKey] = {
            (replica.allocation.node_id, gpu)
            for service in self.served
            for replica in service.replicas.values()
            for gpu in replica.allocation.gpus
        }
        return Counter([*(node for node, _ in held), *(node for _, node in self._returned)])

    # loans

    def _lenders(self) -> Iterator[tuple[SimulatedJob, Sequence[Allocation]]]:
        """Elastic jobs that run, each with the replicas that it can spare."""
        if self._sizing is None:
            return
        for job in self._lives.running.jobs.values():
            elastic = job.trace.elastic
            if elastic is not None and elastic.each[0] and job.size > elastic.least:
                yield job, job.allocations[elastic.least :]

    def _borrow(self, service: SimulatedService, now: float) -> str | None:
        """Make room for one more replica with the extras of elastic jobs, least work lost first; else by preempting
        jobs. Returns the job that lends; None: no room can be made."""
        taken: dict[str, list[Allocation]] = {}
        want = (RoleRequest(ROLE, 1, 1, self._request(service)),)
        lenders = sorted(self._lenders(), key=lambda each: (_cost(each[0]), -len(each[1]), each[0].number))
        extras = chain.from_iterable(zip(repeat(job), reversed(of_job)) for job, of_job in lenders)
        with self._free_capacity.supposing():
            fits = False
            for job, allocation in extras:
                self._free_capacity.give_back(allocation)
                taken.setdefault(job.trace.id, []).append(allocation)
                if fits := find(self._free_capacity, want) is not None:
                    break
        if not fits:
            return self._preempt(service, now)
        for job_id, gone in taken.items():
            job = self._jobs[job_id]
            elastic = job.trace.elastic
            assert elastic is not None
            ranks = {allocation.rank for allocation in gone}
            stay = tuple(allocation for allocation in job.allocations if allocation.rank not in ranks)
            self._free_capacity.give_back_all(gone)
            service.loan_lost_gpu_s += elastic.resize_s * len(stay) * elastic.each[0]
            self._lives.resize(job, now, stay, cost_s=elastic.resize_s)
        service.loans += 1
        return next(iter(taken))

    def _preempt(self, service: SimulatedService, now: float) -> str | None:
        if not self._preempts:
            return None
        request = self._request(service)
        resource_request = (RoleRequest(ROLE, 1, 1, request),)
        needed = max(1, request.gpus)
        holders = self._lives.running.may_leave(BEFORE_ALL, missing=needed)
        selection = select_victims(
            resource_request, free_capacity=self._free_capacity, holders=holders, asked=PlacementRequest()
        )
        if not holders or selection is None:
            return None
        for job_id in by_job(selection):
            self._lives.evict(self._jobs[job_id], now)
            service.evicted_jobs += 1
        return selection.victims[0].job_id if selection.victims else None


def _cost(job: SimulatedJob) -> float:
    """GPU-seconds of work that are lost if it gives up a replica."""
    elastic = job.trace.elastic
    assert elastic is not None
    return elastic.resize_s * job.size * elastic.each[0]


def _leaving(service: SimulatedService, fewer: int) -> list[SimulatedReplica]:
    """Borrowed replicas leave first, then those that are starting, then those with the fewest requests."""
    servers = service.requests.servers

    def worth(replica: SimulatedReplica) -> tuple[bool, bool, int, int]:
        in_flight = servers[replica.rank].in_flight if replica.is_ready else 0
        return replica.lender is None, replica.is_ready, in_flight, -replica.rank

    return sorted(service.staying, key=worth)[:fewer]


def _served(trace: TraceService, services: Services, make: MakeAutoscaler, seed: int) -> SimulatedService:
    """The service with its requests, which are the same whatever else is simulated."""
    name = crc32(trace.name.encode())
    arriving, working, starting = (np.random.default_rng([seed, name, which]) for which in range(3))
    arrivals = arrivals_of(trace.rate, services.lasts_s, arriving)
    works = drawn(trace.work.mean_s, trace.work.cv, len(arrivals), working)
    starts = drawn(trace.start.mean_s, trace.start.cv, STARTS, starting)
    return SimulatedService(
        trace,
        make(trace, trace.goal, 0.0),
        arrivals=arrivals,
        works=works,
        starts=chain.from_iterable(repeat(starts.tolist())),
    )
