"""Arrays that their submitter follows, on a whole cluster: what each element writes, and how all of them end."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, embedded_cluster
from tests.support.person import Person


@pytest.fixture(scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with embedded_cluster(tmp_path_factory.mktemp("arrays"), nodes=1, gpus=4) as cluster:
        yield cluster


@pytest.fixture
def person(cluster: Cluster) -> Person:
    return Person(cluster, cluster.local.token)


async def test_an_array_that_is_followed_shows_what_its_elements_write_and_exits_as_they_do(
    person: Person, tmp_path: Path
) -> None:
    ran = await person.types(
        "run", "--name", "part", "--array", "1-3", "-f", "--", "sh", "-c", "echo $WEFT_ARRAY_INDEX"
    )
    assert ran.status == 0, ran.err
    lines = sorted(ran.out.splitlines())
    assert [(line.split()[-1], f"part-{number}" in line) for number, line in enumerate(lines, 1)] == [
        *[("1", True), ("2", True), ("3", True)]
    ]
    assert "3 succeeded" in ran.err
    (tmp_path / "job.yaml").write_text(
        "name: some\ncommand: [sh, -c, exit $WEFT_ARRAY_INDEX]\narray: 0-2\nretries: {max: 0}\n"
    )
    filed = await person.types("submit", str(tmp_path / "job.yaml"), "-f")
    assert (filed.status, "2 failed" in filed.err) == (2, True)


async def test_what_many_elements_write_is_not_shown_and_their_end_is_waited_for(person: Person) -> None:
    ran = await person.types("run", "--name", "many", "--array", "1-21", "-f", "--cpus", "0.1", "--", "echo", "hidden")
    assert (ran.status, ran.out) == (0, ""), ran.err
    assert "many has 21 elements: their output is not shown here" in ran.err
    assert "21 succeeded" in ran.err
