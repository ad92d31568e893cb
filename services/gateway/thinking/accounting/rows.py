"""Rows of an account: stretches added up by tenant, job, label, … or over time."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from msgspec import Struct, field, structs

from libs.messages.accounts import AccountRow, By
from services.gateway.thinking.accounting.capacity import NodesPast
from services.gateway.thinking.accounting.lost import kind_of, lost_since
from services.gateway.thinking.accounting.prices import Prices, cost
from services.gateway.thinking.accounting.stretches import EpochStretch, Part, amount
from services.gateway.thinking.accounting.used import Used, UsedLedger, total

NANO = 1e-9
STEPS = {By.DAY: 86_400 * 1_000_000, By.HOUR: 3_600 * 1_000_000}
TOTAL = "total"


class Books(Struct, frozen=True, kw_only=True):
    """What rows are made from."""

    nodes: NodesPast
    prices: Prices | None
    ledger: UsedLedger


class _Piece(Struct, frozen=True):
    """What a stretch held of one model, at one time if rows are about time. Amounts in thousandths of a GPU times
    microseconds."""

    key: str
    model: str
    held: int
    lost: int
    used: Used


class _Sum(Struct):
    held: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by model
    lost: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by why
    jobs: set[str] = field(default_factory=set)
    epochs: set[tuple[str, int]] = field(default_factory=set)
    used: list[tuple[int, Used]] = field(default_factory=list)
    last: EpochStretch | None = None

    def take(self, stretch: EpochStretch, piece: _Piece, why: str) -> None:
        self.held[piece.model] += piece.held
        if piece.lost:
            self.lost[why] += piece.lost
        self.jobs.add(stretch.job.id)
        self.epochs.add((stretch.job.id, stretch.epoch))
        self.used.append((piece.held, piece.used))
        self.last = stretch


def rows_of(
    stretches: Iterable[EpochStretch], by: By, books: Books, *, label: str = ""
) -> tuple[AccountRow, list[AccountRow]]:
    """The total, and a row for each key: the one that held most first; over time, in order of time."""
    sums: dict[str, _Sum] = defaultdict(_Sum)
    everything = _Sum()
    key = _key(by, label)
    for stretch in stretches:
        why = kind_of(stretch)
        for piece in _pieces(stretch, by, key, books):
            sums[piece.key].take(stretch, piece, why)
            everything.take(stretch, piece, why)
    made = [_detailed(_row(name, found, books), found, by) for name, found in sums.items()]
    if by in STEPS:
        made.sort(key=lambda row: row.key)
    else:
        made.sort(key=lambda row: (-row.gpu_seconds_held, row.key))
    return _row(TOTAL, everything, books), made


def _key(by: By, label: str) -> Callable[[EpochStretch], str]:
    """What a stretch counts for. Empty: for something without a name, such as jobs without the label."""
    keys: dict[By, Callable[[EpochStretch], str]] = {
        By.TENANT: lambda stretch: stretch.job.tenant,
        By.JOB: lambda stretch: stretch.job.id,
        By.EPOCH: lambda stretch: f"{stretch.job.id}/{stretch.epoch}",
        By.KIND: lambda stretch: stretch.job.kind,
        By.POOL: lambda stretch: stretch.job.pool,
        By.LABEL: lambda stretch: stretch.job.labels.get(label, ""),
    }
    return keys.get(by, lambda _: "")


def _pieces(stretch: EpochStretch, by: By, key: Callable[[EpochStretch], str], books: Books) -> Iterator[_Piece]:
    found: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for part in stretch.parts:
        for cut in _cut(part, STEPS.get(by, 0)):
            for model, of_model in _by_model(cut, books.nodes):
                name = _time_text(cut.begins, by) if by in STEPS else model if by is By.MODEL else key(stretch)
                found[name, model].append(of_model)
    since, _ = lost_since(stretch)
    for (name, model), parts in found.items():
        yield _Piece(
            name,
            model,
            sum(amount(part) for part in parts),
            sum(sum(part.held.values()) * max(0, part.ends - max(part.begins, since)) for part in parts),
            books.ledger.of((stretch.job.id, stretch.epoch, model), parts[0].begins, parts[-1].ends),
        )


def _cut(part: Part, step: int) -> Iterator[Part]:
    """At the ends of days or hours."""
    begins = part.begins
    while step and begins // step < (part.ends - 1) // step:
        until = (begins // step + 1) * step
        yield Part(begins, until, part.held)
        begins = until
    yield Part(begins, part.ends, part.held)


def _by_model(part: Part, nodes: NodesPast) -> Iterator[tuple[str, Part]]:
    models: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
    for (node_id, gpu), by in part.held.items():
        models[nodes.model(node_id, gpu, part.begins)][node_id, gpu] = by
    for model, held in models.items():
        yield model, Part(part.begins, part.ends, held)


def _time_text(at: int, by: By) -> str:
    moment = datetime.fromtimestamp(at // 1_000_000, UTC)
    return moment.strftime("%Y-%m-%d" if by is By.DAY else "%Y-%m-%dT%H:00Z")


def _row(key: str, found: _Sum, books: Books) -> AccountRow:
    used, joules = total(found.used)
    return AccountRow(
        key=key,
        gpu_seconds_held=sum(found.held.values()) * NANO,
        gpu_seconds_used=None if used is None else used * NANO,
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


def _detailed(row: AccountRow, found: _Sum, by: By) -> AccountRow:
    """Of a job and of an epoch: whose it is; of an epoch also when it was, and how it ended."""
    if by not in (By.JOB, By.EPOCH) or found.last is None:
        return row
    job = found.last.job
    row = structs.replace(row, job=job.id, name=job.name, tenant=job.tenant)
    if by is By.JOB:
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
