"""`weft batch`: ask a model the requests of a file, at low priority, and write the answers to another file.

Each line of IN is a request: OpenAI's form (`custom_id`, `method`, `url`, `body`), or a body with `messages`, `prompt`
or `input`. The router gives batch requests what other requests leave idle. Each line of OUT is an answer or an error,
in the order in which they come. The same command again keeps the answers and asks the lines that have none.

Exit status: 0 every line has an answer, 1 some have an error, or the batch was ended before its end.
"""

import argparse
import asyncio
import os
import re
import ssl
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import IO
from urllib.parse import quote

import aiohttp
from msgspec import Struct
from yarl import URL

from weft.client.place import Place, is_address
from weft.domain.spec import MODEL_NAME_PATTERN, Kind
from weftd.cli import connection, page
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clean
from weftd.cli.jobs.wait import seconds
from weftd.cli.services.batch.answers import AnswerFile
from weftd.cli.services.batch.lines import LINE_BYTES_MAX, LINES_MAX, Broken, Request, digest_of, line_of
from weftd.cli.services.batch.sending import Got, Sending, message_of

AT_ONCE, AT_ONCE_MAX = 32, 512
CONNECT_SECONDS_MAX = 5.0
ANSWER_SECONDS_MAX = 600.0
CHECK_SECONDS_MAX = 30.0
SHOWN_SECONDS = 2.0
HEADERS = {"Content-Type": "application/json", "Weft-Priority": "batch"}
AGAIN = "the same command goes on from here"


class BatchEnded(Struct, frozen=True, kw_only=True):
    """The output of `--json`. `answered`: by this run; `before`: by earlier ones."""

    lines: int
    before: int
    answered: int
    errors: int


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "batch",
        help="ask a model the requests of a file, at low priority",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="name of the model, for lines that name none")
    parser.add_argument("requests", metavar="IN", help="file of requests, one JSON object a line")
    parser.add_argument("answers", metavar="OUT", help="file of answers, which is made or continued")
    parser.add_argument(
        "--at-once", type=int, default=AT_ONCE, metavar="N", help=f"requests at once at most (default: {AT_ONCE})"
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=ANSWER_SECONDS_MAX,
        metavar="TIME",
        help="give up an answer after this long without data, and try again (default: 10m)",
    )
    parser.add_argument("--router", metavar="URL", help="URL of the router (default: where the services have theirs)")
    connection.options(parser)
    parser.set_defaults(func=batch)


async def batch(args: argparse.Namespace) -> int:
    if not 1 <= args.at_once <= AT_ONCE_MAX:
        raise CliError(f"expected 1 to {AT_ONCE_MAX} requests at once, got {args.at_once}", field="--at-once", status=2)
    if not re.fullmatch(MODEL_NAME_PATTERN, args.model):
        raise CliError(f"expected the name of a model, got {clean(args.model[:100])!r}", field="MODEL", status=2)
    place = connection.find_place(args, os.environ)
    with _opened(args.requests, args.answers) as requests:
        router = await _router(args)
        async with _session(place, args) as session:
            await _check_model(session, router, args.model)
            with AnswerFile(args.answers) as answers:
                total = await asyncio.to_thread(_checked, requests, answers, args)
                await asyncio.to_thread(answers.begin)
                before = len(answers.answered)
                sending = Sending(session, router, answers, model=args.model, most=args.at_once)
                lines = _left(requests, answers, args.model)
                await _shown(sending, lines, total=total, before=before)
    counts = sending.counts
    ended = BatchEnded(lines=total, before=before, answered=counts.answered, errors=counts.errors)
    words = f"{ended.before + ended.answered} of {total} lines have an answer"
    page.answered(args, ended, words + (f"; {before} had one before" if before else ""))
    if counts.errors:
        words = f"{counts.errors} lines have an error in {clean(args.answers)}"
        raise CliError(f"{words}; the same command asks them again")
    return 0


def _opened(path: str, answers: str) -> IO[bytes]:
    """The file of requests. Raises `CliError`: it cannot be read, or is the file of answers."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    except OSError as error:
        raise CliError(f"cannot read {clean(path)}: {error.strerror}", status=2) from error
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise CliError(f"{clean(path)} is no file: a batch reads its requests twice", status=2)
    if os.path.exists(answers) and os.path.samefile(path, answers):
        file.close()
        raise CliError("IN and OUT are the same file", status=2)
    return file


async def _router(args: argparse.Namespace) -> str:
    """The router's URL: given, or by the address of a service of this tenant."""
    if args.router:
        if not is_address(args.router):
            raise CliError("expected an address such as http://127.0.0.1:8480", field="--router", status=2)
        return str(args.router).rstrip("/")
    async with connection.connected(args) as client:
        found = await client.jobs(kinds=(Kind.INFERENCE,), limit=1)
    service = found.jobs[0].service if found.jobs else None
    if service is None:
        raise CliError("there is no service yet: `weft serve` submits a model")
    if not service.url:
        raise CliError("this cluster has no router: GATEWAY_ROUTER_URL is not set at its gateway")
    return service.url.removesuffix("/").rpartition("/s/")[0]


@asynccontextmanager
async def _session(place: Place, args: argparse.Namespace) -> AsyncIterator[aiohttp.ClientSession]:
    tls = await asyncio.to_thread(ssl.create_default_context, cafile=place.ca_file) if place.ca_file else True
    bounds = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS_MAX, sock_read=args.timeout)
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=args.at_once),
        timeout=bounds,
        headers={**HEADERS, "Authorization": f"Bearer {place.token}"},
    ) as session:
        yield session


async def _check_model(session: aiohttp.ClientSession, router: str, model: str) -> None:
    """Raises `CliError`: the router does not answer, or has no such model for this token."""
    url = URL(f"{router}/v1/models/{quote(model, safe='')}", encoded=True)
    try:
        async with asyncio.timeout(CHECK_SECONDS_MAX), session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise CliError(message_of(Got(response.status, await response.content.read(1 << 20))))
    except aiohttp.ClientConnectorCertificateError as error:
        raise CliError(f"{router}: its certificate is not to be believed: {error.certificate_error}") from error
    except (aiohttp.ClientError, OSError) as error:
        raise CliError(f"no answer from the router at {router}: {clean(str(error)) or 'it took too long'}") from error


def _texts(requests: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Each line that is not empty, with its number. A line that is too long is cut to a few bytes
    more than a line may have."""
    requests.seek(0)
    number = 0
    while text := requests.readline(LINE_BYTES_MAX + 2):
        number += 1
        part = text
        while not part.endswith(b"\n") and (part := requests.readline(1 << 20)):
            pass
        if text.strip():
            yield number, text.removesuffix(b"\n")


def _checked(requests: IO[bytes], answers: AnswerFile, args: argparse.Namespace) -> int:
    """How many lines ask for something. Raises `CliError`: too many, or the answers are to other lines."""
    total = found = 0
    for number, text in _texts(requests):
        total += 1
        if number > LINES_MAX:
            words = f"{clean(args.requests)} has more than {LINES_MAX} lines: make several files of it"
            raise CliError(words, status=2)
        digest = answers.answered.get(number)
        found += digest is not None
        if digest is not None and digest != digest_of(text, args.model):
            _refuse(args, number)
    if found < len(answers.answered):
        _refuse(args, max(answers.answered))
    return total


def _refuse(args: argparse.Namespace, number: int) -> None:
    words = f"{clean(args.answers)} has the answer to another line {number} than {clean(args.requests)} has, or of"
    raise CliError(f"{words} another model: name a new file for the answers")


def _left(requests: IO[bytes], answers: AnswerFile, model: str) -> Iterator[Request | Broken]:
    for number, text in _texts(requests):
        if number not in answers.answered:
            yield line_of(text, number, model)


async def _shown(sending: Sending, lines: Iterator[Request | Broken], *, total: int, before: int) -> None:
    """Send the requests. Show the progress at a terminal, and why nothing is answered."""
    told, counted = "", -1
    running = asyncio.create_task(sending.run(lines))
    try:
        while not (await asyncio.wait((running,), timeout=SHOWN_SECONDS))[0]:
            counts = sending.counts
            if counts.answered + counts.errors != counted:
                counted = counts.answered + counts.errors
                page.note(f"{before + counts.answered} of {total} answered, {counts.errors} errors")
            if sending.told and not told:
                page.remark(f"waits: {sending.told}")
            told = sending.told
        await running
    except CliError as error:
        raise CliError(f"{error}; {AGAIN}") from error
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError, CliError):
            await running
