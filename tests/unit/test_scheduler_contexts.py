"""Jobs that have files with them: what their orders say."""

from tests.support.scheduler import world
from tests.support.service_lives import rounds
from weft.domain.job import JobState

S = JobState
DIGEST = "5" * 64
SPEC = {"context": DIGEST}


def test_an_order_names_the_files() -> None:
    w = world(gpus=4)
    w.submit("j-1", gpus=1, replicas=2, spec=SPEC)
    rounds(w)
    read = w.runs_of("node-1")
    assert [run.context for run in read] == [DIGEST] * 2
