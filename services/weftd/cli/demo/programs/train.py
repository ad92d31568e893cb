"""Trains a small neural network by gradient descent, as a job under Weft: checkpoints, resumes, reports its progress.

The network (2 inputs, a hidden layer, 1 output) learns to tell two interleaved half-moons apart. Everything follows
from the seed, so a run that was stopped and resumed ends with exactly the numbers of one that was not.
Needs nothing but Python. Exits 1 if it has not learned.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import sys
import time

CHECKPOINT_SECONDS = 1.0
BLUR = 0.2

Point = tuple[float, float, int]  # x, y, label


class Network:
    """Weights, their velocities (gradient descent with momentum), the loss it began with and the latest."""

    def __init__(self, hidden: int, seed: int) -> None:
        rng = random.Random(seed)
        self.hidden = hidden
        self.weights = [rng.gauss(0, 0.7) for _ in range(4 * hidden + 1)]
        self.velocity = [0.0] * len(self.weights)
        self.first_loss = self.loss = math.nan

    def learn(self, points: list[Point], rate: float, momentum: float) -> None:
        """One step of gradient descent on all points. The loss is the mean one before it."""
        hidden, weights = self.hidden, self.weights
        gradient, loss = [0.0] * len(weights), 0.0
        for x, y, label in points:
            active = self.activations(x, y)
            guess = self.guess(active)
            loss -= math.log(max(guess if label else 1.0 - guess, 1e-12))
            error = (guess - label) / len(points)
            gradient[-1] += error
            for unit in range(hidden):
                gradient[3 * hidden + unit] += error * active[unit]
                back = error * weights[3 * hidden + unit] * (1.0 - active[unit] * active[unit])
                gradient[3 * unit] += back * x
                gradient[3 * unit + 1] += back * y
                gradient[3 * unit + 2] += back
        for index, slope in enumerate(gradient):
            self.velocity[index] = momentum * self.velocity[index] - rate * slope
            weights[index] += self.velocity[index]
        self.loss = loss / len(points)
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


def half_moons(count: int, seed: int) -> list[Point]:
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
    """Report the progress to Weft, and print it into the log."""
    path = os.environ.get("WEFT_PROGRESS")
    if path:
        with open(path, "a") as file:
            file.write(f"step={step} steps={steps} loss={loss:.4f}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()

    folder = os.environ.get("WEFT_CHECKPOINT_DIR", "")
    checkpoint = os.path.join(folder, "model.json") if folder else ""
    stopping: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopping.append(True))

    points, network = half_moons(args.points, args.seed), Network(args.hidden, args.seed)
    first = resume(checkpoint, network)
    print(f"resumed at step {first}" if first else "starting from nothing", flush=True)

    saved_at = time.monotonic()
    for step in range(first, args.steps):
        network.learn(points, rate=0.3, momentum=0.9)
        done = step + 1
        if done % 10 == 0 or done == args.steps:
            tell(done, args.steps, network.loss)
        if done % 100 == 0:
            print(f"step {done} of {args.steps}: loss {network.loss:.4f}", flush=True)
        if stopping or done == args.steps or time.monotonic() - saved_at >= CHECKPOINT_SECONDS:
            save(checkpoint, done, network)
            saved_at = time.monotonic()
        if stopping and done < args.steps:
            print(f"asked to stop: checkpoint at step {done}", flush=True)
            return 128 + signal.SIGTERM

    right = sum((network.guess(network.activations(x, y)) > 0.5) == bool(label) for x, y, label in points)
    print(f"loss fell from {network.first_loss:.6f} to {network.loss:.6f}", flush=True)
    print(f"{right} of {len(points)} points are told apart right", flush=True)
    if network.loss < 0.5 * network.first_loss and right > 0.9 * len(points):
        return 0
    print("it has not learned", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
