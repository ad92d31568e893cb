"""Creates and starts the container of a run, or adopts an existing one."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any, cast

from msgspec import Struct

from weft.domain.contract import DEFAULT_NAMES, THREAD_NAMES
from weft.messages.images import host_of
from weft.messages.nodes import StartRun
from weftd.executor.files import members
from weftd.executor.files.contexts import hand_over
from weftd.executor.files.home import Home
from weftd.executor.files.job_folders import OF_ANY_USER, make_folder
from weftd.executor.machine.node import Refusal, port_taken
from weftd.executor.runs import RunKey, RuntimeUnavailableError
from weftd.executor.runtime.bookkeeping import Bookkeeping
from weftd.executor.runtime.docker.container import (
    Folders,
    Host,
    container_arguments,
    container_name,
    members_inside,
    with_first_process,
)
from weftd.executor.runtime.docker.doors import served
from weftd.executor.runtime.docker.engine import CONFLICT, NOT_FOUND, DockerEngine, EngineRefusedError, MissingError
from weftd.executor.runtime.docker.images import Images
from weftd.executor.runtime.docker.inspected import Container
from weftd.executor.runtime.docker.kept import GuardedContainer, guarded
from weftd.executor.runtime.docker.labels import key_of, stop_signal_of
from weftd.executor.runtime.docker.networks import Networks

logger = logging.getLogger(__name__)

# In the answer of a registry that is there, and has no such image for us. Any other failure may pass.
NO_SUCH_IMAGE = ("manifest unknown", "name unknown", "repository does not exist", "invalid reference format")

WANTS_LOGIN = ("denied", "unauthorized", "authentication required", "no basic auth credentials", "docker login")


class Starter:
    def __init__(
        self,
        engine: DockerEngine,
        home: Home,
        host: Host,
        networks: Networks,
        images: Images,
        book: Bookkeeping,
    ) -> None:
        self._engine = engine
        self._home = home
        self._host = host
        self._networks = networks
        self._images = images
        self._book = book

    async def start(self, order: StartRun, key: RunKey, permitted: Callable[[], bool]) -> None:
        """Start the run. Raises Refusal, RuntimeUnavailableError."""
        self._make_folders(key)
        joined = await self._networks.join(order, key)
        attached = await self._book.attach(order)
        folders = Folders(
            run=self._home.run(key),
            files=self._home.context(key),
            secrets=self._home.secrets(key),
            slowdowns=str(self._home.emulated),
        )
        arguments = container_arguments(
            self._engine.client,
            order,
            self._host,
            folders,
            joined,
            attached=attached,
            served=await served(order, self._host.node, self._book.served, joined),
            pin=self._book.pins.begin(order),
        )
        made = await self._create(arguments, order, permitted)
        if made is None:
            return
        self._images.used(arguments["image"])
        try:
            keep(self._home, key, made, order.grace)
            self._show_members(order, key, named=joined.named)
            if order.context is not None:
                await self._hand_over(made.id, key)
            if not await self._engine.call(lambda: self._begin(made.id, permitted)):
                await self._engine.remove(made.id)
                guarded(self._home).remove(key)
        except EngineRefusedError as error:
            if "no such container" in str(error).lower():  # The guard removed it meanwhile.
                raise RuntimeUnavailableError(f"{key}: {error}") from error
            await self._engine.remove(made.id)
            raise _refused(str(error), order) from error

    def _show_members(self, order: StartRun, key: RunKey, *, named: bool) -> None:
        """Write the run's members for its command to find. Raises RuntimeUnavailableError."""
        if order.members is not None:
            try:
                members.show(self._home, key, members_inside(order, self._host.node, self._host.settings, named=named))
            except OSError as error:
                raise RuntimeUnavailableError(f"{key}: {members.why_not(error)}") from error

    async def _hand_over(self, container: str, key: RunKey) -> None:
        """Give the files that went along to the container's user. Raises RuntimeUnavailableError."""
        inspected = await self._engine.call(self._engine.client.inspect_container, container)
        user = str(inspected["Config"].get("User") or "")
        try:
            await asyncio.to_thread(hand_over, self._home.context(key), user)
        except OSError as error:
            raise RuntimeUnavailableError(f"cannot give the files of {key} to their user: {error}") from error

    def _begin(self, container: str, permitted: Callable[[], bool]) -> bool:
        """Start it if permitted, asked in this very thread: the wait for a thread, or a suspension, may take long."""
        if permitted():
            self._engine.client.start(container)
            return True
        return False

    async def _create(
        self, arguments: Mapping[str, Any], order: StartRun, permitted: Callable[[], bool]
    ) -> "_Made | None":
        """Create a container, from an image that may have to be pulled first. Returns None if the run exists or may
        not start any more. Raises Refusal."""
        for pulled in (False, True):
            if not permitted():
                return None
            try:
                return await self._engine.call(self._created, arguments, order)
            except MissingError as error:
                if "image" not in str(error).lower() or pulled:
                    raise Refusal(str(error)) from error
                await self._pull(arguments["image"])
            except EngineRefusedError as error:
                if error.status == CONFLICT:
                    return await self._replace_half_made(RunKey.of(order), str(error))
                raise Refusal(str(error)) from error
        raise AssertionError("the second try returns or raises")

    def _created(self, arguments: Mapping[str, Any], order: StartRun) -> "_Made":
        client = self._engine.client
        inspected: dict[str, Any] = cast(Any, client).inspect_image(arguments["image"])
        if _is_by_id(arguments["image"], inspected):
            raise MissingError(f"no such image: {arguments['image']}", NOT_FOUND)
        image = inspected.get("Config") or {}
        of_image = {pair.partition("=")[0] for pair in image.get("Env") or ()}
        if THREAD_NAMES[0] in of_image:  # the others follow it
            of_image.update(THREAD_NAMES)
        ours = (DEFAULT_NAMES - order.env.keys()) & of_image  # the image has its own values
        env = {name: text for name, text in arguments["environment"].items() if name not in ours}
        completed = with_first_process({**arguments, "environment": env}, order, image, init=bool(self._host.init))
        return _Made(client.create_container(**completed)["Id"], completed["stop_signal"])

    async def _replace_half_made(self, key: RunKey, why: str) -> "_Made | None":
        """The name is taken: by this run (None: leave it alone), by an unfinished start, or by a stranger."""
        try:
            container, state, own = await self._engine.call(self._inspected, key)
        except MissingError as error:
            raise RuntimeUnavailableError(f"{key}: {why}") from error  # Gone meanwhile: the next try creates it.
        if key_of(own) != key or own.get("weft.node") != self._host.node.node_id:
            raise Refusal(f"the container name {container_name(key)} is taken by something else")
        return _Made(container, stop_signal_of(own)) if state == "created" else None

    def _inspected(self, key: RunKey) -> tuple[str, str, dict[str, str]]:
        """The id, the state and the labels of the container that has the run's name."""
        found = self._engine.client.inspect_container(container_name(key))
        return found["Id"], found["State"]["Status"], dict(found["Config"]["Labels"] or {})

    async def _pull(self, image: str) -> None:
        if not self._host.settings.pull:
            raise Refusal(f"image-missing: {image} is not on this node, which pulls no images")
        logger.info("pulling the image %s", image)
        why = await self._engine.pull(image, seconds_max=self._host.settings.pull_seconds_max)
        if why:
            is_for_good = any(words in why.lower() for words in NO_SUCH_IMAGE)
            raise Refusal(f"image-missing: {image}: {why}{login_hint(image, why)}", is_for_good=is_for_good)
        await self._images.fetched(image)

    def _make_folders(self, key: RunKey) -> None:
        """Create the run's folders, writable for every user of a container; the folders above keep other users out."""
        try:
            for parent in (self._host.node.checkpoints, self._host.node.results):
                make_folder(parent, key.job_id, mode=OF_ANY_USER)
            os.makedirs(self._home.run(key), exist_ok=True)
            os.chmod(self._home.run(key), OF_ANY_USER)
        except OSError as error:
            raise RuntimeUnavailableError(f"cannot make the folders of {key}: {error}") from error


def login_hint(image: str, why: str) -> str:
    """The command that stores a login, if the registry wants one; else empty."""
    wants = any(words in why.lower() for words in WANTS_LOGIN)
    return f"; `weft image login {host_of(image)}` stores a login for jobs of your tenant" if wants else ""


class _Made(Struct, frozen=True):
    """A container that was created, and the signal that asks it to stop."""

    id: str
    stop_signal: str


def keep(home: Home, key: RunKey, container: "_Made | Container", grace: float) -> None:
    """Store the run's container for the guard, before it starts. Raises RuntimeUnavailableError."""
    record = GuardedContainer(container=container.id, grace=grace, stop_signal=container.stop_signal)
    try:
        guarded(home).write(key, record)
    except OSError as error:
        raise RuntimeUnavailableError(f"cannot keep which container {key} is: {error}") from error


def _is_by_id(name: str, inspected: Mapping[str, Any]) -> bool:
    """Return True if the engine took the name for the beginning of an id: a job may not guess its way to images that
    others brought to this node."""
    names = (*(inspected.get("RepoTags") or ()), *(inspected.get("RepoDigests") or ()))
    is_id = str(inspected.get("Id", "")).removeprefix("sha256:").startswith(name.removeprefix("sha256:"))
    return is_id and not any(each.startswith((f"{name}:", f"{name}@")) for each in names)


def _refused(why: str, order: StartRun) -> Refusal:
    """A Refusal with the engine's error, shortened for common causes."""
    if "executable file not found" in why or ("no such file or directory" in why and "exec" in why):
        program = order.command[0] if order.command else "the command of the image"
        return Refusal(f"command not found: {program}", is_for_good=True)
    if "permission denied" in why.lower() and "exec" in why:
        program = order.command[0] if order.command else "the command of the image"
        return Refusal(f"{program} is not executable, or is a folder", is_for_good=True)
    if "port is already allocated" in why or "address already in use" in why:
        return port_taken(order) if order.master_port else Refusal(f"no port of the host for its requests: {why}")
    return Refusal(why)
