"""Linear programs with whole numbers, solved by HiGHS. No other module knows the solver.

One thread, and limits that count steps: the same program gives the same solution on every machine.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

if TYPE_CHECKING:
    import highspy

Numbers = NDArray[np.float64]
Places = NDArray[np.intp]

INFINITE = float("inf")


class Ended(StrEnum):
    SOLVED = "solved"  # to within the gap
    INFEASIBLE = "infeasible"
    CUT_SHORT = "cut short"  # by a limit; there may be a solution all the same


class SolverLimits(Struct, frozen=True, kw_only=True):
    """`gap`: how much better than the solution found the best may be, in parts of it. `iterations`: steps of the
    simplex algorithm."""

    gap: float = 0.01
    branches: int = 2000
    iterations: int = 200_000


class Solution(Struct, frozen=True, kw_only=True):
    """`values`: of the variables, in the order in which they were added; None if none was found. `iterations`: how many
    steps the solver made."""

    ended: Ended
    values: Numbers | None = None
    value: float = 0.0
    iterations: int = 0


class LinearProgram:
    """Variables from 0 to an upper bound with a value for each unit, and rows of bounded sums."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.lower: list[float] = []
        self.upper: list[float] = []
        self.whole: list[bool] = []
        self._starts: list[int] = [0]
        self._indices: list[int] = []
        self._factors: list[float] = []
        self._least: list[float] = []
        self._most: list[float] = []

    def variable(self, *, value: float = 0.0, lower: float = 0.0, upper: float = 1.0, whole: bool = True) -> int:
        self.values.append(value)
        self.lower.append(lower)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.values) - 1

    def row(
        self,
        indices: Sequence[int] | Places,
        factors: Sequence[float] | Numbers,
        *,
        least: float = -INFINITE,
        most: float = INFINITE,
    ) -> int:
        """least <= sum of factor x variable <= most. Returns the number of the row."""
        self._indices.extend(indices)
        self._factors.extend(factors)
        self._starts.append(len(self._indices))
        self._least.append(least)
        self._most.append(most)
        return len(self._least) - 1

    def bound(self, row: int, *, least: float = -INFINITE, most: float = INFINITE) -> None:
        self._least[row], self._most[row] = least, most

    def maximise(self, limits: SolverLimits, start: Numbers | None = None) -> Solution:
        """The values that make the sum of value x variable largest. `start`: a solution to begin with."""
        import highspy

        solver = _solver(limits)
        solver.passModel(self._model(whole=any(self.whole)))
        if start is not None:
            begin = highspy.HighsSolution()
            begin.col_value = list(start)
            solver.setSolution(begin)
        solver.run()
        return _solution(solver, whole=any(self.whole))

    def _model(self, *, whole: bool) -> "highspy.HighsLp":
        import highspy

        model = highspy.HighsLp()
        model.num_col_, model.num_row_ = len(self.values), len(self._least)
        model.sense_ = highspy.ObjSense.kMaximize
        model.col_cost_ = np.array(self.values, float)
        model.col_lower_ = np.array(self.lower, float)
        model.col_upper_ = np.array(self.upper, float)
        model.row_lower_ = np.array(self._least, float)
        model.row_upper_ = np.array(self._most, float)
        model.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        model.a_matrix_.start_ = np.array(self._starts, np.int32)
        model.a_matrix_.index_ = np.array(self._indices, np.int32)
        model.a_matrix_.value_ = np.array(self._factors, float)
        if whole:
            kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
            model.integrality_ = [kinds[is_whole] for is_whole in self.whole]
        return model


class Relaxation:
    """A program without the demand for whole numbers. It is solved again from where it was after each change of it."""

    def __init__(self, program: LinearProgram, limits: SolverLimits) -> None:
        self._solver = _solver(limits)
        self._solver.setOptionValue("presolve", "off")
        self._solver.passModel(program._model(whole=False))

    def bound(self, row: int, *, least: float = -INFINITE, most: float = INFINITE) -> None:
        self._solver.changeRowBounds(row, least, most)

    def forbid(self, variables: Places) -> None:
        none = np.zeros(len(variables))
        self._solver.changeColsBounds(len(variables), variables.astype(np.int32), none, none)

    def maximise(self, values: Numbers, *, iterations: int) -> Solution:
        """The same with these values, in at most that number of steps."""
        self._solver.setOptionValue("simplex_iteration_limit", iterations)
        self._solver.changeColsCost(len(values), np.arange(len(values), dtype=np.int32), values)
        self._solver.run()
        return _solution(self._solver, whole=False)

    def price(self, row: int) -> float:
        """The shadow price of the row's bound in the last solution: the gain if the bound were 1 looser."""
        return abs(float(self._solver.getSolution().row_dual[row]))


def _solver(limits: SolverLimits) -> "highspy.Highs":
    import highspy

    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    solver.silent()
    for name, value in (
        ("threads", 1),
        ("parallel", "off"),
        ("random_seed", 0),
        ("mip_rel_gap", limits.gap),
        ("mip_max_nodes", limits.branches),
        ("simplex_iteration_limit", limits.iterations),
    ):
        solver.setOptionValue(name, value)
    return solver


def _solution(solver: "highspy.Highs", *, whole: bool) -> Solution:
    import highspy

    status, info = solver.getModelStatus(), solver.getInfo()
    iterations = max(0, info.simplex_iteration_count)
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return Solution(ended=Ended.INFEASIBLE, iterations=iterations)
    solved = status == highspy.HighsModelStatus.kOptimal
    if not solved and (not whole or info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible):
        return Solution(ended=Ended.CUT_SHORT, iterations=iterations)
    values = np.array(solver.getSolution().col_value)
    ended = Ended.SOLVED if solved else Ended.CUT_SHORT
    return Solution(ended=ended, values=values, value=float(info.objective_function_value), iterations=iterations)
