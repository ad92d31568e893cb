"""Rows of an account: stretches added up by tenant, job, label, … or over time."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import lru_cache

from msgspec import Struct, field, structs

from weft.messages.accounts import AccountRow, UsageGrouping
from weftd.gateway.thinking.accounting.capacity import NodesPast
from weftd.gateway.thinking.accounting.lost import kind_of, lost_since
from weftd.gateway.thinking.accounting.prices import Prices, cost
from weftd.gateway.thinking.accounting.stretches import EpochStretch, Held, Part
from weftd.gateway.thinking.accounting.used import Used, UsedLedger, UsedSum

NANO = 1e-9
STEPS = {UsageGrouping.DAY: 86_400 * 1_000_000, UsageGrouping.HOUR: 3_600 * 1_000_000}
TOTAL = "total"
TIMES_KEPT = 1_024  # days and hours, as texts


class Books(Struct, frozen=True, kw_only=True):
    """The inputs of the rows."""

    nodes: NodesPast
    prices: Prices | None
    ledger: UsedLedger


class _Piece(Struct):
    """The GPU time of one model that a stretch held, with its begin and end; rows over time have one piece for each
    period. Amounts are in thousandths of a GPU times microseconds."""

    begins: int
    ends: int
    held: int = 0
    lost: int = 0


class _Of(Struct, frozen=True):
    """A stretch, its job's id and epoch, and why it ended before its job was done."""

    stretch: EpochStretch
    epoch: tuple[str, int]
    why: str


class _Sum(Struct):
    held: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by model
    lost: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by reason
    jobs: set[str] = field(default_factory=set)
    epochs: set[tuple[str, int]] = field(default_factory=set)
    used: UsedSum = field(default_factory=UsedSum)
    last: EpochStretch | None = None

    def take(self, of: _Of, model: str, piece: _Piece, used: Used) -> None:
        self.held[model] += piece.held
        if piece.lost:
            self.lost[of.why] += piece.lost
        self.jobs.add(of.stretch.job.id)
        self.epochs.add(of.epoch)
        self.used.add(piece.held, used)
        self.last = of.stretch


def rows_of(
    stretches: Iterable[EpochStretch], by: UsageGrouping, books: Books, *, label: str = ""
) -> tuple[AccountRow, list[AccountRow]]:
    """The total, and a row for each key, the largest first; rows over time are in order of time."""
    sums: dict[str, _Sum] = defaultdict(_Sum)
    everything = _Sum()
    key = _key(by, label)
    for stretch in stretches:
        of = _Of(stretch, (stretch.job.id, stretch.epoch), kind_of(stretch))
        for (name, model), piece in _pieces(stretch, by, key, books.nodes).items():
            used = books.ledger.of((*of.epoch, model), piece.begins, piece.ends)
            sums[name].take(of, model, piece, used)
            everything.take(of, model, piece, used)
    made = [_detailed(_row(name, found, books), found, by) for name, found in sums.items()]
    if by in STEPS:
        made.sort(key=lambda row: row.key)
    else:
        made.sort(key=lambda row: (-row.gpu_seconds_held, row.key))
    return _row(TOTAL, everything, books), made


def _key(by: UsageGrouping, label: str) -> Callable[[EpochStretch], str]:
    """The row key of a stretch. Empty for something without a name, such as jobs without the label."""
    keys: dict[UsageGrouping, Callable[[EpochStretch], str]] = {
        UsageGrouping.TENANT: lambda stretch: stretch.job.tenant,
        UsageGrouping.JOB: lambda stretch: stretch.job.id,
        UsageGrouping.EPOCH: lambda stretch: f"{stretch.job.id}/{stretch.epoch}",
        UsageGrouping.KIND: lambda stretch: stretch.job.kind,
        UsageGrouping.POOL: lambda stretch: stretch.job.pool,
        UsageGrouping.LABEL: lambda stretch: stretch.job.labels.get(label, ""),
    }
    return keys.get(by, lambda _: "")


def _pieces(
    stretch: EpochStretch, by: UsageGrouping, key: Callable[[EpochStretch], str], nodes: NodesPast
) -> dict[tuple[str, str], _Piece]:
    """The pieces by row name and model."""
    found: dict[tuple[str, str], _Piece] = {}
    step, (since, _) = STEPS.get(by, 0), lost_since(stretch)
    named = "" if step or by is UsageGrouping.MODEL else key(stretch)
    for part in stretch.parts:
        for begins, ends in _cut(part, step):
            for model, weight in _by_model(part.held, nodes, begins).items():
                name = _time_text(begins // step * step, by) if step else model if by is UsageGrouping.MODEL else named
                piece = found.get((name, model))
                if piece is None:
                    piece = found[name, model] = _Piece(begins, ends)
                piece.ends = ends
                piece.held += weight * (ends - begins)
                piece.lost += weight * max(0, ends - max(begins, since))
    return found


def _cut(part: Part, step: int) -> Iterator[tuple[int, int]]:
    """Split pieces at the ends of days or hours."""
    begins = part.begins
    while step and begins // step < (part.ends - 1) // step:
        until = (begins // step + 1) * step
        yield begins, until
        begins = until
    yield begins, part.ends


def _by_model(held: Held, nodes: NodesPast, at: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for node_id, gpu, by in held:
        model = nodes.model(node_id, gpu, at)
        found[model] = found.get(model, 0) + by
    return found


@lru_cache(maxsize=TIMES_KEPT)
def _time_text(at: int, by: UsageGrouping) -> str:
    moment = datetime.fromtimestamp(at // 1_000_000, UTC)
    return moment.strftime("%Y-%m-%d" if by is UsageGrouping.DAY else "%Y-%m-%dT%H:00Z")


def _row(key: str, found: _Sum, books: Books) -> AccountRow:
    used, idle, joules = found.used.total
    return AccountRow(
        key=key,
        gpu_seconds_held=sum(found.held.values()) * NANO,
        gpu_seconds_used=None if used is None else used * NANO,
        gpu_seconds_unused=None if idle is None else idle * NANO,
        lost_preempted=found.lost["preempted"] * NANO,
        lost_moved=found.lost["moved"] * NANO,
        lost_failed=found.lost["failed"] * NANO,
        cost=None if books.prices is None else cost(found.held, books.prices),
        joules=joules,
        joules_emulated=joules is not None and not books.nodes.emulated.isdisjoint(found.held),
        jobs=len(found.jobs),
        epochs=len(found.epochs),
        models=tuple(sorted(found.held)),
    )


def _detailed(row: AccountRow, found: _Sum, by: UsageGrouping) -> AccountRow:
    """The owner of a job or epoch; for an epoch also its times and its outcome."""
    if by not in (UsageGrouping.JOB, UsageGrouping.EPOCH) or found.last is None:
        return row
    job = found.last.job
    row = structs.replace(row, job=job.id, name=job.name, tenant=job.tenant)
    if by is UsageGrouping.JOB:
        return row
    last = found.last
    return structs.replace(
        row,
        epoch=last.epoch,
        begins=last.begins / 1e6,
        ends=last.ends / 1e6,
        ended=last.event,
        cause=last.code,
        lost_basis=lost_since(last)[1],
    )
