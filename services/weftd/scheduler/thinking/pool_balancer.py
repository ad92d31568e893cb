"""Decides which shared pools a scheduler takes and gives up, so that each scheduler leads its even part.

Only how fast a free pool is taken depends on this, never whether two lead it: that the store refuses. The scheduler
that leads fewest takes a free pool at once; the others leave it to that one for `yield_seconds`, and take it then. A
leader with at least two pools more than another scheduler gives one up, but not oftener than each `even_seconds`: one
pool that goes over never makes it worth giving one back. No clock, no I/O.
"""

from collections.abc import Collection, Sequence
from hashlib import blake2b

from weft.messages.leaders import SCHEDULERS_MAX, LeadershipTold
from weftd.scheduler.thinking.peers import LAPSE_SECONDS

LISTEN_SECONDS = 2.0  # of a scheduler that begins: by then it has heard of the others
APART_SECONDS = 0.5  # between two pools that a scheduler takes which leads more than another: that may take the next
UNEVEN = 2  # pools more than another scheduler leads
BACK_OFF_MAX = 64  # times `even_seconds`


class PoolBalancer:
    """`pools`: all that this scheduler may lead."""

    def __init__(
        self, *, name: str, pools: Sequence[str], began_at: float, yield_seconds: float, even_seconds: float
    ) -> None:
        self.name = name
        self._pools = sorted(pools, key=lambda pool: blake2b(f"{name} {pool}".encode()).digest())
        self._began_at = began_at
        self._yield_seconds = yield_seconds
        self._even_seconds = even_seconds
        self._heard: dict[str, dict[str, tuple[bool, float]]] = {}  # by scheduler and pool: does it lead, and said when
        self._free_since: dict[str, float] = {}
        self._overtook_at = began_at
        self._uneven_since: float | None = None
        self._gave_up: str | None = None
        self._patience = 1

    @property
    def in_turn(self) -> Sequence[str]:
        """The pools in the order in which this scheduler tries to take them: another for each scheduler."""
        return self._pools

    def hear(self, told: LeadershipTold, now: float) -> None:
        if told.scheduler == self.name or told.pool not in self._pools:
            return
        if told.scheduler not in self._heard and len(self._heard) >= SCHEDULERS_MAX:
            self._heard = {name: pools for name, pools in self._heard.items() if self._alive(pools, now)}
            if len(self._heard) >= SCHEDULERS_MAX:
                return
        self._heard.setdefault(told.scheduler, {})[told.pool] = told.leads, now

    def is_led(self, pool: str) -> None:
        """`pool` has a leader."""
        self._free_since.pop(pool, None)

    def may_take(self, pool: str, now: float, *, led: Collection[str]) -> bool:
        """Return True if this scheduler may take `pool`, which has no leader. `led`: the pools that it leads."""
        if len(self._pools) == 1:
            return True
        if now < self._began_at + LISTEN_SECONDS:
            return False
        since = self._free_since.setdefault(pool, now)
        if self._gave_up != pool and min(self._others(pool, now), default=len(led)) >= len(led):
            return True
        if now < since + self._yield_seconds or now < self._overtook_at + APART_SECONDS:
            return False
        self._overtook_at = now
        return True

    def taken(self, pool: str) -> None:
        """This scheduler leads `pool` now. If it gave that up before, no other could take it: it asks less often."""
        self.is_led(pool)
        if pool == self._gave_up:
            self._patience = min(BACK_OFF_MAX, 2 * self._patience)
            self._gave_up = None

    def gives_up(self, now: float, *, led: Collection[str]) -> str | None:
        """The pool that this scheduler should leave to one that leads fewer, or None."""
        some = [pool for pool in self._pools if pool in led and self._too_many(pool, now, led=led)]
        if not some or not self._even_seconds:
            self._uneven_since = None
            return None
        if self._uneven_since is None:
            self._uneven_since = now
        if now < self._uneven_since + self._even_seconds * self._patience:
            return None
        self._uneven_since, self._gave_up = None, some[-1]
        return some[-1]

    def went_over(self, pool: str) -> None:
        """Another scheduler leads `pool` now."""
        self.is_led(pool)
        if pool == self._gave_up:
            self._gave_up, self._patience = None, 1

    def _too_many(self, pool: str, now: float, *, led: Collection[str]) -> bool:
        return min(self._others(pool, now), default=len(led)) + UNEVEN <= len(led)

    def _others(self, pool: str, now: float) -> list[int]:
        """How many pools each other scheduler leads that may lead `pool` and was heard of lately."""
        return [
            sum(leads for leads, at in said.values() if now - at <= LAPSE_SECONDS)
            for said in self._heard.values()
            if pool in said and now - said[pool][1] <= LAPSE_SECONDS
        ]

    @staticmethod
    def _alive(said: dict[str, tuple[bool, float]], now: float) -> bool:
        return any(now - at <= LAPSE_SECONDS for _, at in said.values())
