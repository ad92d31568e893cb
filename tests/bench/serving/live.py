"""Real processes on emulated GPUs: services from zero, an update, a killed replica, a lost node, and a mixed day.

A request to the emulated model takes time and no processor; routers, nodes, scheduler and clients are real.
"""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

import aiohttp
from msgspec import Struct

from tests.bench.figures import Aim, quantile
from tests.bench.serving.client import Answer
from tests.bench.serving.rig import Load, Rig, model, rig
from tests.support.builders import spec
from tests.support.programs import program
from weft.domain.job import JobEvent
from weft.domain.spec import JobSpec
from weft.messages.http import JobView

LATENCY_S = 0.5
WINDOW_S = 10.0
SAMPLE_S = 0.25
HUNDRED = 100
BURST = 4.0
LENT_SECONDS_MAX = 240.0  # after the day, until loans are given back
Change = Callable[[Load], Awaitable[None]]


class Requests(Struct, frozen=True, kw_only=True):
    sent: int
    bad: int  # late, refused, failed
    failed: int  # without an answer, or with one that is an error, other than 429
    windows: int
    bad_windows: int


def requests_of(answers: Sequence[Answer], *, late_s: float, percentile: float = 99.0) -> Requests:
    """All requests count."""
    windows: dict[int, list[bool]] = {}
    for answer in answers:
        good = 200 <= answer.status < 300 and 0 <= answer.first_s <= late_s
        windows.setdefault(int(answer.due // WINDOW_S), []).append(not good)
    allowed = 1 - percentile / 100
    return Requests(
        sent=len(answers),
        bad=sum(sum(bad) for bad in windows.values()),
        failed=sum(answer.status == 0 or answer.status >= 500 for answer in answers),
        windows=len(windows),
        bad_windows=sum(sum(bad) > int(len(bad) * allowed + 1e-9) for bad in windows.values()),
    )


def back_after(answers: Sequence[Answer], at: float, *, late_s: float) -> float:
    """Seconds after `at` until no later second's p99 is over the objective, or has a failed request."""
    last = 0.0
    for second in range(int(at), int(max(answer.due for answer in answers)) + 1):
        of_second = [answer for answer in answers if second <= answer.due < second + 1]
        times = [answer.first_s if 200 <= answer.status < 300 else 1e9 for answer in of_second]
        if times and quantile(times, 0.99) > late_s:
            last = second + 1 - at
    return last


# from zero


async def from_zero(made: Rig, *, turns: int) -> dict[str, Aim]:
    """The first request to a service without replicas: its first byte, less what the replica took from
    the scheduler's step that placed it until it was ready."""
    over: list[float] = []
    lost = 0
    for turn in range(turns):
        job_id, url = await made.serve(model(f"zero-{turn}", milliseconds=20, want=0, most=1))
        async with made.load(url, [(0.0, 4.0)], 3.0, seed=turn, timeout_s=60.0) as load:
            pass
        placed = await _first_replica(made, job_id)
        ready = (await made.client.endpoints(job_id)).endpoints[0].since
        assert ready is not None
        first = min(load.answers, key=lambda answer: answer.due)
        lost += sum(answer.status != 200 for answer in load.answers)
        over.append(first.first_s - (ready - placed))
        print(f"from zero: {first.first_s:.2f} s, of which the replica took {ready - placed:.2f} s", flush=True)
        await made.end(job_id)
    return {
        "live.from_zero_over_cold_start_s": Aim(value=round(max(over), 2), aim=1.0),
        "live.from_zero_lost": Aim(value=lost, aim=0),
    }


async def hundred(made: Rig, *, count: int) -> dict[str, Aim]:
    """So many services at zero get a request each at once: until the last of them was given a replica."""
    jobs = [await made.serve(model(f"many-{n}", milliseconds=5, want=0, gpus=0, load_s=0.0)) for n in range(count)]
    headers = {"Authorization": f"Bearer {made.cluster.local.token}"}
    bounds = aiohttp.ClientTimeout(total=120.0)
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=headers, timeout=bounds) as session,
        asyncio.TaskGroup() as tasks,
    ):
        begun = time.time()
        sending = [tasks.create_task(_once(session, url)) for _, url in jobs]
        placed = [tasks.create_task(_first_replica(made, job_id)) for job_id, _ in jobs]
    lost = sum(task.result() != 200 for task in sending)
    took = [task.result() - begun for task in placed]
    print(
        f"{count} services from zero: placed after p50 {quantile(took, 0.5):.2f} s, most {max(took):.2f} s", flush=True
    )
    await made.end(*(job_id for job_id, _ in jobs))
    return {
        "live.many_from_zero_start_s": Aim(value=round(max(took), 2), aim=1.0),
        "live.many_from_zero_lost": Aim(value=lost, aim=0),
    }


async def _once(session: aiohttp.ClientSession, url: str) -> int:
    try:
        async with session.post(url, json={"tokens": 1}) as response:
            await response.read()
            return response.status
    except (aiohttp.ClientError, TimeoutError, OSError):
        return 0


async def _first_replica(made: Rig, job_id: str) -> float:
    """When its first replica was placed, by the scheduler's own event."""
    await made.cluster.until(job_id, _has_replica, seconds_max=120.0)
    for event in await made.client.story(job_id):
        placement = event.data.placement
        if event.type.rpartition(".")[2] == JobEvent.RESIZED and placement is not None and placement.allocations:
            return datetime.fromisoformat(event.time).timestamp()
    raise AssertionError(f"{job_id} was never given a replica")


def _has_replica(job: JobView) -> bool:
    return job.service is not None and job.service.granted > 0


# changes under load


async def changes(made: Rig, *, seed: int) -> dict[str, Aim]:
    """An update, a replica killed, a node lost; each under a constant load."""
    found: dict[str, Aim] = {}
    job_id, url = await made.serve(
        model("changing", milliseconds=20, least=3, want=3, most=6, slots=4, latency="500ms", rate=15.0)
    )

    async def under_load(name: str, seconds: float, what: Change) -> None:
        async with made.load(url, [(0.0, 15.0)], seconds, seed=seed) as load:
            await asyncio.sleep(load.at(8.0))
            await what(load)
        told = requests_of(load.answers, late_s=LATENCY_S)
        back = back_after(load.answers, 8.0, late_s=LATENCY_S)
        print(f"{name}: {told.sent} sent, {told.failed} failed, {told.bad} bad, back after {back:.0f} s", flush=True)
        for answer in load.answers:
            if answer.status == 0 or answer.status >= 500:
                print(
                    f"  failed: due {answer.due - 8.0:+.3f} s after it, status {answer.status}, {answer.first_s:.3f} s"
                )
        found[f"live.{name}_failed"] = Aim(value=told.failed, aim=0)
        found[f"live.{name}_back_s"] = Aim(value=round(back, 1), aim=10.0)

    async def update(load: Load) -> None:
        del load
        await made.client.update(job_id, env={"SERVICE_MS": "25"})
        await made.cluster.until(job_id, _is_updated, seconds_max=90.0)

    async def kill(load: Load) -> None:
        del load
        os.kill((await made.replicas(job_id))[0][1], signal.SIGKILL)

    async def lose_node(load: Load) -> None:
        del load
        replicas = await made.replicas(job_id)
        node = replicas[0][0]
        pids = made.cluster.local.pids
        executor = next(pid for name, pid in pids.items() if name.startswith("executor") and name.endswith(node[-1]))
        os.kill(executor, signal.SIGSTOP)  # it reports no more, and its replicas are gone
        for on, pid in replicas:
            if on == node:
                os.kill(pid, signal.SIGKILL)
        try:
            await asyncio.sleep(20.0)
        finally:
            os.kill(executor, signal.SIGCONT)

    await under_load("update", 30.0, update)
    await under_load("kill", 25.0, kill)
    await under_load("node_lost", 40.0, lose_node)
    await made.end(job_id)
    return found


def _is_updated(job: JobView) -> bool:
    return job.service is not None and job.service.revision > 0 and job.service.update is None


# a mixed day


class Sample(Struct, frozen=True):
    at: float
    wanted: int
    ready: int
    borrowed: int
    granted: int


class Watched(Struct, frozen=True):
    answers: tuple[Answer, ...]
    steps: tuple[tuple[float, float], ...]
    samples: tuple[Sample, ...]


async def day(made: Rig, *, seed: int, seconds: float) -> tuple[dict[str, Aim], dict[str, Watched]]:
    """Training on all that is left, a notebook, and two services; the rate goes up and down, with bursts."""
    trains = (await made.client.submit(trainer())).id
    notebook = (await made.client.submit(sleeper("notebook"))).id
    services = {
        name: await made.serve(
            model(name, milliseconds=ms, least=1, want=1, most=6, slots=2, latency="500ms", rate=rate * 2)
        )
        for name, ms, rate in (("chat", 80.0, 8.0), ("search", 40.0, 10.0))
    }
    means = {"chat": 8.0, "search": 10.0}
    watched: dict[str, Watched] = {}

    async def one(name: str, number: int) -> None:
        job_id, url = services[name]
        steps = day_steps(means[name], seconds, burst_at=seconds * (0.35 + 0.25 * number))
        async with made.load(url, steps, seconds, seed=seed + number) as load:
            samples = await _watch(made, job_id, load, seconds)
        watched[name] = Watched(tuple(load.answers), tuple(steps), tuple(samples))

    async with asyncio.TaskGroup() as tasks:
        for number, name in enumerate(services):
            tasks.create_task(one(name, number))
    returned = [took for each in watched.values() for took in loans_back(each.samples)]
    found: dict[str, Aim] = {}
    told = {name: requests_of(each.answers, late_s=LATENCY_S) for name, each in watched.items()}
    for name, each in told.items():
        print(
            f"day, {name}: {each.sent} sent, {each.bad} bad, {each.bad_windows} of {each.windows} windows", flush=True
        )
    lent = sum(max(sample.borrowed for sample in each.samples) for each in watched.values())
    print(f"day: at most {lent} GPUs lent; given back after {[round(took, 1) for took in returned]} s", flush=True)
    found["live.day_bad_windows"] = Aim(value=sum(each.bad_windows for each in told.values()), aim=0)
    part = sum(each.bad for each in told.values()) / max(1, sum(each.sent for each in told.values()))
    found["live.day_bad_part"] = Aim(value=round(part, 5), aim=0.001)
    found["live.day_failed"] = Aim(value=sum(each.failed for each in told.values()), aim=0)
    if returned:
        found["live.loans_back_p99_s"] = Aim(value=round(quantile(returned, 0.99), 1), aim=30.0)
    await made.end(trains, notebook, *(job_id for job_id, _ in services.values()))
    return found, watched


def trainer() -> JobSpec:
    return spec(
        "trainer",
        command=list(program("elastic", "--idle", "--pieces", "1000000")),
        roles={"worker": {"gpus": 1, "cpus": 0.1, "memory": "128MiB", "replicas": {"min": 1, "want": 6, "max": 8}}},
        resize={"how": "live"},
        grace="2s",
    )


def sleeper(name: str) -> JobSpec:
    worker = {"gpus": 1, "cpus": 0.1, "memory": "128MiB"}
    return spec(name, kind="notebook", command=["sleep", "100000"], roles={"worker": worker}, grace="1s")


def day_steps(mean: float, seconds: float, *, burst_at: float) -> list[tuple[float, float]]:
    """A day in so many seconds: half the mean at its ends, one and a half in its middle; one burst."""
    steps: list[tuple[float, float]] = []
    part = seconds / 24
    for hour in range(24):
        rate = mean * (0.5 + (1 - abs(hour - 12) / 12))
        steps.append((hour * part, rate * (BURST if 0 <= hour * part - burst_at < part * 2 else 1.0)))
    return steps


async def _watch(made: Rig, job_id: str, load: Load, seconds: float) -> list[Sample]:
    samples: list[Sample] = []
    over = load.plan.begins_at + seconds
    while time.time() < over or (samples and samples[-1].borrowed and time.time() < over + LENT_SECONDS_MAX):
        view = (await made.client.job(job_id)).service
        if view is not None:
            at = time.time() - load.plan.begins_at
            samples.append(Sample(at, view.wanted, view.ready or 0, len(view.loans), view.granted))
        await asyncio.sleep(SAMPLE_S)
    return samples


def loans_back(samples: Sequence[Sample]) -> list[float]:
    """For each time at which fewer replicas came to be wanted than there were, and some of these were borrowed: until
    fewer were borrowed."""
    took: list[float] = []
    for place in range(1, len(samples)):
        before, now = samples[place - 1], samples[place]
        if now.wanted < before.wanted and now.wanted < before.granted and before.borrowed:
            later = [each.at for each in samples[place:] if each.borrowed < before.borrowed]
            took.append((later[0] if later else samples[-1].at) - before.at)
    return took


# all of it


async def run(*, seed: int, quick: bool, only: Sequence[str] = ()) -> tuple[dict[str, Aim], dict[str, Watched]]:
    found: dict[str, Aim] = {}
    watched: dict[str, Watched] = {}
    async with rig() as made:
        if not only or "zero" in only:
            found |= await from_zero(made, turns=2 if quick else 5)
        if not only or "changes" in only:
            found |= await changes(made, seed=seed)
        if not only or "day" in only:
            aims, watched = await day(made, seed=seed, seconds=120.0 if quick else 480.0)
            found |= aims
        if not only or "hundred" in only:
            found |= await hundred(made, count=20 if quick else HUNDRED)
    return found, watched
