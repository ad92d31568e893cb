"""A service listens, is ready, beats at its own pace, and ends in order. On virtual time: no test waits."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from tests.support.doubles.bus import MemoryBus
from tests.support.virtual_time import DeadlockError, run_virtually
from weft.bus import BusError, NoAnswerError, RawRequest
from weft.messages import Message
from weft.service import Answer, AnswerRaw, Every, Listen, Meters, serve
from weft.service.admin import Probes

NEVER = 10_000.0


class Said(Message, frozen=True, kw_only=True):
    subject: ClassVar[str] = "weft.said.{node_id}"
    node_id: str
    value: int = 0


class Replied(msgspec.Struct, frozen=True, kw_only=True):
    value: int


async def nothing() -> None: ...


def now() -> float:
    return asyncio.get_running_loop().time()


async def during(seconds: float, stop: asyncio.Event, service: Awaitable[None]) -> None:
    """Let a service run so long, then stop it."""
    asyncio.get_running_loop().call_later(seconds, stop.set)
    await service


def beats(
    seconds: float, *, until: float, wake_at: tuple[float, ...] = (), takes: float = 0.0, rest: float = 0.0
) -> list[float]:
    """When a loop beat."""
    beaten: list[float] = []

    async def program() -> None:
        stop, wake = asyncio.Event(), asyncio.Event()
        for at in wake_at:
            asyncio.get_running_loop().call_later(at, wake.set)

        async def beat() -> None:
            beaten.append(now())
            await asyncio.sleep(takes)

        loop = Every(seconds, beat, wake, rest=rest)
        await during(until, stop, serve("test", bus=MemoryBus(), stop=stop, loops=[loop]))

    run_virtually(program())
    return [round(at, 6) for at in beaten]


def test_a_loop_beats_at_its_own_pace() -> None:
    assert beats(10, until=35) == [0, 10, 20, 30]


def test_a_loop_that_is_woken_beats_at_once() -> None:
    assert beats(10, until=25, wake_at=(3, 4)) == [0, 3, 4, 14, 24]


def test_a_loop_woken_in_the_middle_of_a_beat_beats_again() -> None:
    assert beats(10, until=15, wake_at=(1,), takes=2) == [0, 2, 14]


def test_a_loop_that_rests_is_woken_only_after_a_part_of_what_its_beat_took() -> None:
    woken = tuple(n / 100 for n in range(1, 21))
    assert beats(10, until=1, wake_at=woken, takes=0.04, rest=0.5) == [0, 0.06, 0.12, 0.18, 0.24]
    assert beats(10, until=1, wake_at=(0.5,), takes=0.04, rest=0.5) == [0, 0.5]  # a rest that is over delays nothing
    assert beats(10, until=6, wake_at=(1, 2.5), takes=2, rest=4) == [0, 2.1, 4.2]  # at most REST_SECONDS_MAX


def test_a_loop_ends_between_beats_and_not_within_one() -> None:
    done = []

    async def program() -> None:
        stop = asyncio.Event()

        async def beat() -> None:
            await asyncio.sleep(5)
            done.append(now())

        await during(1, stop, serve("test", bus=MemoryBus(), stop=stop, loops=[Every(NEVER, beat)]))
        assert now() == 5

    run_virtually(program())
    assert done == [5]


def test_a_beat_that_never_ends_is_left_after_the_grace() -> None:
    async def program() -> float:
        stop = asyncio.Event()

        async def beat() -> None:
            await asyncio.sleep(NEVER)

        service = serve("test", bus=MemoryBus(), stop=stop, loops=[Every(1, beat)], grace_seconds=10)
        await during(1, stop, service)
        return now()

    assert run_virtually(program()) == 11


def test_a_loop_that_fails_ends_the_service_with_what_it_raised() -> None:
    cancelled = []

    async def fail() -> None:
        await asyncio.sleep(3)
        raise LookupError("on purpose")

    async def other() -> None:
        try:
            await asyncio.sleep(NEVER)
        except asyncio.CancelledError:
            cancelled.append(now())
            raise

    async def program() -> None:
        loops = [Every(1, fail), Every(1, other)]
        await serve("test", bus=MemoryBus(), stop=asyncio.Event(), loops=loops)

    with pytest.raises(LookupError, match="on purpose"):
        run_virtually(program())
    assert cancelled == [3]


def test_failures_of_the_environment_are_tried_again_less_and_less_often() -> None:
    tried: list[float] = []

    async def program() -> None:
        stop, wake = asyncio.Event(), asyncio.Event()

        async def beat() -> None:
            tried.append(round(now(), 1))
            wake.set()  # Being woken is no reason to hammer what is down.
            if len(tried) < 9:
                raise NoAnswerError("on purpose")
            wake.clear()

        loop = Every(60, beat, wake, retry_on=(BusError,))
        await during(100, stop, serve("test", bus=MemoryBus(), stop=stop, loops=[loop]))

    run_virtually(program())
    assert tried == [0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 11.3, 16.3, 76.3]


def test_a_service_hears_and_answers_while_it_runs() -> None:
    async def program() -> None:
        bus, stop, heard = MemoryBus(), asyncio.Event(), []

        async def hear(said: Said) -> None:
            heard.append((said.node_id, said.value))

        async def answer(said: Said) -> Replied:
            return Replied(value=said.value + 1)

        async def answer_raw(asked: RawRequest) -> Replied:
            return Replied(value=len(asked.payload))

        async def world() -> None:
            await asyncio.sleep(1)
            for node_id in ("a", "b"):
                await bus.publish(Said(node_id=node_id, value=1))
            replied = await bus.request(Said(node_id="c", value=1), Replied, seconds_max=1)
            assert replied == Replied(value=2)
            assert await bus.request_raw("weft.submit", b"four", seconds_max=1) == b'{"value":4}'
            stop.set()

        await asyncio.gather(
            world(),
            serve(
                "test",
                bus=bus,
                stop=stop,
                listens=[Listen(Said, hear, tokens={"node_id": "a"}), Listen(Said, hear, group="")],
                answers=[Answer(Said, answer, tokens={"node_id": "c"}), AnswerRaw("weft.submit", answer_raw)],
            ),
        )
        assert sorted(heard) == [("a", 1), ("a", 1), ("b", 1), ("c", 1)]
        with pytest.raises(NoAnswerError, match="nobody listens"):
            await bus.request(Said(node_id="c"), Replied, seconds_max=1)

    run_virtually(program())


def test_requests_are_answered_only_while_they_are_wanted() -> None:
    wanted = False
    answers: list[bool] = []

    async def answer(said: Said) -> Replied:
        return Replied(value=said.value)

    async def program() -> None:
        nonlocal wanted
        bus, stop = MemoryBus(), asyncio.Event()

        async def ask() -> None:
            try:
                await bus.request(Said(node_id="c"), Replied, seconds_max=1)
                answers.append(True)
            except NoAnswerError:  # nobody listens, so nothing was decoded
                answers.append(False)

        async def asking() -> None:
            nonlocal wanted
            await asyncio.sleep(1)
            await ask()
            for state in (True, False, True):
                wanted = state
                await asyncio.sleep(1)
                await ask()

        entry = Answer(Said, answer, tokens={"node_id": "c"}, wanted=lambda: wanted)
        task = asyncio.create_task(asking())
        await during(10, stop, serve("test", bus=bus, stop=stop, answers=[entry]))
        await task
        await ask()

    run_virtually(program())
    assert answers == [False, True, False, True, False], "the last after the service ended"


def heard_by_replicas(group: str | None) -> list[int]:
    """How often each of two replicas of a service heard four messages."""
    heard = [0, 0]

    async def program() -> None:
        bus, stop = MemoryBus(), asyncio.Event()

        async def replica(number: int) -> None:
            async def hear(said: Said) -> None:
                heard[number] += 1

            await serve("test", bus=bus, stop=stop, listens=[Listen(Said, hear, group=group)])

        async def world() -> None:
            await asyncio.sleep(1)
            for value in range(4):
                await bus.publish(Said(node_id="a", value=value))
            stop.set()

        await asyncio.gather(replica(0), replica(1), world())

    run_virtually(program())
    return heard


def test_one_replica_hears_each_message_unless_all_shall() -> None:
    assert sum(heard_by_replicas(None)) == 4
    assert heard_by_replicas("") == [4, 4]


def test_what_is_in_hand_when_told_to_stop_is_finished_before_the_loops_end() -> None:
    story: list[str] = []

    async def program() -> None:
        bus, stop = MemoryBus(), asyncio.Event()

        async def hear(said: Said) -> None:
            story.append("heard")
            await asyncio.sleep(5)
            story.append("done")

        async def beat() -> None:
            story.append(f"beat {now():g}")

        async def world() -> None:
            await asyncio.sleep(1.5)
            await bus.publish(Said(node_id="a"))
            await asyncio.sleep(0)
            stop.set()

        await asyncio.gather(
            world(), serve("test", bus=bus, stop=stop, listens=[Listen(Said, hear)], loops=[Every(2, beat)])
        )
        assert now() == 6.5

    run_virtually(program())
    assert story == ["beat 0", "heard", "beat 2", "beat 4", "beat 6", "done"]


def test_a_handler_that_never_ends_does_not_keep_the_service() -> None:
    async def program() -> float:
        bus, stop = MemoryBus(), asyncio.Event()

        async def hear(said: Said) -> None:
            await asyncio.sleep(NEVER)

        async def world() -> None:
            await asyncio.sleep(1)
            await bus.publish(Said(node_id="a"))
            stop.set()

        await asyncio.gather(world(), serve("test", bus=bus, stop=stop, listens=[Listen(Said, hear)], grace_seconds=10))
        return now()

    assert run_virtually(program()) == 11


def probes_of(program: Callable[[Probes], Awaitable[None]]) -> None:
    async def with_probes() -> None:
        await program(Probes(Meters("test"), MemoryBus(), now))

    run_virtually(with_probes())


def test_a_loop_that_is_silent_for_five_periods_is_not_healthy() -> None:
    async def program(probes: Probes) -> None:
        probes.beat("slow", next_within=10)
        probes.beat("fast", next_within=0.01)
        await asyncio.sleep(4)
        assert probes.state()["healthy"] is True
        probes.beat("fast", next_within=1)
        await asyncio.sleep(5.5)
        assert probes.state()["healthy"] is False
        probes.beat("fast", next_within=60)
        assert probes.state()["healthy"] is True
        await asyncio.sleep(41)
        assert {name for name, loop in probes.state()["loops"].items() if not loop["healthy"]} == {"slow"}

    probes_of(program)


def test_a_bus_that_is_away_is_told_and_no_illness() -> None:
    async def program() -> None:
        bus = MemoryBus()
        probes = Probes(Meters("test"), bus, now)
        assert probes.state()["bus"] == "connected"
        await bus.close()
        assert (probes.state()["bus"], probes.state()["healthy"]) == ("disconnected", True)

    run_virtually(program())


def test_a_service_measures_what_it_does_beside_what_its_owner_measures() -> None:
    registry = CollectorRegistry()
    own = Meters("job-desk", registry).counter("jobs_placed", "Jobs placed.", ["pool"])

    async def program() -> None:
        bus, stop = MemoryBus(), asyncio.Event()

        async def hear(said: Said) -> None:
            if said.value:
                raise RuntimeError("on purpose")
            own.labels("a").inc()

        async def world() -> None:
            await asyncio.sleep(1)
            await bus.publish(Said(node_id="a", value=0))
            await bus.publish(Said(node_id="a", value=1))
            stop.set()

        service = serve("desk", bus=bus, stop=stop, listens=[Listen(Said, hear)], registry=registry)
        await asyncio.gather(world(), service)

    run_virtually(program())
    sample = registry.get_sample_value
    assert sample("weft_job_desk_jobs_placed_total", {"pool": "a"}) == 1
    assert sample("weft_desk_handled_seconds_count", {"kind": "Said", "outcome": "ok"}) == 1
    assert sample("weft_desk_handled_seconds_count", {"kind": "Said", "outcome": "failed"}) == 1
    assert sample("weft_desk_bus_events_total", {"what": "failed"}) == 1
    assert sample("weft_desk_ready") == 0
    assert sample("weft_desk_bus_connected") == 1


def test_loops_of_one_name_are_told_apart() -> None:
    registry = CollectorRegistry()

    async def program() -> None:
        stop = asyncio.Event()
        loops = [Every(NEVER, nothing), Every(NEVER, nothing), Every(NEVER, nothing, name="look")]
        await during(1, stop, serve("test", bus=MemoryBus(), stop=stop, loops=loops, registry=registry))

    run_virtually(program())
    for label in ("nothing", "nothing-2", "look"):
        assert registry.get_sample_value("weft_test_beat_seconds_count", {"loop": label, "outcome": "ok"}) == 1


def test_a_program_in_which_nothing_can_happen_is_an_error_and_no_hang() -> None:
    with pytest.raises(DeadlockError):
        run_virtually(serve("test", bus=MemoryBus(), stop=asyncio.Event()))
