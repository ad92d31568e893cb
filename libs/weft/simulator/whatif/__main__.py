"""A look ahead in a process of its own: see `worker`."""

from weft.simulator.whatif.worker import main

main()
