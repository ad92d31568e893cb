"""Images that need a right or a login.

An image of the cluster's registry: each start of a run asks a gateway for the right to pull it, even where the engine
has it, and the engine pulls it with that alone. An image of another registry: where the engine lacks it, the executor
asks a gateway for the tenant's login there. An image that was pulled with a login is for those tenants alone whose own
login, or none, can pull it, too.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from msgspec import structs

from weft.bus import Bus, BusError
from weft.messages.images import OWN_HOST, ImageRead, ReadImage
from weft.messages.nodes import StartRun
from weftd.executor.runs import RunKey, RuntimeUnavailableError

logger = logging.getLogger(__name__)

ANSWER_SECONDS_MAX = 10.0
LOGIN_SECONDS_MAX = 3.0  # without a login a public image is pulled all the same
AWAY_SECONDS_MAX = 300.0  # a start waits so long for the registry, which is away while it sweeps
AWAY_MAX = 1000  # starts that are counted as waiting


class NoImageError(Exception):
    """The image cannot be had, for a reason that its user should read."""


@runtime_checkable
class PullsImages(Protocol):
    """A runtime whose runs have images."""

    async def has_image(self, name: str) -> bool: ...

    async def may_use_image(self, name: str, *, tenant: str) -> bool:
        """False: the engine lacks it, or has it by a login of other tenants."""
        ...

    async def pull_image(self, name: str, *, user: str, password: str, tenant: str = "") -> str:
        """Empty, or why the engine cannot pull it. `tenant`: the owner of the login; empty: everybody may use it."""
        ...


class RegistryImages:
    """`clock` does not jump."""

    def __init__(self, bus: Bus, runtime: object, *, node_id: str, clock: Callable[[], float]) -> None:
        self._bus, self._node_id, self._clock = bus, node_id, clock
        self._runtime = runtime if isinstance(runtime, PullsImages) else None
        self._locks: dict[str, asyncio.Lock] = {}
        self._away: dict[RunKey, float] = {}  # since when the registry has been away for a start

    async def bring(self, order: StartRun) -> StartRun:
        """The order with its image under the name that the engine has it by. Raises NoImageError;
        RuntimeUnavailableError if it cannot be had now, so that the start is tried again."""
        image = order.image or ""
        if self._runtime is None or not image:
            return order
        if not image.startswith(f"{OWN_HOST}/"):
            await self._bring_of_another(self._runtime, order, image)
            return order
        read = await self._ask(order, image)
        lock = self._locks.setdefault(read.reference, asyncio.Lock())
        try:
            async with lock:
                if not await self._runtime.has_image(read.reference):
                    logger.info("pulling the image %s", read.reference)
                    why = await self._runtime.pull_image(read.reference, user=read.user, password=read.password)
                    if why:
                        await self._ask(order, image)  # the registry may have gone meanwhile
                        raise NoImageError(f"image-missing: {image}: {why}")
        finally:
            if not lock.locked():
                self._locks.pop(read.reference, None)
        return structs.replace(order, image=read.reference)

    async def _bring_of_another(self, runtime: PullsImages, order: StartRun, image: str) -> None:
        """Pull it with a login, or leave that to the start of the run if the tenant has none. Raises as `bring`."""
        if await runtime.may_use_image(image, tenant=order.tenant):
            return
        lock = self._locks.setdefault(image, asyncio.Lock())
        try:
            async with lock:
                if await runtime.may_use_image(image, tenant=order.tenant):
                    return
                is_private = await runtime.has_image(image)
                read = await self._login(order, image, needed=is_private)
                if read.bad_login:
                    raise NoImageError(f"image-missing: {image}: {read.bad_login}")
                if not read.user and not is_private:
                    return
                logger.info("pulling the image %s for tenant %s", image, order.tenant)
                tenant = order.tenant if read.user else ""
                why = await runtime.pull_image(image, user=read.user, password=read.password, tenant=tenant)
                if why:
                    raise NoImageError(f"image-missing: {image}: {why}")
        finally:
            if not lock.locked():
                self._locks.pop(image, None)

    async def _login(self, order: StartRun, image: str, *, needed: bool) -> ImageRead:
        """The tenant's login at the image's registry; none if no gateway answers, unless it is needed. Raises
        RuntimeUnavailableError."""
        try:
            read = await self._bus.request(
                _asked(self._node_id, order, image), ImageRead, seconds_max=LOGIN_SECONDS_MAX
            )
        except (BusError, ValueError) as error:
            if needed:
                raise RuntimeUnavailableError(f"no gateway gives the login for its image: {error}") from error
            return ImageRead()
        if read.refused:
            raise RuntimeUnavailableError(f"its image is refused: {read.refused}")
        return read

    async def _ask(self, order: StartRun, image: str) -> ImageRead:
        key = RunKey.of(order)
        try:
            read = await self._bus.request(
                _asked(self._node_id, order, image), ImageRead, seconds_max=ANSWER_SECONDS_MAX
            )
        except (BusError, ValueError) as error:
            raise RuntimeUnavailableError(f"no gateway gives its image: {error}") from error
        since = self._away.pop(key, self._clock())
        if read.away and self._clock() - since < AWAY_SECONDS_MAX:
            if len(self._away) < AWAY_MAX:
                self._away[key] = since
            raise RuntimeUnavailableError(f"its image is refused now: {read.away}")
        if read.missing or read.away:
            raise NoImageError(f"image-missing: {image}: {read.missing or read.away}")
        if read.refused:
            raise RuntimeUnavailableError(f"its image is refused: {read.refused}")
        return read


def _asked(node_id: str, order: StartRun, image: str) -> ReadImage:
    return ReadImage(node_id=node_id, job_id=order.job_id, epoch=order.epoch, rank=order.rank, image=image)
