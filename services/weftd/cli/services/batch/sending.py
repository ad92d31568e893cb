"""The requests of a batch over HTTP: a bounded number at once, again where the router had no idle place."""

import asyncio
import random
import time
from collections import deque
from collections.abc import Iterator

import aiohttp
import msgspec
from msgspec import Raw, Struct
from yarl import URL

from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.services.batch.answers import ANSWER_BYTES_MAX, AnswerFile, Error, Response
from weftd.cli.services.batch.lines import Broken, Request
from weftd.cli.services.batch.pace import Pace

TRIES_MAX = 3  # for a request that may have run, and broke off
AWAY_SECONDS_MAX = 300.0  # without any answer of the router
TOLD_SECONDS = 60.0  # without an answer, after which the reason is shown
SHOWN_CHARACTERS_MAX = 300
LATER = frozenset({429, 503})  # there is no room now
BROKE = frozenset({500, 502, 504})
ENDS = frozenset({401, 403})


class Sent(Struct):
    """A request, how often it broke off, and when it was sent last."""

    request: Request
    broke: int = 0
    at: float = 0.0


class Got(Struct, frozen=True):
    """An answer, whole. `status` 0: there is none, and `why` says so."""

    status: int
    body: bytes = b""
    request_id: str = ""
    retry_after: float = 0.0
    why: str = ""
    away: bool = False  # the router took no connection, so that the request cannot have run


class Counts(Struct):
    answered: int = 0
    errors: int = 0


class Sending:
    """Sends the requests and writes what comes of them. `model`: the model of lines that name none; a batch ends if it
    is no longer there."""

    def __init__(
        self, session: aiohttp.ClientSession, router: str, answers: AnswerFile, *, model: str, most: int
    ) -> None:
        self.counts = Counts()
        self.told = ""  # why nothing is answered, once it has been so for a while
        self._session, self._router, self._answers, self._model = session, router, answers, model
        self._pace = Pace(most)
        self._again: deque[Sent] = deque()
        self._running: dict[asyncio.Task[Got], Sent] = {}
        self._heard_at = self._answered_at = time.monotonic()

    async def run(self, lines: Iterator[Request | Broken]) -> None:
        """Until every line has an answer or an error. Raises `CliError`: none can have one now."""
        over = False
        try:
            while not over or self._running or self._again:
                over = self._start(lines, over=over)
                if self._running:
                    done, _ = await asyncio.wait(
                        self._running, timeout=self._pause(), return_when=asyncio.FIRST_COMPLETED
                    )
                    for task in done:
                        self._take(self._running.pop(task), task.result())
                elif self._again or not over:
                    await asyncio.sleep(self._pause() or 0.0)
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)

    def _pause(self) -> float | None:
        """Seconds until the next request may be sent; None: it may now."""
        pause = self._pace.paused_until - time.monotonic()
        return pause if pause > 0.0 else None

    def _start(self, lines: Iterator[Request | Broken], *, over: bool) -> bool:
        """Send as many as may be. True: all lines were read."""
        while self._pause() is None and len(self._running) < self._pace.at_once:
            if self._again:
                sent = self._again.popleft()
            elif over or (line := next(lines, None)) is None:
                return True
            elif isinstance(line, Broken):
                self._fail(line, "invalid_line", line.why)
                continue
            else:
                sent = Sent(line)
            sent.at = time.monotonic()
            self._running[asyncio.create_task(self._ask(sent.request))] = sent
        return over

    async def _ask(self, request: Request) -> Got:
        url = URL(f"{self._router}{request.path}", encoded=True)
        try:
            async with self._session.post(url, data=request.body, allow_redirects=False) as response:
                body = bytearray()
                async for piece in response.content.iter_any():
                    body += piece
                    if len(body) > ANSWER_BYTES_MAX:
                        return Got(413, why=f"the answer has more than {ANSWER_BYTES_MAX} bytes")
                later = response.headers.get("Retry-After", "")
                seconds = float(later) if later.isascii() and later.isdigit() and len(later) < 6 else 0.0
                request_id = response.headers.get("X-Request-Id", "")[:SHOWN_CHARACTERS_MAX]
                return Got(response.status, bytes(body), request_id, seconds)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return Got(0, why=f"no answer from the router at {self._router}: {error}", away=True)
        except TimeoutError:
            return Got(0, why="no answer within the time of --timeout")
        except (aiohttp.ClientError, OSError) as error:
            return Got(0, why=f"the connection broke: {clean(str(error)) or type(error).__name__}")

    def _take(self, sent: Sent, got: Got) -> None:
        now = time.monotonic()
        self._heard_at = now if not got.away else self._heard_at
        request = sent.request
        why = got.why or message_of(got)
        if got.away and now - self._heard_at > AWAY_SECONDS_MAX:
            raise CliError(why)
        if got.status in ENDS or (got.status == 404 and request.model == self._model and is_no_model(got)):
            raise CliError(why)
        broke = got.status in BROKE or (got.status == 0 and not got.away)
        sent.broke += broke
        if got.status in LATER or got.away or (broke and sent.broke < TRIES_MAX):
            self._pace.refused(sent_at=sent.at, now=now, retry_after=got.retry_after, chance=random.random())
            self._again.append(sent)
            self.told = why if now - self._answered_at > TOLD_SECONDS else ""
            return
        self._answered_at, self.told = now, ""
        self._pace.answered()
        body = compact(got.body)
        if not 200 <= got.status < 300 or got.why:
            shown = Response(got.status, got.request_id, body or _text(got.body)) if got.status else None
            self._fail(request, "not_answered" if got.why else "request_failed", why, response=shown)
        elif body is None:
            self._fail(request, "no_json", f"the answer is no JSON: {_text(got.body)}")
        else:
            self._answers.write(request, response=Response(got.status, got.request_id, body), error=None)
            self.counts.answered += 1

    def _fail(self, line: Request | Broken, code: str, why: str, *, response: Response | None = None) -> None:
        self._answers.write(line, response=response, error=Error(code, f"line {line.number}: {why}"))
        self.counts.errors += 1


def message_of(got: Got) -> str:
    """The sentence in an error of OpenAI's form or of Weft's; else the status and the beginning of the body."""
    try:
        error = msgspec.json.decode(got.body)["error"]
        message = error.get("message", error.get("reason")) if isinstance(error, dict) else error
        if isinstance(message, str) and message:
            return clean(message)[:SHOWN_CHARACTERS_MAX]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, KeyError):
        pass
    return f"status {got.status}: {_text(got.body)}"


def is_no_model(got: Got) -> bool:
    """Return True if the router has no such model: not an engine, which may lack an adapter of one line."""
    try:
        error = msgspec.json.decode(got.body)["error"]
        return isinstance(error, dict) and error.get("code") == "model_not_found"
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, KeyError):
        return False


def compact(body: bytes) -> Raw | None:
    """The JSON on one line; None: it is none."""
    try:
        msgspec.json.decode(body)
        return Raw(msgspec.json.format(body, indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _text(body: bytes) -> str:
    return clean(body[: 4 * SHOWN_CHARACTERS_MAX].decode(errors="replace"))[:SHOWN_CHARACTERS_MAX]
