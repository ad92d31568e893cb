"""Jobs that are short of one thing on purpose, each under the name of what it is short of.

A label says what was done to the job, not what anybody concludes of it. Not here: gpu-bound and launch-bound, which
need a real GPU's telemetry; an emulated one would only say what it was told to.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from tests.bench.nearchus.scenarios import ALONE, RINGED, SERVED
from weft.domain.spec import JobSpec, Replicas, Role, Tuning, TuningMode


class Recipe(Struct, frozen=True, kw_only=True):
    """`rank`: who it is done to. `noise`: containers beside it that burn a core each. `egress`: kB per
    second, of `capped`.

    `uses`: about how many cores, where others may run beside it; None: it is alone.
    """

    label: str
    program: str = ALONE
    arguments: str = ""
    cpus: Mapping[str, float] = MappingProxyType({"worker": 0.9})
    replicas: Mapping[str, int] = MappingProxyType({"worker": 1})
    memory: str = "384MiB"
    rank: int = 0
    noise: int = 0
    uses: float | None = None
    egress: int | None = None
    capped: str = "worker"

    def spec(self, image: str) -> JobSpec:
        return JobSpec(
            name=self.label,
            image=image,
            command=("python3", "-m", self.program, *self.arguments.split()),
            roles={
                role: Role(
                    replicas=Replicas(want=count),
                    cpus=self.cpus[role],
                    memory=self.memory,
                    egress=f"{self.egress}KB" if self.egress and role == self.capped else None,
                )
                for role, count in self.replicas.items()
            },
            grace="1s",
            tuning=Tuning(mode=TuningMode.OFF),
        )


def burner(image: str, cores: int) -> JobSpec:
    """Noisy neighbours: so many containers that always want a core. One with many threads would get one share only."""
    command = ("python3", "-m", ALONE, "--work", "400")
    role = Role(replicas=Replicas(want=cores), cpus=1.0, memory="256MiB")
    return JobSpec(
        name="neighbour",
        image=image,
        command=command,
        roles={"worker": role},
        grace="1s",
        tuning=Tuning(mode=TuningMode.OFF),
    )


PAIR = {"worker": 2}
SERVER_AND_TWO = {"ps": 1, "worker": 2}

RECIPES = (
    # Whose quota is below what it would use.
    Recipe(label="cpu-quota-bound", arguments="--work 40", cpus={"worker": 0.3}, uses=0.3),
    Recipe(label="cpu-quota-bound", arguments="--work 120", cpus={"worker": 0.6}, uses=0.6),
    Recipe(label="cpu-quota-bound", arguments="--work 40 --threads 2", cpus={"worker": 0.8}, uses=0.8),
    Recipe(label="cpu-quota-bound", arguments="--work 60 --device-ms 4", cpus={"worker": 0.35}, uses=0.35),
    Recipe(label="cpu-quota-bound", arguments="--load-work 80 --work 40", cpus={"worker": 0.4}, uses=0.4),
    Recipe(
        label="cpu-quota-bound",
        program=SERVED,
        arguments="--width 256 --server-work 12 --worker-work 8",
        replicas=SERVER_AND_TWO,
        cpus={"ps": 0.3, "worker": 0.3},
    ),
    Recipe(
        label="cpu-quota-bound",
        program=RINGED,
        arguments="--worker-work 60",
        replicas=PAIR,
        cpus={"worker": 0.35},
    ),
    # Whose quota is enough, on a node where others want the cores as well.
    Recipe(label="cpu-contended", arguments="--work 40", cpus={"worker": 1.0}, noise=3),
    Recipe(label="cpu-contended", arguments="--work 120", cpus={"worker": 1.5}, noise=4),
    Recipe(label="cpu-contended", arguments="--work 40 --threads 2", cpus={"worker": 2.0}, noise=4),
    Recipe(label="cpu-contended", arguments="--work 60 --device-ms 4", cpus={"worker": 1.2}, noise=4),
    # Whose data or heap is larger than its memory.
    Recipe(label="memory-bound", arguments="--data-mib 160 --reads 64 --work 4", memory="128MiB"),
    Recipe(label="memory-bound", arguments="--data-mib 256 --reads 32 --work 8", memory="192MiB"),
    Recipe(label="memory-bound", arguments="--data-mib 120 --reads 32 --work 20 --held-mib 40", memory="128MiB"),
    Recipe(label="memory-bound", arguments="--held-mib 224 --work 40", cpus={"worker": 1.2}, memory="256MiB"),
    # Who waits for the disk, with memory to spare: what it reads comes from there each time, what it writes is synced.
    Recipe(label="io-bound", arguments="--data-mib 96 --reads 64 --direct --work 4", cpus={"worker": 1.5}),
    Recipe(label="io-bound", arguments="--data-mib 96 --reads 128 --direct --work 10", cpus={"worker": 1.5}),
    Recipe(label="io-bound", arguments="--writes 8 --work 4", cpus={"worker": 1.0}),
    Recipe(label="io-bound", arguments="--writes 32 --work 10", cpus={"worker": 1.0}),
    # Who may send less than it has to.
    Recipe(
        label="network-bound",
        program=SERVED,
        arguments="--width 256 --worker-work 20",
        replicas=SERVER_AND_TWO,
        cpus={"ps": 0.3, "worker": 0.6},
        egress=2500,
        capped="ps",
    ),
    Recipe(
        label="network-bound",
        program=SERVED,
        arguments="--width 384 --worker-work 4",
        replicas={"ps": 1, "worker": 1},
        cpus={"ps": 0.5, "worker": 0.5},
        egress=5000,
        capped="ps",
    ),
    Recipe(
        label="network-bound",
        program=RINGED,
        arguments="--width 256 --worker-work 10",
        replicas=PAIR,
        cpus={"worker": 0.6},
        egress=1250,
    ),
    # Whose data come late from far away, while it has CPU for them.
    Recipe(label="input-bound", arguments="--load-ms 15 --work 60", cpus={"worker": 0.6}, uses=0.4),
    Recipe(label="input-bound", arguments="--load-ms 40 --work 120", cpus={"worker": 0.5}, uses=0.4),
    Recipe(label="input-bound", arguments="--load-ms 8 --work 40", cpus={"worker": 0.7}, uses=0.4),
    # One of a gang, which works longer for the same and is short of nothing.
    Recipe(
        label="straggler",
        program=RINGED,
        arguments="--worker-work 20 --slow-rank 1 --slow-factor 2 --pause-ms 4",
        replicas={"worker": 3},
        cpus={"worker": 0.6},
        rank=1,
    ),
    Recipe(
        label="straggler",
        program=RINGED,
        arguments="--worker-work 24 --slow-rank 0 --slow-factor 2 --pause-ms 4",
        replicas=PAIR,
        cpus={"worker": 0.9},
        rank=0,
    ),
    # Who has far more than it uses: an emulated device does most of the work.
    Recipe(label="over-provisioned", arguments="--device-ms 20 --work 20", cpus={"worker": 1.5}, uses=0.15),
    Recipe(label="over-provisioned", arguments="--device-ms 40 --work 60", cpus={"worker": 1.0}, uses=0.2),
    Recipe(label="over-provisioned", arguments="--device-ms 10 --work 10", cpus={"worker": 2.0}, uses=0.15),
    # Who has what it needs and uses most of it.
    Recipe(label="healthy", arguments="--device-ms 8 --work 100", cpus={"worker": 0.95}),
    Recipe(label="healthy", arguments="--device-ms 12 --work 80", cpus={"worker": 0.75}, uses=0.5),
    Recipe(label="healthy", arguments="--device-ms 3 --work 60", cpus={"worker": 1.0}),
    Recipe(label="healthy", arguments="--work 60", cpus={"worker": 1.2}),
)
