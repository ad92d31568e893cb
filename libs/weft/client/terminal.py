"""A job's output made harmless for a terminal: text and colours pass, control sequences do not.

Escape sequences other than colours are removed, with OSC strings (titles, the clipboard) up to their end. A carriage
return becomes a line break, so that no line hides the line before it. Bytes that are no UTF-8 become U+FFFD. Text is
never removed: a sequence that does not end on its line loses only its first character.
"""

import codecs
import re

HELD_MAX = 4096  # characters that may belong to a sequence whose end has not come

_RESET = "\x1b[0m"
_COLOUR = re.compile(r"(?:\x1b\[|\x9b)([0-9;:]*)m")
_CONTROL = r"(?:\x1b\[|\x9b)[0-?]*[ -/]*"  # CSI, up to its last character
_STRING = r"(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*"  # OSC, DCS, SOS, PM, APC
_SEQUENCE = re.compile(
    rf"{_CONTROL}[@-~]|{_STRING}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]+[0-~]"  # character sets
    r"|\x1b[0-Z\\`-~]"  # all others of two characters, such as a reset
)
_UNFINISHED = re.compile(rf"(?:{_CONTROL}|{_STRING}\x1b?|\x1b[ -/]*|\r)\Z")
# No sequence runs over the beginning of another one, so that looking for them takes time in proportion to the text.
_BIDIRECTIONAL = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]  # they show text in another order than it has
_DROPPED = dict.fromkeys([*range(0x09), 0x0B, 0x0C, *range(0x0E, 0x20), 0x7F, *range(0x80, 0xA0), *_BIDIRECTIONAL])


class TerminalText:
    """A log as it comes, in pieces that may end anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._coloured = False

    def feed(self, chunk: bytes) -> bytes:
        return self._clean(self._held + self._decoder.decode(chunk), last=False).encode()

    def close(self) -> bytes:
        """The text that was held back, and the end of the job's colours."""
        rest = self._clean(self._held + self._decoder.decode(b"", final=True), last=True)
        return (rest + (_RESET if self._coloured else "")).encode()

    def _clean(self, text: str, *, last: bool) -> str:
        self._held = ""
        unfinished = None if last else _UNFINISHED.search(text, max(0, len(text) - HELD_MAX))
        if unfinished is not None:
            text, self._held = text[: unfinished.start()], unfinished.group()
        cleaned: list[str] = []
        end = 0
        for sequence in _SEQUENCE.finditer(text):
            cleaned.append(_harmless(text[end : sequence.start()]))
            end = sequence.end()
            if colour := _COLOUR.fullmatch(sequence.group()):
                self._coloured = colour[1].strip("0;") != ""
                cleaned.append(f"\x1b[{colour[1]}m")
        cleaned.append(_harmless(text[end:]))
        return "".join(cleaned)


def cleaned(text: bytes) -> str:
    """All of a short text, without colours."""
    screen = TerminalText()
    return _COLOUR.sub("", (screen.feed(text) + screen.close()).decode())


def _harmless(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_DROPPED)
