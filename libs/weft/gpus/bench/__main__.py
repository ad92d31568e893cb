"""`python -m weft.gpus.bench`: measures the one GPU that this process was given, and tells it as progress. With
`--links` it measures the links of all GPUs that it was given, and its last line is the result in JSON.

Which GPU that is, and whether it is emulated, the environment of the run says. Exit status: 0; 1 if the GPU failed; 3
if it could not be measured, which says nothing of it. The last line has the reason.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Mapping
from functools import partial

import msgspec

from weft.emulation.slowdowns import GPUS_VARIABLE, slowdown_here
from weft.emulation.standin import CpuStandIn
from weft.gpus.bench.cuda import cuda_bench
from weft.gpus.bench.driver import CudaError, NotMeasuredError
from weft.gpus.bench.kernels import ComputeWork, LinkWork, MemoryWork
from weft.gpus.bench.links import measured_links
from weft.gpus.bench.protocol import Durations, copied, measure
from weft.gpus.bench.watch import NvmlWatch, Unwatched
from weft.gpus.nvml import MIG_PREFIX
from weft.samples.benchmark_job import SECONDS
from weft.samples.benchmark_result import LinksMeasured, Measurement, progress_line

NOT_MEASURED = 3
PROGRESS_VARIABLE, EMULATED_VARIABLE = "WEFT_PROGRESS", "WEFT_GPUS_EMULATED"


def main() -> int:
    args = _parser().parse_args()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    durations = Durations.of(args.seconds)
    compute = ComputeWork(launches=args.launches, blocks=args.blocks, rounds=args.rounds)
    memory = MemoryWork(passes=args.passes, array_bytes=args.array_mib << 20)
    try:
        if args.links:
            found = _emulated_links(os.environ) if os.environ.get(EMULATED_VARIABLE) else _links(args.link_mib)
            logging.info("%s", msgspec.json.encode(found).decode())
            return 0
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


def _links(mib: int | None) -> LinksMeasured:
    work = LinkWork() if mib is None else LinkWork(copied_bytes=mib << 20, reduced_bytes=mib << 20)
    return measured_links(os.environ.get("CUDA_VISIBLE_DEVICES", ""), work)


def _emulated_links(environ: Mapping[str, str]) -> LinksMeasured:
    """An all-reduce is as slow as the slowest GPU."""
    copies: dict[str, tuple[float, float]] = {}
    indexes = [index for index in environ.get(GPUS_VARIABLE, "").split(",") if index.isdecimal()]
    for index in indexes:
        bench = CpuStandIn(partial(slowdown_here, {**environ, GPUS_VARIABLE: index}))
        copies[index] = copied(bench.copy_in), copied(bench.copy_out)
    ring = CpuStandIn(lambda: slowdown_here(environ))
    return LinksMeasured(copies=copies, all_reduce_s=copied(ring.memory) if len(indexes) > 1 else None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m weft.gpus.bench", description=__doc__)
    parser.add_argument(
        "--seconds", type=_seconds, default=SECONDS, help="seconds of steady computing; half of it before, to warm up"
    )
    parser.add_argument("--links", action="store_true", help="copies from and to the host, and an all-reduce")
    work = parser.add_argument_group("the fixed amount of work", "other amounts cannot be compared with these")
    work.add_argument("--blocks", type=_count, default=ComputeWork().blocks)
    work.add_argument("--rounds", type=_count, default=ComputeWork().rounds)
    work.add_argument("--launches", type=_count, default=ComputeWork().launches)
    work.add_argument("--passes", type=_count, default=MemoryWork().passes)
    work.add_argument("--array-mib", type=_count, default=MemoryWork().array_bytes >> 20)
    work.add_argument("--link-mib", type=_count, help="size of a copy, and of an all-reduce")
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
