"""Mail to tenants: allowed addresses, and one message for many events.

Pure. A tenant requests mail like a webhook, with `mailto:` and an address as the URL.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime

import msgspec

from weft.messages.events import Event
from weft.messages.http import EventData
from weftd.gateway.thinking.notifications.posts import SHORT

SCHEME = "mailto:"
LINES_MAX = 100  # events that a message shows; the others are only counted
WORDS_MAX = 300  # characters of a text from a job or a cause
UNASKED = tuple(event.value for events in SHORT.values() for event in events)  # where no events are named
_ADDRESS = re.compile(r"(?P<local>[A-Za-z0-9_+][A-Za-z0-9._+-]{0,63})@(?P<domain>[A-Za-z0-9][A-Za-z0-9.-]{0,252})")
_read = msgspec.json.Decoder(EventData).decode


def is_mail(url: str) -> bool:
    return url.startswith(SCHEME)


def domain_of(address: str) -> str:
    """The domain in lower case; empty if the text is no address of one plain mailbox."""
    found = _ADDRESS.fullmatch(address)
    return found["domain"].lower() if found else ""


def mistaken_address(url: str, domains: Sequence[str]) -> str:
    """Why mail to the address is refused; empty: it is not. `domains`: domains that the owner allows."""
    domain = domain_of(url.removeprefix(SCHEME))
    if not domain:
        return "expected an address such as mailto:ada@example.org"
    if domain not in domains:
        return f"no mail is sent to {domain}: GATEWAY_MAIL_DOMAINS does not name it"
    return ""


class Gathered:
    """The events of one message: a line for each of the first ones, and the number of all."""

    def __init__(self) -> None:
        self.count = 0
        self._lines: list[str] = []
        self._kinds: Counter[str] = Counter()
        self._first: tuple[str, str] = ("", "")  # what the only event is about, and its id
        self._last = ""

    def take(self, event: Event) -> None:
        data = _read(event.data)
        about = f"{plain_words(data.name)} ({event.subject_id})" if data.name else plain_words(event.subject_id)
        if not self.count:
            self._first = (f"{about} {event.event}", event.message_id)
        self.count += 1
        self._kinds[event.event] += 1
        self._last = event.message_id
        if len(self._lines) < LINES_MAX:
            why = data.sentence if data.cause is None else data.cause.sentence or data.cause.code.value
            at = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
            status = "" if data.exit_code is None else f", exit status {data.exit_code}"
            said = f": {plain_words(why)}" if why else ""
            self._lines.append(f"{at}  {about}  {event.event}{status}{said}")

    def message(self, *, to: str, sender: str, webhook: str, tenant: str, at: float) -> EmailMessage:
        """The message. The same events give the same `Message-ID`, so mail programs recognise a repeat."""
        mail = EmailMessage()
        mail["From"] = f"Weft <{sender}>"
        mail["To"] = to
        mail["Subject"] = self._subject()
        mail["Date"] = format_datetime(datetime.fromtimestamp(at, UTC))
        name = hashlib.sha256(f"{webhook} {self._first[1]} {self._last}".encode()).hexdigest()[:32]
        mail["Message-ID"] = f"<{name}@{domain_of(sender)}>"
        mail["Auto-Submitted"] = "auto-generated"
        left_out = self.count - len(self._lines)
        lines = [*self._lines, *([f"… and {left_out} more"] if left_out else [])]
        lines += ["", "Times are UTC. `weft describe JOB` shows a job's event history.", ""]
        lines.append(f"Tenant {plain_words(tenant)} asked for this; `weft webhook remove {webhook}` ends it.")
        mail.set_content("\n".join(lines) + "\n", cte="quoted-printable")
        return mail

    def _subject(self) -> str:
        if self.count == 1:
            return f"[weft] {self._first[0]}"
        kinds = ", ".join(f"{count} {name}" for name, count in self._kinds.most_common())
        return f"[weft] {self.count} events: {kinds}"


def plain_words(text: str) -> str:
    """The text on one line, without control characters, and shortened."""
    clean = "".join(character if character.isprintable() else " " for character in text[: WORDS_MAX + 1])
    return clean if len(clean) <= WORDS_MAX else f"{clean[: WORDS_MAX - 1]}…"
