"""A sweep on a whole cluster whose elements report a loss: the worse ones are stopped at their steps, the best end."""

from pathlib import Path

from tests.support.cluster import embedded_cluster
from tests.support.person import Person
from weft.domain.job import FINAL, JobState

SWEEP = """
name: tune
command: [sh, -c, 'for s in 1 2 3 4 5 6 7 8 9 10 11 12; do echo step=$s loss={loss}.$s; sleep 0.5; done']
sweep: {loss: [1, 2, 3, 4, 5, 6, 7, 8]}
early_stop: {metric: loss, after: 4, factor: 2}
progress: {pattern: 'step=(?P<step>[0-9]+) loss=(?P<loss>[0-9.]+)'}
roles: {worker: {gpus: 1}}
grace: 1s
"""


async def test_the_worse_elements_of_a_sweep_are_stopped_and_say_by_how_many_they_were_beaten(tmp_path: Path) -> None:
    settings = {"REALLOCATOR_REVIEW_SECONDS": "0.5"}
    async with embedded_cluster(tmp_path / "home", nodes=2, gpus=4, settings=settings) as cluster:
        person = Person(cluster, cluster.local.token)
        (tmp_path / "tune.yaml").write_text(SWEEP)
        made = await person.types("submit", str(tmp_path / "tune.yaml"))
        assert made.status == 0, made.err
        array = made.out.strip().splitlines()[-1].split()[0]
        ends = [await cluster.ended(f"j-{array.removeprefix('a-')}-{index}") for index in range(8)]
        assert all(one.state in FINAL for one in ends)
        states = [one.state for one in ends]
        assert states[0] is JobState.SUCCEEDED, "the best goes on to its end"
        stopped = [number for number, state in enumerate(states) if state is JobState.CANCELLED]
        assert len(stopped) >= 3, states
        assert JobState.FAILED not in states
        waited = await person.types("wait", "tune")
        assert waited.status == 0, waited.err
        told = await person.types("explain", ends[stopped[-1]].id)
        assert "elements that reached it are better" in told.out
