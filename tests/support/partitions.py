"""Servers and elastic jobs for tests of the partition planner."""

from collections.abc import Mapping
from random import Random

from weft.planning.partition import ElasticJob, Rules, Server
from weft.planning.shares import NOTHING, Amounts


def server(
    name: str,
    *,
    gpus: float = 0,
    cpus: float = 0,
    memory: float = 0,
    bins: tuple[tuple[float, int], ...] = (),
    model: str = "",
) -> Server:
    return Server(id=name, amounts=(float(gpus), float(cpus), float(memory)), bins=bins, model=model)


def elastic_job(
    name: str,
    each: Amounts,
    least: int,
    most: int,
    *,
    on: Mapping[str, int] | None = None,
    exponent: float = 1.0,
    weight: float = 1.0,
    fixed: bool = False,
    beside: Amounts = NOTHING,
    restart_s: float = 0.0,
    waited_s: float = 0.0,
) -> ElasticJob:
    """Its speed is its size to the power of `exponent`."""
    return ElasticJob(
        job_id=name,
        each=each,
        least=least,
        most=most,
        speeds={"": tuple(float(size) ** exponent for size in range(least, most + 1))},
        now=sum((on or {}).values()),
        on=on or {},
        weight=weight,
        fixed=fixed,
        beside=beside,
        restart_s=restart_s,
        waited_s=waited_s,
    )


def instance(
    dice: Random, *, servers: tuple[int, int], jobs: tuple[int, int], gpus: bool = True, starving: bool = True
) -> tuple[list[ElasticJob], list[Server], Rules]:
    """Servers of a few kinds, jobs that run where there was room and jobs that wait."""
    there = [_server(f"s{j}", dice, gpus=gpus) for j in range(dice.randint(*servers))]
    free = {it.id: list(it.amounts) for it in there}
    return (
        [_job(f"j{i}", free, dice, gpus=gpus, starving=starving) for i in range(dice.randint(*jobs))],
        there,
        Rules(theta1=dice.choice((0.05, 0.1, 0.2, 0.5)), theta2=dice.choice((0.1, 0.2, 0.5, 1.0))),
    )


def _server(name: str, dice: Random, *, gpus: bool) -> Server:
    fast, slow = (dice.choice((0, 2, 4)), dice.choice((0, 0, 2, 4))) if gpus else (0, 0)
    return server(
        name,
        gpus=fast + slow,
        cpus=dice.choice((4, 8, 16)),
        memory=dice.choice((16, 32, 64)),
        bins=tuple((score, number) for score, number in ((1.0, fast), (1.3, slow)) if number),
    )


def _job(name: str, free: dict[str, list[float]], dice: Random, *, gpus: bool, starving: bool) -> ElasticJob:
    each = (float(gpus and dice.choice((0, 1, 2))), float(dice.choice((1, 2, 3))), float(dice.choice((1, 2, 8))))
    least = dice.choice((1, 1, 2, 3))
    most = least + dice.choice((0, 1, 4, 20))
    on = {} if dice.random() < 0.4 else held(each, least, most, free, dice)
    return elastic_job(
        name,
        each,
        least,
        most,
        on=on,
        exponent=dice.choice((0.5, 0.85, 1.0)),
        weight=dice.choice((1.0, 1.0, 2.0)),
        fixed=bool(on) and dice.random() < 0.2,
        beside=(0.0, 1.0, 1.0) if not on and dice.random() < 0.1 else NOTHING,
        restart_s=dice.choice((0.0, 30.0, 120.0)),
        waited_s=0.0 if on or not starving else dice.choice((0.0, 10.0, 60.0, 600.0)),
    )


def held(each: Amounts, least: int, most: int, free: dict[str, list[float]], dice: Random) -> dict[str, int]:
    """On some servers where there is room, which is taken from `free`; nowhere if there is none for `least`."""
    after, on = {name: list(amounts) for name, amounts in free.items()}, dict[str, int]()
    for _ in range(dice.randint(least, most)):
        fits = [name for name, there in after.items() if all(a >= e for a, e in zip(there, each, strict=True))]
        if not fits:
            break
        name = dice.choice(fits)
        after[name] = [a - e for a, e in zip(after[name], each, strict=True)]
        on[name] = on.get(name, 0) + 1
    if sum(on.values()) < least:
        return {}
    free.update(after)
    return on
