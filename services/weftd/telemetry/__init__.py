"""Publishes every second what its node, the node's GPUs and each run on it are using.

Takes: nothing. It reads /proc, cgroups, the GPU driver, and the runtime's records of its runs.
Sends: NodeSampled, once a period, on core NATS: any sample may be lost.
Owns:  nothing.

`libs/weft/messages/signals.py` has the units and sources; `metrics.py` shows the same numbers as Prometheus gauges.
It must see the host's processes: run it on the host, or in a container with the host's PID and cgroup namespaces.
"""
