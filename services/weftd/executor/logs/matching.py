"""Matches a user's pattern against output, in a separate process.

A regular expression can take for ever, and meanwhile holds Python's interpreter lock: in a thread it would stop the
whole executor, and with it the fence. A separate process can be killed.
"""

import asyncio
import json
import logging
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

logger = logging.getLogger(__name__)

MATCH_SECONDS_MAX = 1.0
BEGIN_SECONDS_MAX = 10.0
REFUSED_SECONDS = 600.0  # then it is tried again: the machine may have been slow
TRIES = 2  # a helper can be killed, or fail to start, through no fault of the pattern
ANSWER_BYTES_MAX = 1 << 20

# `python -c` runs this in the other process, which imports none of our modules.
_PROGRAM = """
import json, re, sys
print("ready", flush=True)
for request in sys.stdin:
    pattern, lines = json.loads(request)
    found = {}
    try:
        matcher = re.compile(pattern)
    except Exception:
        lines = []
    for line in lines:
        match = matcher.search(line)
        for name, text in (match.groupdict() if match else {}).items():
            try:
                found[name] = float(text)
            except (TypeError, ValueError):
                pass
    print(json.dumps(found), flush=True)
"""


class Matcher:
    """One helper for all runs of the node, started when first needed. A pattern that took too long is not tried for
    REFUSED_SECONDS, counted by the monotonic `clock`.
    """

    def __init__(
        self,
        seconds_max: float = MATCH_SECONDS_MAX,
        *,
        clock: Callable[[], float] = time.monotonic,
        python: str = sys.executable,
    ) -> None:
        self._seconds_max = seconds_max
        self._clock = clock
        self._python = python
        self._helper: asyncio.subprocess.Process | None = None
        self._refused: dict[str, float] = {}  # by pattern: until when
        self._turn = asyncio.Lock()

    async def latest(self, pattern: str, lines: Sequence[str]) -> dict[str, float]:
        """The newest number of each named group; empty if the pattern is too slow, or no helper answers."""
        if not lines or self._is_refused(pattern):
            return {}
        async with self._turn:
            for _ in range(TRIES):
                if self._is_refused(pattern):  # perhaps refused during the wait for the lock
                    break
                found = await self._try(pattern, lines)
                if found is not None:
                    return found
                await self.close()
            return {}

    async def close(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            with suppress(ProcessLookupError):
                helper.kill()
            await helper.wait()

    def _is_refused(self, pattern: str) -> bool:
        return self._clock() < self._refused.get(pattern, -math.inf)

    def _refuse(self, pattern: str) -> None:
        now = self._clock()
        self._refused = {known: until for known, until in self._refused.items() if now < until}
        self._refused[pattern] = now + REFUSED_SECONDS
        logger.warning("the progress pattern %r takes too long, and is not used for %.0f s", pattern, REFUSED_SECONDS)

    async def _try(self, pattern: str, lines: Sequence[str]) -> dict[str, float] | None:
        """Match once. None: the helper is broken."""
        try:
            helper = self._helper or await self._begin()
        except OSError as error:  # also a time-out
            logger.warning("no helper for progress patterns could be started: %r", error)
            return None
        try:
            async with asyncio.timeout(self._seconds_max):
                return await _ask(helper, pattern, lines)
        except TimeoutError:
            self._refuse(pattern)
        except (OSError, EOFError, ValueError) as error:
            logger.warning("the helper for progress patterns failed at %r: %r", pattern, error)
        return None

    async def _begin(self) -> asyncio.subprocess.Process:
        self._helper = await asyncio.create_subprocess_exec(
            self._python,
            "-I",
            "-c",
            _PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={},
            limit=ANSWER_BYTES_MAX,
            start_new_session=True,
        )
        assert self._helper.stdout is not None
        async with asyncio.timeout(BEGIN_SECONDS_MAX):
            await self._helper.stdout.readline()
        return self._helper


async def _ask(helper: asyncio.subprocess.Process, pattern: str, lines: Sequence[str]) -> dict[str, float]:
    assert helper.stdin is not None
    assert helper.stdout is not None
    helper.stdin.write(json.dumps([pattern, list(lines)]).encode() + b"\n")
    await helper.stdin.drain()
    answer = await helper.stdout.readline()
    if not answer:
        raise EOFError("the helper ended")
    found = json.loads(answer)
    return {str(name): float(value) for name, value in found.items()}
