"""Services that answer with a language model, measured: `python -m tests.bench models`, with `--quick` and `--seed N`.

The day and the conversations run in virtual time, on emulated engines with the costs of published figures
(`tests.support.emulated_engine`): the router's own queues and choice, and the autoscaler, decide. The streams pass a
real router, from a server of the benchmark.
"""
