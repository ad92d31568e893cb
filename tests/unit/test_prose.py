"""The lint of new prose: each rule finds a sentence, and leaves a good one of the same words alone."""

import subprocess
from pathlib import Path

import pytest

from tests.support.prose import COMMENT, DOCSTRING, HEADING, HELP, RULES, TEXT, added, findings, main, sentences


def rules(path: str, text: str) -> list[str]:
    """The names of the rules that a file breaks."""
    return [found.rule.name for sentence in sentences(path, text) for found in findings(sentence)]


def help_text(text: str) -> str:
    return f"parser.add_argument('--x', help={text!r})"


BAD_AND_GOOD = [
    ("begins with what", "What a job asks for.", "What does a job ask for?"),
    ("begins with what", "**What is lost.** Nothing.", "Loss: see what `git log` shows."),
    ("begins with what", "Settings.\n\n- what a node runs", "Settings.\n\n- the runs of a node"),
    ("begins with what", "`gpus`: what it holds.", "`gpus` what is not a sentence."),
    ("begins with who", "Who may start.", "Tenants who may start."),
    ("begins with of", "Of all nodes the first.", "Of course the first node."),
    ("begins with whether", "Whether it fits.", "Whether it fits or not, it is logged."),
    ("begins with that which", "That which is stored.", "The value which is stored."),
    ("says anew", "The node starts anew.", "The node starts again with a `anew` flag."),
    ("says is told", "The gateway is told it.", "Two jobs cannot be told apart."),
    ("says is told", "The size told by a node.", "A job that was told to stop."),
    ("says goes by", "The order goes by age.", "A replica may be gone by then."),
    ("says bears", "Two replicas bear it.", "Bear in mind that replicas start slowly."),
    ("says so many", "At most so many rows.", "There are so many rows that a page is long."),
    ("says in the mean", "Once a day in the mean.", "Once a day in the meantime."),
    ("says in case that", "In case that it fails.", "In case it fails."),
    ("says every single one", "Every single one of them.", "Each of them."),
]
BAD_AND_GOOD_HELP = [
    ("to generate", "generate a trace"),
    ("such as 16GiB", "size of /dev/shm, such as 16GiB"),
    ("how many", "number of replicas"),
    ("at most so long", "maximum wait"),
    ("those of a node", "jobs of a node"),
]


@pytest.mark.parametrize(("rule", "bad", "good"), BAD_AND_GOOD)
def test_a_rule_finds_a_bad_sentence_and_no_good_one(rule: str, bad: str, good: str) -> None:
    assert rules("page.md", bad) == [rule]
    assert rules("page.md", good) == []


@pytest.mark.parametrize(("bad", "good"), BAD_AND_GOOD_HELP)
def test_a_help_text_begins_with_a_noun_or_an_imperative(bad: str, good: str) -> None:
    assert "begins with no noun" in rules("verb.py", help_text(bad))
    assert rules("verb.py", help_text(good)) == []
    assert "begins with no noun" not in rules("page.md", bad)


def test_every_rule_has_an_example() -> None:
    assert {rule.name for rule in RULES} == {rule for rule, _, _ in BAD_AND_GOOD} | {"begins with no noun"}


PYTHON = '''"""A module.

Its contract.
"""

SIZE_HELP = "maximum size"


def add(what="a name"):  # a comment
    # two lines
    # of one comment. Another sentence.
    parser.add_argument("--x", help=f"size of {1}")
    parser.add_argument("--y", help=what, metavar="NO HELP")
    parser.add_argument(
        "--z",
        help="one"
        " text",
    )
    call(help="no help text")  # noqa: E501
'''


def test_python_has_docstrings_comments_and_help_texts() -> None:
    found = [(each.line, each.last, each.kind, each.text) for each in sentences("module.py", PYTHON)]
    assert sorted(found) == [
        (1, 1, DOCSTRING, "A module."),
        (3, 3, DOCSTRING, "Its contract.\n"),
        (6, 6, HELP, "maximum size"),
        (9, 9, COMMENT, "a comment"),
        (9, 9, HELP, "a name"),
        (10, 11, COMMENT, "two lines\nof one comment."),
        (11, 11, COMMENT, "Another sentence."),
        (12, 12, HELP, "size of `…`"),
        (16, 17, HELP, "one text"),
    ]


MARKDOWN = """# A page

One sentence that
goes on. Another one.
- an item
  of two lines

| name | what it is |
|---|---|
| gpus | number of GPUs |
```
What is code.
```
> quoted
"""


def test_markdown_has_headings_paragraphs_items_and_cells() -> None:
    found = [(each.line, each.last, each.kind, " ".join(each.text.split())) for each in sentences("page.md", MARKDOWN)]
    assert found == [
        (1, 1, HEADING, "A page"),
        (3, 4, TEXT, "One sentence that goes on."),
        (4, 4, TEXT, "Another one."),
        (5, 6, TEXT, "an item of two lines"),
        (10, 10, TEXT, "gpus"),
        (10, 10, TEXT, "number of GPUs"),
        (14, 14, TEXT, "quoted"),
    ]


DIFF = """diff --git a/old.md b/old.md
--- a/old.md
+++ /dev/null
@@ -1,2 +0,0 @@
-What moves from
-`here` and libs/here and stays.
diff --git a/page.md b/page.md
--- a/page.md
+++ b/page.md
@@ -1 +1 @@
--- a line of two dashes
+What is new. What moves from
@@ -3,0 +4,2 @@
+What moves
+from `there` and libs/there and stays.
"""
PAGE = "What is new. What moves from\n\nWhat is old.\nWhat moves\nfrom `there` and libs/there and stays.\n"


def test_only_sentences_on_added_lines_are_new_and_moved_ones_are_not() -> None:
    new = added(DIFF)
    assert new.lines == {
        "page.md": {1: "What is new. What moves from", 4: "What moves", 5: "from `there` and libs/there and stays."}
    }
    assert [each.text.strip() for each in sentences("page.md", PAGE) if new.has(each)] == ["What is new."]


def git(root: Path, *words: str) -> None:
    named = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", *named, *words], cwd=root, check=True, capture_output=True)


def test_text_since_the_base_counts_also_uncommitted_and_untracked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text("What is old.\n\nA line.\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=begin")
    git(tmp_path, "tag", "v1")
    assert main([], tmp_path, ("v0", "v1")) == 0

    (tmp_path / "page.md").write_text("What is old.\n\nWhat is new.\n")
    (tmp_path / "more.py").write_text('"""Who is new."""\n')
    capsys.readouterr()
    assert main([], tmp_path, ("v0", "v1")) == 1
    found = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert found == ["more.py:1: Who is new.", "page.md:3: What is new.", "prose: 2 sentences to rewrite"]
    assert main(["page.md"], tmp_path, ("v1",)) == 1
    assert main(["--all", "page.md"], tmp_path, ()) == 1
    assert "page.md:1: What is old." in capsys.readouterr().out


def test_a_clone_without_the_base_is_not_checked_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "page.md").write_text("What is new.\n")
    git(tmp_path, "init", "--quiet")
    assert main([], tmp_path, ("v0", "v1")) == 0
    assert capsys.readouterr().out == "prose: not checked, this clone has no history back to v0 or v1\n"
