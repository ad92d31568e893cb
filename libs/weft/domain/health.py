"""The health of a GPU or of a node, as the store has it."""

from enum import StrEnum

from msgspec import Struct


class HealthState(StrEnum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"  # takes new runs, and is watched
    QUARANTINED = "quarantined"  # takes no new run; the state ends by itself, or `exit` names what a person must do
    PROBATION = "probation"  # takes new runs again; the next offence lasts longer
    BROKEN = "broken"  # takes no new run until a person returns it


CLOSED = frozenset({HealthState.QUARANTINED, HealthState.BROKEN})
"""States without new runs."""


class Tally(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The runs that were placed on a node, and those of them that failed by no fault of their jobs. `score`: the CUSUM
    of `weft.health.lemons`; `jobs`: those that failed last, each once; `at`: the time of the last failure."""

    runs: int = 0
    failures: int = 0
    score: float = 0.0
    jobs: tuple[str, ...] = ()
    at: float = 0.0


class HealthRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The health of one GPU of a node, or of the node itself (`gpu` None), and why. Times are seconds since the epoch.

    `exit`: when the state ends, or what a person must do. `since`: when the state began. `clean_since`: from when on no
    sign of sickness was reported. `offences`: the times of the latest quarantines. `due`: the GPU should be out of use,
    but too many of its pool are out already. `lost`: runs on it cannot go on. `needs_reset`: it stays out of use until
    a reset or a reboot was seen.

    `boot`, `node_boot`, `xids` and `resets`: the counts that were judged already, by the life of the node's telemetry
    and the boot of the node. `tally`: how often runs failed on a node.
    """

    gpu: int | None = None
    uuid: str = ""
    state: HealthState = HealthState.HEALTHY
    code: str = ""
    sentence: str = ""
    exit: str = ""
    numbers: dict[str, float] = {}
    since: float = 0.0
    clean_since: float | None = None
    offences: tuple[float, ...] = ()
    due: bool = False
    lost: bool = False
    needs_reset: bool = False
    boot: str = ""
    node_boot: str = ""
    xids: dict[str, int] = {}
    resets: int = 0
    tally: Tally | None = None

    @property
    def closed(self) -> bool:
        """Does it take no new run?"""
        return self.state in CLOSED

    @property
    def well(self) -> bool:
        return self.state is HealthState.HEALTHY
