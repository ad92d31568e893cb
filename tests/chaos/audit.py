"""What is wrong with the evidence. Pure. Every count of `FAULTY` has to be zero."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise

import msgspec

from tests.chaos.audit_services import SERVICES_FAULTY, audit_services
from tests.chaos.evidence import Evidence, Said
from tests.chaos.faults import HOSTS
from tests.chaos.finding import Finding
from tests.chaos.member import MISTAKE
from tests.chaos.program import LINE_BYTES
from tests.chaos.sick import started_there
from tests.chaos.slots import NANO
from tests.chaos.traces import Run, by_epoch, by_rank
from tests.chaos.wishes import Wish
from tests.chaos.world import DRIFT, FENCE, GRACE, LEASE
from tests.support.sizes import Sizes
from weft.domain.job import JobState
from weft.domain.shares import WHOLE, Share
from weft.emulation.gpus import EMULATED_MEMORY
from weft.messages.http import JobView

FAULTY = (
    "lost",  # acknowledged, and the API does not know it
    "stuck",  # not over long after all is mended, or never acknowledged
    "untrue",  # said to have succeeded, and a rank did not end with status 0
    "twice",  # a rank that was started twice in one epoch
    "overlaps",  # two runs of one rank, or two epochs of one job, at one time
    "half_placed",  # ranks that go on without their peers
    "over_packed",  # runs on one GPU at one time that have more than all its time or its memory
    "log_bytes_missing",
    "orphans",  # processes of what is over
    "two_jobs",  # for one key
    "interrupted",  # said to have succeeded, and a rank had only done what it was told: to stop
    "unlawful_size",  # a core that is not whole, a size out of range, a rank number given again, a wrong rank blamed
    "work_lost",  # steps that a checkpoint had, done again or not counted; or an end before all steps were done
    "crashed",  # a service that ended by itself while no server was away, or was not ready again at the end
    "unanswered",  # a submission that waited for too long while nothing that it needs was troubled
    "unaccounted",  # GPU-seconds by which accounting differs from what the rows of `gpu_slots` were
    "on_quarantined_gpu",  # a job that was placed on a GPU while that was out of use
    *SERVICES_FAULTY,
)
EXCUSED = ("undone_by_restore", "again_by_restore", "log_bytes_lost_by_engine")  # counted, and not held against it
ALONE_SECONDS_MAX = LEASE + FENCE + GRACE + DRIFT
SCHEDULERS = tuple(f"{part}scheduler-{n}" for n in (1, 2, 3) for part in ("", "store-", "bus-"))
CONTROL = ("nats", "postgres", *SCHEDULERS, *HOSTS)
ANSWERED_SECONDS_MAX = 20.0  # of calm; a gateway needs some of them to start, and these machines are busy
AWAY_SECONDS = 20.0  # how long after a server or link was troubled a service may still end because of it
DOOR = ("gateway", "store-gateway", "postgres", *HOSTS)  # what a submission needs


def audit(evidence: Evidence) -> list[Finding]:
    return [
        *_lost(evidence),
        *_two_jobs(evidence),
        *_untrue(evidence),
        *_twice(evidence),
        *_overlaps(evidence),
        *_over_packed(evidence),
        *_half_placed(evidence),
        *_logs(evidence),
        *_orphans(evidence),
        *_interrupted(evidence),
        *_unlawful_sizes(evidence),
        *_work_lost(evidence),
        *_crashed(evidence),
        *_unanswered(evidence),
        *_unaccounted(evidence),
        *_on_quarantined_gpus(evidence),
        *audit_services(evidence.services, evidence.requests),
    ]


def counts(findings: list[Finding]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for finding in findings:
        found[finding.kind] += finding.count
    return {kind: found[kind] for kind in (*FAULTY, *EXCUSED)}


def beyond_faults(evidence: Evidence) -> float:
    """The longest that a submission waited while nothing that it needs was troubled, in seconds."""
    return max(
        (_calm(evidence, one.asked_at, one.acked_at, DOOR) for one in evidence.submissions if one.acked_at), default=0.0
    )


def _lost(evidence: Evidence) -> Iterator[Finding]:
    for one in evidence.submissions:
        if one.refused or not one.ids:
            yield Finding(kind="stuck", job_id=one.wish.key, sentence=one.refused or "was never acknowledged")
            continue
        job = evidence.jobs[one.id]
        if job is None:
            undone = _in_a_restore(evidence, one.acked_at or 0.0, one.acked_at or 0.0)
            kind, sentence = ("undone_by_restore", "was undone") if undone else ("lost", "was acknowledged, is unknown")
            yield Finding(kind=kind, job_id=one.id, sentence=f"{one.wish.key} {sentence}", at=one.acked_at or 0.0)
        elif not job.state.final:
            yield Finding(kind="stuck", job_id=one.id, sentence=f"{job.name} is {job.state} in epoch {job.epoch}")


def _two_jobs(evidence: Evidence) -> Iterator[Finding]:
    for one in evidence.submissions:
        ids = set(one.ids) | evidence.ids_of_key.get(one.wish.key, set())
        if len(ids) > 1 and not _in_a_restore(evidence, one.asked_at, one.acked_at or one.asked_at):
            yield Finding(kind="two_jobs", job_id=one.id, sentence=f"{one.wish.key} is {', '.join(sorted(ids))}")


def _untrue(evidence: Evidence) -> Iterator[Finding]:
    """A job whose story was set back may have ended where nobody remembers it."""
    ended = {(run.job_id, run.epoch, run.rank) for run in evidence.runs if run.status == 0}
    for one in evidence.submissions:
        job = evidence.jobs.get(one.id) if one.ids else None
        if job is None or job.state is not JobState.SUCCEEDED:
            continue
        missing = [rank for rank in range(_gang(evidence, one.wish, job)) if (job.id, job.epoch, rank) not in ended]
        if missing:
            sentence = f"{job.name} succeeded in epoch {job.epoch}, but its ranks {missing} never ended with 0"
            yield Finding(kind="untrue", job_id=job.id, sentence=sentence)


def _gang(evidence: Evidence, wish: Wish, job: JobView) -> int:
    """How many ranks, the first ones, were the gang of the job in its last epoch."""
    if not wish.steps:
        return wish.ranks
    last = [run.world for run in evidence.runs if (run.job_id, run.epoch) == (job.id, job.epoch)]
    return wish.core or max(last, default=wish.ranks)


def _twice(evidence: Evidence) -> Iterator[Finding]:
    for (job_id, rank), runs in by_rank(evidence.runs).items():
        for before, after in pairwise(sorted(runs, key=lambda run: (run.epoch, run.began))):
            if before.epoch == after.epoch:
                undone = any(before.began < until <= after.began for _, until in evidence.restores)
                yield Finding(
                    kind="again_by_restore" if undone else "twice",
                    job_id=job_id,
                    sentence=f"rank {rank} was started twice in epoch {after.epoch}, on {before.node} and {after.node}",
                    at=after.began,
                )


def _overlaps(evidence: Evidence) -> Iterator[Finding]:
    """Ranks of one epoch belong together; any other two runs of a job do not."""
    by_job: dict[str, list[Run]] = defaultdict(list)
    for run in evidence.runs:
        by_job[run.job_id].append(run)
    for job_id, runs in by_job.items():
        for before, after in _together(runs):
            if (before.epoch, before.rank) == (after.epoch, after.rank) or before.epoch != after.epoch:
                sentence = f"{_words(before)} and {_words(after)} for {before.overlaps(after):.2f} s"
                yield Finding(kind="overlaps", job_id=job_id, sentence=sentence, at=after.began)


def _over_packed(evidence: Evidence) -> Iterator[Finding]:
    shares = _shares(evidence)
    by_gpu: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in evidence.runs:
        for gpu in run.gpus:
            by_gpu[run.node, gpu].append(run)
    for (node, gpu), runs in by_gpu.items():
        there: list[Run] = []
        for run in sorted(runs, key=lambda run: run.began):
            there = [*(one for one in there if one.last > run.began), run]
            held = [shares.get(one.job_id) for one in there]
            time = sum(WHOLE if share is None else share.request for share in held)
            memory = sum(0 if share is None else share.memory for share in held)
            if time > WHOLE or memory > EMULATED_MEMORY:
                what = f"{time} thousandths and {memory} bytes"
                sentence = (
                    f"GPU {gpu} of {node}: {what} for {', '.join(f'{one.job_id} {_words(one)}' for one in there)}"
                )
                yield Finding(kind="over_packed", job_id=run.job_id, sentence=sentence, at=run.began)


def _shares(evidence: Evidence) -> dict[str, Share]:
    """The shares of GPUs that jobs asked for, by job."""
    asked = [(one, one.wish.spec.roles["worker"].share) for one in evidence.submissions]
    return {job_id: share.held for one, share in asked if share is not None for job_id in one.ids}


def _half_placed(evidence: Evidence) -> Iterator[Finding]:
    cores = _cores(evidence)
    for (job_id, epoch), runs in by_epoch(evidence.runs).items():
        if max(run.world for run in runs) < 2:
            continue
        core = cores.get(job_id) or max(run.world for run in runs)
        yield from _never_came(evidence, job_id, epoch, runs, core)
        yield from _left_alone(evidence, job_id, epoch, runs, core)


def _cores(evidence: Evidence) -> dict[str, int]:
    """Of the jobs that resize live, how many ranks, the first ones, they never run without."""
    return {job_id: one.wish.core for one in evidence.submissions for job_id in one.ids if one.wish.core is not None}


def _never_came(evidence: Evidence, job_id: str, epoch: int, runs: list[Run], core: int) -> Iterator[Finding]:
    """Ranks of a started gang that never began. Time in which the executor of one of the gang's nodes is stopped or cut
    off does not count: only that executor can report that a rank had no permission to start any more."""
    came = {rank for of_job, of_epoch, rank in evidence.came if (of_job, of_epoch) == (job_id, epoch)}
    missing = set(range(core)) - {run.rank for run in runs} - came
    nodes = {run.node for run in runs} | {
        allocation.node_id
        for event in evidence.stories.get(job_id, ())
        if event.data.epoch == epoch and event.data.placement is not None
        for allocation in event.data.placement.allocations
    }
    untold = tuple(f"executor-{node}" for node in nodes)
    started = [
        datetime.fromisoformat(event.time).timestamp() - evidence.boot_to_unix
        for event in evidence.stories.get(job_id, ())
        if event.type == "weft.jobs.started" and event.data.epoch == epoch
    ]
    alone = [_calm(evidence, max(run.began, *started), run.last, untold) for run in runs if started]
    lasted = max(alone, default=0.0)
    if missing and lasted > GRACE + DRIFT:
        sentence = f"epoch {epoch} was said to run without its ranks {sorted(missing)} for {lasted:.1f} s"
        yield Finding(kind="half_placed", job_id=job_id, sentence=sentence, at=runs[0].began)


def _left_alone(evidence: Evidence, job_id: str, epoch: int, runs: list[Run], core: int) -> Iterator[Finding]:
    """Time in which the control plane, or a node of the gang, was troubled does not count, nor does any after the rank
    began again: in one epoch that is so only after a restore."""
    ended = [run for run in runs if run.status != 0 and run.rank < core]
    nodes = {run.node for run in runs}
    for run in runs:
        for peer in ended:
            again = [one.began for one in runs if one.rank == peer.rank and one.began > peer.last]
            gone, until = max(peer.last, run.began), min([run.last, *again])
            alone = _calm_seconds(evidence, nodes, gone, until)
            if alone > ALONE_SECONDS_MAX:
                sentence = f"{_words(run)} went on for {until - gone:.1f} s without its peers, {alone:.1f} s in calm"
                yield Finding(kind="half_placed", job_id=job_id, sentence=sentence, at=gone)
                break


def _logs(evidence: Evidence) -> Iterator[Finding]:
    for said in evidence.said:
        run = said.runs[0]
        if evidence.jobs.get(run.job_id) is None or _in_a_restore(evidence, run.began, said.runs[-1].last):
            continue
        missing = _missing(said)
        if missing:
            why = said.why_not or f"the log has {len(said.log)} bytes"
            sentence = f"{missing} of {sum(map(len, said.written))} bytes of {_words(run)} on {run.node}: {why}"
            kind = "log_bytes_lost_by_engine" if _ended_without_engine(evidence, said) else "log_bytes_missing"
            yield Finding(kind=kind, job_id=run.job_id, sentence=sentence, at=run.last, count=missing)


def _missing(said: Said) -> int:
    """How many bytes that were written are not where they should be. One line more, not yet noted, is no harm."""
    if len(said.written) > 1:
        return sum(len(written) for written in said.written if written not in said.log)
    written = said.written[0]
    if said.log.startswith(written) and len(said.log) - len(written) <= LINE_BYTES:
        return 0
    same = next((at for at, (one, other) in enumerate(zip(written, said.log, strict=False)) if one != other), None)
    return len(written) - (min(len(written), len(said.log)) if same is None else same) or 1


def _ended_without_engine(evidence: Evidence, said: Said) -> bool:
    """What a container wrote when its engine was dead is in a pipe of the engine's, and lost if it ended before that
    was back. What it wrote before has to be there, but for what was on its way."""
    last = said.runs[-1]
    killed = [fault for fault in evidence.faults if fault.target == "engine"]
    return (
        any(fault.began <= last.last <= fault.ended for fault in killed)
        and last.node == "engine"
        and not said.why_not
        and said.written[-1].startswith(said.log)
    )


def _orphans(evidence: Evidence) -> Iterator[Finding]:
    for one in evidence.living:
        job = evidence.jobs.get(one.job_id)
        if job is None or job.state.final or job.epoch != one.epoch:
            state = f"{job.state} in epoch {job.epoch}" if job else "unknown"
            sentence = f"pid {one.pid} of rank {one.rank} in epoch {one.epoch} lives, the job is {state}"
            yield Finding(kind="orphans", job_id=one.job_id, sentence=sentence)


def _interrupted(evidence: Evidence) -> Iterator[Finding]:
    """The hostile tenant's jobs too: what an interruption is depends on nobody's good will.

    A rank that was started again in its epoch, which only a restore may bring about, is as its last run was.
    """
    last: dict[tuple[str, int, int], Run] = {}
    for run in sorted([*evidence.runs, *evidence.hostile_runs], key=lambda run: run.began):
        last[run.job_id, run.epoch, run.rank] = run
    cores = _cores(evidence)
    for run in last.values():
        job = evidence.jobs.get(run.job_id)
        if run.rank >= cores.get(run.job_id, run.rank + 1):
            continue  # such a rank may leave at any time
        if run.interrupted and job is not None and job.state is JobState.SUCCEEDED and job.epoch == run.epoch:
            sentence = f"{job.name} succeeded, but {_words(run)} ended because it was told to, its work not done"
            yield Finding(kind="interrupted", job_id=run.job_id, sentence=sentence, at=run.last)


def _unlawful_sizes(evidence: Evidence) -> Iterator[Finding]:
    """By the story of each job alone: that no GPU has two owners is seen in its runs."""
    for one in evidence.submissions:
        for job_id in one.ids:
            wrong: list[str] = []
            sizes = Sizes(wrong.append)
            sizes.specs = {one.wish.spec.name: msgspec.to_builtins(one.wish.spec)}
            for event in evidence.stories.get(job_id, ()):
                sizes.told(event.data, event.type.removeprefix("weft.jobs."))
            for sentence in wrong:
                yield Finding(kind="unlawful_size", job_id=job_id, sentence=sentence)


def _work_lost(evidence: Evidence) -> Iterator[Finding]:
    """What rank 0 wrote into a checkpoint is where its next run begins, and a job that succeeded did all its steps."""
    leads: dict[str, list[Run]] = defaultdict(list)
    for run in evidence.runs:
        if run.rank == 0:
            leads[run.job_id].append(run)
    for one in evidence.submissions:
        for job_id in one.ids if one.wish.steps else ():
            runs = leads[job_id]
            written = sorted(pair for run in runs for pair in run.checkpoints)
            for run in runs:
                before = max((step for at, step in written if at < run.began), default=0)
                if run.steps_from is not None and run.steps_from < before:
                    sentence = f"{_words(run)} began at step {run.steps_from}, and {before} were in a checkpoint"
                    yield Finding(kind="work_lost", job_id=job_id, sentence=sentence, at=run.began)
            job = evidence.jobs.get(job_id)
            done = max((run.steps_done or 0 for run in runs), default=0)
            if job is not None and job.state is JobState.SUCCEEDED and done < one.wish.steps:
                sentence = f"{job.name} succeeded after {done} of {one.wish.steps} steps"
                yield Finding(kind="work_lost", job_id=job_id, sentence=sentence)


def _crashed(evidence: Evidence) -> Iterator[Finding]:
    for one in evidence.exits:
        servers = (
            "nats",
            "postgres",
            *HOSTS,
            *(f"{link}-{one.name}" for link in ("store", "bus")),
            _node_link(one.name),
        )
        if one.crashed or _calm(evidence, one.at - AWAY_SECONDS, one.at, servers) >= AWAY_SECONDS:
            what = "made a mistake" if MISTAKE in one.words else f"ended by itself with status {one.status}"
            sentence = f"{one.name} {what}: {one.words}"
            yield Finding(kind="crashed", job_id="", sentence=sentence, at=one.at)
    for name in evidence.unready:
        yield Finding(kind="crashed", job_id="", sentence=f"{name} was not ready again at the end")


def _node_link(service: str) -> str:
    return f"link-{service.partition('-')[2]}"


def _unanswered(evidence: Evidence) -> Iterator[Finding]:
    for one in evidence.submissions:
        if one.acked_at is None:
            continue  # `stuck` already
        calm = _calm(evidence, one.asked_at, one.acked_at, DOOR)
        if calm > ANSWERED_SECONDS_MAX:
            sentence = f"{one.wish.key} waited {one.acked_at - one.asked_at:.1f} s, of them {calm:.1f} s in calm"
            yield Finding(kind="unanswered", job_id=one.id, sentence=sentence, at=one.asked_at)


def _unaccounted(evidence: Evidence) -> Iterator[Finding]:
    """Any difference counts as one GPU-second at least."""
    if evidence.accounted is None:
        return
    for job_id, apart in evidence.accounted.apart.items():
        held = evidence.accounted.by_slots.get(job_id, 0) / NANO
        sentence = f"accounting is {apart / NANO:+.9f} GPU-seconds from the {held:.9f} that its slots of GPUs were held"
        yield Finding(kind="unaccounted", job_id=job_id, sentence=sentence, count=max(1, round(abs(apart) / NANO)))
    if evidence.accounted.capacity:
        sentence = f"the parts of the capacity are {evidence.accounted.capacity:+.6f} GPU-seconds from their sum"
        yield Finding(kind="unaccounted", job_id="", sentence=sentence)


def _together(runs: list[Run]) -> Iterator[tuple[Run, Run]]:
    """Pairs of runs that were there at one time."""
    there: list[Run] = []
    for run in sorted(runs, key=lambda run: run.began):
        there = [one for one in there if one.last > run.began]
        for one in there:
            yield one, run
        there.append(run)


def _on_quarantined_gpus(evidence: Evidence) -> Iterator[Finding]:
    for one in started_there(evidence.stories, evidence.closed):
        at, since = (when - evidence.boot_to_unix for when in (one.at, one.closed.since))
        if not _in_a_restore(evidence, since, at):
            gpu = f"GPU {one.closed.gpu} of {one.closed.node}"
            sentence = f"was started on {gpu}, which was quarantined for {at - since:.2f} s"
            yield Finding(kind="on_quarantined_gpu", job_id=one.job_id, sentence=sentence, at=at)


def _in_a_restore(evidence: Evidence, began: float, ended: float) -> bool:
    return any(began <= until and ended >= since for since, until in evidence.restores)


def _calm_seconds(evidence: Evidence, nodes: set[str], began: float, ended: float) -> float:
    """How much of that time nothing was, or had just been, wrong that a gang on these nodes depends on."""
    involved = {fault.target for fault in evidence.faults if fault.target.partition("-")[2] in nodes}
    return _calm(evidence, began, ended, (*CONTROL, *involved), after=LEASE)


def _calm(evidence: Evidence, began: float, ended: float, targets: tuple[str, ...], *, after: float = 0.0) -> float:
    """How many of those seconds none of these was troubled, nor had been `after` seconds before."""
    of_these = [fault for fault in evidence.faults if fault.target in targets]
    troubled = sorted((fault.began, fault.ended + after) for fault in of_these)
    calm, at = 0.0, began
    for since, until in troubled:
        calm += max(0.0, min(since, ended) - at)
        at = max(at, until)
    return calm + max(0.0, ended - at)


def _words(run: Run) -> str:
    return f"rank {run.rank} of epoch {run.epoch} ({run.node}, from {run.began:.2f} to {run.last:.2f})"
