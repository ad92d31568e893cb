"""How long a job may hold GPUs without using them: `idle_stop` of its specification, within the bound of its tenant."""

from msgspec import structs

from weft.domain.quantity import duration_seconds, duration_text
from weft.domain.spec import IDLE_NEVER, JobSpec, Kind

NOTEBOOK_SECONDS = 7200.0  # for a notebook that says nothing
LEAST_SECONDS = 10.0
WARNED_PART, WARNED_SECONDS_MAX = 0.25, 900.0  # a job is warned so long before it is stopped
IDLE_USE_MAX = 0.05  # a GPU that is used less than this counts as unused


def idle_seconds_max(spec: JobSpec) -> float | None:
    """The seconds after which a job whose GPUs are all unused is stopped; None: never."""
    if spec.idle_stop is None:
        return NOTEBOOK_SECONDS if spec.kind is Kind.NOTEBOOK and _holds_gpus(spec) else None
    return duration_seconds(spec.idle_stop) if spec.idle_stop != IDLE_NEVER and _holds_gpus(spec) else None


def warned_seconds(limit: float) -> float:
    """The seconds between the warning and the stop."""
    return min(limit * WARNED_PART, WARNED_SECONDS_MAX)


def bounded(spec: JobSpec, most: int) -> JobSpec:
    """The specification with the bound of its tenant, in seconds, if it says nothing itself; 0: there is none."""
    if not most or spec.idle_stop is not None or spec.kind is Kind.INFERENCE or not _holds_gpus(spec):
        return spec
    own = idle_seconds_max(spec)
    return spec if own is not None and own <= most else structs.replace(spec, idle_stop=f"{most}s")


def refusal(spec: JobSpec, most: int) -> str | None:
    """The reason why a tenant with this bound, in seconds, may not have such a job; None: it may."""
    if not most or spec.idle_stop is None or not _holds_gpus(spec):
        return None
    if spec.idle_stop != IDLE_NEVER and duration_seconds(spec.idle_stop) <= most:
        return None
    return f"{spec.idle_stop} is longer than the {duration_text(most)} that this tenant's jobs may hold unused GPUs"


def _holds_gpus(spec: JobSpec) -> bool:
    return any(role.gpus or role.share is not None for role in spec.roles.values())
