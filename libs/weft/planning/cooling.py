"""The cool-down of a job whose size changed: the job keeps its new size until the cool-down is over.

The reallocator and the simulator ask the same rule.
"""

SECONDS = 120.0  # the shortest cool-down, unless settings say otherwise
RESTARTS = 10.0  # a restart costs at most a tenth of the time until the next one


def is_cool(changed_at: float, now: float, *, restart_s: float, seconds: float, restarts: float = RESTARTS) -> bool:
    """Return True if the cool-down of a job whose size changed at `changed_at` is over.

    It lasts `seconds`, and at least as long as `restarts` restarts. `restart_s`: how long one restart takes; 0 for a
    job that grows and shrinks live. A restart of 30 s makes it 300 s, whether `seconds` is 0 or 120.
    """
    return now - changed_at >= max(seconds, restarts * restart_s)
