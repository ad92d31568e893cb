"""A what-if: its sentence first, then both sides, then the jobs of which most changes."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft.domain.quantity import duration_text
from weft.domain.text import plural
from weft.messages.whatif import WhatIfJob, WhatIfView
from weftd.cli.rendering.context import RenderContext, plain, table

SHOWN_MAX = 20
BASES = {
    "learnt": "from similar jobs that ended",
    "limits": "from their time limits",
    "progress": "from their steps and speed",
    "unknown": "unknown: taken as half done, or as one hour",
    "service": "services, without an end",
}


def what_if_page(view: WhatIfView, context: RenderContext) -> RenderableType:
    parts: list[RenderableType] = [plain(view.sentence, "bold"), _sides(view, context)]
    changed = [job for job in view.jobs if job.gains_seconds or (job.gains_seconds is None and job.starts_other)]
    if changed:
        parts += [Text(), _jobs(changed[:SHOWN_MAX], context)]
    if len(changed) > SHOWN_MAX or (view.jobs_left_out and len(changed) == len(view.jobs)):
        parts.append(Text(f"… the jobs that change most, of {plural(view.gained + view.lost, 'job')}", "dim"))
    told = ", ".join(f"{number:,} {BASES.get(basis, basis)}" for basis, number in sorted(view.assumed.items()))
    if told:
        parts += [Text(), plain(f"Durations of jobs are assumed, the same on both sides: {told}.", "dim")]
    return Group(*parts)


def _sides(view: WhatIfView, context: RenderContext) -> Table:
    made = table(
        "", "POLICY", "GPUs", "JOBS THAT WAIT NOW WAIT", context=context, right=("GPUs", "JOBS THAT WAIT NOW WAIT")
    )
    for name, side, waited in (("now", view.base, view.waited_base), ("then", view.other, view.waited_other)):
        wait = f"{duration_text(waited)} more" if view.waiting else "–"
        made.add_row(name, plain(side.policy), f"{side.gpus:,}", wait)
    return made


def _jobs(jobs: list[WhatIfJob], context: RenderContext) -> Table:
    heads = ("JOB", "TENANT", "NAME", "STARTS NOW", "STARTS THEN", "ENDS NOW", "ENDS THEN", "CHANGE")
    made = table(*heads, context=context, right=("CHANGE",), flexible="NAME")
    for job in jobs:
        made.add_row(
            plain(job.id),
            plain(job.tenant),
            plain(job.name),
            _at(job.starts_base, context),
            _at(job.starts_other, context),
            _at(job.ends_base, context),
            _at(job.ends_other, context),
            _change(job),
        )
    return made


def _at(moment: float | None, context: RenderContext) -> str:
    return "–" if moment is None else context.clock(moment)


def _change(job: WhatIfJob) -> Text:
    gains = job.gains_seconds
    if gains is None:
        return Text("new", "cyan")
    if gains and job.starts_base is None and job.ends_base is None:  # the time that was looked at is no wait
        return Text("starts only with it", "green")
    if gains and job.starts_other is None and job.ends_other is None:
        return Text("no longer starts", "red")
    if gains > 0:
        return Text(f"{duration_text(gains)} sooner", "green")
    return Text(f"{duration_text(-gains)} later", "red")
