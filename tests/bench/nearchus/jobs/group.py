"""Who takes part: the ranks of a job with servers, and the connections between them, made anew when ranks come or go.

Of a job that resizes live the file WEFT_MEMBERS tells the ranks, and its number of changes is the generation: servers
and workers of one generation meet, and whoever finds that another has begun, or loses a connection, meets again.
"""

import json
import os
import socket
import struct
import time
from collections.abc import Mapping

from .told import Place
from .wire import listen, prompt

HELLO = struct.Struct("!qq")  # generation, rank
READY = b"!"
POLL_SECONDS = 0.05
TRY_SECONDS_MAX = 5.0

Task = tuple[int, str, int]
"""Rank, address, port."""


class ChangedError(Exception):
    """Ranks came or went: meet again."""


class Members:
    """The ranks by role, in the order of their numbers; `changes` counts how often they changed."""

    def __init__(self, place: Place) -> None:
        self._path = os.environ.get("WEFT_MEMBERS", "")
        self._own = (place.role, int(os.environ["WEFT_RANK"]) if self._path else place.number)
        self._fixed = {
            role: [(number, *address) for number, address in enumerate(addresses)]
            for role, addresses in place.addresses.items()
        }
        self._stamp: tuple[int, int] = (0, 0)
        self.changes = 0
        self.roles: Mapping[str, list[Task]] = self._fixed
        self.changed()

    @property
    def may_change(self) -> bool:
        return bool(self._path)

    @property
    def rank(self) -> int:
        return self._own[1]

    @property
    def port(self) -> int:
        return next((task[2] for task in self.roles[self._own[0]] if task[0] == self.rank), 0)

    @property
    def position(self) -> int:
        """Of this rank among those of its role."""
        return [task[0] for task in self.roles[self._own[0]]].index(self.rank)

    def changed(self) -> bool:
        """Whether ranks came or went since it was last asked; then `roles` are the present ones."""
        if not self._path:
            return False
        there = os.stat(self._path)
        stamp = (there.st_ino, there.st_mtime_ns)
        if stamp == self._stamp:
            return False
        with open(self._path) as file:
            told = json.load(file)
        self._stamp = stamp
        roles: dict[str, list[Task]] = {}
        for one in sorted(told["ranks"], key=lambda one: one["rank"]):
            roles.setdefault(one["role"], []).append((one["rank"], one["address"], one["port"]))
        if (self.rank not in {task[0] for task in roles.get(self._own[0], ())}) or (
            self.changes == told["changes"] and self.roles == roles
        ):
            return False  # this rank is about to leave, or nothing is new
        self.changes, self.roles = told["changes"], roles
        return True

    def check(self) -> None:
        """Raises ChangedError if ranks came or went."""
        if self.changed():
            raise ChangedError


class Door:
    """A server's side: it takes in all workers of its generation before the first step."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._door = listen(members.port)
        self._door.settimeout(POLL_SECONDS)

    def meet(self) -> list[socket.socket]:
        """The workers, by rank. Raises ChangedError."""
        wanted = [task[0] for task in self._members.roles["worker"]]
        met: dict[int, socket.socket] = {}
        try:
            while set(met) != set(wanted):
                self._members.check()
                try:
                    peer = self._door.accept()[0]
                except TimeoutError:
                    continue
                generation, rank = _hello(peer)
                if generation == self._members.changes and rank in wanted:
                    part([met[rank]] if rank in met else [])
                    met[rank] = peer
                else:
                    peer.close()
            found = [prompt(met[rank]) for rank in wanted]
            for worker in found:
                worker.sendall(READY)
        except (ChangedError, OSError) as error:
            part(list(met.values()))
            raise ChangedError from error
        return found


def meet(members: Members) -> list[socket.socket]:
    """A worker's side: connections to all servers, by rank. Raises ChangedError."""
    met: list[socket.socket] = []
    try:
        for _, address, port in members.roles["ps"]:
            met.append(_connected(members, address, port))
        for server in met:
            server.sendall(HELLO.pack(members.changes, members.rank))
        for server in met:
            _await_ready(members, server)
    except (ChangedError, OSError) as error:
        part(met)
        time.sleep(POLL_SECONDS)
        raise ChangedError from error
    return met


def part(met: list[socket.socket]) -> None:
    for one in met:
        one.close()


def _hello(peer: socket.socket) -> tuple[int, int]:
    """The generation and rank of who comes in; (-1, -1) if it says nothing of the kind."""
    peer.settimeout(TRY_SECONDS_MAX)
    try:
        told = peer.recv(HELLO.size, socket.MSG_WAITALL)
    except OSError:
        return -1, -1
    return HELLO.unpack(told) if len(told) == HELLO.size else (-1, -1)


def _connected(members: Members, address: str, port: int) -> socket.socket:
    while True:
        members.check()
        try:
            return socket.create_connection((address, port), timeout=TRY_SECONDS_MAX)
        except OSError:
            time.sleep(POLL_SECONDS)


def _await_ready(members: Members, server: socket.socket) -> None:
    """Until the server has all workers. Raises ChangedError, ConnectionError."""
    server.settimeout(POLL_SECONDS)
    while True:
        members.check()
        try:
            if server.recv(1) != READY:
                raise ConnectionError("the server meets another generation")
        except TimeoutError:
            continue
        prompt(server)
        return
