"""Training with parameter servers: `python3 -m jobs.served`. Role `ps` holds the weights, role `worker` learns.

Synchronous rounds: each worker sends its gradients to every server, which averages them, updates its layers, and sends
these back. Server n of S holds the layers whose number leaves n when divided by S; where there are more servers than
layers, each holds some rows of every layer. When ranks come or go, all meet again: the first worker brings the weights,
the servers' momentum is lost.
"""

import argparse
import socket
from collections.abc import Sequence

import numpy as np

from .group import ChangedError, Door, Members, meet, part
from .network import Momentum, Network, Orthogonal, Shard
from .told import Place, Told, end_when_asked
from .wire import Array, receive, send

Piece = tuple[int, slice]
"""Some rows of a layer."""


def pieces(asked: argparse.Namespace, servers: int) -> list[list[Piece]]:
    """What each server holds."""
    if servers <= asked.layers:
        whole = slice(0, asked.width)
        return [[(layer, whole) for layer in range(number, asked.layers, servers)] for number in range(servers)]
    edges = [asked.width * number // servers for number in range(servers + 1)]
    return [
        [(layer, slice(edges[number], edges[number + 1])) for layer in range(asked.layers)] for number in range(servers)
    ]


def serve(asked: argparse.Namespace, members: Members, told: Told) -> None:
    door, weights = Door(members), Network(layers=asked.layers, width=asked.width).weights
    while told.steps < asked.steps:
        told.phase("wait")
        workers = list[socket.socket]()
        try:
            workers = door.meet()
            mine = pieces(asked, len(members.roles["ps"]))[members.position]
            for layer, rows in mine:
                receive(workers[0], weights[layer][rows])
            _give(workers, weights, mine)
            _rounds(asked, members, told, workers, [weights[layer][rows] for layer, rows in mine])
        except (ChangedError, ConnectionError):
            part(workers)
            if not members.may_change:
                raise
            members.changed()


def _rounds(
    asked: argparse.Namespace, members: Members, told: Told, workers: Sequence[socket.socket], mine: Sequence[Array]
) -> None:
    """To the end, or until ranks come or go: then ChangedError or ConnectionError."""
    optimizer = Orthogonal(asked.server_work) if asked.server_work else Momentum()
    gradients, totals = ([np.empty_like(piece) for piece in mine] for _ in range(2))
    while told.steps < asked.steps:
        for number, piece in enumerate(mine):
            totals[number][:] = 0
            for worker in workers:
                told.phase("wait")
                receive(worker, gradients[number], begun=lambda: told.phase("pull"))
                told.phase("compute")
                totals[number] += gradients[number]
            optimizer.update(number, piece, totals[number] / np.float32(len(workers)))
        told.phase("push")
        for worker in workers:
            for piece in mine:
                send(worker, piece)
        told.step()
        members.check()


def _give(workers: Sequence[socket.socket], weights: Sequence[Array], mine: Sequence[Piece]) -> None:
    for worker in workers:
        for layer, rows in mine:
            send(worker, weights[layer][rows])


def work(asked: argparse.Namespace, members: Members, told: Told) -> None:
    network = Network(layers=asked.layers, width=asked.width)
    shard = Shard(width=asked.width, batch=asked.batch, seed=members.rank)
    while told.steps < asked.steps:
        told.phase("wait")
        servers = list[socket.socket]()
        try:
            servers = meet(members)
            held = pieces(asked, len(servers))
            if members.position == 0:
                for server, of_server in zip(servers, held, strict=True):
                    for layer, rows in of_server:
                        send(server, network.weights[layer][rows])
            _pull(servers, held, network.weights, told)
            _steps(asked, members, told, servers, held, network, shard)
        except (ChangedError, ConnectionError):
            part(servers)
            if not members.may_change:
                raise
            members.changed()


def _steps(
    asked: argparse.Namespace,
    members: Members,
    told: Told,
    servers: Sequence[socket.socket],
    held: Sequence[Sequence[Piece]],
    network: Network,
    shard: Shard,
) -> None:
    while told.steps < asked.steps:
        told.phase("data")
        inputs, wanted = shard.batch(told.steps)
        told.phase("compute")
        loss, gradients = network.gradients(inputs, wanted)
        for _ in range(asked.worker_work - 1):  # micro-batches, whose gradients are one
            more = network.gradients(inputs, wanted)[1]
            gradients = [one + other for one, other in zip(gradients, more, strict=True)]
        told.phase("push")
        for server, of_server in zip(servers, held, strict=True):
            for layer, rows in of_server:
                send(server, gradients[layer][rows])
        told.phase("wait")
        _pull(servers, held, network.weights, told)
        told.step(asked.batch * asked.worker_work, loss=loss)
        members.check()


def _pull(
    servers: Sequence[socket.socket], held: Sequence[Sequence[Piece]], weights: Sequence[Array], told: Told
) -> None:
    for server, of_server in zip(servers, held, strict=True):
        told.phase("wait")
        for layer, rows in of_server:
            receive(server, weights[layer][rows], begun=lambda: told.phase("pull"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument(
        "--layers", type=int, default=1, help="number of layers; with --server-work at least one a server"
    )
    parser.add_argument("--batch", type=int, default=64, help="samples of one micro-batch")
    parser.add_argument("--worker-work", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--server-work", type=int, default=0, help="Newton–Schulz iterations; 0: plain momentum")
    parser.add_argument("--steps", type=int, default=1 << 60)
    asked = parser.parse_args()
    end_when_asked()
    place, told = Place(), Told()
    (serve if place.role == "ps" else work)(asked, Members(place), told)


if __name__ == "__main__":
    main()
