"""What the HTTP interface says of quotas. Amounts are GPUs, in whole thousandths."""

from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.quotas import GPUS_MAX, MODELS_MAX, WEIGHT_MAX
from weft.domain.spec import TOKEN_PATTERN

Gpus = Annotated[float, Meta(ge=0, le=GPUS_MAX)]
MODEL_PATTERN = r"^[^\x00-\x1f\x7f]{1,100}$(?!\n)"
Models = Annotated[dict[Annotated[str, Meta(pattern=MODEL_PATTERN)], Gpus], Meta(max_length=MODELS_MAX)]
Name = Annotated[str, Meta(pattern=TOKEN_PATTERN)]


class QuotaWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole quota: what is left out has its default. Null: no guarantee, or no limit."""

    pool: Name = "default"
    group: Annotated[str, Meta(max_length=63, description="Group to which it belongs; empty: no group.")] = ""
    is_group: bool = False
    guaranteed: Gpus | None = None
    guaranteed_models: Models = {}
    limit: Gpus | None = None
    limit_models: Models = {}
    weight: Annotated[int, Meta(ge=0, le=WEIGHT_MAX)] = 1


class QuotaView(Struct, frozen=True, kw_only=True):
    """A quota as it was set, and what its tenant or group holds now."""

    name: str
    pool: str
    group: str
    is_group: bool
    guaranteed: float | None
    guaranteed_models: dict[str, float]
    limit: float | None
    limit_models: dict[str, float]
    weight: int
    holds: float
    in_force: Annotated[float, Meta(description="The guarantee, at least the sum of those of a group's members.")]
    borrows: Annotated[float, Meta(description="GPUs that it holds beyond its guarantee.")]


class QuotasView(Struct, frozen=True, kw_only=True):
    """By name."""

    quotas: tuple[QuotaView, ...]
    pool: str
    gpus: Annotated[float, Meta(description="All GPUs of the pool.")]


class QuotaDeleted(Struct, frozen=True, kw_only=True):
    deleted: str
