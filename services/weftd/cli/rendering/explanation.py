"""Why a job waits or why it is where it is: the sentence first, then the numbers, then the jobs that hold its GPUs."""

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft.client.failure import LastWords
from weft.domain.failure import FAULTS
from weft.domain.job import HELD_FOR, Cause, CauseCode, JobState
from weft.domain.text import gpu_text, plural
from weft.messages.eta import Estimate
from weft.messages.http import JobView
from weft.messages.http.explanation import Explanation, HolderSeen
from weftd.cli.formatting import clean, number, span
from weftd.cli.rendering.context import RenderContext, plain, state_text, table
from weftd.cli.rendering.jobs import last_words_text, run_text, when_text
from weftd.cli.rendering.services import service_lines
from weftd.cli.rendering.shares import share_lines
from weftd.cli.rendering.sizes import size_sentence
from weftd.cli.rendering.tuned import NOTHING_TO_DO, verdict_lines

BORROWERS_SHOWN = 5
_OF_EARLY_STOPS = frozenset({"value", "step", "better", "of", "go_on"})  # likewise
_BY_ITS_ID = re.compile(r"^pre-empted by j-[a-z0-9-]+: ")

# Numbers that the sentence has already.
_IN_THE_SENTENCE = frozenset(
    {"not_before", "attempts", "ahead", "replicas_wanted", "gpus_wanted", "gpus_free", "gpus_free_max"}
    | {"replicas_that_fit", "gpus_occupied", "nodes_closed", "gpus_asked", "gpus_on_largest_node", "gpus_in_pool"}
    | {"quota_held", "quota_guaranteed", "quota_borrowed", "quota_lent", "quota_limit"}
    | {"dependencies", "replicas", "replicas_missing", "jobs_that_may_lend", "jobs_that_lend_nothing"}
    | {"gpus_shared", "stops_at", "grace"}
    | {"rank", "exit_code", "ranks_left", "gpus_busy", "cpus_free", "memory_free", "epoch"}
)


def explanation(
    told: Explanation,
    context: RenderContext,
    *,
    emulated: Mapping[str, float],
    words: LastWords | None = None,
    tuned: Sequence[Text] = (),
) -> RenderableType:
    head = Text.assemble(plain(told.name, "bold"), "  ", plain(told.job_id, "dim"), "  ", state_text(told.state))
    if told.submitter:
        head.append_text(plain(f"  submitted by {told.submitter}", "dim"))
    if told.scheduled is not None:
        head.append_text(plain(f"  {run_text(told.name, told.scheduled, context)}", "dim"))
    parts: list[RenderableType] = [head, Text.assemble((told.code, "yellow"), ": ", plain(told.sentence))]
    if told.fault is not None:
        parts.append(Text.assemble("fault: ", (str(told.fault), "yellow"), f": {FAULTS[told.fault]}"))
    parts += [Text(line, "yellow") for line in (_stopped(told), *_drains(told, context)) if line]
    if told.noted is not None:
        parts.append(Text.assemble((str(told.noted.code), "yellow"), ": ", plain(told.noted.sentence)))
    parts += tuned
    parts += [Text(line) for line in _size(told)]
    parts += [Text(line) for line in _lent(told, context)]
    parts += [Text(line) for line in _quota(told)]
    parts += [Text(line) for line in share_lines(told.shares)]
    if told.service is not None and not told.state.final:
        parts += [Text(f"{name}: {line}") for name, line in service_lines(told.service, context)]
    parts += [Text(line, "dim") for line in (_numbers(told), _queue(told, context), _policy(told)) if line]
    parts += [Text(line) for line in _to_come(told, context)]
    if words is not None:
        parts += [Text(), last_words_text(words)]
    if told.holders:
        parts += [
            Text(),
            Text("the resources that it needs are held by", "bold"),
            _holders(told.holders, context, emulated),
        ]
    return Group(*parts)


def tuned_lines(job: JobView, context: RenderContext) -> list[Text]:
    """A job's bottleneck, unused resources, proposals, and changed limits."""
    told = structs.replace(job, verdicts=tuple(one for one in job.verdicts if one.code not in NOTHING_TO_DO))
    return [Text.assemble(f"{title}: " if title else "", line) for title, line in verdict_lines(told, context)]


def _stopped(told: Explanation) -> str:
    """Why it is in the queue again."""
    cause = told.stopped_for
    if cause is None:
        return ""
    by = f" by {clean(cause.by)}" if cause.code is CauseCode.PREEMPTED and cause.by else ""
    sentence = _BY_ITS_ID.sub("", cause.sentence) if by else cause.sentence  # `by` has its name and its id
    return f"it ran before, and was sent back to the queue: {cause.code}{by}{': ' * bool(sentence)}{clean(sentence)}"


def _size(told: Explanation) -> list[str]:
    """The size of a job that may have several, why it should have that size, and why it changed last."""
    if not told.size:
        return []
    lines = [f"size: {size_sentence(told.size, told.resize, holding=told.state.holding)}"]
    if told.keeps_size_for:
        lines[0] += f": {clean(told.keeps_size_for)}"
    lines.append(f"  reason for this size: {_cause(told.sized_for) if told.sized_for else 'as it was submitted'}")
    if told.resized_for is not None:
        lines.append(f"  last change: {_cause(told.resized_for)}")
    return lines


def _quota(told: Explanation) -> list[str]:
    """The guarantee of its tenant, and the tenants that hold more than theirs."""
    quota = told.quota
    if quota is None:
        return []
    limit = "" if quota.limit is None else f", of at most {quota.limit:g}"
    line = (
        f"quota: holds {plural(quota.holds, 'GPU')}{limit}; {quota.guaranteed:g} guaranteed, {quota.borrows:g} borrowed"
    )
    others = [f"{clean(one.tenant) or 'another tenant'} {one.gpus:g}" for one in quota.borrowers[:BORROWERS_SHOWN]]
    return [line, f"  borrowed by others: {', '.join(others)}"] if others else [line]


def _lent(told: Explanation, context: RenderContext) -> list[str]:
    """The lines about GPUs that the job lent to services."""
    lines = [
        f"  {gpu_text(lent.gpus)} to {clean(' '.join(part for part in (lent.name, f'({lent.service})') if part))},"
        f" for {span(context.now - lent.since)}" + ("" if lent.ranks else ": the whole job gave way")
        for lent in told.lent
    ]
    return ["lent to services; the job takes GPUs back once some are free again:", *lines] if lines else []


def _cause(cause: Cause) -> str:
    return clean(f"{cause.code}{': ' * bool(cause.sentence)}{cause.sentence}")


def _drains(told: Explanation, context: RenderContext) -> list[str]:
    """The drained nodes that have room for it, with the author and the time of each drain."""
    return [
        f"{clean(each.node_id)} was drained{f' by {clean(each.by)}' if each.by else ''} at {context.clock(each.since)}"
        for each in told.closed
        if each.drained and each.since is not None
    ]


def _numbers(told: Explanation) -> str:
    """The numbers in words, without those that the sentence has already."""
    said = _IN_THE_SENTENCE | (_OF_EARLY_STOPS if told.code == CauseCode.STOPPED_EARLY else frozenset())
    numbers = {name: value for name, value in told.numbers.items() if name not in said}
    parts = _place(numbers)
    parts += [f"{clean(name).replace('_', ' ')} {number(value)}" for name, value in numbers.items()]
    return ", ".join(parts)


def _place(numbers: dict[str, float]) -> list[str]:
    """The numbers of a placement in words; they are removed from `numbers`."""
    if not {"nodes", "ranks", "gpus"} <= numbers.keys():
        return []
    nodes, ranks, gpus = int(numbers.pop("nodes")), int(numbers.pop("ranks")), numbers.pop("gpus")
    held = f" with {plural(gpus, 'GPU')}" if gpus else ""
    parts = [f"{plural(ranks, 'rank')}{held} on {plural(nodes, 'node')}"]
    slowdown, slowest = numbers.pop("slowdown", None), numbers.pop("slowest", None)
    locality = numbers.pop("locality", 1.0)
    numbers.pop("penalty_learnt", None)
    numbers.pop("model_speed", None)
    numbers.pop("slowdown_packed", None)
    if slowdown is not None and slowest is not None:
        of = f" ({slowest:.2f} for its slowest GPU, times {locality:.2f} for its distance)" if locality != 1.0 else ""
        parts.append(f"a step there takes {slowdown:.2f} times as long as on a typical GPU{of}")
    return parts


def _to_come(told: Explanation, context: RenderContext) -> list[str]:
    """When it starts or ends, how well such estimates held, and what would let it start sooner."""
    eta = told.eta
    lines = [] if eta is None else [f"{clean(eta.sentence)}{_clocks(eta, context)}", *_record(eta)]
    if told.sooner:
        lines += ["what would help:", *(f"  {clean(one.sentence)}" for one in told.sooner)]
    return lines


def _clocks(eta: Estimate, context: RenderContext) -> str:
    """The range by the clock."""
    if eta.latest is None:
        return ""
    if eta.earliest is None:
        return f" (by {context.clock(eta.latest)})"
    return f" ({context.clock(eta.earliest)} to {context.clock(eta.latest)})"


def _record(eta: Estimate) -> list[str]:
    record = eta.record
    if record is None or not record.estimates:
        return []
    return [f"  {record.inside} of {plural(record.estimates, 'earlier estimate')} of this kind came true"]


def _queue(told: Explanation, context: RenderContext) -> str:
    if told.state is not JobState.QUEUED or told.code in HELD_FOR:
        return ""
    ahead = f"{plural(told.ahead, 'job')} ahead of it" if told.ahead else "first in the queue"
    if told.eta is not None:  # which says when it starts
        return ahead
    if told.estimate_at is None:
        return f"{ahead}; its start cannot be estimated: the jobs ahead have no time limit" if told.holders else ahead
    return f"{ahead}; starts in {span(told.estimate_at - context.now)} at the latest, according to time limits"


def _policy(told: Explanation) -> str:
    """The policy in force, as `order+placement+backfill`."""
    parts = told.policy.split("+")
    return f"order {parts[0]}, placement {parts[1]}, backfill {parts[2]}" if len(parts) == 3 else ""


def _limit(held: HolderSeen, context: RenderContext) -> str:
    return "?" if held.ends_at is None else f"within {span(held.ends_at - context.now)}"


def _holders(holders: Sequence[HolderSeen], context: RenderContext, emulated: Mapping[str, float]) -> Table:
    columns: dict[str, Callable[[HolderSeen], Text | str]] = {
        "ID": lambda held: plain(held.job_id),
        "NAME": lambda held: plain(held.name),
        "TENANT": lambda held: plain(held.tenant),
        "USER": lambda held: plain(held.submitter),
        "STATE": lambda held: state_text(held.state),
        "GPUS": lambda held: f"{held.gpus:g}{' emulated' if emulated.get(held.job_id, 0) >= held.gpus > 0 else ''}",
        "PRIO": lambda held: number(held.priority),
        "FOR": lambda held: span(context.now - held.since),
        "ENDS": lambda held: when_text(held.eta, context) if held.eta is not None else _limit(held, context),
        "ON": lambda held: plain(", ".join(held.nodes)),
    }
    if context.narrow:
        del columns["TENANT"], columns["STATE"]
    if not any(held.submitter for held in holders):
        del columns["USER"]
    made = table(*columns, context=context, right=("PRIO",), flexible="ON")
    for held in holders:
        made.add_row(*(cell(held) for cell in columns.values()))
    return made
