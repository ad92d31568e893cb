"""The program of a run by its name, as its shell would find it, and why it cannot be run."""

import os
from pathlib import Path

import pytest

from weftd.executor.runtime.process.shim import find_command


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A variable PATH of three folders: one that is not there, `first` and `second`."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return os.pathsep.join((str(tmp_path / "none"), str(tmp_path / "first"), str(tmp_path / "second")))


def program(file: Path, mode: int = 0o755) -> str:
    file.write_text("#!/bin/sh\n")
    file.chmod(mode)
    return str(file)


def test_a_program_is_that_of_the_first_folder_that_has_one(tmp_path: Path, path: str) -> None:
    second = program(tmp_path / "second" / "train")
    assert find_command("train", path=path, workdir="/") == (second, "")
    (tmp_path / "first" / "train").mkdir()  # a folder of that name is passed over
    assert find_command("train", path=path, workdir="/") == (second, "")
    (tmp_path / "first" / "train").rmdir()
    assert find_command("train", path=path, workdir="/") == (second, "")
    first = program(tmp_path / "first" / "train")
    assert find_command("train", path=path, workdir="/") == (first, "")


def test_a_program_with_a_slash_is_found_from_the_workdir(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    found = program(tmp_path / "bin" / "train")
    assert find_command("bin/train", path="/nowhere", workdir=str(tmp_path)) == (found, "")
    assert find_command(found, path="", workdir="/") == (found, "")


def test_a_missing_program_and_one_with_a_null_character_are_not_found(path: str) -> None:
    for name in ("train", "./train", "tr\0ain"):
        assert find_command(name, path=path, workdir="/") == ("", f"command not found: {name}")


def test_a_folder_is_no_command(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    assert find_command("./bin", path="", workdir=str(tmp_path)) == ("", "./bin is a folder, not a command")


def test_a_file_that_is_not_executable_is_named_with_its_mode(tmp_path: Path, path: str) -> None:
    file = program(tmp_path / "first" / "train", 0o640)
    why = f"{file} is not executable (mode 0640): `chmod +x` makes it so"
    assert find_command("train", path=path, workdir="/") == ("", why)
    found = program(tmp_path / "second" / "train")
    assert find_command("train", path=path, workdir="/") == (found, "")
