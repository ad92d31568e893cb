"""One run from its seed to its verdict."""

import asyncio
import secrets
import time
from collections import Counter
from pathlib import Path

from msgspec import Struct

from tests.chaos import evidence as found
from tests.chaos.audit import EXCUSED, FAULTY, audit, beyond_faults, counts
from tests.chaos.clock import boot_clock
from tests.chaos.customers import Customers, all_over
from tests.chaos.deeds import Deeds, Done
from tests.chaos.enemies import Enemies, enemies_of
from tests.chaos.evidence import Evidence
from tests.chaos.failover import FailoverStores
from tests.chaos.faults import Fault, Means, cut_offs, faults
from tests.chaos.finding import Finding
from tests.chaos.hosts import HostsWorld
from tests.chaos.serving import Serving, service_wishes, statuses
from tests.chaos.sick import Closed, closed_gpus
from tests.chaos.slots import NANO, Accounted, accounted
from tests.chaos.story import told
from tests.chaos.times import times
from tests.chaos.traces import read_came, read_runs
from tests.chaos.wishes import askings, wishes
from tests.chaos.world import ENGINE_POOL, FENCE, GRACE, World, world
from weft.client import Client

READY_AGAIN_SECONDS_MAX = 60.0
KILLS = ("kill", "lose", "restore", "fail over")
STORED_SECONDS_MAX = 5.0  # from when a step is decided, in calm
SUBMITTED_PART = 0.85  # of the time; what comes last still meets faults
ENDED_SECONDS_MAX = 2 * (FENCE + GRACE) + 5.0


class Asked(Struct, frozen=True, kw_only=True):
    seconds: float
    seed: int
    settle: float = 90.0
    fencing: bool = True
    enemies: bool = True
    failover: bool = False
    hosts: bool = False
    keep: Path | None = None
    quiet: bool = False
    markdown: bool = False
    faults: tuple[Fault, ...] | None = None  # instead of those of the seed


class Result(Struct, frozen=True, kw_only=True):
    """`figures` is what is printed as JSON: the audit's counts first."""

    figures: dict[str, object]
    findings: list[Finding]

    @property
    def good(self) -> bool:
        return not any(self.figures[kind] for kind in FAULTY)

    def row(self) -> str:
        """One line of the table in tests/bench/measured/chaos.md, whose head is `head()`."""
        shown = {**self.figures, "kills": _listed(self.figures["kills"])}
        return _line([str(shown[name]) for name in COLUMNS])


COLUMNS = (
    *("seed", "seconds", "faults_done", "kills", "jobs", "runs", "moves"),
    *(*FAULTY, *EXCUSED, "longest_unavailable_seconds", "longest_unavailable_beyond_faults_seconds"),
)


def head() -> str:
    """Of the table of rows."""
    return "\n".join((_line([name.replace("_", " ") for name in COLUMNS]), _line(["---"] * len(COLUMNS))))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _listed(kills: object) -> str:
    assert isinstance(kills, dict)
    return ", ".join(f"{kind} {count}" for kind, count in sorted(kills.items()))


async def chaos(asked: Asked) -> Result:
    began = time.monotonic()

    def tell(line: str) -> None:
        if not asked.quiet:
            print(f"{time.monotonic() - began:6.1f} {line}", flush=True)

    async with (
        world(
            fencing=asked.fencing,
            failover=asked.failover,
            keep=asked.keep,
            make=HostsWorld if asked.hosts else None,
        ) as made,
        Client(made.url, made.token) as client,
        enemies_of(made, client, asked.seed, asked.seconds, there=asked.fencing and asked.enemies) as enemies,
    ):
        tell(f"seed {asked.seed}: the cluster is up, with {len(made.members)} services")
        deeds = Deeds(made, tell)
        customers = Customers(client, made.nodes)
        serving = Serving(made, client)
        async with enemies.lying(customers, serving.customers):
            try:
                run = await _trouble(asked, made, customers, serving, deeds, enemies)
            finally:
                await deeds.end()
            tell("mended; settling")
            evidence = await _settled(asked, made, client, deeds, customers, serving, run, enemies, began)
        tell(f"settled; {_longest_wait(customers)}")
    findings = audit(evidence)
    for line in told([finding for finding in findings if finding.kind in FAULTY], evidence):
        print(line, flush=True)
    return Result(figures=_figures(asked, made, findings, evidence, customers, serving, enemies), findings=findings)


async def _trouble(
    asked: Asked, made: World, customers: Customers, serving: Serving, deeds: Deeds, enemies: Enemies
) -> str:
    """Faults, customers and enemies, together, for as long as was asked. Returns by what its jobs are known."""
    run = f"chaos-{secrets.token_hex(3)}"
    planned = asked.faults
    if planned is None:
        plan = faults if asked.fencing else cut_offs
        planned = tuple(plan(asked.seed, asked.seconds, means(made)))
    wanted = wishes(
        asked.seed,
        asked.seconds * SUBMITTED_PART,
        folder=made.folder,
        run=run,
        lasting=not asked.fencing,
        engine_pool=ENGINE_POOL if made.engine else "",
    )
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(deeds.play(list(planned)))
        tasks.create_task(customers.come(wanted, askings(asked.seed, asked.seconds)))
        tasks.create_task(enemies.hostile.come(enemies.misdeeds))
        if asked.fencing and made.router_url:  # without fences only these are looked at
            services = service_wishes(asked.seed, asked.seconds, folder=made.folder, run=run)
            tasks.create_task(serving.customers.come(services, []))
            tasks.create_task(serving.ask(asked.seconds))
    return run


def means(made: World) -> Means:
    return Means(
        nodes=made.nodes,
        full_disk=made.small_disk,
        engine=made.engine is not None,
        guards=True,
        router=bool(made.router_url),
        failover=isinstance(made.stores, FailoverStores),
        hosts=isinstance(made, HostsWorld),
    )


async def _settled(
    asked: Asked,
    made: World,
    client: Client,
    deeds: Deeds,
    customers: Customers,
    serving: Serving,
    run: str,
    enemies: Enemies,
    began: float,
) -> Evidence:
    """The hostile tenant ends with the faults; the rogue node goes on lying. Services are ended when all jobs are over
    and each service was looked at."""
    unready = await _all_ready(made)
    await enemies.hostile.stop(READY_AGAIN_SECONDS_MAX)
    await customers.settle(READY_AGAIN_SECONDS_MAX)
    await serving.customers.settle(READY_AGAIN_SECONDS_MAX)
    await customers.resume_all()
    services, _ = await asyncio.gather(
        serving.settled(asked.settle), all_over(client, customers.submissions, asked.settle)
    )
    await serving.end(asked.settle)
    submissions = [*customers.submissions, *serving.submissions]
    living = await _nothing_lives(run, min(asked.settle, ENDED_SECONDS_MAX))
    runs = read_runs(made.folder)
    ids = sorted({job_id for one in submissions for job_id in one.ids} | {run.job_id for run in runs})
    jobs = await found.views(client, [*ids, *enemies.hostile.polite])
    return Evidence(
        accounted=await _accounted(made, client, began),
        closed=await _closed(made),
        submissions=submissions,
        runs=runs,
        came=read_came(made.folder),
        faults=deeds.done,
        restores=deeds.restores,
        jobs=jobs,
        stories=await found.stories(client, [job_id for job_id, job in jobs.items() if job is not None]),
        exits=[one for member in made.members.values() for one in (*member.exits, *member.mistakes())],
        unready=unready,
        hostile_runs=read_runs(made.hostile_folder),
        services=services,
        requests=serving.requests,
        hostile_outcomes=await enemies.hostile.outcomes(),
        ids_of_key=await found.ids_by_name(client),
        said=await found.what_was_said(client, made.folder, runs),
        living=living,
        boot_to_unix=time.time() - boot_clock(),
    )


async def _accounted(made: World, client: Client, began: float) -> Accounted:
    """Of the whole time until a moment that no step of a job is about to be stored for any more."""
    until = time.time() - STORED_SECONDS_MAX
    seconds = min(31 * 86_400, int(time.monotonic() - began) + 3600)
    async with made.owner() as connection:
        return await accounted(client, connection, seconds=seconds, until=until)


async def _closed(made: World) -> list[Closed]:
    async with made.owner() as connection:
        return await closed_gpus(connection)


async def _all_ready(made: World) -> list[str]:
    """The names of those that are not, in time."""
    members = list(made.members.values())
    waited = await asyncio.gather(
        *(member.ready(READY_AGAIN_SECONDS_MAX) for member in members), return_exceptions=True
    )
    unready = []
    for member, error in zip(members, waited, strict=True):
        if isinstance(error, TimeoutError):
            unready.append(member.name)
        elif error is not None:
            raise error
    return unready


def _longest_wait(customers: Customers) -> str:
    worst = max(customers.submissions, key=lambda one: (one.acked_at or one.asked_at) - one.asked_at)
    ago = boot_clock() - worst.asked_at
    return f"{worst.wish.key}, asked {ago:.1f} s ago, waited longest for its acknowledgement"


async def _nothing_lives(run: str, seconds_max: float) -> list[found.Living]:
    """What still lives when all has had the time to end."""
    until = boot_clock() + seconds_max
    while (living := await asyncio.to_thread(found.living, run)) and boot_clock() < until:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    return living


def _figures(
    asked: Asked,
    made: World,
    findings: list[Finding],
    evidence: Evidence,
    customers: Customers,
    serving: Serving,
    enemies: Enemies,
) -> dict[str, object]:
    submissions = evidence.submissions
    acked = [one for one in submissions if one.acked_at is not None]
    jobs = [job for job in evidence.jobs.values() if job is not None]
    done = [fault for fault in evidence.faults if not fault.failed]
    books = evidence.accounted
    return {
        **counts(findings),
        "gpu_seconds_accounted": round(sum(books.by_weft.values()) / NANO, 3) if books else None,
        "gpu_seconds_apart": sum(abs(by) for by in books.apart.values()) / NANO if books else None,
        "seed": asked.seed,
        "seconds": asked.seconds,
        "fencing": asked.fencing,
        "jobs": len(submissions),
        "acknowledged": len(acked),
        "tries": sum(one.tries for one in submissions),
        "outcomes": dict(Counter(str(job.state) for job in jobs)),
        "failed_by": dict(_causes(evidence, "failed")),
        "moved_by": dict(_causes(evidence, "requeued")),
        "resized_by": dict(_causes(evidence, "resized")),
        "restarted_by": dict(_causes(evidence, "restarted")),
        "containers": sum(run.node == "engine" for run in evidence.runs),
        "runs": len(evidence.runs),
        "moves": sum(job.epoch for job in jobs),
        "longest_unavailable_seconds": round(max((one.acked_at or 0) - one.asked_at for one in acked), 1),
        "longest_unavailable_beyond_faults_seconds": round(beyond_faults(evidence), 1),
        "asked": dict(customers.asked + serving.customers.asked),
        "services": len(serving.submissions),
        "replicas_at_the_end": sum(len(one.replicas) for one in evidence.services),
        "requests": statuses(evidence.requests),
        "faults_done": len(done),
        "faults_failed": [f"{one.what} {one.target}: {one.failed}" for one in evidence.faults if one.failed],
        "kills": dict(Counter(_kind(fault) for fault in done if fault.what.startswith(KILLS))),
        "freezes": dict(Counter(_kind(fault) for fault in done if fault.what == "freeze")),
        "restarts": dict(Counter(_kind(fault) for fault in done if fault.what in ("restart", "back up"))),
        "links": dict(Counter(f"{fault.what} {_kind(fault)}" for fault in done if fault.what in ("cut", "break"))),
        "gpu_faults": dict(Counter(fault.what for fault in done if _kind(fault) == "gpu")),
        "quarantines": len(evidence.closed),
        "disks_filled": sum(fault.what == "fill" for fault in done),
        "restores": len(evidence.restores),
        **({"again": times(evidence)} if asked.failover or asked.hosts else {}),
        "misdeeds": dict(enemies.hostile.done),
        "misdeeds_answered": dict(enemies.hostile.answers),
        "hostile_outcomes": dict(sorted(evidence.hostile_outcomes.items())),
        "lies": dict(enemies.lies),
        "interruptions": sum(run.interrupted for run in [*evidence.runs, *evidence.hostile_runs]),
        "exits": dict(Counter(one.name for one in evidence.exits)),
        "not_tried": not_tried(made),
        "emulated_gpus": True,
    }


def _causes(evidence: Evidence, event: str) -> Counter[str]:
    """What the stories say of why. Some jobs were made to fail: theirs is `exited`."""
    told = [one for story in evidence.stories.values() for one in story if one.type == f"weft.jobs.{event}"]
    return Counter(str(one.data.cause.code) for one in told if one.data.cause is not None)


def not_tried(made: World) -> list[str]:
    """What could not be done to this cluster, and why."""
    if isinstance(made, HostsWorld):
        return ["a full disk, services and containers: hosts have processes alone"]
    no_disk = [] if made.small_disk else ["filling a log disk: mounting one needs root"]
    no_router = [] if made.router_url else ["services, and faults of the router: there is no Caddy"]
    return no_disk + no_router + ([] if made.engine else [f"killing the Docker daemon: {made.why_no_engine}"])


def _kind(fault: Done) -> str:
    return fault.target.partition("-")[0]
