"""Records what this machine's GPUs do, or tells what their driver gives: `python -m libs.gpus.record --help`."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar

import msgspec

from libs.domain.cluster import Gpu
from libs.gpus.beside import SilentError, in_time
from libs.gpus.inventory import INVENTORY_SECONDS_MAX, inventory
from libs.gpus.nvml import DRIVER, Nvml
from libs.gpus.recording import FORMAT, RecordedMoment, RecordingHeader, line
from libs.gpus.source import DriverSource, Samples, SourceError
from libs.messages.signals import GpuSample

_IDENTITY: Final = frozenset({"index", "uuid", "model", "emulated", "problem", "provider", "driver"})
_EMPTY: Final[Sequence[Any]] = (None, (), {})
_CHECK_READINGS: Final = 3  # the first has no rates
_CLOSE_ATTEMPTS: Final = 40
_CLOSE_SECONDS: Final = 0.05

T = TypeVar("T")


def main(
    arguments: Sequence[str],
    *,
    nvml: Nvml = DRIVER,
    out: TextIO = sys.stdout,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Exit status 0: done; 1: no GPU here, or its driver does not open, or does not answer."""
    parser = argparse.ArgumentParser(prog="python -m libs.gpus.record", description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, help="where the recording goes, as JSON lines")
    parser.add_argument("--seconds", type=_positive, default=60.0)
    parser.add_argument("--period", type=_positive, default=1.0, help="seconds between two samples")
    parser.add_argument("--check", action="store_true", help="print which values this machine's driver gives")
    asked = parser.parse_args(arguments)
    if not asked.check and asked.file is None:
        parser.error("a FILE to record into, or --check")
    try:
        return _told(asked, nvml=nvml, out=out, clock=clock, sleep=sleep)
    except SilentError:
        out.write(
            f"the NVIDIA driver has not answered in {INVENTORY_SECONDS_MAX:g} s: a GPU may have fallen off the bus;"
            " look into dmesg\n"
        )
        return 1


def _told(
    asked: argparse.Namespace, *, nvml: Nvml, out: TextIO, clock: Callable[[], float], sleep: Callable[[float], None]
) -> int:
    gpus = _in_time(lambda: inventory(emulated=0, node_id="", nvml=nvml))
    if not gpus:
        out.write("no GPU: this machine has no NVIDIA driver, or the driver lists none\n")
        return 1
    source = DriverSource(gpus, nvml=nvml, clock=clock)
    if failure := _in_time(lambda: _opened(source)):
        out.write(f"the NVIDIA driver does not open: {failure}\n")
        return 1
    with ExitStack() as ends:
        ends.callback(_close, source, sleep)
        try:
            if asked.check:
                _check(source, gpus, out, clock=clock, sleep=sleep, period=asked.period)
                return 0
            with asked.file.open("xb") as file:
                taken = _record(
                    source, gpus, file, clock=clock, sleep=sleep, seconds=asked.seconds, period=asked.period
                )
        except SilentError:
            ends.pop_all()  # a hung driver would not answer to `close` either
            raise
    out.write(f"{taken} samples of {len(gpus)} GPUs ({source.provider}) in {asked.file}\n")
    return 0


def _close(source: DriverSource, sleep: Callable[[float], None]) -> None:
    for _ in range(_CLOSE_ATTEMPTS):
        if _in_time(source.close):
            return
        sleep(_CLOSE_SECONDS)


def _opened(source: DriverSource) -> str:
    """Empty if the source is open, else the reason why not."""
    try:
        source.open()
    except SourceError as error:
        return str(error)
    return ""


def _in_time(ask: Callable[[], T]) -> T:
    return in_time(ask, seconds_max=INVENTORY_SECONDS_MAX, name="gpu-record")


def _positive(word: str) -> float:
    value = float(word)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{word} is not above 0")
    return value


def _record(
    source: DriverSource,
    gpus: tuple[Gpu, ...],
    file: Any,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    seconds: float,
    period: float,
) -> int:
    begun, taken = clock(), 0
    while True:
        at = clock() - begun
        samples = _in_time(source.read)
        if not taken:
            file.write(line(_header(source, gpus, samples, period)))
        file.write(line(RecordedMoment(at=at, samples=samples)))
        file.flush()  # so that the file has whole lines, whenever the recording is stopped
        taken += 1
        if taken * period >= seconds:
            return taken
        sleep(max(0.0, begun + taken * period - clock()))


def _header(source: DriverSource, gpus: tuple[Gpu, ...], samples: Samples, period: float) -> RecordingHeader:
    driver = next((sample.driver for sample in samples if sample.driver), "")
    near = tuple((*pair, share) for pair, share in source.near.items())
    return RecordingHeader(
        recording=FORMAT, provider=source.provider, driver=driver, period=period, gpus=gpus, near=near
    )


def _check(
    source: DriverSource,
    gpus: tuple[Gpu, ...],
    out: TextIO,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    period: float,
) -> None:
    errors: dict[str, dict[str, str]] = {gpu.uuid: {} for gpu in gpus}
    samples: Samples = ()
    for reading in range(_CHECK_READINGS):
        if reading:
            sleep(period)
        begun = clock()
        samples = _in_time(source.read)
        out.write(f"reading {reading + 1}: {(clock() - begun) * 1000:.1f} ms for {len(gpus)} GPUs\n")
        for uuid, said in source.errors().items():
            errors[uuid] |= said
    for sample in samples:
        out.write(f"\nGPU {sample.index}  {sample.model}  {sample.uuid}\n")
        out.write(f"provider {sample.provider}, driver {sample.driver or 'unknown'}\n")
        if sample.problem:
            out.write(f"problem: {sample.problem}\n")
        _tell_fields(sample, out)
        out.writelines(f"  {function}: {words}\n" for function, words in sorted(errors[sample.uuid].items()))
    out.writelines(f"GPUs {one} and {other}: {level}\n" for (one, other), level in source.near.items())


def _tell_fields(sample: GpuSample, out: TextIO) -> None:
    fields = [field for field in sample.__struct_fields__ if field not in _IDENTITY]
    given = [field for field in fields if getattr(sample, field) not in _EMPTY]
    for field in fields:
        value = msgspec.to_builtins(getattr(sample, field)) if field in given else "-"
        out.write(f"  {field:<26} {value}\n")
    out.write(f"{len(given)} of {len(fields)} values given ('-': not given, or nothing to tell)\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
