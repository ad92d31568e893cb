"""CPU budgets of tenants at one gateway. A tenant that used more than its share owes the excess, and waits while other
tenants are active. Pure."""

from collections import OrderedDict

from msgspec import Struct

from weftd.gateway.thinking.rates import Bucket, Rate, level

KEPT_MAX = 10_000


class ProcessorBudget(Struct, frozen=True, kw_only=True):
    """`part`: fraction of one CPU for all tenants together that used more than `burst_seconds`; 0: no bound. A tenant
    is active if it made a request in the last `others_seconds`. A tenant owes at most `debt_seconds_max`."""

    part: float = 0.0
    burst_seconds: float = 0.1
    others_seconds: float = 5.0
    debt_seconds_max: float = 1.0


class Budgets:
    """`now` is in seconds of a clock that does not jump. The KEPT_MAX tenants that came last are kept."""

    def __init__(self, budget: ProcessorBudget, *, kept_max: int = KEPT_MAX) -> None:
        self._budget = budget
        self._kept_max = kept_max
        self._came: OrderedDict[str, float] = OrderedDict()
        self._buckets: dict[str, Bucket] = {}
        self._owing: set[str] = set()

    def __len__(self) -> int:
        return len(self._came)

    def came(self, tenant: str, now: float) -> None:
        """Note a request of the tenant."""
        self._came[tenant] = now
        self._came.move_to_end(tenant)
        if len(self._came) > self._kept_max:
            gone, _ = self._came.popitem(last=False)
            self._buckets.pop(gone, None)
            self._owing.discard(gone)

    def charge(self, tenant: str, seconds: float, now: float) -> None:
        """Charge CPU seconds to the tenant."""
        if not self._budget.part or tenant not in self._came:
            return
        left = max(-self._budget.debt_seconds_max, self._level(tenant, now) - seconds)
        self._buckets[tenant] = Bucket(left, now)
        if left < 0:
            self._owing.add(tenant)

    def wait(self, tenant: str, now: float) -> float:
        """The seconds until the tenant may go on; 0 if it may now."""
        if tenant not in self._owing:
            return 0.0
        there, rate = self._level(tenant, now), self._rate(now)
        self._buckets[tenant] = Bucket(there, now)
        if there >= 0:
            self._owing.discard(tenant)
            return 0.0
        return -there / rate.per_second if self._others(tenant, now) else 0.0

    def _level(self, tenant: str, now: float) -> float:
        rate = self._rate(now)
        return level(self._buckets.get(tenant, Bucket(rate.burst, now)), rate, now)

    def _rate(self, now: float) -> Rate:
        """The rate at which debts shrink: the part is divided among the tenants that owe and are active."""
        for tenant in [one for one in self._owing if now - self._came[one] > self._budget.others_seconds]:
            self._owing.discard(tenant)
        return Rate(self._budget.part / max(1, len(self._owing)), self._budget.burst_seconds)

    def _others(self, tenant: str, now: float) -> bool:
        """True if another tenant made a request lately: one of the last two tenants to do so is another."""
        for other in reversed(self._came):
            if other != tenant:
                return now - self._came[other] <= self._budget.others_seconds
        return False
