"""As many replicas as at first: what a deployment without an autoscaler does, sized for its mean or for its peak."""

from weft.domain.job import Cause, CauseCode
from weft.serving.loads import Goal, ServiceLoad, Sized


class Fixed:
    def __init__(self, goal: Goal, at: float) -> None:
        self._goal = goal
        self._replicas: int | None = None

    def decide(self, load: ServiceLoad) -> Sized:
        if self._replicas is None:
            self._replicas = min(self._goal.most, max(self._goal.least, load.wanted))
        return Sized(replicas=self._replicas, cause=Cause(code=CauseCode.LOAD, sentence="a fixed size"))
