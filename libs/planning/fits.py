"""The GPUs of which shares may take a part, kept in order: the best fit is found without a look at all nodes."""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from libs.domain.shares import WHOLE, Share
from libs.planning.gpus_left import Left, Make


class Company(IntEnum):
    """Which jobs hold shares of a GPU."""

    NOBODY = 0
    NOTEBOOKS = 1  # only notebooks
    OTHERS = 2  # no training
    TRAINING = 3


class Entry(NamedTuple):
    """One GPU. `cost` orders equals: those that have the same left."""

    company: Company
    make: Make
    time: int
    memory: int
    cost: float
    gpu: int


class Fit(NamedTuple):
    node_id: str
    gpu: int


Row = list[tuple[int, float, str, int]]
"""GPUs with the same time left: memory left, cost, node's id, index."""

N = TypeVar("N")


class Where:
    """Which nodes and GPUs come into question; each node is asked for once."""

    __slots__ = ("_apart", "_known", "_node_fits")

    def __init__(self, node_fits: Callable[[str], bool], apart: Collection[tuple[str, int]] = ()) -> None:
        self._node_fits = node_fits
        self._apart = apart
        self._known: dict[str, bool] = {}

    def first(self, row: Row, at: int) -> int | None:
        """The first GPU of a row, from `at` on, that comes into question."""
        known, apart = self._known, self._apart
        for place in range(at, len(row)):
            node_id = row[place][2]
            fits = known.get(node_id)
            if fits is None:
                fits = known[node_id] = self._node_fits(node_id)
            if fits and (not apart or (node_id, row[place][3]) not in apart):
                return place
        return None


def company_of(left: Left) -> Company:
    if left.training:
        return Company.TRAINING
    if left.others:
        return Company.OTHERS
    return Company.NOTEBOOKS if left.notebooks else Company.NOBODY


class Fits(Generic[N]):
    """`entries` gives the GPUs of a node, and depends on the node (and on scores) alone."""

    __slots__ = ("_at", "_entries", "_of_node", "_rows")

    def __init__(self, entries: Callable[[N], Sequence[Entry]]) -> None:
        self._entries = entries
        self._of_node: dict[str, Sequence[Entry]] = {}
        self._rows: dict[Company, dict[Make, dict[int, Row]]] = {company: {} for company in Company}
        self._at = -1  # how many of the changes are known here; -1: no node was looked at yet

    def heed(self, open_nodes: Mapping[str, N], changed: Sequence[str]) -> None:
        """Look again at the nodes that changed. `changed` names them in order, and only grows."""
        if self._at < 0:
            self._look_at_all(open_nodes)
        elif len(changed) != self._at:
            for node_id in set(changed[self._at :]):
                node = open_nodes.get(node_id)
                self._replace(node_id, () if node is None else self._entries(node))
        self._at = len(changed)

    def best(self, share: Share, model: str | None, among: Iterable[Company], where: Where) -> Fit | None:
        """The GPU with least left over in the tighter of time and memory, then in the other; of the first company of
        `among` where there is one. `where` tells what nothing here does: whether the node has the CPUs, for one."""
        for company in among:
            found = self._best_among(share, model, company, where)
            if found is not None:
                return found
        return None

    def _best_among(self, share: Share, model: str | None, company: Company, where: Where) -> Fit | None:
        best: tuple[float, float, float, str, int] | None = None
        for make, rows in self._rows[company].items():
            needs = share.memory + make.context
            if needs > make.memory or (model is not None and make.model != model):
                continue
            for time, row in rows.items():
                time_over = (time - share.request) / WHOLE
                first = bisect_left(row, (needs,)) if time_over >= 0.0 else len(row)
                if first == len(row):
                    continue
                memory_over = (row[first][0] - needs) / make.memory
                if best is not None and best[0] < min(time_over, memory_over):
                    continue
                at = where.first(row, first)
                if at is None:
                    continue
                memory, cost, node_id, gpu = row[at]
                memory_over = (memory - needs) / make.memory
                tight, loose = (time_over, memory_over) if time_over < memory_over else (memory_over, time_over)
                rank = (tight, loose, cost, node_id, gpu)
                if best is None or rank < best:
                    best = rank
        return None if best is None else Fit(best[3], best[4])

    def _look_at_all(self, open_nodes: Mapping[str, N]) -> None:
        for node_id, node in open_nodes.items():
            entries = self._of_node[node_id] = self._entries(node)
            for entry in entries:
                self._row(entry).append((entry.memory, entry.cost, node_id, entry.gpu))
        for rows in self._rows.values():
            for of_make in rows.values():
                for row in of_make.values():
                    row.sort()

    def _replace(self, node_id: str, entries: Sequence[Entry]) -> None:
        before, after = self._of_node.get(node_id, ()), set(entries)
        for entry in before:
            if entry not in after:
                row = self._row(entry)
                del row[bisect_left(row, (entry.memory, entry.cost, node_id, entry.gpu))]
                if not row:
                    self._drop(entry)
        known = set(before)
        for entry in entries:
            if entry not in known:
                insort(self._row(entry), (entry.memory, entry.cost, node_id, entry.gpu))
        self._of_node[node_id] = entries

    def _row(self, entry: Entry) -> Row:
        return self._rows[entry.company].setdefault(entry.make, {}).setdefault(entry.time, [])

    def _drop(self, entry: Entry) -> None:
        of_make = self._rows[entry.company][entry.make]
        del of_make[entry.time]
        if not of_make:
            del self._rows[entry.company][entry.make]
