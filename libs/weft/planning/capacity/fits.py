"""The GPUs of which shares may take a part, kept in order: the best fit is found without a look at all nodes."""

from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from weft.domain.cluster import Request
from weft.domain.shares import WHOLE, Share
from weft.planning.capacity.gpus_left import Left, Make
from weft.planning.scores import GpuKey


class Company(IntEnum):
    """Which jobs hold shares of a GPU."""

    NOBODY = 0
    NOTEBOOKS = 1  # only notebooks
    OTHERS = 2  # no training
    TRAINING = 3


class GpuEntry(NamedTuple):
    """One GPU. `cost` orders equals: those that have the same left. `plenty`: the class of a free GPU by what its node
    has left beside its GPUs; of a shared one, the classes of the jobs that hold shares, a bit for each."""

    company: Company
    make: Make
    time: int
    memory: int
    cost: float
    gpu: int
    plenty: int = 0


Row = list[tuple[int, float, str, int]]
"""GPUs of one make and class with the same time left: memory left, cost, node's id, index."""

Rows = dict[tuple[int, int], Row]
"""Rows by remaining time and by class."""

Rank = tuple[float, float, float, str, int]
"""Of a GPU that comes into question: the least is taken; it ends with the node's id and the index."""

N = TypeVar("N")


class Where:
    """Which nodes and GPUs are candidates; each node is asked for once. `misfit`: what a class of free GPUs costs
    because its nodes have too little, or more than enough, beside their GPUs. `harm`: what it costs to be beside jobs
    of these classes, as a part of a GPU's time."""

    __slots__ = ("_apart", "_known", "_node_fits", "harm", "misfit")

    def __init__(
        self,
        node_fits: Callable[[str], bool],
        misfit: Callable[[int], float],
        apart: Collection[GpuKey] = (),
        harm: Callable[[int], float] | None = None,
    ) -> None:
        self._node_fits = node_fits
        self.misfit = misfit
        self.harm = harm
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


def _tightest(share: Share, make: Make, rows: Rows, where: Where, best: Rank | None) -> Rank | None:
    """The GPU with least left over, if that is less than `best`. Jobs there that slow each other down make it more."""
    needs = share.memory + make.context
    for (time, company), row in rows.items():
        harm = where.harm(company) if company and where.harm is not None else 0.0
        time_over = (time - share.request) / WHOLE
        first = bisect_left(row, (needs,)) if time_over >= 0.0 else len(row)
        if first == len(row):
            continue
        if best is not None and best[0] < min(time_over, (row[first][0] - needs) / make.memory) + harm:
            continue
        at = where.first(row, first)
        if at is not None:
            memory, cost, node_id, gpu = row[at]
            memory_over = (memory - needs) / make.memory
            tight, loose = (time_over, memory_over) if time_over < memory_over else (memory_over, time_over)
            rank = (tight + harm, loose, cost, node_id, gpu)
            best = rank if best is None or rank < best else best
    return best


def _cheapest(share: Share, make: Make, rows: Rows, where: Where, best: Rank | None) -> Rank | None:
    """The free GPU that costs least, if that is less than `best`: as a place, and for what its node has beside it."""
    needs = share.memory + make.context
    if needs > make.memory:
        return best
    for (_, plenty), row in rows.items():
        misfit = where.misfit(plenty)
        if best is not None and best[0] < row[0][1] + misfit:
            continue
        at = where.first(row, 0)
        if at is not None:
            memory, cost, node_id, gpu = row[at]
            rank = (cost + misfit, (memory - needs) / make.memory, 0.0, node_id, gpu)
            best = rank if best is None or rank < best else best
    return best


def company_of(left: Left) -> Company:
    if left.training:
        return Company.TRAINING
    if left.others:
        return Company.OTHERS
    return Company.NOTEBOOKS if left.notebooks else Company.NOBODY


class Fits(Generic[N]):
    """`entries` gives the GPUs of a node, and depends on the node (and on scores) alone."""

    __slots__ = ("_at", "_entries", "_of_node", "_rows")

    def __init__(self, entries: Callable[[N], Sequence[GpuEntry]]) -> None:
        self._entries = entries
        self._of_node: dict[str, Sequence[GpuEntry]] = {}
        self._rows: dict[Company, dict[Make, Rows]] = {company: {} for company in Company}
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

    def best(self, share: Share, request: Request, among: Iterable[Company], where: Where) -> GpuKey | None:
        """The GPU with least left over in the tighter of time and memory, then in the other; of free ones the one that
        costs least. Its model and its memory suit `request`. It is of the first company of `among` where there is one.
        `where` tells what nothing here does: whether the node has the CPUs, for one."""
        for company in among:
            found: Rank | None = None
            for make, rows in self._rows[company].items():
                if request.suits(make.model, make.memory):
                    look = _cheapest if company is Company.NOBODY else _tightest
                    found = look(share, make, rows, where, found)
            if found is not None:
                return found[3], found[4]
        return None

    def _look_at_all(self, open_nodes: Mapping[str, N]) -> None:
        for node_id, node in open_nodes.items():
            entries = self._of_node[node_id] = self._entries(node)
            for entry in entries:
                self._row(entry).append((entry.memory, entry.cost, node_id, entry.gpu))
        for rows in self._rows.values():
            for of_make in rows.values():
                for row in of_make.values():
                    row.sort()

    def _replace(self, node_id: str, entries: Sequence[GpuEntry]) -> None:
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

    def _row(self, entry: GpuEntry) -> Row:
        return self._rows[entry.company].setdefault(entry.make, {}).setdefault((entry.time, entry.plenty), [])

    def _drop(self, entry: GpuEntry) -> None:
        of_make = self._rows[entry.company][entry.make]
        del of_make[entry.time, entry.plenty]
        if not of_make:
            del self._rows[entry.company][entry.make]
