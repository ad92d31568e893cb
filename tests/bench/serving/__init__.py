"""Services that keep their objectives: autoscalers on one trace, a mixed day against plain Kubernetes, and a real one.

    python -m tests.bench serving [--quick] [--seed N] [--only rules,constant,bursts,mixed,scale,live,…]

`rules.py`, `mixed.py` and `scale.py` are simulated: requests one by one, the production autoscaler, no processes.
`live.py` has real processes on emulated GPUs: servers, routers, clients of their own.
"""
