"""Ten elastic jobs on two nodes, really run: fixed sizes, Dorm's partitions, and ours.

    python -m tests.bench elastic [--quick] [--seed N] [--as containers|processes]

They are containers where an engine and the image of `WEFT_JOB_IMAGE` are there, else processes.

The jobs are data-parallel, or a parameter server with workers; most resize live, the others by a restart from their
checkpoint. A piece of their work takes time but no processor (emulated work: the machine has fewer cores than the jobs
have ranks), and the GPUs are emulated. Speed-up and utilisation are those of the sizes that the jobs were given;
the times of changes and restarts are real.
"""

import argparse
import asyncio
import os
import re
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from random import Random
from statistics import mean, median

from msgspec import Struct
from msgspec.structs import replace

from tests.bench.figures import Aim, Figures, line_of
from tests.bench.nearchus.image import base, has_base, remove_network
from tests.bench.partition.dorm import shipped_settings
from tests.bench.partition.published import dorm
from tests.support.builders import spec
from tests.support.cluster import Cluster
from tests.support.programs import PROGRAMS, program
from weft.bus.nats import NatsBus
from weft.client import Client
from weft.domain.job import FINAL, CauseCode, JobEvent, JobState
from weft.domain.spec import JobSpec, TuningMode
from weft.messages.http import EventView, JobView
from weft.planning.partition import Rules
from weft.servers import status
from weft.servers.postgres import DATABASE
from weft.service.clock import steady
from weft.store.postgres import PostgresStore
from weftd.cli.local import LocalCluster, Options, running
from weftd.reallocator import service as reallocator
from weftd.reallocator.settings import ReallocatorSettings

NODES, GPUS = 2, 8
JOBS = 10
STATIC, LEAST, MOST = 2, 1, 8
PIECE_SECONDS = 0.1
APART_SECONDS = 4.0  # between two submissions, in the mean
CHANGES, CHANGES_QUICK = 10, 4
CPUS, MEMORY = 8.0, 4 << 30  # of a node of containers: their work is emulated, and takes next to none
JOINS = re.compile(rb"joins at ([0-9.]+)")
SECONDS_MAX = 600.0
FASTER = 30  # times: these jobs last a minute where a team's last half an hour, and the planner's times go with them
CONTAINERS = {"EXECUTOR_RUNTIME": "docker", "TELEMETRY_RUNTIME": "docker", "EXECUTOR_PULL": "0"}
POLICIES = ("static", "dorm", "ours")
DORM = Rules(theta1=0.1, theta2=0.2)
OF_DORMS_UTILISATION = 0.98


def settings_of(policy: str) -> dict[str, str]:
    """Settings of the cluster's own reallocator: with ours, the shipped planner, its times divided by `FASTER`."""
    if policy != "ours":
        return {"REALLOCATOR_PARTITION": "off"}
    shipped = shipped_settings()
    return {
        "REALLOCATOR_PARTITION_SECONDS": f"{shipped.partition_seconds / FASTER:g}",
        "REALLOCATOR_PARTITION_COOL_DOWN_SECONDS": f"{shipped.partition_cool_down_seconds / FASTER:g}",
        "REALLOCATOR_REVIEW_SECONDS": "1",
    }


class Application(Struct, frozen=True, kw_only=True):
    """`pieces` of work; `alone_s`: how long they take with `STATIC` workers, if nothing else happens."""

    name: str
    pieces: int
    after_s: float
    server: bool
    restarts: bool

    @property
    def alone_s(self) -> float:
        workers = STATIC + self.server  # the parameter server does pieces as well
        return self.pieces * PIECE_SECONDS / workers

    def spec(self, *, elastic: bool, image: str = "") -> JobSpec:
        arguments = ("--idle", "--seconds", str(PIECE_SECONDS), "--pieces", str(self.pieces))
        command = program("elastic", *arguments)
        if image:
            command = ("python3", "-c", (PROGRAMS / "elastic.py").read_text(), *arguments)
        sizes = {"min": LEAST, "want": STATIC, "max": MOST} if elastic else {"want": STATIC}
        worker = {"gpus": 1, "cpus": 0.5, "memory": "128MiB", "replicas": sizes}
        ps = {"cpus": 0.5, "memory": "128MiB"}
        how = {"checkpoints": {"on_stop": True}} if self.restarts else {"resize": {"how": "live"}}
        return spec(
            self.name,
            command=list(command),
            image=image or None,
            roles={"ps": ps, "worker": worker} if self.server else {"worker": worker},
            grace="5s",
            **(how if elastic else {}),
        )


class Ran(Struct, frozen=True, kw_only=True):
    """One application under one policy: seconds from submission to end, and in which it ran; GPU-seconds held."""

    jct_s: float
    runs_s: float
    gpu_s: float
    sizes: tuple[int, ...]
    live: int
    restart_s: tuple[float, ...]
    epochs: int
    lost: int


def applications(seed: int, *, quick: bool) -> list[Application]:
    dice = Random(seed)
    scale = 0.4 if quick else 1.0
    found: list[Application] = []
    after = 0.0
    for number in range(JOBS):
        found.append(
            Application(
                name=f"app-{number}",
                pieces=int(dice.uniform(300, 900) * scale),
                after_s=after,
                server=number % 3 == 1,
                restarts=number % 4 == 3,
            )
        )
        after += dice.expovariate(1 / (APART_SECONDS * scale))
    return found


@asynccontextmanager
async def _cluster(image: str, settings: Mapping[str, str]) -> AsyncIterator[Cluster]:
    """A local cluster. Its jobs run as containers of `image`, or as processes if `image` is empty."""
    with (
        tempfile.TemporaryDirectory(prefix="weft-bench-", ignore_cleanup_errors=True) as folder,
        ExitStack() as leaving,
    ):
        home = Path(folder)
        options = Options(nodes=NODES, emulated_gpus=GPUS, port=0, settings=settings)
        if image:
            os.chmod(home, 0o711)  # so that Postgres' own user reaches its folder
            name = {"EXECUTOR_CLUSTER": home.name}
            options = replace(options, cpus=CPUS, memory=MEMORY, settings={**settings, **CONTAINERS, **name})
            leaving.callback(remove_network, f"{home.name}-alone")
        async with (
            running(home / "home", options, erase=True) as local,
            Client(local.url, local.token) as client,
        ):
            yield Cluster(local, client)


@asynccontextmanager
async def _planned_by(policy: str, local: LocalCluster) -> AsyncIterator[None]:
    """With `dorm`, a reallocator of this process plans the sizes as Dorm does: when an application comes or ends."""
    if policy != "dorm":
        yield
        return
    up = await status(local.home.root)
    assert up.nats is not None
    assert up.postgres is not None
    keys = local.credentials
    settings = ReallocatorSettings(
        tuning=TuningMode.OFF,
        serving=TuningMode.OFF,
        review_seconds=1.0,
        partition_theta1=DORM.theta1,
        partition_theta2=DORM.theta2,
        partition_seconds=1.0,
        partition_cool_down_seconds=0.0,
    )
    stop = asyncio.Event()
    nats_password = keys.nats_password_file("reallocator").read_text().strip()
    dsn = f"postgresql://weft_reallocator@127.0.0.1:{up.postgres.port}/{DATABASE}"
    async with (
        NatsBus.connect(
            f"nats://127.0.0.1:{up.nats.port}", name="dorm", user="reallocator", password=nats_password
        ) as bus,
        PostgresStore.connect(dsn, password=keys.postgres_password("reallocator"), connections=2) as store,
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(reallocator.run(settings, bus=bus, store=store, stop=stop, clock=steady(), planner=dorm))
        try:
            yield
        finally:
            stop.set()


async def run(policy: str, apps: Sequence[Application], image: str) -> dict[str, Ran]:
    async with _cluster(image, settings_of(policy)) as cluster, _planned_by(policy, cluster.local):
        loop = asyncio.get_running_loop()
        began = loop.time()
        ids: dict[str, str] = {}
        for app in apps:
            await asyncio.sleep(max(0.0, began + app.after_s - loop.time()))
            ids[app.name] = (await cluster.client.submit(app.spec(elastic=policy != "static", image=image))).id
        found: dict[str, Ran] = {}
        for app in apps:
            view = await cluster.ended(ids[app.name], seconds_max=SECONDS_MAX)
            assert view.state is JobState.SUCCEEDED, f"{app.name} under {policy}: {view.state}"
            found[app.name] = _ran(await cluster.client.story(view.id), _lost(cluster, view.id), view.epoch)
        return found


def _ran(story: Sequence[EventView], lost: int, epochs: int) -> Ran:
    held, since, gpus, runs, begun = 0.0, 0.0, 0, 0.0, None
    sizes: list[int] = []
    live = 0
    restarts: list[float] = []
    stopping = None
    for event in story:
        at, what = _at(event), event.type.rpartition(".")[2]
        placement = event.data.placement
        held += gpus * (at - since)
        since = at
        if placement is not None:
            gpus = sum(len(each.gpus) for each in placement.allocations)
            sizes.append(sum(bool(each.gpus) for each in placement.staying))
        if event.data.state in (JobState.QUEUED, *FINAL):
            gpus = 0
        cause = event.data.cause
        if what == JobEvent.RESIZED and cause is not None and cause.code in (CauseCode.GREW, CauseCode.SHRANK):
            live += 1
        elif what == JobEvent.STOPPING:
            stopping = at
        elif what == JobEvent.STARTED:
            begun = at if begun is None else begun
            if stopping is not None:
                restarts.append(at - stopping)
                stopping = None
    runs = _at(story[-1]) - (begun or _at(story[-1]))
    return Ran(
        jct_s=_at(story[-1]) - _at(story[0]),
        runs_s=runs,
        gpu_s=held,
        sizes=tuple(sizes),
        live=live,
        restart_s=tuple(restarts),
        epochs=epochs + 1,
        lost=lost,
    )


def _lost(cluster: Cluster, job_id: str) -> int:
    """Pieces that were saved and done again: none, if every epoch began where the last one was saved."""
    lost = 0
    for book in cluster.local.home.checkpoints.glob(f"**/{job_id}*/pieces"):
        saved = 0
        for line in book.read_text().splitlines():
            what, done = line.split()
            if what == "resumed":
                lost += saved - int(done)
            saved = int(done)
    return lost


def _at(event: EventView) -> float:
    return datetime.fromisoformat(event.time).timestamp()


async def changes(image: str, *, quick: bool) -> tuple[list[float], list[float], int]:
    """Seconds from the ask to the first work of the rank that joined, of a live job; from the stop to the first work
    after it of a rank that fetches its work, of one that restarts; and the saved pieces that were done again."""
    live: list[float] = []
    restarts: list[float] = []
    async with _cluster(image, {}) as cluster:
        apps = [
            Application(name=name, pieces=100_000, after_s=0.0, server=False, restarts=restarting)
            for name, restarting in (("live", False), ("restarting", True))
        ]
        ids = {app.name: (await cluster.client.submit(app.spec(elastic=True, image=image))).id for app in apps}
        for job_id in ids.values():
            await cluster.state(job_id, JobState.RUNNING)
        for turn in range(CHANGES_QUICK if quick else CHANGES):
            size = STATIC + 1 + turn % 2 * 2
            asked = time.time()
            await cluster.client.scale(ids["live"], {"worker": size})
            view = await cluster.until(ids["live"], partial(_has, size=size))
            assert view.placement is not None
            newest = max(each.rank for each in view.placement.staying)
            live.append(await _joined(cluster, view.id, newest) - asked)
            await cluster.client.scale(ids["live"], {"worker": LEAST})
            epoch = (await cluster.client.job(ids["restarting"])).epoch
            await cluster.client.scale(ids["restarting"], {"worker": size})
            await cluster.until(ids["restarting"], partial(_runs_anew, after=epoch))
            stopped = _stopped(await cluster.client.story(ids["restarting"]))
            restarts.append(await _joined(cluster, ids["restarting"], 1, after=stopped) - stopped)
            await cluster.until(ids["live"], lambda job: job.gpus == LEAST)
        ran = _ran(await cluster.client.story(ids["restarting"]), _lost(cluster, ids["restarting"]), 0)
        for job_id in ids.values():
            await cluster.client.cancel(job_id)
            await cluster.ended(job_id)
    return live, restarts, ran.lost


def _has(job: JobView, *, size: int) -> bool:
    return job.replicas == size


def _runs_anew(job: JobView, *, after: int) -> bool:
    return job.epoch > after and job.state is JobState.RUNNING


def _stopped(story: Sequence[EventView]) -> float:
    return max(_at(event) for event in story if event.type.rpartition(".")[2] == JobEvent.STOPPING)


async def _joined(cluster: Cluster, job_id: str, rank: int, *, after: float = 0.0) -> float:
    """When this rank began to work, by its own clock, which is this machine's."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            for found in JOINS.findall(await cluster.client.read_log(job_id, rank=rank)):
                if float(found) > after:
                    return float(found)
            await asyncio.sleep(0.05)


def aims(apps: Sequence[Application], ran: Mapping[str, Mapping[str, Ran]], figures: Figures) -> dict[str, Aim]:
    names = [app.name for app in apps]
    found: dict[str, Aim] = {}
    spans = {policy: _span(apps, of_policy) for policy, of_policy in ran.items()}
    used = {
        policy: sum(each.gpu_s for each in of_policy.values()) / (spans[policy] * NODES * GPUS)
        for policy, of_policy in ran.items()
    }
    for policy, of_policy in ran.items():
        faster = [ran["static"][name].jct_s / of_policy[name].jct_s for name in names]
        live = sum(each.live for each in of_policy.values())
        restarts = [seconds for each in of_policy.values() for seconds in each.restart_s]
        figures.add(f"{policy}: mean JCT", f"{mean(each.jct_s for each in of_policy.values()):.1f} s")
        figures.add(f"{policy}: speed-up of applications against static, mean", f"{mean(faster):.2f}")
        figures.add(f"{policy}: part of the GPUs held until the last job ended", f"{used[policy]:.2f}")
        figures.add(f"{policy}: all jobs ended after", f"{spans[policy]:.0f} s")
        figures.add(f"{policy}: live changes, restarts", f"{live}, {len(restarts)}")
        figures.add(f"{policy}: saved work done again", f"{sum(each.lost for each in of_policy.values())} pieces")
    ours = ran["ours"]
    overhead = [ran["static"][app.name].runs_s / app.alone_s - 1 for app in apps]
    resized = sum(each.live + len(each.restart_s) for each in ours.values())
    figures.add("static: time against running alone, mean", f"{mean(overhead):+.1%}")
    speed_up = mean(ran["static"][name].jct_s / ours[name].jct_s for name in names)
    found["speed_up"] = Aim(value=round(speed_up, 3), aim=1.0, at_least=True)
    against = used["ours"] / used["dorm"]
    found["utilisation_against_dorm"] = Aim(value=round(against, 3), aim=OF_DORMS_UTILISATION, at_least=True)
    found["utilisation_against_static"] = Aim(value=round(used["ours"] / used["static"], 3), aim=1.0, at_least=True)
    found["overhead_against_alone"] = Aim(value=round(mean(overhead), 4), aim=0.05)
    found["saved_work_lost"] = Aim(value=sum(each.lost for each in ours.values()), aim=0)
    found["resized"] = Aim(value=resized, aim=1, at_least=True)
    return found


def _seconds(values: Sequence[float]) -> str:
    return f"median {median(values):.2f} s, most {max(values):.2f} s"


def _span(apps: Sequence[Application], ran: Mapping[str, Ran]) -> float:
    return max(app.after_s + ran[app.name].jct_s for app in apps)


async def compared(figures: Figures, *, seed: int, quick: bool, image: str) -> dict[str, Aim]:
    """The same jobs under each policy, one after the other."""
    figures.add("the jobs are", f"containers of {image}" if image else "processes")
    apps = applications(seed, quick=quick)
    ran: dict[str, dict[str, Ran]] = {}
    for policy in POLICIES:
        ran[policy] = await run(policy, apps, image)
    return aims(apps, ran, figures)


async def measure(*, seed: int, quick: bool, image: str) -> int:
    figures = Figures()
    found = await compared(figures, seed=seed, quick=quick, image=image)
    live, restarts, lost = await changes(image, quick=quick)
    figures.add(f"a live change, from the ask to the new rank's first work ({len(live)})", _seconds(live))
    figures.add(f"a restart with another size, from the stop to the first work ({len(restarts)})", _seconds(restarts))
    figures.add("saved work that restarts lost", f"{lost} pieces")
    found["live_change_s"] = Aim(value=round(median(live), 2), aim=5.0)
    found["restart_s"] = Aim(value=round(median(restarts), 2), aim=10.0)
    found["saved_work_lost"] = Aim(value=found["saved_work_lost"].value + lost, aim=0)
    figures.show()
    print(line_of(found, seed=seed))
    return 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench elastic", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="less than half of the work")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--as", dest="kind", choices=("containers", "processes"), help="runtime of the jobs")
    asked = parser.parse_args(arguments)
    there = asked.kind != "processes" and has_base()
    if asked.kind == "containers" and not there:
        parser.error(f"no Docker engine, or no image {base()}")
    return asyncio.run(measure(seed=asked.seed, quick=asked.quick, image=base() if there else ""))
