"""The check of the GPUs of a run before it starts, once a day: the program of `weft bench-gpu`, for a few seconds.

A GPU that fails shows a sign of sickness: the scheduler takes it out of use and starts the job elsewhere. A GPU that
could not be measured, for example without a driver, passes.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from weft.domain.cluster import Gpu
from weft.health.catalogue import PREFLIGHT
from weft.health.preflight import Speed, learnt, speed_of, why_failed
from weft.messages.nodes import GpuSigns, NodeSigns, StartRun
from weft.samples.benchmark_result import Measurement, measurement_of

logger = logging.getLogger(__name__)

DAY_SECONDS = 86400.0
SHOWN_SECONDS = 60.0  # the sign of a GPU that failed: the quarantine lasts on without it
SECONDS, EMULATED_SECONDS = 4.0, 0.4  # of steady computing
SECONDS_MAX = 60.0  # for the whole check of a GPU
GPUS_MAX, MODELS_MAX, BYTES_MAX, TEXT_MAX = 256, 16, 1 << 20, 200


class Checked(Struct, frozen=True):
    """The end of a check: a measurement, or why the GPU failed; neither if it could not be checked."""

    measured: Measurement | None = None
    failed: str = ""


class _Known(Struct):
    """Kept in a file. `passed`: when each GPU passed last, by its uuid; `speeds`: by model."""

    passed: dict[str, float] = {}
    speeds: dict[str, tuple[Speed, ...]] = {}


class Preflight:
    def __init__(
        self,
        path: Path,
        *,
        gpus: Callable[[], tuple[Gpu, ...]],
        slowdowns: str = "",
        now: Callable[[], float] = time.time,
        check: Callable[[Gpu, str], Awaitable[Checked]] | None = None,
    ) -> None:
        self._path, self._gpus, self._slowdowns, self._now = path, gpus, slowdowns, now
        self._check = check or check_gpu
        self._known = _read(path)
        self._failed: dict[str, tuple[float, str]] = {}  # by uuid: when, and why

    async def why_not(self, order: StartRun) -> str:
        """Check the GPUs of a run that were not checked today. Returns why it may not start there, or nothing."""
        gpus = [gpu for gpu in self._gpus() if gpu.index in order.gpus]
        due = [gpu for gpu in gpus if not self._passed(gpu) and gpu.uuid not in dict(self._failing())]
        if due:
            found = await asyncio.gather(*(self._check(gpu, self._slowdowns) for gpu in due))
            self._judge(list(zip(due, found, strict=True)))
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

    def _judge(self, checked: list[tuple[Gpu, Checked]]) -> None:
        now, known = self._now(), self._known
        for gpu, found in checked:
            why = found.failed
            if found.measured is not None:
                beside = [speed_of(other.measured) for one, other in checked if one is not gpu and other.measured]
                why = why_failed(found.measured, [*known.speeds.get(gpu.model, ()), *beside])
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
        _write(self._path, known)

    def _passed(self, gpu: Gpu) -> bool:
        at = self._known.passed.get(gpu.uuid)
        return at is not None and 0 <= self._now() - at < DAY_SECONDS

    def _failing(self) -> Iterator[tuple[str, str]]:
        return ((uuid, why) for uuid, (at, why) in self._failed.items() if self._now() - at < SHOWN_SECONDS)


async def check_gpu(gpu: Gpu, slowdowns: str) -> Checked:
    """Run the benchmark on one GPU, in a process of its own that a driver may keep for good."""
    seconds = EMULATED_SECONDS if gpu.emulated else SECONDS
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "weft.gpus.bench",
        "--seconds",
        f"{seconds:g}",
        env=_environment(gpu, slowdowns),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(SECONDS_MAX):
            said, _ = await process.communicate()
    except TimeoutError:
        return Checked(failed=f"the check did not end within {SECONDS_MAX:g} s")
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
    lines = said.decode(errors="replace").strip().splitlines() or [""]
    if process.returncode == 0:
        return Checked(measured=_measured(lines[-1]))
    if process.returncode == 1:
        return Checked(failed=lines[-1][:TEXT_MAX])
    logger.info("preflight: GPU %d is not checked: %s", gpu.index, lines[-1][:TEXT_MAX])
    return Checked()


def _environment(gpu: Gpu, slowdowns: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name != "WEFT_PROGRESS"}
    if gpu.emulated:
        given = {"WEFT_GPUS_EMULATED": "1", "WEFT_GPUS": str(gpu.index), "WEFT_EMULATED_SLOWDOWNS": slowdowns}
        return env | given
    return env | {"CUDA_VISIBLE_DEVICES": gpu.uuid}


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
