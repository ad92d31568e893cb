"""The Protocol of a back-end, which holds runs to their shares of a GPU.

A back-end keeps nothing in memory that a restart of the executor would lose.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from weft.domain.cluster import NOT_HELD_TO_SHARES, Gpu
from weft.domain.shares import Share
from weft.messages.nodes import StartRun
from weftd.executor.runs import RunKey

AUTO, HOOK, TIME_SLICE = "auto", "hook", "time-slice"
CHOICES = (AUTO, HOOK, TIME_SLICE)
"""Choices of a node's owner."""


class ShareMount(Struct, frozen=True):
    """A folder or file of the node that a container sees at `target`."""

    source: str
    target: str
    read_only: bool = False


class Attached(Struct, frozen=True, kw_only=True):
    """Requirements for holding a run to its share: variables, path-list variables, and mounts of a container.

    The paths of `lists` come before those of the job's own variable of that name.
    """

    env: Mapping[str, str] = {}
    lists: Mapping[str, tuple[str, ...]] = {}
    mounts: tuple[ShareMount, ...] = ()

    def added_to(self, env: Mapping[str, str]) -> dict[str, str]:
        """The job's variables with these."""
        joined = {
            name: ":".join((*paths, *(path for path in (env.get(name, ""),) if path)))
            for name, paths in self.lists.items()
        }
        return {**env, **self.env, **joined}


NOTHING = Attached()


class ShareBackend(Protocol):
    name: str
    not_enforced: tuple[str, ...]
    """NOT_HELD_TO_SHARES, or empty."""

    async def attach(self, order: StartRun, gpu: Gpu, *, contained: bool) -> Attached:
        """Hold the run of `order` to its share of `gpu` from now on; a second call changes nothing. `contained`: it
        runs in a container. Raises RuntimeUnavailableError."""

    def held(self, key: RunKey) -> Share | None:
        """The current share; None if the run has none, or if it cannot be held to any."""

    async def resize(self, key: RunKey, share: Share) -> str:
        """Hold a run to another share from now on. Empty, or why it keeps the one it has, as far as it does."""

    def detach(self, key: RunKey) -> None:
        """The run has ended, or was never started: it holds nothing any more, whatever it left."""

    async def keep(self, keys: Iterable[RunKey]) -> None:
        """After a restart: these runs are left, all others have ended."""

    def close(self) -> None:
        """Release the resources that only this process needs. The runs keep their shares."""


class TimeSlicing:
    """No enforcement: the driver gives every process on the GPU the same time, and all of the memory to each."""

    name: str = TIME_SLICE
    not_enforced: tuple[str, ...] = (NOT_HELD_TO_SHARES,)

    async def attach(self, order: StartRun, gpu: Gpu, *, contained: bool) -> Attached:
        return NOTHING

    def held(self, key: RunKey) -> Share | None:
        return None

    async def resize(self, key: RunKey, share: Share) -> str:
        return "share: this node does not enforce shares"

    def detach(self, key: RunKey) -> None:
        pass

    async def keep(self, keys: Iterable[RunKey]) -> None:
        pass

    def close(self) -> None:
        pass
