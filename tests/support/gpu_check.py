"""Prints which values this machine's NVIDIA driver gives, and why it does not give the others, for a person with a GPU:
`python -m tests.support.gpu_check`."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final, TextIO, TypeVar

import msgspec

from weft.domain.cluster import Gpu
from weft.gpus.inventory import INVENTORY_SECONDS_MAX, inventory
from weft.gpus.nvml import DRIVER, Nvml
from weft.gpus.source import DriverSource, Samples, SourceError
from weft.messages.signals import GpuSample
from weft.threads import aside

_IDENTITY: Final = frozenset({"index", "uuid", "model", "emulated", "problem", "provider", "driver"})
_EMPTY: Final[Sequence[Any]] = (None, (), {})
_READINGS: Final = 3  # the first has no rates
_CLOSE_ATTEMPTS: Final = 40
_CLOSE_SECONDS: Final = 0.05

T = TypeVar("T")


def main(
    arguments: Sequence[str],
    *,
    nvml: Nvml = DRIVER,
    out: TextIO = sys.stdout,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Exit status 0: done; 1: no GPU here, or its driver does not open, or does not answer."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.gpu_check", description=__doc__)
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two readings")
    asked = parser.parse_args(arguments)
    try:
        return _checked(nvml, out, sleep=sleep, period=asked.period)
    except TimeoutError:
        out.write(f"the NVIDIA driver has not answered in {INVENTORY_SECONDS_MAX:g} s: look into dmesg\n")
        return 1


def _checked(nvml: Nvml, out: TextIO, *, sleep: Callable[[float], None], period: float) -> int:
    gpus = _in_time(lambda: inventory(nvml))
    if not gpus:
        out.write("no GPU: this machine has no NVIDIA driver, or the driver lists none\n")
        return 1
    source = DriverSource(gpus, nvml=nvml, clock=time.monotonic)
    try:
        _in_time(source.open)
    except SourceError as error:
        out.write(f"the NVIDIA driver does not open: {error}\n")
        return 1
    with ExitStack() as ends:
        ends.callback(_close, source, sleep)
        try:
            _check(source, gpus, out, sleep=sleep, period=period)
        except TimeoutError:
            ends.pop_all()  # a hung driver would not answer to `close` either
            raise
    return 0


def _close(source: DriverSource, sleep: Callable[[float], None]) -> None:
    for _ in range(_CLOSE_ATTEMPTS):
        if _in_time(source.close):
            return
        sleep(_CLOSE_SECONDS)


def _in_time(ask: Callable[[], T]) -> T:
    return aside(ask, name="gpu-check").result(INVENTORY_SECONDS_MAX)


def _check(
    source: DriverSource, gpus: tuple[Gpu, ...], out: TextIO, *, sleep: Callable[[float], None], period: float
) -> None:
    errors: dict[str, dict[str, str]] = {gpu.uuid: {} for gpu in gpus}
    samples: Samples = ()
    for reading in range(_READINGS):
        if reading:
            sleep(period)
        begun = time.monotonic()
        samples = _in_time(source.read)
        out.write(f"reading {reading + 1}: {(time.monotonic() - begun) * 1000:.1f} ms for {len(gpus)} GPUs\n")
        for uuid, said in source.errors().items():
            errors[uuid] |= said
    for sample in samples:
        out.write(f"\nGPU {sample.index}  {sample.model}  {sample.uuid}\n")
        out.write(f"provider {sample.provider}, driver {sample.driver or 'unknown'}\n")
        if sample.problem:
            out.write(f"problem: {sample.problem}\n")
        _print_fields(sample, out)
        out.writelines(f"  {function}: {words}\n" for function, words in sorted(errors[sample.uuid].items()))
    out.writelines(f"GPUs {one} and {other}: {level}\n" for (one, other), level in source.near.items())


def _print_fields(sample: GpuSample, out: TextIO) -> None:
    fields = [field for field in sample.__struct_fields__ if field not in _IDENTITY]
    given = [field for field in fields if getattr(sample, field) not in _EMPTY]
    for field in fields:
        value = msgspec.to_builtins(getattr(sample, field)) if field in given else "-"
        out.write(f"  {field:<26} {value}\n")
    out.write(f"{len(given)} of {len(fields)} values given ('-': not given, or nothing to report)\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
