"""A registry for images of the test's own, started as Compose starts it, by Debian's program."""

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from urllib.error import HTTPError, URLError

from tests.support.engine import skip_unless_promised

DEPLOY = Path(__file__).parents[2] / "deploy"
START_SECONDS_MAX = 60.0
USER = "puller"
PASSWORD = "pull-me"
HASHED = "$2b$05$abcdefghijklmnopqrstuuBp.n58v886n7kD7.z9i0nzqxtQ8I2P."  # that password, hashed by bcrypt


class RegistryServer:
    """`hashed_password`: by bcrypt, of the one user that is let in; empty: everybody is."""

    def __init__(self, folder: Path, *, sweep_seconds: int = 86400, hashed_password: str = "") -> None:
        if shutil.which("docker-registry") is None:
            skip_unless_promised("no docker-registry: apt-get install docker-registry")
        self.data = folder / "registry"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / "registry.log"
        self._environment = {
            **os.environ,
            "REGISTRY_HTTP_ADDR": f"127.0.0.1:{self.port}",
            "REGISTRY_STORAGE_FILESYSTEM_ROOTDIRECTORY": str(self.data),
            "WEFT_REGISTRY_SWEEP_SECONDS": str(sweep_seconds),
        }
        if hashed_password:
            users = folder / "registry-users"
            users.write_text(f"{USER}:{hashed_password}\n")
            self._environment |= {
                "REGISTRY_AUTH": "htpasswd",
                "REGISTRY_AUTH_HTPASSWD_REALM": "registry",
                "REGISTRY_AUTH_HTPASSWD_PATH": str(users),
            }
        self.start()

    def start(self) -> None:
        command = [str(DEPLOY / "start-registry"), str(DEPLOY / "registry.yml")]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment
            )
        until = time.monotonic() + START_SECONDS_MAX
        while not self.answers():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, self._log.read_text()
            time.sleep(0.02)

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/v2/", timeout=5.0) as answer:
                return bool(answer.status == 200)
        except HTTPError as error:
            return error.code == 401
        except (URLError, OSError):
            return False

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        assert not self.answers()

    def blobs(self) -> int:
        """The files of layers and manifests on its disk."""
        return len(list(self.data.glob("docker/registry/v2/blobs/sha256/*/*/data")))
