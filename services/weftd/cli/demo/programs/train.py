"""Trains a small neural network by gradient descent, as a job under Weft: checkpoints, resumes, reports its progress.

The network (2 inputs, a hidden layer, 1 output) learns to tell two interleaved half-moons apart. Everything follows
from the seed, so a run that was stopped and resumed ends with exactly the numbers of one that was not. The ranks of a
gang see data of their own and add up their gradients over the network (all-reduce), so that all have the same weights;
they meet at MASTER_ADDR and MASTER_PORT. Needs nothing but Python. Exits 1 if it has not learned, or the ranks differ.
"""

from __future__ import annotations

import argparse
import array
import hashlib
import json
import math
import os
import random
import signal
import socket
import sys
import time

CHECKPOINT_SECONDS = 1.0
MEET_SECONDS_MAX = ANSWER_SECONDS_MAX = 60.0
BLUR = 0.2
RATE, MOMENTUM = 0.3, 0.9

Point = tuple[float, float, int]  # x, y, label


class Gang:
    """Rank 0 adds up the numbers of all ranks and sends the sum to all."""

    def __init__(self, rank: int, size: int, address: str, port: int) -> None:
        self.rank, self.size = rank, size
        self._peers = _joined(address, port) if rank else _gathered(size - 1, address, port)

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


def _gathered(count: int, address: str, port: int) -> list[socket.socket]:
    if not count:
        return []
    with socket.create_server((address, port)) as server:
        server.settimeout(MEET_SECONDS_MAX)
        return [_quick(server.accept()[0]) for _ in range(count)]


def _joined(address: str, port: int) -> list[socket.socket]:
    """The connection to rank 0, which may come later than this rank."""
    until = time.monotonic() + MEET_SECONDS_MAX
    while True:
        try:
            return [_quick(socket.create_connection((address, port), timeout=ANSWER_SECONDS_MAX))]
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def _quick(peer: socket.socket) -> socket.socket:
    peer.settimeout(ANSWER_SECONDS_MAX)
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


class Network:
    """Weights, their velocities (gradient descent with momentum), the loss it began with and the latest."""

    def __init__(self, hidden: int, seed: int) -> None:
        rng = random.Random(seed)
        self.hidden = hidden
        self.weights = [rng.gauss(0, 0.7) for _ in range(4 * hidden + 1)]
        self.velocity = [0.0] * len(self.weights)
        self.first_loss = self.loss = math.nan

    def learn(self, points: list[Point], gang: Gang) -> None:
        """One step of gradient descent on the points of all ranks. The loss is the mean one before it."""
        hidden, weights = self.hidden, self.weights
        sums = [0.0] * (len(weights) + 1)  # the gradient, then the loss
        for x, y, label in points:
            active = self.activations(x, y)
            guess = self.guess(active)
            sums[-1] -= math.log(max(guess if label else 1.0 - guess, 1e-12))
            error = guess - label
            sums[-2] += error
            for unit in range(hidden):
                sums[3 * hidden + unit] += error * active[unit]
                back = error * weights[3 * hidden + unit] * (1.0 - active[unit] * active[unit])
                sums[3 * unit] += back * x
                sums[3 * unit + 1] += back * y
                sums[3 * unit + 2] += back
        *gradient, loss = gang.total(array.array("d", sums))
        count = len(points) * gang.size
        for index, slope in enumerate(gradient):
            self.velocity[index] = MOMENTUM * self.velocity[index] - RATE * slope / count
            weights[index] += self.velocity[index]
        self.loss = loss / count
        if math.isnan(self.first_loss):
            self.first_loss = self.loss

    def activations(self, x: float, y: float) -> list[float]:
        weights = self.weights
        return [
            math.tanh(weights[3 * unit] * x + weights[3 * unit + 1] * y + weights[3 * unit + 2])
            for unit in range(self.hidden)
        ]

    def guess(self, active: list[float]) -> float:
        out = self.weights[-1] + sum(self.weights[3 * self.hidden + unit] * a for unit, a in enumerate(active))
        return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, out))))

    def same(self, gang: Gang) -> bool:
        """Return True if all ranks have these very weights."""
        mine = float(int(hashlib.sha256(json.dumps(self.weights).encode()).hexdigest()[:12], 16))
        return gang.total(array.array("d", [mine]))[0] == mine * gang.size


def half_moons(count: int, seed: str) -> list[Point]:
    """Points (x, y, label) on two interleaved half circles, blurred a little."""
    rng = random.Random(seed)
    points: list[Point] = []
    for number in range(count):
        angle, label = math.pi * rng.random(), number % 2
        x = math.cos(angle) if label else 1.0 - math.cos(angle)
        y = math.sin(angle) if label else 0.5 - math.sin(angle)
        points.append((x + rng.gauss(0, BLUR), y + rng.gauss(0, BLUR), label))
    return points


def save(path: str, step: int, network: Network) -> None:
    """Write the whole checkpoint or nothing: a resumed run never finds half of one."""
    if not path:
        return
    unfinished = path + ".unfinished"
    with open(unfinished, "w") as file:
        json.dump({"step": step, **vars(network)}, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def resume(path: str, network: Network) -> int:
    """The step to go on from; 0 where there is no checkpoint."""
    if not (path and os.path.exists(path)):
        return 0
    with open(path) as file:
        state = json.load(file)
    step = int(state.pop("step"))
    vars(network).update(state)
    return step


def tell(step: int, steps: int, loss: float) -> None:
    """Report the progress to Weft."""
    with open(os.environ.get("WEFT_PROGRESS", os.devnull), "a") as file:
        file.write(f"step={step} steps={steps} loss={loss:.4f}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--points", type=int, default=200, help="per rank")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()

    rank, size = int(os.environ.get("WEFT_RANK", "0")), int(os.environ.get("WEFT_WORLD_SIZE", "1"))
    folder = os.environ.get("WEFT_CHECKPOINT_DIR", "")
    checkpoint = os.path.join(folder, f"model-{rank}.json") if folder else ""
    stopping: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))

    points, network = half_moons(args.points, f"{args.seed}/{rank}"), Network(args.hidden, args.seed)
    first = resume(checkpoint, network)
    print(f"resumed at step {first}" if first else "starting from nothing", flush=True)
    gang = Gang(rank, size, os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500")))

    saved_at = time.monotonic()
    for step in range(first, args.steps):
        network.learn(points, gang)
        stops = gang.total(array.array("d", [len(stopping)]))[0] > 0  # all ranks stop after the same step
        done = step + 1
        if done % 10 == 0 or done == args.steps:
            tell(done, args.steps, network.loss)
        if done % 100 == 0:
            print(f"step {done} of {args.steps}: loss {network.loss:.4f}", flush=True)
        if stops or done == args.steps or time.monotonic() - saved_at >= CHECKPOINT_SECONDS:
            save(checkpoint, done, network)
            saved_at = time.monotonic()
        if stops and done < args.steps:
            print(f"asked to stop: checkpoint at step {done}", flush=True)
            return 128 + signal.SIGTERM

    right = sum((network.guess(network.activations(x, y)) > 0.5) == bool(label) for x, y, label in points)
    same = network.same(gang)
    print(f"loss fell from {network.first_loss:.6f} to {network.loss:.6f}", flush=True)
    print(f"{right} of {len(points)} points are classified correctly", flush=True)
    if size > 1:
        print(f"all ranks have the same weights: {same}", flush=True)
    if same and network.loss < 0.5 * network.first_loss and right > 0.9 * len(points):
        return 0
    print("it has not learned", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
