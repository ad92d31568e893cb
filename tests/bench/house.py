"""The size of the code base and of its package: `python -m tests.bench house [--ci LOG] [--install] [--mutants]`.

Counted from the files that Git has: lines of the product by area, today and at the commit BEFORE; small files that one
other file imports; files in the largest folder. Measured: the CPU time of `import weft`, and of `weft ps` against a
gateway (the median of five, warm); and the frames between the handler of `POST /v1/jobs` and its SQL. `--ci`: a log of
`.ci/run`, for the times of set-up and tests. `--install`: the size of the base installation, in a fresh environment.
`--mutants`: try the mutants, about twenty minutes.

Nothing is drawn: the seed of the last line is 0. An aim without its option is not in the last line.
"""

import argparse
import ast
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from tests.bench.figures import Aim, line_of
from tests.bench.one_request import measured

ROOT = Path(__file__).parents[2]
BEFORE = "540f1b1d"
ROOTS = ("libs", "services")
SUFFIXES = {".py", ".sql", ".c", ".h", ".js", ".css", ".html", ".ptx"}
OPTIONAL = ("simulator", "sharing", "emulation", "gateway/face")  # a cluster works without them
SMALL_LINES = 60
RUNS = 5


def now() -> dict[str, str]:
    """The text of each file of the product, by its path."""
    names = _git("ls-files", *ROOTS).decode().splitlines()
    return {name: (ROOT / name).read_text() for name in names if Path(name).suffix in SUFFIXES}


def at(commit: str) -> dict[str, str]:
    """Raises CalledProcessError if the clone does not have the commit."""
    names = _git("ls-tree", "-r", "--name-only", commit, *ROOTS).decode().splitlines()
    return {name: _git("show", f"{commit}:{name}").decode() for name in names if Path(name).suffix in SUFFIXES}


def area_of(path: str) -> str:
    """The first folder below the source root; `gateway/face` is the dashboard."""
    parts = [part for part in Path(path).parts[1:] if part not in ("weft", "weftd")]
    return "gateway/face" if parts[:2] == ["gateway", "face"] else parts[0].removesuffix(".py")


def lines_by_area(sources: Mapping[str, str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for path, text in sources.items():
        counted[area_of(path)] += text.count("\n")
    return counted


def small_with_one_importer(sources: Mapping[str, str]) -> list[str]:
    """Modules of fewer than SMALL_LINES lines that exactly one other module of the product imports."""
    modules = {_module(path): path for path in sources if path.endswith(".py")}
    importers: dict[str, set[str]] = {}
    for path in modules.values():
        for name in _imported(sources[path]):
            if (found := modules.get(name)) is not None and found != path:
                importers.setdefault(found, set()).add(path)
    return sorted(
        path
        for path in modules.values()
        if Path(path).stem not in ("__init__", "__main__")
        and sources[path].count("\n") < SMALL_LINES
        and len(importers.get(path, ())) == 1
    )


def largest_folder(sources: Mapping[str, str]) -> tuple[str, int]:
    counted = Counter(str(Path(path).parent) for path in sources)
    return counted.most_common(1)[0]


def cpu_ms(*command: str) -> float:
    """The CPU time of a Python program, warm: the median of RUNS runs after one that compiles its modules, as the
    installation of a package does."""
    with tempfile.TemporaryDirectory(prefix="weft-house-") as compiled:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        return median([_cpu_ms(command, environment) for _ in range(RUNS + 1)][1:])


def ci_seconds(log: str) -> dict[str, float]:
    """The seconds of each phase, and of all, in a log of `.ci/run`."""
    found = {name: float(seconds) for name, seconds in re.findall(r"^ci: ([\w ]+): (\d+) s$", log, re.MULTILINE)}
    whole = re.findall(r"^ci: exit (\d+) after (\d+) s$", log, re.MULTILINE)
    return found | ({"all": float(whole[-1][1])} if whole and whole[-1][0] == "0" else {})


def installed_mb() -> float:
    """The size of the base in a fresh environment, without pip; from the package index that pip is set up with."""
    with tempfile.TemporaryDirectory(prefix="weft-house-") as folder:
        target = Path(folder) / "site"
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        lock = ROOT / "embedded.lock"
        constraint = Path(folder) / "constraint"
        locked = re.findall(r"^[\w.-]+==[^\s;\\]+", lock.read_text(), re.MULTILINE)
        constraint.write_text("".join(f"{one}\n" for one in locked))
        subprocess.run([*pip, "install", "--target", str(target), "-c", str(constraint), str(ROOT)], check=True)
        return sum(path.stat().st_size for path in target.rglob("*") if path.is_file()) / 1e6


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench house", description=__doc__)
    parser.add_argument("--ci", type=Path, metavar="LOG", help="log of .ci/run")
    parser.add_argument("--install", action="store_true", help="measure the base installation")
    parser.add_argument("--mutants", action="store_true", help="try the mutants")
    options = parser.parse_args(words)
    aims = _of_sources()
    aims["import weft, CPU ms"] = _most(cpu_ms(sys.executable, "-c", "import weft"), 150)
    listing, frames = asyncio.run(measured(cpu_ms, str(Path(sys.executable).with_name("weft"))))
    print("from the handler of POST /v1/jobs to its SQL:", ", ".join(frames))
    aims["weft ps, CPU ms"] = _most(listing, 250)
    aims["frames from POST to SQL"] = _most(len(frames), 7)
    if options.install:
        aims["base installation, MB"] = _most(installed_mb(), 15)
    if options.ci is not None:
        seconds = ci_seconds(options.ci.read_text())
        print("CI, seconds:", ", ".join(f"{name} {value:.0f}" for name, value in seconds.items()))
        if "all" not in seconds:
            parser.error(f"{options.ci}: no CI that passed is in it")
        aims["CI, s"] = _most(seconds["all"], 1200)
    if options.mutants:
        done = subprocess.run([sys.executable, "-m", "tests.mutants"], cwd=ROOT, stdout=subprocess.PIPE, check=False)
        killed = json.loads(done.stdout.splitlines()[-1])["aims"]["killed"]
        aims["mutants killed"] = Aim(value=killed["value"], aim=killed["aim"], at_least=True)
    print(line_of(aims, seed=0))
    return 0 if all(aim.met for aim in aims.values()) else 1


def _of_sources() -> dict[str, Aim]:
    sources = now()
    counted = lines_by_area(sources)
    try:
        before = lines_by_area(at(BEFORE))
    except subprocess.CalledProcessError:
        before = Counter()
        print(f"this clone does not have the commit {BEFORE}: lines are those of today alone")
    print(f"{'area':<16}{'before':>9}{'now':>9}")
    for area in sorted(counted | before, key=lambda name: -counted[name]):
        print(f"{area:<16}{before[area]:>9,}{counted[area]:>9,}")
    print(f"{'all':<16}{before.total():>9,}{counted.total():>9,}")
    small, (folder, files) = small_with_one_importer(sources), largest_folder(sources)
    print(f"the largest folder is {folder}; small files with one importer: {', '.join(small)}")
    core = counted.total() - sum(counted[area] for area in OPTIONAL)
    return {
        "lines": _most(counted.total(), 98_000),
        "lines of the core": _most(core, 80_000),
        "small files with one importer": _most(len(small), 20),
        "files in the largest folder": _most(files, 25),
    }


def _most(value: float, aim: float) -> Aim:
    return Aim(value=round(value, 1), aim=aim)


def _git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def _module(path: str) -> str:
    parts = list(Path(path).with_suffix("").parts[1:])
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _cpu_ms(command: Sequence[str], environment: Mapping[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
