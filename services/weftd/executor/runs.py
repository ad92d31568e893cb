"""A run on this node, and the Protocol of a runtime. All of the executor depends on this module.

A runtime has no state that a restart of the executor would lose: `runs` finds the runs that an earlier one started.

Errors: RuntimeUnavailableError   the runtime itself does not work now (engine gone, disk full): try again later
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from weft.domain.shares import Share
from weft.domain.spec import ResizeSignal
from weft.messages.nodes import EndReason, Noted, RunState, Serve, StartRun
from weftd.executor.channel import Channel, SessionWanted


class RuntimeUnavailableError(Exception):
    """The runtime does not work now; its runs are unknown."""


class RunKey(Struct, frozen=True, order=True):
    """One run: one rank of one epoch of a job."""

    job_id: str
    epoch: int
    rank: int

    def __str__(self) -> str:
        """Also the name of the run's folder, so no job id may turn it into a path."""
        return f"{self.job_id.replace('/', '_')}-{self.epoch}-{self.rank}"

    @classmethod
    def parse(cls, text: str) -> "RunKey | None":
        """`job-7-2-0` → job-7, epoch 2, rank 0; None for anything else."""
        job_id, _, tail = text.rpartition("-")
        job_id, _, epoch = job_id.rpartition("-")
        if not (job_id and epoch.isdecimal() and tail.isdecimal()):
            return None
        return cls(job_id, int(epoch), int(tail))

    @classmethod
    def of(cls, order: StartRun) -> "RunKey":
        return cls(order.job_id, order.epoch, order.rank)


NO_LIMIT = -1  # of egress, said explicitly


class Limits(Struct, frozen=True, kw_only=True):
    """The limits that may change while a run runs: CPU in cores, memory in bytes, egress in bytes per second, and its
    share of a GPU.

    To be set: None leaves a limit as it is. As found: None is not enforced here, so it cannot be changed either.
    """

    cpus: float | None = None
    memory: int | None = None
    egress: int | None = None
    share: Share | None = None


class Run(Struct, frozen=True, kw_only=True):
    """One run as the runtime finds it. Times are seconds since the epoch, UTC."""

    key: RunKey
    state: RunState
    grace: float = 0.0  # seconds between SIGTERM and SIGKILL, from the order that started it
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None  # 128 + N for signal N
    reason: EndReason | None = None  # with `exited`
    detail: str = ""
    for_good: bool = False  # with `start-failed`: another try on this node would end the same way
    limits: Limits = Limits()  # of a running run: the limits in force on the host
    serve: Serve | None = None  # of a run that serves requests, from the order that started it
    noted: tuple[Noted, ...] = ()  # what its user should know of it and may not see
    port: int | None = None  # where it does, at the address of the node; None: not known yet

    @property
    def live(self) -> bool:
        return self.state is not RunState.EXITED


class LogChunk(Struct, frozen=True, kw_only=True):
    """Bytes of a log, from the requested offset, or from `begins` if that is later."""

    data: bytes
    ended: bool  # the run is over and nothing follows these bytes
    missing: bool = False
    begins: int = 0  # how many bytes at its head the node has dropped, by its retention limits
    size: int = 0  # the number of all bytes, when this was read
    dropped_at: float = 0.0  # when a missing log was dropped, in seconds since the epoch; 0: not known
    dropped_bytes: int = 0


def always() -> bool:
    return True


class Runtime(Protocol):
    name: str
    not_enforced: tuple[str, ...]
    """Limits that this runtime cannot hold jobs to on this host, such as `memory`."""

    async def start(self, order: StartRun, *, permitted: Callable[[], bool] = always, why_not: str = "") -> None:
        """Start the run, unless it is there already (a second call adopts). A start that cannot succeed (no such
        image, no such command) shows in `runs` as exited, `start-failed`, with the detail.

        `permitted` is called at the last moment, after anything slow such as a pull; if it is false, nothing starts.
        `why_not`: why the start cannot succeed, if the caller knows that already.
        """

    async def runs(self) -> list[Run]:
        """All of Weft's runs on this node, ended ones too until `remove`."""

    async def signal(self, key: RunKey, *, kill: bool) -> None:
        """The stop signal to its main process, or SIGKILL to all of it. A run that is not there or has ended is left
        alone. After a stop the others get SIGTERM when the main process has ended, and the run ends with the last."""

    async def hurry(self, key: RunKey) -> None:
        """The end of the grace is near: SIGTERM to the children of the processes that were asked and have not ended,
        such as the program of a shell that waits for it before it heeds a trap."""

    async def remove(self, key: RunKey) -> None:
        """Forget an ended run; its log stays. A run that still runs is left alone."""

    async def resize(self, key: RunKey, limits: Limits) -> str:
        """Change a running run's limits, in place. Empty, or which of them stay as they were, and why.

        Memory is not set below the run's present need. `runs` shows the new limits at once.
        """

    async def show_members(self, order: StartRun, *, signal_due: bool) -> str:
        """Replace the file WEFT_MEMBERS of a running run, unless it already has the order's members; then send the
        order's signal, if there is one, to the run's main process. Empty, or why one of the two was not done.

        The signal is sent if the file had another number of `changes`, or if it is still due from an earlier try. It is
        never sent to a process that does not handle it, because the signal would end that process.
        """

    async def dump_stacks(self, key: RunKey, told: ResizeSignal | None) -> None:
        """Have the stacks of a live run in its log, within seconds: by the signal, if its main process handles that,
        else by py-spy, if the node has it. Else the log says why there are none. A run that is not there is left alone.
        """

    async def enter(self, key: RunKey, wanted: SessionWanted) -> Channel:
        """Begin a session beside a live run: a process that ends with it at the latest, or a connection to a port on
        which the run listens. Raises SessionRefusedError.
        """

    async def end_sessions(self) -> None:
        """End the sessions that an earlier executor left."""

    async def probe(self, run: Run) -> str:
        """Ask a run that serves requests whether it takes them now. Empty if so, else why not; within seconds."""

    async def read_log(self, key: RunKey, *, offset: int, limit: int) -> LogChunk:
        """Bytes the run wrote (stdout and stderr together), as far as the node still has them."""

    async def changed(self) -> None:
        """Return when something about a run may have changed, such as an exit. May return for nothing."""

    async def close(self) -> None:
        """Close the runtime. Its runs go on."""
