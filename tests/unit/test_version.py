"""The version by Git, in repositories of one file."""

import re
import subprocess
from pathlib import Path

import pytest

from weft.version import FIRST, of_checkout


def git(root: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(["git", "-C", root, *who, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def commit(root: Path) -> None:
    with (root / "file").open("a") as file:
        file.write("line\n")
    git(root, "add", "file")
    git(root, "commit", "--quiet", "--message", "a change")


def test_a_tagged_commit_has_the_version_of_its_tag(root: Path) -> None:
    git(root, "tag", "v1.2.3")
    assert of_checkout(root) == "1.2.3"


def test_a_commit_after_a_tag_is_a_development_of_the_next_version(root: Path) -> None:
    git(root, "tag", "v1.2.3")
    commit(root)
    commit(root)
    assert of_checkout(root) == f"1.2.4.dev2+g{git(root, 'rev-parse', '--short', 'HEAD')}"


def test_a_changed_file_shows(root: Path) -> None:
    git(root, "tag", "v1.2.3")
    (root / "file").write_text("changed\n")
    assert re.fullmatch(r"1\.2\.4\.dev0\+g[0-9a-f]+\.dirty", of_checkout(root))


def test_a_tag_that_is_no_version_does_not_count(root: Path) -> None:
    git(root, "tag", "nightly")
    assert of_checkout(root) == f"{FIRST}.dev1+g{git(root, 'rev-parse', '--short', 'HEAD')}"


def test_a_folder_without_a_history_has_no_version(tmp_path: Path) -> None:
    assert of_checkout(tmp_path) == ""
