"""A small SMTP server on this machine: it takes mail, or refuses it, demands a password, speaks TLS, hangs or drips."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage

from msgspec import Struct, field

from tests.support.receivers import serving

LINE_BYTES_MAX = 1000


class Mailbox(Struct):
    """What the server took, and how it should behave. `refuses`: the answer to a command that begins so."""

    port: int = 0
    refuses: dict[str, str] = field(default_factory=dict)
    password: str = ""
    tls: ssl.SSLContext | None = None
    offers_tls: bool = True
    mails: list[EmailMessage] = field(default_factory=list)
    envelopes: list[tuple[str, str]] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    encrypted: list[bool] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sender = taker = ""
        secure = let_in = False
        writer.write(b"220 here\r\n")
        while line := await reader.readline():
            command = line.decode("ascii").rstrip("\r\n")
            self.commands.append(command)
            word = command[:4].upper()
            refusal = next((answer for begin, answer in self.refuses.items() if command.startswith(begin)), None)
            if refusal is not None:
                writer.write(f"{refusal}\r\n".encode())
            elif word == "EHLO":
                may = [*(["STARTTLS"] if self.tls and self.offers_tls and not secure else []), "SIZE 1000000"]
                may += ["AUTH PLAIN"] if self.password else []
                writer.write(b"250-here\r\n" + "".join(f"250-{each}\r\n" for each in may[:-1]).encode())
                writer.write(f"250 {may[-1]}\r\n".encode())
            elif command == "STARTTLS" and self.tls is not None:
                writer.write(b"220 go on\r\n")
                await writer.drain()
                await writer.start_tls(self.tls)
                secure = True
            elif word == "AUTH":
                given = base64.b64decode(command.split(" ")[2]).split(b"\0")[-1].decode()
                let_in = given == self.password
                writer.write(b"235 welcome\r\n" if let_in else b"535 5.7.8 wrong password for secret-host\r\n")
            elif self.password and not let_in and word in ("MAIL", "RCPT", "DATA"):
                writer.write(b"530 a password first\r\n")
            elif word == "MAIL":
                sender = command
                writer.write(b"250 ok\r\n")
            elif word == "RCPT":
                taker = command
                writer.write(b"250 ok\r\n")
            elif word == "DATA":
                writer.write(b"354 go on\r\n")
                await writer.drain()
                body = await self._body(reader)
                self.mails.append(message_from_bytes(body, policy=policy.default))  # type: ignore[arg-type]
                self.envelopes.append((sender, taker))
                self.encrypted.append(secure)
                writer.write(b"250 taken\r\n")
            elif word == "QUIT":
                writer.write(b"221 bye\r\n")
                await writer.drain()
                return
            else:
                writer.write(b"250 ok\r\n")
            await writer.drain()

    async def _body(self, reader: asyncio.StreamReader) -> bytes:
        lines = []
        while (line := await reader.readline()) != b".\r\n":
            assert len(line) <= LINE_BYTES_MAX, "longer lines are against RFC 5321"
            assert line.endswith(b"\r\n"), "each line ends as RFC 5321 has it"
            lines.append(line[1:] if line.startswith(b".") else line)
        return b"".join(lines)


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A greeting that never ends, a line every now and then."""
    while True:
        writer.write(b"220-here\r\n")
        await writer.drain()
        await asyncio.sleep(0.05)


async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A line that never ends."""
    while True:
        writer.write(b"220 here" * 10_000)
        await writer.drain()


@asynccontextmanager
async def mail_server(
    *, refuses: dict[str, str] | None = None, password: str = "", tls: ssl.SSLContext | None = None, offers: bool = True
) -> AsyncIterator[Mailbox]:
    box = Mailbox(refuses=refuses or {}, password=password, tls=tls, offers_tls=offers)
    async with serving(box.serve) as url:
        box.port = port_of(url)
        yield box


def port_of(url: str) -> int:
    return int(url.split(":")[2].partition("/")[0])
