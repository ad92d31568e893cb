"""The wheel in an environment of its own, used from a project that has packages `libs` and `services` itself."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.tree import ROOT
from weft.version import version

BASE_DEPENDENCIES_MAX = 6
UP_SECONDS_MAX = 120
CLIENT = """
import asyncio, json, sys
import libs, services
import weft

async def main():
    known = json.load(open(sys.argv[1]))
    async with weft.Client(known["url"], known["token"]) as client:
        nodes = (await client.nodes()).nodes
        print(libs.OWN, services.OWN, weft.__version__, *(node.id for node in nodes))

asyncio.run(main())
"""


class Project:
    """A person's folder, and the environment in which the wheel is installed."""

    def __init__(self, folder: Path, environment: Path) -> None:
        self.folder = folder
        self.programs = environment / "bin"
        self.home = folder.parent / "home"
        # The person's packages come first, as in a notebook or with `python train.py`.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("WEFT_", "PYTHON"))}
        self.environ = {**kept, "PYTHONPATH": str(folder), "WEFT_HOME": str(self.home)}
        for package in ("libs", "services"):
            (folder / package).mkdir(parents=True)
            (folder / package / "__init__.py").write_text(f"OWN = 'own {package}'\n")
        (folder / "client.py").write_text(CLIENT)

    def run(self, program: str, *arguments: str) -> str:
        """The output of a program of the environment, started in the project's folder."""
        done = subprocess.run(
            [self.programs / program, *arguments],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=UP_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _pip(Path(sys.executable), "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (made,) = folder.iterdir()
    return made


@pytest.fixture(scope="module")
def project(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("person")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    _pip(python, "install", "--require-hashes", "--requirement", str(ROOT / "embedded.lock"))
    _pip(python, "install", "--no-deps", str(wheel))
    return Project(folder / "project", environment)


def _pip(python: Path, *arguments: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def up(project: Project) -> Iterator[Path]:
    """A cluster that the installed `weft up` started; yields the file that has its URL and a token."""
    process = subprocess.Popen(
        [project.programs / "weft", "up", "--nodes", "1", "--emulated-gpus", "1", "--port", "0"],
        cwd=project.folder,
        env=project.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout
        said: list[str] = []
        for line in process.stdout:
            said.append(line)
            if "Weft is up" in line:
                break
        assert "Weft is up" in said[-1], "".join(said)
        yield project.home / "client.json"
    finally:
        process.terminate()
        process.communicate(timeout=UP_SECONDS_MAX)


def test_the_base_needs_few_packages() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert len(wanted) <= BASE_DEPENDENCIES_MAX


@pytest.mark.timeout(900)
def test_the_wheel_works_in_a_project_with_packages_of_the_names_of_our_folders(project: Project, up: Path) -> None:
    assert project.run("weft", "--version") == f"weft {version()}\n"
    assert "hello\n" in project.run("weft", "run", "--follow", "--gpus", "1", "--", "echo", "hello")
    assert project.run("python", "client.py", str(up)) == f"own libs own services {version()} node-1\n"
    log = (project.home / "logs" / "gateway.log").read_text()
    assert f'message="gateway {version()} starts"' in log.splitlines()[0]


@pytest.mark.timeout(900)
def test_the_wheel_has_two_packages_and_a_plugin_and_says_that_they_are_typed(project: Project) -> None:
    program = "import importlib.metadata as found; print(*found.distribution('weft-gpu').files, sep='\\n')"
    files = project.run("python", "-c", program).splitlines()
    tops = {name.partition("/")[0] for name in files if not name.startswith("..")}
    assert {top for top in tops if ".dist-info" not in top} == {"weft", "weftd", "hydra_plugins"}
    assert {"weft/py.typed", "weftd/py.typed"} <= set(files)
