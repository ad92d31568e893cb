"""`GET /v1/status`: what is wrong with the cluster itself, and what to do."""

from collections.abc import Sequence

import aiohttp
import msgspec
import pytest
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import node
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.store import MemoryStore
from weft.messages.http.status import DatabaseView, Grave, ServiceView, StatusFinding, StatusView
from weft.messages.signals import HostSample, ServiceReported
from weft.store import StoreUnavailableError
from weft.store.tenants import Access
from weftd.gateway.api.tokens import ADMIN_TENANT, keep_file_token
from weftd.gateway.app import application
from weftd.gateway.gateway import Gateway
from weftd.gateway.readmodel.cluster import LiveCluster
from weftd.gateway.readmodel.processes import KEPT_SECONDS, PROCESSES_MAX, Processes
from weftd.gateway.readmodel.views import node_views
from weftd.gateway.settings import GatewaySettings
from weftd.gateway.thinking.status import NEEDED, SILENT_SECONDS, findings

MIGRATIONS = ("0001_first", "0002_next")
DATABASE = DatabaseView(bytes=1, connections=10, connections_max=100, version="17.2", ran=MIGRATIONS, asks=0, unsent=0)
(NODE,) = node_views([node()], [], LiveCluster(clock=lambda: 0.0), Access(tenant="", admin=True), now=0.0)
NODE = structs.replace(NODE, ready=True, silent_seconds=0.0)


def process(service: str, *, silent: float = 1.0, leads: Sequence[str] = (), **fields: object) -> ServiceView:
    told = {"instance": f"{service}-1", "version": "1.0.0", "up_seconds": 60.0, "ready": True, **fields}
    return ServiceView(service=service, silent_seconds=silent, leads=tuple(leads), **told)  # type: ignore[arg-type]


WELL = (process("gateway"), process("scheduler", leads=["default"]), process("scorer"), process("reallocator"))


def found(**changed: object) -> list[StatusFinding]:
    told = {
        "version": "1.0.0",
        "nats": True,
        "database": DATABASE,
        "migrations": MIGRATIONS,
        "services": WELL,
        "heard_seconds": 60.0,
        "routed": False,
        "pools": ["default"],
        "nodes": (NODE,),
    }
    return findings(**{**told, **changed})  # type: ignore[arg-type]


def test_of_a_cluster_that_is_well_nothing_is_said() -> None:
    assert found() == []


@pytest.mark.parametrize("service", NEEDED)
def test_a_service_that_is_not_there_is_a_problem_with_what_is_missing_without_it(service: str) -> None:
    (one,) = found(services=[each for each in WELL if each.service != service])
    assert (one.grave, one.about) == (Grave.PROBLEM, service)
    assert NEEDED[service] in one.sentence
    silent = {one.service: one for one in WELL} | {service: process(service, silent=SILENT_SECONDS + 1)}
    assert [one.about for one in found(services=list(silent.values()))] == [service]


def test_a_router_is_missed_only_where_services_have_an_address() -> None:
    assert [one.about for one in found(routed=True)] == ["router"]
    assert found(routed=True, services=[*WELL, process("router")]) == []


def test_where_the_gateway_does_not_hear_itself_nats_is_the_problem_and_no_service_is_missed() -> None:
    silent = [structs.replace(one, silent_seconds=SILENT_SECONDS + 1) for one in WELL]
    assert [one.about for one in found(services=silent)] == ["nats"]
    assert [one.about for one in found(services=[])] == ["nats"]


def test_a_gateway_that_just_began_misses_nobody() -> None:
    assert found(services=[], heard_seconds=SILENT_SECONDS) == []


def test_without_nats_no_service_is_missed_as_none_can_be_heard() -> None:
    assert [one.about for one in found(nats=False, services=[])] == ["nats"]


def test_a_pool_that_no_scheduler_leads_is_a_problem() -> None:
    (one,) = found(pools=["default", "lab"])
    assert one.grave is Grave.PROBLEM
    assert "lab" in one.sentence
    assert "default" not in one.sentence


@pytest.mark.parametrize(
    ("changed", "about", "grave", "words"),
    [
        ({"database": None}, "postgres", Grave.PROBLEM, "does not answer"),
        ({"database": structs.replace(DATABASE, ran=MIGRATIONS[:1])}, "postgres", Grave.PROBLEM, "0002_next"),
        ({"database": structs.replace(DATABASE, ran=(*MIGRATIONS, "0003"))}, "gateway", Grave.WARNING, "0003"),
        ({"database": structs.replace(DATABASE, connections=80)}, "postgres", Grave.WARNING, "80 of 100"),
        ({"database": structs.replace(DATABASE, unsent=10_000)}, "nats", Grave.WARNING, "10,000 or more events"),
        ({"services": (*WELL, process("scorer", stuck=("score",)))}, "scorer", Grave.PROBLEM, "score"),
        ({"services": (*WELL, process("scorer", silent=60.0))}, "scorer", Grave.WARNING, "silent for 1m0s"),
        ({"services": (*WELL, process("scorer", version="0.9.0"))}, "gateway", Grave.WARNING, "scorer 0.9.0"),
        ({"nodes": (structs.replace(NODE, ready=False),)}, "nodes", Grave.PROBLEM, NODE.id),
        ({"nodes": (structs.replace(NODE, silent_seconds=9.0),)}, "nodes", Grave.WARNING, NODE.id),
        (
            {
                "nodes": (
                    structs.replace(
                        NODE,
                        use=HostSample(cpus=1, memory_total=1, memory_used=1, disk_total=1000, disk_used=985),
                    ),
                )
            },
            "nodes",
            Grave.PROBLEM,
            "disk",
        ),
    ],
)
def test_each_thing_that_is_wrong_is_said_with_what_to_do(
    changed: dict[str, object], about: str, grave: Grave, words: str
) -> None:
    (one,) = found(**changed)
    assert (one.about, one.grave) == (about, grave)
    assert words in one.sentence
    assert one.act


@given(st.lists(st.sampled_from(["nats", "database", "services"]), unique=True))
def test_problems_come_before_warnings(gone: list[str]) -> None:
    nothing: dict[str, object] = {"nats": False, "database": None, "services": ()}
    told = found(**{name: nothing[name] for name in gone}, nodes=(structs.replace(NODE, silent_seconds=9.0),))
    graves = [one.grave for one in told]
    assert graves == sorted(graves, key=[Grave.PROBLEM, Grave.WARNING].index)


def report(number: int = 1) -> ServiceReported:
    return ServiceReported(service="scorer", instance=f"host-{number}", version="1", up_seconds=1.0, ready=True)


async def test_a_process_is_shown_with_its_silence_and_forgotten_after_a_while() -> None:
    now = 0.0
    processes = Processes(clock=lambda: now)
    await processes.hear(report())
    now = 7.0
    assert [one.silent_seconds for one in processes.views()] == [7.0]
    now = KEPT_SECONDS + 1
    assert processes.views() == ()


async def test_a_process_that_says_that_it_ends_is_not_missed() -> None:
    processes = Processes(clock=lambda: 0.0)
    await processes.hear(report(1))
    await processes.hear(report(2))
    await processes.hear(structs.replace(report(1), ends=True))
    assert [one.instance for one in processes.views()] == ["host-2"]


async def test_however_many_processes_report_few_are_kept() -> None:
    processes = Processes(clock=lambda: 0.0)
    for number in range(PROCESSES_MAX + 10):
        await processes.hear(report(number))
    assert len(processes.views()) == PROCESSES_MAX


class AwayStore(MemoryStore):
    """Tells who somebody is, and nothing more."""

    async def database_status(self) -> DatabaseView:
        raise StoreUnavailableError("away")


async def asked(store: MemoryStore, tenant: str) -> tuple[int, bytes]:
    await keep_file_token(store, f"weft_{tenant}", tenant=tenant, at=0.0)
    gateway = Gateway(
        store=store,
        bus=MemoryBus(),
        now=lambda: 1.0,
        clock=lambda: 1.0,
        characters=lambda count: "0" * count,
        settings=GatewaySettings(),
    )
    server = TestServer(application(gateway))
    await server.start_server()
    headers = {"Authorization": f"Bearer weft_{tenant}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.get(server.make_url("/v1/status")) as answer,
    ):
        told = answer.status, await answer.read()
    await server.close()
    return told


async def test_it_is_answered_while_postgres_is_away() -> None:
    status, told = await asked(AwayStore(), ADMIN_TENANT)
    view = msgspec.json.decode(told, type=StatusView)
    assert (status, view.database, [one.about for one in view.findings]) == (200, None, ["postgres"])
