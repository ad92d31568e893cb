"""A bound on how often any autoscaler turns back, so that a service never flaps, whatever its rule and its load are."""

from collections import deque

from weft.domain.job import Cause, CauseCode
from weft.serving.loads import Autoscaler, ServiceLoad, Sized

HOUR_SECONDS = 3600.0
TURNS_MAX = 30  # an hour: reductions that follow a growth


class Steady:
    """As `Autoscaler`. It follows `rule`, but after `TURNS_MAX` turns from up to down within an hour the service keeps
    its size until the oldest of them is an hour ago. It may grow at any time."""

    def __init__(self, rule: Autoscaler) -> None:
        self.rule = rule
        self._turns: deque[float] = deque(maxlen=TURNS_MAX)
        self._grew = False

    def decide(self, load: ServiceLoad) -> Sized:
        sized, now = self.rule.decide(load), load.wanted
        if sized.replicas > now:
            self._grew = True
        elif sized.replicas < now and self._grew:
            if len(self._turns) == TURNS_MAX and load.at - self._turns[0] < HOUR_SECONDS:
                sentence = f"stays {now}: its size turned back {TURNS_MAX} times within the last hour"
                cause = Cause(code=CauseCode.LOAD, sentence=sentence, numbers={"turns": float(TURNS_MAX)})
                return Sized(replicas=now, cause=cause, unattainable=sized.unattainable)
            self._turns.append(load.at)
            self._grew = False
        return sized
