"""What was measured, held against what was aimed at. Pure.

A request of the quiet tenant that fails counts as the longest that it would have waited, and is counted as failed too:
nothing that went wrong makes a figure better.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from tests.bench.figures import Aim, quantile

KINDS = ("submit", "start", "get")
TIMES_AT_REST = 2.0
ALWAYS_ALLOWED_SECONDS = 0.050
PART = 0.99
MEBIBYTE = 1 << 20
MEMORY_MIB_MAX = 512.0
SERVERS_MIB_MAX = {"postgres": 1024.0}  # its shared buffers, and what its sessions sort in
WELL_AFTER_SECONDS_MAX = 10.0
GROWTH_MIB_MAX = 64.0
GROWTH_PART_MAX = 0.25


class Window(Struct, frozen=True, kw_only=True):
    """What the quiet tenant saw for some seconds: seconds of each kind of request, and how many failed, by why."""

    seconds: Mapping[str, Sequence[float]]
    failed: Mapping[str, int] = {}

    @property
    def failures(self) -> int:
        return sum(self.failed.values())


class Memory(Struct, frozen=True, kw_only=True):
    """The most that each process had, in bytes, in the two halves of one attack."""

    first: Mapping[str, int]
    second: Mapping[str, int]


class Attack(Struct, frozen=True, kw_only=True):
    """One attack, the rest before and after it, and what became of the cluster."""

    name: str
    before: Window
    during: Window
    after: Window | None  # None: the cluster was not well again
    memory: Memory
    restarts: Mapping[str, int]  # processes that ended by themselves, by name
    well_seconds: float  # after the last request until the quiet tenant was served well again, with all still there
    recovered_seconds: float  # until the hostile tenant's jobs were over, too
    recovered: bool
    answers: Mapping[str, int]  # what the hostile tenant was answered: status or error, and how often


def p99(windows: Iterable[Window], kind: str) -> float:
    """In seconds, over all of these windows; 0 where nothing was asked."""
    values = [value for window in windows for value in window.seconds.get(kind, ())]
    return quantile(values, PART) if values else 0.0


def rest_of(attack: Attack) -> list[Window]:
    return [attack.before, *([attack.after] if attack.after is not None else [])]


def aims(attacks: Sequence[Attack], *, recovered_seconds_max: float) -> dict[str, Aim]:
    found: dict[str, Aim] = {}
    for attack in attacks:
        for kind in KINDS:
            allowed = max(TIMES_AT_REST * p99(rest_of(attack), kind), ALWAYS_ALLOWED_SECONDS)
            value = p99([attack.during], kind)
            found[f"{attack.name}.{kind}_p99_ms"] = Aim(value=_milliseconds(value), aim=_milliseconds(allowed))
        found[f"{attack.name}.quiet_failed"] = Aim(value=attack.during.failures, aim=0)
        recovered = attack.recovered_seconds if attack.recovered else 2 * recovered_seconds_max
        found[f"{attack.name}.recovered_seconds"] = Aim(value=round(recovered, 1), aim=recovered_seconds_max)
        found[f"{attack.name}.well_seconds"] = Aim(value=round(attack.well_seconds, 1), aim=WELL_AFTER_SECONDS_MAX)
        found[f"{attack.name}.processes_ended"] = Aim(value=sum(attack.restarts.values()), aim=0)
    found["rest.quiet_failed"] = Aim(value=sum(_failed_at_rest(attacks)), aim=0)
    return found | _memory_aims(attacks)


def _failed_at_rest(attacks: Sequence[Attack]) -> list[int]:
    """Each window of rest once: the rest after one attack is the rest before the next."""
    seen = {id(window): window.failures for attack in attacks for window in rest_of(attack)}
    return list(seen.values())


def _memory_aims(attacks: Sequence[Attack]) -> dict[str, Aim]:
    """Of each process the most in any attack, and the largest growth from the first to the second half of one."""
    found: dict[str, Aim] = {}
    for process in sorted({name for attack in attacks for name in (*attack.memory.first, *attack.memory.second)}):
        most = max(max(of.get(process, 0) for of in (one.memory.first, one.memory.second)) for one in attacks)
        bound = SERVERS_MIB_MAX.get(process, MEMORY_MIB_MAX)
        found[f"memory.{process}_mib"] = Aim(value=_mib(most), aim=bound)
        worst = max((_growth(one.memory, process) for one in attacks), key=lambda aim: aim.value - aim.aim)
        found[f"memory.{process}_growth_mib"] = worst
    return found


def _growth(memory: Memory, process: str) -> Aim:
    """A process that is not there in one of the halves has not grown: it ended, which is counted elsewhere."""
    first, second = memory.first.get(process), memory.second.get(process)
    if first is None or second is None:
        return Aim(value=0.0, aim=GROWTH_MIB_MAX)
    return Aim(value=_mib(max(0, second - first)), aim=max(GROWTH_MIB_MAX, _mib(int(GROWTH_PART_MAX * first))))


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _mib(count: int) -> float:
    return round(count / MEBIBYTE, 1)
