"""The commands of a tutorial, as a reader types them, on a whole cluster."""

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.tree import PYTHONPATH, ROOT

SECONDS_MAX = 300.0
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("tutorials"), nodes=1, gpus=2) as cluster:
        yield cluster


def commands(page: str, *, after: str) -> str:
    """The commands of a page behind a heading."""
    text = (ROOT / "docs" / page).read_text()
    return "".join(re.findall(r"^```sh\n(.*?)^```$", text[text.index(after) :], flags=re.MULTILINE | re.DOTALL))


def typed(cluster: Cluster, folder: Path, script: str) -> str:
    """The output of the commands, typed one after the other. The first that fails ends the test."""
    environ = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": PYTHONPATH,
        "WEFT_URL": cluster.local.url,
        "WEFT_TOKEN": cluster.local.token,
    }
    done = subprocess.run(
        ["bash", "-euxc", script],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


async def test_a_result_becomes_a_service_by_the_commands_of_the_tutorial(cluster: Cluster, tmp_path: Path) -> None:
    script = commands("notebook-to-service.md", after="## A job")
    assert script.count("weft ") == 7
    output = await asyncio.to_thread(typed, cluster, tmp_path, script)
    assert (tmp_path / "model.json").read_text() == '{"weight": 0.42}\n'
    assert '{"weight": 0.42}' in output
