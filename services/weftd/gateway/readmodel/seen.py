"""What nodes told of the GPUs that jobs hold: how much of them was used, and the power that they drew."""

from collections.abc import Mapping

from weft.domain.cluster import Node
from weft.domain.job import Allocation, Job
from weft.domain.shares import WHOLE
from weft.messages.signals import NodeSampled, RunSample
from weftd.gateway.thinking.accounting.capacity import model_of
from weftd.gateway.thinking.accounting.used import Used, UsedLedger

WATTS_MAX = 100_000.0  # more is no power of a GPU


class NodeTold:
    """What a node told of the GPUs that it has, and of runs."""

    def __init__(self, node: Node, told: NodeSampled) -> None:
        self.models = {gpu.index: model_of(gpu) for gpu in node.capacity.gpus}
        self.gpus = {gpu.index: gpu.utilisation for gpu in told.gpus if gpu.index in self.models}
        self.watts = {gpu.index: gpu.power_watts for gpu in told.gpus if gpu.index in self.models}
        self.runs: dict[tuple[str, int, int], RunSample] = {(run.job_id, run.epoch, run.rank): run for run in told.runs}


def enter(ledger: UsedLedger, job: Job, seen: Mapping[str, NodeTold], *, at: float, lasted: float) -> None:
    """Put into the ledger what the job used of each GPU in the last so many seconds, as far as it is known."""
    micros = round(lasted * 1e6)
    found: dict[str, Used] = {}
    for allocation in job.held:
        node = seen.get(allocation.node_id)
        for index in allocation.gpus if node is not None else ():
            assert node is not None
            used = _used(job, allocation, index, node)
            if used is None or index not in node.models:
                continue
            into = found.setdefault(node.models[index], Used())
            part = WHOLE if allocation.share is None else allocation.share.request
            into.sampled += part * micros
            into.used += round(used * WHOLE) * micros
            watts = node.watts.get(index)
            if allocation.share is None and watts is not None and 0 <= watts <= WATTS_MAX:
                into.powered += part * micros
                into.joules += watts * lasted
    for model, more in found.items():
        ledger.put((job.id, job.epoch, model), round(at * 1e6), more)


def part_of(value: float | None) -> float | None:
    """A part of the time, 0–1; None: it is not known, or no part."""
    return value if value is not None and 0 <= value <= 1 else None


def _used(job: Job, allocation: Allocation, index: int, node: NodeTold) -> float | None:
    if allocation.share is None:
        return part_of(node.gpus.get(index))
    run = node.runs.get((job.id, job.epoch, allocation.rank))
    return None if run is None or run.share is None else part_of(run.share.used)
