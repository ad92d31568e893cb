"""The guard of a node: a small process beside the executor that ends the node's runs when the fence has fallen.

An executor that hangs, or that was killed and does not come back, cannot fence itself. The guard depends on nothing
that the executor holds: it reads when the last good sync was sent, and needs no room on the disk and no bus.

core.py       what it decides; pure
__main__.py   the guard's own process
processes.py, containers.py, engine.py   what runs on the node, and how it is ended without the executor
files.py      what the executor tells the guard, and the guard the executor
watch.py      the executor's side: the guard is started, and started again when it died or hangs
"""
