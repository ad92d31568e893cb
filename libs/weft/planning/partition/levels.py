"""Levels of speed: the GPUs of each model, the fastest first, in a few groups of which each contains the one before."""

from collections.abc import Iterable, Sequence

from weft.planning.partition import ALIKE, ElasticJob, Server

LEVELS_MOST = 3
CLOSE = 0.02  # scores of GPUs nearer to each other than this are one level of speed


class Levels:
    """`scores`: those of the slowest GPU of each level; `gpus`: by model, how many there are up to it. One level of 1.0
    without bins. `models`: those of the servers' GPUs, in alphabetical order.

    A job on a level is as fast as that level's slowest GPU lets it be, beside others of the same model. `close`: scores
    nearer to each other are one level.
    """

    def __init__(self, servers: Sequence[Server], close: float = CLOSE) -> None:
        counts: dict[float, int] = {}
        for server in servers:
            for score, number in bins_of(server):
                counts[score] = counts.get(score, 0) + number
        groups = _pooled(sorted((score, number) for score, number in counts.items() if number), close)
        self.scores = [score for score, _ in groups] or [1.0]
        self.models = sorted({server.model for server in servers if server.amounts[0]}) or [ALIKE]
        self.gpus = {model: self._up_to(server for server in servers if server.model == model) for model in self.models}
        self._mean = {server.id: _mean(server) for server in servers}

    def _up_to(self, servers: Iterable[Server]) -> list[float]:
        gpus = [0.0] * len(self.scores)
        for server in servers:
            for score, number in bins_of(server):
                for level in range(self.level_of(score), len(gpus)):
                    gpus[level] += number
        return gpus

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

    def models_for(self, job: ElasticJob) -> list[str]:
        """The models it may be given, of which the pool has GPUs. A job that resizes live keeps its own."""
        if not job.each[0]:
            return [next(iter(job.speeds))]
        if job.now and not job.restart_s:
            return [job.model] if job.model in self.models else []
        return [model for model in self.models if model in job.speeds]


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
