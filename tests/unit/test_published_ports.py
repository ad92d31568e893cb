"""Where a container that serves requests is reached: the addresses and ports that are asked for, and what is found."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import order
from weft.messages.nodes import Serve
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts, Refusal
from weftd.executor.machine.ports import PortRange
from weftd.executor.runs import RunKey, RuntimeUnavailableError
from weftd.executor.runtime.docker.container import HOST_NETWORK, Joined, ServedAt
from weftd.executor.runtime.docker.doors import PublishedPort, door_of, served
from weftd.executor.serving.records import ServedRuns

SERVE = Serve(port=8080)
ALONE = Joined(network="weft-alone", named=True)


def inspected(*bound: tuple[str, str], port: int = 8080) -> dict[str, Any]:
    ports = {f"{port}/tcp": [{"HostIp": address, "HostPort": number} for address, number in bound] or None}
    return {"NetworkSettings": {"Ports": ports}}


def asked(tmp_path: Path, node: NodeFacts, *, joined: Joined = ALONE, serve: Serve = SERVE) -> ServedAt | None:
    return asyncio.run(served(order(serve=serve), node, ServedRuns(Home(tmp_path)), joined))


def facts(**fields: Any) -> NodeFacts:
    return NodeFacts(node_id="node-1", checkpoints="/c", results="/r", **fields)


@pytest.mark.parametrize(
    ("fields", "address"),
    [
        ({}, "127.0.0.1"),
        ({"address": "10.0.0.6"}, "10.0.0.6"),
        ({"address": "localhost"}, "127.0.0.1"),
        ({"address": "203.0.113.7", "publish_at": "10.0.0.6"}, "10.0.0.6"),
        ({"address": "fd00::1"}, "fd00::1"),
    ],
)
def test_a_port_is_published_at_the_address_of_the_node(tmp_path: Path, fields: dict[str, str], address: str) -> None:
    assert asked(tmp_path, facts(**fields)) == ServedAt(port=8080, publish_at=address)


def test_an_address_that_means_nothing_here_is_tried_again_later(tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailableError, match=r"the node.s address no-such-host\.invalid is not known"):
        asked(tmp_path, facts(address="no-such-host.invalid"))


def test_a_container_with_the_network_of_its_host_gets_a_port_of_the_node(tmp_path: Path) -> None:
    ports = PortRange(first=64_100, last=64_199)
    found = asked(tmp_path, facts(ports=ports), joined=Joined(network=HOST_NETWORK, named=False))
    assert found is not None
    assert found.publish_at == ""
    assert 64_100 <= found.port <= 64_199
    assert ServedRuns(Home(tmp_path)).port(RunKey("job-1", 1, 0)) == found.port


@pytest.mark.parametrize("port", [-1, 0, 65_536])
def test_a_port_that_is_none_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(Refusal, match=f"service.port: {port} is not between 1 and 65535"):
        asked(tmp_path, facts(), serve=Serve(port=port))


@pytest.mark.parametrize(
    ("found", "port"),
    [
        (inspected(("172.17.0.1", "32768")), PublishedPort("172.17.0.1", 32_768)),
        (inspected(("0.0.0.0", "32768")), PublishedPort("127.0.0.1", 32_768)),
        (inspected(("::", "32768")), PublishedPort("127.0.0.1", 32_768)),
        (inspected(("0.0.0.0", "8080"), ("10.0.0.6", "32768")), PublishedPort("10.0.0.6", 32_768)),
        (inspected(("10.0.0.6", "")), None),
        (inspected(("10.0.0.6", "99999")), None),
        (inspected(), None),
        (inspected(("10.0.0.6", "32768"), port=9), None),
        ({"NetworkSettings": {"Ports": None}}, None),
    ],
)
def test_the_port_is_found_again_by_inspection(found: dict[str, Any], port: PublishedPort | None) -> None:
    assert door_of(found, SERVE, None) == port


def test_a_container_that_does_not_serve_has_no_port() -> None:
    assert door_of(inspected(("10.0.0.6", "32768")), None, None) is None
    assert door_of({}, SERVE, 64_100) == PublishedPort("127.0.0.1", 64_100)


def test_records_that_a_disk_spoilt_count_as_none(tmp_path: Path) -> None:
    runs = ServedRuns(Home(tmp_path))
    key = RunKey("job-1", 1, 0)
    runs.begin(key, SERVE, None)
    folder = tmp_path / "serving"
    (folder / "job-3-1-0").write_bytes(b"{")
    (folder / "job-4-1-0").mkdir()
    assert set(ServedRuns(Home(tmp_path)).keys) == {key}
    runs.forget(key)
    runs.forget(key)
    assert not ServedRuns(Home(tmp_path)).keys
