"""The front for models: the paths of OpenAI's API at the root of the router, and the model that a body names.

A client that knows only the router and the name of a model reaches the service of its tenant that serves the model.
"""

import re
from collections.abc import Iterable
from hashlib import blake2b
from heapq import nlargest
from itertools import islice
from math import ceil

import msgspec
from msgspec import Struct

from weft.messages.serving import OPENAI_CALLS
from weftd.router.thinking.routes import Refused
from weftd.router.thinking.table import RoutedService

ROOT = "/v1/"
LIST = "/v1/models"
NAME_CHARS_MAX = 200
LISTED_MAX = 1000  # models in one answer; others are found by their names
SHOWN_MAX = 100  # characters of a client's text in a sentence

NO_TOKEN = "the models of a tenant need its token: send 'Authorization: Bearer TOKEN' (`api_key` of OpenAI's clients)"
NOT_SAID = "the body names no `model`: GET /v1/models lists those of your tenant"
NO_OBJECT = "the body is no JSON object: expected one with `model`"
NO_TEXT = "`model` must be the name of a model, as text"

TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}


class _Error(Struct):
    message: str
    type: str
    code: str | None
    param: str | None


class _Model(Struct):
    id: str
    owned_by: str
    created: int = 0
    object: str = "model"


def problem_of(refusal: Refused) -> bytes:
    """An error as OpenAI's clients read it."""
    usual = "invalid_request_error" if refusal.status < 500 else "server_error"
    error = _Error(
        refusal.sentence,
        TYPES.get(refusal.status, usual),
        refusal.code or CODES.get(refusal.status),
        refusal.param or None,
    )
    return msgspec.json.encode({"error": error})


def described(name: str, tenant: str) -> bytes:
    """A model as OpenAI's API describes one."""
    return msgspec.json.encode(_Model(name, tenant))


def list_of(services: Iterable[RoutedService]) -> bytes:
    """The models of these services, by name: at most `LISTED_MAX`, those of the newest services. A tenant may have
    thousands of services with hundreds of names, and this process answers all tenants' requests."""
    owners: dict[str, str] = {}
    for service in nlargest(LISTED_MAX, services, key=lambda one: one.seq):
        for name in service.models:
            owners.setdefault(name, service.tenant)
        if len(owners) >= LISTED_MAX:
            break
    names = sorted(islice(owners, LISTED_MAX))
    return b'{"object":"list","data":[' + b",".join(described(name, owners[name]) for name in names) + b"]}"


def no_model(name: str) -> Refused:
    words = f"no service of this tenant serves the model {shown(name)}: GET /v1/models lists the models"
    return Refused(404, words, code="model_not_found", param="model")


def over_budget(service: RoutedService, over: int, wait: float) -> Refused:
    words = f"this token has used {over} tokens more than its {service.tokens_per_minute} a minute of this model"
    return Refused(429, f"{words}: it may send its next request in {max(1, ceil(wait))} s", wait)


def shown(name: str) -> str:
    return repr(name if len(name) <= SHOWN_MAX else f"{name[:SHOWN_MAX]}…")


def refusal_of(path: str, method: str) -> Refused | None:
    """Why this path of the front does not exist; None if it does."""
    if path == LIST or path.startswith(f"{LIST}/"):
        allowed = "GET"
    elif path in OPENAI_CALLS:
        allowed = "POST"
    else:
        there = ", ".join((LIST, *OPENAI_CALLS))
        return Refused(404, f"there is nothing at this path: the router has {there}; all else is at /s/JOB/")
    return None if method == allowed else Refused(405, f"this path allows only {allowed}")


MARKS_MAX = 1_000_000
TOO_MANY = f"`model` comes after {MARKS_MAX} other values: put it first in the body"
_MARK = re.compile(rb'["{}\[\]]')
_TEXT = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_SPACE = re.compile(rb"[ \t\r\n]*")
_KEY = b'"model"'
_PROMPTS = (b'"messages"', b'"prompt"', b'"input"')
_USER = re.compile(rb'"role"[ \t\r\n]*:[ \t\r\n]*"user"')
PROMPT_BYTES = 32 << 10  # the most of messages, and after the model until they begin
TEXT_BYTES = 1 << 10  # the most of a prompt that is one text


class ModelFinder:
    """Finds the value of `model` in a JSON object that comes in pieces, and the beginning of its prompt: all up to the
    end of the first message of the user, which stays the same through a conversation, or the first bytes of a text.
    Reads each byte about once, and checks no more of the JSON than it must: the engine reads it again.

    `model`: the value, once found; `wrong`: why there is none, in a sentence. `prompt`: a hash of that beginning, of so
    many bytes at most; empty: there is none soon after the model.
    """

    def __init__(self) -> None:
        self.read = bytearray()
        self.model: str | None = None
        self.wrong = ""
        self.prompt = ""
        self.prompt_at = 0
        self._model_at = 0
        self._message_at = 0  # where the message begins that is being read
        self._seen = False  # the beginning of the prompt, or that there is none
        self._at = self._depth = self._marks = 0
        self._text_at = -1  # begin of the present text
        self._key = b""  # a text of the object itself that may be a key: it is one if `:` follows

    @property
    def over(self) -> bool:
        return bool(self.wrong) or (self.model is not None and self._seen)

    def feed(self, piece: bytes) -> None:
        self.read += piece
        while not self.over and self._step():
            pass
        if self._seen:
            return
        if self.prompt_at and len(self.read) - self.prompt_at >= self._prompt_most:
            self._see(len(self.read))
        elif self.model is not None and not self.prompt_at and len(self.read) - self._model_at >= PROMPT_BYTES:
            self._seen = True

    def end(self) -> None:
        """The body has ended."""
        if self.model is None and not self.wrong:
            self.wrong = NOT_SAID if self.read.strip() else f"the body is empty; {NOT_SAID.removeprefix('the ')}"

    def _step(self) -> bool:
        """Advance by one mark. Return False if more input is needed."""
        if self._text_at >= 0:
            return self._text()
        if self._depth == 0:
            return self._begin()
        if self._key and not self._follows():
            return False
        found = None if self.over else _MARK.search(self.read, self._at)
        if found is None:
            self._at = self._at if self.over else len(self.read)
            return False
        self._at, self._marks = found.end(), self._marks + 1
        if self._marks > MARKS_MAX:
            self._give_up(TOO_MANY)
        elif found[0] == b'"':
            self._text_at = found.start()
        else:
            self._depth += 1 if found[0] in b"{[" else -1
            if self._depth == 0:
                self._give_up(NOT_SAID)
            elif self.prompt_at and not self._seen:
                self._within(found[0])
        return True

    def _give_up(self, why: str) -> None:
        """There is no more to find."""
        self._seen = True
        if self.model is None:
            self.wrong = why

    def _within(self, mark: bytes) -> None:
        """A mark within the messages."""
        if mark == b"{" and self._depth == 3:
            self._message_at = self._at - 1
        elif self._depth == 1 or (
            mark == b"}" and self._depth == 2 and _USER.search(self.read, self._message_at, self._at) is not None
        ):
            self._see(self._at)

    def _see(self, end: int) -> None:
        """The beginning of the prompt ends there at the latest."""
        self._seen = True
        end = min(end, self.prompt_at + self._prompt_most)
        self.prompt = blake2b(self.read[self.prompt_at : end], digest_size=8).hexdigest()

    @property
    def _prompt_most(self) -> int:
        return TEXT_BYTES if self.read[self.prompt_at : self.prompt_at + 1] == b'"' else PROMPT_BYTES

    def _begin(self) -> bool:
        at = self._after_space(self._at)
        if at >= len(self.read):
            return False
        if self.read[at : at + 1] != b"{":
            self.wrong = NO_OBJECT
            return False
        self._at, self._depth = at + 1, 1
        return True

    def _text(self) -> bool:
        found = _TEXT.match(self.read, self._at)
        assert found is not None, "it matches nothing, too"
        self._at = found.end()
        if self.read[self._at : self._at + 1] != b'"':
            return False
        self._at += 1
        if self._depth == 1 and self._at - self._text_at <= len('"messages"'):
            self._key = bytes(self.read[self._text_at : self._at])
        if self._depth == 1 and self._text_at == self.prompt_at and not self._seen:
            self._see(self._at)
        self._text_at = -1
        return True

    def _follows(self) -> bool:
        """Read the mark after a text that may be a key. Return False if more input is needed."""
        at = self._after_space(self._at)
        if at >= len(self.read):
            return False
        if self.read[at : at + 1] != b":":
            self._key = b""
            return True
        begin = self._after_space(at + 1)
        if begin >= len(self.read):
            return False
        if self._key in _PROMPTS and not self.prompt_at:
            self.prompt_at = begin
            if self.read[begin : begin + 1] not in b'"[':
                self._seen = True
        elif self._key == _KEY and self.model is None:
            return self._value(begin)
        self._key, self._at = b"", begin
        return True

    def _value(self, begin: int) -> bool:
        if self.read[begin : begin + 1] != b'"':
            self.wrong = NO_TEXT
            return True
        found = _TEXT.match(self.read, begin + 1)
        assert found is not None, "it matches nothing, too"
        if self.read[found.end() : found.end() + 1] != b'"':
            if found.end() - begin > 8 * NAME_CHARS_MAX:
                self.wrong = f"`model` is longer than {NAME_CHARS_MAX} characters"
            return self.over
        try:
            self.model = msgspec.json.decode(self.read[begin : found.end() + 1], type=str)
            self._key, self._at, self._model_at = b"", found.end() + 1, found.end()
        except msgspec.DecodeError:
            self.wrong = NO_TEXT
        return True

    def _after_space(self, at: int) -> int:
        found = _SPACE.match(self.read, at)
        assert found is not None, "it matches nothing, too"
        return found.end()
