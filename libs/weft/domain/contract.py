"""The variables that Weft sets for a program, by their meaning, and which of them a job may set itself. Pure.

docs/contract.md states the contract; `services/weftd/executor/machine/environment.py` gives the values.
"""

from msgspec import Struct

from weft.domain.spec import JobSpec, Role

WEFT_PREFIX = "WEFT_"
ISOLATING = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})
"""A run could reach the GPUs of others if its job set them."""

RANK_NAMES = frozenset({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"})
"""They state that this process is one rank. A program that finds them starts no workers of its own."""

MEETING_NAMES = frozenset({"NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT", "TF_CONFIG"})
"""They state where the replicas of a job meet, and which of them this one is."""

TORCHRUN_PREFIX = "PET_"

THREAD_NAMES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
DEFAULT_NAMES = frozenset(
    {"PYTHONUNBUFFERED", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", *THREAD_NAMES}
)
"""Values that suit most programs. A job or an image that sets one needs no note."""


class OwnValues(Struct, frozen=True, kw_only=True):
    """The names that both a job and Weft set, in alphabetical order: those for which the job's value is used, and
    those for which Weft's value is used."""

    of_job: tuple[str, ...] = ()
    of_weft: tuple[str, ...] = ()


def is_wefts_alone(name: str) -> bool:
    """True if Weft's value of this variable replaces the job's own."""
    return name.startswith(WEFT_PREFIX) or name in ISOLATING


def own_values(spec: JobSpec) -> OwnValues:
    """The variables of the job for which a run of it has a value of Weft as well."""
    of_job: set[str] = set()
    of_weft: set[str] = set()
    for role in spec.roles.values():
        for name in {*spec.env, *role.env, *spec.secrets, *spec.secret_files}:
            if is_wefts_alone(name):
                of_weft.add(name)
            elif _is_set(name, spec, role):
                of_job.add(name)
    return OwnValues(of_job=tuple(sorted(of_job)), of_weft=tuple(sorted(of_weft)))


def _is_set(name: str, spec: JobSpec, role: Role) -> bool:
    """True if Weft sets a variable that a job may set for the replicas of this role."""
    if name == "PORT":
        return spec.service is not None
    several = not spec.is_service and sum(each.replicas.most for each in spec.roles.values()) > 1
    if name in RANK_NAMES:
        return several and role.gpus <= 1
    return several and (name in MEETING_NAMES or name.startswith(TORCHRUN_PREFIX))
