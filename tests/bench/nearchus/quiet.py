"""S6: a job that lacks nothing and wastes little, for half an hour: whatever is changed is a false action."""

from tests.bench.nearchus.scenarios import BUDGET, SERVED, SERVER_HEAVY, Scenario, Share
from weft.domain.spec import Tuning, TuningMode

_REPLICAS = {"ps": 1, "worker": 3}
_SHARE = Share(cpus={"ps": 1.0, "worker": 0.22})

S6 = Scenario(
    name="S6",
    what="nothing is wrong: the server cannot use more than its core, and each worker two thirds of what it has",
    program=SERVED,
    arguments=SERVER_HEAVY,
    replicas=_REPLICAS,
    equal=_SHARE,
    asked=_SHARE,
    grid=(),
    tuning=Tuning(mode=TuningMode.ON, cpus=BUDGET + 0.3),
)
