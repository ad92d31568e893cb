"""Posts to a webhook: its events, their bytes and signatures, and when a failed attempt is repeated."""

import base64
import hashlib
import hmac

import msgspec

from weft.domain.job import JobEvent
from weft.messages.events import NODE_EVENTS, Event, cloud_event

BODY_BYTES_MAX = 256 << 10  # a larger event is posted without the places of its ranks
SECRET_PREFIX = "whsec_"
WAIT_SECONDS_LEAST, WAIT_SECONDS_MAX = 1.0, 600.0
ERROR_CHARACTERS_MAX = 200
_LARGE = ("placement", "next_placement", "revisions", "loans", "capacity")

SHORT = {
    "begin": (JobEvent.STARTED,),
    "end": (JobEvent.SUCCEEDED, JobEvent.FAILED, JobEvent.CANCELLED),
    "fail": (JobEvent.FAILED,),
    "requeue": (JobEvent.REQUEUED,),
}
KNOWN = frozenset({*(event.value for event in JobEvent), *NODE_EVENTS})


def events_of(names: tuple[str, ...]) -> tuple[str, ...]:
    """The named events without repeats. Raises ValueError that lists the known names."""
    found: dict[str, None] = {}
    for name in names:
        if name not in SHORT and name not in KNOWN:
            raise ValueError(f"there is no event {name}; there is {', '.join([*SHORT, *sorted(KNOWN)])}")
        found.update(dict.fromkeys(event.value for event in SHORT[name]) if name in SHORT else {name: None})
    return tuple(found)


def body_of(event: Event) -> bytes:
    """The event as described in docs/events.md; a too large event is marked `truncated`."""
    body = msgspec.json.encode(cloud_event(event))
    if len(body) <= BODY_BYTES_MAX:
        return body
    told = msgspec.json.decode(body)
    told["data"] = {name: value for name, value in told["data"].items() if name not in _LARGE}
    return msgspec.json.encode({**told, "truncated": True})


def signed(secret: str, event_id: str, at: int, body: bytes) -> dict[str, str]:
    """The headers of Standard Webhooks: HMAC-SHA256 over the event's id, the time (seconds since 1970) and the body."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    digest = hmac.new(key, f"{event_id}.{at}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(at),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }


def secret_of(characters: str) -> str:
    return SECRET_PREFIX + base64.b64encode(characters.encode()).decode()


def wait_seconds(failures: int) -> float:
    """Seconds before the next try, after this number of failed tries in a row."""
    return min(WAIT_SECONDS_MAX, WAIT_SECONDS_LEAST * 2.0 ** min(failures - 1, 20))


def ends_it(status: int, failing_seconds: float, off_seconds: float) -> str:
    """Why delivery ends; empty: it is tried again."""
    if status == 410:
        return "the receiver answered 410: it wants no more"
    if failing_seconds >= off_seconds:
        return f"the receiver accepted nothing for {failing_seconds / 3600:.1f} hours"
    return ""
