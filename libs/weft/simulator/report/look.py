"""How charts look: colours that colour-blind eyes tell apart, quiet axes, and the units of time along them."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.typing import RcStyleType

from weft.simulator.report.compared import Contender, Unit, best_of

INK, FAINT, LINES, IDLE = "#222222", "#666666", "#E2E2E2", "#F3F3F1"
# After Okabe and Ito (2008). The first run, with which the others are compared, is grey.
CONTENDERS = ("#6E6E6E", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#56B4E9")
DASHES = ("-", "-", (0, (6, 2)), (0, (3, 1.5)), (0, (1.5, 1.5)), (0, (6, 1.5, 1.5, 1.5)), (0, (8, 3)))
# "Light" of Paul Tol: neighbours on a chart of many small areas, with dark text on them.
JOBS = ("#77AADD", "#EE8866", "#EEDD88", "#FFAABB", "#99DDFF", "#44BB99", "#BBCC33", "#AAAA00", "#C3A5D6")
SLOW = LinearSegmentedColormap.from_list("slow", ("#DCE9F2", "#F7F4EE", "#E8853D", "#8C2D04"))
BUSY = LinearSegmentedColormap.from_list("busy", ("#F7F7F5", "#A9CBE3", "#2F79B5", "#08306B"))
ALARM = "#A63603"

STYLE: RcStyleType = {
    "font.family": "DejaVu Sans",  # matplotlib brings it: the same letters everywhere
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": "#9A9A9A",
    "axes.labelcolor": FAINT,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 22,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "butt",
    "figure.facecolor": "white",
    "svg.fonttype": "path",
    "path.simplify_threshold": 0.25,
}

TIMES = (
    *(1, 2, 5, 10, 30),
    *(60 * minutes for minutes in (1, 2, 5, 10, 30)),
    *(3600 * hours for hours in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000)),
)
MARKS_APART = 0.085  # of the axis: less, and their words would touch


class Shown(Contender, frozen=True):
    """A run with its place on the palette."""

    place: int = 0

    @property
    def colour(self) -> str:
        return CONTENDERS[self.place % len(CONTENDERS)]

    @property
    def line(self) -> dict[str, Any]:
        dashes = DASHES[self.place % len(DASHES)]
        return {"color": self.colour, "linestyle": dashes, "zorder": 4 if self.place == 1 else 3}


def shown(runs: Sequence[Contender]) -> list[Shown]:
    """The runs with their colours: the best of those compared with the first has the strongest line."""
    best = best_of(runs[1:] or runs)
    ranked = sorted(runs, key=lambda run: (run is not runs[0], run is not best))
    places = {run.label: place for place, run in enumerate(ranked)}
    return [Shown(run.label, run.outcome, run.metrics, places[run.label]) for run in runs]


def title(axes: Axes, says: str, shows: str) -> None:
    """The title: the finding, and below it, small, the subject of the chart."""
    axes.set_title(says, y=1.0)
    above(axes, 0, shows, fontsize=8.5)


def above(axes: Axes, x: float, text: str, **look: Any) -> None:
    """A small remark right above a chart, from this part of its width on."""
    axes.annotate(
        text, (x, 1), (0, 5), xycoords="axes fraction", textcoords="offset points", va="bottom", color=FAINT, **look
    )


def grid(axes: Axes, axis: str = "y") -> None:
    axes.grid(visible=True, axis=axis, color=LINES, linewidth=0.8)  # type: ignore[arg-type] # one of "x", "y", "both"


def axis_unit(seconds: float) -> Unit:
    """The unit of a time axis of this length."""
    if seconds >= 20 * 86400:
        return Unit("days", 86400.0)
    return Unit("hours", 3600.0) if seconds >= 7200 else Unit("minutes", 60.0) if seconds >= 600 else Unit("seconds")


def time_axis(axes: Axes, begin: float, end: float, unit: Unit, *, until: float | None = None) -> None:
    """Linear, from the first arrival. `until`: when the last job completes, if that may be off the axis."""
    axes.set_xlim(0, max((end - begin) / unit.size, 1e-9))
    tail = until is not None and until > end * 1.001
    beyond = f"; the last few jobs, until {(until - begin) / unit.size:,.0f}, are left out" if tail and until else ""
    axes.set_xlabel(f"{unit.name} since the first arrival{beyond}")
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 4, 5, 10]))


def log_time_axis(axes: Axes, low: float, high: float) -> None:
    """Logarithmic, marked at times that a person knows: 1 min, 1 h, 10 h."""
    low, high = max(low, 1e-3), max(high, low * 1.5, 1e-3)
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_minor_locator(NullLocator())
    marks: list[float] = []
    for at in TIMES:
        if low <= at <= high and (not marks or at / marks[-1] >= (high / low) ** MARKS_APART):
            marks.append(at)
    if len(marks) < 2:
        axes.xaxis.set_major_locator(LogLocator(10))
    else:
        axes.set_xticks(marks)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: round_time(at)))


def round_time(seconds: float) -> str:
    for size, name in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.0f} {name}"
    return f"{seconds:g} s"
