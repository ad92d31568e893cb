"""What a partition is to be good for, beside what is possible: fair, or fast."""

from msgspec import Struct


class PartitionGoal(Struct, frozen=True, kw_only=True):
    """`power`: of a job's progress that counts; below 1 its first replicas are worth more than its last ones.
    `of_asked`: progress is in parts of the speed at the size that the job's user asked for, not at its fair share.
    `kept`: the part of the progress that fairness has to leave. `bounded`: theta1 and theta2 hold. `close`: scores of
    GPUs nearer to each other than this are one level of speed.
    """

    power: float
    of_asked: bool
    kept: float
    bounded: bool
    close: float


FAIR = PartitionGoal(power=0.5, of_asked=False, kept=0.98, bounded=True, close=0.02)
FAST = PartitionGoal(power=1.0, of_asked=True, kept=0.999, bounded=False, close=0.25)
