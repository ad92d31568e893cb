"""Runs what-if simulations in processes of their own, a few at a time."""

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec
from aiohttp import web
from msgspec import Struct, structs

from weft.domain.decoding.spec_decoder import SpecError, decode_spec
from weft.domain.job import Job
from weft.domain.quantity import duration_text
from weft.domain.spec import JobSpec
from weft.domain.text import plural
from weft.messages.signals import GpuScore
from weft.messages.whatif import WhatIfJob, WhatIfSide, WhatIfView, WhatIfWanted
from weft.planning.locality import Locality
from weft.planning.policy import Policy
from weft.planning.preemption.minimum_run import MinimumRun
from weft.planning.scores import GpuKey
from weft.simulator.whatif.compared import FatesCompared, compared, grain_for
from weft.simulator.whatif.durations import Assumptions
from weft.simulator.whatif.look_ahead import WhatIfOutcome
from weft.simulator.whatif.present import JobNow, Present, Supposition, job_of, jobs_now, policy_of, supposed
from weft.simulator.whatif.worker import Task, encoded, outcomes_of
from weft.store.tenants import Access
from weft.variability.models import ModelSpeeds, ratios_of
from weft.variability.penalties import believed
from weftd.gateway.allowances import check
from weftd.gateway.errors import RejectedError
from weftd.gateway.gateway import Gateway
from weftd.gateway.http.route import Call, NoQuery, RouteAnswer, answer, json_of, operation
from weftd.gateway.readmodel.visibility import may_see

WORK_SECONDS_MAX = 20.0  # with the wait for a turn, less than clients wait for an answer
SHOWN_MAX = 500
WORKER = (sys.executable, "-P", "-m", "weft.simulator.whatif")


class WhatIfAsked(Struct, frozen=True, kw_only=True):
    """A checked question: the pool as it is, the changed pool, and the jobs of both."""

    at: float
    base: Present
    other: Present
    what: Supposition
    until_s: float
    jobs: dict[str, Job]
    assumed: dict[str, str]  # by job, by what it is known how long it lasts


@operation(
    "POST /v1/what-if",
    "cluster",
    "What would happen if something were different",
    description="Simulate the current queue with the scheduler's own code, with and without a change: another policy,"
    " more or drained nodes, or additional jobs. The answer lists the jobs that would end sooner or later. Nothing is"
    " changed. Both sides assume the same durations. Jobs of other tenants appear only as an id.",
    body=WhatIfWanted,
    answers={200: RouteAnswer(description="Both simulations.", type=WhatIfView)},
    example="""-d '{"order": "las", "add_nodes": 2}'""",
)
async def what_if(call: Call[NoQuery]) -> web.StreamResponse:
    wanted = await json_of(call.request, WhatIfWanted)
    gateway = call.gateway
    call.turn.end()  # it has turns of its own, and may wait long for one: other requests go on meanwhile
    async with gateway.supposing.one(call.who.tenant):
        asked = await _asked(gateway, call.who, wanted)
        outcomes = await _outcomes(asked)
        view = await asyncio.to_thread(_view, asked, *outcomes, call.who)
    return answer(view)


async def _asked(gateway: Gateway, who: Access, wanted: WhatIfWanted) -> WhatIfAsked:
    """Raises RejectedError, which names the field, if the change is impossible."""
    snapshots, at = gateway.snapshots, gateway.now()
    pool = wanted.pool or snapshots.default_pool
    if pool not in await snapshots.pools():
        raise RejectedError(404, "pool", f"there is no pool {pool}")
    specs = [await _specification(gateway, who, number, given, pool) for number, given in enumerate(wanted.submit)]
    nodes = (await snapshots.nodes.get()).of(pool)
    holding, queued = await snapshots.holding(pool), await snapshots.queued(pool)
    assumptions = Assumptions(await gateway.estimates.durations(pool), gateway.estimates.steps(holding))
    learnt = {one.workload: one.job_class for one in await snapshots.classes(pool)}
    penalties = {one.workload: believed(one.penalty, one.confidence) for one in await snapshots.penalties(pool)}
    ratios = ratios_of(await snapshots.curves_of_models(pool))
    scores, quotas = _scores(await snapshots.scores(pool)), await snapshots.quotas(pool)
    policy = policy_of(await gateway.store.policy(pool=pool))
    minimum_run = MinimumRun(await gateway.store.preemption_after(pool=pool))

    def made() -> WhatIfAsked:
        jobs = {job.id: job for job in (*holding, *queued) if not job.state.final}
        last = max((job.seq for job in jobs.values()), default=0)
        new = [
            job_of(spec, number=number, tenant=who.tenant, seq=last + 1 + number, at=at)
            for number, spec in enumerate(specs)
        ]
        found = jobs_now((*jobs.values(), *new), assumptions, learnt, at=at)
        here, there = found[: len(jobs)], found[len(jobs) :]
        what = Supposition(
            order=wanted.order,
            placement=wanted.placement,
            backfill=wanted.backfill,
            add_nodes=wanted.add_nodes,
            drain=wanted.drain,
            submit=there,
        )
        base = Present(
            nodes=tuple(nodes),
            jobs=here,
            policy=policy,
            scores=scores,
            quotas=tuple(quotas),
            locality=Locality(by_workload=penalties),
            model_speeds=ModelSpeeds(ratios, learnt),
            minimum_run=minimum_run,
        )
        return WhatIfAsked(
            at=at,
            base=base,
            other=supposed(base, what),
            what=what,
            until_s=float(wanted.seconds_max),
            jobs={**jobs, **{job.id: job for job in new}},
            assumed={job.id: assumptions.left(job, at).basis for job in (*jobs.values(), *new)},
        )

    try:
        return await asyncio.to_thread(made)
    except ValueError as error:
        field, _, reason = str(error).partition(": ")
        raise RejectedError(400, field, reason[:1000]) from None


async def _specification(gateway: Gateway, who: Access, number: int, given: object, pool: str) -> JobSpec:
    """A hypothetical job of a what-if. A text is read as YAML, of which JSON is a part, in a thread: that is bounded,
    but takes long."""
    field = f"submit[{number}]"
    try:
        if isinstance(given, str):
            spec = await asyncio.to_thread(decode_spec, given.encode(), content="yaml")
        else:
            spec = decode_spec(msgspec.json.encode(given))
        check(spec, gateway.allowances.of(who))
    except SpecError as error:
        raise RejectedError(400, f"{field}.{error.field}".rstrip("."), error.reason) from None
    except RejectedError as error:
        raise RejectedError(error.status, f"{field}.{error.field}".rstrip("."), error.reason) from None
    if spec.pool != pool:
        raise RejectedError(400, f"{field}.pool", f"the what-if is of pool {pool}, not of {spec.pool}")
    return spec


def _scores(scores: Sequence[GpuScore]) -> dict[str, dict[GpuKey, float]]:
    found: dict[str, dict[GpuKey, float]] = {}
    for score in scores:
        found.setdefault(score.job_class, {})[score.node_id, score.gpu_index] = score.believed
    return found


# the work


async def _outcomes(asked: WhatIfAsked) -> tuple[dict[str, WhatIfOutcome], dict[str, WhatIfOutcome]]:
    grain = grain_for([asked.base.policy, asked.other.policy], len(asked.other.jobs))
    tasks = [Task(present=side, until_s=asked.until_s, grain=grain) for side in (asked.base, asked.other)]
    try:
        async with asyncio.timeout(WORK_SECONDS_MAX), asyncio.TaskGroup() as group:
            base, other = (group.create_task(_worked(task)) for task in tasks)
    except TimeoutError:
        why = f"the simulation takes longer than {WORK_SECONDS_MAX:g} s: give less than {asked.until_s:g}"
        raise RejectedError(422, "seconds_max", why) from None
    return base.result(), other.result()


async def _worked(task: Task) -> dict[str, WhatIfOutcome]:
    """The work in a process of its own, which is ended when the caller goes away or the time is up."""
    question = await asyncio.to_thread(encoded, task)
    process = await asyncio.create_subprocess_exec(
        *WORKER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        answered, _ = await process.communicate(question)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"a what-if ended with status {process.returncode}")
    return await asyncio.to_thread(outcomes_of, answered)


# the answer


def _view(
    asked: WhatIfAsked, base: dict[str, WhatIfOutcome], other: dict[str, WhatIfOutcome], who: Access
) -> WhatIfView:
    found = compared(asked.other.jobs, base, other, until_s=asked.until_s)
    shown = [job for job in found.jobs if job.gains_s or (job.gains_s is None and _is_new(asked, job.id))]
    own = [job for job in found.jobs if not job.gains_s and not _is_new(asked, job.id)]
    held = {job.id: bool(job.held) for job in asked.other.jobs}
    jobs = tuple(
        _seen(
            WhatIfJob(
                id=job.id,
                name=asked.jobs[job.id].name,
                tenant=asked.jobs[job.id].tenant,
                starts_base=None if held[job.id] else _moment(asked, job.base.starts_s),
                starts_other=None if held[job.id] else _moment(asked, job.other.starts_s),
                ends_base=_moment(asked, job.base.ends_s),
                ends_other=_moment(asked, job.other.ends_s),
                gains_seconds=job.gains_s,
                basis=asked.assumed[job.id],
            ),
            who,
        )
        for job in (*shown, *own)[:SHOWN_MAX]
    )
    return WhatIfView(
        at=asked.at,
        base=_side("as it is", asked.base),
        other=_side(_words(asked), asked.other),
        jobs=jobs,
        jobs_left_out=len(found.jobs) - len(jobs),
        gained=found.gained,
        lost=found.lost,
        waiting=found.waiting,
        waited_base=found.waited_base_s,
        waited_other=found.waited_other_s,
        assumed=dict(Counter(asked.assumed.values())),
        sentence=_sentence(asked, found, other),
    )


def _is_new(asked: WhatIfAsked, job_id: str) -> bool:
    return any(job.id == job_id for job in asked.what.submit)


def _moment(asked: WhatIfAsked, seconds: float | None) -> float | None:
    return None if seconds is None else asked.at + seconds


def _seen(job: WhatIfJob, who: Access) -> WhatIfJob:
    return job if may_see(who, job.tenant) else structs.replace(job, name="", tenant="", basis="")


def _side(words: str, side: Present) -> WhatIfSide:
    gpus = sum(len(node.capacity.gpus) for node in side.nodes if node.takes_work)
    return WhatIfSide(sentence=words, policy=str(side.policy), gpus=gpus)


def _words(asked: WhatIfAsked) -> str:
    what = asked.what
    policy: Policy = asked.base.policy
    parts = [
        f"{name} {there} instead of {here}"
        for name, there, here in (
            ("order", what.order, policy.order),
            ("placement", what.placement, policy.placement),
            ("backfill", what.backfill, policy.backfill),
        )
        if there and there != here
    ]
    if what.add_nodes:
        gpus = len(asked.other.nodes[-1].capacity.gpus)
        parts.append(f"{plural(what.add_nodes, 'more node')} of {plural(gpus, 'GPU')}")
    parts += [f"{name} drained" for name in what.drain[:3]]
    if len(what.drain) > 3:
        parts.append(f"{len(what.drain) - 3:,} more nodes drained")
    parts += [f"{asked.jobs[job.id].name} submitted" for job in what.submit[:3]]
    if len(what.submit) > 3:
        parts.append(f"{len(what.submit) - 3:,} more jobs submitted")
    return ", ".join(parts) or "nothing different"


def _sentence(asked: WhatIfAsked, found: FatesCompared, other: dict[str, WhatIfOutcome]) -> str:
    """`With order las instead of fifo: 12 jobs end sooner, 3 later; …`"""
    words = _words(asked)
    parts = [f"With {words}: {plural(found.gained, 'job')} sooner, {found.lost:,} later"]
    if found.waiting:
        before, after = duration_text(found.waited_base_s), duration_text(found.waited_other_s)
        wait = f"wait {before} more, as now" if before == after else f"wait {after} more instead of {before}"
        parts.append(f"the {plural(found.waiting, 'job')} that wait now {wait}, on average")
    within = duration_text(asked.until_s)
    if found.only_other:
        parts.append(f"{plural(found.only_other, 'job')} would start within {within} only with the change")
    if found.only_base:
        parts.append(f"{plural(found.only_base, 'job')} would no longer start within {within}")
    parts += [f"{asked.jobs[job.id].name} {_start(asked, job, other)}" for job in asked.what.submit[:3]]
    return "; ".join(parts)


def _start(asked: WhatIfAsked, job: JobNow, other: dict[str, WhatIfOutcome]) -> str:
    starts = other[job.id].starts_s
    if starts is None:
        return f"does not start within {duration_text(asked.until_s)}"
    return "starts at once" if starts < 1 else f"starts in {duration_text(starts)}"
