"""From when on a rank counts as held back. What a verdict of the tuner and a window of the scorer share.

At its threshold a rank is held back. A rank that a verdict calls held back by CPU, disk or input therefore never says
anything of its GPU's speed.
"""

THROTTLED = 0.25  # part of the CPU periods in which it was held back
UNTHROTTLED = 0.05  # what a single unlucky second leaves in a window; with more, a step measures the limit
MEMORY_PRESSURE = 0.10  # part of the time; the kernel's own advice for `memory.pressure`, some
IO_WAIT = 0.10  # part of the time in which some task waited for a disk
BLOCKED = 0.25  # part of its threads in state D
DATA_PART = 0.20  # of a step's time: Synergy's input-bound jobs lose as much
