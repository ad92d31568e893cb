"""The check of the GPUs of a run before it starts, once a day: the program of `weft bench-gpu`, for a few seconds on
all GPUs at once; then copies from and to the host, GPU by GPU, and an all-reduce between the GPUs.

A GPU that fails shows a sign of sickness: the scheduler takes it out of use and starts the job elsewhere. A GPU that
could not be measured, for example without a driver, passes.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from weft.domain.cluster import Gpu
from weft.health.catalogue import PREFLIGHT
from weft.health.preflight import KEPT, Speed, learnt, speed_in_fleet, speed_of, why_failed, why_slow
from weft.messages.nodes import GpuSigns, NodeSigns, StartRun
from weft.messages.signals import ModelSpeed, SpeedsMeasured
from weft.samples.benchmark_result import LinksMeasured, Measurement, measurement_of

logger = logging.getLogger(__name__)

DAY_SECONDS = 86400.0
SHOWN_SECONDS = 60.0  # the sign of a GPU that failed: the quarantine lasts on without it
SECONDS, EMULATED_SECONDS = 4.0, 0.4  # of steady computing
SECONDS_MAX, LINKS_SECONDS_MAX = 40.0, 20.0  # for the check of each GPU, and for that of their links
GPUS_MAX, MODELS_MAX, BYTES_MAX, TEXT_MAX = 256, 16, 1 << 20, 200
FLEET_MAX = 64  # models
FAILED, NOT_MEASURED, HANGS = 1, 3, -1  # exit statuses of the benchmark; the last: it did not end


class Checked(Struct, frozen=True):
    """The end of a check: a measurement, or why the GPU failed; neither if it could not be checked."""

    measured: Measurement | None = None
    failed: str = ""


class LinksChecked(Struct, frozen=True):
    """The end of a check of the links of several GPUs, as `Checked`."""

    measured: LinksMeasured | None = None
    failed: str = ""


class _Known(Struct):
    """Kept in a file. `passed`: when each GPU passed last, by its uuid; `speeds`: by model; `all_reduces`: the seconds
    of those that passed, by the number of GPUs and their models; `fleet`: what the last message said of all nodes."""

    passed: dict[str, float] = {}
    speeds: dict[str, tuple[Speed, ...]] = {}
    all_reduces: dict[str, tuple[float, ...]] = {}
    fleet: tuple[ModelSpeed, ...] = ()


class Preflight:
    def __init__(
        self,
        path: Path,
        *,
        gpus: Callable[[], tuple[Gpu, ...]],
        slowdowns: str = "",
        now: Callable[[], float] = time.time,
        check: Callable[[Gpu, str], Awaitable[Checked]] | None = None,
        check_links: Callable[[Sequence[Gpu], str], Awaitable[LinksChecked]] | None = None,
    ) -> None:
        self._path, self._gpus, self._slowdowns, self._now = path, gpus, slowdowns, now
        self._check, self._check_links = check or check_gpu, check_links or links_of
        self._known = _read(path)
        self._failed: dict[str, tuple[float, str]] = {}  # by uuid: when, and why

    async def heard(self, told: SpeedsMeasured) -> None:
        """Take in how fast GPUs are in the fleet."""
        if told.models != self._known.fleet:
            self._known.fleet = told.models[:FLEET_MAX]
            _write(self._path, self._known)

    async def why_not(self, order: StartRun) -> str:
        """Check the GPUs of a run that were not checked today. Returns why it may not start there, or nothing."""
        gpus = [gpu for gpu in self._gpus() if gpu.index in order.gpus]
        due = [gpu for gpu in gpus if not self._passed(gpu) and gpu.uuid not in dict(self._failing())]
        if due:
            found = await asyncio.gather(*(self._check(gpu, self._slowdowns) for gpu in due))
            checked = list(zip(due, found, strict=True))
            sound = [gpu for gpu, each in checked if each.measured is not None]
            links = await self._check_links(sound, self._slowdowns) if sound else LinksChecked()
            self._judge([(gpu, _with_links(gpu, each, links)) for gpu, each in checked], links)
        failing = dict(self._failing())
        return "; ".join(f"GPU {gpu.index}: {failing[gpu.uuid]}" for gpu in gpus if gpu.uuid in failing)

    def with_failed(self, signs: NodeSigns | None) -> NodeSigns | None:
        """The signs of the node with those of the GPUs that failed."""
        failing = dict(self._failing())
        if signs is None or not failing:
            return signs
        found = {each.index: each for each in signs.gpus}
        for gpu in self._gpus():
            if gpu.uuid in failing:
                each = found.get(gpu.index) or GpuSigns(index=gpu.index)
                detail = each.detail or failing[gpu.uuid]
                found[gpu.index] = structs.replace(each, levels={**each.levels, PREFLIGHT: 1.0}, detail=detail)
        return structs.replace(signs, gpus=tuple(found[index] for index in sorted(found)))

    def _judge(self, checked: list[tuple[Gpu, Checked]], links: LinksChecked) -> None:
        now, known = self._now(), self._known
        together = [gpu for gpu, found in checked if found.measured is not None]
        slow = self._why_slow_together(together, links)
        for gpu, found in checked:
            why = found.failed
            if found.measured is not None:
                beside = [speed_of(other.measured) for one, other in checked if one is not gpu and other.measured]
                fleet = speed_in_fleet(known.fleet, model=gpu.model, emulated=gpu.emulated)
                why = why_failed(found.measured, [*known.speeds.get(gpu.model, ()), *beside], fleet) or slow
            if why:
                logger.warning("preflight: GPU %d failed: %s", gpu.index, why)
                self._failed[gpu.uuid] = now, why
                known.passed.pop(gpu.uuid, None)
            else:
                known.passed[gpu.uuid] = now
        for gpu, found in checked:
            if found.measured is not None and gpu.uuid in known.passed:
                known.speeds[gpu.model] = learnt(known.speeds.get(gpu.model, ()), found.measured)
        known.passed = dict(sorted(known.passed.items(), key=lambda each: each[1])[-GPUS_MAX:])
        known.speeds = dict(list(known.speeds.items())[-MODELS_MAX:])
        known.all_reduces = dict(list(known.all_reduces.items())[-MODELS_MAX:])
        _write(self._path, known)

    def _why_slow_together(self, gpus: Sequence[Gpu], links: LinksChecked) -> str:
        """Why the all-reduce between the GPUs took too long. Only the node's own are compared: those of other nodes
        have other links."""
        took = None if links.measured is None else links.measured.all_reduce_s
        if took is None:
            return ""
        name = f"{len(gpus)} {', '.join(sorted({gpu.model for gpu in gpus}))}"
        before = self._known.all_reduces.get(name, ())
        why = why_slow(took, before, f"an all-reduce of {len(gpus)} GPUs takes", "before on this node")
        if not why:
            self._known.all_reduces[name] = (*before, took)[-KEPT:]
        return why

    def _passed(self, gpu: Gpu) -> bool:
        at = self._known.passed.get(gpu.uuid)
        return at is not None and 0 <= self._now() - at < DAY_SECONDS

    def _failing(self) -> Iterator[tuple[str, str]]:
        return ((uuid, why) for uuid, (at, why) in self._failed.items() if self._now() - at < SHOWN_SECONDS)


def _with_links(gpu: Gpu, checked: Checked, links: LinksChecked) -> Checked:
    """The check of a GPU with its copies as they were measured one GPU after the other."""
    if checked.measured is None:
        return checked
    if links.failed:
        return Checked(failed=links.failed)
    copies = {} if links.measured is None else links.measured.copies
    copy_in, copy_out = copies.get(str(gpu.index) if gpu.emulated else gpu.uuid, (None, None))
    return Checked(measured=structs.replace(checked.measured, copy_in_s=copy_in, copy_out_s=copy_out))


async def check_gpu(gpu: Gpu, slowdowns: str) -> Checked:
    """Run the benchmark on one GPU."""
    seconds = EMULATED_SECONDS if gpu.emulated else SECONDS
    status, said = await _run(["--seconds", f"{seconds:g}"], _environment([gpu], slowdowns), SECONDS_MAX)
    if status == 0:
        return Checked(measured=_measured(said))
    if status != NOT_MEASURED:
        return Checked(failed=said)
    logger.info("preflight: GPU %d is not checked: %s", gpu.index, said)
    return Checked()


async def links_of(gpus: Sequence[Gpu], slowdowns: str) -> LinksChecked:
    """Measure the links of these GPUs."""
    status, said = await _run(["--links"], _environment(gpus, slowdowns), LINKS_SECONDS_MAX)
    if status == 0:
        with suppress(msgspec.DecodeError):
            return LinksChecked(measured=msgspec.json.decode(said, type=LinksMeasured))
    elif status != NOT_MEASURED:
        return LinksChecked(failed=said)
    logger.info("preflight: links are not checked: %s", said)
    return LinksChecked()


async def _run(arguments: Sequence[str], env: Mapping[str, str], seconds_max: float) -> tuple[int, str]:
    """The exit status and the last line of the benchmark, in a process of its own that a driver may keep for good."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "weft.gpus.bench",
        *arguments,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(seconds_max):
            said, _ = await process.communicate()
    except TimeoutError:
        return HANGS, f"the check did not end within {seconds_max:g} s"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
    lines = said.decode(errors="replace").strip().splitlines() or [""]
    status = FAILED if process.returncode is None else process.returncode
    return (status, lines[-1]) if status == 0 else (FAILED if status == FAILED else NOT_MEASURED, lines[-1][:TEXT_MAX])


def _environment(gpus: Sequence[Gpu], slowdowns: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != "WEFT_PROGRESS"}
    if gpus[0].emulated:
        indexes = ",".join(str(gpu.index) for gpu in gpus)
        return env | {"WEFT_GPUS_EMULATED": "1", "WEFT_GPUS": indexes, "WEFT_EMULATED_SLOWDOWNS": slowdowns}
    return env | {"CUDA_VISIBLE_DEVICES": ",".join(gpu.uuid for gpu in gpus)}


def _measured(line: str) -> Measurement | None:
    told: Mapping[str, float] = {}
    with suppress(ValueError):
        told = {name: float(value) for name, _, value in (each.partition("=") for each in line.split())}
    return measurement_of(told)


def _read(path: Path) -> _Known:
    """The contents of the file; empty if there is no file, or if the file has something else."""
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(BYTES_MAX), type=_Known)
    except (OSError, msgspec.DecodeError):
        return _Known()


def _write(path: Path, known: _Known) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_bytes(msgspec.json.encode(known))
        unfinished.replace(path)
    except OSError as error:
        logger.warning("preflight: %s is not kept: %s", path, error)
