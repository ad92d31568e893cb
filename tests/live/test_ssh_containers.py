"""OpenSSH's clients reach jobs in containers whose images have neither an SSH server nor, in one, Python."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.engine import need_images
from tests.support.openssh import OpenSsh, edits, need_openssh
from tests.support.person import Person
from tests.support.rig import IMAGE, IMAGE_WITH_PYTHON
from weft.domain.job import JobState

pytestmark = pytest.mark.docker
JOBS = {"plain": IMAGE, "python": IMAGE_WITH_PYTHON}


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    """With one job of each image."""
    need_openssh()
    need_images(*JOBS.values())
    settings = {"EXECUTOR_RUNTIME": "docker", "EXECUTOR_PULL": "0"}
    async with embedded_cluster(tmp_path_factory.mktemp("ssh"), nodes=1, gpus=2, settings=settings) as made:
        command = ["sh", "-c", "while :; do sleep 1; done"]
        jobs = [await made.client.submit(spec(name, command=command, image=image)) for name, image in JOBS.items()]
        for job in jobs:
            await made.state(job.id, JobState.RUNNING)
        yield made
        for job in jobs:
            await made.client.cancel(job.id)
            await made.ended(job.id)


@pytest.fixture(scope="module")
async def ssh(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> OpenSsh:
    made = OpenSsh(Person(cluster, cluster.local.token), tmp_path_factory.mktemp("person"))
    assert (await made.configures()).status == 0
    return made


@pytest.mark.parametrize("job", JOBS)
async def test_a_command_and_a_terminal_are_in_the_container(ssh: OpenSsh, job: str) -> None:
    script = "cat; echo $WEFT_RANK; command -v python3 >/dev/null || exit 5"
    inside = await ssh.types("ssh", f"{job}.weft", script, stdin=b"typed ")
    assert (inside.status, inside.out, inside.err) == (0 if job == "python" else 5, "typed 0\n", "")
    # An engine tells the size after the start.
    sized = "until stty size 2>/dev/null | grep -q '[1-9]'; do sleep 0.1; done; stty size"
    terminal = await ssh.types("ssh", "-tt", f"{job}.weft", sized)
    assert terminal.out == "24 80\r\n"


async def test_a_container_with_python_has_sftp(ssh: OpenSsh, tmp_path: Path) -> None:
    (tmp_path / "sent").write_bytes(os.urandom(1_000_000))
    for way in ((f"{tmp_path}/sent", "python.weft:/tmp/it"), ("python.weft:/tmp/it", f"{tmp_path}/back")):
        copied = await ssh.types("scp", *way)
        assert copied.status == 0, copied.err
    assert (tmp_path / "back").read_bytes() == (tmp_path / "sent").read_bytes()


async def test_an_editor_reaches_its_server_in_a_container(ssh: OpenSsh) -> None:
    await edits(ssh, "python.weft", Path("/tmp/server"), "python3")


async def test_a_container_without_python_says_what_sftp_needs(ssh: OpenSsh, tmp_path: Path) -> None:
    (tmp_path / "sent").write_text("x")
    refused = await ssh.types("scp", f"{tmp_path}/sent", "plain.weft:/tmp/it")
    assert refused.status == 255
    assert "weft: SFTP needs python3 or sftp-server in the job; weft cp needs neither" in refused.err
