"""The expressions by which a job chooses nodes by their labels: `zone == 'a' && nvlink`.

    either := both ("||" both)*
    both   := test ("&&" test)*
    test   := "!" test | "(" either ")" | LABEL
            | LABEL "==" TEXT | LABEL "!=" TEXT | LABEL "in" "[" TEXT ("," TEXT)* "]"

A label alone asks that the node has it, whatever its value. `!=` holds too where there is no such label. Each
expression ends soon: it has no loops, no calls, and at most `WHERE_CHARACTERS_MAX` characters, `TESTS_MAX` tests and
`DEPTH_MAX` levels. A scheduler evaluates it for each node, whenever it looks for a place.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

from weft.domain.spec import WHERE_CHARACTERS_MAX

DEPTH_MAX = 16  # levels of `(` and `!`
TESTS_MAX = 64  # labels, `(` and `!`
KEPT_MAX = 1024  # expressions
SHOWN_MAX = 20  # characters of what was found in the place of what was expected

Labels = Mapping[str, str]
Test = Callable[[Labels], bool]

_WORD = re.compile(
    r"""[ \t\r\n]*(?:(?P<sign>==|!=|&&|\|\||[!()\[\],])"""
    r"""|(?P<label>[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?(?![A-Za-z0-9._/-]))"""
    r"""|(?P<text>'[^'\x00-\x1f\x7f]*'|"[^"\x00-\x1f\x7f]*")|(?P<end>\Z))"""
)
_SPACE = re.compile(r"[ \t\r\n]*")


class WhereError(ValueError):
    """The expression is none: at which character, counted from 1, and why."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at character {position}: {reason}")
        self.position = position
        self.reason = reason


def parsed(text: str) -> Test:
    """The test that the expression is, for the labels of a node. Raises WhereError."""
    if len(text) > WHERE_CHARACTERS_MAX:
        raise WhereError(
            WHERE_CHARACTERS_MAX + 1, f"the expression has {len(text)} characters; at most {WHERE_CHARACTERS_MAX}"
        )
    return _Parser(text).whole()


def matches(text: str, labels: Labels) -> bool:
    """Do these labels match the expression? An empty one matches all, and one that this version cannot read none."""
    if not text:
        return True
    test = _test_of(text)
    return test is not None and test(labels)


@lru_cache(maxsize=KEPT_MAX)
def _test_of(text: str) -> Test | None:
    try:
        return parsed(text)
    except WhereError:
        return None


def _not(test: Test) -> Test:
    return lambda labels: not test(labels)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = self._tests = 0
        self._at = 0  # where the next word begins, and where it ends
        self._end = 0
        self._kind = ""
        self._word = ""
        self._next()

    def whole(self) -> Test:
        test = self._either()
        if self._kind != "end":
            raise self._expected("`&&`, `||` or the end")
        return test

    def _either(self) -> Test:
        tests = [self._both()]
        while self._takes("||"):
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda labels: any(test(labels) for test in tests)

    def _both(self) -> Test:
        tests = [self._test()]
        while self._takes("&&"):
            tests.append(self._test())
        return tests[0] if len(tests) == 1 else lambda labels: all(test(labels) for test in tests)

    def _test(self) -> Test:
        begins = self._at
        self._tests += 1
        if self._tests > TESTS_MAX:
            raise WhereError(begins + 1, f"more than {TESTS_MAX} labels, `(` and `!`; `in` compares with many values")
        if self._kind == "label":
            return self._of_label()
        if self._word not in ("!", "("):
            raise self._expected("a label, `!` or `(`")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise WhereError(begins + 1, f"more than {DEPTH_MAX} levels of `(` and `!`")
        if self._takes("!"):
            inner = self._test()
            test = _not(inner)
        else:
            self._must_take("(")
            test = self._either()
            if not self._takes(")"):
                raise self._expected(f"`)` for the `(` at character {begins + 1}")
        self._depth -= 1
        return test

    def _of_label(self) -> Test:
        name = self._word
        self._next()
        if self._takes("=="):
            value = self._value()
            return lambda labels: labels.get(name) == value
        if self._takes("!="):
            value = self._value()
            return lambda labels: labels.get(name) != value
        if self._kind == "label" and self._word == "in":
            self._next()
            values = self._values()
            return lambda labels: labels.get(name) in values
        return lambda labels: name in labels

    def _values(self) -> frozenset[str]:
        self._must_take("[")
        values = [self._value()]
        while self._takes(","):
            values.append(self._value())
        self._must_take("]")
        return frozenset(values)

    def _value(self) -> str:
        if self._kind != "text":
            raise self._expected("a value in quotes, such as 'a'")
        value = self._word[1:-1]
        self._next()
        return value

    def _must_take(self, sign: str) -> None:
        if not self._takes(sign):
            raise self._expected(f"`{sign}`")

    def _takes(self, sign: str) -> bool:
        if self._kind != "sign" or self._word != sign:
            return False
        self._next()
        return True

    def _next(self) -> None:
        found = _WORD.match(self._text, self._end)
        self._at = self._begin()
        if found is None:
            raise WhereError(self._at + 1, self._unreadable())
        self._kind = found.lastgroup or ""
        self._word = found[self._kind]
        self._end = found.end()

    def _begin(self) -> int:
        space = _SPACE.match(self._text, self._end)
        return self._end if space is None else space.end()

    def _unreadable(self) -> str:
        rest = self._text[self._at :]
        if rest[0] in "'\"":
            return f"a value that has no closing {rest[0]}, or has a control character in it"
        if rest[0] in "=&|":
            double = {"=": "==", "&": "&&", "|": "||"}[rest[0]]
            return f"`{rest[0]}` alone; did you mean `{double}`?"
        return f"neither a label, a value in quotes nor an operator: {_shown(rest)}"

    def _expected(self, what: str) -> WhereError:
        found = "the end" if self._kind == "end" else _shown(self._text[self._at :])
        return WhereError(self._at + 1, f"expected {what}, got {found}")


def _shown(rest: str) -> str:
    word = rest.split(maxsplit=1)[0] if rest.split() else rest
    return f"`{word[:SHOWN_MAX]}`" if word.isprintable() else repr(word[:SHOWN_MAX])
