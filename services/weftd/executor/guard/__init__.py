"""The guard of a node: a small process beside the executor that ends the node's runs when the fence has fallen.

An executor that hangs, or that was killed and does not come back, cannot fence itself. The guard is independent of the
executor: it reads the time of the last good sync from a file, and needs no free disk and no bus.

thinking.py   its decisions; pure
__main__.py   the guard's own process
processes.py, containers.py, engine.py   find the node's runs and end them without the executor
files.py      the files between the executor and the guard
watch.py      the executor's side: the guard is started, and started again when it died or hangs
"""
