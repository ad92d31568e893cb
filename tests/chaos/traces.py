"""What the jobs wrote of themselves, read into runs."""

from collections import defaultdict
from pathlib import Path

from msgspec import Struct


class Run(Struct, kw_only=True):
    """One process of one rank in one epoch, by its own account. Times in boot seconds; `last` is its last word."""

    key: str
    job_id: str
    epoch: int
    rank: int
    instance: str
    began: float
    last: float
    node: str = ""
    gpus: tuple[int, ...] = ()
    world: int = 0
    status: int | None = None  # it ended by itself, with this
    interrupted: bool = False  # it ended because it was told to, before its work was done
    steps_from: int | None = None  # the step from which it went on
    checkpoints: tuple[tuple[float, int], ...] = ()  # when it wrote one, and of which step
    steps_done: int | None = None  # it ended as that many were done
    refused: int = 0  # lines of its log that stdout did not take
    lines: list[str] = []

    @property
    def name(self) -> str:
        """Also of the file with what it said."""
        return f"{self.job_id}.{self.epoch}.{self.rank}.{self.instance}"

    def overlaps(self, other: "Run") -> float:
        """For how many seconds both were there, at least; 0 or less: they were not."""
        return min(self.last, other.last) - max(self.began, other.began)


def read_runs(folder: Path) -> list[Run]:
    """Every run that left a trace, in the order in which they began."""
    runs = [run for path in sorted((folder / "traces").iterdir()) for run in _of_key(path)]
    return sorted(runs, key=lambda run: run.began)


def read_came(folder: Path) -> frozenset[tuple[str, int, int]]:
    """Job, epoch and rank of every process that there was, whether or not its program had the time to begin."""
    lines = [line.split() for path in (folder / "traces").iterdir() for line in path.read_text().splitlines()]
    return frozenset((line[2], int(line[3]), int(line[4])) for line in lines if line[0] == "came")


def by_rank(runs: list[Run]) -> dict[tuple[str, int], list[Run]]:
    """The runs of each rank of each job, in order."""
    found: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.job_id, run.rank].append(run)
    return found


def by_epoch(runs: list[Run]) -> dict[tuple[str, int], list[Run]]:
    found: dict[tuple[str, int], list[Run]] = defaultdict(list)
    for run in runs:
        found[run.job_id, run.epoch].append(run)
    return found


def _of_key(path: Path) -> list[Run]:
    runs: dict[str, Run] = {}
    for line in path.read_text().splitlines():
        if line.startswith("came "):
            continue
        event, at, job_id, epoch, rank, instance, *more = line.split()
        name = f"{job_id}.{epoch}.{rank}.{instance}"
        if name not in runs:
            runs[name] = Run(
                key=path.name,
                job_id=job_id,
                epoch=int(epoch),
                rank=int(rank),
                instance=instance,
                began=float(at),
                last=float(at),
            )
        run = runs[name]
        run.last = float(at)
        if event != "beat":
            run.lines = [*run.lines, line]
        match event:
            case "start":
                run.node = more[0]
                run.gpus = tuple(int(index) for index in more[1].split(",") if index not in ("", "-"))
                run.world = int(more[2])
            case "interrupted":
                run.interrupted = True
            case "from":
                run.steps_from = int(more[0])
            case "checkpoint":
                run.checkpoints = (*run.checkpoints, (float(at), int(more[0])))
            case "done":
                run.steps_done = int(more[0])
            case "refused":
                run.refused += 1
            case "end":
                run.status = int(more[0])
            case _:
                pass
    return list(runs.values())
