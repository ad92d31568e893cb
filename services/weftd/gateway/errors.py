"""The one shape of the gateway's refusals: a status, the field, and the reason."""

import math
from collections.abc import Sequence

import msgspec

from weft.domain.decoding.mistakes import plain_reason
from weft.domain.decoding.spec_decoder import PATTERN_WORDS as OF_SPECIFICATIONS
from weft.domain.selection import ID_PREFIX_PATTERN, NAMES_PATTERN
from weft.domain.spec import TOKEN_PATTERN
from weft.messages.http.quotas import MODEL_PATTERN
from weft.messages.problems import problem
from weft.messages.webhooks import EVENT_PATTERN, URL_PATTERN

RETRY_AFTER_SECONDS = 1
TOKEN_WORDS = "expected lower-case letters, digits and '-', at most 63, no dots"
PATTERN_WORDS = {
    **OF_SPECIFICATIONS,
    TOKEN_PATTERN: TOKEN_WORDS,
    NAMES_PATTERN: "expected a name of lower-case letters, digits and '-', or a pattern of them with '*' and '?'",
    MODEL_PATTERN: "expected a model of GPUs, 1 to 100 characters without line breaks and other control characters",
    URL_PATTERN: "expected a URL such as https://example.org/hook, or `mailto:` and an address, without blanks",
    EVENT_PATTERN: "expected the name of an event, such as failed",
    ID_PREFIX_PATTERN: "expected how an id begins, such as j-k3f9",
}


class RejectedError(Exception):
    """`field` is the place in the request (empty: all of it), `reason` is why, for a person.

    `errors` has all fields and reasons if there are several.
    """

    def __init__(
        self,
        status: int,
        field: str,
        reason: str,
        *,
        retry_after: float = RETRY_AFTER_SECONDS,
        errors: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.field = field
        self.reason = reason
        self.retry_after = retry_after  # seconds; in a 429 and a 503
        self.errors = tuple(errors)

    @property
    def body(self) -> bytes:
        return problem(self.status, self.field, self.reason, self.errors)

    @property
    def headers(self) -> dict[str, str]:
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after)))} if self.status in (429, 503) else {}


def too_fast(field: str, reason: str, wait: float) -> RejectedError:
    """The refusal 429; `wait`: the seconds until one more request is taken."""
    return RejectedError(429, field, f"{reason}; ask again in {max(1, math.ceil(wait))} s", retry_after=wait)


def unavailable() -> RejectedError:
    return RejectedError(503, "", "the database is unavailable; nothing is known to be lost, try again")


def from_decoder(error: msgspec.DecodeError) -> tuple[str, str]:
    """The decoder's message as a field and a reason."""
    reason, _, path = str(error).partition(" - at ")
    field = path.strip("`").removeprefix("$").removeprefix(".")
    for marker, words in (("unknown field `", "no such field"), ("missing required field `", "is required")):
        if marker in reason:
            return f"{field}.{reason.split(marker)[1].rstrip('`')}".removeprefix("."), words
    for pattern, words in PATTERN_WORDS.items():
        if repr(pattern) in reason:
            return field, words
    return field, plain_reason(reason).replace("`", "")
