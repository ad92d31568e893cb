"""Try mutants: copy the source tree, change one passage, run the tests that should fail."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue

from msgspec import Struct

from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
COPIED = ("libs", "services", "tests")
TIMEOUT_SECONDS = 600.0
PASSED, FAILED = 0, 1  # exit statuses of pytest; every other one says that it could not run the tests
SEED = 0  # the seed of Python's hashes and of the examples of hypothesis

Tests = tuple[str, ...]


class Outcome(StrEnum):
    KILLED = "killed"
    SURVIVED = "survived"
    NOT_APPLICABLE = "not applicable"  # its old text does not occur exactly once
    BROKEN = "broken"  # its tests fail without it, or cannot be run


class Tried(Struct, frozen=True, kw_only=True):
    mutant: Mutant
    outcome: Outcome
    detail: str = ""


def occurrences(mutant: Mutant, root: Path = ROOT) -> int:
    path = root / mutant.path
    return path.read_text().count(mutant.old) if path.is_file() else 0


class SourceTree:
    """A copy of the source tree under `folder`, in which tests run and files change. They import from the copy the
    packages that this process imports from the source tree."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in COPIED:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
        shutil.copy2(ROOT / "pyproject.toml", folder)
        importable = {Path(entry).resolve() for entry in sys.path}
        self._paths = [str(folder), *(str(folder / name) for name in COPIED if ROOT / name in importable)]

    def run(self, tests: Iterable[str], *, keep_bytecode: bool = False) -> tuple[int, str]:
        """Run pytest; return its exit status and the last line that it printed.

        Bytecode is kept of the unchanged sources only, so that none of a mutant is ever used for them.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment |= {"PYTHONPATH": os.pathsep.join(self._paths), "PYTHONHASHSEED": str(SEED)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if not keep_bytecode:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        options = ("-x", "-q", "-p", "no:cacheprovider", f"--hypothesis-seed={SEED}")
        try:
            ended = subprocess.run(
                (sys.executable, "-m", "pytest", *options, *tests),
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, f"not over after {TIMEOUT_SECONDS:g} s"
        lines = (ended.stdout + ended.stderr).strip().splitlines()
        return ended.returncode, lines[-1] if lines else ""

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Apply the mutant for a while. The changed file has another time, so that its bytecode does not count."""
        path = self.folder / mutant.path
        before, times = path.read_text(), path.stat()
        path.write_text(before.replace(mutant.old, mutant.new))
        try:
            yield
        finally:
            path.write_text(before)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def try_mutants(
    mutants: Sequence[Mutant], *, jobs: int = 1, tell: Callable[[Tried], None] = lambda _: None
) -> list[Tried]:
    """Try each mutant, `jobs` of them at a time. `tell` is called with each result.

    All tests run first without any mutant: a test that fails then says nothing about its mutants.
    """
    with tempfile.TemporaryDirectory(prefix="weft-mutants-") as folder, ThreadPoolExecutor(jobs) as threads:
        trees: SimpleQueue[SourceTree] = SimpleQueue()
        for number in range(jobs):
            trees.put(SourceTree(Path(folder) / str(number)))

        def trial(mutant: Mutant) -> Tried:
            with _one_of(trees) as tree:
                tried = _try(tree, mutant, before[mutant.tests])
            tell(tried)
            return tried

        with _one_of(trees) as tree:
            before = _unmutated(tree, {mutant.tests for mutant in mutants})
        return list(threads.map(trial, mutants))


def _unmutated(tree: SourceTree, sets: Collection[Tests]) -> dict[Tests, tuple[int, str]]:
    """The result of each set of tests without a mutant: all of them at once, or one by one if any test fails."""
    together = tree.run(sorted({test for tests in sets for test in tests}), keep_bytecode=True)
    if together[0] == PASSED:
        return dict.fromkeys(sets, together)
    return {tests: tree.run(tests) for tests in sets}


@contextmanager
def _one_of(trees: "SimpleQueue[SourceTree]") -> Iterator[SourceTree]:
    tree = trees.get()
    try:
        yield tree
    finally:
        trees.put(tree)


def _try(tree: SourceTree, mutant: Mutant, before: tuple[int, str]) -> Tried:
    if (found := occurrences(mutant, tree.folder)) != 1:
        return Tried(mutant=mutant, outcome=Outcome.NOT_APPLICABLE, detail=f"its old text occurs {found} times")
    if before[0] != PASSED:
        return Tried(mutant=mutant, outcome=Outcome.BROKEN, detail=f"its tests fail without it: {before[1]}")
    with tree.changed(mutant):
        status, last = tree.run(mutant.tests)
    if status == PASSED:
        return Tried(mutant=mutant, outcome=Outcome.SURVIVED, detail=last)
    if status == FAILED:
        return Tried(mutant=mutant, outcome=Outcome.KILLED, detail=last)
    return Tried(mutant=mutant, outcome=Outcome.BROKEN, detail=f"pytest could not run its tests: {last}")
