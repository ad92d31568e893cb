"""Matches a user's pattern against output, in a process of its own.

A regular expression can take for ever, and while it does it holds Python's interpreter: in a thread it would stop the
whole executor, and with it the fence. The other process can be killed.
"""

import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from contextlib import suppress

logger = logging.getLogger(__name__)

MATCH_SECONDS_MAX = 1.0
BEGIN_SECONDS_MAX = 10.0
ANSWER_BYTES_MAX = 1 << 20

# Read by `python -c` in the other process: nothing of ours is imported there.
_PROGRAM = """
import json, re, sys
print("ready", flush=True)
for request in sys.stdin:
    pattern, lines = json.loads(request)
    found = {}
    matcher = re.compile(pattern)
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
    """One helper for all runs of the node, begun when first needed. A pattern that took too long is not tried again."""

    def __init__(self, seconds_max: float = MATCH_SECONDS_MAX) -> None:
        self._seconds_max = seconds_max
        self._helper: asyncio.subprocess.Process | None = None
        self._refused: set[str] = set()
        self._turn = asyncio.Lock()

    async def latest(self, pattern: str, lines: Sequence[str]) -> dict[str, float]:
        """The newest number of each named group; empty for a pattern that is too slow."""
        if not lines or pattern in self._refused:
            return {}
        async with self._turn:
            if pattern in self._refused:  # while we waited for our turn
                return {}
            try:
                helper = self._helper or await self._begin()
                async with asyncio.timeout(self._seconds_max):
                    return await _ask(helper, pattern, lines)
            except (TimeoutError, OSError, EOFError, ValueError) as error:
                self._refused.add(pattern)
                logger.warning("the progress pattern %r is not used any more: %r", pattern, error)
                await self.close()
                return {}

    async def close(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            with suppress(ProcessLookupError):
                helper.kill()
            await helper.wait()

    async def _begin(self) -> asyncio.subprocess.Process:
        self._helper = await asyncio.create_subprocess_exec(
            sys.executable,
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
