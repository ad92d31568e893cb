"""What the servers of one NATS cluster share: the password with which each joins it, and where the others are."""

import re
from collections.abc import Sequence

from weft.credentials.nats_users import HEAD

ROUTE_PORT = 6222
ROUTE_USER = "route"
ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)(:(?P<port>[0-9]{1,5}))?")


def route_address(server: str) -> str:
    """HOST:PORT of HOST or HOST:PORT. Raises ValueError."""
    found = ADDRESS.fullmatch(server)
    port = int(found["port"] or ROUTE_PORT) if found else 0
    if found is None or not 0 < port < 65536:
        raise ValueError(f"not the address of a NATS server: {server!r:.80}; HOST or HOST:PORT is")
    return f"{found['host']}:{port}"


def render_routes(addresses: Sequence[str], password: str) -> str:
    """The part of a server's `cluster` block that is secret. The password is safe in a URL."""
    routes = "".join(f'  "nats-route://{ROUTE_USER}:{password}@{address}"\n' for address in addresses)
    return f'{HEAD}authorization {{ user: {ROUTE_USER}, password: "{password}", timeout: 5 }}\nroutes = [\n{routes}]\n'
