"""Rest, attack, rest, attack, ...: what the quiet tenant saw of each, as a table and as one line of JSON."""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from tests.bench.fairness.aims import KINDS, WELL_AFTER_SECONDS_MAX, Attack, Window, aims, p99, rest_of
from tests.bench.fairness.ground import Ground, ground
from tests.bench.fairness.hostile import ATTACKS, Target
from tests.bench.figures import Aim, line_of

ENDED_SECONDS_MAX = 30.0  # it has the lowest priority of all, on a machine that is busy
WELL_SECONDS_MAX = 5.0  # a submission and the start of its job, on a cluster that is well again


class Size(Struct, frozen=True, kw_only=True):
    """How long, and how much of each."""

    attack_seconds: float
    rest_seconds: float
    fill_seconds_max: float
    recovered_seconds_max: float
    past_events: int
    specifications: int
    jobs: int
    connections: int


FULL = Size(
    attack_seconds=30.0,
    rest_seconds=15.0,
    fill_seconds_max=150.0,
    recovered_seconds_max=60.0,
    past_events=2_000_000,
    specifications=600,
    jobs=20_000,
    connections=4_200,
)
QUICK = Size(
    attack_seconds=7.0,
    rest_seconds=3.5,
    fill_seconds_max=15.0,
    recovered_seconds_max=20.0,
    past_events=100_000,
    specifications=120,
    jobs=2_000,
    connections=4_200,
)


class Asked(Struct, frozen=True, kw_only=True):
    seed: int
    quick: bool
    only: tuple[str, ...]

    @property
    def size(self) -> Size:
        return QUICK if self.quick else FULL


def main(arguments: Sequence[str]) -> int:
    asked = _asked(arguments)
    began = time.monotonic()
    attacks = asyncio.run(_measure(asked))
    found = aims(attacks, recovered_seconds_max=asked.size.recovered_seconds_max)
    _show(attacks, found)
    print(
        f"{time.monotonic() - began:.0f} s; {sum(not aim.met for aim in found.values())} of {len(found)} aims not met"
    )
    print(line_of(found, seed=asked.seed))
    return 0


def _asked(arguments: Sequence[str]) -> Asked:
    parser = argparse.ArgumentParser(prog="python -m tests.bench fairness", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="about three minutes instead of about twenty")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", default=",".join(ATTACKS), help=f"some of {', '.join(ATTACKS)}")
    found = parser.parse_args(arguments)
    only = tuple(found.only.split(","))
    if unknown := set(only) - ATTACKS.keys():
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    return Asked(seed=found.seed, quick=found.quick, only=only)


async def _measure(asked: Asked) -> list[Attack]:
    """A cluster that an attack left unwell is given up, and the next attack finds a new one."""
    left = [name for name in ATTACKS if name in asked.only]
    done: list[Attack] = []
    while left:
        async with _fresh(asked.size) as made:
            before = await made.quiet.window(asked.size.rest_seconds)
            while left:
                name = left.pop(0)
                done.append(await _attack(asked, made, name, before))
                _tell(done[-1])
                if done[-1].after is None:
                    break
                before = done[-1].after
    return done


@asynccontextmanager
async def _fresh(size: Size) -> AsyncIterator[Ground]:
    async with AsyncExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="weft-bench-"))
        made = await stack.enter_async_context(ground(Path(home), past_events=size.past_events))
        await made.quiet.warm()
        yield made


async def _attack(asked: Asked, made: Ground, name: str, before: Window) -> Attack:
    size = asked.size
    made.processes.begin()
    stop = asyncio.Event()
    watching = asyncio.create_task(made.quiet.window(size.fill_seconds_max + size.attack_seconds, stop))
    target = Target(
        attack=name,
        url=made.url,
        token=made.hostile_token,
        seed=asked.seed,
        seconds_max=size.fill_seconds_max + size.attack_seconds,
        specifications=size.specifications,
        jobs=size.jobs,
        connections=size.connections,
    )
    answers, filled = await _hostile(target, size, made)
    stop.set()
    during = await watching
    began = time.monotonic()
    memory = made.processes.memory(filled)
    restarts = dict(made.processes.restarts)
    well_seconds = await _well_again(made)
    recovered = await made.cancel_all(size.recovered_seconds_max) and await _well(made)
    seconds = time.monotonic() - began
    after = await made.quiet.window(size.rest_seconds) if recovered else None
    return Attack(
        name=name,
        before=before,
        during=during,
        after=after,
        memory=memory,
        restarts=restarts,
        well_seconds=well_seconds,
        recovered_seconds=seconds,
        recovered=recovered,
        answers=answers,
    )


async def _hostile(target: Target, size: Size, made: Ground) -> tuple[dict[str, int], int]:
    """What the hostile tenant was answered, and how many looks at the memory there were before it had filled up what
    it could."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.fairness"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(msgspec.json.encode(target) + b"\n")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(size.fill_seconds_max):
                await process.stdout.readline()
        filled = made.processes.looks
        await asyncio.sleep(size.attack_seconds)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(ENDED_SECONDS_MAX):
            said = (await process.stdout.read()).splitlines()
            await process.wait()
        return Counter(msgspec.json.decode(said[-1])), filled
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def _well_again(made: Ground) -> float:
    """The seconds until the quiet tenant is served as on a cluster at rest, or twice those that are allowed."""
    began = time.monotonic()
    while (looked := time.monotonic() - began) < 2 * WELL_AFTER_SECONDS_MAX:
        if await _well(made):
            return looked
    return looked


async def _well(made: Ground) -> bool:
    """Whether the quiet tenant is served within seconds, without a failure."""
    window = await made.quiet.window(1.0)
    return not window.failures and max(window.seconds.get("start", [WELL_SECONDS_MAX])) < WELL_SECONDS_MAX


def _tell(attack: Attack) -> None:
    kinds = "; ".join(
        f"{kind} {p99(rest_of(attack), kind) * 1000:.0f} → {p99([attack.during], kind) * 1000:.0f} ms" for kind in KINDS
    )
    failed = f"; failed: {dict(attack.during.failed)}" if attack.during.failures else ""
    well = f"well again after {attack.recovered_seconds:.1f} s" if attack.recovered else "NOT well again"
    print(f"{attack.name}: {kinds}{failed}; answers {dict(attack.answers)}; {well}", flush=True)


def _show(attacks: Sequence[Attack], found: dict[str, Aim]) -> None:
    table = Table(title="p99 in ms: at rest → under attack (aim)", title_justify="left")
    for column in ("attack", *KINDS, "failed", "well again (s)"):
        table.add_column(column, overflow="fold")
    for attack in attacks:
        cells = []
        for kind in KINDS:
            aim = found[f"{attack.name}.{kind}_p99_ms"]
            rest = p99(rest_of(attack), kind) * 1000
            cells.append(f"{rest:.0f} → {aim.value:.0f} ({aim.aim:.0f}){'' if aim.met else ' NOT MET'}")
        recovered = f"{attack.recovered_seconds:.1f}" if attack.recovered else "never"
        table.add_row(attack.name, *cells, str(attack.during.failures), recovered)
    console = Console(width=150)
    console.print(table)
    memory = "; ".join(
        f"{name.removeprefix('memory.').removesuffix('_mib')} {aim.value:g}{'' if aim.met else ' NOT MET'}"
        for name, aim in found.items()
        if name.startswith("memory.")
    )
    console.print(f"MiB at most, and growth within an attack: {memory}")
