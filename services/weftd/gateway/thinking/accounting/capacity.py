"""The use of all GPU-seconds: held, idle, planned, drained, down. Their sum is the capacity."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct, field

from weft.domain.cluster import Capacity, Gpu
from weft.domain.shares import WHOLE
from weft.messages.events import Event
from weftd.gateway.thinking.accounting.stretches import Part, Wait

UNKNOWN = "unknown"  # the model of a GPU that no node reports


class NodeState(Struct, frozen=True):
    """The state of a node from a time (microseconds since 1970) on."""

    at: int
    pool: str
    gives: bool  # it takes work, so its free GPUs are idle
    down: bool
    models: dict[int, str]


class PoolSplit(Struct, kw_only=True):
    """In thousandths of a GPU times microseconds."""

    capacity: int = 0
    held: int = 0
    idle: int = 0
    planned: int = 0
    drained: int = 0
    down: int = 0
    gone: int = 0


class NodesPast(Struct, frozen=True):
    """The states of every node in order of time, and the models of emulated GPUs."""

    states: Mapping[str, Sequence[NodeState]]
    emulated: frozenset[str] = frozenset()

    def model(self, node_id: str, gpu: int, at: int) -> str:
        """The model of a GPU at a time, or else of the GPU that had its place before or after."""
        found = UNKNOWN
        for state in self.states.get(node_id, ()):
            if state.at > at and found != UNKNOWN:
                break
            found = state.models.get(gpu, found)
        return found


class _Told(Struct):
    pool: str = ""
    ready: bool = True
    drained: bool = False
    capacity: Capacity | None = None


class _Line(Struct):
    """A change of one node: its state, and the held parts of its GPUs."""

    states: Sequence[NodeState] = ()
    held: list[tuple[int, int, int]] = field(default_factory=list)  # at, GPU, by


def model_of(gpu: Gpu) -> str:
    """The model as shown; emulated GPUs are called emulated."""
    return f"{gpu.model} (emulated)" if gpu.emulated and "emulated" not in gpu.model.lower() else gpu.model


def nodes_of(told: Iterable[Event]) -> NodesPast:
    """The states of nodes, from their events. A time that goes back counts as the last one."""
    found: dict[str, list[NodeState]] = defaultdict(list)
    emulated: set[str] = set()
    for event in sorted(told, key=lambda event: (event.subject_id, event.version)):
        data = msgspec.json.decode(event.data, type=_Told)
        before = found[event.subject_id]
        at = max(round(event.at * 1e6), before[-1].at if before else 0)
        gpus = data.capacity.gpus if data.capacity is not None and event.event != "removed" else ()
        emulated |= {model_of(gpu) for gpu in gpus if gpu.emulated}
        models = {gpu.index: model_of(gpu) for gpu in gpus}
        before.append(NodeState(at, data.pool, data.ready and not data.drained, not data.ready, models))
    return NodesPast(found, frozenset(emulated))


def split(
    nodes: NodesPast, parts: Iterable[Part], waits: Iterable[Wait], *, begins: int, ends: int
) -> dict[str, PoolSplit]:
    """By pool, from `begins` until `ends`."""
    lines = {node_id: _Line(states) for node_id, states in nodes.states.items()}
    for part in parts:
        for node_id, gpu, by in part.held:
            line = lines.setdefault(node_id, _Line())
            line.held.append((part.begins, gpu, by))
            line.held.append((part.ends, gpu, -by))
    found: dict[str, PoolSplit] = defaultdict(PoolSplit)
    idle: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for line in lines.values():
        _add_up(line, found, idle, begins, ends)
    wanted: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for wait in waits:
        wanted[wait.pool][max(begins, wait.begins)] += wait.wanted
        wanted[wait.pool][min(ends, wait.ends)] -= wait.wanted
    for pool, changes in idle.items():
        found[pool].planned = _both(changes, wanted[pool])
        found[pool].idle -= found[pool].planned
    return dict(found)


def _add_up(line: _Line, found: dict[str, PoolSplit], idle: dict[str, dict[int, int]], begins: int, ends: int) -> None:
    """The GPU-seconds of one node, and when its idle GPUs changed."""
    changes: list[tuple[int, NodeState | None, int, int]] = [(state.at, state, 0, 0) for state in line.states]
    changes += [(at, None, gpu, by) for at, gpu, by in line.held]
    changes.sort(key=lambda change: (change[0], change[1] is None))
    now = NodeState(0, line.states[0].pool if line.states else "", False, True, {})
    held: dict[int, int] = defaultdict(int)
    on, gone, last = 0, 0, begins
    for at, state, gpu, by in [*changes, (ends, None, 0, 0)]:
        at = min(at, ends)
        if at > last:
            _count(found[now.pool], now, on, gone, at - last)
            if now.gives and (free := len(now.models) * WHOLE - on):
                idle[now.pool][last] += free
                idle[now.pool][at] -= free
            last = at
        if state is not None:
            now = state
            on = sum(part for index, part in held.items() if index in now.models)
            gone = sum(held.values()) - on
        elif by:
            held[gpu] += by
            on, gone = (on + by, gone) if gpu in now.models else (on, gone + by)


def _count(into: PoolSplit, now: NodeState, on: int, gone: int, micros: int) -> None:
    has = len(now.models) * WHOLE
    into.capacity += has * micros
    into.held += (on + gone) * micros
    into.gone += gone * micros
    free = (has - on) * micros
    if now.gives:
        into.idle += free
    elif now.down:
        into.down += free
    else:
        into.drained += free


def _both(idle: Mapping[int, int], wanted: Mapping[int, int]) -> int:
    """The GPU time that was idle and wanted at the same time."""
    found = level = want = last = 0
    for at in sorted({*idle, *wanted}):
        found += min(level, want) * (at - last)
        level, want, last = level + idle.get(at, 0), want + wanted.get(at, 0), at
    return found
