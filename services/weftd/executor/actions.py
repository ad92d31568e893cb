"""Carries out the core's decisions: many actions at once, one at a time for each run, none blocking another. Starts go
in turn by tenant.

An action that fails, for whatever reason, is that run's failure alone: it is logged and decided again. The executor of
a node must outlive it, because everything else that runs there depends on the executor.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from weft.messages.nodes import StartRun
from weftd.executor.data.rclone import NoDataError
from weftd.executor.files.checkpoints import BadCheckpointError
from weftd.executor.files.contexts import BadContextError
from weftd.executor.files.secrets import MissingSecretsError
from weftd.executor.registry import NoImageError
from weftd.executor.runs import RunKey, Runtime, RuntimeUnavailableError
from weftd.executor.thinking.core import Action, DumpStacks, Hurry, Kill, Remove, Resize, Start, Terminate
from weftd.executor.thinking.members import ShowMembers
from weftd.executor.thinking.rounding import shown
from weftd.executor.turns import StartTurns

logger = logging.getLogger(__name__)

STARTS_AT_ONCE = 8  # a pull may take minutes: such starts must leave room for ends
STARTS_PER_TENANT_MAX = 6  # and for the starts of other tenants
ENDS_AT_ONCE = 16
RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 5.0  # after failures in a row; an end is always tried again after RETRY_SECONDS
FAILURES_KEPT = 1000  # runs whose failures are counted, the latest to fail


class NotStartedError(Exception):
    """Raised if a run cannot be started here now. The scheduler receives the reason as a sign of sickness."""


class Actions:
    def __init__(
        self,
        runtime: Runtime,
        tasks: asyncio.TaskGroup,
        *,
        with_secrets: Callable[[StartRun], Awaitable[StartRun]],
        preflight: Callable[[StartRun], Awaitable[str]],
        bring_files: Callable[[StartRun], Awaitable[None]],
        bring_checkpoint: Callable[[StartRun], Awaitable[None]],
        bring_data: Callable[[StartRun], Awaitable[StartRun]],
        bring_image: Callable[[StartRun], Awaitable[StartRun]],
        permits: Callable[[RunKey], bool],
        done: Callable[[Action], None],
        failed: Callable[[Action], None],
        not_applied: Callable[[Resize, str], None],
        shown: Callable[[ShowMembers, str], None],
    ) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._with_secrets = with_secrets
        self._preflight = preflight
        self._bring_files = bring_files
        self._bring_checkpoint = bring_checkpoint
        self._bring_data = bring_data
        self._bring_image = bring_image
        self._permits = permits
        self._done = done
        self._failed = failed
        self._not_applied = not_applied
        self._shown = shown
        self._in_hand: dict[RunKey, asyncio.Task[None]] = {}
        self._beginning: set[RunKey] = set()
        self._failures: dict[RunKey, int] = {}  # in a row
        self._starts = StartTurns(at_once=STARTS_AT_ONCE, per_tenant=STARTS_PER_TENANT_MAX)
        self._ends = asyncio.Semaphore(ENDS_AT_ONCE)

    @property
    def busy(self) -> frozenset[RunKey]:
        return frozenset(self._in_hand)

    @property
    def beginning(self) -> frozenset[RunKey]:
        """Runs whose start is in progress."""
        return frozenset(self._beginning)

    def take(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if action.key not in self._in_hand:
                if isinstance(action, Start):
                    self._beginning.add(action.key)
                self._in_hand[action.key] = self._tasks.create_task(self._carry_out(action))

    def drop(self) -> None:
        """Abandon all actions; a thread finishes its call, and the next executor finds the result."""
        for task in self._in_hand.values():
            task.cancel()

    async def _carry_out(self, action: Action) -> None:
        try:
            async with self._starts.one(action.order.tenant) if isinstance(action, Start) else self._ends:
                await self._do(action)
            self._failures.pop(action.key, None)
        except (RuntimeUnavailableError, NotStartedError) as error:
            logger.warning("%s %s: %s", type(action).__name__.lower(), action.key, error)
            await self._fail(action)
        except Exception:  # A bug of ours, or an error that no runtime expects, must not end the other runs.
            logger.exception("%s %s failed", type(action).__name__.lower(), action.key)
            await self._fail(action)
        finally:
            self._in_hand.pop(action.key, None)
            self._beginning.discard(action.key)
            self._done(action)

    async def _fail(self, action: Action) -> None:
        """Undo the action, so that it is decided again, and keep it in progress until the back-off is over."""
        self._failed(action)
        failures = self._failures.pop(action.key, 0)
        self._failures[action.key] = failures + 1
        if len(self._failures) > FAILURES_KEPT:
            del self._failures[next(iter(self._failures))]
        longest = RETRY_SECONDS if isinstance(action, Terminate | Hurry | Kill) else RETRY_SECONDS_MAX
        await asyncio.sleep(min(longest, RETRY_SECONDS * 2.0 ** min(failures, 10)))

    async def _start(self, key: RunKey, order: StartRun) -> None:
        why_not = ""
        if order.preflight and order.share is None and (sick := await self._preflight(order)):
            raise NotStartedError(f"preflight: {sick}")
        if order.secrets or order.secret_files:
            try:
                order = await self._with_secrets(order)
            except MissingSecretsError as error:
                why_not = str(error)
        if order.context and not why_not:
            try:
                await self._bring_files(order)
            except BadContextError as error:
                why_not = str(error)
        if order.from_checkpoint and not why_not:
            try:
                await self._bring_checkpoint(order)
            except BadCheckpointError as error:
                why_not = str(error)
        if (order.mounts or order.outputs) and not why_not:
            try:
                order = await self._bring_data(order)
            except (NoDataError, MissingSecretsError) as error:
                why_not = str(error)
        if order.image and not why_not:
            try:
                order = await self._bring_image(order)
            except NoImageError as error:
                why_not = str(error)
        await self._runtime.start(order, permitted=lambda: self._permits(key), why_not=why_not)
        logger.info("started %s", key)

    async def _do(self, action: Action) -> None:
        match action:
            case Start(order):
                await self._start(action.key, order)
            case Terminate(key):
                logger.info("stopping %s", key)
                await self._runtime.signal(key, kill=False)
            case Hurry(key):
                await self._runtime.hurry(key)
            case Kill(key):
                logger.info("killing %s", key)
                await self._runtime.signal(key, kill=True)
            case Remove(key):
                await self._runtime.remove(key)
            case Resize(key, limits):
                if why := await self._runtime.resize(key, limits):
                    logger.warning("not applied to %s: %s", key, why)
                    self._not_applied(action, why)
                else:
                    logger.info("resized %s: %s", key, shown(limits))
            case DumpStacks(key, told):
                logger.info("%s hangs: its stacks go into its log", key)
                await self._runtime.dump_stacks(key, told)
            case ShowMembers(order, signal_due):
                if why := await self._runtime.show_members(order, signal_due=signal_due):
                    logger.warning("not shown to %s: %s", action.key, why)
                self._shown(action, why)
