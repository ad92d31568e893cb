"""The services and the replicas that take their requests, from the placements in the store and the reports of nodes.

A node's report counts only for runs that the store has placed on it. Addresses come from the store.
"""

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from weft.domain.job import JobState, Placement
from weft.domain.quantity import duration_seconds
from weft.domain.spec import Objective, ServiceProtocol, ServiceRules
from weft.messages.serving import Endpoint, EndpointsSeen, ReplicaEnded
from weftd.router.thinking.routes import Route, prefix_of

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,253}[A-Za-z0-9])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
ENDED_JOBS_MAX = 1000  # jobs for which the end of the last replica is kept
QUIET_SECONDS = 3.0  # a node reports its replicas once a second
RunKey = tuple[int, int]
"""The epoch and the rank of one replica of a job."""


class ServingJob(Protocol):
    """A job that serves requests, as stored."""

    @property
    def id(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def rules(self) -> ServiceRules: ...
    @property
    def objective(self) -> Objective | None: ...
    @property
    def state(self) -> JobState: ...
    @property
    def epoch(self) -> int: ...
    @property
    def placement(self) -> Placement | None: ...
    @property
    def served(self) -> bool: ...


class RoutedReplica(Struct, frozen=True, kw_only=True):
    """`takes`: it may get requests. `draining`: it gets none any more. `quiet`: its node is silent."""

    epoch: int
    rank: int
    address: str  # host:port
    takes: bool
    draining: bool = False
    quiet: bool = False

    @property
    def key(self) -> RunKey:
        return self.epoch, self.rank


class RoutedService(Struct, frozen=True, kw_only=True):
    """A job that serves requests. Times in seconds; `latency`: its objective, None if it has none; `ttft`, `tpot`: the
    same in words of tokens; `served`: a replica of it is ready, or was once; `trouble`: why no replica is ready, for
    its tenant alone."""

    job_id: str
    name: str
    tenant: str
    seq: int
    concurrency: int
    queue: int
    timeout: float
    prefix: str
    h2c: bool
    public: bool
    allow_origins: tuple[str, ...] = ()
    latency: float | None = None
    ttft: float | None = None
    tpot: float | None = None
    served: bool = False
    trouble: str = ""
    models: tuple[str, ...] = ()  # names by which the front for models leads to it
    tokens_per_minute: int | None = None  # that each token may use there
    adapters: dict[str, str] = {}  # sources, by those of `models` that a replica loads first
    replicas: tuple[RoutedReplica, ...] = ()


class Endpoints:
    """The newest report of each node about its replicas."""

    def __init__(self) -> None:
        self.quiet: frozenset[str] = frozenset()  # silent nodes, while others report
        self._newest: dict[str, tuple[int, int]] = {}
        self._heard: dict[str, float] = {}
        self._by_run: dict[str, dict[tuple[str, int, int], Endpoint]] = {}
        self._ended: dict[str, ReplicaEnded] = {}  # by job, the newest last

    def hear(self, seen: EndpointsSeen, now: float, *, placed: Container[str] = ()) -> set[str]:
        """The jobs for which this node's report has changed. An older message is ignored. `placed`: jobs that have, or
        recently had, replicas on the node; ends of other jobs' replicas are ignored."""
        newest = seen.incarnation, seen.seq
        if newest <= self._newest.get(seen.node_id, (-1, -1)):
            return set()
        self._newest[seen.node_id], self._heard[seen.node_id] = newest, now
        before = self._by_run.get(seen.node_id, {})
        by_run = {(one.job_id, one.epoch, one.rank): one for one in seen.endpoints}
        self._by_run[seen.node_id] = by_run
        changed = {key[0] for key in before.keys() | by_run.keys() if before.get(key) != by_run.get(key)}
        for ended in seen.ended:
            known = self._ended.get(ended.job_id)
            if ended.job_id in placed and (known is None or (known.epoch, known.rank) < (ended.epoch, ended.rank)):
                self._ended.pop(ended.job_id, None)
                self._ended[ended.job_id] = ended
                changed.add(ended.job_id)
        while len(self._ended) > ENDED_JOBS_MAX:
            del self._ended[next(iter(self._ended))]
        return changed

    def listen(self, now: float) -> set[str]:
        """Jobs whose nodes fell silent or came back. If every node is silent, the bus is at fault."""
        silent = frozenset(node_id for node_id, heard in self._heard.items() if now - heard > QUIET_SECONDS)
        quiet = frozenset() if len(silent) == len(self._heard) else silent
        changed, self.quiet = quiet ^ self.quiet, quiet
        return {key[0] for node_id in changed for key in self._by_run.get(node_id, ())}

    def of(self, node_id: str, job_id: str, epoch: int, rank: int) -> Endpoint | None:
        return self._by_run.get(node_id, {}).get((job_id, epoch, rank))

    def trouble(self, job_id: str, endpoints: Iterable[Endpoint]) -> str:
        """Why none of these replicas is ready; else how the last replica of the job ended."""
        unready = [one for one in endpoints if one.why]
        if unready:
            one = unready[-1]
            return _words(f"its replica {one.rank} is not ready: {one.why}", one.last_words)
        ended = self._ended.get(job_id)
        return "" if ended is None else _words(f"its replica {ended.rank}: {ended.why}", ended.last_words)

    def keep(self, node_ids: Iterable[str]) -> None:
        """Forget all other nodes, which the store has no longer."""
        for gone in self._newest.keys() - set(node_ids):
            del self._newest[gone]
            del self._by_run[gone], self._heard[gone]


def _words(why: str, last: str) -> str:
    return f"{why}. Its last words:\n{last}" if last else why


class ServiceTable:
    """Every service, by the id of its job and by its name."""

    def __init__(self, services: Iterable[RoutedService] = ()) -> None:
        self.services: dict[str, RoutedService] = {}
        self._by_name: defaultdict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        self._by_model: defaultdict[tuple[str, str], dict[int, str]] = defaultdict(dict)
        self._with_models: defaultdict[str, set[str]] = defaultdict(set)  # by tenant
        for service in services:
            self.put(service)

    def put(self, service: RoutedService) -> None:
        before = self.services.get(service.job_id)
        if before is not None and before.models != service.models:
            self._drop_models(before)
        for model in service.models:
            self._with_models[service.tenant].add(service.job_id)
            self._by_model[service.tenant, model][service.seq] = service.job_id
        self.services[service.job_id] = service
        self._by_name[service.tenant, service.name][service.seq] = service.job_id

    def drop(self, job_id: str) -> None:
        service = self.services.pop(job_id)
        self._drop_models(service)
        named = self._by_name[service.tenant, service.name]
        del named[service.seq]
        if not named:
            del self._by_name[service.tenant, service.name]

    def _drop_models(self, service: RoutedService) -> None:
        if not service.models:
            return
        for model in service.models:
            named = self._by_model[service.tenant, model]
            named.pop(service.seq, None)
            if not named:
                del self._by_model[service.tenant, model]
        of_tenant = self._with_models[service.tenant]
        of_tenant.discard(service.job_id)
        if not of_tenant:
            del self._with_models[service.tenant]

    def with_models(self, tenant: str) -> list[RoutedService]:
        """The services of a tenant that serve models."""
        return [self.services[job_id] for job_id in self._with_models.get(tenant, ())]

    def of_model(self, tenant: str, model: str, *, job: str = "") -> RoutedService | None:
        """The newest of a tenant's services with this model that has, or had, a ready replica, else the newest.
        `job`: if set, the only service that counts."""
        found = [self.services[one] for one in self._by_model.get((tenant, model), {}).values() if job in ("", one)]
        return max(found, key=lambda one: (one.served, one.seq), default=None)

    def find(self, route: Route) -> RoutedService | None:
        """The newest service of this name that has, or had, a ready replica, otherwise the newest."""
        if not route.by_host:
            return self.services.get(route.job)
        named = self._by_name.get((route.tenant, route.name))
        if not named:
            return None
        return max((self.services[job_id] for job_id in named.values()), key=lambda one: (one.served, one.seq))


def trusted(hosts: Mapping[str, str]) -> dict[str, str]:
    """The valid addresses of the nodes."""
    return {node_id: host for node_id, host in hosts.items() if HOST.fullmatch(host)}


def placed_on_each(jobs: Iterable[ServingJob]) -> dict[str, set[str]]:
    """The jobs that have replicas on each node, by their ids. A node's reports about other jobs are ignored."""
    placed: defaultdict[str, set[str]] = defaultdict(set)
    for job in jobs:
        for allocation in job.placement.allocations if job.placement is not None else ():
            placed[allocation.node_id].add(job.id)
    return placed


def routed(job: ServingJob, addresses: Mapping[str, str], endpoints: Endpoints) -> RoutedService:
    """`addresses`: valid addresses of the nodes."""
    rules, objective = job.rules, job.objective
    replicas = tuple(_replicas_of(job, addresses, endpoints))
    takes = any(one.takes for one in replicas)
    return RoutedService(
        job_id=job.id,
        name=job.name,
        tenant=job.tenant,
        seq=job.seq,
        concurrency=rules.concurrency,
        queue=rules.queue,
        timeout=duration_seconds(rules.timeout),
        prefix=prefix_of(rules.path, job.id),
        h2c=rules.protocol is ServiceProtocol.H2C,
        public=rules.public,
        allow_origins=rules.allow_origins,
        latency=None if objective is None else duration_seconds(objective.latency),
        ttft=None if objective is None else objective.ttft_seconds,
        tpot=None if objective is None else objective.tpot_seconds,
        served=job.served or takes,
        models=() if rules.model is None else rules.model.names,
        tokens_per_minute=None if rules.model is None else rules.model.tokens_per_minute,
        adapters={} if rules.model is None else rules.model.adapters,
        trouble="" if takes else endpoints.trouble(job.id, _endpoints_of(job, endpoints)),
        replicas=replicas,
    )


def _endpoints_of(job: ServingJob, endpoints: Endpoints) -> list[Endpoint]:
    allocations = job.placement.allocations if job.placement is not None else ()
    seen = (endpoints.of(one.node_id, job.id, job.epoch, one.rank) for one in allocations if not one.leaving)
    return [one for one in seen if one is not None]


def _replicas_of(job: ServingJob, addresses: Mapping[str, str], endpoints: Endpoints) -> Iterable[RoutedReplica]:
    """Its replicas that listen. A leaving replica gets no more requests, even if its node does not know yet."""
    for placed in job.placement.allocations if job.placement is not None else ():
        seen = endpoints.of(placed.node_id, job.id, job.epoch, placed.rank)
        host = addresses.get(placed.node_id)
        if seen is None or not host:
            continue
        draining = seen.draining or placed.leaving or job.state is JobState.STOPPING
        yield RoutedReplica(
            epoch=job.epoch,
            rank=placed.rank,
            address=f"[{host}]:{seen.port}" if ":" in host else f"{host}:{seen.port}",
            takes=seen.ready and not draining,
            draining=draining,
            quiet=placed.node_id in endpoints.quiet,
        )
