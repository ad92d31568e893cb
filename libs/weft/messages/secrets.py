"""Secrets over HTTP: a value goes in, and no request shows it again."""

from typing import Annotated

from msgspec import Meta, Struct

from weft.messages.http import Seconds

VALUE_BYTES_MAX = 32768


class SecretWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    value: Annotated[str, Meta(min_length=1, max_length=VALUE_BYTES_MAX)]


class SecretView(Struct, frozen=True, kw_only=True):
    name: str
    created_at: Seconds
    updated_at: Seconds


class SecretsView(Struct, frozen=True, kw_only=True):
    secrets: tuple[SecretView, ...]


class SecretDeleted(Struct, frozen=True, kw_only=True):
    deleted: str
