"""The counts of one service in one run: every request that arrived, including refused and lost ones."""

from msgspec import Struct


class Counted(Struct, frozen=True, kw_only=True):
    """One service. Times in seconds.

    `bad`: requests that were late, refused or lost, or that waited too long already when the service ended;
    `attainment`: the part that was not. `open`: those still unanswered then. `windows`: of 10 seconds, with requests in
    them; `bad_windows`: those in which more requests were bad than the objective allows; `worst_window`: the largest
    ratio of a window's percentile to the objective, None where requests of it were never answered. `reversals`: changes
    of size against the direction of the change before. `cold_waits`: requests that came while no replica was ready, and
    `cold_wait_most_s` the longest that one of them waited. `gpu_s`: GPU-seconds held, also while replicas start and
    drain. `short_s`: replica-seconds that it should have had, and there was no GPU. `loans`: GPUs of elastic jobs that
    it was lent, `borrowed_gpu_s` for how long in all, and `loan_lost_gpu_s` what the lenders lost by it.
    """

    name: str
    arrived: int
    answered: int
    refused: int
    failed: int
    late: int
    open: int
    bad: int
    attainment: float
    windows: int
    bad_windows: int
    worst_window: float | None
    latency_p50_s: float | None
    latency_p99_s: float | None
    cold_waits: int
    cold_wait_most_s: float
    gpu_s: float
    starts: int
    changes: int
    reversals: int
    short_s: float
    retried: int = 0
    evicted_jobs: int = 0
    loans: int = 0
    borrowed_gpu_s: float = 0.0
    loan_lost_gpu_s: float = 0.0
    unattainable: str = ""


class Trajectory(Struct, frozen=True, kw_only=True):
    """How one service went. `wanted`: from each time on, how many replicas its autoscaler wants, and the thousandths of
    a GPU for each. `held`: replicas that it has, and how many of these are borrowed."""

    name: str
    wanted: tuple[tuple[float, int, int | None], ...]
    held: tuple[tuple[float, int, int], ...]
