"""Says every second what its node, the node's GPUs and each run on it are using.

Takes: nothing. It reads /proc, cgroups, the GPU driver, and what the node's runtime left about its runs.
Sends: NodeSampled, once a period, on core NATS: any of them may be lost.
Owns:  nothing.

Its units and sources are in `libs/messages/signals.py`; the same numbers are Prometheus gauges, see `metrics.py`.
It must see the host's processes: run it on the host, or in a container with the host's PID and cgroup namespaces.
"""
