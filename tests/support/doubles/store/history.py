"""The records of leaders' decisions, in memory."""

from msgspec import structs

from tests.support.doubles.store.leases import MemoryLeases
from tests.support.doubles.store.times import micro
from weft.domain.lease import Lease
from weft.messages.history import Record
from weft.store import RecordsLostError


class MemoryHistory(MemoryLeases):
    def __init__(self) -> None:
        super().__init__()
        self._records: dict[str, dict[tuple[int, int], Record]] = {}  # by pool, epoch and number

    async def history(
        self, *, pool: str, after: tuple[int, int] = (0, 0), limit: int = 100, bytes_max: int = 1 << 20
    ) -> list[Record]:
        found: list[Record] = []
        for place, record in sorted(self._records.get(pool, {}).items()):
            if place <= after:
                continue
            if len(found) == limit or (found and sum(len(one.body) for one in found) >= bytes_max):
                break
            found.append(record)
        return found

    async def record(self, lease: Lease, record: Record) -> None:
        self._must_hold(lease)
        self._must_follow(lease, record)
        place, records = (record.epoch, record.number), self._records.setdefault(lease.name, {})
        assert place not in records, f"record {place} is written twice"
        records[place] = structs.replace(record, at=micro(record.at), until=micro(record.until))

    def _must_follow(self, lease: Lease, record: Record) -> None:
        before = (record.epoch, record.number - 1)
        if not record.begins and before not in self._records.get(lease.name, {}):
            raise RecordsLostError(f"record {before[1]} of epoch {before[0]} of {lease.name} is not stored any more")

    async def trim_history(self, lease: Lease, *, before: float, bytes_max: int) -> int:
        self._must_hold(lease)
        records = self._records.get(lease.name, {})
        begins = sorted(place for place, record in records.items() if record.begins)
        behind = {place: sum(len(records[each].body) for each in records if each >= place) for place in begins}
        too_old = [place for place in begins if records[place].at <= before]
        too_much = [place for place in begins if behind[place] <= bytes_max] or begins[-1:]
        cut = max([*too_old[-1:], *too_much[:1]], default=(0, 0))
        self._records[lease.name] = {place: record for place, record in records.items() if place >= cut}
        return len(records) - len(self._records[lease.name])
