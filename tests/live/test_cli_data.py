"""Data in an object store, from the command line to processes and containers: docs/data.md on whole clusters."""

import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.engine import need_images
from tests.support.object_store import KEY, KEY_ID, ObjectStore, object_store
from tests.support.person import Person
from tests.support.runs import until
from weft.domain.job import JobState

IMAGE = "weft-job-busybox:local"
PAGE = Path(__file__).parents[2] / "docs/data.md"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store")) as store:
        store.put("set/greeting", b"hello\n")
        (store.root / "sets" / "imagenet").mkdir(parents=True)
        (store.root / "models").mkdir()
        (store.root / "sets" / "imagenet" / "n01440764").write_text("tench")
        yield store


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("data"), nodes=1, gpus=1) as cluster:
        yield cluster


async def test_the_page_works_as_it_is_written(cluster: Cluster, store: ObjectStore, tmp_path: Path) -> None:
    page = PAGE.read_text()
    set_line, env, run, write = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    person = Person(cluster, cluster.local.token)
    values = {"AWS_ENDPOINT_URL": store.endpoint, "AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": KEY}
    names = [line.strip().partition("=")[0] for line in env.strip().splitlines()]
    (tmp_path / "minio.env").write_text("".join(f"{name}={values[name]}\n" for name in names))
    words = set_line.split()
    kept = await person.types(*words[1:-1], str(tmp_path / words[-1]))
    assert kept.status == 0, kept.err
    asked, _, command = run.strip().partition(" -- sh -c ")
    ran = await person.types("run", "-f", *asked.split()[2:], "--", "sh", "-c", command.strip("'"))
    assert (ran.status, ran.out) == (0, "n01440764\n"), ran.err
    asked, _, command = write.strip().partition(" -- sh -c ")
    ran = await person.types("run", "-f", *asked.split()[2:], "--", "sh", "-c", command.strip("'"))
    assert ran.status == 0, ran.err
    assert (store.root / "models" / "mnist" / "state").read_text() == "done\n"
    fields = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0].replace(", /weights: s3://models/llama", "")
    lines = "\n".join(line.strip() for line in fields.splitlines())
    (tmp_path / "job.yaml").write_text(f"name: filed\ncommand: [sh, -c, 'cat $WEFT_MOUNT_DATA/*']\n{lines}\n")
    filed = await person.types("submit", str(tmp_path / "job.yaml"), "-f")
    assert (filed.status, filed.out) == (0, "tench"), filed.err


async def test_keys_are_nowhere_but_in_the_secret_and_a_store_that_refuses_is_named(
    cluster: Cluster, store: ObjectStore, tmp_path: Path
) -> None:
    person = Person(cluster, cluster.local.token)
    wrong = await person.types("run", "--mount", "/data=s3://bucket/set", "--object-store", "none", "--", "true")
    assert (wrong.status, "--object-store: tenant" in wrong.err) == (1, True), wrong.err
    wrong = await person.types("run", "--mount", "/data=s3://bucket/../set", "--object-store", "none", "--", "true")
    assert (wrong.status, "--mount: s3://bucket/../set must not contain" in wrong.err) == (1, True), wrong.err
    (tmp_path / "keys").write_text(store.secret.replace(KEY, "other-key-of-tests"))
    assert (await person.types("secret", "set", "bad", "--from", str(tmp_path / "keys"))).status == 0
    ran = await person.types(
        "run", "--name", "refused", "--mount", "/data=s3://bucket/set", "--object-store", "bad", "-f", "--", "true"
    )
    assert ran.status != 0
    assert "s3://bucket/set: " in ran.err
    assert "SignatureDoesNotMatch" in ran.err
    explained = await person.types("explain", "refused", "--json")
    assert '"object-store"' in explained.out
    assert '"store"' in explained.out, "the class of the failure"
    seen = ran.err + explained.out + (await person.types("events", "refused")).out
    logs = [path.read_bytes() for path in cluster.local.home.root.rglob("*.log")]
    assert logs
    for key in ("other-key-of-tests", KEY_ID):
        assert key not in seen
        assert not any(key.encode() in log for log in logs)


async def test_outputs_that_the_store_does_not_take_fail_the_job_and_stay_on_the_node(
    cluster: Cluster, store: ObjectStore, tmp_path: Path
) -> None:
    person = Person(cluster, cluster.local.token)
    (tmp_path / "keys").write_text(store.secret.replace(KEY, "other-key-of-tests"))
    assert (await person.types("secret", "set", "bad", "--from", str(tmp_path / "keys"))).status == 0
    output = ("--output", "/out=s3://bucket/out", "--object-store", "bad")
    script = "echo kept >$WEFT_OUTPUT_OUT/file"
    ran = await person.types("run", "--name", "untaken", *output, "-f", "--", "sh", "-c", script)
    assert ran.status != 0
    explained = await person.types("explain", "untaken", "--json")
    assert '"object-store"' in explained.out
    assert "were not uploaded: s3://bucket/out: " in explained.out
    assert [path.read_text() for path in cluster.local.home.root.rglob("outputs/*/0/file")] == ["kept\n"]


async def test_an_executor_that_is_killed_while_it_uploads_loses_no_byte(
    cluster: Cluster, store: ObjectStore, tmp_path: Path
) -> None:
    person = Person(cluster, cluster.local.token)
    (tmp_path / "keys").write_text(store.secret)
    assert (await person.types("secret", "set", "kept", "--from", str(tmp_path / "keys"))).status == 0
    script = f"head -c 5000000 /dev/urandom >{tmp_path}/same && cp {tmp_path}/same $WEFT_OUTPUT_OUT/file"
    store.pause()
    try:
        output = ("--output", "/out=s3://bucket/killed", "--object-store", "kept")
        job = await person.runs("--name", "killed", *output, "--", "sh", "-c", script)
        [(name, pid)] = [(name, pid) for name, pid in cluster.local.pids.items() if name.startswith("executor")]
        await until(lambda: "rclone" in children(pid))
        os.kill(pid, signal.SIGKILL)
        await until(lambda: cluster.local.pids.get(name, pid) != pid)
        assert (await cluster.client.job(job)).state is JobState.RUNNING, "its end waits for its outputs"
    finally:
        store.resume()
    assert (await person.types("wait", job)).status == 0
    assert store.get("killed/file") == (tmp_path / "same").read_bytes()


def children(pid: int) -> list[str]:
    """The names of the programs that a process runs."""
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            with suppress(OSError):
                found.append(Path(f"/proc/{child}/comm").read_text().strip())
    return found


@pytest.mark.docker
async def test_a_container_reads_the_objects_at_their_path_and_cannot_write_there(
    tmp_path: Path, store: ObjectStore
) -> None:
    need_images(IMAGE)
    home = tmp_path / "contained"
    settings = {"EXECUTOR_RUNTIME": "docker"}
    async with embedded_cluster(home, nodes=1, gpus=1, settings=settings) as cluster:
        person = Person(cluster, cluster.local.token)
        (tmp_path / "keys").write_text(store.secret)
        assert (await person.types("secret", "set", "minio", "--from", str(tmp_path / "keys"))).status == 0
        script = 'cat "$WEFT_MOUNT_DATA/greeting"; echo $WEFT_MOUNT_DATA; touch /data/new 2>/dev/null || echo refused'
        mount = ("--mount", "/data=s3://bucket/set", "--object-store", "minio")
        ran = await person.types("run", "--image", IMAGE, *mount, "-f", "--", "sh", "-c", script)
        assert (ran.status, ran.out.splitlines()) == (0, ["hello", "/data", "refused"]), ran.err
        assert os.listdir(store.root / "bucket" / "set") == ["greeting"]
