"""The public interface has the types that its users see: a file of typical use is checked as they check theirs."""

import subprocess
import sys
from pathlib import Path

from tests.support.tree import ROOT

USE = ROOT / "tests/support/programs/typed_use.py"


def checked(program: Path) -> subprocess.CompletedProcess[str]:
    """With unused `type: ignore` comments as errors: each of them stands for a mistake that mypy finds."""
    words = [sys.executable, "-m", "mypy", "--strict", "--warn-unused-ignores", str(program)]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)


def test_typical_use_has_its_types_and_mistakes_are_found() -> None:
    found = checked(USE)
    assert found.returncode == 0, found.stdout


def test_a_wrong_type_would_be_seen(tmp_path: Path) -> None:
    text = USE.read_text()
    wrong = tmp_path / "wrong.py"
    wrong.write_text(text.replace("assert_type(train.remote(0.1), float)", "assert_type(train.remote(0.1), str)"))
    assert wrong.read_text() != text
    found = checked(wrong)
    assert (found.returncode, found.stdout.count("error:")) == (1, 1), found.stdout
