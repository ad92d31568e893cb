"""Which jobs are wanted when, and what else is asked meanwhile. Pure: a seed gives the same wishes."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from tests.chaos.engine import IMAGE
from tests.support.builders import spec
from weft.domain.spec import JobSpec, ResizeHow

PROGRAM = Path(__file__).with_name("program.py")
PYTHON = str(Path(sys.executable).resolve())
CAME = (  # in the trace as soon as there is a process: Python takes seconds to begin where many do at once
    'read -r at rest </proc/uptime; echo "came $at $WEFT_JOB_ID $WEFT_EPOCH $WEFT_RANK" '
    '>>"$CHAOS_FOLDER/traces/$CHAOS_KEY"; exec "$@"'
)
COMMAND = ("/bin/sh", "-c", CAME, "sh", PYTHON, "-I", "-S", str(PROGRAM))
SECONDS_BETWEEN = 1.2
ASKS_BETWEEN = 1.5
LASTING_BETWEEN = 1.2  # so few that there is room for those that move
OFTEN = ("scale", "cancel", "requeue", "submit again")
ASKS = (*OFTEN, *OFTEN, "scale", "scale", "prioritise", "drain")


class Wish(Struct, frozen=True, kw_only=True):
    """One job, wanted `at` so many seconds after the beginning."""

    key: str
    at: float
    kind: str
    ranks: int
    spec: JobSpec
    steps: int = 0  # that it is to do; 0: it does not work by steps
    sizes: tuple[tuple[float, int], ...] = ()  # how many ranks it is asked to have, so long after it was acknowledged
    updates: tuple[tuple[float, bool], ...] = ()  # when it is updated, and whether that hangs: never becomes ready
    cancelled_after: float | None = None

    @property
    def core(self) -> int | None:
        """How many ranks, the first ones, it never runs without; None: all that it has."""
        live = self.spec.resize.how is ResizeHow.LIVE
        return self.spec.roles["worker"].replicas.least if live else None


class Asking(Struct, frozen=True):
    """Something is asked `at` that time: of one of the jobs submitted by then, or of a node; `luck` says of which."""

    at: float
    what: str
    luck: float


def wishes(
    seed: int, seconds: float, *, folder: Path, run: str, lasting: bool = False, engine_pool: str = ""
) -> list[Wish]:
    """`lasting`: only jobs that are still there when a lease is over. With an `engine_pool` some are containers."""
    kinds, between = ([(1, _lasting)], LASTING_BETWEEN) if lasting else (KINDS, SECONDS_BETWEEN)
    drawn = random.Random(f"wishes {seed}")
    if engine_pool and not lasting:
        kinds = [*kinds, (3, _contained)]
    made: list[Wish] = []
    at = 0.0
    while (at := at + drawn.expovariate(1 / between)) < seconds:
        make = drawn.choices([make for _, make in kinds], [weight for weight, _ in kinds])[0]
        made.append(_wish(make, drawn, number=len(made), at=at, folder=folder, run=run, engine_pool=engine_pool))
    return made


def askings(seed: int, seconds: float) -> list[Asking]:
    drawn = random.Random(f"askings {seed}")
    made = []
    at = 2.0
    while (at := at + drawn.expovariate(1 / ASKS_BETWEEN)) < seconds:
        made.append(Asking(at, drawn.choice(ASKS), drawn.random()))
    return made


def _wish(
    make: Callable[[random.Random], dict[str, Any]],
    drawn: random.Random,
    *,
    number: int,
    at: float,
    folder: Path,
    run: str,
    engine_pool: str,
) -> Wish:
    kind = make.__name__.strip("_")
    key = f"{run}-{number:04d}-{kind}"
    wanted = make(drawn)
    if make is _contained:
        inside = {"source": str(folder), "target": str(folder)}
        wanted |= {"pool": engine_pool, "volumes": [inside], "command": ["sh", f"{folder}/contained.sh"]}
    env = {"CHAOS_FOLDER": str(folder), "CHAOS_KEY": key, "CHAOS_RUN": run}
    does = wanted.pop("does")
    env |= {f"CHAOS_{name.upper()}": str(value) for name, value in does.items()}
    ranks, sizes = wanted.pop("ranks", 1), wanted.pop("sizes", ())
    made = spec(
        key,
        gpus=wanted.pop("gpus", 1),
        replicas=ranks,
        command=wanted.pop("command", COMMAND),
        env=env,
        role={"cpus": 0.5, "memory": "128MiB", **wanted.pop("role", {})},
        priority=drawn.choice((0, 0, 0, 5, 10)),
        **{"grace": "1s", **wanted},
    )
    return Wish(key=key, at=at, kind=kind, ranks=ranks, spec=made, steps=does.get("steps", 0), sizes=sizes)


def _short(drawn: random.Random) -> dict[str, Any]:
    return {"does": {"seconds": drawn.uniform(0.3, 3)}}


def _unaccelerated(drawn: random.Random) -> dict[str, Any]:
    return {"gpus": 0, "does": {"seconds": drawn.uniform(0.5, 4)}}


def _gang(drawn: random.Random) -> dict[str, Any]:
    return {"ranks": drawn.randint(2, 4), "gpus": drawn.randint(1, 2), "does": {"seconds": drawn.uniform(1, 6)}}


def _marathon(drawn: random.Random) -> dict[str, Any]:
    return {"ranks": 2, "gpus": 2, "does": {"seconds": drawn.uniform(8, 15)}}


def _lasting(drawn: random.Random) -> dict[str, Any]:
    return {"does": {"seconds": drawn.uniform(18, 22)}}


def _long(drawn: random.Random) -> dict[str, Any]:
    return {"gpus": drawn.randint(1, 2), "does": {"seconds": drawn.uniform(6, 15)}}


def _stubborn(drawn: random.Random) -> dict[str, Any]:
    return {"does": {"seconds": drawn.uniform(3, 12), "stubborn": 1}}


def _polite(drawn: random.Random) -> dict[str, Any]:
    """It saves when it is told to stop, and exits 0: which is no end."""
    return {"ranks": drawn.randint(1, 2), "does": {"seconds": drawn.uniform(4, 12), "polite": 1}}


def _flaky(drawn: random.Random) -> dict[str, Any]:
    does = {"seconds": drawn.uniform(0.3, 2), "well_from": drawn.randint(1, 2)}
    return {"retries": {"max": 3, "backoff": "1s", "backoff_max": "2s"}, "does": does}


def _doomed(drawn: random.Random) -> dict[str, Any]:
    return {"retries": {"max": 1, "backoff": "1s"}, "does": {"seconds": drawn.uniform(0.3, 1), "status": 3}}


def _chatty(drawn: random.Random) -> dict[str, Any]:
    return {"gpus": 0, "does": {"seconds": drawn.uniform(2, 8), "lines": 100}}


def _live(drawn: random.Random) -> dict[str, Any]:
    """Ranks join it and leave it while it works."""
    return {**_sized(drawn), "resize": {"how": "live", "signal": drawn.choice((None, "SIGUSR1"))}}


def _restarting(drawn: random.Random) -> dict[str, Any]:
    """It writes a checkpoint when it is told to stop, and goes on from there with another size."""
    return {**_sized(drawn), "checkpoints": {"on_stop": True}}


def _sized(drawn: random.Random) -> dict[str, Any]:
    least = drawn.randint(1, 2)
    want = least + drawn.randint(0, 1)
    most = want + drawn.randint(1, 2)
    return {
        "ranks": want,
        "role": {"replicas": {"min": least, "want": want, "max": most}},
        "gpus": drawn.choice((0, 1, 1)),
        "sizes": tuple((drawn.uniform(1, 15), drawn.randint(least, most)) for _ in range(drawn.randint(1, 5))),
        "does": {"steps": drawn.randint(200, 900)},
    }


def _sharing(drawn: random.Random) -> dict[str, Any]:
    """It has a part of a GPU, beside others."""
    request, memory = drawn.choice((0.1, 0.3, 0.5, 0.7)), drawn.choice(("1GiB", "4GiB", "8GiB"))
    share = {"request": request, "limit": drawn.choice((request, 1.0)), "memory": memory}
    return {"gpus": 0, "ranks": drawn.randint(1, 3), "role": {"share": share}, "does": {"seconds": drawn.uniform(1, 8)}}


def _contained(drawn: random.Random) -> dict[str, Any]:
    return {"image": IMAGE, "grace": "2s", "does": {"beats": drawn.randint(5, 80)}}


KINDS: list[tuple[int, Callable[[random.Random], dict[str, Any]]]] = [
    (8, _short),
    (3, _unaccelerated),
    (5, _gang),
    (1, _marathon),
    (2, _long),
    (2, _stubborn),
    (3, _polite),
    (2, _flaky),
    (1, _doomed),
    (2, _chatty),
    (6, _live),
    (4, _restarting),
    (6, _sharing),
]
