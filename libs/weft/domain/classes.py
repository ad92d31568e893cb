"""Classes of jobs by how much the speed of their GPU matters to them (PAL, SC'24), named by what holds each back."""

from collections.abc import Mapping
from hashlib import blake2b

import msgspec

from weft.domain.spec import JobSpec

JOB_CLASSES = ("compute", "mixed", "memory")
"""The most sensitive first: a job that is bound by computing feels every difference between GPUs."""

CLASS_LABEL = "weft/class"
WORKLOAD_LABEL = "weft/workload"
BENCHMARK_LABEL = "weft/benchmark"
NOTHING_LEARNT: Mapping[str, str] = {}


def class_of(spec: JobSpec, learnt: Mapping[str, str] = NOTHING_LEARNT) -> str:
    """The class of the job's label, else the one `learnt` for its workload. Without either, or with a label that is no
    class, the job counts as most sensitive (PAL's rule)."""
    said = spec.labels.get(CLASS_LABEL, "")
    if not said and learnt:
        said = learnt.get(workload_of(spec), "")
    return said if said in JOB_CLASSES else JOB_CLASSES[0]


def unknown_class(spec: JobSpec) -> str:
    """The label's value if it is no class; else empty."""
    said = spec.labels.get(CLASS_LABEL, "")
    return "" if said in JOB_CLASSES else said


def workload_of(spec: JobSpec) -> str:
    """The workload of a job: jobs of one image, folder and command with as many GPUs a rank, or of one label."""
    if said := spec.labels.get(WORKLOAD_LABEL, ""):
        return said
    roles = {
        name: (role.image or spec.image, role.command or spec.command, role.gpus) for name, role in spec.roles.items()
    }
    where = (roles, spec.workdir) if spec.workdir else roles  # the same command in another folder is another program
    return blake2b(msgspec.json.encode(where), digest_size=8).hexdigest()


def settings_of(spec: JobSpec, role: str) -> str:
    """The variables of a role: ranks of one workload with other settings do other work in a step."""
    of_role = spec.roles.get(role)
    env = {**spec.env, **(of_role.env if of_role is not None else {})}
    return blake2b(msgspec.json.encode(sorted(env.items())), digest_size=4).hexdigest() if env else ""


def is_benchmark(spec: JobSpec) -> bool:
    """True if the job measures a GPU and does no user's work."""
    return spec.labels.get(BENCHMARK_LABEL) == "1"
