"""The HTTP interface's people: the identity provider, and who signed in with it."""

from msgspec import Struct

from weft.messages.http import Seconds


class ProviderView(Struct, frozen=True, kw_only=True):
    """The identity provider; `issuer` is empty where there is none."""

    issuer: str = ""


class DeviceView(Struct, frozen=True, kw_only=True):
    """The device flow (RFC 8628): the person opens `verification_uri` in any browser and confirms `user_code`; a
    program sends `POST /v1/sessions` with `device_code` each `interval` seconds."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: float
    interval: float = 5.0


class PersonView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    tenant: str
    role: str
    signed_in_at: Seconds
    disabled_at: Seconds | None = None


class PeopleView(Struct, frozen=True, kw_only=True):
    """By name."""

    people: tuple[PersonView, ...]


class PersonWanted(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    disabled: bool
