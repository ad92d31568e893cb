"""`weft top`: the whole cluster on one screen: its nodes, the job on each GPU, and the queue."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft.domain.job import JobState
from weft.domain.quantity import size_text
from weft.domain.text import plural
from weft.messages.http import ClusterView, GpuView, JobView, NodeView
from weftd.cli.formatting import clean, emulated_gpus, indexes, natural, number
from weftd.cli.rendering.context import STATE_STYLES, RenderContext, bar, job_colour, plain
from weftd.cli.rendering.jobs import held_emulated, jobs_table, silences
from weftd.cli.rendering.nodes import gpus_text, held, model_text, node_state

_CELL_MIN, _CELL_MAX = 3, 12  # columns per GPU; with less than three there is no room for a name
_BAR = 10
_IN_ORDER = (JobState.RUNNING, JobState.STARTING, JobState.PLACED, JobState.STOPPING, JobState.QUEUED)
_FIXED_ROWS = 7  # title, blank, heading, blank, heading, blank, footer


def cluster_screen(
    view: ClusterView,
    context: RenderContext,
    *,
    ended: Sequence[JobView] = (),
    height: int | None = None,
    note: str = "",
) -> RenderableType:
    """The whole screen; `height` rows at most, if it is a terminal. `ended`: jobs that ended lately."""
    jobs = [*view.running, *view.queued, *ended]
    rows = _rows(len(view.nodes), len(jobs), height)
    shown_jobs = jobs[: rows[1]]
    nodes = sorted(view.nodes, key=lambda node: natural(node.id))
    parts: list[RenderableType] = [_title(view, context), Text(), _nodes(nodes[: rows[0]], context)]
    if rows[0] < len(view.nodes):
        parts.append(Text(f"and {plural(len(view.nodes) - rows[0], 'more node')}", "dim"))
    parts += [Text(), _jobs(shown_jobs, view, context)]
    hidden = _jobs_in_all(view) + len(ended) - len(shown_jobs)
    if hidden > 0:
        parts.append(Text(f"and {plural(hidden, 'more job')}", "dim"))
    parts += [Text(line, "dim") for line in _findings(view)[:2]]
    if note:
        parts.append(plain(note, "bold red"))
    return Group(*parts)


def _rows(nodes: int, jobs: int, height: int | None) -> tuple[int, int]:
    """How many rows nodes and jobs get: rows that one does not need go to the other."""
    if height is None:
        return nodes, jobs
    room = max(4, height - _FIXED_ROWS)
    for_nodes = min(nodes, max(room // 2, room - jobs - 1))
    for_nodes -= for_nodes < nodes  # the line that says how many more
    left = room - for_nodes - (for_nodes < nodes)
    return for_nodes, min(jobs, left if jobs <= left else left - 1)


def _title(view: ClusterView, context: RenderContext) -> Table:
    totals = view.totals
    away = sum(not node.ready for node in view.nodes)
    version = f" {clean(view.version)}" if view.version and not context.narrow else ""
    line = Text.assemble(("weft", "bold"), (version, "dim"), "   ", plural(totals.nodes, "node"))
    if away:
        line.append(f" ({away} lost)", "bold red")
    line.append(f"   {totals.gpus_held} of {emulated_gpus(totals.gpus, totals.gpus_emulated)} held")
    for state in _IN_ORDER:
        if view.states.get(state):
            line.append("   ").append(f"{view.states[state]} {state}", STATE_STYLES[state])
    made = Table.grid(expand=context.bars)
    made.add_column(no_wrap=context.bars, overflow="ellipsis")
    made.add_column(justify="right", no_wrap=True)
    made.add_row(line, Text("" if context.narrow else f"   {context.zoned(context.now)}", "dim"))
    return made


def _jobs(jobs: Sequence[JobView], view: ClusterView, context: RenderContext) -> RenderableType:
    if not jobs:
        return Text("no jobs; `weft run -- command` makes one", "dim")
    tenants = len({job.tenant for job in jobs}) > 1
    silent = silences(view.nodes)
    return jobs_table(jobs, context, emulated=held_emulated(view.nodes), silent=silent, tenants=tenants, screen=True)


def _jobs_in_all(view: ClusterView) -> int:
    """The number of jobs; a long queue has more than the list."""
    return max(sum(view.states.values()), len(view.running) + len(view.queued))


def _findings(view: ClusterView) -> list[str]:
    return [f"to improve: {clean(finding.sentence)}" for finding in view.findings]


# nodes


def _nodes(nodes: Sequence[NodeView], context: RenderContext) -> RenderableType:
    if not nodes:
        return Text("no nodes yet", "dim")
    made = Table(box=None, header_style="bold dim", pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("NODE", "GPUS", "", "CPUS", "MEMORY"):
        made.add_column(column, no_wrap=True, overflow="ellipsis")
    room = _room_for_gpus(nodes, context)
    for node in nodes:
        made.add_row(
            _name(node),
            gpu_blocks(node.gpus, room) if context.bars else plain(_gpus_in_words(node)),
            _gpu_sum(node),
            _load(_used_cpus(node), node.cpus_allocated, node.cpus, context, text=_cpus_text(node)),
            _load(_used_memory(node), node.memory_allocated, node.memory, context, text=_memory_text(node)),
        )
    return made


def _name(node: NodeView) -> Text:
    name = plain(node.id, "bold")
    if node.drained or node.silent_seconds or not node.ready:
        name.append(" ").append_text(node_state(node))
    return name


def _room_for_gpus(nodes: Sequence[NodeView], context: RenderContext) -> int:
    """The width that is left for one node's GPUs."""
    beside = max(_name(node).cell_len + _gpu_sum(node).cell_len for node in nodes)
    loads = max(len(_cpus_text(node)) + len(_memory_text(node)) for node in nodes)
    return context.width - beside - loads - (0 if context.narrow else 2 * (_BAR + 1)) - 10


def gpu_blocks(gpus: Sequence[GpuView], room: int) -> Text:
    """The GPUs side by side; neighbours that one job holds are one block, in that job's colour, with its name."""
    cell = min(_CELL_MAX, room // max(1, len(gpus)))
    if cell < _CELL_MIN:
        return Text().join(_dot(gpu) for gpu in gpus)
    return Text().join(_blocks(gpus, cell))


def _dot(gpu: GpuView) -> Text:
    return Text("■", job_colour(gpu.held_by.job_id)) if gpu.held_by else Text("·", "bright_black")


def _blocks(gpus: Sequence[GpuView], cell: int) -> Iterator[Text]:
    for holder, held_gpus in groupby(gpus, key=_holder):
        how_many = len(list(held_gpus))
        if holder is None:
            yield Text("·".center(cell) * how_many, "bright_black")
            continue
        job_id, name = holder
        inside = how_many * cell - 2
        colour = job_colour(job_id) if name else "bright_black"
        label = clean(name or "other")[:inside].center(inside)
        yield Text.assemble(("▐", colour), (label, f"black on {colour}"), ("▌", colour))


def _holder(gpu: GpuView) -> tuple[str, str] | None:
    """The job that holds the GPU, or most of it, and its name; of a GPU that several jobs share, all their names."""
    if gpu.held_by is None:
        return None
    jobs = {one.job_id: one.name or "other" for one in gpu.sharing}
    return gpu.held_by.job_id, " + ".join(jobs.values()) if len(jobs) > 1 else gpu.held_by.name


def _gpus_in_words(node: NodeView) -> str:
    """`train 0-1, free 2-3`, for a page that has no colours."""
    holders: dict[str, list[int]] = {}
    for gpu in node.gpus:
        holder = _holder(gpu)
        name = "free" if holder is None else holder[1] or "other"
        holders.setdefault(name, []).append(gpu.index)
    return ", ".join(f"{name} {indexes(tuple(numbers))}" for name, numbers in holders.items())


def _gpu_sum(node: NodeView) -> Text:
    """`3/4 emulated GPU 62%`: held, in all, and how busy if that is known."""
    if not node.gpus:
        return Text("no GPU", "dim")
    models = {model_text(gpu.model, emulated=gpu.emulated) for gpu in node.gpus}
    what = models.pop() if len(models) == 1 else gpus_text(node.gpus)
    busy = [gpu.use.utilisation for gpu in node.gpus if gpu.use and gpu.use.utilisation is not None]
    line = Text.assemble(f"{held(node)}/{len(node.gpus)} ", plain(what, "dim"))
    return line.append(f" {sum(busy) / len(busy):.0%}", "green") if busy else line


def _load(used: float | None, given: float, most: float, context: RenderContext, *, text: str) -> Text:
    """A bar of the used part, bright, and the part that jobs hold; in words if there is no room."""
    if not context.bars or context.narrow:
        return Text(text)
    most = most or 1.0
    part = given if used is None else used
    style = "red" if part / most > 0.95 else "green"
    return bar(part / most, _BAR, style=style, behind=given / most).append(f" {text}")


def _used_cpus(node: NodeView) -> float | None:
    return node.use.cpus_used if node.use else None


def _used_memory(node: NodeView) -> float | None:
    return node.use.memory_used if node.use else None


def _cpus_text(node: NodeView) -> str:
    return f"{number(round(node.cpus_allocated, 1))}/{number(node.cpus)}"


def _memory_text(node: NodeView) -> str:
    return f"{size_text(node.memory_allocated)}/{size_text(node.memory)}"
