"""When a run that serves requests counts as ready, and what its node says of it and does with it."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from tests.support.doubles.runtime import Program
from tests.support.runs import order
from tests.unit.test_executor_service import KEY, World, story
from weft.messages.nodes import (
    EndReason,
    JobOrder,
    RankOrder,
    RevisionOrder,
    RoleOrder,
    RunState,
    Serve,
    StartRun,
)
from weft.messages.serving import WHY_CHARS_MAX, EndpointsSeen, ReplicaServed, ServiceServed, ServicesServed
from weftd.executor.machine.environment import RunFacts, environment
from weftd.executor.machine.ports import PortRange, free_port, lane_of
from weftd.executor.runs import Run, RunKey
from weftd.executor.serving.logends import CHARS_MAX, LINES_MAX, last_lines
from weftd.executor.thinking.orders import runs_of
from weftd.executor.thinking.serving import (
    AGAIN_SECONDS,
    ENDED_SECONDS,
    FIRST_SECONDS,
    WORDS_CHARS_MAX,
    Readiness,
    ReadySince,
)

SERVE = Serve(port=8080, ready="/healthz", drain=20.0, address="/s/job-1/")


def run_of(key: RunKey = KEY, **fields: Any) -> Run:
    return Run(**{"key": key, "state": RunState.RUNNING, "serve": SERVE, "port": 8080, "started_at": 5.0, **fields})


def looked(*runs: Run, ready: tuple[ReadySince, ...] = ()) -> Readiness:
    serving = Readiness(ready)
    serving.look(runs or (run_of(),), 0.0)
    return serving


def ask(serving: Readiness, why: str, now: float) -> None:
    assert [run.key for run in serving.due(now)] == [KEY]
    serving.asked(KEY, now)
    serving.answered(KEY, why, at=1000.0 + now)


# readiness


def test_a_node_tells_why_a_run_is_not_ready_and_how_one_ended_with_their_last_words() -> None:
    serving = looked()
    ask(serving, "connection refused at port 8080; it listens on port 8000", 0.0)
    serving.hear_words([run_of()], {KEY: "loading\nstill loading"}, 0.0)
    (told,) = serving.endpoints()
    assert (told.why, told.last_words) == (
        "connection refused at port 8080; it listens on port 8000",
        "loading\nstill loading",
    )
    assert serving.ended(0.0) == ()
    over = run_of(state=RunState.EXITED, exit_code=1)
    serving.look([over], 1.0)
    for now in (1.0, 5.0):
        serving.hear_words([over], {KEY: "Traceback\nboom"}, now)
    assert serving.changed
    assert [(one.rank, one.why, one.last_words) for one in serving.ended(1.0 + ENDED_SECONDS)] == [
        (KEY.rank, "it ended with status 1", "Traceback\nboom")
    ]
    assert serving.ended(2.0 + ENDED_SECONDS) == ()


def test_what_all_runs_of_a_node_tell_has_a_bound() -> None:
    keys = [replace(KEY, rank=rank) for rank in range(1000)]
    serving = looked(*(run_of(key) for key in keys))
    for key in keys:
        serving.answered(key, "x" * 9999, at=0.0)
    serving.hear_words([run_of(key) for key in keys], dict.fromkeys(keys, "y" * 9999), 0.0)
    told = serving.endpoints()
    assert len(told) == 1000
    assert sum(len(one.why) + len(one.last_words) for one in told) <= WORDS_CHARS_MAX + WHY_CHARS_MAX * 4
    assert max(len(one.why) for one in told) == WHY_CHARS_MAX


def test_a_run_is_ready_at_its_first_good_answer_and_asked_often_until_then() -> None:
    serving = looked()
    assert serving.ready(KEY) is None
    ask(serving, "it loads", 0.0)
    assert serving.ready(KEY) is False
    assert serving.due(FIRST_SECONDS - 0.01) == []
    ask(serving, "", FIRST_SECONDS)
    assert serving.ready(KEY) is True
    assert serving.due(FIRST_SECONDS + FIRST_SECONDS) != []  # that probe was begun before it was known
    serving.asked(KEY, 1.0)
    assert serving.due(1.0 + AGAIN_SECONDS) == [], "it is asked once at a time"
    serving.answered(KEY, "", at=0.0)
    assert serving.due(0.99 + AGAIN_SECONDS) == []
    assert serving.due(1.0 + AGAIN_SECONDS) != []


def test_three_bad_answers_in_a_row_end_readiness_and_a_good_one_gives_it_back() -> None:
    serving = looked()
    told = ["", "ill", "ill", "", "ill", "ill", "ill", "ill", ""]
    found = []
    for number, why in enumerate(told):
        ask(serving, why, number * 10.0)
        found.append(serving.ready(KEY))
    assert found == [True, True, True, True, True, True, False, False, True]


def test_when_a_run_was_first_ready_is_kept_for_the_next_executor() -> None:
    serving = looked()
    ask(serving, "", 3.0)
    ask(serving, "", 10.0)
    assert serving.memory == (ReadySince(KEY, 1003.0),)
    after = looked(ready=serving.memory)
    assert after.ready(KEY) is None
    assert after.was_ready(KEY)
    ask(after, "", 0.0)
    assert after.endpoints()[0].ready_at == 1003.0


def test_the_endpoints_are_told_first_when_all_runs_were_asked_or_had_time() -> None:
    serving = looked()
    assert not serving.settled(0.0)
    assert serving.settled(2.5)
    ask(serving, "ill", 0.0)
    assert serving.settled(0.0)


def test_a_run_that_does_not_serve_or_has_no_port_or_has_ended_is_not_asked() -> None:
    others = (
        run_of(RunKey("job-2", 1, 0), serve=None),
        run_of(RunKey("job-3", 1, 0), port=None),
        run_of(RunKey("job-4", 1, 0), state=RunState.EXITED),
    )
    serving = looked(*others)
    assert serving.due(100.0) == []
    assert serving.endpoints() == ()
    assert not serving.serves


def test_runs_that_are_gone_are_forgotten() -> None:
    serving = looked()
    ask(serving, "", 0.0)
    serving.must_finish(run_of(), 1.0)
    serving.look((), 2.0)
    assert (serving.memory, serving.endpoints(), set(serving.draining.keys)) == ((), (), set())


# orders


def test_each_rank_runs_what_its_revision_says() -> None:
    asked = JobOrder(
        job_id="job-1",
        name="chat",
        tenant="a",
        epoch=0,
        world_size=1,
        image="old",
        command=("serve",),
        env={"A": "1", "B": "1"},
        grace=5.0,
        master_address="",
        master_port=0,
        serve=SERVE,
        revisions={
            1: RevisionOrder(image="new", env={"B": "2"}),
            4: RevisionOrder(env={"A": "", "C": ""}),
            2: RevisionOrder(command=("serve", "--fast")),
            3: RevisionOrder(command=()),
        },
        roles=(RoleOrder(name="worker", shm=0),),
        ranks=tuple(
            RankOrder(rank=rank, role=0, role_rank=rank, gpus=(), cpus=1.0, memory=1, revision=rank)
            for rank in range(5)
        ),
    )
    runs = list(runs_of(asked))
    both = {"A": "1", "B": "1"}
    assert [run.revision for run in runs] == [0, 1, 2, 3, 4]
    assert [run.image for run in runs] == ["old", "new", "old", "old", "old"]
    assert [run.command for run in runs] == [("serve",), ("serve",), ("serve", "--fast"), (), ("serve",)]
    assert [run.env for run in runs] == [both, {"A": "1", "B": "2"}, both, both, {"B": "1"}]
    assert {run.serve for run in runs} == {SERVE}


def test_a_replica_knows_its_port_and_path_and_is_no_rank_of_others() -> None:
    facts = RunFacts(checkpoints="/c", results="/r", progress="/p", master_address="", service_port=61_001)
    env = environment(order(rank=17, serve=SERVE, env={"WEFT_PORT": "2"}), facts)
    assert (env["WEFT_PORT"], env["PORT"], env["WEFT_SERVICE_PATH"]) == ("61001", "61001", "/s/job-1/")
    assert env["WEFT_RANK"] == "17"
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & env.keys()
    assert environment(order(serve=SERVE, env={"PORT": "1"}), facts)["PORT"] == "1", "the user's value wins"
    assert "WEFT_PORT" not in environment(order(), facts)


def test_nodes_of_one_host_try_different_ports_first() -> None:
    lanes = [lane_of(f"node-{number}") for number in range(10)]
    assert len(set(lanes)) == 10
    keys = [RunKey(f"job-{number}", 0, 0) for number in range(40)]
    chosen = [{free_port(key, PortRange(lane=lane), ()) for key in keys} for lane in lanes[:2]]
    assert not chosen[0] & chosen[1]


def test_a_port_is_found_wherever_one_is_free_and_none_where_none_is() -> None:
    few = PortRange(first=64_000, last=64_003, lane=9)
    first = free_port(KEY, few, ())
    assert first is not None
    others = set(range(64_000, 64_004)) - {first}
    assert free_port(KEY, few, others) == first
    assert free_port(KEY, few, {*others, first}) is None


# last words


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (b"", ""),
        (b"one\ntwo\n", "one\ntwo"),
        (b"\x1b[31mred\x00\x07\r\nmore\rover\n\n\n", "[31mred\nmore\nover"),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
    ],
)
def test_the_last_lines_of_a_log_are_text(log: bytes, words: str) -> None:
    assert last_lines(log) == words


def test_the_last_lines_of_a_log_are_few_and_short() -> None:
    assert len(last_lines(b"x" * 100_000)) == CHARS_MAX
    many = last_lines(b"".join(b"%d\n" % number for number in range(1000)))
    assert many.splitlines() == [str(number) for number in range(1000 - LINES_MAX, 1000)]


# the whole service, on virtual time


class Heard:
    def __init__(self) -> None:
        self.news: list[EndpointsSeen] = []

    async def hear(self, message: EndpointsSeen) -> None:
        self.news.append(message)

    @property
    def last(self) -> dict[int, tuple[bool, bool]]:
        """By rank: ready, draining."""
        return {one.rank: (one.ready, one.draining) for one in self.news[-1].endpoints}


async def listening(world: World) -> Heard:
    heard = Heard()
    await world.bus.subscribe(EndpointsSeen, heard.hear)
    return heard


def served(in_flight: int, seq: int, *, draining: bool = True) -> ServicesServed:
    replica = ReplicaServed(epoch=1, rank=0, in_flight=in_flight, draining=draining)
    services = (ServiceServed(job_id="job-1", replicas=(replica,)),)
    return ServicesServed(router="r", boot="b", seq=seq, at=0.0, services=services)


async def reported_ready(world: World) -> None:
    async with asyncio.timeout(60):
        while not world.control.seen.get(KEY) or not world.control.seen[KEY].ready:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.01)


def replica_order(**fields: Any) -> StartRun:
    return order(**{"serve": SERVE, "grace": 5.0, **fields})


def test_a_replica_is_told_ready_within_half_a_second_of_being_so() -> None:
    async def tell(world: World) -> None:
        heard = await listening(world)
        async with world.executor():
            await world.control.want(replica_order())
            await world.control.hears(KEY, "running")
            await asyncio.sleep(2.0)
            assert world.control.seen[KEY].ready is False
            assert heard.last == {0: (False, False)}
            await asyncio.sleep(1.5)
            assert world.control.seen[KEY].ready is True
            assert world.control.seen[KEY].port == 8080
            assert heard.last == {0: (True, False)}
            numbers = [news.seq for news in heard.news]
            assert numbers == sorted(set(numbers))

    story(tell, Program(ready_seconds=3.0))


def test_a_node_that_serves_nothing_says_nothing_of_endpoints() -> None:
    async def tell(world: World) -> None:
        heard = await listening(world)
        async with world.executor():
            await world.control.want(order())
            await asyncio.sleep(5.0)
        assert heard.news == []

    story(tell)


def test_a_replica_that_leaves_finishes_its_requests_before_it_is_stopped() -> None:
    async def tell(world: World) -> None:
        heard = await listening(world)
        loop = asyncio.get_running_loop()
        async with world.executor():
            await world.control.want(replica_order())
            await reported_ready(world)
            await world.bus.publish(served(3, 1, draining=False))
            await world.control.want()
            for number in range(5):
                await asyncio.sleep(1.0)
                assert heard.last == {0: (True, True)}
                await world.bus.publish(served(3 - number // 2, number + 2))
                assert world.alive() == [KEY]
            began = loop.time()
            await world.bus.publish(served(0, 10))
            seen = await world.control.hears(KEY, "exited")
            assert loop.time() - began < 0.5
            assert seen.reason is EndReason.STOPPED
            await asyncio.sleep(2.0)
            assert heard.last == {}

    story(tell, Program(on_term=0))


def test_a_replica_is_stopped_when_its_drain_is_over_whatever_a_router_says() -> None:
    async def tell(world: World) -> None:
        loop = asyncio.get_running_loop()
        async with world.executor():
            await world.control.want(replica_order())
            await reported_ready(world)
            await world.bus.publish(served(1, 0))
            await world.control.want()
            began = loop.time()
            number = 1
            while world.alive():
                await world.bus.publish(served(1, number))
                number += 1
                await asyncio.sleep(0.5)
            assert SERVE.drain <= loop.time() - began <= SERVE.drain + 2

    story(tell, Program(on_term=0))


def test_a_draining_replica_gets_no_requests_while_it_ends() -> None:
    async def tell(world: World) -> None:
        heard = await listening(world)
        async with world.executor():
            await world.control.want(replica_order())
            await reported_ready(world)
            await world.control.want()
            await asyncio.sleep(3.0)  # no router: SIGTERM was sent, and it takes no notice
            assert world.alive() == [KEY]
            assert heard.last == {0: (True, True)}
            await world.control.hears(KEY, "exited")

    story(tell, Program(on_term=None))


def test_a_replica_that_is_ordered_again_while_it_drains_goes_on() -> None:
    async def tell(world: World) -> None:
        heard = await listening(world)
        async with world.executor():
            await world.control.want(replica_order())
            await reported_ready(world)
            await world.bus.publish(served(1, 0))
            await world.control.want()
            await asyncio.sleep(1.0)
            assert heard.last == {0: (True, True)}
            await world.control.want(replica_order())
            await asyncio.sleep(30.0)
            assert heard.last == {0: (True, False)}
            assert world.alive() == [KEY]

    story(tell)


def test_a_replica_that_never_was_ready_is_stopped_at_once_and_leaves_its_last_words() -> None:
    async def tell(world: World) -> None:
        loop = asyncio.get_running_loop()
        async with world.executor():
            await world.control.want(replica_order())
            await world.control.hears(KEY, "running")
            await asyncio.sleep(3.0)
            assert world.control.seen[KEY].detail == "not ready: it loads\ncannot load the model"
            began = loop.time()
            await world.bus.publish(served(1, 0))
            await world.control.want()
            seen = await world.control.hears(KEY, "exited")
            assert loop.time() - began < 1.0
            assert seen.detail == "not ready: it loads\ncannot load the model"

    story(tell, Program(output=b"cannot load the model\n", ready_seconds=None, on_term=0))


def test_a_replica_that_crashes_says_why() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(replica_order())
            seen = await world.control.hears(KEY, "exited")
            assert (seen.exit_code, seen.detail) == (1, "Traceback\nboom")

    story(tell, Program(output=b"Traceback\nboom\n", seconds=3.0, exit_code=1))


def test_an_executor_that_died_in_a_drain_is_followed_by_one_that_goes_on() -> None:
    async def tell(world: World) -> None:
        async with world.executor():
            await world.control.want(replica_order())
            await reported_ready(world)
            await world.bus.publish(served(1, 0))
            await world.control.want()
            await asyncio.sleep(1.0)
        assert world.alive() == [KEY]
        async with world.executor():
            heard = await listening(world)
            for number in range(5):
                await asyncio.sleep(1.0)
                assert heard.last == {0: (True, True)}
                await world.bus.publish(served(1, number + 1))
            await world.bus.publish(served(0, 9))
            await world.control.hears(KEY, "exited", seconds_max=1.0)

    story(tell, Program(on_term=0))


def test_a_node_that_leaves_drains_too_and_no_longer_than_its_bound() -> None:
    async def tell(world: World) -> None:
        loop = asyncio.get_running_loop()
        stops: list[float] = []
        async with world.executor(stop_jobs_on_exit=True) as stop:
            await world.control.want(replica_order(serve=Serve(port=8080, drain=3600.0)))
            await reported_ready(world)
            began = loop.time()
            stop.set()
            number = 0
            while world.alive():
                number += 1
                await world.bus.publish(served(1, number))
                await asyncio.sleep(0.5)
            stops.append(loop.time() - began)
        assert 30.0 <= stops[0] <= 32.0

    story(tell, Program(on_term=0))


def test_a_fence_does_not_wait_for_requests() -> None:
    async def tell(world: World) -> None:
        loop = asyncio.get_running_loop()
        async with world.executor():
            await world.control.want(replica_order(serve=Serve(port=8080, drain=3600.0)))
            await reported_ready(world)
            await world.control.fall_silent()
            began = loop.time()
            number = 0
            while world.alive():
                number += 1
                await world.bus.publish(served(1, number))
                await asyncio.sleep(1.0)
            assert 80.0 <= loop.time() - began <= 95.0

    story(tell, Program(on_term=0))
