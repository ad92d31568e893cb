"""A Postgres that is made up, over the store in memory: slow, away, cut off from one process, or silent after the deed.

A statement runs in the server, at once and as a whole, whatever becomes meanwhile of the process that sent it: it may
be dead by then, or have given up waiting.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from tests.simulation.history import History
from tests.simulation.place import Place
from tests.support.doubles.store import MemoryStore
from weft.store import StoreError, StoreUnavailableError

COMMAND_SECONDS_MAX = 5.0
QUIET = frozenset({"access", "asks", "lease", "nodes", "unsent", "story", "events", "scores", "open_jobs", "job"})

APART = ("_witness",)  # of the simulation, not of the store


class Quality(Struct):
    seconds: tuple[float, float] = (0.0005, 0.004)
    slow: float = 0.0
    slow_seconds: tuple[float, float] = (0.05, 7.0)
    fails_before: float = 0.0
    fails_after: float = 0.0  # the deed is done, and whoever asked does not hear of it


class Database:
    def __init__(
        self, store: MemoryStore, loop: asyncio.AbstractEventLoop, dice: random.Random, history: History
    ) -> None:
        self.store = store
        self.loop = loop
        self.dice = dice
        self.history = history
        self.context = contextvars.copy_context()
        self.quality = Quality()
        self.down = False
        self.hangs = False
        self.life = 0
        self.after_statement: Callable[[str], None] = lambda _: None

    def go_down(self) -> None:
        """What is in hand is not done, or done and not answered."""
        self.down = True
        self.life += 1

    def come_up(self) -> None:
        self.down = False

    def back_up(self) -> dict[str, Any]:
        """A copy of all that is stored."""
        return {name: _copy(part) for name, part in vars(self.store).items() if name not in APART}

    def restore(self, backup: dict[str, Any]) -> None:
        """The store is as it was when it was backed up."""
        vars(self.store).update({name: _copy(part) for name, part in backup.items()})

    def seconds(self) -> float:
        quality = self.quality
        if quality.slow and self.dice.random() < quality.slow:
            return self.dice.uniform(*quality.slow_seconds)
        return self.dice.uniform(*quality.seconds)

    def happens(self, chance: float) -> bool:
        return chance > 0 and self.dice.random() < chance


class SimStore:
    """The store as one process has it: every method of the one in memory, through a connection."""

    def __init__(self, database: Database, place: Place) -> None:
        self._database = database
        self._place = place
        self._up = asyncio.Event()
        self._up.set()

    def cut(self) -> None:
        self._up.clear()

    def heal(self) -> None:
        self._up.set()

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        async def ask(*arguments: Any, **named: Any) -> Any:
            return await self._ask(name, arguments, named)

        setattr(self, name, ask)
        return ask

    async def _ask(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        await self._place.point(f"store {name}")
        database = self._database
        if database.happens(database.quality.fails_before):
            await asyncio.sleep(database.seconds())
            raise StoreUnavailableError(f"{name}: the connection broke before")
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        statement = _Statement(self, name, arguments, named, answer)
        statement.send()
        try:
            async with asyncio.timeout(COMMAND_SECONDS_MAX):
                result = await answer
        except TimeoutError:
            raise StoreUnavailableError(f"{name}: no answer within {COMMAND_SECONDS_MAX} s") from None
        finally:
            await self._place.point(f"stored {name}")
        return result


class _Statement:
    """One statement on its way: it is done when it arrives, and answered when its answer does."""

    def __init__(
        self,
        store: SimStore,
        name: str,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        answer: "asyncio.Future[Any]",
    ) -> None:
        self._store = store
        self._database = store._database
        self._life = self._database.life
        self._name = name
        self._arguments = arguments
        self._named = named
        self._answer = answer

    def send(self) -> None:
        self._later(self._database.seconds(), self._arrive)

    def _later(self, seconds: float, do: Callable[..., None], *arguments: Any) -> None:
        self._database.loop.call_later(seconds, do, *arguments, context=self._database.context)

    def _arrive(self) -> None:
        database = self._database
        if database.down or database.life != self._life:
            self._later(database.seconds(), self._broken, "refused")
        elif database.hangs:
            self._later(0.5, self._arrive)
        elif not self._store._up.is_set():
            # In the socket of a link that is dead: when it heals, it may still arrive.
            if database.dice.random() < 0.5:
                self._later(database.dice.uniform(0.1, 2.0), self._arrive)
            else:
                self._later(database.dice.uniform(0.1, COMMAND_SECONDS_MAX), self._broken, "cut")
        else:
            self._do()

    def _do(self) -> None:
        database, name = self._database, self._name
        method = getattr(database.store, name)
        error: Exception | None = None
        result: Any = None
        try:
            result = _at_once(method(*self._arguments, **self._named))
        except (StoreError, AssertionError) as raised:
            error = raised
        if name not in QUIET or error is not None:
            database.history.note("postgres", f"{self._store._place.name} {name} → {_shown(error or result)}")
        database.history.counts["statements"] += 1
        database.after_statement(name)
        if database.happens(database.quality.fails_after):
            database.history.counts["unknown outcomes"] += 1
            self._later(database.seconds(), self._broken, "after the deed")
        else:
            self._later(database.seconds(), self._answered, error, result)

    def _answered(self, error: Exception | None, result: Any) -> None:
        if self._database.life != self._life or not self._store._up.is_set():
            self._broken("after the deed")
        elif error is not None:
            self._settle(error=error)
        else:
            self._settle(result=result)

    def _broken(self, why: str) -> None:
        self._settle(error=StoreUnavailableError(f"{self._name}: {why}"))

    def _settle(self, *, result: Any = None, error: Exception | None = None) -> None:
        def settled() -> None:
            if self._answer.done():
                return
            if error is not None:
                self._answer.set_exception(error)
            else:
                self._answer.set_result(result)

        self._store._place.call(settled)


def _copy(part: Any) -> Any:
    """The containers anew, with what is in them: the store changes those, and never what they hold."""
    if isinstance(part, dict):
        return {key: _copy(value) for key, value in part.items()}
    return type(part)(map(_copy, part)) if isinstance(part, list | set) else part


def _at_once(method: Coroutine[Any, Any, Any]) -> Any:
    """The store in memory waits for nothing, so each call is atomic."""
    try:
        method.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("the store in memory waited for something")


def _shown(result: Any) -> str:
    if isinstance(result, Exception):
        return f"{type(result).__name__} {result}"
    if isinstance(result, list):
        return f"{len(result)} {result}" if all(isinstance(one, bool) for one in result) else str(len(result))
    return str(result)
