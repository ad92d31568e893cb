"""Jobs as a list, and one job in full."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft.client.failure import LastWords
from weft.client.tracking import TrackingPage
from weft.domain.cluster import models_text
from weft.domain.job import Cause, JobState
from weft.domain.quantity import duration_text, size_text
from weft.domain.schedules import ScheduledRun
from weft.domain.shares import gpus_held
from weft.domain.spec import JobSpec, Role, Tuning, Volume
from weft.domain.text import listed, plural
from weft.messages.eta import Basis, Estimate
from weft.messages.http import EventView, JobView, NodeView, RunView
from weftd.cli.formatting import NAMED_MAX, ago, clean, emulated_gpus, indexes, number, share_text, span
from weftd.cli.rendering.context import (
    NO_SILENCE,
    Emulated,
    RenderContext,
    fitting,
    job_colour,
    other_progress,
    plain,
    progress_text,
    state_text,
    table,
)
from weftd.cli.rendering.services import service_lines, service_short
from weftd.cli.rendering.sizes import is_sized, size_sentence, size_short
from weftd.cli.rendering.story import NO_NAMES, story_table
from weftd.cli.rendering.tuned import curve_table, tuning_lines

NO_STARTS: Mapping[str, Estimate] = {}


def emulated_gpus_of(nodes: Sequence[NodeView]) -> dict[tuple[str, int], bool]:
    return {(node.id, gpu.index): gpu.emulated for node in nodes for gpu in node.gpus}


def held_emulated(nodes: Sequence[NodeView]) -> dict[str, float]:
    """The number of emulated GPUs that each job holds, a share as a part of one."""
    held: dict[str, float] = {}
    for gpu in (gpu for node in nodes for gpu in node.gpus if gpu.emulated and gpu.held_by):
        assert gpu.held_by is not None
        for holder in gpu.sharing or (gpu.held_by,):
            part = gpus_held((gpu.index,), holder.share)
            held[holder.job_id] = round(held.get(holder.job_id, 0) + part, 3)
    return held


def silences(nodes: Sequence[NodeView]) -> dict[str, float]:
    """For how many seconds each silent node has not reported."""
    return {node.id: node.silent_seconds for node in nodes if node.silent_seconds}


def jobs_table(
    jobs: Sequence[JobView],
    context: RenderContext,
    *,
    emulated: Mapping[str, float],
    silent: Mapping[str, float] = NO_SILENCE,
    tenants: bool = False,
    screen: bool = False,
    starts: Mapping[str, Estimate] = NO_STARTS,
) -> Table:
    """One line per job; `tenants`: with a column of tenants; `silent`: nodes that do not report; `starts`: when jobs
    that wait start, by id.

    `screen`: never more than one row each, and jobs that hold GPUs carry their colour.
    """
    columns: dict[str, Callable[[JobView], Text | str]] = {
        "ID": lambda job: plain(job.id),
        "NAME": lambda job: _marked_name(job, context) if screen and context.bars else _name(job, context),
        "TENANT": lambda job: plain(job.tenant),
        "USER": lambda job: plain(job.submitter),
        "STATE": lambda job: state_text(job.state, hung=job.hung_since is not None),
        "FOR": lambda job: how_long(job, context),
        "STARTS": lambda job: when_text(starts.get(job.id), context),
        "GPUS": lambda job: gpus_wanted(job, emulated.get(job.id, 0)),
        "SIZE": lambda job: plain(size_short(job.size, holding=job.state.holding, narrow=context.narrow)),
        "PRIO": lambda job: number(job.priority),
        "WHAT NOW": lambda job: what_now(job, context, silent=silent),
    }
    if not any(job.id in starts for job in jobs):
        del columns["STARTS"]
    for title in _left_out(jobs, context, tenants=tenants, screen=screen):
        del columns[title]
    cells = {title: [cell(job) for job in jobs] for title, cell in columns.items()}
    shown = fitting(cells, context, drop=("PRIO", "TENANT", "USER", "SIZE", "STARTS", "ID", "FOR"), flexible="WHAT NOW")
    made = table(*shown, context=context, right=("PRIO",), flexible="WHAT NOW", one_line=screen or context.tiny)
    for row in zip(*(cells[title] for title in shown), strict=True):
        made.add_row(*row)
    return made


def _left_out(jobs: Sequence[JobView], context: RenderContext, *, tenants: bool, screen: bool) -> set[str]:
    """The columns that a narrow terminal leaves out, even if there is room."""
    left_out = set() if tenants else {"TENANT"}
    if len({job.submitter for job in jobs}) < 2:
        left_out.add("USER")
    if not any(is_sized(job.size) for job in jobs):
        left_out.add("SIZE")
    if context.narrow and not any(job.priority for job in jobs):
        left_out.add("PRIO")
    if context.tiny or (context.narrow and screen):
        left_out.add("ID")
    return left_out


def _name(job: JobView, context: RenderContext) -> Text:
    """The job's name, on a terminal cut to leave room for the other columns."""
    name = plain(job.name)
    if context.bars:
        name.truncate(max(12, context.width // 4), overflow="ellipsis")
    return name


def _marked_name(job: JobView, context: RenderContext) -> Text:
    """The name of the job with the colour of its GPUs."""
    holds = job.gpus > 0 and job.state.holding
    return Text.assemble(("■ ", job_colour(job.id)) if holds else "  ", _name(job, context))


def gpus_wanted(job: JobView, emulated: float) -> str:
    if job.gpus and emulated:
        wanted = number(job.gpus)
        return f"{wanted} emulated" if emulated >= round(job.gpus, 3) else f"{wanted}, {number(emulated)} emulated"
    return number(job.gpus) if job.gpus else "-"


def when_text(estimate: Estimate | None, context: RenderContext) -> str:
    """`now` (there is room), `in 3m`, `2m to 35m` or `within 2h` where no moment is known, `after 2h`; `?` if nobody
    can tell, and once the time that was foreseen is past."""
    if estimate is None:
        return "-"
    if estimate.basis is Basis.ROOM and estimate.likely is not None and estimate.likely <= context.now + 1:
        return "now"
    if estimate.latest is None:
        far = estimate.earliest is not None and estimate.earliest > context.now
        return f"after {span(estimate.earliest - context.now)}" if estimate.earliest is not None and far else "?"
    if estimate.latest <= context.now:
        return "?"
    if estimate.likely is not None and estimate.likely >= context.now + 1:
        return f"in {span(estimate.likely - context.now)}"
    if estimate.likely is None and estimate.earliest is not None and estimate.earliest >= context.now + 1:
        return f"{span(estimate.earliest - context.now)} to {span(estimate.latest - context.now)}"
    return f"within {span(estimate.latest - context.now)}"


def how_long(job: JobView, context: RenderContext) -> str:
    """How long the job has been in this state; after its end, how long it ran in all its epochs."""
    if job.state.final and job.epoch and job.held_seconds:
        return span(job.held_seconds)
    if job.state.final:
        return span(job.ended_at - job.started_at) if job.ended_at and job.started_at else "-"
    return span(context.now - job.since)


def what_now(
    job: JobView, context: RenderContext, *, bar_width: int = 16, silent: Mapping[str, float] = NO_SILENCE
) -> Text:
    """The most useful fact about the job: why it waits, how far it is, or how it ended."""
    match job.state:
        case JobState.QUEUED:
            return waiting_text(job, context)
        case JobState.STOPPING if job.stopping_for:
            return _cause_text(job.stopping_for)
        case JobState.PLACED | JobState.STARTING | JobState.RUNNING | JobState.STOPPING:
            where = silence_text(job.nodes, silent) or plain(listed(job.nodes, NAMED_MAX), "dim")
            done = progress_text(job.progress, context, width=8 if context.narrow else bar_width)
            serves = plain(service_short(job.service)) if job.service is not None else None
            return Text(" · ", "dim").join([part for part in (serves, done, where) if part])
        case JobState.SUCCEEDED | JobState.FAILED | JobState.CANCELLED:
            return ending_text(job, context)


def waiting_text(job: JobView, context: RenderContext) -> Text:
    if job.not_before and job.not_before > context.now:
        return Text(f"try {job.attempts + 1} in {span(job.not_before - context.now)}", "yellow")
    return _cause_text(job.waiting_for) if job.waiting_for else Text("not looked at yet", "dim")


def silence_text(nodes: Sequence[str], silent: Mapping[str, float]) -> Text | None:
    """`node-1 silent for 40s`: the shown state of a job there is that old."""
    told = [f"{node} silent for {span(silent[node])}" for node in nodes if node in silent]
    return plain(listed(told, 2), "yellow") if told else None


def ending_text(job: JobView, context: RenderContext) -> Text:
    """The outcome of the job and its time."""
    why = f"{failure_text(job)}, " if job.state is JobState.FAILED and failure_text(job) else ""
    return Text.assemble(plain(why), (ago(context.now - (job.ended_at or job.since)), "dim"))


def failure_text(job: JobView) -> str:
    """Why it failed, with its exit status, if that is known."""
    sentence = job.ended_for.sentence if job.ended_for else ""
    known = not job.exit_code or re.search(rf"status {job.exit_code}\b", sentence)
    status = "" if known else f"exit status {job.exit_code}"
    return f"{sentence} ({status})" if sentence and status else sentence or status


def ended_line(job: JobView) -> Text:
    """`train j-abc failed: rank 1 ended with status 3, after 3m12s`."""
    line = Text.assemble(plain(job.name, "bold"), " ", plain(job.id, "dim"), " ", state_text(job.state))
    if job.state is JobState.FAILED and job.ended_for is not None and job.ended_for.sentence:
        line.append(": ").append_text(plain(failure_text(job))).append(",")
    elif job.exit_code:
        line.append(f" with exit status {job.exit_code}")
    if job.ended_at and job.started_at:
        line.append(f" after {duration_text(max(0.0, job.ended_at - job.started_at))}")
    elif line.plain.endswith(","):
        line.right_crop(1)
    return line


def last_words_text(words: LastWords) -> RenderableType:
    """The last lines of the rank that failed, or why they are not there."""
    head = Text(f"the last lines of rank {words.rank}", "bold")
    if words.missing:
        return Text.assemble(head, (f" are missing: {clean(words.missing)}", "dim"))
    if not words.lines:
        return Text(f"rank {words.rank} wrote nothing", "dim")
    return Group(head, *(plain(f"  {line}") for line in words.lines))


def _cause_text(cause: Cause) -> Text:
    return Text.assemble((cause.code.value, "yellow"), (": " if cause.sentence else ""), plain(cause.sentence))


# one job


def description(
    job: JobView,
    story: Sequence[EventView],
    context: RenderContext,
    *,
    emulated: Emulated,
    silent: Mapping[str, float] = NO_SILENCE,
    words: LastWords | None = None,
    names: Mapping[str, str] = NO_NAMES,
    pages: Sequence[TrackingPage] = (),
) -> RenderableType:
    """One job: what it is, what it asks for, where it runs, and everything that happened to it."""
    parts: list[RenderableType] = [_headline(job, context)]
    if (silence := silence_text(job.nodes, silent)) is not None and job.state.holding:
        parts.append(silence)
    parts.append(_facts(job, context, pages))
    if words is not None:
        parts += [Text(), last_words_text(words)]
    if job.runs:
        parts += [Text(), _runs_table(job.runs, context, emulated)]
    if job.curve:
        parts += [Text(), Text("speed at each size", "bold"), curve_table(job.curve, context)]
    if story:
        parts += [
            Text(),
            Text("event history", "bold"),
            story_table(story, context, start=job.submitted_at, emulated=emulated, names=names),
        ]
    return Group(*parts)


def _headline(job: JobView, context: RenderContext) -> Text:
    line = Text.assemble(plain(job.name, "bold"), "  ", plain(job.id, "dim"), "  ")
    line.append_text(state_text(job.state, hung=job.hung_since is not None))
    if job.hung_since is not None:
        return line.append(f" for {span(context.now - job.hung_since)}")
    if job.state.final:
        return line.append(f" {ago(context.now - (job.ended_at or job.since))}")
    return line.append(f" for {span(context.now - job.since)}")


def _facts(job: JobView, context: RenderContext, pages: Sequence[TrackingPage]) -> Table:
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    tracked = [(each.tracker, plain(each.url)) for each in pages]
    for name, fact in [*_fact_lines(job, context), *tracked]:
        made.add_row(name, fact)
    return made


def _fact_lines(job: JobView, context: RenderContext) -> list[tuple[str, Text]]:
    """The facts of a job, the most wanted first."""
    spec = job.spec
    may_stop = "may be pre-empted" if job.preemptible else "is never pre-empted"
    lines = [
        ("tenant", plain(f"{job.tenant}, pool {job.pool}")),
        ("kind", plain(f"{job.kind}, priority {job.priority}, {may_stop}")),
        ("submitted", _submission(job, context)),
    ]
    if job.state is JobState.QUEUED:
        lines.append(("waits for", waiting_text(job, context)))
    if is_sized(job.size):
        lines.append(("size", plain(size_sentence(job.size, job.resize, holding=job.state.holding))))
    if job.stopping_for:
        lines.append(("stops for", _cause_text(job.stopping_for)))
    if job.started_at:
        ran = span((job.ended_at or context.now) - job.started_at)
        lines.append(("ran" if job.ended_at else "runs for", Text(ran)))
    if job.state is JobState.FAILED and job.ended_for is not None and job.ended_for.sentence:
        lines.append(("failed", plain(job.ended_for.sentence, "red")))
    if job.exit_code is not None and job.state.final:
        lines.append(("exit status", Text(number(job.exit_code), "red" if job.exit_code else "")))
    if job.epoch or job.attempts:
        most = f" of {spec.retries.max + 1}" if spec else ""
        lines.append(("epoch", Text(f"{job.epoch}, failed tries {job.attempts}{most if job.attempts else ''}")))
    if job.progress:
        told = progress_text(job.progress, context, width=24)
        lines.append(("progress", Text(" ").join([told, plain(other_progress(job.progress), "dim")])))
    if job.service is not None and not job.state.final:
        lines += [(name, plain(fact)) for name, fact in service_lines(job.service, context)]
    lines += tuning_lines(job, context)
    if spec:
        lines += _spec_lines(spec)
    if job.placement and job.placement.why:
        lines.append(("why there", plain(job.placement.why)))
    return lines


def _submission(job: JobView, context: RenderContext) -> Text:
    when = f"{context.zoned(job.submitted_at)}, {ago(context.now - job.submitted_at)}"
    by = f", by {job.submitter}" if job.submitter else ""
    run = job.spec.scheduled if job.spec else None
    return plain(f"{when}{by}{'' if run is None else f', {run_text(job.name, run, context)}'}")


def run_text(name: str, run: ScheduledRun, context: RenderContext) -> str:
    """`run of schedule nightly, due at 03:00:00`."""
    return f"run of schedule {name}, due at {context.clock(run.due_at)}"


def _volume_text(volume: Volume) -> str:
    where = f" at {volume.target}" if volume.target else ""
    return f"{volume.name or volume.source}{where}{', read-only' * volume.read_only}"


def _spec_lines(spec: JobSpec) -> list[tuple[str, Text]]:
    lines: list[tuple[str, Text]] = []
    for name, role in spec.roles.items():
        lines.append(("asks for", plain(f"{role.replicas.want} x {name}: {_wanted(role, spec)}")))
        if command := role.command or spec.command:
            lines.append(("command", plain(shlex.join(command))))
        if image := role.image or spec.image:
            lines.append(("image", plain(image)))
    if spec.context:
        lines.append(("files", plain(spec.context[:12])))
    if spec.workdir:
        lines.append(("in", plain(spec.workdir)))
    lines += [("volume", plain(_volume_text(volume))) for volume in spec.volumes]
    if spec.env:
        lines.append(("env", plain(" ".join(sorted(spec.env)))))  # the names only: values are often secrets
    if spec.labels:
        lines.append(("labels", plain(" ".join(f"{key}={value}" for key, value in spec.labels.items()))))
    if spec.pin:
        gpus = "" if spec.pin.gpu is None else f", from GPU {spec.pin.gpu} on"
        lines.append(("only on", plain(f"{spec.pin.node}{gpus}")))
    if spec.checkpoints:
        every = [f"every {spec.checkpoints.every}"] if spec.checkpoints.every else []
        stopped = ["when it is stopped"] if spec.checkpoints.on_stop else []
        lines.append(("checkpoints", plain(", and ".join(every + stopped))))
    if tuning := _envelope(spec.tuning):
        lines.append(("tuning", plain(tuning)))
    limit = f"; may run for {spec.time_limit}" if spec.time_limit else ""
    lines.append(("limits", plain(f"{spec.grace} to stop in{limit}")))
    return lines


def _envelope(tuning: Tuning) -> str:
    """True if the job may be tuned, and how far; empty if the pool's settings apply."""
    parts = [tuning.mode.value] if tuning.mode else []
    parts += [f"at most {plural(tuning.cpus, 'CPU')} in all"] if tuning.cpus is not None else []
    parts += [f"{tuning.memory} of memory each"] if tuning.memory else []
    parts += [f"at least {tuning.memory_min} of memory each"] if tuning.memory_min else []
    parts += [f"{tuning.egress}/s to send each"] if tuning.egress else []
    parts += [f"{tuning.egress_total}/s to send in all"] if tuning.egress_total else []
    return ", ".join(parts)


def _wanted(role: Role, spec: JobSpec) -> str:
    wanted = [plural(role.cpus, "CPU"), f"{role.memory} of memory"]
    if role.share:
        wanted.insert(0, f"{number(role.share.request)} of a GPU with {role.share.memory}")
    elif role.gpus:
        models = models_text(spec.gpu_models, spec.gpu_models_excluded)
        of = f" of {models}" if models else ""
        memory = f" of {spec.gpu_memory} or more" if spec.gpu_memory else ""
        wanted.insert(0, f"{plural(role.gpus, 'GPU')}{of}{memory}")
    return ", ".join(wanted)


def _runs_table(runs: Sequence[RunView], context: RenderContext, emulated: Emulated) -> Table:
    made = table(
        "RANK",
        "ROLE",
        "NODE",
        "GPUS",
        "CPUS",
        "MEMORY",
        "PROGRESS",
        context=context,
        right=("RANK",),
        flexible="PROGRESS",
    )
    for run in runs:
        made.add_row(
            number(run.rank),
            plain(f"{run.role}, leaves" if run.leaving else run.role),
            plain(run.node_id),
            held_gpus(run, emulated),
            _used(run.cpus, run.use.cpus_used if run.use else None, number),
            _used(run.memory, run.use.memory_used if run.use else None, size_text),
            progress_text(run.progress, context, width=10),
        )
    return made


def held_gpus(run: RunView, emulated: Emulated) -> str:
    """`0-1 emulated`: the indexes, and whether the GPUs are emulated."""
    if not run.gpus:
        return "-"
    fake = sum(emulated.get((run.node_id, index), False) for index in run.gpus)
    note = "" if not fake else " emulated" if fake == len(run.gpus) else f" ({emulated_gpus(len(run.gpus), fake)})"
    part = "" if run.share is None else f" ({share_text(run.share)}, {size_text(run.share.memory)})"
    return f"{indexes(run.gpus)}{part}{note}"


def _used(given: float, used: float | None, text: Callable[[float], str]) -> str:
    return text(given) if used is None else f"{text(round(used, 1))} of {text(given)}"
