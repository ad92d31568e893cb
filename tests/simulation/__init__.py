"""The whole cluster in one process on virtual time, from a seed: production services on a faulty world.

    python -m tests.simulation --seeds 200 --from 1000
    python -m tests.simulation --seed 1234 --trace

What is real: `service.run` and the cores of scheduler, executor, scorer, reallocator and telemetry, and the gateway's
submissions on the bus. What is made: the network, the store's server, the hosts, the clients. HTTP is left out.
"""
