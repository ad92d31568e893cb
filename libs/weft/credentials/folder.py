"""A folder of secrets, made once and kept: provisioning again adds what is missing and changes nothing else."""

import fcntl
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from weft.credentials.permissions import Permissions, inbox_prefix, permissions_by_user

POSTGRES_ROLES = ("owner", "gateway", "scheduler", "scorer", "reallocator", "router")
SECRET_BYTES = 32
ROUTE_PORT = 6222
ROUTE_USER = "route"
ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?)(:(?P<port>[0-9]{1,5}))?")
PORTABLE = re.compile(r"admin-token|scorer-token|nats-route|nats/[a-z0-9][a-z0-9-]{0,79}")
HEAD = "# Written by weft from the folder it lies in; changes made here are lost.\n"


class CredentialsError(Exception):
    """A secret that should be there is missing, empty or unreadable."""


class Credentials(msgspec.Struct, frozen=True):
    folder: Path

    @property
    def admin_token_file(self) -> Path:
        return self.folder / "admin-token"

    @property
    def scorer_token_file(self) -> Path:
        """The token with which the scorer submits benchmarks."""
        return self.folder / "scorer-token"

    @property
    def nats_users_file(self) -> Path:
        return self.folder / "nats-users.conf"

    @property
    def nats_routes_file(self) -> Path:
        """Which servers are one NATS cluster, and the password with which each joins it."""
        return self.folder / "nats-routes.conf"

    def nats_password_file(self, user: str) -> Path:
        return self.folder / "nats" / user

    def postgres_password_file(self, role: str) -> Path:
        return self.folder / "postgres" / role

    def admin_token(self) -> str:
        return _read(self.admin_token_file)

    def nats_password(self, user: str) -> str:
        return _read(self.nats_password_file(user))

    def postgres_password(self, role: str) -> str:
        return _read(self.postgres_password_file(role))

    @staticmethod
    def is_portable(name: str) -> bool:
        """Return True if the secret belongs to the cluster, not to one server as the passwords of Postgres do."""
        return PORTABLE.fullmatch(name) is not None

    def portable(self) -> dict[str, bytes]:
        """The secrets that another folder needs for the same cluster: tokens, and the passwords of NATS. By name."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        named = {path.relative_to(self.folder).as_posix(): path for path in found}
        return {name: path.read_bytes() for name, path in named.items() if self.is_portable(name)}

    def nodes(self) -> list[str]:
        """The nodes that have credentials."""
        return sorted(path.name.removeprefix("executor-") for path in (self.folder / "nats").glob("executor-*"))


def provision(
    folder: Path, *, nodes: Sequence[str], nats_servers: Sequence[str] = (), mode: int = 0o600
) -> Credentials:
    """Make the missing secrets; nodes named earlier stay. A `mode` of 0o644 lets a container's user read the files.

    `nats_servers`: HOST or HOST:PORT of the routes of each server of a NATS cluster; none: what was named earlier
    stays. A running NATS server knows new nodes once it has reloaded its configuration.
    """
    permissions_by_user(nodes)  # A bad node id or address is refused before anything is written.
    routes = [route_address(server) for server in nats_servers]
    credentials = Credentials(folder)
    with _alone(folder, mode):
        for token in (credentials.admin_token_file, credentials.scorer_token_file):
            _keep_or_make(token, mode, prefix="weft_")
        for role in POSTGRES_ROLES:
            _keep_or_make(credentials.postgres_password_file(role), mode)
        permissions = permissions_by_user([*credentials.nodes(), *nodes])
        for user in permissions:
            _keep_or_make(credentials.nats_password_file(user), mode)
        passwords = {user: credentials.nats_password(user) for user in permissions}
        _write(credentials.nats_users_file, render(permissions, passwords), mode)
        if routes:
            password = credentials.folder / "nats-route"
            _keep_or_make(password, mode)
            _write(credentials.nats_routes_file, render_routes(routes, _read(password)), mode)
    return credentials


def put_portable(folder: Path, secrets_by_name: Mapping[str, bytes], *, mode: int = 0o600) -> Credentials:
    """Put the portable secrets of a backup into a folder in place of its own; make what is still missing. Raises
    CredentialsError."""
    try:
        with _alone(folder, mode):
            for name, secret in secrets_by_name.items():
                if not Credentials.is_portable(name):
                    raise CredentialsError(f"{name!r:.80} is no secret of a cluster")
                path = folder / name
                _write(path, secret.decode(), path.stat().st_mode & 0o777 if path.exists() else mode)
        return provision(folder, nodes=(), mode=mode)
    except OSError as error:
        raise CredentialsError(f"cannot write {error.filename or folder}: {error.strerror}") from error


@contextmanager
def _alone(folder: Path, mode: int) -> Iterator[None]:
    """A lock on the folder: two processes that provision at once agree on one set of secrets."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    for path in (folder, folder / "nats", folder / "postgres"):
        _make_folder(path, mode | (mode & 0o444) >> 2)  # a user that may read the files may enter
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _make_folder(path: Path, mode: int) -> None:
    try:
        path.mkdir()
    except FileExistsError:
        return  # An existing folder keeps its mode.
    path.chmod(mode)


def _keep_or_make(path: Path, mode: int, *, prefix: str = "") -> None:
    if path.exists() and path.stat().st_size:
        if path.stat().st_mode & 0o777 != mode:
            path.chmod(mode)
    else:
        _write(path, prefix + secrets.token_urlsafe(SECRET_BYTES) + "\n", mode)


def _write(path: Path, text: str, mode: int) -> None:
    """Write the whole file or nothing, also through a power cut: a lost password would lock us out of the database."""
    unfinished = path.with_name(f".{path.name}.unfinished")
    with open(unfinished, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def _read(path: Path) -> str:
    try:
        secret = path.read_text().strip()
    except OSError as error:
        raise CredentialsError(f"cannot read {path}: {error.strerror}") from error
    if not secret:
        raise CredentialsError(f"{path} is empty")
    return secret


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


def render(permissions: Mapping[str, Permissions], passwords: Mapping[str, str]) -> str:
    users = "".join(_user(user, passwords[user], permissions[user]) for user in permissions)
    return f"{HEAD}authorization {{\n  users = [\n{users}  ]\n}}\n"


def _user(user: str, password: str, may: Permissions) -> str:
    assert may.publish, f"{user}: a user without a publish rule may publish anything"
    rules = [
        f"publish: {{ allow: {_quoted(may.publish)} }}",
        f"subscribe: {{ allow: {_quoted((*may.subscribe, inbox_prefix(user) + '.>'))} }}",
    ]
    if may.answers:
        rules.append("allow_responses: true")
    body = "".join(f"        {rule}\n" for rule in rules)
    return f"    {{ user: {_quoted(user)}, password: {_quoted(password)}, permissions: {{\n{body}    }} }}\n"


def _quoted(value: str | tuple[str, ...]) -> str:
    return msgspec.json.encode(value).decode()
