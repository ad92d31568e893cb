"""The runs that were placed on each node, and those that failed there by no fault of their jobs."""

from msgspec import Struct

from weft.domain.failure import FailureClass, class_of_cause
from weft.domain.job import CauseCode, Job, JobEvent, Step

MERGED_SECONDS = 60.0
_COUNTED = frozenset({FailureClass.NODE, FailureClass.GPU, FailureClass.UNKNOWN})
_NOT_COUNTED = frozenset(
    {
        CauseCode.NODE_STOPPED,  # a person did that
        CauseCode.PORT_TAKEN,  # another job did
        CauseCode.EXITED,  # killed by a signal: a tenant could have its own jobs do that, to take a node from others
        CauseCode.RANK_ENDED,
    }
)
_OF_MANY = frozenset({CauseCode.NODE_LOST, CauseCode.GPU_FAILED})  # one incident ends several jobs


class RunFailed(Struct, frozen=True):
    node_id: str
    job_id: str
    at: float


class RunOutcomes:
    """`placed`: how often a job was placed on each node. A lost node or GPU that ends several jobs within a minute
    failed once."""

    def __init__(self) -> None:
        self.placed: dict[str, int] = {}
        self._failed: list[RunFailed] = []
        self._incidents: dict[tuple[str, CauseCode], float] = {}

    def note(self, before: Job, after: Job, step: Step) -> None:
        """Take in a step of a job."""
        if step.event in (JobEvent.PLACED, JobEvent.RESTARTED) and after.placement is not None:
            for node_id in {each.node_id for each in after.placement.allocations}:
                self.placed[node_id] = self.placed.get(node_id, 0) + 1
        if after.failures is before.failures or class_of_cause(step.cause) not in _COUNTED:
            return
        nodes = after.failures[-1].nodes
        if len(nodes) == 1 and step.cause.code not in _NOT_COUNTED:
            self._fail(nodes[0], after.id, step)

    def _fail(self, node_id: str, job_id: str, step: Step) -> None:
        if step.cause.code in _OF_MANY:
            incident = (node_id, step.cause.code)
            last, self._incidents[incident] = self._incidents.get(incident), step.at
            if last is not None and step.at - last < MERGED_SECONDS:
                return
        self._failed.append(RunFailed(node_id, job_id, step.at))

    def take_failed(self) -> list[RunFailed]:
        failed, self._failed = self._failed, []
        return failed

    def take_placed(self, node_id: str) -> int:
        return self.placed.pop(node_id, 0)

    def forget(self, node_id: str) -> None:
        self.placed.pop(node_id, None)
        self._incidents = {key: at for key, at in self._incidents.items() if key[0] != node_id}
