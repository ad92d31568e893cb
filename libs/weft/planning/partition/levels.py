"""Levels of speed: the pool's GPUs, the fastest first, in a few groups of which each contains the one before."""

from collections.abc import Sequence

from weft.planning.partition import ElasticJob, Server

LEVELS_MOST = 3
CLOSE = 0.02  # scores of GPUs nearer to each other than this are one level of speed


class Levels:
    """`scores`: of the slowest GPU of each level; `gpus`: how many there are up to it. One level of 1.0 without bins.

    A job on a level is as fast as that level's slowest GPU lets it be. `close`: scores nearer to each other are one
    level.
    """

    def __init__(self, servers: Sequence[Server], close: float = CLOSE) -> None:
        counts: dict[float, int] = {}
        for server in servers:
            for score, number in bins_of(server):
                counts[score] = counts.get(score, 0) + number
        groups = _pooled(sorted((score, number) for score, number in counts.items() if number), close)
        self.scores = [score for score, _ in groups] or [1.0]
        total, self.gpus = 0.0, []
        for _, number in groups:
            total += number
            self.gpus.append(total)
        self.gpus = self.gpus or [0.0]
        self._mean = {server.id: _mean(server) for server in servers}

    def level_of(self, score: float) -> int:
        return next((level for level, most in enumerate(self.scores) if score <= most + 1e-9), len(self.scores) - 1)

    def of_job(self, job: ElasticJob) -> int:
        """The level on which it runs: of its slowest GPU, or if that is unknown of the usual GPU of its servers."""
        if not job.now or not job.each[0] or len(self.scores) == 1:
            return len(self.scores) - 1
        return self.level_of(job.score or max(self._mean.get(server, 1.0) for server in job.on))

    def open_to(self, job: ElasticJob, here: int) -> range:
        """The levels it may be given. A job that keeps its GPUs while it grows is no faster than they are."""
        last = len(self.scores) - 1
        if not job.each[0]:
            return range(last, last + 1)
        return range(here if job.now and not job.restart_s else 0, last + 1)


def bins_of(server: Server) -> tuple[tuple[float, int], ...]:
    return server.bins or ((1.0, int(server.amounts[0])),)


def _mean(server: Server) -> float:
    gpus = sum(number for _, number in server.bins)
    return sum(score * number for score, number in server.bins) / gpus if gpus else 1.0


def _pooled(counts: Sequence[tuple[float, int]], close: float) -> list[tuple[float, int]]:
    """Close scores become one group, and the smallest groups go to the next slower one until there are few."""
    groups: list[tuple[float, int]] = []
    for score, number in counts:
        if groups and score - groups[-1][0] < close:
            groups[-1] = (score, groups[-1][1] + number)
        else:
            groups.append((score, number))
    while len(groups) > LEVELS_MOST:
        smallest = min(range(len(groups) - 1), key=lambda at: groups[at][1])
        groups[smallest : smallest + 2] = [(groups[smallest + 1][0], groups[smallest][1] + groups[smallest + 1][1])]
    return groups
