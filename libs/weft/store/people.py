"""People who signed in with the identity provider, as the gateway stores them."""

import hashlib
from typing import Protocol

from msgspec import Struct

from weft.domain.tenants import Role
from weft.store.audit import Actor
from weft.store.sign_ins import SignIn


class Person(Struct, frozen=True, kw_only=True):
    """A person as the identity provider describes one, with the grant of a group of theirs."""

    issuer: str
    subject: str
    name: str
    tenant: str
    role: Role

    @property
    def id(self) -> str:
        return person_id(self.issuer, self.subject)


class PersonKept(Struct, frozen=True, kw_only=True):
    """A stored person. `disabled_at`: since when an administrator keeps them out; times in seconds since 1970."""

    id: str
    name: str
    tenant: str
    role: str
    signed_in_at: float
    disabled_at: float | None = None


def person_id(issuer: str, subject: str) -> str:
    return f"u-{hashlib.sha256(f'{issuer} {subject}'.encode()).hexdigest()[:12]}"


class PeopleStore(Protocol):
    async def sign_person_in(
        self,
        person: Person,
        code_hash: bytes,
        *,
        challenge: str,
        at: float,
        expires_at: float,
        session_ends_at: float,
        most: int,
        actor: Actor,
    ) -> SignIn | None:
        """Store the person as they are now, and a one-time code for their session. None: an administrator keeps them
        out, or they have `most` codes and sessions in force."""

    async def end_sessions_of(self, person: str, *, at: float) -> int:
        """End a person's sessions and codes; returns how many."""

    async def people(self, *, tenant: str | None, limit: int) -> list[PersonKept]:
        """People, by name; of one tenant or of all."""

    async def disable_person(self, person: str, *, at: float | None) -> str | None:
        """Keep a person out from now on; None as the time: let them in again. Returns their tenant; None: unknown."""
