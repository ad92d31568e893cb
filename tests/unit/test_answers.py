"""What nodes are answered: each job's part once, as much as one message carries, and nothing that the node has."""

import asyncio
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.support.builders import job, spec
from tests.support.doubles.bus import MemoryBus
from tests.support.doubles.runtime import FakeHost, FakeProgress, FakeRuntime
from tests.support.doubles.store import MemoryStore
from tests.support.memory_keeper import MemoryKeeper
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import world
from tests.support.tier import of_tier
from tests.support.virtual_time import run_virtually
from weft.bus.wire import decode, encode
from weft.domain.cluster import Capacity, Node
from weft.domain.job import Allocation, Job, JobState, Placement
from weft.messages.asks import RankTuning
from weft.messages.nodes import JobOrder, NodeDesired, NodeReported
from weftd.executor import service as executor
from weftd.executor.settings import ExecutorSettings
from weftd.executor.thinking.core import Reconciler, ReconcilerTimings
from weftd.executor.thinking.orders import runs_of
from weftd.scheduler import service as scheduler
from weftd.scheduler.settings import SchedulerSettings
from weftd.scheduler.thinking.answers import ANSWER_BYTES_MAX, Answers, carried, digest_of_jobs
from weftd.scheduler.thinking.state.orders import OrderBytes, job_order, node_orders

MIB = 1 << 20
CARRIED_MAX = 8 * MIB  # by the bus
RANKS = 4096  # as many as a specification may ask for
BIG = Capacity(cpus=4096.0, memory=4096 << 30)


def placed(ranks: int, nodes: int = 1) -> tuple[Job, dict[str, Node]]:
    """A job of so many ranks of two roles, one after the other on so many nodes."""
    made = job(
        "j-1",
        gpus=0,
        spec={
            "env": {"A": "1", "B": "2"},
            "roles": {"ps": {"env": {"B": "3"}}, "worker": {"replicas": {"want": ranks}}},
        },
    )
    allocations = tuple(
        Allocation(
            rank=rank,
            role="ps" if rank == 0 else "worker",
            node_id=f"node-{rank * nodes // (ranks + 1)}",
            gpus=(rank,) if rank % 3 else (),
            cpus=0.1 * rank,
            memory=rank,
            egress=rank or None,
        )
        for rank in range(ranks + 1)
    )
    known = {
        f"node-{number}": Node(id=f"node-{number}", pool="default", address=f"10.0.0.{number}", capacity=BIG)
        for number in range(nodes)
    }
    placement = Placement(allocations=allocations, master_address="10.0.0.0", master_port=12345)
    return structs.replace(made, placement=placement, state=JobState.PLACED), known


def orders_of(made: Job, known: dict[str, Node]) -> dict[str, JobOrder]:
    return node_orders(made, job_order(made, known))


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(1, 40), nodes=st.integers(1, 5))
def test_what_ranks_share_is_said_once_and_every_rank_gets_all_of_it(ranks: int, nodes: int) -> None:
    made, known = placed(ranks, nodes)
    assert made.placement is not None
    allocations = made.placement.allocations
    address = {allocation.rank: known[allocation.node_id].address for allocation in allocations}
    peers = {"ps": (address[0],), "worker": tuple(address[rank] for rank in range(1, ranks + 1))}
    envs = {"ps": {"A": "1", "B": "3"}, "worker": {"A": "1", "B": "2"}}
    found: dict[int, str] = {}
    for node_id, order in orders_of(made, known).items():
        answer = decode(NodeDesired, encode(NodeDesired(seq=1, jobs=(order,))))
        for run in runs_of(answer.jobs[0]):
            allocation = allocations[run.rank]
            assert (run.role, run.role_rank) == (allocation.role, max(0, run.rank - 1))
            assert (run.gpus, run.cpus) == (allocation.gpus, allocation.cpus)
            assert (run.memory, run.egress) == (allocation.memory, allocation.egress)
            assert (run.env, run.peers, run.world_size) == (envs[run.role], peers, ranks + 1)
            assert (run.command, run.master_port) == (made.spec.command, 12345)
            found[run.rank] = node_id
    assert found == {allocation.rank: allocation.node_id for allocation in allocations}


def test_the_orders_of_4096_ranks_take_a_twentieth_of_what_a_message_carries() -> None:
    made, known = placed(RANKS - 1)
    answer = NodeDesired(seq=1, jobs=tuple(orders_of(made, known).values()))
    assert len(encode(answer)) < CARRIED_MAX / 20


# the content of one message


def loads_of(orders: list[JobOrder], *, ranks: int) -> dict[str, OrderBytes]:
    """Orders of which `ranks` ranks fill an answer, besides the part that they share."""
    return {order.job_id: OrderBytes(shared=0, rank=ANSWER_BYTES_MAX // ranks) for order in orders}


def orders_of_two(first: int, second: int) -> list[JobOrder]:
    """The orders of two jobs for one node, with `first` and `second` ranks."""
    made, known = placed(max(first, second))
    order = orders_of(made, known)["node-0"]
    return [
        structs.replace(order, job_id=job_id, ranks=order.ranks[:count])
        for job_id, count in (("j-1", first), ("j-2", second))
    ]


def test_a_job_that_grows_keeps_the_ranks_that_its_node_has_where_the_others_do_not_fit() -> None:
    grows, waits = orders_of_two(3, 2)
    known = {("j-1", 0, 0), ("j-1", 0, 1)}
    found = carried([grows, waits], known, loads_of([grows, waits], ranks=2))
    assert [(order.job_id, order.ranks) for order in found.orders] == [("j-1", grows.ranks[:2])]
    assert (found.left_out, found.never) == ({"j-1", "j-2"}, set())


def test_what_fits_beside_the_runs_of_a_node_is_carried_whole_or_not_at_all() -> None:
    first, second = orders_of_two(2, 2)
    found = carried([first, second], {("j-1", 0, 0)}, loads_of([first, second], ranks=3))
    assert (found.orders, found.left_out) == ((first,), {"j-2"})
    found = carried([first, second], set(), loads_of([first, second], ranks=1))
    assert (found.orders, found.left_out, found.never) == ((), {"j-1", "j-2"}, {"j-1", "j-2"})


class MeasuringBus(MemoryBus):
    """Keeps the size of the largest message, as it is on the wire."""

    largest = 0

    async def request(self, message: Any, reply: Any, *, seconds_max: float) -> Any:
        answer = await super().request(message, reply, seconds_max=seconds_max)
        self.largest = max(self.largest, len(encode(message)), len(encode(answer)))
        return answer


def test_a_job_of_very_many_ranks_starts_on_one_node() -> None:
    """226 of 400 did, and the job failed after 15 minutes with no reason."""
    ranks = of_tier(1024, RANKS)

    async def story() -> None:
        bus, store, stop, now = MeasuringBus(), MemoryStore(), asyncio.Event(), asyncio.get_running_loop().time
        host = FakeHost(now=now)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(
                scheduler.run(SchedulerSettings(), bus=bus, store=store, stop=stop, holder="me", clock=now)
            )
            tasks.create_task(
                executor.run(
                    ExecutorSettings(node_id="node-1", home=Path("unused")),
                    bus=bus,
                    runtime=FakeRuntime(host),
                    progress=FakeProgress(),
                    state_file=MemoryKeeper(),
                    capacity=lambda: BIG,
                    stop=stop,
                    clock=now,
                    jitter=lambda: 0.5,
                )
            )
            worker = {"replicas": {"want": ranks}, "cpus": 0.01, "memory": "64MiB"}
            wanted = spec(roles={"worker": worker})
            await store.submit(wanted, job_id="j-1", tenant="alice", key=None, at=now())
            async with asyncio.timeout(120):
                while (made := await store.job("j-1")) is None or made.state is not JobState.RUNNING:  # noqa: ASYNC110 - bounded
                    await asyncio.sleep(0.5)
            stop.set()
        assert made.epoch == 0
        assert len(host.starts) == ranks
        assert 0 < bus.largest < CARRIED_MAX / 4

    run_virtually(story())


# what has not changed


def answers_of(node: ScriptedNode, *, runs: int = 3) -> tuple[Answers, Any]:
    made, known = placed(runs - 1)
    (order,) = orders_of(made, known).values()
    answers = Answers()

    def answer(report: NodeReported, *, fewer: int = 0) -> NodeDesired:
        ranks = order.ranks[: len(order.ranks) - fewer]
        return answers.answer(report, (structs.replace(order, ranks=ranks),))

    return answers, answer


def test_a_node_that_goes_by_the_same_answer_is_told_only_that_it_is_the_same() -> None:
    node = ScriptedNode("node-0", BIG)
    _, answer = answers_of(node)
    node.take(answer(node.report()))
    assert len(node.live) == 3
    again = answer(node.report())
    assert again.unchanged
    assert again.jobs == ()
    node.take(again)
    assert len(node.live) == 3
    node.take(answer(node.report(), fewer=1))
    assert len(node.live) == 2


def test_an_executor_that_began_anew_is_told_everything() -> None:
    node = ScriptedNode("node-0", BIG)
    _, answer = answers_of(node)
    node.take(answer(node.report()))
    node.holds = ""
    assert not answer(node.report()).unchanged


def test_a_new_leader_finds_the_same_orders_unchanged_and_others_not() -> None:
    node = ScriptedNode("node-0", BIG)
    _, first = answers_of(node)
    node.take(first(node.report()))
    _, second = answers_of(node)
    assert second(node.report()).unchanged
    assert not second(node.report(), fewer=1).unchanged


def test_an_executor_takes_an_unchanged_answer_as_a_sync_and_keeps_what_is_desired() -> None:
    made, known = placed(2)
    jobs = tuple(orders_of(made, known).values())
    core = Reconciler(ReconcilerTimings())
    core.observe(NodeDesired(seq=1, jobs=jobs, digest=digest_of_jobs(jobs)), reported=(), sent_at=0.0)
    core.observe(NodeDesired(seq=2, digest=core.holds, unchanged=True), reported=(), sent_at=80.0)
    assert not core.fenced(100.0)
    assert len(core.decide([], busy=frozenset(), now=100.0)) == 3


def test_changed_limits_of_a_run_are_another_answer() -> None:
    w = world(gpus=0)
    w.submit("j-1", gpus=0)
    w.round()
    before = digest_of_jobs(w.core.answer("node-1"))
    w.tune("j-1", RankTuning(rank=0, cpus=2.0))
    w.round()
    assert digest_of_jobs(w.core.answer("node-1")) != before
