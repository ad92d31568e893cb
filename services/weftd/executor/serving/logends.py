"""The ends of the logs of runs: why services failed or are not ready, and which runs waited for others in vain."""

from collections.abc import Iterable

from weft.domain.failure import timeout_in
from weft.messages.nodes import EndReason
from weftd.executor.runs import Run, RunKey, Runtime, RuntimeUnavailableError
from weftd.executor.thinking.serving import Readiness

READ_BYTES = 4096
CHARS_MAX = 1000
LINES_MAX = 10
READS_MAX = 32  # in one look; the others come with the next
AGAIN_SECONDS = 5.0  # for a run that runs


class LogEnds:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._why: dict[RunKey, str] = {}  # why it was not ready, while it lived
        self._said: dict[RunKey, tuple[float, bool, str]] = {}  # when it was read, whether from a run that lived

    async def of(self, runs: Iterable[Run], serving: Readiness, *, now: float) -> dict[RunKey, str]:
        """Why those of these runs that failed, or serve no requests yet, are not ready, and their last lines."""
        wanted = {run.key: run for run in runs if run.serve is not None and _is_wanted(run, serving)}
        self._said = {key: said for key, said in self._said.items() if key in wanted}
        self._why = {key: serving.why_not(key) or self._why.get(key, "") for key in wanted}
        reads = 0
        for key, run in wanted.items():
            before = self._said.get(key)
            if before is not None and run.live is before[1] and not (run.live and now >= before[0] + AGAIN_SECONDS):
                continue
            if reads < READS_MAX or not run.live:  # The end of a run is reported once, so it must not come without.
                reads += 1
                self._said[key] = (now, run.live, await self._read(key))
        return {key: words for key in self._said if (words := self._words(key))}

    @property
    def lines(self) -> dict[RunKey, str]:
        """The last lines of each, as they were read last."""
        return {key: said[2] for key, said in self._said.items()}

    def _words(self, key: RunKey) -> str:
        why = f"not ready: {self._why[key]}" if self._why.get(key) else ""
        return "\n".join(part for part in (why, self._said[key][2]) if part)

    async def _read(self, key: RunKey) -> str:
        return await _end_of(self._runtime, key)


class Timeouts:
    """The runs that failed and whose last lines show a time-out of a collective. Each log is read once."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._shows: dict[RunKey, bool] = {}

    async def of(self, runs: Iterable[Run]) -> frozenset[RunKey]:
        failed = [run.key for run in runs if run.reason is EndReason.EXIT and run.exit_code and run.serve is None]
        self._shows = {key: self._shows[key] for key in failed if key in self._shows}
        for key in [key for key in failed if key not in self._shows][:READS_MAX]:
            self._shows[key] = bool(timeout_in((await _end_of(self._runtime, key)).splitlines()))
        return frozenset(key for key, shows in self._shows.items() if shows)


async def _end_of(runtime: Runtime, key: RunKey) -> str:
    """The last lines of a log; empty if the runtime does not answer."""
    try:
        chunk = await runtime.read_log(key, offset=0, limit=READ_BYTES)
        if chunk.size > READ_BYTES:
            chunk = await runtime.read_log(key, offset=chunk.size - READ_BYTES, limit=READ_BYTES)
    except RuntimeUnavailableError:
        return ""
    return last_lines(chunk.data)


def last_lines(data: bytes) -> str:
    """The last lines of a log, as text that harms no terminal."""
    text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    lines = ["".join(letter if letter.isprintable() else " " for letter in line).strip() for line in text.split("\n")]
    return "\n".join([line for line in lines if line][-LINES_MAX:])[-CHARS_MAX:]


def _is_wanted(run: Run, serving: Readiness) -> bool:
    if not serving.was_ready(run.key):
        return True
    return not run.live and run.exit_code != 0
