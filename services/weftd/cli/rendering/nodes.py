"""Nodes and their GPUs: capacity, jobs and use."""

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TypeVar

from rich.table import Table
from rich.text import Text

from weft.domain.health import HealthRecord
from weft.domain.labels import words_of
from weft.domain.quantity import size_text
from weft.domain.text import listed
from weft.messages.http import GpuHeldBy, GpuScoreView, GpuView, NodeView
from weftd.cli.formatting import NAMED_MAX, ago, clean, indexes, number, share_text, span
from weftd.cli.rendering.context import RenderContext, fitting, plain, table

T = TypeVar("T")

_SLOW = 0.05  # slower than typical by this part is shown as slow


def nodes_table(nodes: Sequence[NodeView], context: RenderContext) -> Table:
    columns: dict[str, Callable[[NodeView], Text | str]] = {
        "NODE": lambda node: plain(node.id, "bold"),
        "POOL": lambda node: plain(node.pool),
        "STATE": node_state,
        "RUNTIME": lambda node: plain(node.runtime),
        "GPUS": lambda node: plain(gpus_text(node.gpus)),
        "HELD": lambda node: f"{held(node)}/{len(node.gpus)}",
        "CPUS": lambda node: f"{number(round(node.cpus_allocated, 1))}/{number(node.cpus)}",
        "MEMORY": lambda node: f"{size_text(node.memory_allocated)}/{size_text(node.memory)}",
        "SEEN": lambda node: ago(context.now - node.seen_at),
        "SLOWEST": lambda node: slowest_text(node.slowest),
        "LABELS": lambda node: plain(labels_text(node)),
    }
    if not any(node.labels or node.taints for node in nodes):
        del columns["LABELS"]
    if not any(node.slowest for node in nodes):
        del columns["SLOWEST"]
    return _table_of(
        nodes, columns, context, drop=("RUNTIME", "POOL", "LABELS", "SLOWEST", "SEEN", "MEMORY", "CPUS"), gives="GPUS"
    )


def gpus_table(nodes: Sequence[NodeView], context: RenderContext) -> Table:
    """Each GPU of these nodes, and its job; GPUs of other tenants that are alike in one row."""
    columns: dict[str, Callable[[tuple[NodeView, Sequence[GpuView]]], Text | str]] = {
        "NODE": lambda each: plain(each[0].id),
        "GPU": lambda each: indexes(tuple(gpu.index for gpu in each[1])),
        "MODEL": lambda each: plain(model_text(each[1][0].model, emulated=each[1][0].emulated)),
        "MEMORY": lambda each: size_text(each[1][0].memory),
        "USED": lambda each: gpu_use(each[1][0]) if len(each[1]) == 1 else "-",
        "HELD BY": lambda each: holders_text(each[1]),
    }
    return _table_of(_each_gpu(nodes), columns, context, drop=("MEMORY", "USED"), gives="HELD BY")


def _table_of(
    things: Sequence[T],
    columns: Mapping[str, Callable[[T], Text | str]],
    context: RenderContext,
    *,
    drop: Sequence[str],
    gives: str,
) -> Table:
    """A row for each node; on a narrow terminal without as many columns of `drop` as are necessary."""
    cells = {title: [cell(each) for each in things] for title, cell in columns.items()}
    shown = fitting(cells, context, drop=drop, flexible=gives)
    made = table(*shown, context=context, right=("GPU",), flexible=gives)
    for row in zip(*(cells[title] for title in shown), strict=True):
        made.add_row(*row)
    return made


def _each_gpu(nodes: Sequence[NodeView]) -> list[tuple[NodeView, Sequence[GpuView]]]:
    rows: list[tuple[NodeView, Sequence[GpuView]]] = []
    for node in nodes:
        for others, gpus in groupby(node.gpus, key=_of_others):
            found = tuple(gpus)
            rows += [(node, found)] if others else [(node, (gpu,)) for gpu in found]
    return rows


def _of_others(gpu: GpuView) -> tuple[str, int] | None:
    """The model and memory of a GPU that another tenant's job holds alone; None for all others."""
    problem = gpu.use is not None and gpu.use.problem
    if gpu.held_by is None or gpu.held_by.name or gpu.sharing or problem:
        return None
    return gpu.model, gpu.memory


def holders_text(gpus: Sequence[GpuView]) -> Text:
    if len(gpus) == 1:
        return holder_text(gpus[0])
    return plain(f"{len(gpus)} GPUs held by other tenants", "dim")


def gpu_use(gpu: GpuView) -> str:
    if gpu.use is None or gpu.use.utilisation is None:
        return "-"
    memory = f" {size_text(gpu.use.memory_used)}" if gpu.use.memory_used is not None else ""
    return f"{gpu.use.utilisation:.0%}{memory}"


def holder_text(gpu: GpuView) -> Text:
    if gpu.use is not None and gpu.use.problem:
        return plain(gpu.use.problem, "bold red")
    holder = gpu.held_by
    if holder is None:
        return Text("free", "green")
    if gpu.sharing:
        return Text(" · ", "dim").join(_sharer(one) for one in gpu.sharing)
    if not holder.name:
        return plain(f"a job of another tenant ({holder.job_id})", "dim")
    return Text.assemble(plain(holder.name), plain(f" {holder.job_id} rank {holder.rank}", "dim"))


def _sharer(holder: GpuHeldBy) -> Text:
    """`train 0.5 to 0.8, used 48%`"""
    part = share_text(holder.share) if holder.share is not None else ""
    part += "" if holder.used is None else f", used {holder.used:.0%}"
    return Text.assemble(plain(holder.name or holder.job_id), plain(f" {part}", "dim"))


def slowest_text(score: GpuScoreView | None) -> Text:
    """`1.21 gpu-3 compute`: of a node, the GPU that is slowest for some class."""
    if score is None:
        return Text("-", "dim")
    return Text(f"{score.believed:.2f} gpu-{score.gpu_index} {clean(score.job_class)}", score_style(score))


def score_style(score: GpuScoreView) -> str:
    return "yellow" if score.believed >= 1.0 + _SLOW else ""


def node_state(node: NodeView) -> Text:
    if not node.ready:
        return Text("lost", "bold red")
    if node.silent_seconds:
        drained = ", drained" if node.drained else ""
        return Text(f"silent {span(node.silent_seconds)}{drained}", "yellow")
    if node.drained:
        return Text(clean(f"drained{'' if node.drain is None else node.drain.text}"), "yellow")
    sick = [each for each in (node.health, *(gpu.health for gpu in node.gpus)) if each is not None and not each.well]
    if node.health is not None and not node.health.well:
        return Text(str(node.health.state), health_style(node.health))
    if sick:
        return Text(f"ready, {len(sick)} sick", "yellow")
    return Text("spare", "cyan") if node.spare else Text("ready", "green")


def health_style(health: HealthRecord) -> str:
    return "green" if health.well else "bold red" if health.closed else "yellow"


def held(node: NodeView) -> int:
    return sum(gpu.held_by is not None for gpu in node.gpus)


def gpus_text(gpus: Sequence[GpuView]) -> str:
    """`8 x H100`, `4 x Emulated GPU`: GPUs by model; emulated ones are named so."""
    models: dict[str, int] = {}
    for gpu in gpus:
        model = model_text(gpu.model, emulated=gpu.emulated)
        models[model] = models.get(model, 0) + 1
    return ", ".join(f"{how_many} x {model}" for model, how_many in models.items()) or "none"


def model_text(model: str, *, emulated: bool) -> str:
    model = clean(model)
    return f"emulated {model}" if emulated and "emulated" not in model.lower() else model


def labels_text(node: NodeView) -> str:
    """`nvlink, zone=a; taints dedicated=vision`"""
    labels = ", ".join(words_of(node.labels))
    taints = f"taint{'s' if len(node.taints) > 1 else ''} {', '.join(words_of(node.taints))}" if node.taints else ""
    return clean("; ".join(part for part in (labels, taints) if part)) or "-"


def full_disks(nodes: Sequence[NodeView]) -> list[str]:
    """The nodes whose disk of runs and logs is almost full."""
    full = [node.id for node in nodes if node.use and node.use.disk_full]
    return (
        [f"the disk of the runs is full on {listed(full, NAMED_MAX)}: jobs there cannot write, and none starts"]
        if full
        else []
    )


def not_enforced(nodes: Sequence[NodeView]) -> list[str]:
    """The limits that nodes cannot enforce, one line for all nodes with the same."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        if node.not_enforced:
            alike.setdefault(node.not_enforced, []).append(node.id)
    return [
        f"not enforced on {listed(names, NAMED_MAX)}: {clean(', '.join(limits))}" for limits, names in alike.items()
    ]


def volumes_offered(nodes: Sequence[NodeView]) -> list[str]:
    """The volumes that jobs may name, one line for each, with the nodes that offer it."""
    where: dict[tuple[str, bool], list[str]] = {}
    for node in nodes:
        for volume in node.volumes:
            where.setdefault((volume.name, volume.read_only), []).append(node.id)
    return [
        f"volume {clean(name)}{', read-only,' * read_only} on {listed(names, NAMED_MAX)}"
        for (name, read_only), names in sorted(where.items())
    ]
