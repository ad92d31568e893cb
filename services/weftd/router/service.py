"""I/O around admission: reads services from the store, replicas from nodes, requests from Caddy; publishes counts."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence

from weft.bus import Bus
from weft.domain.job import JobEvent
from weft.messages.events import EventTold
from weft.messages.serving import EndpointsSeen, ServiceServed, ServicesServed
from weft.service.run import Every, Listen, serve
from weft.store import OpenService, RouterStore, StoreUnavailableError
from weftd.router.admission import Admission
from weftd.router.clients import left
from weftd.router.connections import AdmissionConnection, EndListener
from weftd.router.metrics import RouterMeters
from weftd.router.passages import Passages
from weftd.router.passing import CaddyAwayError, Passing
from weftd.router.scraping import AGAIN_SECONDS, EngineReader
from weftd.router.settings import RouterSettings
from weftd.router.thinking.routing import Routing
from weftd.router.thinking.table import Endpoints, placed_on_each, routed, trusted
from weftd.router.tokens import TokenCache

logger = logging.getLogger(__name__)

READ_SECONDS = 5.0  # between two reads of the store without an event
READ_REST = 4.0  # pause as a multiple of the last read: other jobs are submitted all the time
OPENS = frozenset({JobEvent.WAITING, JobEvent.PLACED, JobEvent.REQUEUED})  # events of submitted jobs
MOVES = frozenset(  # events by which replicas of a known service come or go, or more are wanted
    {
        JobEvent.RESTARTED,
        JobEvent.RESIZED,
        JobEvent.SCALED,
        JobEvent.UPDATED,
        JobEvent.REPRIORITISED,
        JobEvent.STOPPING,
        JobEvent.FAILED,
        JobEvent.CANCELLED,
    }
)
TOLD_SECONDS = 1.0
TICK_SECONDS = 0.1
SETTLE_SECONDS = 1.0
LEFT_SECONDS = 0.5
PART_BYTES = 400_000  # of one message, about
ENDPOINTS_SECONDS_MAX = 1.2  # each node reports its endpoints once a second
ENDPOINTS_APART_SECONDS = 0.05  # between two messages of one node, whatever it sends


async def run(
    settings: RouterSettings,
    *,
    bus: Bus,
    store: RouterStore,
    stop: asyncio.Event,
    name: str,
    boot: str,
    asks: socket.socket,
    ends: socket.socket,
    passing: Passing,
    passages: Passages,
    now: Callable[[], float],
    clock: Callable[[], float],
) -> None:
    """Serve until `stop`. `asks`: socket for Caddy's questions, `ends`: socket for its log. Both listen already, so
    nothing is lost while this process restarts."""
    shell = Shell(
        settings,
        bus=bus,
        store=store,
        name=name,
        boot=boot,
        now=now,
        clock=clock,
        passing=passing,
        passages=passages,
    )
    meters = RouterMeters(shell.admission)
    loop = asyncio.get_running_loop()

    async def take_requests() -> None:
        """Accept requests once the services are known; earlier ones wait in the sockets."""
        await shell.known.wait()
        await loop.create_datagram_endpoint(lambda: EndListener(shell.admission), sock=ends)
        await loop.create_unix_server(lambda: AdmissionConnection(shell.admission), sock=asks)
        logger.info("requests are taken")

    taking = asyncio.create_task(take_requests())
    patient = (StoreUnavailableError,)
    try:
        await serve(
            "router",
            bus=bus,
            stop=stop,
            listens=[
                Listen(EndpointsSeen, shell.hear_endpoints, group="", at_once=1, apart_seconds=ENDPOINTS_APART_SECONDS),
                Listen(ServicesServed, shell.hear_served, group="", at_once=1),
                Listen(EventTold, shell.hear_event, group="", tokens={"topic": "nodes"}),
                *(
                    Listen(EventTold, shell.hear_event, group="", tokens={"topic": "jobs", "event": event.value})
                    for event in sorted(OPENS | MOVES)
                ),
            ],
            loops=[
                Every(READ_SECONDS, shell.read, wake=shell.read_now, retry_on=patient, name="read", rest=READ_REST),
                Every(TICK_SECONDS, shell.tick, name="tick"),
                Every(TOLD_SECONDS, shell.tell, wake=shell.tell_now, name="tell", rest=5.0),
                Every(SETTLE_SECONDS, shell.settle, name="settle"),
                Every(LEFT_SECONDS, shell.look_for_clients, name="clients"),
                Every(AGAIN_SECONDS, shell.read_engines, name="engines"),
            ],
            registry=meters.registry,
            admin_port=settings.admin_port,
            admin_host=settings.admin_host,
            reports=True,
        )
    finally:
        taking.cancel()
        await shell.admission.adapters.close()


class Shell:
    """The loops of admission."""

    def __init__(
        self,
        settings: RouterSettings,
        *,
        bus: Bus,
        store: RouterStore,
        name: str,
        boot: str,
        now: Callable[[], float],
        clock: Callable[[], float],
        passing: Passing,
        passages: Passages | None = None,
    ) -> None:
        self._bus, self._store, self._name, self._boot = bus, store, name, boot
        self._now, self._clock, self._passing = now, clock, passing
        self._jobs: dict[str, OpenService] = {}
        self._hosts: dict[str, str] = {}  # the address of each node
        self._placed: dict[str, set[str]] = {}  # the services that have replicas on each node
        self._had: dict[str, set[str]] = {}  # the same at the last read
        self._endpoints = Endpoints()
        self._seq = 0
        self._began = clock()
        self._engines = EngineReader(clock=clock)
        self.known = asyncio.Event()
        self.read_now, self.tell_now = asyncio.Event(), asyncio.Event()
        self.admission = Admission(
            routing=Routing(waiting_max=settings.waiting_max),
            tokens=TokenCache(store, now=now, clock=clock),
            domains=settings.domains,
            boot=boot,
            clock=clock,
            wake=self._wants_replica,
            drained=self.tell_now.set,
            secure=bool(settings.tls_cert_file),
            passages=passages,
        )

    def _wants_replica(self) -> None:
        if self._clock() - self._began > ENDPOINTS_SECONDS_MAX:  # before that its node may not have reported
            self.tell_now.set()

    async def read(self) -> None:
        """Reload from the store. While it is away, the last known state stays in use."""
        hosts = trusted({node.id: node.address for node in await self._store.nodes()})
        jobs = {job.id: job for job in await self._store.open_services()}
        gone = self._jobs.keys() - jobs.keys()
        moved = hosts != self._hosts
        changed = [job_id for job_id, job in jobs.items() if moved or self._jobs.get(job_id) != job]
        self._had, self._placed = self._placed, placed_on_each(jobs.values())
        self._jobs, self._hosts = jobs, hosts
        self._endpoints.keep(hosts)
        self._know(changed)
        self.admission.forget(gone)
        self.known.set()

    def _know(self, job_ids: Iterable[str]) -> None:
        found = [self._jobs[job_id] for job_id in job_ids if job_id in self._jobs]
        self.admission.know([routed(job, self._hosts, self._endpoints) for job in found])

    async def hear_endpoints(self, seen: EndpointsSeen) -> None:
        placed = self._placed.get(seen.node_id, set()) | self._had.get(seen.node_id, set())
        changed = self._endpoints.hear(seen, self._clock(), placed=placed) & placed
        self._know(changed)
        if changed and any(endpoint.draining for endpoint in seen.endpoints):
            self.tell_now.set()  # its node waits for the message that it gets nothing more

    async def hear_event(self, event: EventTold) -> None:
        if event.topic == "nodes" or event.event in OPENS or event.subject_id in self._jobs:
            self.read_now.set()

    async def hear_served(self, served: ServicesServed) -> None:
        if served.router != self._name:
            self.admission.routing.hear(served, self._clock())

    async def tick(self) -> None:
        self._know(self._endpoints.listen(self._clock()))
        self.admission.tell(self.admission.routing.tick(self._clock()))

    async def tell(self) -> None:
        parts = [*parted(self.admission.routing.served(self._clock()))]
        self._seq += 1
        for part, services in enumerate(parts):
            await self._bus.publish(
                ServicesServed(
                    router=self._name,
                    boot=self._boot,
                    seq=self._seq,
                    at=self._now(),
                    part=part,
                    parts=len(parts),
                    services=services,
                )
            )

    async def look_for_clients(self) -> None:
        """Drop waiting requests whose client has left."""
        waiting = self.admission.waiting_clients()
        if waiting:
            gone = await asyncio.to_thread(left, waiting)
            now_waiting = self.admission.waiting_clients()
            self.admission.leave(
                ticket for peer in gone for ticket in set(waiting[peer]) & set(now_waiting.get(peer, ()))
            )

    async def read_engines(self) -> None:
        await self._engines.read([*self.admission.routing.queues.values()])

    async def settle(self) -> None:
        """Compare our count of requests with Caddy's."""
        asked_at = self._clock()
        try:
            passing = await self._passing.count()
        except CaddyAwayError:
            self.admission.tell(self.admission.routing.lose_all(self._clock()))
        else:
            if passing is not None:
                self.admission.tell(self.admission.routing.settle(passing, asked_at, self._clock()))


def parted(services: Sequence[ServiceServed]) -> Iterator[tuple[ServiceServed, ...]]:
    """All services in parts that fit into a message; one empty part without services."""
    part: list[ServiceServed] = []
    size = 0
    for service in services:
        buckets = (service.waits, service.services, service.totals, service.first_tokens, service.token_times)
        bytes_about = 250 + 180 * len(service.replicas) + 12 * sum(len(counts) for counts in buckets)
        if part and size + bytes_about > PART_BYTES:
            yield tuple(part)
            part, size = [], 0
        part.append(service)
        size += bytes_about
    yield tuple(part)
