"""A tenant that does what it may to harm the others. It has a token of its own, and no more rights than any tenant."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tests.chaos.clock import boot_clock
from tests.chaos.engine import IMAGE
from tests.chaos.misdeeds import BY_JOBS, IN_CONTAINERS, Misdeed
from tests.chaos.wishes import COMMAND, PYTHON
from tests.chaos.world import ENGINE_POOL
from weft.client import Client, ClientError, Refused
from weft.domain.job import FINAL, JobState
from weft.messages.http import JobView
from weft.messages.sessions import SessionKind

TENANT = "hostile"
VANDAL = Path(__file__).with_name("vandal.py")
ASK_SECONDS_MAX = 40.0
AGAIN_SECONDS = 0.3
PAGE = 200
YAML_BYTES = 1 << 20
LARGE, LARGE_BYTES = 12, 900_000
MANY, MANY_AT_ONCE = 150, 16
SERVICES, UPDATES = 4, 4
LISTS, EVENTS = 6, 5000
SESSIONS, SESSION_LETTERS = 80, 4000
HIGH = 2
POLITE_SECONDS = 12.0  # so long that it has not done its work when it is interrupted
DEEP_FOLDER = """
cd "${WEFT_PROGRESS%/*}"
depth=0
while [ "$depth" -lt 1500 ]; do
  mkdir d && cd d || exit 0
  depth=$((depth + 1))
done
"""
LAST = {"priority": -1000}  # what only fills the queue is in nobody's way
ALL_GPUS = {"gpus": 4, "cpus": 0.1, "memory": "64MiB"}
NO_GPU = {"gpus": 0, "cpus": 0.1, "memory": "64MiB"}
OPEN = [state for state in JobState if state not in FINAL]
SMALL = {*BY_JOBS, *IN_CONTAINERS}  # jobs that end by themselves as soon as they ran
SMALL_SECONDS_MAX = 30.0  # to run and end, when nothing else of the tenant is in the queue


class Hostile:
    """`done` counts what it did, `answers` what it was answered. `polite` are its jobs that exit 0 when interrupted."""

    def __init__(self, client: Client, folder: Path, seed: int) -> None:
        self.done: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.polite: list[str] = []
        self._client = client
        self._folder = folder
        self._random = random.Random(f"hostile {seed}")
        self._tasks: set[asyncio.Task[None]] = set()

    async def come(self, misdeeds: list[Misdeed]) -> None:
        """Each at its time; returns when all have begun."""
        began = boot_clock()
        for misdeed in misdeeds:
            await asyncio.sleep(max(0.0, began + misdeed.at - boot_clock()))
            self.done[misdeed.what] += 1
            task = asyncio.create_task(self._do(misdeed))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self, seconds_max: float) -> None:
        """Begin nothing more, and cancel all that it has: the others' jobs have to end in time. Small jobs may end by
        themselves first, so that each misdeed by a job is done also where faults let nothing start."""
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._cancel(seconds_max, but=SMALL)
        with suppress(TimeoutError):
            async with asyncio.timeout(SMALL_SECONDS_MAX):
                while await self._open():  # noqa: ASYNC110 -- they end in their own time
                    await asyncio.sleep(AGAIN_SECONDS)
        await self._cancel(seconds_max)

    async def outcomes(self) -> Counter[str]:
        """Its small jobs by what they did and how they ended."""
        jobs, before = list[JobView](), 0
        while True:
            page = await self._client.jobs(limit=PAGE, before=before)
            jobs += page.jobs
            if page.before is None:
                break
            before = page.before
        named = ((_what(job), job.state) for job in jobs)
        return Counter(f"{what} {state}" for what, state in named if what in {*SMALL, "polite"})

    async def _cancel(self, seconds_max: float, *, but: Collection[str] = ()) -> None:
        """All of its open jobs `but` those misdeeds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while jobs := await self._open(but=but):
                    await asyncio.gather(*(self._ask(self._client.cancel(job)) for job in jobs))
                    await asyncio.sleep(AGAIN_SECONDS)

    async def _open(self, *, but: Collection[str] = ()) -> list[str]:
        try:
            found = (await self._client.jobs(states=OPEN, limit=PAGE)).jobs
        except ClientError:
            return [""]  # there may be some
        return [job.id for job in found if job.id not in self.polite and _what(job) not in but]

    async def _do(self, misdeed: Misdeed) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(ASK_SECONDS_MAX):
                await self._act(misdeed)

    async def _act(self, misdeed: Misdeed) -> None:
        name = f"{misdeed.what}-{misdeed.number}"
        match misdeed.what:
            case "base-60":
                await self._yaml(b"x: 1" + b":10" * (YAML_BYTES // 3 - 2))
            case "many-lists":
                await self._yaml(b"[" + b"[]," * (YAML_BYTES // 3 - 2))
            case "costly-pattern":
                letters = "".join(self._random.choices("abcdefgh", k=8))
                pattern = "(?i)(?P<a>x)" + "[!-\uffff]" * 195 + letters
                await self._submit(name, role=NO_GPU, progress={"pattern": pattern})
            case "large-specifications":
                await self._many(LARGE, name, env=self._large(), **LAST)
            case "large-updates":
                await self._updates(name)
            case "event-lists":
                await asyncio.gather(*(self._ask(self._client.events(after="0-0", limit=EVENTS)) for _ in range(LISTS)))
            case "many-sessions":
                await self._sessions(name)
            case "many-jobs":
                await self._many(MANY, name, **LAST)
            case "high-priority":
                await self._many(HIGH, name, priority=1000, preemptible=False, command=["sleep", "3"])
            case "contained-deep-folder":
                command = ["sh", "-c", DEEP_FOLDER]
                await self._runs_one(name, command=command, image=IMAGE, pool=ENGINE_POOL)
            case "polite":
                await self._polite(name)
            case _:
                assert misdeed.what in BY_JOBS, misdeed.what
                command = [PYTHON, "-I", "-S", str(VANDAL), misdeed.what]
                await self._runs_one(name, command=command)

    def _large(self) -> dict[str, str]:
        """An environment that is as large as one request may carry."""
        value = self._random.randbytes(LARGE_BYTES // 2).hex()
        return {f"V{at}": value[at : at + 30_000] for at in range(0, len(value), 30_000)}

    async def _updates(self, name: str) -> None:
        """Services that wait, updated several times. Each update is taken, or refused where the tenant is full."""
        role = {**ALL_GPUS, "replicas": {"want": 2}}
        for number in range(SERVICES):
            job = await self._submit(f"{name}-{number}", role=role, kind="inference", service={}, **LAST)
            for _ in range(UPDATES if job else 0):
                await self._ask(self._client.update(job, env=self._large()))

    async def _sessions(self, name: str) -> None:
        """More at once than a tenant may have: each leaves what it ran in the job's story."""
        job = await self._runs_one(name, command=["sleep", "20"])
        await self._insist(lambda: self._runs(job))

        async def one() -> None:
            async with self._client.enter(job, SessionKind.EXEC, command=["true", "x" * SESSION_LETTERS]) as session:
                async for _ in session.output():
                    pass

        await asyncio.gather(*(self._ask(one()) for _ in range(SESSIONS)))
        await self._ask(self._client.cancel(job))

    async def _polite(self, name: str) -> None:
        """A job that exits 0 when it is told to stop, and is put back into the queue as soon as it runs.

        Others' faults interrupt it too. It is tried until the time for one misdeed is over.
        """
        does = {"FOLDER": self._folder, "KEY": name, "SECONDS": POLITE_SECONDS, "POLITE": 1}
        env = {f"CHAOS_{what}": str(value) for what, value in does.items()}
        job = await self._runs_one(name, command=COMMAND, env=env)
        self.polite.append(job)
        await self._insist(lambda: self._runs(job))
        await self._insist(lambda: self._ask(self._client.requeue(job)))

    async def _runs_one(self, name: str, **fields: Any) -> str:
        """A small job, submitted with its key until that is answered."""
        job: str = await self._insist(lambda: self._submit(name, role=NO_GPU, **fields))
        return job

    async def _insist(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        while not (answer := await ask()):  # noqa: ASYNC110 -- a gateway may be away, and a job waits for room
            await asyncio.sleep(AGAIN_SECONDS)
        return answer

    async def _runs(self, job: str) -> bool:
        view = await self._ask(self._client.job(job))
        return view is not None and view.state is JobState.RUNNING

    async def _many(self, count: int, name: str, **fields: Any) -> None:
        for begin in range(0, count, MANY_AT_ONCE):
            batch = range(begin, min(count, begin + MANY_AT_ONCE))
            await asyncio.gather(*(self._submit(f"{name}-{number}", **fields) for number in batch))

    async def _submit(self, name: str, *, role: dict[str, Any] = ALL_GPUS, **fields: Any) -> str | None:
        made = {"name": name, "command": ["sleep", "5"], "roles": {"worker": role}, "grace": "1s", **fields}
        answer = await self._ask(self._client.submit(msgspec.json.encode(made), key=name))
        return None if answer is None else answer.id

    async def _yaml(self, body: bytes) -> None:
        await self._ask(self._client.submit(body, content="yaml"))

    async def _ask(self, asking: Coroutine[Any, Any, Any]) -> Any:
        """The answer, or None where it was refused or lost."""
        try:
            answer = await asking
        except Refused as error:
            self.answers[str(error.status)] += 1
        except ClientError as error:
            self.answers[type(error).__name__] += 1
        else:
            self.answers["accepted"] += 1
            return answer
        return None


def _what(job: JobView) -> str:
    """The misdeed that a job is named after."""
    return job.name.rpartition("-")[0]
