"""Volumes by name from the command line to processes and containers, on whole clusters."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.engine import need_images
from tests.support.person import Person

IMAGE = "weft-job-busybox:local"


def settings(folder: Path, **more: str) -> dict[str, str]:
    for name in ("sets", "scratch", "of-other"):
        (folder / name).mkdir()
    (folder / "sets" / "greeting").write_text("hello")
    (folder / "scratch").chmod(0o777)
    volumes = {
        "sets": {"path": str(folder / "sets"), "read_only": True},
        "scratch": {"path": str(folder / "scratch")},
        "of-other": {"path": str(folder / "of-other"), "tenants": ["other"]},
    }
    return {"EXECUTOR_VOLUMES": json.dumps(volumes), **more}


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("offered")


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory, offered: Path) -> AsyncIterator[Cluster]:
    made = settings(offered)
    async with embedded_cluster(tmp_path_factory.mktemp("volumes"), nodes=1, gpus=1, settings=made) as cluster:
        yield cluster


@pytest.fixture
def person(cluster: Cluster) -> Person:
    return Person(cluster, cluster.local.token)


async def test_a_process_finds_what_it_named_and_writes_where_it_may(person: Person, offered: Path) -> None:
    script = 'cat "$WEFT_VOLUME_SETS/greeting" && echo made >"$WEFT_VOLUME_SCRATCH/new"'
    ran = await person.types("run", "--volume", "sets:ro", "--volume", "scratch", "-f", "--", "sh", "-c", script)
    assert (ran.status, ran.out) == (0, "hello"), ran.err
    assert (offered / "scratch" / "new").read_text() == "made\n"


async def test_a_volume_that_is_not_offered_so_is_refused_with_what_there_is(cluster: Cluster, person: Person) -> None:
    wrong = await person.types("run", "--volume", "set", "--", "true")
    assert wrong.status == 1
    assert "--volume: no node of its pool offers the volume set; there is scratch, sets" in wrong.err
    writes = await person.types("run", "--volume", "sets", "--", "true")
    assert "is offered read-only, by" in writes.err
    theirs = await person.types("run", "--volume", "of-other", "--", "true")
    assert (theirs.status, "no node of its pool offers the volume of-other" in theirs.err) == (1, True)
    made = await cluster.client.make_token("other", label="test", admin=False)
    other = Person(cluster, made.token)
    ran = await other.types("run", "--volume", "of-other", "-f", "--", "sh", "-c", "echo $WEFT_VOLUME_OF_OTHER")
    assert (ran.status, ran.out.strip().endswith("/of-other")) == (0, True), ran.err
    seen = await other.types("nodes")
    assert "volume of-other on" in seen.out
    assert "volume sets, read-only, on" in seen.out


async def test_the_nodes_tell_their_volumes_and_no_path(cluster: Cluster, offered: Path) -> None:
    made = await cluster.client.make_token("third", label="test", admin=False)
    seen = await Person(cluster, made.token).types("nodes", "--json")
    assert {volume["name"] for node in json.loads(seen.out)["nodes"] for volume in node["volumes"]} == {
        "sets",
        "scratch",
    }
    assert str(offered) not in seen.out


@pytest.mark.docker
async def test_a_container_has_them_where_its_job_says_and_cannot_write_what_it_may_read(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    need_images(IMAGE)
    made = settings(tmp_path, EXECUTOR_RUNTIME="docker")
    home = tmp_path_factory.mktemp("contained")
    async with embedded_cluster(home, nodes=1, gpus=0, settings=made) as cluster:
        person = Person(cluster, cluster.local.token)
        script = "cat /data/greeting; touch /data/x 2>/dev/null || echo kept; echo made >/volumes/scratch/new"
        typed = ("--image", IMAGE, "--volume", "sets:/data:ro", "--volume", "scratch")
        ran = await person.types("run", *typed, "-f", "--", "sh", "-c", script)
        assert (ran.status, ran.out) == (0, "hellokept\n"), ran.err
        assert (tmp_path / "scratch" / "new").read_text() == "made\n"
