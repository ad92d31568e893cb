"""A look ahead in a process of its own: see `worker`."""

from libs.simulator.whatif.worker import main

main()
