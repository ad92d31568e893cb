"""What one run came to: the raw results, a JSON line each."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import TypeVar

import msgspec
from msgspec import Struct

R = TypeVar("R")
RESULTS = Path("tests/bench/measured/nearchus")
BUSY_ELSEWHERE = 0.5  # cores, on average: above it the run is disturbed. Fixed before the first comparison.


class Action(Struct, frozen=True, kw_only=True):
    """One change of a running job, `at` seconds after its start."""

    at: float
    code: str
    sentence: str
    cpus: Mapping[str, tuple[float, ...]]
    memory: tuple[int, ...] = ()
    egress: tuple[int | None, ...] = ()
    numbers: Mapping[str, float] = {}


class Measured(Struct, frozen=True, kw_only=True):
    """One run of one side. Speeds in samples per second, all else in seconds and cores.

    `speed` is over all of it from the moment every rank ran, search included; `settled`, over its last part.
    `elsewhere`: cores that were busy with anything but the job, the cluster's own services among them.
    """

    scenario: str
    side: str
    rep: int
    at: float
    seconds: float
    speed: float
    settled: float
    elsewhere: float
    cpus_used: float
    cpus: Mapping[str, float]
    memory: str = ""
    egress: Mapping[str, int] = {}
    curve: tuple[float, ...] = ()
    actions: tuple[Action, ...] = ()
    verdicts: Mapping[str, int] = {}

    @property
    def steady(self) -> float:
        """Without its first five seconds, in which any side only begins; the search counts."""
        return fmean(self.curve[1:]) if len(self.curve) > 1 else self.speed

    @property
    def disturbed(self) -> bool:
        return self.elsewhere > BUSY_ELSEWHERE


class Waited(Struct, frozen=True, kw_only=True):
    """One job of a trace: seconds from its submission to its first start, and to its end."""

    queued: float
    whole: float


class Traced(Struct, frozen=True, kw_only=True):
    """One trace with one side."""

    scenario: str
    side: str
    rep: int
    at: float
    seconds: float
    elsewhere: float
    steps: int = 3000  # of the first job
    cpus: float = 0.9  # that it asks for
    behind: float | None = None  # cores that each after it asks for; None: as many as it
    jobs: tuple[Waited, ...]
    actions: tuple[Action, ...] = ()


def append(path: Path, result: Measured | Traced) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(result) + b"\n")


def measured(folder: Path, scenarios: Iterable[str]) -> dict[str, list[Measured]]:
    return {name: _read(folder / f"{name}.jsonl", Measured) for name in scenarios}


def traced(folder: Path, traces: Iterable[str]) -> dict[str, list[Traced]]:
    return {name: _read(folder / f"{name}.jsonl", Traced) for name in traces}


def _read(path: Path, kind: type[R]) -> list[R]:
    if not path.is_file():
        return []
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines() if line.strip()]
