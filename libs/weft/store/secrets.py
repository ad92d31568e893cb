"""What a gateway stores of tenants' secrets."""

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct


class SecretKept(Struct, frozen=True, kw_only=True):
    """A secret without its value; times in seconds since 1970. docs/secrets.md."""

    name: str
    created_at: float
    updated_at: float


class SecretStore(Protocol):
    async def set_secret(self, tenant: str, name: str, value: str, *, at: float, most: int) -> bool:
        """Store or replace one. False: nothing was stored, because the tenant has as many others as it may."""

    async def secrets(self, tenant: str) -> list[SecretKept]:
        """A tenant's secrets, by name."""

    async def secret_values(self, tenant: str, names: Iterable[str]) -> dict[str, str]:
        """The values of those that are stored, by name."""

    async def delete_secret(self, tenant: str, name: str) -> bool:
        """False: there was none."""
