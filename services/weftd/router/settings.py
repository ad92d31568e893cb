"""The router's settings: ROUTER_… in the environment, and WEFT_… for what all services share."""

import re
from typing import Annotated

from msgspec import Meta, Struct

from weft.domain.spec import TOKEN_PATTERN
from weft.service.config import Connections

DOMAIN = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class RouterSettings(Struct, frozen=True, kw_only=True):
    """`domain`: a service is also at `<name>.<tenant>.<domain>`, as at `<name>.<tenant>.localhost`. `home`: folder for
    sockets, which only this user may enter; `caddy`: path of the program (default: beside Python). With `tls_cert_file`
    and `tls_key_file` the router serves only HTTPS.
    """

    connections: Connections = Connections()
    name: str = ""  # unique name among all routers (default: a random one)
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8480
    domain: str = ""
    home: str = ""
    caddy: str = ""
    waiting_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 20_000  # waiting requests of all services together
    drain_seconds: Annotated[float, Meta(ge=0, le=3600)] = 10.0  # time for requests to end when the router stops
    body_seconds_max: Annotated[float, Meta(ge=1, le=86400)] = 3600.0  # from the headers of a request with a body
    model_body_bytes_max: Annotated[int, Meta(ge=1024, le=1 << 30)] = (
        32 << 20
    )  # bytes read of a body to find its `model`
    model_bodies_bytes_max: Annotated[int, Meta(ge=1024, le=1 << 40)] = 256 << 20  # bytes of all such bodies
    pg_connections: Annotated[int, Meta(ge=1)] = 2
    tls_cert_file: str = ""
    tls_key_file: str = ""
    admin_port: int | None = None
    admin_host: str = "127.0.0.1"

    def __post_init__(self) -> None:
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("ROUTER_TLS_CERT_FILE and ROUTER_TLS_KEY_FILE: a certificate and its key come together")
        if self.domain and not DOMAIN.fullmatch(self.domain):
            raise ValueError("ROUTER_DOMAIN: expected a domain in small letters, such as services.example.org")
        if self.name and not re.fullmatch(TOKEN_PATTERN, self.name):
            raise ValueError("ROUTER_NAME: expected lower-case letters, digits and '-', at most 63")

    @property
    def domains(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name in (self.domain, "localhost") if name))
