"""Sends mails through the SMTP server of the settings. A server that hangs or is slow delays only mail.

A mail is sent by `smtplib` in a thread of its own. Each answer has a time limit; after the limit for all of them the
connection is shut down, so that the thread ends.
"""

import asyncio
import logging
import smtplib
import socket
import ssl
from contextlib import suppress
from email import policy
from email.message import EmailMessage

from weft.threads import aside
from weftd.gateway.settings import MailSettings, MailTls
from weftd.gateway.thinking.notifications.mails import domain_of, plain_words

logger = logging.getLogger(__name__)

ANSWER_SECONDS_MAX = 60.0  # for each answer: some servers scan a mail before they accept it
SECONDS_MAX = 120.0  # for all that one mail needs
AT_ONCE = 4


class MailError(Exception):
    """The mail was not accepted; the text says why. `final`: another try would fail the same way."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


class Mailer:
    """`password` belongs to the settings' user."""

    def __init__(self, settings: MailSettings, password: str, *, seconds_max: float = SECONDS_MAX) -> None:
        self.settings = settings
        self._password = password
        self._seconds_max = seconds_max
        self._free = asyncio.Semaphore(AT_ONCE)

    async def send(self, to: str, mail: EmailMessage) -> None:
        """Return when the server has accepted the mail. Raises MailError."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()

        def over(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._free.release)

        session = _Session(self.settings, min(ANSWER_SECONDS_MAX, self._seconds_max))
        sent = aside(lambda: self._send(session, to, mail), name="mail")
        sent.add_done_callback(over)
        limit = asyncio.timeout(self._seconds_max)
        try:
            async with limit:
                await asyncio.wrap_future(sent)
        except (OSError, ValueError) as error:  # every error of `smtplib` and of TLS is an OSError
            if limit.expired():
                raise MailError(f"the mail server did not accept the mail within {self._seconds_max:g} s") from None
            logger.info("a mail to %s was not accepted: %s", to, plain_words(str(error)))
            raise _refusal(error) from error
        finally:
            session.end()

    def _send(self, session: "_Session", to: str, mail: EmailMessage) -> None:
        try:
            session.open()
            if self.settings.mail_user:
                session.login(self.settings.mail_user, self._password)
            session.sendmail(self.settings.mail_from, [to], mail.as_bytes(policy=policy.SMTP))
            with suppress(OSError, smtplib.SMTPException):
                session.putcmd("quit")  # the server has the mail: its answer changes nothing
        finally:
            session.close()


class _Session(smtplib.SMTP):
    """An SMTP session, created without a connection so that another thread can end it at any time."""

    def __init__(self, settings: MailSettings, seconds: float) -> None:
        super().__init__(local_hostname=domain_of(settings.mail_from), timeout=seconds)
        self._settings = settings
        self._seconds = seconds
        self._host = settings.mail_host  # the name in its certificate, which `starttls` checks
        self._ended = False

    def open(self) -> None:
        """Connect and read the server's greeting, with TLS if the settings require it."""
        self.sock = socket.create_connection((self._host, self._settings.mail_port), self._seconds)
        if self._settings.mail_tls == MailTls.TLS:
            self.sock = _trusting(self._settings).wrap_socket(self.sock, server_hostname=self._host)
        self.file = None
        if self._ended:
            raise smtplib.SMTPServerDisconnected("it took too long")
        code, said = self.getreply()
        if code != 220:
            raise smtplib.SMTPConnectError(code, said)
        if self._settings.mail_tls == MailTls.STARTTLS:
            self.starttls(context=_trusting(self._settings))

    def end(self) -> None:
        """Wake a thread that waits for this connection."""
        self._ended = True
        if self.sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(self.sock, socket.SHUT_RDWR)


def _trusting(settings: MailSettings) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=settings.mail_ca_file or None)


def _refusal(error: OSError | ValueError) -> MailError:
    """The refusal in words for the tenant, with the server's answer only to the tenant's own address."""
    match error:
        case smtplib.SMTPRecipientsRefused():
            code, said = next(iter(error.recipients.values()))
            final = 500 <= code < 600
            return MailError(f"the mail server refused the address: {code} {plain_words(_text(said))}", final=final)
        case smtplib.SMTPAuthenticationError():
            return MailError("the mail server did not accept the gateway's password")
        case smtplib.SMTPResponseException():
            return MailError(f"the mail server answered {error.smtp_code}")
        case smtplib.SMTPNotSupportedError():
            return MailError("the mail server lacks a feature that the settings require, such as STARTTLS")
        case smtplib.SMTPException():
            return MailError("the mail server closed the connection, or does not speak SMTP")
        case ssl.SSLError():
            return MailError("TLS with the mail server failed: the gateway's log has the reason")
        case TimeoutError():
            return MailError("the mail server did not answer in time")
        case _:
            return MailError("the mail server cannot be reached")


def _text(said: bytes | str) -> str:
    return said if isinstance(said, str) else said.decode("ascii", "replace")
