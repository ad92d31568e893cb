"""Emulated GPUs: no hardware is behind them, and nothing in this package ever decides on real hardware.

A node offers them where `EXECUTOR_EMULATED_GPUS` and `TELEMETRY_EMULATED_GPUS` ask for them, as `weft up` and `weft
demo` do on a machine without GPUs. They are called emulated wherever they are shown, and have no invented values.

gpus.py       the inventory of a node with emulated GPUs
slowdowns.py  the slowdown of each GPU, which `weft emulate` sets
standin.py    the benchmark's work on the CPU
native/       the emulated driver, a `libcuda.so.1` in C; native.py has it compiled
device.py     gives the driver to runs, and reads the counts that it keeps of each GPU
processes.py  the processes on each GPU, from these counts

Only programs that choose emulation import this package; `pyproject.toml` names them. It is in the wheel without an
extra, for it needs no package. The compiler of its driver is that of the extra `sharing`.
"""
