"""Signing in with the identity provider: through this machine's browser, or by a code that is typed in another one."""

import asyncio
import base64
import hashlib
import secrets
import webbrowser
from urllib.parse import parse_qs, urlencode, urlsplit

from weft.client import Client
from weft.messages.http.sign_ins import SessionMade
from weftd.cli import page
from weftd.cli.cli_error import CliError

WAIT_SECONDS_MAX = 300.0
HEAD_BYTES_MAX = 16 << 10
HEAD_SECONDS_MAX = 5.0
HEADERS = "Content-Type: text/plain; charset=utf-8\r\nCache-Control: no-store\r\nConnection: close\r\n"
DONE = "You are signed in. This page can be closed."
NOT_OURS = "weft login waits for the answer of its own sign-in: this is another one."


async def through_browser(client: Client, url: str) -> SessionMade:
    """Wait on 127.0.0.1 for the code with which the gateway sends the browser back; exchange it. Raises `CliError`."""
    state, verifier = secrets.token_urlsafe(24), secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    came: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(HEAD_SECONDS_MAX):
                line = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0].decode("latin-1")
            query = parse_qs(urlsplit(line.split(" ")[1]).query)
            is_ours = secrets.compare_digest(query.get("state", [""])[0].encode(), state.encode())
            code = query.get("code", [""])[0]
            if is_ours and code and not came.done():
                came.set_result(code)
            status, words = ("200 OK", DONE) if is_ours and code else ("400 Bad Request", NOT_OURS)
            writer.write(f"HTTP/1.1 {status}\r\n{HEADERS}Content-Length: {len(words)}\r\n\r\n{words}".encode())
            await writer.drain()
        except (OSError, TimeoutError, ValueError, IndexError, EOFError, asyncio.LimitOverrunError):
            pass  # it is no browser: the one that is waited for comes again
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, limit=HEAD_BYTES_MAX) as server:
        port = server.sockets[0].getsockname()[1]
        query = urlencode({"port": port, "challenge": challenge, "state": state})
        address = f"{url}/v1/oidc/login?{query}"
        page.note(f"sign in in a browser of this machine: {address}")
        page.note("without a browser here: `weft login URL --device`")
        await asyncio.to_thread(webbrowser.open, address)
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                code = await came
        except TimeoutError:
            raise CliError(f"nobody signed in within {WAIT_SECONDS_MAX / 60:g} minutes") from None
    return await client.begin_session(code=code, verifier=verifier)


async def by_device(client: Client) -> SessionMade:
    """Have the person confirm a code in any browser, and ask until they did. Raises `CliError`."""
    device = await client.begin_device()
    page.note(f"open {device.verification_uri} in any browser, and confirm the code {device.user_code}")
    loop = asyncio.get_running_loop()
    until = loop.time() + min(device.expires_in, WAIT_SECONDS_MAX * 3)
    while loop.time() < until:
        await asyncio.sleep(max(1.0, device.interval))
        made = await client.begin_session(device_code=device.device_code)
        if not made.pending:
            return made
    raise CliError("nobody confirmed the code in time")
