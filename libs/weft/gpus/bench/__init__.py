"""The benchmark of one GPU: it runs as an ordinary job, and reports its results as progress.

`python -m weft.gpus.bench` is the program. A real GPU runs two kernels of our own (`compute.ptx`, `memory.ptx`)
through the driver's API; an emulated one has a stand-in on the CPU, and its result is marked as emulated.
`libs/weft/samples` makes the job, reads its results, and names the numbers.
"""
