"""A node on this machine that joined a cluster elsewhere: its folder, and its processes until Ctrl-C.

node.json           the credentials that the join token was exchanged for
executor, telemetry the passwords of its two users of NATS; ca.pem: the authority of NATS, where it has TLS
nodes/NAME          the executor's home
checkpoints/        unless EXECUTOR_CHECKPOINTS names a folder that nodes share
logs/               of the two processes
compose.yml, .env   in place of the processes, where the node runs as containers
"""

import asyncio
import fcntl
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from weft.credentials.joining import NodeCredentials
from weftd.cli.local.errors import AlreadyRunsError, LocalError, StartFailedError
from weftd.cli.local.leftovers import end_guards, kill_runs
from weftd.cli.local.plan import Service, Stage
from weftd.cli.local.process import ServiceProcess
from weftd.cli.local.signals import stops_on_signals
from weftd.cli.local.up import say

START_SECONDS_MAX = 60.0
PATIENCE_SECONDS = {"executor": 75.0, "telemetry": 15.0}  # an executor gives its jobs their grace, up to 60 s
NATS_PORT = 4222
COMPOSE_FILES = (Path("/usr/share/weft/compose.node.yml"), Path(__file__).parents[4] / "deploy" / "compose.node.yml")
BY_HAND = "--address names where other hosts reach this one"
_in_settings = re.compile(r"[A-Za-z0-9._/:@,\[\]-]+").fullmatch


class JoinedHome:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.nodes = self.root / "nodes"
        self.logs = self.root / "logs"

    def make(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """A lock on the folder. Raises AlreadyRunsError."""
        lock = os.open(self.root / "node.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise AlreadyRunsError(f"the node of {self.root} runs already") from None
        finally:
            os.close(lock)

    def credentials(self) -> NodeCredentials | None:
        """The credentials of an earlier exchange. Raises LocalError."""
        path = self.root / "node.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=NodeCredentials)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise LocalError(f"{path} is not what `weft node join` wrote: {error}") from error

    def keep(self, credentials: NodeCredentials) -> None:
        """Write the passwords, and last the file by which the node is known to have joined."""
        self._write("executor", credentials.executor_password)
        self._write("telemetry", credentials.telemetry_password)
        if credentials.nats_ca:
            self._write("ca.pem", credentials.nats_ca)
        self._write("node.json", msgspec.json.format(msgspec.json.encode(credentials)).decode())

    def write_settings(self, name: str, text: str) -> None:
        self._write(name, text)

    def _write(self, name: str, text: str) -> None:
        """Write the whole file or nothing, also through a power cut: a join token works once."""
        unfinished = self.root / f".{name}.unfinished"
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(text.rstrip("\n") + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.root / name)


def services(
    home: JoinedHome, joined: NodeCredentials, environment: Mapping[str, str], *, address: str, emulated_gpus: int
) -> list[Service]:
    """The executor and telemetry. Settings of the environment count, but for those that make it this node."""
    made = []
    for kind in ("executor", "telemetry"):
        prefix = kind.upper()
        usual = {f"{prefix}_RUNTIME": "process", f"{prefix}_EMULATED_GPUS": str(emulated_gpus)}
        if kind == "executor":
            usual |= {
                "EXECUTOR_ADDRESS": address,
                "EXECUTOR_CHECKPOINTS": str(home.root / "checkpoints"),
                "EXECUTOR_STOP_JOBS_ON_EXIT": "1",
            }
        own = {
            "WEFT_NATS_URL": joined.nats_url,
            "WEFT_NATS_USER": f"{kind}-{joined.node_id}",
            "WEFT_NATS_PASSWORD_FILE": str(home.root / kind),
            "WEFT_NATS_CA_FILE": str(home.root / "ca.pem") if joined.nats_ca else "",
            f"{prefix}_NODE_ID": joined.node_id,
            f"{prefix}_POOL": joined.pool,
            f"{prefix}_HOME": str(home.nodes / joined.node_id),
        }
        settings = {name: environment.get(name, value) for name, value in usual.items()} | own
        stage = Stage.NODE if kind == "executor" else Stage.CONTROL
        log = home.logs / f"{kind}.log"
        made.append(Service(name=kind, module=f"weftd.{kind}", stage=stage, settings=settings, log=log))
    return made


async def run_joined(home: JoinedHome, joined: NodeCredentials, *, address: str, emulated_gpus: int) -> int:
    """Run the node until a signal. Raises StartFailedError."""
    for folder in (home.nodes, home.logs, home.root / "checkpoints"):
        folder.mkdir(mode=0o700, exist_ok=True)
    planned = services(home, joined, os.environ, address=address, emulated_gpus=emulated_gpus)
    processes = [ServiceProcess(service, tell=say) for service in planned]
    with stops_on_signals() as stops:
        for process in processes:
            process.start()
        asked = asyncio.create_task(stops.asked.wait())
        starting = asyncio.create_task(_all_ready(processes))
        try:
            await asyncio.wait({asked, starting}, timeout=START_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                await starting
                say(f"{joined.node_id} runs, at {address}; `weft nodes` shows it, and Ctrl-C stops it")
                say(f"its data, credentials and logs are in {home.root}")
                await asked
            elif not asked.done():
                late = f"{joined.node_id} is not ready after {START_SECONDS_MAX:g} s: is {joined.nats_url} reached?"
                raise StartFailedError(late, log=home.logs / "executor.log")
        finally:
            starting.cancel()
            asked.cancel()
            for process in processes:  # the executor first: it reports how its runs ended
                await process.stop(patience=PATIENCE_SECONDS[process.service.name], hurry=stops.hurry)
            await asyncio.to_thread(kill_runs, home.nodes)
            await asyncio.to_thread(end_guards, home.nodes)
    say(f"{joined.node_id} is stopped; the same command without a token starts it again")
    return 0


async def _all_ready(processes: Sequence[ServiceProcess]) -> None:
    for process in processes:
        await process.ready()


def compose_files(home: JoinedHome, joined: NodeCredentials, *, address: str, image: str, emulated_gpus: int) -> None:
    """Write deploy/compose.node.yml and its settings. Raises LocalError."""
    source = next((file for file in COMPOSE_FILES if file.is_file()), None)
    if source is None:
        raise LocalError(f"{COMPOSE_FILES[0]} is missing: the image of Weft has it, a wheel has not")
    settings = {
        "WEFT_NODE": joined.node_id,
        "WEFT_POOL": joined.pool,
        "WEFT_NATS_URL": joined.nats_url,
        "WEFT_SECRETS": str(home.root),
        "WEFT_ADDRESS": address,
        "WEFT_IMAGE": image,
        "WEFT_EMULATED_GPUS": str(emulated_gpus),
        **({"WEFT_NATS_CA_FILE": "/secrets/ca.pem"} if joined.nats_ca else {}),
    }
    for name, value in settings.items():
        if not _in_settings(value):
            raise LocalError(f"{name} would be {value!r:.100}, which no file of settings can have")
    home.write_settings(".env", "".join(f"{name}={value}\n" for name, value in settings.items()))
    home.write_settings("compose.yml", source.read_text())


def address_towards(url: str) -> str:
    """This machine's address on its way to a server of NATS. Raises LocalError."""
    first = url.split(",")[0]
    parts = urlsplit(first if "://" in first else f"nats://{first}")
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or NATS_PORT, type=socket.SOCK_DGRAM)
        for family, kind, protocol, _, target in found:
            with closing(socket.socket(family, kind, protocol)) as probe:
                probe.connect(target)  # sends nothing
                return str(probe.getsockname()[0])
    except OSError as error:
        raise LocalError(f"{first}: {error.strerror or error}; {BY_HAND}") from error
    raise LocalError(f"{first}: no address; {BY_HAND}")
