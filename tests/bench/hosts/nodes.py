"""Many emulated nodes in a process: `python -m tests.bench.hosts.nodes URL SYNC_SECONDS RUN_SECONDS GPUS POOL:COUNT…`.

Each node reports as an executor does: every SYNC_SECONDS, at once when it is hinted or its runs changed, again after
ANSWER_SECONDS_MAX without an answer. What it is told to run, it says it runs, for RUN_SECONDS (0: for ever). The nodes
share one connection. Emulated is everything below the messages: there are no processes, containers or GPUs.

A line on standard input is a command, answered by one line of JSON: `count` (what happened since the last `count`),
`silence NODE…` (these nodes are switched off: nothing more is heard of them). The end of the input ends it.
"""

import asyncio
import random
import secrets
import sys
import time
from collections.abc import Callable

import msgspec
from msgspec import Struct, structs

from tests.bench.hosts.wire import Wire
from tests.support.builders import capacity
from tests.support.nodes import ScriptedNode
from weft.messages.nodes import NodeDesired

ANSWER_SECONDS_MAX = 3.0  # as the executor's
BACK_OFF_SECONDS = 0.1
INBOX = 0  # the number of the subscription for answers; that of a node's hints is its own number
LATENCIES_MAX = 50_000

_encode = msgspec.json.Encoder().encode
_answer = msgspec.json.Decoder(NodeDesired).decode


class Count(Struct, kw_only=True):
    """Of one process, since the last count. `reported` beyond `answered` and `late` are under way."""

    nodes: int = 0
    reported: int = 0
    answered: int = 0
    late: int = 0  # without an answer within ANSWER_SECONDS_MAX
    refused: int = 0
    started: int = 0
    ended: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    seconds: list[float] = []  # from a report to its answer, of LATENCIES_MAX at most


class Node:
    """`asked_at`: when the report under way was sent; None: none is."""

    def __init__(self, pool: str, name: str, number: int, gpus: int) -> None:
        self.scripted = ScriptedNode(name, capacity(gpus=gpus))
        self.pool, self.number = pool, number
        self.subject = f"weft.sync.{pool}.{name}"
        self.asked_at: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.failures = 0
        self.again = False
        self.off = False

    def report(self) -> bytes:
        return _encode(structs.replace(self.scripted.report(), pool=self.pool, leader=self.scripted.leader))


class Many:
    def __init__(self, *, sync_seconds: float, run_seconds: float) -> None:
        self.count = Count()
        self.nodes: list[Node] = []
        self.by_name: dict[str, Node] = {}
        self._sync_seconds, self._run_seconds = sync_seconds, run_seconds
        self._loop = asyncio.get_running_loop()
        self._inbox = f"_INBOX.{secrets.token_hex(6)}"
        self._wire: Wire | None = None

    async def connect(self, url: str) -> Wire:
        self._wire = await Wire.connect(url, self.hear, name="emulated-nodes")
        self._wire.subscribe(f"{self._inbox}.*", INBOX)
        return self._wire

    def add(self, pool: str, count: int, gpus: int) -> None:
        assert self._wire is not None
        for index in range(count):
            node = Node(pool, f"{pool}-{index}", len(self.nodes) + 1, gpus)
            self.nodes.append(node)
            self.by_name[node.scripted.node_id] = node
            self._wire.subscribe(f"weft.hints.{node.scripted.node_id}", node.number)
            self._at(node, random.uniform(0, self._sync_seconds), self._speak)

    def silence(self, names: list[str]) -> None:
        for name in names:
            node = self.by_name[name]
            node.off = True
            if node.timer is not None:
                node.timer.cancel()

    def counted(self) -> Count:
        assert self._wire is not None
        count, self.count = self.count, Count()
        count.nodes = len(self.nodes)
        count.bytes_in, count.bytes_out = self._wire.bytes_in, self._wire.bytes_out
        self._wire.bytes_in = self._wire.bytes_out = 0
        return count

    def hear(self, number: int, subject: str, payload: bytes) -> None:
        if number != INBOX:
            self._speak_now(self.nodes[number - 1])
            return
        self._answered(self.nodes[int(subject.rpartition(".")[2]) - 1], _answer(payload))

    def _at(self, node: Node, seconds: float, then: Callable[[Node], None]) -> None:
        if node.timer is not None:
            node.timer.cancel()
        node.timer = self._loop.call_later(seconds, then, node)

    def _speak_now(self, node: Node) -> None:
        if node.asked_at is None:
            self._speak(node)
        else:
            node.again = True

    def _speak(self, node: Node) -> None:
        if node.off:
            return
        assert self._wire is not None
        node.asked_at, node.again = self._loop.time(), False
        self.count.reported += 1
        self._wire.publish(node.subject, node.report(), reply=f"{self._inbox}.{node.number}")
        self._at(node, ANSWER_SECONDS_MAX, self._unanswered)

    def _unanswered(self, node: Node) -> None:
        node.asked_at = None
        node.failures += 1
        self.count.late += 1
        longest = min(self._sync_seconds, BACK_OFF_SECONDS * 2.0 ** min(node.failures, 10))
        self._at(node, longest * random.uniform(0.5, 1.0), self._speak)

    def _answered(self, node: Node, answer: NodeDesired) -> None:
        if node.off or node.asked_at is None or answer.seq != node.scripted.seq:
            return
        if answer.refused:
            self.count.refused += 1
            return
        self.count.answered += 1
        if len(self.count.seconds) < LATENCIES_MAX:
            self.count.seconds.append(self._loop.time() - node.asked_at)
        node.asked_at, node.failures = None, 0
        changed = self._take(node, answer)
        self._at(node, 0.0 if changed or node.again else self._sync_seconds, self._speak)

    def _take(self, node: Node, answer: NodeDesired) -> bool:
        """Whether the node's runs are others now."""
        scripted = node.scripted
        if answer.hold or (answer.unchanged and not scripted.runs):
            scripted.leader = answer.leader or scripted.leader
            return False
        before = set(scripted.live)
        scripted.take(answer, now=time.time())
        live = set(scripted.live)
        self.count.started += len(live - before)
        if self._run_seconds:
            for key in live - before:
                self._loop.call_later(self._run_seconds, self._end, node, key)
        return live != before

    def _end(self, node: Node, key: tuple[str, int, int]) -> None:
        if key in node.scripted.live:
            node.scripted.end(key, 0)
            self.count.ended += 1
            self._speak_now(node)


async def main(arguments: list[str]) -> None:
    url, sync_seconds, run_seconds, gpus, *pools = arguments
    many = Many(sync_seconds=float(sync_seconds), run_seconds=float(run_seconds))
    wire = await many.connect(url)
    for each in pools:
        pool, _, count = each.partition(":")
        many.add(pool, int(count), int(gpus))
    commands = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    while line := await commands.readline():
        assert not wire.lost.is_set(), "NATS closed the connection"
        what, *names = line.decode().split()
        if what == "silence":
            many.silence(names)
        sys.stdout.buffer.write(_encode(many.counted() if what == "count" else {}) + b"\n")
        sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
