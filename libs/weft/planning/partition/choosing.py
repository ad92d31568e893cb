"""Which configuration each job gets: the most progress, then the least unfairness for a little less of it.

The program without whole numbers is solved first. It has few rows beside one for each job, so that it leaves only a few
jobs between two configurations. With few configurations in all, they are all chosen again in whole numbers; with many,
only those of these few jobs, where progress counts at the price that it had in the solution.
"""

from collections.abc import Collection, Mapping

import numpy as np
from msgspec import Struct, structs

from weft.planning.partition.configurations import Configurations
from weft.planning.partition.solving import Ended, LinearProgram, Numbers, Places, Relaxation, Solution, SolverLimits

CHANGE_COSTS = 0.01  # of unfairness
PROGRESS_KEPT = 0.98  # the part of the progress that fairness leaves
EXACT_MOST = 200  # configurations
MORE_JOBS = 20  # that are chosen again where the few jobs alone leave no solution
TRIED_MOST = 3000  # combinations of configurations, up to which all are tried instead
NONE = -1
WHOLE = 1e-6
SLACK = 1e-7


class ChoiceLimits(Struct, frozen=True, kw_only=True):
    """`must`: the jobs that get a configuration, by number."""

    unfairness: float
    changes: float
    must: frozenset[int]


class Chooser:
    """`infeasible`: no solution of the last `choose` can exist. All its choices together make
    no more steps than the limits allow."""

    def __init__(self, options: Configurations, limits: SolverLimits) -> None:
        self.options, self.limits = options, limits
        self.infeasible = False
        self._value = options.worth
        self._off, self._calm = self._fairness()
        self._forbidden = np.zeros(len(self._value), bool)
        self._program = LinearProgram()
        for value in self._value:
            self._program.variable(value=value)
        self._jobs = {i: self._add(columns, 1.0) for i, columns in enumerate(options.columns) if len(columns)}
        for row, bound in zip(options.rows, options.bounds, strict=True):
            self._add(np.flatnonzero(row), bound, row)
        self._unfair = self._add(np.flatnonzero(self._off), 0.0, self._off)
        self._changes = self._add(np.flatnonzero(options.changed), 0.0, options.changed)
        self._progress = self._add(np.flatnonzero(self._value), np.inf, self._value)
        self._relaxation = Relaxation(self._program, limits)

    def _fairness(self) -> tuple[Numbers, Numbers]:
        """How much further each configuration is from the fair share than none, and what is best of equal progress."""
        options = self.options
        if len(options.levels.models) > 1:  # n GPUs of one model are not as much as n of another
            return np.zeros(len(self._value)), self._value - CHANGE_COSTS * options.changed
        off = options.distance - options.waiting[options.job]
        return off, -off - CHANGE_COSTS * options.changed

    def _allowed(self, job: int) -> Places:
        columns = self.options.columns[job]
        return columns[~self._forbidden[columns]]

    def forbid(self, job: int, columns: Places) -> None:
        """A job that is left with no configuration gets none, even if it should."""
        self._forbidden[columns] = True
        if not len(self._allowed(job)):
            self._bound(self._jobs[job], 1.0)
        self._relaxation.forbid(columns)
        for column in columns:
            self._program.upper[column] = 0.0

    def choose(self, bounds: ChoiceLimits) -> dict[int, int] | None:
        """By job, the number of its configuration; jobs that get nothing are left out. None if there is no solution."""
        for job, row in self._jobs.items():
            self._bound(row, 1.0, least=1.0 if job in bounds.must else 0.0)
        self._bound(self._unfair, self._unfair_most(bounds))
        self._bound(self._changes, bounds.changes)
        self._bound(self._progress, np.inf)
        most = self._counted(self._relaxation.maximise(self._value, iterations=self.limits.iterations))
        self.infeasible = most.ended is Ended.INFEASIBLE
        if most.values is None:
            return None
        if len(self._value) <= EXACT_MOST:
            return self._exactly()
        self._relaxation.bound(self._progress, least=self._a_little_less(most.value))
        return self._nearly(bounds)

    def choose_again(self, bounds: ChoiceLimits) -> dict[int, int] | None:
        """After some configurations were forbidden: within the bounds of the last choice, with as much progress."""
        if len(self._value) <= EXACT_MOST:
            self._bound(self._progress, np.inf)
            return self._exactly()
        return self._nearly(bounds)

    def _exactly(self) -> dict[int, int] | None:
        self._program.values = [*self._value]
        most = self._counted(self._program.maximise(self.limits))
        if most.values is None:
            return None
        self._program.bound(self._progress, least=self._a_little_less(most.value))
        self._program.values = [*self._calm]
        fairest = self._counted(self._program.maximise(self.limits, start=most.values))
        return self._picked(most.values if fairest.values is None else fairest.values)

    def _nearly(self, bounds: ChoiceLimits) -> dict[int, int] | None:
        fairest = self._counted(self._relaxation.maximise(self._calm, iterations=self.limits.iterations))
        if fairest.values is None:
            return None
        picked = self._picked(fairest.values)
        between = np.flatnonzero((fairest.values > WHOLE) & (fairest.values < 1 - WHOLE))
        parts = sorted({int(job) for job in self.options.job[between]})
        if not parts:
            return picked
        value = self._calm + self._relaxation.price(self._progress) * self._value
        for again in (parts, [*parts, *self._flexible(picked, parts)]):
            fixed = {job: column for job, column in picked.items() if job not in again}
            found = self._again(bounds, fixed, again, value)
            if found is not None:
                return fixed | found
        return None

    def _flexible(self, picked: dict[int, int], parts: list[int]) -> list[int]:
        """Jobs that change or start anyway, the last in the order of service first."""
        options = self.options
        found = [
            job
            for job, column in sorted(picked.items(), reverse=True)
            if job not in parts and (options.changed[column] or not options.jobs[job].now)
        ]
        return found[:MORE_JOBS]

    def _again(
        self, bounds: ChoiceLimits, fixed: dict[int, int], jobs: list[int], value: Numbers
    ) -> dict[int, int] | None:
        """These jobs' configurations in whole numbers, beside the fixed ones."""
        options, held = self.options, np.array(sorted(fixed.values()), int)
        of_jobs = {job: self._allowed(job) for job in jobs}
        must = {job for job, columns in of_jobs.items() if job in bounds.must and len(columns)}
        rows = np.vstack([options.rows, self._off, options.changed])
        mosts = np.array([*options.bounds, self._unfair_most(bounds), bounds.changes])
        left = mosts - rows[:, held].sum(axis=1) + SLACK
        if np.prod([len(columns) + 1.0 for columns in of_jobs.values()]) <= TRIED_MOST:
            return _tried(of_jobs, must, rows, left, value)
        columns = np.concatenate([*of_jobs.values()])
        program = LinearProgram()
        for column in columns:
            program.variable(value=value[column])
        for job in jobs:
            of_job = np.flatnonzero(options.job[columns] == job)
            program.row(of_job, np.ones(len(of_job)), least=1.0 if job in must else 0.0, most=1.0)
        for row, most in zip(rows, left, strict=True):
            program.row(range(len(columns)), row[columns], most=most)
        found = self._counted(program.maximise(self.limits))
        if found.values is None:
            return None
        return {int(options.job[columns[at]]): int(columns[at]) for at in np.flatnonzero(found.values > 0.5)}

    def _counted(self, solution: Solution) -> Solution:
        """Subtract the steps of a solution from those that the next one may take."""
        left = max(0, self.limits.iterations - solution.iterations)
        self.limits = structs.replace(self.limits, iterations=left)
        return solution

    def _picked(self, values: Numbers) -> dict[int, int]:
        return {int(self.options.job[column]): int(column) for column in np.flatnonzero(values > 0.5)}

    def _a_little_less(self, value: float) -> float:
        return value - (1 - PROGRESS_KEPT) * abs(value)

    def _unfair_most(self, bounds: ChoiceLimits) -> float:
        return bounds.unfairness - float(self.options.waiting.sum())

    def _add(self, columns: Places, most: float, factors: Numbers | None = None) -> int:
        return self._program.row(columns, np.ones(len(columns)) if factors is None else factors[columns], most=most)

    def _bound(self, row: int, most: float, least: float = -np.inf) -> None:
        self._program.bound(row, least=least, most=most)
        self._relaxation.bound(row, least=least, most=most)


def _tried(
    of_jobs: Mapping[int, Places], must: Collection[int], rows: Numbers, left: Numbers, value: Numbers
) -> dict[int, int] | None:
    """The best of all combinations of one configuration or none for each of a few jobs, within what is left."""
    choices = [columns if job in must else np.append(columns, NONE) for job, columns in of_jobs.items()]
    combined = np.stack([grid.ravel() for grid in np.meshgrid(*choices, indexing="ij")])
    padded = np.hstack([rows, np.zeros((len(rows), 1))])  # of NONE, the last column
    used = sum(padded[:, combination] for combination in combined)
    values = np.append(value, 0.0)[combined].sum(axis=0)
    values[(used > left[:, None]).any(axis=0)] = -np.inf
    best = int(values.argmax())
    if values[best] == -np.inf:
        return None
    found = zip(of_jobs, combined[:, best], strict=True)
    return {job: int(column) for job, column in found if column != NONE}
