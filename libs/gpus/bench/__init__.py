"""How fast one GPU is: a benchmark that runs as an ordinary job, and tells what it measured as its progress.

`python -m libs.gpus.bench` is the program. A real GPU is given two kernels of our own (`compute.ptx`, `memory.ptx`)
through the driver's API; an emulated one gets a stand-in on the CPU, and what is told of it calls it emulated. `job.py`
makes the job and reads what it told; `result.py` has the numbers and their names.
"""

from libs.gpus.bench.job import Measured, benchmark_spec, measured
from libs.gpus.bench.result import Measurement

__all__ = ["Measured", "Measurement", "benchmark_spec", "measured"]
