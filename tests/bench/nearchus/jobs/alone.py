"""One container that is short of one thing: `python3 -m jobs.alone`. Each step loads, computes, and waits, as asked.

What a device would do is a sleep here: `--device-ms` is called an emulated wait wherever it is quoted.
"""

import argparse
import mmap
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from .network import Network, Shard
from .told import Told, end_when_asked

BLOCK = 1 << 16
MIB = 1 << 20


class Files:
    """Reads blocks of a data set at random, from the page cache where it may, and writes checkpoints."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked
        self._picks = np.random.default_rng(7)
        folder = Path(os.environ.get("WEFT_CHECKPOINT_DIR", tempfile.gettempdir()))
        self._data = folder / f"data-{os.getpid()}"
        self._blocks = asked.data_mib * MIB // BLOCK
        self._fd = -1
        if self._blocks:
            with self._data.open("wb") as file:
                for _ in range(self._blocks):
                    file.write(self._picks.bytes(BLOCK))
                file.flush()
                os.fsync(file.fileno())
                # Read from disk, as a data set is: pages that were written lie in larger pieces.
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            self._fd = os.open(self._data, os.O_RDONLY | (os.O_DIRECT if asked.direct else 0))
        self._written = os.open(folder / f"written-{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._chunk = self._picks.bytes(BLOCK)
        self._buffer = mmap.mmap(-1, BLOCK)  # aligned, as direct reads want it

    def read(self) -> None:
        for _ in range(self._asked.reads if self._blocks else 0):
            offset = int(self._picks.integers(self._blocks)) * BLOCK
            os.preadv(self._fd, [self._buffer], offset)

    def write(self) -> None:
        for _ in range(self._asked.writes):
            os.pwrite(self._written, self._chunk, 0)
            os.fsync(self._written)


class Sink:
    """Another end of a connection through the container's own interface: what goes there counts as sent."""

    def __init__(self, address: str, kib: int) -> None:
        self._kib = kib
        self._chunk = bytes(1024)
        host, _, port = address.rpartition(":")
        self._to = socket.create_connection((host, int(port))) if kib else None

    def send(self) -> None:
        if self._to is not None:
            self._to.sendall(self._chunk * self._kib)


def burn(units: int, width: int) -> None:
    """CPU time of one thread that is the same for the same numbers."""
    made = np.random.default_rng(0).standard_normal((width, width), np.float32)
    for _ in range(units):
        np.tanh(made @ made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=192)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--work", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--load-work", type=int, default=0, help="units of CPU work of the loader, each step")
    parser.add_argument("--load-ms", type=float, default=0.0, help="each step's wait for data that come from far away")
    parser.add_argument("--device-ms", type=float, default=0.0, help="each step's emulated wait for a device")
    parser.add_argument("--data-mib", type=int, default=0, help="size of the data set on disk")
    parser.add_argument("--reads", type=int, default=0, help="blocks of 64 KiB read each step")
    parser.add_argument("--direct", action="store_true", help="read them from the disk each time")
    parser.add_argument("--writes", type=int, default=0, help="blocks of 64 KiB written and synced each step")
    parser.add_argument("--held-mib", type=int, default=0, help="memory that is held, and touched again and again")
    parser.add_argument("--threads", type=int, default=1, help="threads that each compute the same")
    parser.add_argument("--send-kib", type=int, default=0, help="sent each step to --sink")
    parser.add_argument("--sink", default="", help="host:port that takes whatever comes")
    parser.add_argument("--steps", type=int, default=1 << 60)
    asked = parser.parse_args()
    end_when_asked()
    told, files, sink = Told(), Files(asked), Sink(asked.sink, asked.send_kib)
    network, shard = Network(layers=1, width=asked.width), Shard(width=asked.width, batch=asked.batch, seed=0)
    held = np.ones(asked.held_mib * MIB, np.uint8)
    for step in range(asked.steps):
        told.phase("data")
        files.read()
        burn(asked.load_work, asked.width)
        if asked.load_ms:
            time.sleep(asked.load_ms / 1000.0)
        inputs, wanted = shard.batch(step)
        told.phase("compute")

        def compute() -> None:
            for _ in range(asked.work):
                network.gradients(inputs, wanted)  # noqa: B023 - they end within this step

        beside = [threading.Thread(target=compute) for _ in range(asked.threads - 1)]
        for thread in beside:
            thread.start()
        compute()
        for thread in beside:
            thread.join()
        if asked.device_ms:
            time.sleep(asked.device_ms / 1000.0)
        held[::4096] += 1
        told.phase("push")
        sink.send()
        files.write()
        told.step(asked.batch * asked.work)


if __name__ == "__main__":
    main()
