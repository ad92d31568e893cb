"""A history recorded on nodes whose links are known is derived again with them, and a what-if answers with them."""

from collections.abc import Iterable, Sequence

import msgspec
import pytest
from msgspec import structs

from tests.support.builders import capacity
from tests.support.lives import Life
from tests.support.nodes import ScriptedNode
from tests.support.scheduler import World
from tests.support.tier import some
from tests.support.topologies import topology
from tests.unit.test_history import history_of, replayed, rewritten, steps_of
from weft.domain.cluster import Capacity, Node
from weft.domain.topology import Topology
from weft.messages.history import Record
from weft.planning.eta.learnt import Lasted
from weft.planning.policy import Policy
from weft.simulator.whatif.durations import Assumptions
from weft.simulator.whatif.look_ahead import LookAhead, WhatIfOutcome
from weft.simulator.whatif.present import Present, jobs_now
from weftd.scheduler.thinking.core_settings import Settings
from weftd.scheduler.thinking.record.entries import Loaded, Reported, entries_of

PAIRS = topology("pairs-8")


def without_links(has: Capacity) -> Capacity:
    return structs.replace(has, topology=None)


def with_flat_nodes(records: Iterable[Record]) -> Sequence[Record]:
    """The records as if no node had told its links."""
    found = []
    for record in records:
        entries = entries_of(record)
        for at, entry in enumerate(entries):
            if isinstance(entry, Reported):
                has = without_links(entry.report.capacity)
                entries[at] = structs.replace(entry, report=structs.replace(entry.report, capacity=has))
            elif isinstance(entry, Loaded):
                nodes = tuple(structs.replace(one, capacity=without_links(one.capacity)) for one in entry.nodes)
                entries[at] = structs.replace(entry, nodes=nodes)
        found.append(rewritten(record, entries))
    return found


@pytest.mark.parametrize("seed", some(2, range(0, 8, 2)))
async def test_a_history_of_nodes_with_links_is_derived_again_as_it_was(seed: int) -> None:
    life = Life(seed, nodes=2, gpus=8, topology=PAIRS)
    await life.live(150)
    await life.settle()
    records = await history_of(life)
    replay = replayed(records, records.specs)
    assert replay.difference is None
    assert replay.steps == sum(record.steps for record in records) > 0
    placed = [
        step.placement
        for record in records
        for entry in entries_of(record)
        for step in steps_of(entry)
        if step.placement is not None
    ]
    assert any(one.numbers.get("locality", 1.0) != 1.0 for one in placed), "no gang paid for its links"
    assert replayed(with_flat_nodes(records), records.specs).difference is not None, "the links decided nothing"


# a what-if


HELD = {"a-0": (0, 1), "a-2": (2, 2), "a-5": (5, 3)}
"""By job, the first of its GPUs of node-1, and how many: those that are left are in different sockets."""


def pool_with_two_waiting(links: Topology | None) -> World:
    has = structs.replace(capacity(gpus=8), topology=links)
    nodes = [ScriptedNode(name, has) for name in ("node-1", "node-2")]
    world = World(*nodes, settings=Settings(policy=Policy("fifo", "weft-best", "easy")))
    world.round()
    for job_id, (gpu, gpus) in HELD.items():
        world.submit(job_id, gpus=gpus, spec={"time_limit": "60m", "pin": {"node": "node-1", "gpu": gpu}})
    world.round()
    world.submit("pair", gpus=2, spec={"time_limit": "20m"})
    world.submit("whole", gpus=8, spec={"time_limit": "5m"})
    return world


def answered(world: World) -> dict[str, WhatIfOutcome]:
    """The answer of a what-if about the pool as it is, made of what a store has of it."""
    nodes, jobs = world.core.cluster_state.pool.nodes.values(), world.core.cluster_state.jobs.values()
    stored = msgspec.json.decode(msgspec.json.encode(tuple(nodes)), type=tuple[Node, ...])
    now = jobs_now(jobs, Assumptions(Lasted()), {}, at=world.now)
    present = Present(nodes=stored, jobs=now, policy=world.core.settings.policy)
    return dict(LookAhead(present).outcomes())


@pytest.mark.parametrize(("links", "node_of_pair", "starts_s"), [(PAIRS, "node-2", 1200.0), (None, "node-1", 0.0)])
def test_a_what_if_places_by_links_as_the_scheduler_does(
    links: Topology | None, node_of_pair: str, starts_s: float
) -> None:
    """The pair goes to NVLinks on the empty node, and the job that needs a whole node waits for it."""
    world = pool_with_two_waiting(links)
    told = answered(world)
    assert (told["pair"].starts_s, told["whole"].starts_s) == (0.0, starts_s)
    world.round()
    pair, whole = (world.core.cluster_state.jobs[job_id].placement for job_id in ("pair", "whole"))
    assert pair is not None
    assert {one.node_id for one in pair.allocations} == {node_of_pair}
    assert (whole is not None) == (starts_s == 0.0)
