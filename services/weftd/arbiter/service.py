"""The arbiter's loop: it waits for messages and for the core's next moment, and looks at the folders now and then.

One thread, and no call that waits for a process of a job. A slot that floods it is dropped or rests; a folder that
cannot be served is logged once, and the others are served.
"""

import errno
import logging
import math
import os
import select
import time
from collections.abc import Callable
from itertools import count

from weft.sharing import slots
from weft.sharing.records import SlotShare
from weft.sharing.wire import Op, ShareMessage
from weftd.arbiter.connection import HookConnection
from weftd.arbiter.folder import SlotFolder
from weftd.arbiter.served import ServedSlot
from weftd.arbiter.settings import ArbiterSettings
from weftd.arbiter.thinking.core import Arbiter
from weftd.arbiter.thinking.slot import TurnPace
from weftd.arbiter.thinking.turns import Grant

logger = logging.getLogger(__name__)

BEAT_SECONDS = 0.2
SEEN_SECONDS = 1.0
COMPLAINT_SECONDS = 10.0
TRY_AGAIN_SECONDS = 0.5
ACCEPTED_AT_ONCE = 64
COARSE_SECONDS = 0.01
"""`epoll` waits in whole milliseconds. What is due sooner than this is waited for by `select`, on the epoll itself."""


class ArbiterLoop:
    def __init__(self, settings: ArbiterSettings, root: int, *, pace: TurnPace | None = None) -> None:
        """`root` is the descriptor of the folder in the settings."""
        self._settings, self._root = settings, root
        self._pace = pace or TurnPace()
        self._core = Arbiter(self._pace)
        self._epoll = select.epoll()
        self._slots: dict[str, ServedSlot] = {}
        self._listeners: dict[int, str] = {}
        self._clients: dict[int, HookConnection] = {}  # by descriptor
        self._numbers = count(1)
        self._by_number: dict[int, HookConnection] = {}
        self._complained_at: dict[str, float] = {}
        self._try_again_at: dict[str, float] = {}  # slots that could not be served
        self._look_at = self._beat_at = self._seen_at = 0.0

    def run(self, stop: Callable[[], bool], *, wakes: int) -> None:
        """Serve until `stop` or the root is gone. Something to read at the descriptor `wakes` ends a wait."""
        self._epoll.register(wakes, select.EPOLLIN)
        try:
            while not stop():
                now = time.monotonic()
                if now >= self._look_at:
                    if not self._root_is_there():
                        logger.info("the folder of slots is gone")
                        return
                    self._look(now)
                self._decide()
                self._handle(self._wait(wakes), wakes)
        finally:
            for name in list(self._slots):
                self._drop(name)
            self._epoll.close()

    # waiting and messages

    def _wait(self, wakes: int) -> list[tuple[int, int]]:
        at = self._core.next_at()
        seconds = self._look_at - time.monotonic()
        if at is not None:
            seconds = min(seconds, (at - _microseconds()) / 1_000_000)
        if 0 < seconds < COARSE_SECONDS:
            select.select([self._epoll.fileno()], [], [], seconds)
            seconds = 0.0
        return self._epoll.poll(max(0.0, seconds))

    def _handle(self, events: list[tuple[int, int]], wakes: int) -> None:
        for fd, _ in events:
            if (client := self._clients.get(fd)) is not None:
                self._read(client)
            elif (name := self._listeners.get(fd)) is not None:
                self._accept(name)
            elif fd == wakes:
                os.read(wakes, 64)

    def _read(self, client: HookConnection) -> None:
        messages, goes_on = client.read()
        served = self._slots[client.slot]
        if not served.may_send(len(messages)):
            self._complain(client.slot, "sends more messages than a slot may")
            served.refused += 1
            goes_on = False
        now = _microseconds()
        for message in messages:
            match message.op:
                case Op.WANT:
                    self._core.want(client.number, message.a, now)
                case Op.RETURN:
                    self._core.returned(client.number, message.turn, message.a, message.b, now)
                case Op.CHARGE:
                    self._core.charge(client.number, message.a, now)
                case _:
                    self._name_entry(served, client, message)
        if not goes_on:
            self._end(client)

    def _name_entry(self, served: ServedSlot, client: HookConnection, message: ShareMessage) -> None:
        try:
            served.name_entry(client, message.a)
        except OSError as error:
            self._complain(client.slot, f"its use page cannot be read: {error}")

    def _accept(self, name: str) -> None:
        served = self._slots[name]
        for _ in range(ACCEPTED_AT_ONCE):
            if served.is_flooded():
                self._complain(name, "more connections are made than a slot may")
                self._rest(served)
                return
            try:
                connection, _ = served.folder.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._complain(name, f"a connection cannot be accepted: {error}")
                    self._rest(served)
                return
            if len(served.clients) >= self._settings.clients_max:
                connection.close()
                served.refused += 1
                continue
            served.accepted += 1
            client = HookConnection(connection, name, next(self._numbers))
            served.clients[client.number] = self._clients[client.fd] = self._by_number[client.number] = client
            self._epoll.register(client.fd, select.EPOLLIN)
            self._core.connected(client.number, name)

    def _rest(self, served: ServedSlot) -> None:
        """Accept nothing of this slot until the next look at the folders."""
        self._epoll.unregister(served.folder.listener.fileno())
        served.resting = True

    def _end(self, client: HookConnection) -> None:
        served = self._slots[client.slot]
        self._forget(client)
        del served.clients[client.number]
        self._core.gone(client.number, _microseconds())
        try:
            served.free_entry(client)
        except OSError as error:
            self._complain(client.slot, f"its use page cannot be written: {error}")

    def _forget(self, client: HookConnection) -> None:
        del self._clients[client.fd], self._by_number[client.number]
        self._epoll.unregister(client.fd)
        client.close()

    def _decide(self) -> None:
        """Send what follows. A process that cannot be sent to is gone, which may have consequences of its own."""
        while orders := self._core.decide(_microseconds()):
            for order in orders:
                client = self._by_number.get(order.client)
                if client is None:
                    continue
                if isinstance(order, Grant):
                    message = ShareMessage(Op.GRANT, 0, order.turn, order.quota, order.in_flight)
                else:
                    message = ShareMessage(Op.REVOKE, 0, order.turn)
                if not client.send(message):
                    self._slots[client.slot].refused += client.is_full
                    self._end(client)

    # folders

    def _root_is_there(self) -> bool:
        try:
            found = os.stat(self._settings.root)
        except OSError:
            return False
        return found.st_ino == os.fstat(self._root).st_ino

    def _look(self, now: float) -> None:
        """Serve the slots that are there, as their shares say now; beat; write what was seen."""
        passed = min(1.0, now - self._look_at + self._settings.look_seconds)
        self._look_at = now + self._settings.look_seconds
        rate = self._settings.messages_per_second_max
        try:
            there = set(slots.slot_names(self._settings.root))
        except OSError as error:
            self._complain("", f"the slots cannot be listed: {error}")
            return
        for name in [name for name, served in self._slots.items() if name not in there or not served.folder.is_there()]:
            logger.info("a slot is gone", extra={"slot": name})
            self._drop(name)
        for name in sorted(there):
            if (known := self._slots.get(name)) is None:
                if now >= self._try_again_at.get(name, 0.0) and not self._begin(name):
                    self._try_again_at[name] = now + TRY_AGAIN_SECONDS
            else:
                self._renew(name, known)
                known.refill(rate * passed, rate / 4)
                if known.resting:
                    self._epoll.register(known.folder.listener.fileno(), select.EPOLLIN)
                    known.resting = False
        for kept in (self._complained_at, self._try_again_at):
            for name in kept.keys() - there - {""}:
                del kept[name]
        if now >= self._beat_at:
            self._beat_at = now + BEAT_SECONDS
            self._beat()
        if now >= self._seen_at:
            self._seen_at = now + SEEN_SECONDS
            self._see(now)

    def _begin(self, name: str) -> bool:
        """Serve a slot. False if it cannot be served for now."""
        try:
            folder = SlotFolder(self._root, name)
        except (OSError, ValueError) as error:
            self._complain(name, f"the folder cannot be served: {error}")
            return False
        try:
            share = folder.changed_share()
            assert share is not None  # a first look is always a change
            folder.tell(share, in_flight_us=self._pace.in_flight, now_ns=time.monotonic_ns())
        except (OSError, ValueError) as error:
            self._complain(name, f"the slot cannot be served: {error}")
            folder.close()
            return False
        served = ServedSlot(folder, share)
        served.refill(self._settings.messages_per_second_max / 4, self._settings.messages_per_second_max / 4)
        self._slots[name] = served
        self._listeners[folder.listener.fileno()] = name
        self._epoll.register(folder.listener.fileno(), select.EPOLLIN)
        self._core.serve(name, served.terms, _microseconds())
        logger.info("a slot is served", extra={"slot": name, **_told(share)})
        return True

    def _renew(self, name: str, served: ServedSlot) -> None:
        """Let a changed share take effect. One that cannot be read changes nothing."""
        try:
            share = served.folder.changed_share()
            if share is None or share == served.share:
                return
            served.folder.tell(share, in_flight_us=self._pace.in_flight, now_ns=time.monotonic_ns())
        except (OSError, ValueError) as error:
            self._complain(name, f"the share stays as it was: {error}")
            return
        served.share = share
        self._core.serve(name, served.terms, _microseconds())
        logger.info("a share changed", extra={"slot": name, **_told(share)})

    def _drop(self, name: str) -> None:
        served = self._slots[name]
        for client in list(served.clients.values()):
            self._forget(client)
        listener = served.folder.listener.fileno()
        if not served.resting:
            self._epoll.unregister(listener)
        del self._listeners[listener], self._slots[name]
        self._core.drop(name, _microseconds())
        served.folder.close()

    def _beat(self) -> None:
        for name, served in self._slots.items():
            try:
                served.folder.limits.beat(time.monotonic_ns())
            except OSError as error:
                self._complain(name, f"its limits page cannot be written: {error}")

    def _see(self, now: float) -> None:
        self._core.account(_microseconds())
        for name, served in self._slots.items():
            slot = self._core.slot(name)
            assert slot is not None  # every served slot is known to the core
            try:
                served.look(slot, now, time.monotonic_ns())
            except OSError as error:
                self._complain(name, f"what was seen cannot be written: {error}")

    def _complain(self, slot: str, what: str) -> None:
        """Log a problem of a slot, if none was logged lately: a job may cause as many as it likes."""
        now = time.monotonic()
        if now - self._complained_at.get(slot, -math.inf) >= COMPLAINT_SECONDS:
            self._complained_at[slot] = now
            logger.warning(what, extra={"slot": slot})


def _microseconds() -> int:
    return time.monotonic_ns() // 1000


def _told(share: SlotShare) -> dict[str, object]:
    return {"job": share.job, "gpu": share.gpu, "request": share.request, "limit": share.limit, "memory": share.memory}
