"""Training without servers: `python3 -m jobs.ringed`. Gradients are summed around a ring; all update alike."""

import argparse
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from .network import Momentum, Network, Shard
from .told import Place, Told, end_when_asked
from .wire import Array, Sender, listen, meet, receive, take


class Ring:
    """Each sends to the next and receives from the one before it."""

    def __init__(
        self, addresses: Sequence[tuple[str, int]], rank: int, port: int, phase: Callable[[str], None]
    ) -> None:
        self._size, self._rank, self._phase = len(addresses), rank, phase
        door = listen(port)
        self._next = meet(addresses[(rank + 1) % self._size])
        self._sender = Sender(self._next)
        self._before = take(door, 1)[0]
        door.close()

    def sum(self, vector: Array) -> None:
        """In place: each part goes around once to be summed, and once more to be told."""
        parts = np.array_split(vector, self._size)
        came = np.empty_like(parts[0])
        for turn in range(2 * (self._size - 1)):
            self._phase("push")
            self._sender.send([parts[(self._rank - turn) % self._size]])
            part = parts[(self._rank - turn - 1) % self._size]
            self._phase("wait")
            into = came[: len(part)]
            receive(self._before, into, begun=lambda: self._phase("pull"))
            if turn < self._size - 1:
                part += into
            else:
                part[:] = into

    def close(self) -> None:
        self._sender.close()
        self._next.close()
        self._before.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--batch", type=int, default=64, help="samples of one micro-batch")
    parser.add_argument("--worker-work", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--slow-rank", type=int, default=-1, help="rank that takes longer for the same work")
    parser.add_argument("--slow-factor", type=int, default=2)
    parser.add_argument("--pause-ms", type=float, default=0.0, help="each step's wait, as for a device")
    parser.add_argument("--steps", type=int, default=1 << 60)
    asked = parser.parse_args()
    end_when_asked()
    place, told = Place(), Told()
    network, optimizer = Network(layers=asked.layers, width=asked.width), Momentum()
    shard = Shard(width=asked.width, batch=asked.batch, seed=place.number)
    ring = Ring(place.addresses["worker"], place.number, int(os.environ["MASTER_PORT"]), told.phase)
    repeats = asked.worker_work * (asked.slow_factor if place.number == asked.slow_rank else 1)
    for step in range(asked.steps):
        told.phase("data")
        inputs, wanted = shard.batch(step)
        told.phase("compute")
        loss, gradients = network.gradients(inputs, wanted)
        for _ in range(repeats - 1):
            network.gradients(inputs, wanted)
        if asked.pause_ms:
            time.sleep(asked.pause_ms / 1000.0)
        flat = np.concatenate([gradient.ravel() for gradient in gradients])
        ring.sum(flat)
        told.phase("compute")
        flat /= np.float32(len(place.addresses["worker"]))
        for number, (weight, part) in enumerate(zip(network.weights, np.split(flat, asked.layers), strict=True)):
            optimizer.update(number, weight, part.reshape(weight.shape))
        told.step(asked.batch * asked.worker_work, loss=loss)
    ring.close()


if __name__ == "__main__":
    main()
