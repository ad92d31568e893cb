"""What would happen to the jobs of a pool if something were different: the question and the answer of the API."""

from typing import Annotated, Any

from msgspec import Meta, Struct

ADDED_MAX, NAMED_MAX, SUBMITTED_MAX = 1000, 1000, 20
DAY_SECONDS = 86400
AHEAD_SECONDS_MAX = 366 * DAY_SECONDS


class WhatIfWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What would be different; what is not given stays as it is. `submit`: specifications of jobs that are not there,
    each as an object, or as a text in YAML; `add_nodes`: so many more nodes, like those of which there are most;
    `seconds_max`: how far to look ahead."""

    order: str = ""
    placement: str = ""
    backfill: str = ""
    add_nodes: Annotated[int, Meta(ge=0, le=ADDED_MAX)] = 0
    drain: Annotated[tuple[str, ...], Meta(max_length=NAMED_MAX)] = ()
    submit: Annotated[tuple[dict[str, Any] | str, ...], Meta(max_length=SUBMITTED_MAX)] = ()
    seconds_max: Annotated[int, Meta(ge=60, le=AHEAD_SECONDS_MAX)] = 30 * DAY_SECONDS
    pool: Annotated[str, Meta(pattern=r"^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)?$(?!\n)")] = ""


class WhatIfSide(Struct, frozen=True, kw_only=True):
    """One of the two that are compared, as a sentence; `policy` as its order, placement and backfill."""

    sentence: str
    policy: str
    gpus: int


class WhatIfJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times are seconds since 1970; None: not within the time that was looked at, or of a job that runs already. Of
    another tenant's job only the id is told. `gains_seconds`: how much sooner it ends, or starts where no end is in
    sight; below 0: later. `basis`: by what it is known how long the job lasts."""

    id: str
    name: str = ""
    tenant: str = ""
    starts_base: float | None = None
    starts_other: float | None = None
    ends_base: float | None = None
    ends_other: float | None = None
    gains_seconds: float | None = None
    basis: str = ""


class WhatIfView(Struct, frozen=True, kw_only=True):
    """`jobs`: those of which most changes first, and `jobs_left_out` more; `gained`, `lost`: how many of all end sooner
    or later; `waited_…`: for how many more seconds the jobs that wait now will, in the mean. `assumed`: by what it is
    known how long jobs last, and of how many."""

    at: float
    base: WhatIfSide
    other: WhatIfSide
    jobs: tuple[WhatIfJob, ...]
    jobs_left_out: int
    gained: int
    lost: int
    waiting: int
    waited_base: float
    waited_other: float
    assumed: dict[str, int]
    sentence: str
