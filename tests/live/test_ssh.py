"""OpenSSH's clients and rsync reach jobs of a whole cluster as JOB.weft, and nothing beyond them."""

import asyncio
import filecmp
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.builders import spec
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.openssh import LISTENS, OpenSsh, connected, edits, forwarding, listening_on, need_openssh
from tests.support.person import Person
from tests.support.routers import free_port
from tests.support.runs import until
from weft.client import Client
from weft.domain.job import JobState

SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    need_openssh()
    async with embedded_cluster(tmp_path_factory.mktemp("ssh"), nodes=1, gpus=4) as made:
        yield made


@pytest.fixture(scope="module")
async def job(cluster: Cluster) -> str:
    """Two ranks that run until the cluster ends."""
    roles = {"worker": {"replicas": {"want": 2}, "gpus": 1}}
    made = await cluster.client.submit(spec("train", command=["sh", "-c", "while :; do sleep 1; done"], roles=roles))
    await cluster.state(made.id, JobState.RUNNING)
    return made.id


@pytest.fixture(scope="module")
async def ssh(cluster: Cluster, job: str, tmp_path_factory: pytest.TempPathFactory) -> OpenSsh:
    made = OpenSsh(Person(cluster, cluster.local.token), tmp_path_factory.mktemp("person"))
    assert (await made.configures()).status == 0
    return made


async def story(cluster: Cluster, job: str, wanted: str) -> str:
    """The first sentence about a session that has these words, once there is one."""
    async with asyncio.timeout(SECONDS_MAX):
        while True:
            for event in await cluster.client.story(job):
                if event.data.cause is not None and wanted in event.data.cause.sentence:
                    return event.data.cause.sentence
            await asyncio.sleep(0.1)


async def test_a_command_has_its_input_output_errors_and_status_and_the_story_tells(
    cluster: Cluster, job: str, ssh: OpenSsh
) -> None:
    found = await ssh.types("ssh", "train.weft", "cat; echo wrong >&2; exit 5", stdin=b"typed")
    assert (found.status, found.out, found.err) == (5, "typed", "wrong\n")
    opened = await story(cluster, job, "echo wrong")
    assert opened == "admin opened a command in rank 0: sh -c cat; echo wrong >&2; exit 5"


async def test_a_host_name_says_the_rank(ssh: OpenSsh, job: str) -> None:
    for host, rank in (("1.train.weft", "1"), (f"0.{job}.weft", "0"), ("1.worker.train.weft", "1")):
        assert (await ssh.types("ssh", host, "echo $WEFT_RANK")).out == f"{rank}\n"
    none = await ssh.types("ssh", "7.train.weft", "true")
    assert none.status == 255
    assert re.fullmatch(r"weft: rank: epoch 0 of \S+ has the ranks 0 to 1\r?\n", none.err)


async def test_a_terminal_has_the_clients_type_and_a_size(ssh: OpenSsh) -> None:
    found = await ssh.types("ssh", "-tt", "train.weft", "test -t 0 && stty size; echo $TERM; exit 3")
    assert found.status == 3
    size, term = found.out.split("\r\n")[:2]
    assert size == "24 80"  # the client has no terminal itself
    assert term == os.environ.get("TERM", "")


async def test_a_shell_without_a_terminal_runs_what_it_reads(ssh: OpenSsh) -> None:
    found = await ssh.types("ssh", "-T", "train.weft", stdin=b"echo $((6*7))\nexit 4\n")
    assert (found.status, found.out) == (4, "42\n")


async def test_sftp_puts_lists_renames_and_gets(ssh: OpenSsh, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "inner").mkdir(parents=True)
    (here / "data").write_bytes(os.urandom(3_000_000))
    (here / "inner" / "a name").write_text("x")
    batch = f"""
mkdir {there}
put -r {here}/* {there}
rename {there}/data {there}/moved
chmod 600 {there}/moved
ln -s moved {there}/link
-get {there}/none
ls -l {there}
get {there}/link {here}/back
rm {there}/inner/*
rmdir {there}/inner
"""
    found = await ssh.types("sftp", "-b", "-", "train.weft", stdin=batch.encode())
    assert found.status == 0, found.err
    assert filecmp.cmp(here / "data", here / "back", shallow=False)
    assert f'File "{there}/none" not found' in found.err
    assert re.search(r"^-rw-------\s.*\s3000000\s.*\smoved\r?$", found.out, re.MULTILINE)
    assert sorted(path.name for path in there.iterdir()) == ["link", "moved"]


async def test_scp_and_rsync_copy_a_folder_either_way(cluster: Cluster, job: str, ssh: OpenSsh, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "inner").mkdir(parents=True)
    (here / "data").write_bytes(os.urandom(1_000_000))
    (here / "inner" / "x").write_text("x")
    (here / "inner" / "x").chmod(0o640)
    copied = await ssh.types("scp", "-rp", str(here), f"train.weft:{tmp_path}/by-scp")
    assert copied.status == 0, copied.err
    rsync = ("rsync", "-a", "-e", f"ssh {' '.join(ssh.config)}")
    for way in (
        (f"{here}/", f"train.weft:{tmp_path}/by-rsync"),
        (f"train.weft:{tmp_path}/by-rsync/", f"{tmp_path}/back"),
    ):
        assert (await ssh.runs(*rsync, *way)).status == 0
    for name in ("by-scp", "by-rsync", "back"):
        assert filecmp.cmp(here / "data", tmp_path / name / "data", shallow=False)
        assert (tmp_path / name / "inner" / "x").stat().st_mode & 0o777 == 0o640
    assert "a copy of files in rank 0" in await story(cluster, job, "a copy of files")


async def test_an_editor_starts_its_server_by_a_script_and_reaches_it_through_the_connection(
    ssh: OpenSsh, tmp_path: Path
) -> None:
    await edits(ssh, "train.weft", tmp_path / "server", sys.executable)
    pid = (tmp_path / "server" / "pid").read_text().strip()
    await until(lambda: not Path(f"/proc/{pid}").exists(), seconds_max=SECONDS_MAX)


async def test_a_port_of_the_run_is_forwarded_and_no_other_host_nor_port(ssh: OpenSsh) -> None:
    async with forwarding(ssh, "-T", "train.weft", "exec " + sys.executable + f" -uc '{LISTENS}'") as serving:
        port, here = await listening_on(serving), free_port()
        async with forwarding(ssh, "-N", "-L", f"127.0.0.1:{here}:localhost:{port}", "train.weft"):
            reader, writer = await connected(here)
            writer.write(b"a" * 100_000)
            assert await reader.readexactly(100_000) == b"A" * 100_000
            writer.close()
    closed = await ssh.types("ssh", "-W", "localhost:1", "train.weft")
    assert "no process of this run listens on port 1" in closed.err
    beyond = await ssh.types("ssh", "-W", "192.0.2.1:80", "train.weft")
    assert "only the run's own ports can be reached, as localhost, not 192.0.2.1" in beyond.err
    back = await ssh.types("ssh", "-o", "ExitOnForwardFailure=yes", "-R", "9999:localhost:22", "train.weft", "true")
    assert back.status == 255


async def test_the_agent_of_the_client_is_not_forwarded(ssh: OpenSsh) -> None:
    assert (await ssh.types("ssh", "-A", "train.weft", "echo agent=$SSH_AUTH_SOCK")).out == "agent=\n"


async def test_another_tenants_job_and_one_that_has_ended_are_refused_in_a_sentence(
    cluster: Cluster, job: str, ssh: OpenSsh, tmp_path: Path
) -> None:
    bob = (await cluster.client.make_token("bob", "test")).token
    other = OpenSsh(Person(cluster, bob), tmp_path)
    assert (await other.configures()).status == 0
    assert (await other.types("ssh", f"{job}.weft", "true")).err.startswith(
        f"weft: no job has the id or the name {job}"
    )
    async with Client(cluster.local.url, cluster.local.token) as client:
        made = await client.submit(spec("short", command=["true"]))
    await cluster.ended(made.id)
    found = await ssh.types("ssh", "short.weft", "true")
    assert found.status == 255
    assert found.err.startswith("weft: short does not run: it is succeeded\n")


async def test_a_revoked_token_ends_what_is_open_and_says_so(cluster: Cluster, tmp_path: Path) -> None:
    ssh = OpenSsh(Person(cluster, (await cluster.client.make_token("ada", "test")).token), tmp_path)
    async with Client(cluster.local.url, ssh.person.token) as client:
        made = await client.submit(spec("hers", command=["sleep", "1000"]))
    await cluster.state(made.id, JobState.RUNNING)
    assert (await ssh.configures()).status == 0
    process = await ssh.begins("ssh", *ssh.config, "hers.weft", "echo in; exec sleep 1000")
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS_MAX):
        assert await process.stdout.readline() == b"in\n"
        await cluster.client.revoke("ada", "test")
        _, said = await process.communicate()
    assert process.returncode == 255
    assert said.startswith(b"weft: ")
    await cluster.client.cancel(made.id)
    await cluster.ended(made.id)


async def test_new_keys_replace_the_old_ones_and_a_strange_host_key_is_refused(
    cluster: Cluster, job: str, tmp_path: Path
) -> None:
    ssh = OpenSsh(Person(cluster, cluster.local.token), tmp_path)
    assert (await ssh.configures()).status == 0
    before = {name: (ssh.keys / name).read_bytes() for name in ("host_key", "user_key.pub", "known_hosts")}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (ssh.keys, *ssh.keys.iterdir()))
    assert (await ssh.configures()).status == 0
    assert (tmp_path / ".ssh" / "config").read_text().count("Include") == 1
    assert (await ssh.types("ssh", "train.weft", "echo in")).out == "in\n"
    for name in ("known_hosts", "user_key.pub"):
        now = (ssh.keys / name).read_bytes()
        assert now != before[name]
        (ssh.keys / name).write_bytes(before[name])
        assert (await ssh.types("ssh", "train.weft", "echo in")).status == 255
        (ssh.keys / name).write_bytes(now)
