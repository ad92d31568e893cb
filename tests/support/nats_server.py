"""A NATS server of the test's own, that it may kill and start again on the same port."""

import socket
import subprocess
import time
from pathlib import Path

from libs.servers.find import find_nats

START_SECONDS_MAX = 10


class NatsServer:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        store = str(self._folder / "jetstream")
        command = [str(find_nats().path), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", store]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS_MAX
        while "Server is ready" not in self._log.read_text():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.005)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()
