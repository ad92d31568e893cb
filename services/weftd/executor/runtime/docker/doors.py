"""Where a container that serves requests is reached from outside of it.

Its port is published at the node's address, on a port of the host that the engine chooses: the container stays in its
own network. A container that has the network of its host listens at a port that the node chose, as a process does.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from weft.messages.nodes import Serve, StartRun
from weftd.executor.machine.node import NodeFacts, Refusal
from weftd.executor.runs import RunKey, RuntimeUnavailableError
from weftd.executor.runtime.docker.container import HOST_NETWORK, Joined, ServedAt
from weftd.executor.serving.probe import probe
from weftd.executor.serving.records import PORT_MAX, ServedRuns

RESOLVE_SECONDS_MAX = 5.0
LOOPBACK = "127.0.0.1"
EVERYWHERE = ("0.0.0.0", "::", "")


class PublishedPort(Struct, frozen=True):
    """Where this host reaches a container that serves requests."""

    address: str
    port: int


async def served(order: StartRun, node: NodeFacts, runs: ServedRuns, joined: Joined) -> ServedAt | None:
    """How the order's container serves requests; None if it does not. Raises Refusal, RuntimeUnavailableError."""
    serve = order.serve
    if serve is None:
        return None
    if not 1 <= serve.port <= PORT_MAX:
        raise Refusal(f"service.port: {serve.port} is not between 1 and {PORT_MAX}")
    if joined.network == HOST_NETWORK:
        port = runs.begin(RunKey.of(order), serve, node.ports)
        return ServedAt(port=port or serve.port)
    runs.begin(RunKey.of(order), serve, None)
    return ServedAt(port=serve.port, publish_at=await _resolved(node.publish_at or node.address))


async def _resolved(name: str) -> str:
    """The address of this host that a name means: the engine publishes at addresses only."""
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        async with asyncio.timeout(RESOLVE_SECONDS_MAX):
            found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError) as error:
        raise RuntimeUnavailableError(f"the node's address {name} is not known on this node: {error}") from error
    found.sort(key=lambda one: one[0] is not socket.AF_INET)
    return str(found[0][4][0])


def door_of(inspected: Mapping[str, Any], serve: Serve | None, chosen: int | None) -> PublishedPort | None:
    """The door of an inspected container; None if it has none. `chosen`: the port that the node chose for it."""
    if serve is None:
        return None
    if chosen is not None:
        return PublishedPort(LOOPBACK, chosen)
    bound = (inspected["NetworkSettings"].get("Ports") or {}).get(f"{serve.port}/tcp") or []
    for one in reversed(bound):  # rank 0's own publication of that port comes first, at every address
        if str(one["HostPort"]).isdecimal() and 1 <= int(one["HostPort"]) <= PORT_MAX:
            address = str(one["HostIp"])
            return PublishedPort(LOOPBACK if address in EVERYWHERE else address, int(one["HostPort"]))
    return None


async def ask(door: PublishedPort | None, serve: Serve | None) -> str:
    if door is None or serve is None:
        return "it does not serve requests"
    return await probe(door.address, door.port, serve.ready)
