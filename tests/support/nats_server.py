"""A NATS server of the test's own, that it may kill and start again on the same port."""

import signal
import socket
import subprocess
import time
from pathlib import Path

from weft.servers.find import find_nats

START_SECONDS_MAX = 60


class NatsServer:
    def __init__(self, folder: Path, *, file_store: str = "", users: str = "") -> None:
        """`users`: the server's section `authorization`."""
        self._folder, self._users = folder, users
        self._log = folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"
        self.start(file_store=file_store)

    def start(self, *, file_store: str = "") -> None:
        """`file_store`: how much its streams may take on the disk, as in "1MB"; all there is if it is not said."""
        store = f'store_dir: "{self._folder / "jetstream"}"' + (f", max_file_store: {file_store}" if file_store else "")
        config = self._folder / "nats.conf"
        settings = f"listen: 127.0.0.1:{self.port}\nmax_payload: 8MB\njetstream {{ {store} }}\n"
        config.write_text(settings + self._users)
        command = [str(find_nats().path), "-c", str(config)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + START_SECONDS_MAX
        while "Server is ready" not in self._log.read_text():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.005)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stand_still(self) -> None:
        """Its connections stay, and nothing is answered."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._process.poll() is None:
            self.go_on()  # one that stands still would not hear the other
            self._process.terminate()
        self._process.wait()
