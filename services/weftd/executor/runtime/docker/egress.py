"""Two ways to limit the egress of a container, which has no rights to set or remove the limit itself.

Direct   a thread of the executor enters the container's network namespace and ends in there: a few milliseconds, but it
         needs CAP_SYS_ADMIN, CAP_NET_ADMIN and CAP_SYS_PTRACE, and the host's processes visible.
Helper   a short-lived container with only CAP_NET_ADMIN in the network namespace of the job's container: part of a
         second, and the executor needs only its rights on the engine.
"""

import asyncio
import ctypes
import logging
import os
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from weftd.executor.runs import RuntimeUnavailableError
from weftd.executor.runtime.docker import shaping
from weftd.executor.runtime.docker.engine import DockerEngine, EngineRefusedError
from weftd.executor.runtime.docker.settings import ContainerSettings

logger = logging.getLogger(__name__)

NEW_NETWORK = 0x40000000  # CLONE_NEWNET
SYS_PTRACE = 19  # the number of the capability
ENTER_SECONDS_MAX = 10.0
HELPER_SECONDS_MAX = 15
HELPER_MEMORY = 64 << 20
PROBE_RATE = 1 << 20
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


class Egress(Protocol):
    way: str

    async def limit(self, container: str, pid: int, rate: int) -> str:
        """Limit the container's egress to `rate` bytes per second, or NO_LIMIT. Empty, or why not.

        `pid` is its first process. The caller has checked that it has a network namespace of its own.
        """


async def find_egress(engine: DockerEngine, settings: ContainerSettings) -> tuple[Egress | None, str]:
    """Probe once which way works here; None and the reason if neither does."""
    reasons = []
    if settings.egress_by in ("auto", "direct"):
        if not (why := await asyncio.to_thread(_probe_direct)):
            return Direct(), ""
        reasons.append(f"direct: {why}")
    if settings.egress_by in ("auto", "helper"):
        image = settings.egress_image or await _own_image(engine)
        helper = Helper(engine, image, cluster=settings.cluster)
        if not (why := await helper.probe() if image else "no image with Python is named"):
            return helper, ""
        reasons.append(f"helper: {why}")
    return None, "; ".join(reasons) or "it is switched off"


class Direct:
    way = "direct"

    async def limit(self, container: str, pid: int, rate: int) -> str:
        return await asyncio.to_thread(_limit_directly, container, pid, rate)


class Helper:
    way = "helper"

    def __init__(self, engine: DockerEngine, image: str, *, cluster: str) -> None:
        self._engine = engine
        self._image = image
        self._labels = {"weft.helper": "egress", "weft.cluster": cluster}
        self._text = Path(shaping.__file__).read_text()

    async def limit(self, container: str, pid: int, rate: int) -> str:
        return await self._run(f"container:{container}", [str(rate)])

    async def probe(self) -> str:
        """Empty, or why it does not work here. Also removes helpers that an executor left when it died."""
        try:
            for helper in await self._engine.call(self._left):
                await self._remove(helper)
            return await self._run("none", [str(PROBE_RATE), "probe"])
        except EngineRefusedError as error:
            return str(error)

    def _left(self) -> list[str]:
        labels = [f"{name}={value}" for name, value in self._labels.items()]
        return [found["Id"] for found in self._engine.client.containers(all=True, filters={"label": labels})]

    async def _run(self, network: str, arguments: list[str]) -> str:
        client = self._engine.client
        made = ""
        try:
            made = await self._engine.call(self._create, network, arguments)
            await self._engine.call(client.start, made)
            status = await self._engine.call(lambda: int(client.wait(made, timeout=HELPER_SECONDS_MAX)["StatusCode"]))
            if status == 0:
                return ""
            written = await self._engine.call(lambda: str(client.logs(made).decode(errors="replace")))
            return written.strip()[-300:] or f"its helper ended with {status}"
        except EngineRefusedError as error:
            return str(error)
        finally:
            if made:
                await self._remove(made)

    def _create(self, network: str, arguments: list[str]) -> str:
        client = self._engine.client
        made = client.create_container(
            image=self._image,
            entrypoint=["python3", "-I", "-S", "-c", self._text],
            command=arguments,
            name=f"weft-egress-{uuid.uuid4().hex[:12]}",
            user="0:0",
            environment={"NVIDIA_VISIBLE_DEVICES": "void"},
            labels=self._labels,
            host_config=client.create_host_config(
                network_mode=network,
                cap_drop=["ALL"],
                cap_add=["NET_ADMIN"],
                security_opt=["no-new-privileges:true"],
                read_only=True,
                mem_limit=HELPER_MEMORY,
                pids_limit=16,
            ),
        )
        return str(made["Id"])

    async def _remove(self, container: str) -> None:
        try:
            await self._engine.remove(container)
        except RuntimeUnavailableError as error:
            logger.warning("a helper is left, the next executor removes it: %s", error)


async def _own_image(engine: DockerEngine) -> str:
    """The image of the executor's own container; empty if the executor is not in a container of this engine."""
    try:
        found = CONTAINER_ID.search(Path("/proc/self/cgroup").read_text())  # noqa: ASYNC240 - /proc needs no disk
        if found is None:
            return ""
        container = found.group()
        return await engine.call(lambda: str(engine.client.inspect_container(container)["Image"]))
    except (OSError, EngineRefusedError):
        return ""


def _limit_directly(container: str, pid: int, rate: int) -> str:
    """Enter the namespace and set the limit. Blocks, for milliseconds."""
    try:
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Checked after the open, so that the open file belongs to this container, and not to a reused pid.
            if container not in Path(f"/proc/{pid}/cgroup").read_text():
                return "egress: it ended"
            if os.path.samestat(os.fstat(namespace), os.stat("/proc/self/ns/net")):
                return "egress: it has the network of its host"
            elsewhere(lambda: system("setns", namespace, NEW_NETWORK), lambda: shaping.limit(rate))
        finally:
            os.close(namespace)
    except FileNotFoundError:
        return "egress: it ended"
    except OSError as error:
        return f"egress: {error.strerror or error}"
    return ""


def _probe_direct() -> str:
    """Limit the loopback of a new namespace. Empty, or why that fails."""
    try:
        elsewhere(lambda: system("unshare", NEW_NETWORK), lambda: shaping.limit(PROBE_RATE, probe=True))
        status = Path("/proc/self/status").read_text()
    except OSError as error:
        return error.strerror or str(error)
    held = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapEff:"))
    return "" if held >> SYS_PTRACE & 1 else "without CAP_SYS_PTRACE it cannot limit jobs of other users"


def elsewhere(enter: Callable[[], None], work: Callable[[], None]) -> None:
    """Run both in a thread that ends in the other namespace. Raises the error of either."""

    def go() -> None:
        enter()
        work()

    thread = ThreadPoolExecutor(1, thread_name_prefix="egress")
    try:
        thread.submit(go).result(ENTER_SECONDS_MAX)
    except TimeoutError as error:
        raise OSError("the kernel does not answer") from error
    finally:
        thread.shutdown(wait=False)


def system(name: str, *arguments: int) -> None:
    """A call of the C library. Raises OSError."""
    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, name, None)
    if function is None:
        raise OSError(f"this system has no {name}")
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
