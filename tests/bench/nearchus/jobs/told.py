"""How a job here tells how far it is, and finds the others: by what Weft puts into its environment, and no library."""

import json
import os
import signal
import sys
import time
from types import FrameType


class Told:
    """One line for each step, with the seconds of each phase: a phase lasts until the next begins."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self._file = open(os.environ["WEFT_PROGRESS"], "a", buffering=1)  # noqa: SIM115 - as long as the job
        self._spent: dict[str, float] = {}
        self._phase = ""
        self._since = time.monotonic()

    def phase(self, name: str) -> None:
        now = time.monotonic()
        if self._phase:
            self._spent[self._phase] = self._spent.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = name, now

    def step(self, samples: int = 0, **numbers: float) -> None:
        """The step is over. Who works on no samples of its own, as a server does, tells of none."""
        self.phase("")
        self.steps += 1
        self.samples += samples
        words = [f"step={self.steps}"]
        if self.samples:
            words.append(f"samples={self.samples}")
        words += [f"{name}={value:.6g}" for name, value in numbers.items()]
        words += [f"t_{name}={seconds:.6f}" for name, seconds in self._spent.items()]
        self._spent = {}
        self._file.write(" ".join(words) + "\n")


class Place:
    """Which rank this is, and where the ranks of each role listen."""

    def __init__(self) -> None:
        self.role = os.environ["WEFT_ROLE"]
        self.number = int(os.environ["WEFT_ROLE_RANK"])
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"] if "TF_CONFIG" in os.environ else {}
        self.addresses = {role: [_address(text) for text in texts] for role, texts in cluster.items()}


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def end_when_asked() -> None:
    def end(_: int, __: FrameType | None) -> None:
        sys.stdout.flush()
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
