"""Who uses the cluster meanwhile: they submit over HTTP, each job with its key until that is answered, and ask more."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial

from msgspec import Struct

from tests.chaos.clock import boot_clock
from tests.chaos.services import COMMAND, VERSION
from tests.chaos.wishes import Asking, Wish
from weft.client import Client, ClientError, Refused
from weft.domain.job import FINAL

ANSWER_SECONDS_MAX = 3.0
PAUSE_SECONDS = 0.2
STANDS_STILL_SECONDS = 60.0  # longer than any back-off, and than it takes to hear of all nodes


class Submission(Struct, kw_only=True):
    """What one customer knows of one job: times in boot seconds, every id that was answered for the key."""

    wish: Wish
    asked_at: float = 0.0
    acked_at: float | None = None
    ids: list[str] = []
    tries: int = 0
    refused: str = ""

    @property
    def id(self) -> str:
        return self.ids[0]


class Customers:
    """`asked` counts what was asked beside submissions and accepted; `cancelled` are the services of which it was asked
    that they end."""

    def __init__(self, client: Client, nodes: tuple[str, ...]) -> None:
        self.submissions: list[Submission] = []
        self.asked: Counter[str] = Counter()
        self.cancelled: set[str] = set()
        self._client = client
        self._nodes = nodes
        self._tasks: set[asyncio.Task[None]] = set()

    async def come(self, wishes: list[Wish], askings: list[Asking]) -> None:
        """Submit and ask, each at its time; returns when all was submitted or asked once."""
        began = boot_clock()
        coming: list[Wish | Asking] = [*wishes, *askings]
        for one in sorted(coming, key=lambda one: one.at):
            await asyncio.sleep(max(0.0, began + one.at - boot_clock()))
            if isinstance(one, Wish):
                self.submissions.append(Submission(wish=one, asked_at=boot_clock()))
                self._go(self._submit(self.submissions[-1]))
            else:
                self._go(self._ask(one))

    async def settle(self, seconds_max: float) -> None:
        """Return when every submission was answered; those that were not by then never are."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds_max)
        for task in self._tasks:
            task.cancel()

    async def resume_all(self) -> None:
        for node in self._nodes:
            await self._client.resume(node)

    def _go(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _submit(self, submission: Submission) -> None:
        """Until it is acknowledged. An error says nothing: it may be stored or not, so the same key is sent again."""
        wish = submission.wish
        while True:
            submission.tries += 1
            try:
                async with asyncio.timeout(ANSWER_SECONDS_MAX):
                    answer = await self._client.submit(wish.spec, key=wish.key)
            except Refused as error:
                if error.status not in (429, 502, 503, 504):
                    submission.refused = str(error)
                    return
            except (ClientError, TimeoutError):
                pass
            else:
                if submission.acked_at is None:
                    submission.acked_at = boot_clock()
                if answer.id not in submission.ids:
                    submission.ids = [*submission.ids, answer.id]
                    self._use(answer.id, wish)
                return
            await asyncio.sleep(PAUSE_SECONDS)

    def _use(self, job_id: str, wish: Wish) -> None:
        for after, ranks in wish.sizes:
            self._go(self._change("scale", after, partial(self._client.scale, job_id, {"worker": ranks})))
        for number, (after, hangs) in enumerate(wish.updates, 1):
            self._go(self._change("update", after, partial(self._update, job_id, number, hangs=hangs)))
        if wish.cancelled_after is not None:
            self._go(self._cancel(job_id, wish.cancelled_after))

    async def _change(self, what: str, after: float, ask: Callable[[], Awaitable[object]]) -> None:
        """Once, too."""
        await asyncio.sleep(after)
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                await ask()
                self.asked[what] += 1

    async def _update(self, job_id: str, number: int, *, hangs: bool) -> None:
        """A service of which no replica ever worked has no revision to go back to: it is not made to hang."""
        worked = hangs and any(event.data.worked for event in await self._client.story(job_id))
        version = str(number)  # in the environment, which replicas have, and in the command, which events tell
        env = {VERSION: version, "HANG": str(int(worked))}
        await self._client.update(job_id, command=(*COMMAND, version), env=env)

    async def _cancel(self, job_id: str, after: float) -> None:
        await asyncio.sleep(after)
        self.cancelled.add(job_id)
        await self._change("cancel", 0.0, partial(self._client.cancel, job_id))

    async def _ask(self, asking: Asking) -> None:
        """Once: whether it is answered or not, nothing may go wrong by it."""
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                if asking.what == "drain":
                    await self._drain(self._nodes[int(asking.luck * len(self._nodes))])
                elif known := [one for one in self.submissions if one.ids]:
                    await self._ask_of_job(asking, known)

    async def _ask_of_job(self, asking: Asking, known: list[Submission]) -> None:
        """Mostly of a young one, which is not over yet."""
        if asking.what == "scale":
            known = [one for one in known if one.wish.steps] or known
        chosen = known[max(0, len(known) - 1 - int(asking.luck**2 * 20))]
        match asking.what:
            case "cancel":
                await self._client.cancel(chosen.id)
            case "requeue":
                await self._client.requeue(chosen.id)
            case "scale":
                replicas = chosen.wish.spec.roles["worker"].replicas
                sizes = range(replicas.least, replicas.most + 2)  # the last is one too many
                await self._client.scale(chosen.id, {"worker": sizes[int(asking.luck * 1000) % len(sizes)]})
            case "prioritise":
                await self._client.prioritise(chosen.id, int(asking.luck * 100))
            case _:
                await self._submit(chosen)
        self.asked[asking.what] += 1

    async def _drain(self, node: str) -> None:
        await self._client.drain(node)
        self.asked["drain"] += 1
        await asyncio.sleep(2 * PAUSE_SECONDS)
        await self._client.resume(node)


async def all_over(client: Client, submissions: list[Submission], seconds_max: float) -> None:
    """Return when no job of theirs is open. When the time is up, as soon as none of those that are open has got any
    further for a while: what is late is not stuck. At the latest after three times the time."""
    left = {one.id for one in submissions if one.ids}
    until = boot_clock() + seconds_max
    seen: dict[str, object] = {}
    moved_at = boot_clock()
    with suppress(TimeoutError):
        async with asyncio.timeout(3 * seconds_max):
            while left and boot_clock() < max(until, moved_at + STANDS_STILL_SECONDS):
                for job_id in sorted(left):
                    with suppress(ClientError):
                        found = await _got_to(client, job_id)
                        if found != seen.get(job_id):
                            seen[job_id], moved_at = found, boot_clock()
                        if found is None:
                            left.discard(job_id)
                await asyncio.sleep(PAUSE_SECONDS)


async def _got_to(client: Client, job_id: str) -> object:
    """How far an open job has got; None of a job that is over, or is not there."""
    try:
        job = await client.job(job_id)
    except Refused as error:
        if error.status == 404:
            return None
        raise
    return None if job.state in FINAL else (job.epoch, job.state, job.progress)
