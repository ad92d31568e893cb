"""The executor's shell: takes answers and hints, and makes the node's runs follow."""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from weft.bus import Bus, BusError
from weft.domain.cluster import Capacity
from weft.messages.files import DeleteFiles, FilesKept, ListFiles, ReadFile
from weft.messages.nodes import LogRead, NodeHinted, ProgressSeen, ReadLog
from weft.messages.serving import ServicesServed
from weft.messages.sessions import OpenSession, ReadSession, SessionLeft, SessionLeftNoted, WriteSession
from weft.messages.signals import NodeSampled, SpeedsMeasured
from weft.service import Answer, Every, Listen, serve
from weftd.executor.agent import Agent
from weftd.executor.files.job_files import JobFiles
from weftd.executor.files.job_folders import JobFolders
from weftd.executor.files.secrets import SecretFiles
from weftd.executor.logs.progress import ProgressSource
from weftd.executor.logs.retention import Retention
from weftd.executor.preflight import Preflight
from weftd.executor.runs import RunKey, Runtime, RuntimeUnavailableError
from weftd.executor.serving.probing import TELL_SECONDS, Prober
from weftd.executor.sessions.sessions import Sessions
from weftd.executor.settings import ExecutorSettings
from weftd.executor.state_file import StateFile
from weftd.executor.thinking.core import Reconciler, ReconcilerTimings
from weftd.executor.thinking.telling import Telling

A = TypeVar("A")
R = TypeVar("R")

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.5
PROGRESS_SECONDS = 0.5
RETENTION_SECONDS = 0.5
FOLDERS = ("results", "checkpoints", "metrics")
SHRINK_SECONDS = 600.0
KEPT_SECONDS = 60.0
KEPT_COST_MAX = 20.0  # adding up the bytes of all files takes at most this part of the time: 1/20
UPLOAD_LOOK_SECONDS = 0.5
FILES_AT_ONCE = 32  # requests that are in work or wait for a thread
FILES_THREADS = 2
LOG_WAIT_SECONDS_MAX = 10.0
LOG_LOOK_SECONDS = 0.1
LOG_BYTES_MAX = 512 * 1024  # as JSON it still fits into one message
LOG_READERS_MAX = 512
SESSIONS_AT_ONCE = 512  # requests in work
SESSIONS_SECONDS = 0.5
LEFT_SECONDS = 5.0  # between two tries to tell a gateway of sessions that ended while there was none
LEFT_ANSWER_SECONDS_MAX = 3.0
STOP_SECONDS_MAX = 65.0  # the drain of those that serve requests, and the grace
LEAVE_SECONDS_MAX = 5.0


async def run(
    settings: ExecutorSettings,
    *,
    bus: Bus,
    runtime: Runtime,
    progress: ProgressSource,
    state_file: StateFile,
    capacity: Callable[[], Capacity],
    stop: asyncio.Event,
    clock: Callable[[], float],
    jitter: Callable[[], float],
    retention: Retention | None = None,
    secret_files: SecretFiles | None = None,
    job_files: JobFiles | None = None,
    now: Callable[[], float] = time.time,
    stop_jobs_on_exit: bool = False,
) -> None:
    """Run until `stop` is set. The node's runs go on, unless they are to be stopped on exit.

    `capacity` is asked before each report: the node's GPUs may come late.
    """
    ending = asyncio.Event()
    timings = ReconcilerTimings(
        fence_seconds=settings.fence_seconds if settings.fencing else math.inf, fence_grace_max=settings.fence_grace_max
    )
    home = settings.home.absolute()
    async with asyncio.TaskGroup() as tasks:
        reconciler = Reconciler(timings, state_file.memory)
        preflight = Preflight(home / "preflight.json", gpus=lambda: capacity().gpus, slowdowns=str(home / "emulated"))
        agent = Agent(
            bus=bus,
            runtime=runtime,
            reconciler=reconciler,
            state_file=state_file,
            progress=progress,
            settings=settings,
            capacity=capacity,
            secret_files=secret_files or SecretFiles(settings.home.absolute() / "secrets"),
            job_files=job_files or JobFiles(*(JobFolders(f"{home}/{area}") for area in FOLDERS)),
            preflight=preflight,
            tasks=tasks,
            clock=clock,
            jitter=jitter,
        )

        prober = Prober(
            bus=bus,
            runtime=runtime,
            serving=reconciler.serving,
            node_id=settings.node_id,
            incarnation=state_file.incarnation,
            tasks=tasks,
            clock=clock,
            now=now,
            changed=agent.touch,
        )
        telling = Telling()
        kept: FilesKept | None = None
        measured_at = took = 0.0
        sessions = Sessions(runtime, settings.entering, clock=clock)
        await sessions.begin()

        async def look_at_sessions() -> None:
            if sessions.count or sessions.kept:
                runs = await agent.runs()
                await sessions.tick(None if runs is None else {run.key for run in runs if run.live})

        async def tell_left() -> None:
            for session in sessions.untold:
                left = SessionLeft(
                    node_id=settings.node_id,
                    session_id=session.id,
                    job_id=session.key.job_id,
                    epoch=session.key.epoch,
                    rank=session.key.rank,
                    port=session.port,
                    status=session.exit_status,
                    reason=session.reason,
                )
                await bus.request(left, SessionLeftNoted, seconds_max=LEFT_ANSWER_SECONDS_MAX)
                session.told = True

        async def hinted(_: NodeHinted) -> None:
            agent.hint()

        async def sampled(told: NodeSampled) -> None:
            reconciler.note_outside(outside_of(told), now=clock())
            agent.hear_sample(told)

        async def tick() -> None:
            await agent.tick()
            prober.wake()

        async def read(ask: ReadLog) -> LogRead:
            return await read_log(runtime, ask)

        async def tell_progress() -> None:
            told = await progress.look(await agent.runs() or ())
            await agent.watch_work(told)
            for runs in telling.due(agent.copying() | told, now=clock()):
                await bus.publish(ProgressSeen(node_id=settings.node_id, runs=runs))

        async def keep_logs() -> None:
            if retention is not None:
                runs = await agent.runs()
                held = None if runs is None else [run.key for run in runs]
                agent.gauges.show_logs(await asyncio.to_thread(retention.look, held, now=now()))

        async def shrink() -> None:
            runs = await agent.runs()
            if job_files is not None and runs is not None:
                await asyncio.to_thread(job_files.shrink, {run.key.job_id for run in runs})

        async def tell_kept() -> None:
            nonlocal kept, measured_at, took
            began = clock()
            if job_files is not None and (kept is None or began - measured_at >= KEPT_COST_MAX * took):
                kept = await asyncio.to_thread(job_files.kept, settings.node_id)
                measured_at, took = began, clock() - began
            if kept is not None:
                await bus.publish(kept)

        async def end() -> None:
            await stop.wait()
            if stop_jobs_on_exit:
                await _stop_jobs(agent)
            ending.set()

        beside = [tasks.create_task(agent.watch()), tasks.create_task(end()), tasks.create_task(prober.ask())]
        here = {"node_id": settings.node_id}
        file_threads = ThreadPoolExecutor(FILES_THREADS, thread_name_prefix="files")
        await serve(
            "executor",
            bus=bus,
            stop=ending,
            listens=[
                Listen(NodeHinted, hinted, group="", tokens=here),
                Listen(NodeSampled, sampled, group="", tokens=here),
                Listen(ServicesServed, prober.heard, group=""),
                Listen(SpeedsMeasured, preflight.heard, group=""),
            ],
            answers=[
                Answer(ReadLog, read, group="", at_once=LOG_READERS_MAX, tokens=here),
                Answer(OpenSession, sessions.open, group="", at_once=SESSIONS_AT_ONCE, tokens=here),
                Answer(ReadSession, sessions.read, group="", at_once=SESSIONS_AT_ONCE, tokens=here),
                Answer(WriteSession, sessions.write, group="", at_once=SESSIONS_AT_ONCE, tokens=here),
                *([] if job_files is None else answers_about(job_files, file_threads, here)),
            ],
            loops=[
                Every(settings.sync_seconds, agent.speak, wake=agent.woken, name="sync"),
                Every(TICK_SECONDS, tick, wake=agent.touched),
                Every(PROGRESS_SECONDS, tell_progress),
                Every(TELL_SECONDS, prober.tell, wake=prober.news, name="endpoints"),
                Every(RETENTION_SECONDS, keep_logs),
                Every(UPLOAD_LOOK_SECONDS, agent.upload, name="uploads"),
                Every(SHRINK_SECONDS, shrink, retry_on=(OSError,), name="shrink"),
                Every(KEPT_SECONDS, tell_kept, retry_on=(OSError, BusError), name="kept"),
                Every(SESSIONS_SECONDS, look_at_sessions, name="sessions"),
                Every(LEFT_SECONDS, tell_left, retry_on=(BusError,), name="left"),
            ],
            registry=agent.gauges.registry,
            admin_port=settings.admin_port,
            admin_host=settings.admin_host,
        )
        file_threads.shutdown(wait=False, cancel_futures=True)
        await sessions.close()
        for task in beside:
            task.cancel()
        prober.drop()
        agent.actions.drop()
        agent.close()
    await progress.close()


def answers_about(job_files: JobFiles, threads: Executor, here: Mapping[str, str]) -> list[Answer[Any]]:
    """The answers about files of jobs, from `threads` of their own: a slow disk, or folders without end, must not hold
    up a start or a stop."""

    def asked(look: Callable[[A], R]) -> Callable[[A], Awaitable[R]]:
        async def answer(ask: A) -> R:
            return await asyncio.get_running_loop().run_in_executor(threads, look, ask)

        return answer

    return [
        Answer(ListFiles, asked(job_files.list), group="", at_once=FILES_AT_ONCE, tokens=here),
        Answer(ReadFile, asked(job_files.read), group="", at_once=FILES_AT_ONCE, tokens=here),
        Answer(DeleteFiles, asked(job_files.delete), group="", at_once=FILES_AT_ONCE, tokens=here),
    ]


def outside_of(told: NodeSampled) -> dict[RunKey, bool]:
    """For runs with shares: whether a process of the run uses the GPU outside its share, if that is known."""
    return {
        RunKey(run.job_id, run.epoch, run.rank): run.share.outside > 0
        for run in told.runs
        if run.share is not None and run.share.outside is not None
    }


async def read_log(runtime: Runtime, ask: ReadLog) -> LogRead:
    """Answer with bytes as soon as there are some, or with none when `wait` is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + min(ask.wait, LOG_WAIT_SECONDS_MAX)
    key = RunKey(ask.job_id, ask.epoch, ask.rank)
    while True:
        chunk = await runtime.read_log(key, offset=ask.offset, limit=min(ask.limit, LOG_BYTES_MAX))
        left = deadline - loop.time()
        if chunk.data or chunk.ended or chunk.missing or left <= 0:
            return LogRead(
                offset=max(ask.offset, chunk.begins),
                data=chunk.data,
                ended=chunk.ended,
                missing=chunk.missing,
                begins=chunk.begins,
                size=chunk.size,
                dropped_at=chunk.dropped_at,
                dropped_bytes=chunk.dropped_bytes,
            )
        await asyncio.sleep(min(LOG_LOOK_SECONDS, left))


async def _stop_jobs(agent: Agent) -> None:
    try:
        async with asyncio.timeout(STOP_SECONDS_MAX):
            await agent.stop_all()
    except (TimeoutError, RuntimeUnavailableError):
        logger.warning("this executor stops while some runs have not ended; the next one finds them")
        return
    with suppress(TimeoutError, RuntimeUnavailableError):  # The next executor reports them.
        async with asyncio.timeout(LEAVE_SECONDS_MAX):
            await agent.leave()
