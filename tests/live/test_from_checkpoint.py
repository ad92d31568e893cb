"""A job that starts with the checkpoint of another one, on a whole cluster: from the node's disk and from another
node."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import weft
from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import Person
from weft.client import Client

SECONDS_MAX = 60.0
LARGE_BYTES = 3 << 20  # more than one piece
SAVES = f"""
cd "$WEFT_CHECKPOINT_DIR"
mkdir checkpoint-500 && echo old >checkpoint-500/weights && echo new >step-600.pt
head -c {LARGE_BYTES} /dev/urandom >large && sha256sum large
"""
SHOWS = 'cd "$WEFT_CHECKPOINT_DIR" && find . -type f | sort | xargs sha256sum && echo mine >own'


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("checkpoints"), nodes=2, gpus=2) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def known(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_URL", cluster.local.url)
    monkeypatch.setenv("WEFT_TOKEN", cluster.local.token)


async def ended(script: str, name: str, *, node: str = "node-1", **fields: str) -> "weft.aio.Job":
    job = await weft.aio.run(["sh", "-c", script], name=name, cpus=0.1, pin={"node": node}, **fields)  # type: ignore[arg-type]
    async with asyncio.timeout(SECONDS_MAX):
        await job.result()
    return job


async def lines(job: "weft.aio.Job") -> list[str]:
    return [line async for line in job.logs()]


def paths(shown: list[str]) -> list[str]:
    return [line.split()[-1].removeprefix("./") for line in shown]


async def kept(job: "weft.aio.Job") -> list[str]:
    return [file.path for file in await job.files("checkpoints")]


@pytest.mark.parametrize("node", ["node-1", "node-2"])
async def test_a_job_starts_with_the_whole_checkpoint_of_an_ended_job_on_any_node(node: str) -> None:
    first = await ended(SAVES, f"first-{node}")
    (digest,) = [line.split()[0] for line in await lines(first)]
    second = await ended(SHOWS, f"second-{node}", node=node, from_checkpoint=first.name)
    shown = await lines(second)
    assert paths(shown) == ["checkpoint-500/weights", "large", "step-600.pt"]
    assert shown[1].split()[0] == digest, "every byte is there"
    assert "checkpoints/own" in await kept(second)
    assert "checkpoints/own" not in await kept(first), "the first job's folder is its own"


async def test_a_step_is_the_files_of_that_number_and_nothing_else() -> None:
    first = await ended(SAVES, "steps")
    for step, found in (("500", ["checkpoint-500/weights"]), ("600", ["step-600.pt"]), ("large", ["large"])):
        second = await ended(SHOWS, f"of-{step}", from_checkpoint=f"{first.id}:{step}")
        assert paths(await lines(second)) == found


async def test_the_checkpoint_of_a_running_job_can_be_had() -> None:
    running = await weft.aio.run(["sh", "-c", f"{SAVES}\necho saved; sleep 60"], name="still-runs", grace="1s")
    async for line in running.logs(follow=True):
        if line == "saved":
            break
    second = await ended(SHOWS, "beside", from_checkpoint="still-runs:500")
    assert paths(await lines(second)) == ["checkpoint-500/weights"]
    await running.cancel()
    await running.wait()


async def test_a_later_try_goes_on_with_its_own_checkpoint() -> None:
    await ended(SAVES, "gives")
    once = 'cd "$WEFT_CHECKPOINT_DIR" && ls && { [ -e own ] || { rm -r * && echo 1 >own && exit 1; }; }'
    second = await ended(once, "again", from_checkpoint="gives", retries=1)  # type: ignore[arg-type]
    assert await kept(second) == ["checkpoints/own"]


async def test_each_wrong_source_is_refused_with_the_field_and_nothing_is_stored(cluster: Cluster) -> None:
    await ended(SAVES, "good")
    await ended("true", "empty")
    waits = await weft.aio.run(["true"], name="waits", after=[{"job": "good", "when": "not_ok"}])
    await waits.wait()
    wrong = {
        "nobody": "no job of this tenant has the id or the name nobody",
        "good:700": "good has no checkpoint of step 700; it has checkpoint-500, large and step-600.pt",
        "empty": "empty has no files in WEFT_CHECKPOINT_DIR on node-1",
        "waits": "waits has no files in WEFT_CHECKPOINT_DIR: it is [a-z]+, and no node has run it yet",
        "../x": "expected the id or the name of a job, such as train, or with a step: train:500",
    }
    before = [job.id for job in await weft.aio.jobs()]
    for source, reason in wrong.items():
        with pytest.raises(weft.Refused, match=reason) as refused:
            await weft.aio.run(["true"], name="refused", from_checkpoint=source)
        assert refused.value.field == "from_checkpoint"
    token = (await cluster.client.make_token("bob", "test")).token
    async with Client(cluster.local.url, token) as bob:
        with pytest.raises(weft.Refused, match="no job of this tenant has the id or the name good"):
            await bob.submit(b'{"name": "theirs", "command": ["true"], "from_checkpoint": "good"}')
    assert [job.id for job in await weft.aio.jobs()] == before


async def test_a_checkpoint_deleted_before_the_start_fails_the_job_with_the_reason() -> None:
    first = await ended(SAVES, "vanishes")
    held = await weft.aio.run(["sleep", "60"], name="holds", grace="1s")
    second = await weft.aio.run(
        ["true"], name="late", after=[{"job": "holds", "when": "any"}], from_checkpoint="vanishes"
    )
    await first.delete_files("checkpoints")
    await held.cancel()
    with pytest.raises(weft.JobFailed, match=r"from_checkpoint: .* has no files any more on node-1: they were deleted"):
        async with asyncio.timeout(SECONDS_MAX):
            await second.result()


async def test_the_command_line_names_the_job_and_the_option(cluster: Cluster, tmp_path: Path) -> None:
    await ended(SAVES, "typed")
    person = Person(cluster, cluster.local.token)
    shown = await person.types("run", "--from-checkpoint", "typed:600", "--follow", "--", "sh", "-c", SHOWS)
    assert (shown.status, "./step-600.pt" in shown.out, "./large" in shown.out) == (0, True, False)
    refused = await person.types("run", "--from-checkpoint", "nobody", "--", "true")
    assert (refused.status, "--from-checkpoint: no job of this tenant" in refused.err) == (1, True)
