"""Compiling the hook and the emulated driver: once, whole, and with a reason where it cannot be done."""

import subprocess
import sys
from pathlib import Path

import pytest

from weft.emulation.native import DRIVER
from weft.sharing import native
from weft.sharing.native import HOOK, Library, NotBuilt, build, cache_folder, find_compiler

ROOT = Path(__file__).parents[2]
BUILD = """
import sys; from pathlib import Path; from weft.emulation.native import DRIVER; from weft.sharing.native import build
print(build(DRIVER, Path(sys.argv[1]), {}))
"""

needs_compiler = pytest.mark.skipif(isinstance(find_compiler(), NotBuilt), reason="no C compiler here")


@needs_compiler
def test_two_that_build_at_once_get_the_same_files_and_leave_nothing_else(tmp_path: Path) -> None:
    builders = [
        subprocess.Popen([sys.executable, "-c", BUILD, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = {builder.communicate(timeout=120)[0] for builder in builders}
    built = build(DRIVER, tmp_path, {})
    assert isinstance(built, Path)
    assert said == {f"{built}\n"}
    assert [path / DRIVER.path for path in tmp_path.iterdir()] == [built]
    assert built.is_file()


@needs_compiler
def test_what_is_built_is_not_built_again(tmp_path: Path) -> None:
    first = build(HOOK, tmp_path, {})
    assert isinstance(first, Path)
    made = first.stat().st_mtime_ns
    assert build(HOOK, tmp_path, {}) == first
    assert first.stat().st_mtime_ns == made


@pytest.mark.parametrize("library", [HOOK, DRIVER], ids=lambda library: library.path)
def test_a_folder_with_ready_files_is_taken_as_it_is(library: Library, tmp_path: Path) -> None:
    environ = {"WEFT_NATIVE": str(tmp_path)}
    missing = build(library, environ=environ)
    assert isinstance(missing, NotBuilt)
    assert str(tmp_path) in missing.reason
    (tmp_path / library.path).parent.mkdir(exist_ok=True)
    (tmp_path / library.path).touch()
    assert build(library, environ=environ) == tmp_path / library.path


def test_without_a_compiler_there_is_one_sentence_that_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if isinstance(found := find_compiler(), NotBuilt):
        assert "needs a C compiler" in found.reason
    else:
        assert "ziglang" in found.command


@needs_compiler
def test_a_folder_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    refused = build(HOOK, tmp_path / "file", {})
    assert isinstance(refused, NotBuilt)
    assert "cannot be compiled" in refused.reason


@needs_compiler
def test_what_does_not_compile_says_what_the_compiler_said(tmp_path: Path) -> None:
    compiler = find_compiler()
    assert not isinstance(compiler, NotBuilt)
    (tmp_path / "wrong.c").write_text("int main(void) { return nothing_of_this_name; }")
    failed = native.compile_file(compiler, tmp_path / "out", [tmp_path / "wrong.c"], ())
    assert failed is not None
    assert "nothing_of_this_name" in failed.reason


def test_compiled_files_are_kept_out_of_git() -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", cache_folder({})], cwd=ROOT, check=False)
    assert ignored.returncode == 0 or not cache_folder({}).is_relative_to(ROOT)
