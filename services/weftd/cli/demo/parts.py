"""The jobs of the demo. Pure.

Two nodes of four GPUs: the first four jobs fill them (2 + 2×2 + 1 + 1), so that `patient` must wait, and only `trainer`
may be preempted, so that it gives way to `urgent`. `elastic` grows into all GPUs but two as the others end, so that
`guest`, which needs a whole node, can have it only if `elastic` gives some back. Then `major` and `minor` share one
GPU, whose time is divided anew while both run; on the other GPUs `model` answers requests, with one replica at first,
and `lender` trains on all that are left, so that `model` must borrow for a burst.
"""

import sys
from importlib.resources import files

from msgspec import structs

from weft.domain.spec import (
    GpuShare,
    JobSpec,
    Kind,
    Objective,
    Replicas,
    ResizeHow,
    ResizeRules,
    Retries,
    Role,
    ServiceRules,
)

NODES = 2
GPUS_PER_NODE = 4
ELASTIC_RANKS = 6
MEMORY = "256MiB"
MAJOR, MINOR = 0.7, 0.3  # of the GPU that `major` and `minor` share, at first; then the other way round
SHARING_SECONDS = 24
MODEL_REPLICAS = 3  # in the burst
LENDER_RANKS = NODES * GPUS_PER_NODE - 2  # all GPUs but that of `major` and `minor`, and the first of `model`
BURST_RATE = 45.0  # requests per second, of which one replica answers 20


def trainer() -> JobSpec:
    """Checkpoints every second; long enough to be preempted on the way."""
    command = program("train", "--steps", "14000", "--points", "300")
    return spec("trainer", command, gpus=2, preemptible=True, grace="10s")


def gang() -> JobSpec:
    """Trains the same network on two ranks, each with data of its own."""
    command = program("train", "--steps", "8000", "--points", "150")
    return spec("gang", command, gpus=2, replicas=2)


def flaky() -> JobSpec:
    """Fails once by itself, and is tried again after two seconds."""
    command = program("primes", "--below", "400000", "--break-first")
    return spec("flaky", command, gpus=1, kind=Kind.BATCH, retries=Retries(max=2, backoff="2s"))


def doomed() -> JobSpec:
    """Would train for hours, and is cancelled."""
    return spec("doomed", program("train", "--steps", "10000000"), gpus=1, grace="5s")


def patient() -> JobSpec:
    return spec("patient", program("primes", "--below", "1000000"), gpus=2, kind=Kind.BATCH)


def urgent() -> JobSpec:
    return spec("urgent", program("primes", "--below", "1000000"), gpus=2, kind=Kind.BATCH, priority=100)


def elastic() -> JobSpec:
    """Ranks join it and leave it while it runs, until it has grown and has given ranks back.

    Its pieces of work take time but no processor, which the other jobs need.
    """
    made = spec("elastic", program("elastic"), gpus=1, preemptible=True)
    replicas = Replicas(min=1, want=ELASTIC_RANKS, max=ELASTIC_RANKS)
    roles = {"worker": structs.replace(made.roles["worker"], replicas=replicas)}
    return structs.replace(made, roles=roles, resize=ResizeRules(how=ResizeHow.LIVE))


def guest() -> JobSpec:
    """Needs all GPUs of a node, and comes before `elastic`."""
    command = program("primes", "--below", "400000")
    return spec("guest", command, gpus=GPUS_PER_NODE, kind=Kind.BATCH, priority=50)


def major() -> JobSpec:
    """Keeps its GPU busy with kernels of the emulated driver, all the time that it is given."""
    return _sharing("major", MAJOR)


def minor() -> JobSpec:
    """As busy, and beside it."""
    return _sharing("minor", MINOR)


def model() -> JobSpec:
    """Serves an emulated model: an answer takes 0.1 s, and two are made at once by each replica."""
    made = spec("model", program("model"), gpus=1, kind=Kind.INFERENCE)
    knobs = {"SERVICE_MS": "100", "SLOTS": "2", "LOAD_SECONDS": "0.5"}
    replicas = Replicas(min=1, want=1, max=MODEL_REPLICAS)
    roles = {"worker": structs.replace(made.roles["worker"], replicas=replicas)}
    service = ServiceRules(ready="/healthz", concurrency=2, queue=1000, drain="3s", start="60s")
    promise = Objective(latency="400ms", percentile=90.0, rate=BURST_RATE)
    return structs.replace(made, roles=roles, env={**made.env, **knobs}, service=service, objective=promise)


def lender() -> JobSpec:
    """Trains on all GPUs that are left, until it has lent some and goes on with the others."""
    made = spec("lender", program("elastic"), gpus=1, preemptible=True)
    replicas = Replicas(min=1, want=LENDER_RANKS, max=LENDER_RANKS)
    roles = {"worker": structs.replace(made.roles["worker"], replicas=replicas)}
    return structs.replace(made, roles=roles, resize=ResizeRules(how=ResizeHow.LIVE))


def _sharing(name: str, request: float) -> JobSpec:
    made = spec(name, program("kernels", "--seconds", str(SHARING_SECONDS)), gpus=0, kind=Kind.BATCH)
    share = GpuShare(request=request, memory="4GiB")
    return structs.replace(made, roles={"worker": structs.replace(made.roles["worker"], share=share)})


def spec(
    name: str,
    command: tuple[str, ...],
    *,
    gpus: int,
    kind: Kind = Kind.TRAINING,
    replicas: int = 1,
    priority: int = 0,
    preemptible: bool = False,
    grace: str = "5s",
    retries: Retries | None = None,
) -> JobSpec:
    return JobSpec(
        name=name,
        kind=kind,
        command=command,
        roles={"worker": Role(replicas=Replicas(want=replicas), gpus=gpus, memory=MEMORY)},
        priority=priority,
        preemptible=preemptible,
        grace=grace,
        retries=retries or Retries(),
    )


def program(name: str, *arguments: str) -> tuple[str, ...]:
    """The command of a program that comes with Weft, run by this Python."""
    return (sys.executable, str(files("weftd.cli.demo.programs").joinpath(f"{name}.py")), *arguments)
