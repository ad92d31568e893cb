"""What the router knows: which replicas its nodes report, which service an address names, what it reports itself."""

from pathlib import Path

import pytest
from msgspec import structs

from weft.domain.job import Allocation, JobState, Placement
from weft.domain.spec import Kind, ServiceRules
from weft.messages.serving import Endpoint, EndpointsSeen, ServiceServed
from weft.store import OpenService
from weftd.router.caddy import SILENCE_SECONDS, Proxy, configuration, step_of
from weftd.router.service import parted
from weftd.router.thinking.backends import InFlightRequest
from weftd.router.thinking.routes import Elsewhere, Refused, Route, route_of
from weftd.router.thinking.routing import Routing
from weftd.router.thinking.table import Endpoints, ServiceTable, routed, trusted

CHAT = Route(name="chat", tenant="alice", by_host=True)


def job(*ranks: int, **fields: object) -> OpenService:
    placed = tuple(Allocation(rank=rank, role="s", node_id="node-1", cpus=1.0, memory=1) for rank in ranks)
    made = {
        "id": "j-1",
        "tenant": "alice",
        "pool": "default",
        "name": "chat",
        "seq": 1,
        "kind": Kind.INFERENCE,
        "rules": ServiceRules(path="/s/{job}/"),
        "objective": None,
        "wanted": 1,
        "state": JobState.RUNNING,
        "epoch": 3,
        "version": 1,
        "priority": 0,
        "placement": Placement(allocations=placed),
        **fields,
    }
    return OpenService(**made)  # type: ignore[arg-type]


def seen(seq: int, *endpoints: Endpoint, node: str = "node-1") -> EndpointsSeen:
    return EndpointsSeen(node_id=node, incarnation=1, seq=seq, at=0.0, endpoints=endpoints)


def endpoint(rank: int, *, epoch: int = 3, port: int = 80, ready: bool = True, draining: bool = False) -> Endpoint:
    return Endpoint(job_id="j-1", epoch=epoch, rank=rank, port=port, ready=ready, draining=draining)


def test_a_node_is_believed_only_about_what_the_store_has_placed_on_it() -> None:
    endpoints = Endpoints()
    told = seen(5, endpoint(0), endpoint(1, draining=True), endpoint(2, epoch=2), endpoint(9))
    assert endpoints.hear(told, 0.0) == {"j-1"}
    assert endpoints.hear(seen(1, node="node-2"), 0.0) == set()
    endpoints.hear(seen(2, endpoint(0, port=22), node="node-2"), 0.0)
    assert endpoints.hear(seen(4), 0.0) == set(), "an older message is ignored"
    hosts = trusted({"node-1": "10.0.0.1", "node-2": "10.0.0.2", "node-3": "a b", "node-4": "{env.HOME}"})
    assert set(hosts) == {"node-1", "node-2"}
    found = routed(job(0, 1, 2), hosts, endpoints)
    assert [(one.rank, one.address, one.takes, one.draining) for one in found.replicas] == [
        (0, "10.0.0.1:80", True, False),
        (1, "10.0.0.1:80", False, True),
    ]
    assert found.prefix == "/s/j-1"
    assert not any(one.takes for one in routed(job(0, state=JobState.STOPPING), hosts, endpoints).replicas)
    assert routed(job(0), trusted({"node-1": "fd00::1"}), endpoints).replicas[0].address == "[fd00::1]:80"


def test_a_replica_of_a_silent_node_gets_only_what_no_other_has_room_for() -> None:
    endpoints = Endpoints()
    endpoints.hear(seen(1, endpoint(0)), 0.0)
    endpoints.hear(seen(1, endpoint(1), node="node-2"), 0.0)
    assert endpoints.listen(2.9) == set()
    endpoints.hear(seen(2, endpoint(1), node="node-2"), 3.0)
    assert endpoints.listen(3.1) == {"j-1"}
    placed = job(0, 1)
    assert placed.placement is not None
    other = structs.replace(placed.placement.allocations[1], node_id="node-2")
    placed = structs.replace(placed, placement=Placement(allocations=(placed.placement.allocations[0], other)))
    hosts = {"node-1": "10.0.0.1", "node-2": "10.0.0.2"}
    chat = structs.replace(routed(placed, hosts, endpoints), concurrency=2)
    routing = Routing()
    routing.know([chat], 0.0)
    asked = [routing.ask(ticket, chat, 0.0) for ticket in range(3)]
    assert [request.backend.replica.rank for request in asked if isinstance(request, InFlightRequest)] == [1, 1, 0]
    endpoints.hear(seen(2, endpoint(0)), 3.2)
    assert endpoints.listen(3.2) == {"j-1"}
    assert not any(one.quiet for one in routed(placed, hosts, endpoints).replicas)
    assert endpoints.listen(60.0) == set(), "all are silent: it is the bus"


def test_a_name_leads_to_the_newest_service_that_has_or_had_a_ready_replica() -> None:
    named = Route(name="chat", tenant="alice", by_host=True)
    endpoints = Endpoints()
    endpoints.hear(seen(1, endpoint(0)), 0.0)
    ready = routed(job(0), {"node-1": "10.0.0.1"}, endpoints)
    had, new = (routed(job(id=f"j-{seq}", seq=seq, served=seq == 2), {}, Endpoints()) for seq in (2, 3))
    table = ServiceTable([new, ready])
    assert table.find(named) is ready, "the newest never was ready"
    table.put(had)
    assert table.find(named) is had
    table.put(structs.replace(new, served=True))
    assert getattr(table.find(named), "seq", 0) == 3


def test_of_services_with_one_name_the_newest_is_found() -> None:
    older, newer = (routed(job(id=f"j-{seq}", seq=seq), {}, Endpoints()) for seq in (1, 2))
    table = ServiceTable([newer, older])
    named = Route(name="chat", tenant="alice", by_host=True)
    assert table.find(named) is newer
    table.drop("j-2")
    assert table.find(named) is older
    table.drop("j-1")
    assert (table.find(named), table.find(Route(job="j-1"))) == (None, None)


@pytest.mark.parametrize(
    ("uri", "host", "found"),
    [
        ("/s/j-1/a?b", "x", Route(job="j-1")),
        ("/s/j-1?b", "x", Elsewhere("/s/j-1/?b")),
        ("/a", "Chat.alice.localhost.", Route(name="chat", tenant="alice", by_host=True)),
        ("/s/j-1/", "a.chat.alice.localhost", Route(job="j-1")),
        ("/a?x=1&weft_code=t%5F1&y=2", "chat.alice.localhost", Elsewhere("/a?x=1&y=2", "", CHAT, "t_1")),
        ("//evil.example/?weft_code=t", "chat.alice.localhost", Elsewhere("/evil.example/", "", CHAT, "t")),
        ("/s/j-1/?weft%5Fcode=t&a=%41", "x", Elsewhere("/s/j-1/?a=%41", "", Route(job="j-1"), "t")),
    ],
)
def test_a_request_finds_its_service(uri: str, host: str, found: object) -> None:
    assert route_of(uri, host, ["localhost"]) == found


@pytest.mark.parametrize(
    ("uri", "status"),
    [
        ("/", 404),
        ("/s/", 404),
        ("/s/../x", 400),
        ("/s/j-1/..", 400),
        ("/s/j-1/%2E%2e/x", 400),
        ("/s/j-1/..%5cx", 400),
        ("/s/j 1/", 400),
        ("*", 400),
        ("", 400),
        ("/s/j-1/é", 400),
        ("/s/%6a-1/", 404),
        ("/s/j-1/?weft_code=a%0d%0aX: y", 400),
        ("/s/j-1/?a=b&weft_token=weft_x", 400),
        ("/s/j-1/?a=b&weft%5Ftoken=weft_x", 400),
        ("/s/j-1/?weft_code=a%0d%0aSet-Cookie:x", 400),
    ],
)
def test_what_is_no_address_is_refused(uri: str, status: int) -> None:
    found = route_of(uri, "x", ["localhost"])
    assert isinstance(found, Refused)
    assert found.status == status


def test_the_configuration_has_a_handler_for_each_wait_and_names_no_replica() -> None:
    text = str(
        configuration(
            Proxy(
                listen="fd/3",
                listen_inside="fd/4",
                front=Path("/f"),
                admission=Path("/g"),
                admin=Path("/a"),
                log_port=9,
            )
        )
    )
    for route in ("http", "once", "h2c"):
        assert step_of(route, 0.0) == f"{route}-0.5"
        assert step_of(route, 1e9) == f"{route}-3600"
        for seconds in SILENCE_SECONDS:
            assert f"'{step_of(route, seconds)}'" in text
    assert "10.0.0" not in text


def test_what_is_told_comes_in_parts_that_a_message_holds() -> None:
    many = [ServiceServed(job_id=f"j-{number}", waits=dict.fromkeys(range(100), 1)) for number in range(2000)]
    parts = [*parted(many)]
    assert len(parts) > 3
    assert [one for part in parts for one in part] == many
    assert [*parted([])] == [()]
