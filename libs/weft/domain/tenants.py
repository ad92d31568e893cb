"""A tenant's allowance: how many jobs, how large, how important, and whether they may refuse preemption. The roles of
its people."""

from enum import StrEnum

import msgspec
from msgspec import UNSET, Struct, UnsetType

from weft.domain import idling
from weft.domain.spec import JobSpec


def actor_text(tenant: str, person: str) -> str:
    """The person of the tenant who did something; the tenant where a token did."""
    return f"{person} of {tenant}" if person else tenant


def tenant_of_actor(text: str) -> str:
    """The tenant in a text of `actor_text`: no tenant's name has a space."""
    return text.rpartition(" of ")[2]


class Role(StrEnum):
    """The rights of a person. A token has all rights of its tenant, or those of an administrator."""

    VIEWER = "viewer"  # reads what its tenant may read
    USER = "user"  # submits jobs and acts on its tenant's
    TENANT_ADMIN = "tenant-admin"  # webhooks, sessions and the audit log of its tenant, too
    OPERATOR = "operator"  # as a tenant-admin; drains and returns nodes, too
    ADMIN = "admin"  # everything of every tenant


class Allowance(Struct, frozen=True, kw_only=True):
    """The limits in force for a tenant. Jobs count from their submission to their end, whether they wait or run."""

    jobs_open_max: int = 20_000
    spec_bytes_max: int = 64 << 20  # of the specifications and revisions of those jobs, and of open requests, as stored
    priority_max: int = 0
    may_be_unpreemptible: bool = False
    idle_seconds_max: int = 0  # for which a job may hold GPUs that it does not use; 0: as long as it asks for


class AllowanceChosen(Struct, frozen=True, kw_only=True):
    """An administrator's choice for one tenant; None: the default."""

    jobs_open_max: int | None = None
    spec_bytes_max: int | None = None
    priority_max: int | None = None
    may_be_unpreemptible: bool | None = None
    idle_seconds_max: int | None = None

    def over(self, default: Allowance) -> Allowance:
        """The current allowance."""
        chosen = {name: value for name in NAMES if (value := getattr(self, name)) is not None}
        return msgspec.structs.replace(default, **chosen)


class AllowanceChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits to change; None: back to the default."""

    jobs_open_max: int | UnsetType | None = UNSET
    spec_bytes_max: int | UnsetType | None = UNSET
    priority_max: int | UnsetType | None = UNSET
    may_be_unpreemptible: bool | UnsetType | None = UNSET
    idle_seconds_max: int | UnsetType | None = UNSET


class Use(Struct, frozen=True, kw_only=True):
    """A tenant's open jobs, which are not over, and the bytes of their specifications and revisions, and of requests
    that wait for the scheduler."""

    jobs: int = 0
    spec_bytes: int = 0


NAMES = Allowance.__struct_fields__


def beyond(spec: JobSpec, allowance: Allowance, *, priority: int | None = None) -> tuple[str, str] | None:
    """The field, and the reason, for which a tenant may not have this job; None: it may."""
    if (priority := spec.priority if priority is None else priority) > allowance.priority_max:
        return "priority", f"{priority} is more than this tenant's maximum of {allowance.priority_max}"
    if not spec.preemptible and not allowance.may_be_unpreemptible:
        return "preemptible", "this tenant's jobs must be preemptible; an administrator can allow exceptions"
    if (reason := idling.refusal(spec, allowance.idle_seconds_max)) is not None:
        return "idle_stop", reason
    return None


def full(use: Use, allowance: Allowance, *, spec_bytes: int, jobs: int = 1) -> str | None:
    """The limit that so many more jobs, of that size together, would break, in words; None: there is room."""
    if use.jobs + jobs > allowance.jobs_open_max:
        more = f", and these are {jobs} more" if jobs > 1 else ""
        return f"jobs_open_max: {use.jobs} jobs of this tenant wait or run, of at most {allowance.jobs_open_max}{more}"
    if use.spec_bytes + spec_bytes > allowance.spec_bytes_max:
        return (
            f"spec_bytes_max: the specifications of this tenant's jobs that wait or run have {use.spec_bytes} bytes,"
            f" this one has {spec_bytes}, and together they may have {allowance.spec_bytes_max}"
        )
    return None


def too_large(use: Use, allowance: Allowance, *, asked_bytes: int) -> str | None:
    """The limit that a request of that size about a job would break, in words; None: there is room."""
    if use.spec_bytes + asked_bytes <= allowance.spec_bytes_max:
        return None
    return (
        f"spec_bytes_max: the jobs of this tenant that wait or run, with their revisions and the requests that are not"
        f" done yet, have {use.spec_bytes} bytes, this request would add {asked_bytes}, and together they may have"
        f" {allowance.spec_bytes_max}"
    )
