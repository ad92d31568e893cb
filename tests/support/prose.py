"""Checks the wording of new prose: `python -m tests.support.prose` is a part of `make check`.

Prose is help texts of argparse, docstrings, comments and Markdown. New is a sentence on a line that `git diff` shows as
added since the base (see `BASES`) or that git does not track yet. Moved or reflowed lines are not new. Code in
backticks and quoted words are not checked. `--all` checks the whole tree, and `PATH…` a part of it.

False alarms were counted by reading every finding on 200 random lines (`--sample 200 --seed S`, 28 November 2026),
with every doubtful one counted as false:

    seed 1: 34 sentences found, 1 false (a test double that "is told what to answer")
    seed 2: 38 sentences found, 0 false
    seed 3: 34 sentences found, 3 false ("Of those that ask for 0.8, a fifth fits", twice; "What would change our mind")

That is at most 3 of 200 lines, below one in fifty.
"""

import argparse
import ast
import io
import random
import re
import subprocess
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
# The first of these that HEAD descends from is the base. Later text is new.
BASES = ("v0.1.0", "973f34d845d10d1a16c546e8c94464f282a666f7")
# A generator writes verbs.md from the help texts, which are checked where they are written.
NOT_CHECKED = {"docs/verbs.md"}

MASK = "x"  # stands for each character of code and of quotations
HELP, DOCSTRING, COMMENT, TEXT, HEADING = "help", "docstring", "comment", "Markdown", "heading"
SENTENCES = frozenset({HELP, DOCSTRING, COMMENT, TEXT, HEADING})
# The calls whose keywords are help texts: None stands for every keyword.
HELP_CALLS: dict[str, tuple[str, ...] | None] = {
    "add_argument": ("help",),
    "add_argument_group": ("description",),
    "add_parser": ("help", "description"),
    "add_subparsers": ("help", "description"),
    "_commands": None,
}


class Rule(Struct, frozen=True):
    """A pattern that plain English avoids, with a hint for the author. `kinds`: the kinds of prose it applies to."""

    name: str
    pattern: re.Pattern[str]
    hint: str
    kinds: frozenset[str] = SENTENCES


def _opener(name: str, pattern: str, hint: str, *kinds: str) -> Rule:
    """A rule about the first words of a sentence, or of the meaning in "`name`: meaning"."""
    compiled = re.compile(rf"\A[\W_]*(?:{MASK}+:\s+)?(?:{pattern})", re.IGNORECASE | re.DOTALL)
    return Rule(f"begins with {name}", compiled, hint, frozenset(kinds) or SENTENCES)


def _word(name: str, pattern: str, hint: str) -> Rule:
    """A rule about words anywhere in a sentence."""
    return Rule(f"says {name}", re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), hint)


_QUESTION = r"(?![^?]*\?\W*\Z)"  # a question may begin with what or who
RULES = (
    _opener("what", rf"what(?:ever)?\s+\S{_QUESTION}", "begin with the noun: 'values that …', 'the job's …'"),
    _opener("who", rf"(?:who|whom|whose|whoever)\s+\S{_QUESTION}", "name the subject: the job, the node, the tenant"),
    _opener("of", r"of\s+(?!course\b)\S", "begin with the noun: 'random seed', not 'of all dice'"),
    _opener(
        "whether",
        r"whether\s+(?!\S[^.]*\bor\b[^.]*,)\S",
        "write 'return True if …', or begin with the noun or the verb",
    ),
    _opener("that which", r"(?:that|those|all)\s+which\b", "begin with the noun: 'the values that …'"),
    _opener(
        "no noun",
        r"(?:to|from|between|by|with|for|at|in|on|than|as|so|such|if|when|where|which|how|that|those)\s"
        r"|(?:its|it|one|these)\s+(?:is|that|from|to)\b|at most so\b",
        "begin a help text with its noun or with an imperative",
        HELP,
    ),
    _word("anew", "anew", "write 'again'"),
    _word(
        "is told",
        r"(?:is|are|was|were|be|been|being)(?: \w+)? told(?! apart| to\b)"
        r"|told (?:of|in|by|as|at|with|from|on|once|again)",
        "write 'is reported', 'is published', 'is logged' or 'receives'",
    ),
    _word("goes by", r"(?<!time )(?:go|goes|going|went) by(?! in\b)", "write 'uses', 'follows' or 'is ordered by'"),
    _word("bears", r"bear(?:s|ing)?(?! in mind)|borne", "write 'supports', 'handles', 'carries' or 'has'"),
    _word(
        "so many",
        r"(?<!, )so many(?!(?:\s+\S+){0,4}\s+that)",
        "write the number's name: 'n', 'the maximum', 'that number of'",
    ),
    _word("in the mean", r"in the mean(?! ?time| ?while| of\b)", "write 'on average'"),
    _word("in case that", "in case that", "write 'if'"),
    _word("every single one", "every single one", "write 'each'"),
)


class Sentence(Struct, frozen=True):
    """One sentence with the first and the last of its lines. `masked`: the text without its code and quotations."""

    path: str
    line: int
    last: int
    kind: str
    text: str
    masked: str


class Finding(Struct, frozen=True):
    """A sentence that breaks a rule."""

    sentence: Sentence
    rule: Rule

    def __str__(self) -> str:
        text = " ".join(self.sentence.text.split())
        return f"{self.sentence.path}:{self.sentence.line}: {text}\n    {self.rule.name}: {self.rule.hint}"


def findings(sentence: Sentence) -> list[Finding]:
    """Every rule that the sentence breaks."""
    return [
        Finding(sentence, rule)
        for rule in RULES
        if sentence.kind in rule.kinds and rule.pattern.search(sentence.masked)
    ]


# sentences of a file


_MASKED = re.compile(
    r"(?P<fence>`+).+?(?P=fence)"  # code
    r'|"[^"\n]*(?:\n[^"\n]*)?"|“[^”]*”'  # quotations of up to two lines
    r"|(?<=\])\([^)\s]*\)"  # the target of a link
    r"|(?<![*\w])\*(?![*\s])[^*\n]+\*(?!\*)",  # a cited word in italics
    re.DOTALL,
)
_END = re.compile(rf"(?<=[.!?])[*_)]*\s+(?=\W*(?:[A-Z]|{MASK}{MASK}))|\n[ \t]*\n|\n[ \t]*(?:[-*+]|\d+\.)[ \t]+")
_RULE = re.compile(r"\|[ |:-]+")  # the line between the head of a table and its cells
_COMMAND = re.compile(r"(?:noqa|type:|pragma|fmt:|ruff:|!|-\*-)")


def sentences(path: str, text: str) -> list[Sentence]:
    """Every sentence of a Python or Markdown file."""
    return list(_of_markdown(path, text) if path.endswith(".md") else _of_python(path, text))


def _split(path: str, line: int, kind: str, text: str, last: int | None = None) -> Iterator[Sentence]:
    """Split a text that begins on `line`. With `last`, each sentence counts as on all lines up to it."""
    masked = _MASKED.sub(lambda found: re.sub(r"\S", MASK, found[0]), text)
    ends = [(found.start(), found.end()) for found in _END.finditer(masked)]
    for begin, end in zip([0, *(end for _, end in ends)], [*(start for start, _ in ends), len(text)], strict=True):
        if text[begin:end].strip():
            begin += len(text[begin:end]) - len(text[begin:end].lstrip())
            first = line + text.count("\n", 0, begin)
            yield Sentence(
                path=path,
                line=line if last else first,
                last=last or first + text[begin:end].rstrip().count("\n"),
                kind=kind,
                text=text[begin:end],
                masked=masked[begin:end],
            )


def _of_markdown(path: str, text: str) -> Iterator[Sentence]:
    """Headings, cells of tables below their heads, and paragraphs; fenced code is left out."""
    fence, begun = "", 0
    paragraph: list[str] = []
    lines = [*text.splitlines(), "", ""]
    for number, (line, following) in enumerate(pairwise(lines), 1):
        words = re.sub(r"^[ \t>]*(?:(?:[-*+]|\d+\.)[ \t]+)?", "", line)
        mark = re.match(r"```+|~~~+", words)
        apart = not words or mark or words.startswith(("#", "|", "<")) or (not fence and words != line.strip(" \t>"))
        if apart and paragraph:
            yield from _split(path, begun, TEXT, "\n".join(paragraph))
            paragraph = []
        if mark:
            fence = "" if fence and mark[0].startswith(fence) else fence or mark[0]
        elif fence or not words or words.startswith("<"):
            continue
        elif words.startswith("#"):
            yield from _split(path, number, HEADING, words.strip("# "))
        elif words.startswith("|") and not (_RULE.fullmatch(words) or _RULE.fullmatch(following.strip(" >"))):
            for cell in re.split(r"(?<!\\)\|", words):
                yield from _split(path, number, TEXT, cell.strip())
        elif not words.startswith("|"):
            begun = begun if paragraph else number
            paragraph.append(words)


def _of_python(path: str, text: str) -> Iterator[Sentence]:
    """Docstrings, help texts and comments."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Module() | ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef() if ast.get_docstring(node):
                first = node.body[0]
                assert isinstance(first, ast.Expr)
                assert isinstance(first.value, ast.Constant)
                yield from _split(path, first.lineno, DOCSTRING, str(first.value.value))
    for node in _helps(tree):
        if words := _literal(node):
            yield from _split(path, node.lineno, HELP, words, node.end_lineno)
    yield from _comments(path, text)


def _helps(tree: ast.AST) -> Iterator[ast.expr]:
    """The values of help texts: written in a call, or given to a constant or parameter that the call mentions."""
    named: dict[str, list[ast.expr]] = defaultdict(list)
    used: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                named[name].append(value)
                used |= {name} if name.endswith("HELP") else set()
            case ast.arguments(kwonlyargs=only, kw_defaults=kw_defaults, defaults=defaults):
                args = [*node.posonlyargs, *node.args][-len(defaults) :] if defaults else []
                for arg, default in [*zip(args, defaults, strict=True), *zip(only, kw_defaults, strict=True)]:
                    named[arg.arg] += [default] if default else []
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)) if called in HELP_CALLS:
                wanted = HELP_CALLS[called]
                values = [word.value for word in node.keywords if wanted is None or word.arg in wanted]
                used |= {value.id for value in values if isinstance(value, ast.Name)}
                yield from values
    for name in sorted(used):
        yield from named[name]


def _literal(node: ast.expr) -> str:
    """A string as it is written, with `…` for what a format string fills in."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(_literal(value) or "`…`" for value in values)
        case _:
            return ""


def _comments(path: str, text: str) -> Iterator[Sentence]:
    """Comments; those on adjacent lines of their own are one text."""
    begun, last = 0, 0
    words: list[str] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or _COMMAND.match(token.string.lstrip("# ")):
            continue
        number, own = token.start[0], not token.line[: token.start[1]].strip()
        if words and not (own and number == last + 1):
            yield from _split(path, begun, COMMENT, "\n".join(words))
            words = []
        begun = begun if words else number
        words.append(token.string.lstrip("#").removeprefix(" "))
        last = number if own else 0
    if words:
        yield from _split(path, begun, COMMENT, "\n".join(words))


# new lines


class Added(Struct, frozen=True):
    """The lines that a diff adds, by path and number, and the words of all lines that it removes."""

    lines: dict[str, dict[int, str]]
    removed: str

    def has(self, sentence: Sentence) -> bool:
        """Return True if a line of the sentence is new, and not moved from elsewhere."""
        lines = self.lines.get(sentence.path, {})
        numbers = range(sentence.line, sentence.last + 1)
        parts = sentence.text.rstrip().split("\n")  # its part of each line: a line may hold other sentences too
        if len(parts) != len(numbers):
            parts = [lines.get(number, "") for number in numbers]
        touched = [part for number, part in zip(numbers, parts, strict=True) if number in lines]
        return any(f" {words} " not in self.removed for part in touched if (words := _words(part)))


def _words(line: str) -> str:
    """The words of a line without code, paths and dotted names, so that a line with a renamed module is not new."""
    return " ".join(re.findall(r"\w+", re.sub(r"`[^`]*`|\{[^}]*\}|\S*\w[/.]\w\S*", " ", line)))


def added(diff: str) -> Added:
    """Read `git diff --unified=0`."""
    lines: dict[str, dict[int, str]] = defaultdict(dict)
    removed: list[str] = []
    path, number, old, new = "", 0, 0, 0  # `old` and `new`: lines that the hunk still has
    for line in diff.split("\n"):
        if old and line.startswith("-"):
            removed.append(_words(line[1:]))
            old -= 1
        elif new and line.startswith("+"):
            lines[path][number] = line[1:]
            number, new = number + 1, new - 1
        elif found := re.match(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", line):
            old, number, new = int(found[1] or 1), int(found[2]), int(found[3] or 1)
        elif line.startswith("+++ "):
            path = line.removeprefix("+++ ").removeprefix("b/").rstrip("\t")
    return Added(dict(lines), f" {' '.join(filter(None, removed))} ")


def _git(root: Path, *words: str) -> str | None:
    """The output of a git command, or None if it fails."""
    try:
        done = subprocess.run(["git", "-c", "core.quotePath=false", *words], cwd=root, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.decode(errors="replace")


def base(root: Path, bases: Sequence[str]) -> str | None:
    """The commit after which text is new, or None if this clone has none of them."""
    return next((each for each in bases if _git(root, "merge-base", "--is-ancestor", each, "HEAD") is not None), None)


def since(root: Path, commit: str) -> Added:
    """Everything added since a commit, with what is not committed and not tracked yet."""
    diff = added(_git(root, "diff", "--unified=0", "--no-renames", "--no-ext-diff", "--no-color", commit, "--") or "")
    for path in _files(root, "--others"):
        diff.lines[path] = dict(enumerate((root / path).read_text().splitlines(), 1))
    return diff


def _files(root: Path, *words: str) -> list[str]:
    """The files of prose that `git ls-files` lists."""
    listed = (_git(root, "ls-files", "--exclude-standard", *words) or "").splitlines()
    return [
        name
        for name in sorted(set(listed))
        if name.endswith((".py", ".md")) and name not in NOT_CHECKED and (root / name).is_file()
    ]


def main(words: list[str] | None = None, root: Path = ROOT, bases: Sequence[str] = BASES) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.prose", description="check the wording of new prose")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files or folders to check (default: the whole tree)")
    parser.add_argument("--all", action="store_true", help="check old sentences as well as new ones")
    parser.add_argument("--sample", type=int, metavar="N", help="check the sentences on N random lines of prose")
    parser.add_argument("--seed", type=int, default=1, help="random seed of --sample (default: 1)")
    args = parser.parse_args(words)
    new: Added | None = None
    if not (args.all or args.sample):
        commit = base(root, bases)
        if commit is None:
            sys.stdout.write(f"prose: not checked, this clone has no history back to {' or '.join(bases)}\n")
            return 0
        new = since(root, commit)
    checked = [
        sentence
        for path in _files(root, "--cached", "--others", "--", *args.paths)
        if new is None or path in new.lines
        for sentence in sentences(path, (root / path).read_text())
    ]
    if args.sample:
        checked = _sample(checked, args.sample, args.seed)
    found = [each for sentence in checked for each in findings(sentence) if new is None or new.has(sentence)]
    for each in found:
        sys.stdout.write(f"{each}\n")
    sys.stdout.write(f"prose: {len({each.sentence for each in found})} sentences to rewrite\n")
    return 1 if found else 0


def _sample(every: list[Sentence], count: int, seed: int) -> list[Sentence]:
    """The sentences on random lines of docstrings, help texts and Markdown."""
    by_line: dict[tuple[str, int], list[Sentence]] = defaultdict(list)
    for sentence in every:
        if sentence.kind != COMMENT:
            for number in range(sentence.line, sentence.last + 1):
                by_line[sentence.path, number].append(sentence)
    drawn = random.Random(seed).sample(sorted(by_line), min(count, len(by_line)))
    return list(dict.fromkeys(sentence for place in drawn for sentence in by_line[place]))


if __name__ == "__main__":
    sys.exit(main())
