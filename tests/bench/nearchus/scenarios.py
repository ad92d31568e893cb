"""What is wrong with a job, and what each side would give it. Fixed before any tuner ran here."""

import math
from collections.abc import Mapping

from msgspec import Struct

from weft.domain.spec import JobSpec, Replicas, ResizeHow, ResizeRules, Role, Tuning, TuningMode

BUDGET = 1.6  # cores of the two; the rest is for the cluster's own services
MEMORY = "384MiB"
SERVED, RINGED, ALONE = "jobs.served", "jobs.ringed", "jobs.alone"

Split = Mapping[str, float]
"""Cores of one replica of each role."""


class Share(Struct, frozen=True, kw_only=True):
    """What one side gives a replica of each role: cores, and what it may send, in kB per second."""

    cpus: Split
    egress: Mapping[str, int] = {}
    memory: str = MEMORY


class Scenario(Struct, frozen=True, kw_only=True):
    """`asked` is what its user would guess: the proportional baseline. `grid`: all splits that the oracle looks at.
    `most`: replicas by role, where more than `replicas` may be tried."""

    name: str
    what: str
    program: str
    arguments: tuple[str, ...]
    replicas: Mapping[str, int]
    equal: Share
    asked: Share
    grid: tuple[Share, ...]
    tuning: Tuning
    extra: str = ""
    most: Mapping[str, int] = {}

    def spec(self, image: str, share: Share, *, tuned: bool, tag: str = "", outscales: bool = False) -> JobSpec:
        """The job with this share; whoever is tuned begins with it, and may be given no more in all. Who `outscales`
        may have up to `most` replicas besides, of the same cores."""
        most = self.most if outscales else {}
        roles = {
            role: Role(
                replicas=Replicas(want=count, max=most.get(role, count)),
                cpus=round(share.cpus[role], 3),
                memory=share.memory,
                egress=f"{share.egress[role]}KB" if role in share.egress else None,
            )
            for role, count in self.replicas.items()
        }
        return JobSpec(
            name=f"{self.name.lower()}{tag}",
            image=image,
            command=("python3", "-m", self.program, *self.arguments),
            roles=roles,
            grace="2s",
            resize=ResizeRules(how=ResizeHow.LIVE) if most else ResizeRules(),
            tuning=self.tuning if tuned else Tuning(mode=TuningMode.OFF),
        )


def split_by(weights: Mapping[str, float], replicas: Mapping[str, int], budget: float = BUDGET) -> Split:
    """The whole budget, a replica of each role by its weight."""
    total = sum(weights[role] * count for role, count in replicas.items())
    return {role: _down(budget * weights[role] / total) for role in replicas}


def servers_part(part: float, replicas: Mapping[str, int], budget: float = BUDGET) -> Split:
    """The servers get this part of the budget, the workers the rest."""
    return {
        "ps": _down(budget * part / replicas["ps"]),
        "worker": _down(budget * (1.0 - part) / replicas["worker"]),
    }


def _down(cpus: float) -> float:
    """To thousandths, so that no side spends more than the budget."""
    return math.floor(cpus * 1000 + 1e-6) / 1000


GUESS = {"ps": 1.0, "worker": 2.0}
"""What users of such jobs write down: a worker computes, a server only stores. The same in every scenario."""

ALIKE = {"ps": 1.0, "worker": 1.0}
MORE_WORKERS = 2
PARTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.8)


def _served(name: str, what: str, replicas: Mapping[str, int], *arguments: str) -> Scenario:
    return Scenario(
        name=name,
        what=what,
        program=SERVED,
        arguments=arguments,
        replicas=replicas,
        equal=Share(cpus=split_by(ALIKE, replicas)),
        asked=Share(cpus=split_by(GUESS, replicas)),
        grid=tuple(Share(cpus=servers_part(part, replicas)) for part in PARTS),
        tuning=Tuning(mode=TuningMode.ON, cpus=BUDGET),
        most={**replicas, "worker": replicas["worker"] + MORE_WORKERS},
    )


SERVER_HEAVY = ("--width", "256", "--server-work", "12", "--worker-work", "8")
WORKER_HEAVY = ("--width", "192", "--worker-work", "24")

S1 = _served(
    "S1",
    "the server is starved of CPU: it makes each update orthogonal, while three workers have little to do",
    {"ps": 1, "worker": 3},
    *SERVER_HEAVY,
)
S1_MOST = _served(
    "S1-most",
    "the same with five workers, so that an equal share starves the server most",
    {"ps": 1, "worker": 5},
    *SERVER_HEAVY,
)
S2 = _served(
    "S2",
    "the workers are starved of CPU: three servers hold a layer each, and only keep momentum",
    {"ps": 3, "worker": 2},
    *("--layers", "3"),
    *WORKER_HEAVY,
)
S2_MOST = _served(
    "S2-most",
    "the same with five servers",
    {"ps": 5, "worker": 2},
    *("--layers", "5"),
    *WORKER_HEAVY,
)

CAPPED = 2500  # kB/s: 20 Mbit/s
CAPPED_TOTAL = 4 * CAPPED
_SENDING = ("--width", "256", "--worker-work", "160")
_NETWORK = {"ps": 1, "worker": 3}
_ENOUGH = {"ps": 0.3, "worker": 0.433}


def _sends(weights: Mapping[str, float]) -> Share:
    """All that may be sent, a replica of each role by its weight."""
    split = split_by(weights, _NETWORK, CAPPED_TOTAL)
    return Share(cpus=_ENOUGH, egress={role: int(rate) for role, rate in split.items()})


S3 = Scenario(
    name="S3",
    what="the server may send 20 Mbit/s, and so may each of three workers, of which it sends each as much as it gets",
    program=SERVED,
    arguments=_SENDING,
    replicas=_NETWORK,
    equal=_sends(ALIKE),
    asked=_sends(GUESS),
    grid=tuple(_sends({"ps": part, "worker": (1.0 - part) / _NETWORK["worker"]}) for part in PARTS),
    tuning=Tuning(mode=TuningMode.ON, cpus=BUDGET, egress_total=f"{CAPPED_TOTAL}KB"),
    extra="All sides may send 80 Mbit/s in all.",
    most={"ps": 2, "worker": _NETWORK["worker"] + MORE_WORKERS},
)

_SLACK = {"ps": 0.3, "worker": 0.65}
S3_SLACK = Scenario(
    name="S3-slack",
    what="the server may send 20 Mbit/s, half of what its two workers could take; the node's link has slack",
    program=SERVED,
    arguments=_SENDING,
    replicas={"ps": 1, "worker": 2},
    equal=Share(cpus=_SLACK, egress={"ps": CAPPED}),
    asked=Share(cpus=_SLACK, egress={"ps": CAPPED}),
    grid=tuple(Share(cpus=_SLACK, egress={"ps": CAPPED * times}) for times in (1, 2, 3, 4)),
    tuning=Tuning(mode=TuningMode.ON, cpus=BUDGET, egress=f"{4 * CAPPED}KB"),
    extra="Only the cap differs: the link's slack is ours to use and the oracle's, not the baselines'.",
    most={"ps": 2, "worker": 2 + MORE_WORKERS},
)

_ONE = {"worker": 1}
S5 = Scenario(
    name="S5",
    what="the data set is larger than the memory that is left for it: pages are dropped and read again",
    program=ALONE,
    arguments=("--data-mib", "160", "--reads", "64", "--work", "4"),
    replicas=_ONE,
    equal=Share(cpus={"worker": 0.9}, memory="128MiB"),
    asked=Share(cpus={"worker": 0.9}, memory="128MiB"),
    grid=tuple(Share(cpus={"worker": 0.9}, memory=size) for size in ("128MiB", "192MiB", "256MiB", "384MiB")),
    tuning=Tuning(mode=TuningMode.ON, cpus=0.9, memory="384MiB"),
    extra="Memory is the node's slack: ours and the oracle's to use, up to 384 MiB, not the baselines'.",
)

SCENARIOS = {scenario.name: scenario for scenario in (S1, S1_MOST, S2, S2_MOST, S3, S3_SLACK, S5)}
