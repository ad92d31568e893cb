"""The jobs of the demo. Pure.

Two nodes of four GPUs. At first `starved` asks for too little CPU, and gets more, while `alpha` grows into all GPUs;
then `beta` comes, and once `alpha` has ended `beta` has them all.

Four jobs fill the nodes (2 + 2×2 + 1 + 1), so that `patient` must wait, and only `trainer` may be preempted, so that it
gives way to `urgent`. `elastic` grows into all GPUs but two as the others end, so that `guest`, which needs a whole
node, can have it only if `elastic` gives some back. Then `major` and `minor` share one GPU, and its division changes
while both run; on the other GPUs `model` answers requests, with one replica at first, and `lender` trains on all that
are left, so that `model` must borrow for a burst. At last one GPU is made slow, and `picky` gets another; earlier, the
planner would keep elastic jobs off that GPU.
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
GPUS = NODES * GPUS_PER_NODE
ELASTIC_RANKS = 6
NAMES = (
    *("starved", "alpha", "beta"),
    *("trainer", "gang", "flaky", "doomed", "patient", "urgent", "elastic", "guest", "major", "minor"),
    *("model", "lender", "picky"),
)
ANY_RANKS = frozenset({"alpha", "beta", "elastic", "lender", "model"})  # all ranks but rank 0 have any numbers
MEMORY = "256MiB"
MAJOR, MINOR = 0.7, 0.3  # of the GPU that `major` and `minor` share, at first; then the other way round
SHARING_SECONDS = 18
MODEL_REPLICAS = 3  # in the burst
LENDER_RANKS = GPUS - 2  # all GPUs but that of `major` and `minor`, and the first of `model`
SLOW_NODE, SLOW_GPU, SLOWDOWN = "node-1", 0, 2.0  # the emulated GPU that would be the first to be given away
BETA_LEAST = 3  # GPUs that `beta` gets beside `alpha`: half of them, or nearly
STARVED_CPUS = 0.2  # cores; its program could use a whole one
BURST_RATE = 45.0  # requests per second, of which one replica answers 20


def picky() -> JobSpec:
    """Needs one GPU for a moment, and any would do."""
    return spec("picky", program("primes", "--below", "100000"), gpus=1, kind=Kind.BATCH)


def starved() -> JobSpec:
    """Reports its speed, which is that of the part of a core that it gets; runs until it is cancelled."""
    made = spec("starved", program("starved"), gpus=0, kind=Kind.BATCH)
    return structs.replace(made, roles={"worker": structs.replace(made.roles["worker"], cpus=STARVED_CPUS)})


def alpha() -> JobSpec:
    """Grows into all GPUs, and ends a few seconds after it has given some of them to `beta`."""
    return _growing("alpha", "--down-to", str(GPUS - BETA_LEAST), "--linger", "6")


def beta() -> JobSpec:
    """Comes later, and ends soon after it has all GPUs."""
    return _growing("beta", "--up-to", str(GPUS), "--linger", "2")


def trainer() -> JobSpec:
    """Checkpoints every second; long enough to be preempted on the way."""
    command = program("train", "--steps", "5000", "--points", "300")
    return spec("trainer", command, gpus=2, preemptible=True, grace="10s")


def gang() -> JobSpec:
    """Trains the same network on two ranks, each with data of its own."""
    command = program("train", "--steps", "3000", "--points", "150")
    return spec("gang", command, gpus=2, replicas=2)


def flaky() -> JobSpec:
    """Fails once by itself, and is tried again after two seconds."""
    command = program("primes", "--below", "400000", "--break-first")
    return spec("flaky", command, gpus=1, kind=Kind.BATCH, retries=Retries(max=2, backoff="2s"))


def doomed() -> JobSpec:
    """Would train for hours, and is cancelled."""
    return spec("doomed", program("train", "--steps", "10000000"), gpus=1, grace="5s")


def patient() -> JobSpec:
    return spec("patient", program("primes", "--below", "400000"), gpus=2, kind=Kind.BATCH)


def urgent() -> JobSpec:
    return spec("urgent", program("primes", "--below", "400000"), gpus=2, kind=Kind.BATCH, priority=100)


def elastic() -> JobSpec:
    """Ranks join it and leave it while it runs, until it has grown and has given ranks back.

    Its pieces of work take time but no processor, which the other jobs need.
    """
    made = spec("elastic", program("elastic", "--after", str(ELASTIC_RANKS)), gpus=1, preemptible=True)
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
    """The job that shares the GPU, equally busy."""
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


def _growing(name: str, *arguments: str) -> JobSpec:
    made = spec(name, program("elastic", *arguments), gpus=1, preemptible=True)
    replicas = Replicas(min=1, want=2, max=GPUS)
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
