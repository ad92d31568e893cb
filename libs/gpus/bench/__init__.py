"""How fast one GPU is: a benchmark that runs as an ordinary job, and tells what it measured as its progress.

`python -m libs.gpus.bench` is the program. A real GPU is given two kernels of our own (`compute.ptx`, `memory.ptx`)
through the driver's API; an emulated one gets a stand-in on the CPU, and its result says so. `libs/samples` makes the
job, reads what it reported, and names the numbers.
"""
