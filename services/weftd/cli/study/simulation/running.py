"""Run the plans, with a bar on a terminal; Ctrl-C ends them at once."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from msgspec.structs import replace
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from weft.simulator.model import Cluster
from weft.simulator.outcome import Outcome
from weft.simulator.run import simulate
from weft.simulator.serving.over_time import serving_of
from weft.simulator.serving.service import Services
from weft.simulator.workload import Workload
from weftd.cli import page
from weftd.cli.study.simulation.plan import Planned

Tell = Callable[[int, int], None]
STEPS = 500  # of a bar: more than a terminal can show


def outcomes_of(
    plans: Sequence[Planned],
    workload: Workload,
    cluster: Cluster,
    settings: Mapping[str, str],
    *,
    bar: bool,
    services: Services | None = None,
) -> list[Outcome]:
    """The outcomes of the plans. `settings`: further settings to show with each."""
    found: list[Outcome] = []
    with interruptible(), _bar(shown=bar) as tell_of:
        for place, plan in enumerate(plans, 1):
            which = plan.name if len(plans) == 1 else f"{place}/{len(plans)} {plan.name}"
            outcome = outcome_of(plan, workload, cluster, tell_of(which, len(workload.jobs)), services)
            found.append(replace(outcome, settings={**settings, **outcome.settings}))
    return found


def outcome_of(
    plan: Planned, workload: Workload, cluster: Cluster, tell: Tell, services: Services | None = None
) -> Outcome:
    return simulate(
        workload,
        cluster,
        plan.policy,
        plan.world,
        seed=plan.seed,
        scores=plan.scores,
        progress=tell,
        partitioning=plan.partitioning,
        serving=None if services is None or plan.autoscaler is None else serving_of(services, plan.autoscaler),
    )


@contextmanager
def _bar(*, shown: bool) -> Iterator[Callable[[str, int], Tell]]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=page.console(sys.stderr), transient=True, disable=not shown) as progress:

        def tell_of(which: str, jobs: int) -> Tell:
            task = progress.add_task(which, total=jobs)
            step = max(1, jobs // STEPS)

            def tell(done: int, _: int) -> None:
                if done % step == 0 or done == jobs:
                    progress.update(task, completed=done)

            return tell

        yield tell_of


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C raise at once: asyncio would wait for the next await, and a simulation has none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
