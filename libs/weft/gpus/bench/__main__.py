"""`python -m weft.gpus.bench`: measures the one GPU that this process was given, and tells it as progress.

Which GPU that is, and whether it is emulated, the environment of the run says. Exit status: 0; 1 if the GPU failed; 3
if it could not be measured, which says nothing of it. The last line has the reason.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Mapping

from weft.emulation.slowdowns import slowdown_here
from weft.emulation.standin import CpuStandIn
from weft.gpus.bench.cuda import cuda_bench
from weft.gpus.bench.driver import CudaError, NotMeasuredError
from weft.gpus.bench.kernels import ComputeWork, MemoryWork
from weft.gpus.bench.protocol import Durations, measure
from weft.gpus.bench.watch import NvmlWatch, Unwatched
from weft.gpus.nvml import MIG_PREFIX
from weft.samples.benchmark_job import SECONDS
from weft.samples.benchmark_result import Measurement, progress_line

NOT_MEASURED = 3
PROGRESS_VARIABLE, EMULATED_VARIABLE = "WEFT_PROGRESS", "WEFT_GPUS_EMULATED"


def main() -> int:
    args = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    durations = Durations.of(args.seconds)
    compute = ComputeWork(launches=args.launches, blocks=args.blocks, rounds=args.rounds)
    memory = MemoryWork(passes=args.passes, array_bytes=args.array_mib << 20)
    try:
        if os.environ.get(EMULATED_VARIABLE):
            measurement = _emulated(durations, os.environ)
        else:
            measurement = _real(durations, compute, memory, visible=os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    except CudaError as error:
        logging.error("%s", error)
        return NOT_MEASURED if isinstance(error, NotMeasuredError) else 1
    line = progress_line(measurement)
    logging.info("%s", line.strip())
    if path := os.environ.get(PROGRESS_VARIABLE):
        with open(path, "a") as file:
            file.write(line)
    return 0


def _emulated(durations: Durations, environ: Mapping[str, str]) -> Measurement:
    logging.info("an emulated GPU, no hardware: %g s of a stand-in on the CPU", durations.total)
    bench = CpuStandIn(lambda: slowdown_here(environ))
    return measure(bench, Unwatched(), durations, clock=time.monotonic)


def _real(durations: Durations, compute: ComputeWork, memory: MemoryWork, *, visible: str) -> Measurement:
    with cuda_bench(visible=visible, compute=compute, memory=memory) as bench:
        gpu = bench.gpu
        logging.info("%s (%s, compute capability %s): %g s", gpu.name, gpu.uuid, gpu.capability, durations.total)
        # NVML knows a MIG instance by the uuid that the node gave to the run, and not by that of the whole GPU.
        watched = visible if visible.startswith(MIG_PREFIX) else gpu.uuid
        measurement = measure(bench, NvmlWatch(watched), durations, clock=time.monotonic)
        bench.check()
        terabytes = memory.moved_bytes / measurement.memory_s / 1e12
        teraflops = compute.operations / measurement.compute_s / 1e12
        logging.info("float32: %.2f TFLOP/s; memory: %.3f TB/s", teraflops, terabytes)
        return measurement


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m weft.gpus.bench", description=__doc__)
    parser.add_argument(
        "--seconds", type=_seconds, default=SECONDS, help="seconds of steady computing; half of it before, to warm up"
    )
    work = parser.add_argument_group("the fixed amount of work", "other amounts cannot be compared with these")
    work.add_argument("--blocks", type=_count, default=ComputeWork().blocks)
    work.add_argument("--rounds", type=_count, default=ComputeWork().rounds)
    work.add_argument("--launches", type=_count, default=ComputeWork().launches)
    work.add_argument("--passes", type=_count, default=MemoryWork().passes)
    work.add_argument("--array-mib", type=_count, default=MemoryWork().array_bytes >> 20)
    return parser


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds <= 3600:
        raise argparse.ArgumentTypeError(f"expected up to 3600 seconds, got {text}")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {text}")
    return count


if __name__ == "__main__":
    sys.exit(main())
