"""Training with parameter servers: `python3 -m jobs.served`. Role `ps` holds the weights, role `worker` learns.

Synchronous rounds: each worker sends its gradients to every server, which averages them, updates its layers, and sends
these back. Server n of S holds the layers whose number leaves n when divided by S.
"""

import argparse
import os
import socket

import numpy as np

from .network import Momentum, Network, Orthogonal, Shard
from .told import Place, Told, end_when_asked
from .wire import Array, listen, meet, receive, send, take


def serve(asked: argparse.Namespace, place: Place, told: Told) -> None:
    workers = len(place.addresses["worker"])
    held = range(place.number, asked.layers, len(place.addresses["ps"]))
    weights = Network(layers=asked.layers, width=asked.width).weights
    optimizer = Orthogonal(asked.server_work) if asked.server_work else Momentum()
    met = take(listen(int(os.environ["MASTER_PORT"])), workers)
    gradient, total = np.empty_like(weights[0]), np.empty_like(weights[0])
    for _ in range(asked.steps):
        for number in held:
            total[:] = 0
            for worker in met:
                told.phase("wait")
                receive(worker, gradient, begun=lambda: told.phase("pull"))
                told.phase("compute")
                total += gradient
            optimizer.update(number, weights[number], total / np.float32(workers))
        told.phase("push")
        for worker in met:
            for number in held:
                send(worker, weights[number])
        told.step()


def work(asked: argparse.Namespace, place: Place, told: Told) -> None:
    servers = len(place.addresses["ps"])
    network = Network(layers=asked.layers, width=asked.width)
    shard = Shard(width=asked.width, batch=asked.batch, seed=place.number)
    met = [meet(address) for address in place.addresses["ps"]]
    for step in range(asked.steps):
        told.phase("data")
        inputs, wanted = shard.batch(step)
        told.phase("compute")
        loss, gradients = network.gradients(inputs, wanted)
        for _ in range(asked.worker_work - 1):  # micro-batches, whose gradients are one
            more = network.gradients(inputs, wanted)[1]
            gradients = [one + other for one, other in zip(gradients, more, strict=True)]
        told.phase("push")
        for number, gradient in enumerate(gradients):
            send(met[number % servers], gradient)
        told.phase("wait")
        _pull(met, network.weights, told)
        told.step(asked.batch * asked.worker_work, loss=loss)


def _pull(met: list[socket.socket], weights: list[Array], told: Told) -> None:
    for index, server in enumerate(met):
        told.phase("wait")
        for number in range(index, len(weights), len(met)):
            receive(server, weights[number], begun=lambda: told.phase("pull"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=1, help="at least as many as servers")
    parser.add_argument("--batch", type=int, default=64, help="samples of one micro-batch")
    parser.add_argument("--worker-work", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--server-work", type=int, default=0, help="Newton–Schulz iterations; 0: plain momentum")
    parser.add_argument("--steps", type=int, default=1 << 60)
    asked = parser.parse_args()
    end_when_asked()
    place, told = Place(), Told()
    (serve if place.role == "ps" else work)(asked, place, told)


if __name__ == "__main__":
    main()
