"""Trains one model on several replicas that add up their gradients over the network (all-reduce), as a gang under Weft.

Each replica sees its own part of the data; after each step all have the same weights, and at the end they prove it.
They meet at MASTER_ADDR and MASTER_PORT, as WEFT_RANK of WEFT_WORLD_SIZE. Needs nothing but Python.
Exits 1 if the model has not learned or the replicas disagree.
"""

from __future__ import annotations

import argparse
import array
import hashlib
import math
import os
import random
import socket
import sys
import time

MEET_SECONDS_MAX = 60.0
ANSWER_SECONDS_MAX = 60.0


class Gang:
    """Rank 0 adds up the values of all ranks and sends the sum to all."""

    def __init__(self, rank: int, size: int, address: str, port: int) -> None:
        self.rank, self.size = rank, size
        self._peers = _gathered(size - 1, address, port) if rank == 0 else [_joined(address, port)]

    def total(self, numbers: array.array[float]) -> array.array[float]:
        """The sum over all ranks, the same on each."""
        if self.rank:
            self._peers[0].sendall(numbers.tobytes())
            return _read(self._peers[0], len(numbers))
        for peer in self._peers:
            for index, number in enumerate(_read(peer, len(numbers))):
                numbers[index] += number
        for peer in self._peers:
            peer.sendall(numbers.tobytes())
        return numbers

    def close(self) -> None:
        for peer in self._peers:
            peer.close()


def _gathered(count: int, address: str, port: int) -> list[socket.socket]:
    with socket.create_server((address, port)) as server:
        server.settimeout(MEET_SECONDS_MAX)
        peers = [server.accept()[0] for _ in range(count)]
    for peer in peers:
        peer.settimeout(ANSWER_SECONDS_MAX)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peers


def _joined(address: str, port: int) -> socket.socket:
    """Rank 0 may come later than we."""
    until = time.monotonic() + MEET_SECONDS_MAX
    while True:
        try:
            peer = socket.create_connection((address, port), timeout=ANSWER_SECONDS_MAX)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
            continue
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer


def _read(peer: socket.socket, count: int) -> array.array[float]:
    data = b""
    while len(data) < 8 * count:
        more = peer.recv(8 * count - len(data))
        if not more:
            raise ConnectionError("another rank is gone")
        data += more
    return array.array("d", data)


def examples(count: int, width: int, seed: int, rank: int) -> list[tuple[list[float], int]]:
    """This rank's part of the data: points on either side of a plane that all ranks share."""
    plane = [random.Random(seed).gauss(0, 1) for _ in range(width)]
    rng = random.Random(f"{seed}/{rank}")
    made = []
    for _ in range(count):
        point = [rng.gauss(0, 1) for _ in range(width)]
        made.append((point, int(sum(a * b for a, b in zip(plane, point)) > 0)))  # noqa: B905 -- Python 3.9 has no strict
    return made


def gradient_and_loss(weights: array.array[float], data: list[tuple[list[float], int]]) -> array.array[float]:
    """The sums over this rank's data: the gradient, then the loss."""
    sums = array.array("d", bytes(8 * (len(weights) + 1)))
    for point, label in data:
        out = sum(a * b for a, b in zip(weights, point))  # noqa: B905
        guess = 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, out))))
        sums[-1] -= math.log(max(guess if label else 1.0 - guess, 1e-12))
        for index, value in enumerate(point):
            sums[index] += (guess - label) * value
    return sums


def tell(step: int, steps: int, loss: float) -> None:
    path = os.environ.get("WEFT_PROGRESS")
    if path:
        with open(path, "a") as file:
            file.write(f"step={step} steps={steps} loss={loss:.4f}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--examples", type=int, default=300, help="per replica")
    parser.add_argument("--width", type=int, default=20)
    parser.add_argument("--seed", type=int, default=11)
    args = parser.parse_args()

    rank, size = int(os.environ.get("WEFT_RANK", "0")), int(os.environ.get("WEFT_WORLD_SIZE", "1"))
    address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    print(f"rank {rank} of {size}: meeting at {address}:{port}", flush=True)
    gang = Gang(rank, size, address, port)

    data, count = examples(args.examples, args.width, args.seed, rank), args.examples * size
    weights = array.array("d", bytes(8 * args.width))
    first = loss = math.nan
    for step in range(1, args.steps + 1):
        sums = gang.total(gradient_and_loss(weights, data))
        loss = sums[-1] / count
        first = loss if step == 1 else first
        for index in range(args.width):
            weights[index] -= 2.0 * sums[index] / count
        if step % 10 == 0 or step == args.steps:
            tell(step, args.steps, loss)
        if step % 100 == 0:
            print(f"rank {rank}: step {step} of {args.steps}, loss {loss:.4f}", flush=True)

    mine = int(hashlib.sha256(weights.tobytes()).hexdigest()[:12], 16)
    same = gang.total(array.array("d", [float(mine)]))[0] == float(mine) * size
    gang.close()
    print(f"rank {rank}: loss fell from {first:.6f} to {loss:.6f}; all ranks have the same weights: {same}", flush=True)
    return 0 if same and loss < 0.5 * first else 1


if __name__ == "__main__":
    sys.exit(main())
