"""A small network that learns what a fixed one computes: every step costs the same arithmetic, on one thread."""

import numpy as np

from .wire import Array

RATE = 0.02
MOMENTUM = 0.9


class Network:
    """`layers` square matrices of `width`, with tanh between them."""

    def __init__(self, *, layers: int, width: int, seed: int = 0) -> None:
        made = np.random.default_rng(seed)
        scale = np.float32(1.0 / np.sqrt(width))
        self.weights: list[Array] = [made.standard_normal((width, width), np.float32) * scale for _ in range(layers)]

    def answers(self, inputs: Array) -> Array:
        for weight in self.weights:
            inputs = np.tanh(inputs @ weight)
        return inputs

    def gradients(self, inputs: Array, wanted: Array) -> tuple[float, list[Array]]:
        """The mean squared error, and how it changes with each weight."""
        passed = [inputs]
        for weight in self.weights:
            passed.append(np.tanh(passed[-1] @ weight))
        difference = passed[-1] - wanted
        slope = difference * (2.0 / difference.size)
        found: list[Array] = []
        for weight, before, after in zip(
            reversed(self.weights), reversed(passed[:-1]), reversed(passed[1:]), strict=True
        ):
            slope = slope * (1.0 - after * after)
            found.append(before.T @ slope)
            slope = slope @ weight.T
        return float(np.mean(difference * difference)), found[::-1]


class Shard:
    """One worker's part of the data. Loading is drawing inputs, and asking the fixed network."""

    def __init__(self, *, width: int, batch: int, seed: int, batches: int = 16) -> None:
        teacher = Network(layers=1, width=width, seed=4711)
        made = np.random.default_rng(1000 + seed)
        self._inputs: list[Array] = [made.standard_normal((batch, width), np.float32) for _ in range(batches)]
        self._wanted = [teacher.answers(inputs) for inputs in self._inputs]

    def batch(self, step: int) -> tuple[Array, Array]:
        """As a loader does: a copy, shuffled."""
        number = step % len(self._inputs)
        order = np.random.default_rng(step).permutation(len(self._inputs[number]))
        return self._inputs[number][order], self._wanted[number][order]


class Momentum:
    """Plain: a few passes over the weights."""

    def __init__(self) -> None:
        self._velocity: dict[int, Array] = {}

    def update(self, number: int, weight: Array, gradient: Array) -> None:
        velocity = self._velocity.setdefault(number, np.zeros_like(weight))
        velocity *= MOMENTUM
        velocity += gradient
        weight -= np.float32(RATE) * velocity


class Orthogonal(Momentum):
    """Momentum made orthogonal by Newton–Schulz iterations (as in the optimizer Muon): three products each."""

    def __init__(self, iterations: int) -> None:
        super().__init__()
        self._iterations = iterations

    def update(self, number: int, weight: Array, gradient: Array) -> None:
        velocity = self._velocity.setdefault(number, np.zeros_like(weight))
        velocity *= MOMENTUM
        velocity += gradient
        made = velocity / (np.linalg.norm(velocity) + np.float32(1e-7))
        for _ in range(self._iterations):
            square = made @ made.T
            made = (
                np.float32(3.4445) * made
                + (np.float32(-4.775) * square + np.float32(2.0315) * (square @ square)) @ made
            )
        weight -= np.float32(RATE) * made
