"""Secrets on a real Postgres."""

from collections.abc import Iterable

from weft.store.asking import Asking
from weft.store.secrets import SecretKept


class PostgresSecrets:
    """What `SecretStore` promises."""

    asking: Asking

    async def set_secret(self, tenant: str, name: str, value: str, *, at: float, most: int) -> bool:
        return await self.asking.row("set_secret", tenant, name, value, at, most) is not None

    async def secrets(self, tenant: str) -> list[SecretKept]:
        return [SecretKept(**dict(row)) for row in await self.asking.rows("secrets", tenant)]

    async def secret_values(self, tenant: str, names: Iterable[str]) -> dict[str, str]:
        rows = await self.asking.rows("secret_values", tenant, list(names))
        return {row["name"]: row["value"] for row in rows}

    async def delete_secret(self, tenant: str, name: str) -> bool:
        return await self.asking.row("delete_secret", tenant, name) is not None
