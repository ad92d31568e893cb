"""Secrets, in memory."""

from collections.abc import Iterable

from msgspec import structs

from tests.support.doubles.store.times import micro
from weft.store.secrets import SecretKept


class MemorySecrets:
    def __init__(self) -> None:
        super().__init__()
        self._secrets: dict[tuple[str, str], tuple[SecretKept, str]] = {}

    async def set_secret(self, tenant: str, name: str, value: str, *, at: float, most: int) -> bool:
        if (before := self._secrets.get((tenant, name))) is not None:
            self._secrets[tenant, name] = (structs.replace(before[0], updated_at=micro(at)), value)
            return True
        if sum(owner == tenant for owner, _ in self._secrets) >= most:
            return False
        self._secrets[tenant, name] = (SecretKept(name=name, created_at=micro(at), updated_at=micro(at)), value)
        return True

    async def secrets(self, tenant: str) -> list[SecretKept]:
        return [kept for (owner, _), (kept, _) in sorted(self._secrets.items()) if owner == tenant]

    async def secret_values(self, tenant: str, names: Iterable[str]) -> dict[str, str]:
        wanted = set(names)
        return {
            name: value for (owner, name), (_, value) in self._secrets.items() if owner == tenant and name in wanted
        }

    async def delete_secret(self, tenant: str, name: str) -> bool:
        return self._secrets.pop((tenant, name), None) is not None
