"""Every message between services, with its subject.

Facts are in the past tense, orders are imperative. Fields are added with a default, never renamed or removed.
"""

from typing import ClassVar

from msgspec import Struct


class CarriesBytes(Struct, frozen=True, kw_only=True):
    """An answer whose `data` follows its JSON on the wire, behind a line feed: base64 would cost both sides more than
    the bytes themselves."""

    data: bytes = b""


class Message(Struct, frozen=True, kw_only=True):
    """A message between services. Each `{name}` in `subject` is replaced by the message's field of that name."""

    subject: ClassVar[str]

    @classmethod
    def refusal(cls, why: str) -> Struct | None:
        """The answer to a request of this kind that could not be decoded; None: it is not answered."""
        return None


class Connection(Struct, frozen=True, kw_only=True):
    """The connection to a server by which a message came. A later connection never equals it. Messages sent over one
    arrive in order."""

    server: str
    number: int
