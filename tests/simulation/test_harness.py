"""The simulation itself: the same seed is the same history everywhere, and what is broken is found."""

import asyncio
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from tests.simulation import mutants
from tests.simulation.history import History
from tests.simulation.machine import DO, Plan
from tests.simulation.simulate import Result, Variation, World, simulate
from tests.simulation.witness import Told, Witness
from tests.support.runs import order
from tests.support.tier import some
from tests.support.virtual_time import DeadlockError, Process, StuckError, VirtualTimeLoop, run_virtually
from weft.domain import job
from weft.domain.job import CauseCode
from weft.messages.asks import AskKind
from weft.messages.nodes import EndReason
from weft.planning import replicas
from weft.planning.eta import starts
from weft.planning.reasons import explain
from weftd.executor.runs import RunKey
from weftd.scheduler import service as scheduler_service
from weftd.scheduler.thinking import core
from weftd.scheduler.thinking.decide import lifecycle, tuning
from weftd.scheduler.thinking.state import pool

ROOT = Path(__file__).parents[2]
SEEDS_MAX = 40
# The seed of the first life that is tried; 1 where none is named. From here each mistake is found at once or soon.
FIRST = {
    "a job that does not hold what it restarts with": 204,
    "a relay that does not wait for the stream": 7,
    "a scheduler that gives rank numbers again": 3,
    "a scheduler that keeps the ranks that left": 9,
    "a scheduler that records no reason to wait": 4,
    "a scheduler that replaces all replicas of a service at once": 4,
    "a scheduler that stops jobs before they got on": 4,
    "reasons to wait without a sentence": 2,
    "reasons to wait without numbers": 2,
    "waiting jobs without an estimate": 2,
    "a store that forgets what it acknowledged": 7,
    "an executor that never knows how old its sync is": 26,
}


def lived(seed: int, *, hash_seed: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--trace"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr
    return next(line for line in reversed(ran.stdout.splitlines()) if "digest" in line)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", some(1, [3, 11]))
def test_the_same_seed_is_the_same_history_whatever_the_hash_seed(seed: int) -> None:
    assert lived(seed, hash_seed="1") == lived(seed, hash_seed="2")


@pytest.mark.nightly
def test_another_seed_is_another_history() -> None:
    assert simulate(1).digest != simulate(2).digest


def found(variation: Variation, *, what: str, first: int = 1, seeds: int = SEEDS_MAX) -> Result:
    """The first life in which the witness finds it."""
    for seed in range(first, first + seeds):
        result = simulate(seed, variation=variation)
        if any(what in str(failure) for failure in result.failures):
            return result
    raise AssertionError(f"not found in {seeds} seeds: {what}")


@pytest.mark.timeout(300)
def test_without_fencing_two_epochs_run_at_once_and_that_is_found() -> None:
    found(mutants.NO_FENCE, what="overlap: ", first=29)


SCHEDULERS: dict[str, tuple[ModuleType | type, str, object, str]] = {
    "a scheduler that starts no replica of a service again": (
        replicas,
        "exchange",
        mutants.never_again,
        "and should have",
    ),
    "a scheduler that keeps what an update replaces": (
        replicas,
        "exchange",
        mutants.never_replaced,
        "of an earlier revision than",
    ),
    "a scheduler that replaces all replicas of a service at once": (
        replicas,
        "exchange",
        mutants.all_at_once,
        "out of range",
    ),
    "a scheduler for which what must stop is gone": (pool, "Runs", mutants.CredulousRuns, "runs"),
    "a scheduler that gives what is not free": (tuning, "_fits", lambda *_: True, "over-given: "),
    "a scheduler that gives rank numbers again": (lifecycle, "fresh_ranks", mutants.lowest_ranks, "rank reused: "),
    "a scheduler for which a rank that must leave is gone": (
        lifecycle,
        "release",
        mutants.released_when_told,
        "left behind: ",
    ),
    "a scheduler that keeps the ranks that left": (
        lifecycle,
        "release",
        mutants.never_released,
        "leaves and does not go",
    ),
    "a scheduler for which every rank is of the core": (pool, "Runs", mutants.AnxiousRuns, "a rank too many: "),
    "a scheduler that blames a rank for what its node did": (
        lifecycle,
        "_NOT_ITS_FAULT",
        frozenset[CauseCode](),
        "size cut: ",
    ),
    "a job that does not hold what it restarts with": (job, "beside", mutants.held_of_the_present, "two owners: "),
    "a scheduler that records no reason to wait": (core, "Waiting", mutants.SilentWaiting, "no reason is recorded"),
    "reasons to wait without a sentence": (explain, "why_not", mutants.wordless, "unexplained: "),
    "reasons to wait without numbers": (explain, "why_not", mutants.numberless, "comes without a number"),
    "waiting jobs without an estimate": (starts.PoolToCome, "start_of", mutants.without_estimate, "nothing says why"),
    "a scheduler that stops jobs before they got on": (core, "MinimumRun", mutants.NoMinimumRun, "no progress: "),
    "GPU-seconds counted at the size of the end": (
        job,
        "_sized_at",
        mutants.counted_from_the_start,
        "GPU-seconds wrong: ",
    ),
    "a relay that does not wait for the stream": (
        scheduler_service,
        "OutboxPublisher",
        mutants.HastyRelay,
        "the stream lacks",
    ),
}
"""By mistake: the module, its name that is replaced and by what, and what the witness says of it."""

MUTANTS = {
    "a store that ignores versions and leases": (mutants.store_is(mutants.UnguardedStore), "written twice"),
    "a store that forgets what it acknowledged": (mutants.store_is(mutants.ForgetfulStore), "hang: "),
    "an executor that takes an interruption for an end": (
        mutants.executor_is(mutants.FlatteringReconciler),
        "was interrupted",
    ),
    "an executor that begins again what has ended": (mutants.executor_is(mutants.CarelessReconciler), "started twice"),
    "an executor that never knows how old its sync is": (
        mutants.executor_is(mutants.TimelessReconciler, kinds=mutants.CUT_OFF),
        "overlap: ",
    ),
    **{
        name: (mutants.scheduler_has(module, replaced, by), what)
        for name, (module, replaced, by, what) in SCHEDULERS.items()
    },
}

# Found in 4 to 5 s each; the others take up to half a minute.
FOUND_SOON = {
    "an executor that takes an interruption for an end",
    "a scheduler that starts no replica of a service again",
    "a scheduler for which what must stop is gone",
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "mutant", [name if name in FOUND_SOON else pytest.param(name, marks=pytest.mark.nightly) for name in MUTANTS]
)
def test_a_mistake_is_found(mutant: str) -> None:
    variation, what = MUTANTS[mutant]
    found(variation, what=what, first=FIRST.get(mutant, 1))


# the clock


def test_nothing_that_can_ever_happen_is_an_error_at_once() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(DeadlockError):
        run_virtually(wait_for_nothing())


def test_going_round_without_time_passing_is_an_error() -> None:
    async def spin() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    with pytest.raises(StuckError):
        run_virtually(spin())


def test_a_process_that_is_stopped_does_nothing_and_then_all_at_once() -> None:
    async def told() -> list[float]:
        loop = asyncio.get_running_loop()
        beats: list[float] = []

        async def beat() -> None:
            while True:
                beats.append(loop.time())
                await asyncio.sleep(1.0)

        process = Process("p", loop)
        beating = process.begin(beat())
        await asyncio.sleep(1.5)
        process.stop()
        await asyncio.sleep(10.0)
        process.go_on()
        await asyncio.sleep(1.2)
        beating.cancel()
        return beats

    assert run_virtually(told()) == [0.0, 1.0, 11.5, 12.5]


def test_a_process_that_is_killed_says_no_last_word() -> None:
    words: list[str] = []
    loop = VirtualTimeLoop()
    process = Process("p", loop)

    async def live() -> None:
        try:
            await asyncio.sleep(5.0)
            words.append("lived")
        finally:
            words.append("last word")

    async def kill() -> None:
        await asyncio.sleep(1.0)
        process.kill()
        await asyncio.sleep(100.0)

    task = process.begin(live())
    loop.run_until_complete(kill())
    assert words == []
    process.unwind()
    loop.run_until_complete(asyncio.wait([task]))
    loop.close()
    assert words == ["last word"]


def test_a_run_whose_number_two_lost_times_gave_is_no_second_start() -> None:
    loop = VirtualTimeLoop()
    witness = Witness(History(loop, trace=False))
    run = order("job-1")

    def live(node_id: str) -> None:
        witness.told_of["jobs", "job-1"] = Told(version=1, epoch=1, state="running")
        witness.began(node_id, run)
        witness.ended(node_id, RunKey.of(run), 0, EndReason.EXIT)

    before = witness.remember()
    live("node-1")
    witness.went_back(before, forgotten=())
    between = witness.remember()  # the run that began is in no store any more, nor in this backup
    live("node-2")
    witness.went_back(between, forgotten=())
    live("node-3")
    assert witness.history.failures == []
    live("node-3")
    assert [failure.what for failure in witness.history.failures] == ["started twice: job-1-1-0, now on node-3"]
    loop.close()


async def _resumed_in_a_time_that_is_lost(world: World) -> None:
    cluster = world.cluster
    await cluster.let_clients_in()
    cluster.begin()
    await asyncio.sleep(6.0)
    world.client = world.make_client()
    await world.client.ask(AskKind.DRAIN, "node-1")
    await asyncio.sleep(5.0)
    backup, memory = cluster.database.back_up(), cluster.witness.remember()
    await world.client.ask(AskKind.RESUME, "node-1")
    await asyncio.sleep(5.0)
    cluster.history.counts["restores"] += 1
    cluster.database.restore(backup)
    cluster.witness.went_back(memory, forgotten=())
    env = {DO: msgspec.json.encode(Plan(tries=({"seconds": 1.0},))).decode()}
    world.begin(world.client.submit({"name": "job-1", "command": ["true"], "env": env}, keyed=True))
    await asyncio.sleep(5.0)
    await world.end()


def test_a_user_resumes_again_what_a_restored_store_has_drained() -> None:
    shape = {"nodes": 1, "schedulers": 1, "gateways": 1, "nats_servers": 1}
    result = simulate(1, variation=Variation(shape=shape, live=_resumed_in_a_time_that_is_lost))
    assert [str(failure) for failure in result.failures] == []
