"""Images that a node fetched for jobs are removed once no job has used them for long, and no others."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.fake_engine import FakeEngine, fake_engine
from tests.support.runs import in_state, order
from weft.messages.nodes import RunState
from weftd.executor.files.home import Home
from weftd.executor.machine.node import NodeFacts
from weftd.executor.runs import RunKey
from weftd.executor.runtime.docker.engine import DockerEngine
from weftd.executor.runtime.docker.images import Images
from weftd.executor.runtime.docker.runtime import DockerRuntime
from weftd.executor.runtime.docker.settings import ContainerSettings

DAY = 86400.0


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    with fake_engine(tmp_path) as (engine, address):
        monkeypatch.setenv("DOCKER_HOST", address)
        yield engine


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
async def runtime(engine: FakeEngine, home: Home, tmp_path: Path) -> AsyncIterator[DockerRuntime]:
    node = NodeFacts(node_id="node-1", checkpoints=str(tmp_path / "checkpoints"), results=str(tmp_path / "results"))
    opened = await DockerRuntime.open(home, node, ContainerSettings(egress_by="off", engine_files=False))
    yield opened
    await opened.close()


async def run_to_its_end(runtime: DockerRuntime, image: str) -> None:
    asked = order(f"job-of-{image}", image=image)
    key = RunKey.of(asked)
    await runtime.start(asked)
    await in_state(runtime, key, RunState.RUNNING)
    await runtime.signal(key, kill=True)
    await in_state(runtime, key, RunState.EXITED)
    await runtime.remove(key)


async def sweep(home: Home, *, days: float) -> None:
    """As it will be so many days after the image was used last."""
    images = Images(DockerEngine(), str(home.images), kept_seconds=30 * DAY)
    used_at = max(entry.stat().st_mtime for entry in os.scandir(home.images))
    await images.sweep(now=used_at + days * DAY)


async def test_an_image_that_no_job_used_for_long_is_removed(
    runtime: DockerRuntime, engine: FakeEngine, home: Home
) -> None:
    await run_to_its_end(runtime, "fetched")
    await run_to_its_end(runtime, "an-image")
    await sweep(home, days=29)
    assert engine.images.keys() == {"an-image", "fetched"}
    await sweep(home, days=31)
    assert engine.images.keys() == {"an-image"}  # which was there before
    assert os.listdir(home.images) == []


async def test_an_image_of_which_there_is_a_container_stays(
    runtime: DockerRuntime, engine: FakeEngine, home: Home
) -> None:
    await runtime.start(order("job-1", image="fetched"))
    await sweep(home, days=90)
    assert "fetched" in engine.images
    assert len(os.listdir(home.images)) == 1


async def test_an_image_that_somebody_replaced_is_not_wefts_any_more(
    runtime: DockerRuntime, engine: FakeEngine, home: Home
) -> None:
    await run_to_its_end(runtime, "fetched")
    engine.images["fetched"] = "sha256:of-its-owner"
    await sweep(home, days=90)
    assert "fetched" in engine.images
    assert os.listdir(home.images) == []


async def test_a_job_that_begins_in_an_image_keeps_it(runtime: DockerRuntime, engine: FakeEngine, home: Home) -> None:
    await run_to_its_end(runtime, "fetched")
    (note,) = os.scandir(home.images)
    os.utime(note.path, (0, 0))
    await run_to_its_end(runtime, "fetched")
    assert os.stat(note.path).st_mtime > 0


async def test_an_image_that_a_login_pulled_is_for_the_tenants_whose_logins_pull_it(
    runtime: DockerRuntime, engine: FakeEngine, home: Home
) -> None:
    assert await runtime.may_use_image("an-image", tenant="bob")  # was there before
    assert not await runtime.may_use_image("private", tenant="alice")
    assert await runtime.pull_image("private", user="u", password="p", tenant="alice") == ""
    engine.images["the-same"] = engine.images["private"]  # another name, such as one with its digest
    for name in ("private", "the-same"):
        assert await runtime.may_use_image(name, tenant="alice")
        assert not await runtime.may_use_image(name, tenant="bob")
    # The engine takes an image that it has by its digest without asking the registry.
    engine.amiss["GET", r"/distribution/.*"] = (401, b'{"message": "no basic auth credentials"}')
    assert "no basic auth" in await runtime.pull_image("the-same", user="", password="")
    assert not await runtime.may_use_image("the-same", tenant="bob")
    images = Images(DockerEngine(), str(home.images), kept_seconds=0)
    await images.fetched("private", tenant="bob")
    assert await runtime.may_use_image("the-same", tenant="bob")
    assert not await runtime.may_use_image("the-same", tenant="carol")
    await images.fetched("private")  # without a login
    assert await runtime.may_use_image("the-same", tenant="carol")


async def test_an_image_whose_tag_moved_stays_with_its_tenants(
    runtime: DockerRuntime, engine: FakeEngine, home: Home
) -> None:
    assert await runtime.pull_image("private", user="u", password="p", tenant="alice") == ""
    old = engine.images["private"]
    assert await runtime.pull_image("private", user="", password="") == ""  # somebody made the tag public since
    assert engine.images["private"] != old
    engine.images["by-digest"] = old
    assert await runtime.may_use_image("private", tenant="bob")
    assert not await runtime.may_use_image("by-digest", tenant="bob")
