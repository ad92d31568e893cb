"""Syncs the node with the control plane, and reconciles the node's runs.

One request is in flight at a time. A hint or a change starts a sync at once, but never more often than every
GAP_SECONDS, so a burst makes few syncs; without an answer it retries for ever, backing off.
"""

import asyncio
import logging
import math
import os
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from weft.bus import Bus, BusClosedError, BusError
from weft.domain.cluster import Capacity
from weft.domain.labels import labels_of
from weft.messages.nodes import (
    DATA_COPIED,
    DATA_TO_COPY,
    NodeDesired,
    NodeReported,
    RunSeen,
    RunState,
    StartRun,
)
from weft.messages.signals import NodeSampled
from weftd.executor.actions import Actions
from weftd.executor.data.cache import DataCache
from weftd.executor.data.uploads import Uploads
from weftd.executor.files.checkpoints import Checkpoints
from weftd.executor.files.contexts import Contexts
from weftd.executor.files.job_files import JobFiles
from weftd.executor.files.job_folders import OF_ANY_USER, OWN
from weftd.executor.files.secrets import SecretFiles, with_secrets
from weftd.executor.logs.progress import ProgressSource
from weftd.executor.metrics import ExecutorGauges
from weftd.executor.preflight import Preflight
from weftd.executor.registry import RegistryImages
from weftd.executor.runs import Run, RunKey, Runtime, RuntimeUnavailableError
from weftd.executor.serving.logends import LogEnds, Timeouts
from weftd.executor.settings import ExecutorSettings
from weftd.executor.state_file import StateFile
from weftd.executor.thinking.core import Action, DumpStacks, Reconciler, Start
from weftd.executor.thinking.hangs import StillWatch
from weftd.executor.thinking.health import SignWatch
from weftd.executor.thinking.telling import Told

logger = logging.getLogger(__name__)

BACKOFF_SECONDS = 0.1
STOP_LOOK_SECONDS = 0.1
ANSWER_SECONDS_MAX = 3.0
LOOK_SECONDS = 10.0  # between two looks at which runs wrote something
GAP_SECONDS = 0.02  # between two syncs, whatever their cause


class Agent:
    def __init__(
        self,
        *,
        bus: Bus,
        runtime: Runtime,
        reconciler: Reconciler,
        state_file: StateFile,
        progress: ProgressSource,
        settings: ExecutorSettings,
        capacity: Callable[[], Capacity],
        secret_files: SecretFiles,
        job_files: JobFiles,
        preflight: Preflight,
        tasks: asyncio.TaskGroup,
        clock: Callable[[], float],
        jitter: Callable[[], float],
    ) -> None:
        self._bus, self._runtime, self._core, self._state_file = bus, runtime, reconciler, state_file
        self._progress, self._settings, self._capacity = progress, settings, capacity
        self._clock, self._jitter = clock, jitter
        self._contexts = Contexts(settings.home.absolute(), bus, node_id=settings.node_id)
        self._data = DataCache(settings.home.absolute(), bus, settings.data, node_id=settings.node_id, clock=clock)
        self._uploads = Uploads(
            settings.home.absolute(),
            bus,
            settings.data,
            node_id=settings.node_id,
            mode=OF_ANY_USER if settings.runtime == "docker" else OWN,
            clock=clock,
        )
        self._secret_files, self._preflight = secret_files, preflight
        self.actions = Actions(
            runtime,
            tasks,
            with_secrets=lambda order: with_secrets(order, bus, node_id=settings.node_id, files=secret_files),
            preflight=self._check,
            bring_files=self._contexts.bring,
            bring_checkpoint=Checkpoints(job_files, bus, node_id=settings.node_id).bring,
            bring_data=self._bring_data,
            bring_image=RegistryImages(bus, runtime, node_id=settings.node_id, clock=clock).bring,
            permits=lambda key: reconciler.permits(key, clock()),
            done=self._note_done,
            failed=reconciler.undo,
            not_applied=reconciler.not_applied,
            shown=reconciler.shown,
        )
        self.woken = asyncio.Event()  # there is a reason to sync
        self.touched = asyncio.Event()  # there is a reason to decide
        self.gauges = ExecutorGauges()
        self._hinted = asyncio.Event()
        self._reconciling = asyncio.Lock()
        self._leaving = False
        self._seq = 0
        self._tried = False
        self._failures = 0
        self._refused = ""
        self._last_words = LogEnds(runtime)
        self._timeouts = Timeouts(runtime)
        self._sign_watch = SignWatch()
        self._still_watch = StillWatch(settings.still_seconds)
        self._looked_at = -math.inf
        self._unjudged = False  # the end of a run is not reported before the next sample

    async def _bring_data(self, order: StartRun) -> StartRun:
        """The order with the folders of its mounts and outputs. Raises as `DataCache.bring`."""
        key = RunKey.of(order)
        if order.mounts:
            order = await self._data.bring(order, permitted=lambda: self._core.permits(key, self._clock()))
        try:
            return self._uploads.begin(order)
        except OSError as error:
            raise RuntimeUnavailableError(f"its outputs cannot be kept here now: {error.strerror or error}") from error

    async def upload(self) -> None:
        """Begin the uploads of outputs that are due, and report ends that waited for them."""
        runs = await self.runs()
        if runs is None:
            return
        self._uploads.look(runs)
        self._uploads.keep({*(run.key for run in runs), *self.actions.busy})
        if self._uploads.changed.is_set():
            self._uploads.changed.clear()
            self.touch()

    def close(self) -> None:
        """End the copies and uploads in progress: the next executor goes on with them."""
        self._data.close()
        self._uploads.close()

    def copying(self) -> dict[RunKey, Told]:
        """The progress of the copies that starts wait for."""
        return {
            key: Told(progress={DATA_COPIED: float(copied), DATA_TO_COPY: float(size)})
            for key, (copied, size) in self._data.copying.items()
        }

    def touch(self) -> None:
        """Decide and report, as something on this node may have changed."""
        self.woken.set()
        self.touched.set()

    def hear_sample(self, told: NodeSampled) -> None:
        """Take in a sample of this node's telemetry; other signs of sickness are reported at once."""
        gpus_of = self._core.gpus_of_runs()
        held = {gpu for gpus in gpus_of.values() for gpu in gpus}
        if self._sign_watch.see(told, self._clock(), held) or self._unjudged:
            self.woken.set()
        self._still_watch.sampled(told, gpus_of, self._clock())

    async def watch_work(self, told: Mapping[RunKey, Told]) -> None:
        """Note which runs with GPUs wrote something, or went on, since the last look."""
        now = self._clock()
        if now < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        keys = list(self._core.gpus_of_runs())
        self._still_watch.keep(keys)
        for key in keys:
            log, known = await self._runtime.read_log(key, offset=0, limit=1), told.get(key, Told(progress={}))
            pace = 0.0 if known.pace is None else known.pace.step_seconds
            self._still_watch.wrote(key, now, log_bytes=log.size, progress=known.progress, step_seconds=pace)

    def _note_done(self, action: Action) -> None:
        """Decide, and report. A start that is done is reported once the runtime notices that the run began or ended."""
        if isinstance(action, Start):
            self.touched.set()
        else:
            self.touch()

    async def _check(self, order: StartRun) -> str:
        """Why a run may not start on its GPUs, which is reported at once. Without telemetry there are no signs."""
        why = "" if self._sign_watch.signs is None else await self._preflight.why_not(order)
        if why:
            self.woken.set()
        return why

    def hint(self) -> None:
        """Note that the control plane asks for a report; it is reachable, so end the back-off."""
        self._hinted.set()
        self.woken.set()

    async def speak(self) -> None:
        """Sync and reconcile once, then wait for GAP_SECONDS, or for the back-off if there was no answer."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.woken.clear()
        self._hinted.clear()
        answered = await self._sync()
        self._tried = True
        await self.reconcile()
        self._failures = 0 if answered else self._failures + 1
        if answered:
            await asyncio.sleep(max(0.0, began + GAP_SECONDS - loop.time()))
        else:
            await _set_within(self._hinted, self._backoff())
            self.woken.set()

    async def watch(self) -> None:
        """Wait for changes on the node, for ever."""
        while True:
            await self._runtime.changed()
            self.touch()

    async def tick(self) -> None:
        """Decide regularly, because graces end and fences fall without an event. Not before the first try to sync."""
        if self._unjudged:
            self.woken.set()
        if self._tried:
            await self.reconcile()

    async def reconcile(self) -> None:
        async with self._reconciling:
            runs = await self.runs()
            if runs is not None:
                now = self._clock()
                self._note_fenced(runs)
                self._contexts.keep({*(run.key for run in runs), *self.actions.busy})
                self._data.keep({*(run.key for run in runs), *self.actions.busy})
                self._secret_files.keep({*(run.key for run in runs if run.live), *self.actions.busy})
                actions = self._core.decide(runs, busy=self.actions.busy, now=now)
                self._state_file.save(self._core.memory)  # before the action, so that its cause survives a crash
                for dump in actions:
                    if isinstance(dump, DumpStacks):
                        self._still_watch.dumps(dump.key, now)
                self.gauges.show(runs, actions, fenced=self._core.fenced(now))
                self.actions.take(actions)

    async def stop_all(self) -> None:
        """End every run, as if it were no longer desired, and return when all are gone or killed."""
        self._leaving = True
        self._core.close()
        while (runs := await self.runs()) is None or any(run.live for run in runs):
            await self.reconcile()
            await asyncio.sleep(STOP_LOOK_SECONDS)
        self._secret_files.keep(self.actions.busy)

    async def leave(self) -> None:
        """Return when the control plane knows the end of every run, so that no record of them is needed."""
        self.touch()
        while (runs := await self.runs()) is None or runs:
            self.woken.set()
            await asyncio.sleep(STOP_LOOK_SECONDS)

    async def _sync(self) -> bool:
        """Report the runs and take the answer. False: not answered, or refused."""
        runs = await self.runs()
        if runs is None:  # A node that does not know its runs must not report that it has none.
            return False
        self._note_fenced(runs)
        await self._progress.settle([run for run in runs if not run.live])
        words = await self._last_words.of(runs, self._core.serving, now=self._clock())
        self._core.serving.hear_words(runs, self._last_words.lines, self._clock())
        self._unjudged = False
        self._sign_watch.keep({run.key for run in runs})
        seen = self._core.report(
            runs,
            self._progress.latest,
            beginning=self.actions.beginning,
            last_words=words,
            timed_out=await self._timeouts.of(runs),
            unjudged=self._is_unjudged,
            uploading=self._uploads.waits,
            not_uploaded=self._uploads.given_up,
        )
        seen = tuple(map(self._with_stillness, seen))
        self._seq += 1
        sent_at = self._clock()
        try:
            answer = await self._bus.request(
                NodeReported(
                    node_id=self._settings.node_id,
                    pool=self._settings.pool,
                    address=self._settings.address,
                    boot_id=self._state_file.boot_id,
                    incarnation=self._state_file.incarnation,
                    seq=self._seq,
                    capacity=self._capacity(),
                    runs=seen,
                    runtime=self._runtime.name,
                    not_enforced=self._runtime.not_enforced,
                    leaving=self._leaving,
                    ending=self._announces_end(),
                    leader=self._core.leader,
                    rack=self._settings.rack,
                    labels=labels_of(self._settings.labels),
                    taints=labels_of(self._settings.taints),
                    holds=self._core.holds,
                    signs=self._preflight.with_failed(self._sign_watch.signs),
                ),
                NodeDesired,
                seconds_max=ANSWER_SECONDS_MAX,
            )
        except BusClosedError:
            raise
        except BusError as error:
            if self._failures == 0:
                logger.warning("the control plane does not answer, will retry: %s", error)
            return False
        if answer.refused != self._refused:
            self._refused = answer.refused
            if answer.refused:
                logger.warning("the control plane refuses our reports: %s", answer.refused)
        if answer.refused or answer.seq != self._seq:
            return False
        if self._failures:
            logger.info("the control plane answers again")
        self._core.observe(answer, reported=seen, sent_at=sent_at)
        self._progress.patterns = self._core.patterns()
        # Before a run starts by this answer: a restart must know the time of this sync.
        self._state_file.save(self._core.memory)
        return True

    def _announces_end(self) -> bool:
        """Return True if the file exists by which a pre-emptible node announces its shutdown."""
        return self._settings.ending_file is not None and os.path.lexists(self._settings.ending_file)

    def _with_stillness(self, run: RunSeen) -> RunSeen:
        if run.state is not RunState.RUNNING:
            return run
        key, now = RunKey(run.job_id, run.epoch, run.rank), self._clock()
        still, idle = self._still_watch.still(key, now), self._still_watch.idle_seconds(key, now)
        if not (still.seconds or idle):
            return run
        return replace(run, still_seconds=still.seconds, still_use=still.use, idle_seconds=idle)

    def _is_unjudged(self, run: Run) -> bool:
        waits = self._sign_watch.awaits_sample(run.key, run.ended_at, self._clock())
        self._unjudged = self._unjudged or waits
        return waits

    async def runs(self) -> list[Run] | None:
        """The runtime's runs, or None if it does not work now."""
        try:
            return await self._runtime.runs()
        except RuntimeUnavailableError as error:
            logger.warning("the %s runtime does not answer: %s", self._runtime.name, error)
            return None

    def _note_fenced(self, runs: list[Run]) -> None:
        """Note the guard's stops. Called after the runs were read: the guard notes a run before it ends it."""
        self._core.note_fenced(self._state_file.fenced() & {run.key for run in runs}, now=self._clock())

    def _backoff(self) -> float:
        longest = min(self._settings.sync_seconds, BACKOFF_SECONDS * 2.0 ** min(self._failures, 10))
        return longest * (0.5 + 0.5 * self._jitter())


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
