"""A Docker engine that is none: it keeps containers and networks in memory, and answers amiss where it is told to."""

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

RESET = b"reset"  # instead of an answer the connection is closed
VERSIONED = re.compile(r"^/v[0-9.]+")
BEGAN, NEVER = "2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z"

Amiss = tuple[int, bytes]  # a status and a body


class FakeEngine:
    """`amiss` is what it answers instead, by method and path: `("GET", r"/networks")`."""

    def __init__(self) -> None:
        self.containers: dict[str, dict[str, Any]] = {}
        self.networks: dict[str, dict[str, Any]] = {}
        self.images = {"an-image": "sha256:1"}  # by name, what is here; anything can be fetched
        self.amiss: dict[tuple[str, str], Amiss] = {}
        self.asked: list[tuple[str, str]] = []
        self.lock = threading.RLock()

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Amiss:
        with self.lock:
            self.asked.append((method, path))
            for (wrong, pattern), answer in self.amiss.items():
                if wrong == method and re.fullmatch(pattern, path):
                    return answer
            for (known, pattern), handle in ROUTES.items():
                if known == method and (match := re.fullmatch(pattern, path)):
                    status, found = handle(self, query, body, *match.groups())
                    return status, b"" if found is None else json.dumps(found).encode()
        return 404, b'{"message": "no such route"}'

    def end(self, container: dict[str, Any], status: int) -> None:
        container["State"] |= {"Status": "exited", "Pid": 0, "ExitCode": status, "FinishedAt": BEGAN}

    def find(self, name: str) -> dict[str, Any] | None:
        known = self.containers
        return known.get(name) or next((one for one in known.values() if one["Name"] == f"/{name}"), None)


MISSING = (404, {"message": "No such container: it"})
Answer = tuple[int, Any]


def _create(engine: FakeEngine, query: dict[str, list[str]], body: Any) -> Answer:
    name = query["name"][0]
    if engine.find(name) is not None:
        return 409, {"message": "the name is in use"}
    if body["Image"] not in engine.images:
        return 404, {"message": f"No such image: {body['Image']}"}
    made = uuid.uuid4().hex * 2
    engine.containers[made] = {
        "Id": made,
        "Name": f"/{name}",
        "Config": {"Labels": body["Labels"], "Tty": False, "Image": body["Image"]},
        "HostConfig": body["HostConfig"] | {"NetworkMode": "bridge"},
        "State": {"Status": "created", "Pid": 0, "ExitCode": 0, "StartedAt": NEVER, "FinishedAt": NEVER},
    }
    return 201, {"Id": made, "Warnings": []}


def _list(engine: FakeEngine, query: dict[str, list[str]], body: Any) -> Answer:
    labels = json.loads(query.get("filters", ["{}"])[0]).get("label", [])
    found = []
    for one in engine.containers.values():
        has = {f"{name}={value}" for name, value in one["Config"]["Labels"].items()}
        if set(labels) <= has:
            found.append({"Id": one["Id"], "State": one["State"]["Status"], "Labels": one["Config"]["Labels"]})
    return 200, found


def _start(engine: FakeEngine, query: dict[str, list[str]], body: Any, name: str) -> Answer:
    container = engine.find(name)
    if container is None:
        return MISSING
    container["State"] |= {"Status": "running", "Pid": 1 << 22, "StartedAt": BEGAN}
    return 204, None


def _kill(engine: FakeEngine, query: dict[str, list[str]], body: Any, name: str) -> Answer:
    container = engine.find(name)
    if container is None:
        return MISSING
    if container["State"]["Status"] != "running":
        return 409, {"message": "it is not running"}
    engine.end(container, 137)
    return 204, None


def _remove(engine: FakeEngine, query: dict[str, list[str]], body: Any, name: str) -> Answer:
    container = engine.find(name)
    if container is None:
        return MISSING
    del engine.containers[container["Id"]]
    return 204, None


def _inspect(engine: FakeEngine, query: dict[str, list[str]], body: Any, name: str) -> Answer:
    container = engine.find(name)
    return MISSING if container is None else (200, container)


def _inspect_image(engine: FakeEngine, query: dict[str, list[str]], body: Any, name: str) -> Answer:
    found = engine.images.get(name)
    return (404, {"message": "No such image"}) if found is None else (200, {"Id": found})


def _fetch(engine: FakeEngine, query: dict[str, list[str]], body: Any) -> Answer:
    engine.images[query["fromImage"][0]] = f"sha256:{uuid.uuid4().hex}"
    return 200, {"status": "fetched"}


def _remove_image(engine: FakeEngine, query: dict[str, list[str]], body: Any, name: str) -> Answer:
    if any(one["Config"]["Image"] == name for one in engine.containers.values()):
        return 409, {"message": "a container uses it"}
    return (200, []) if engine.images.pop(name, None) else (404, {"message": "No such image"})


def _networks(engine: FakeEngine, query: dict[str, list[str]], body: Any) -> Answer:
    names = json.loads(query.get("filters", ["{}"])[0]).get("name", [])
    wanted = [re.compile(name) for name in names]
    return 200, [one for one in engine.networks.values() if all(name.search(one["Name"]) for name in wanted)]


def _create_network(engine: FakeEngine, query: dict[str, list[str]], body: Any) -> Answer:
    made = uuid.uuid4().hex
    engine.networks[made] = {"Id": made, "Name": body["Name"]}
    return 201, {"Id": made}


def _remove_network(engine: FakeEngine, query: dict[str, list[str]], body: Any, name: str) -> Answer:
    engine.networks.pop(name, None)
    return 204, None


ROUTES: dict[tuple[str, str], Callable[..., Answer]] = {
    ("GET", "/version"): lambda *_: (200, {"ApiVersion": "1.43", "MinAPIVersion": "1.24"}),
    ("GET", "/info"): lambda *_: (200, {}),
    ("GET", "/containers/json"): _list,
    ("POST", "/containers/create"): _create,
    ("POST", "/containers/([^/]+)/start"): _start,
    ("POST", "/containers/([^/]+)/kill"): _kill,
    ("POST", "/containers/([^/]+)/update"): lambda *_: (200, {"Warnings": None}),
    ("GET", "/containers/([^/]+)/json"): _inspect,
    ("GET", "/containers/([^/]+)/stats"): lambda *_: (200, {"memory_stats": {"usage": 0}}),
    ("GET", "/containers/([^/]+)/logs"): lambda *_: (200, None),
    ("DELETE", "/containers/([^/]+)"): _remove,
    ("GET", "/images/([^/]+)/json"): _inspect_image,
    ("POST", "/images/create"): _fetch,
    ("DELETE", "/images/([^/]+)"): _remove_image,
    ("GET", "/distribution/([^/]+)/json"): lambda *_: (200, {"Descriptor": {}}),
    ("GET", "/networks"): _networks,
    ("POST", "/networks/create"): _create_network,
    ("DELETE", "/networks/([^/]+)"): _remove_network,
}


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    engine: FakeEngine


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def address_string(self) -> str:
        return "client"

    def log_message(self, *_: Any) -> None:
        """Nothing."""

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = VERSIONED.sub("", parts.path)
        body = json.loads(sent) if sent else None
        status, answer = self.server.engine.answer(self.command, path, parse_qs(parts.query), body)
        if answer == RESET:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if status != 204:
            self.wfile.write(answer)

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()


@contextmanager
def fake_engine(folder: Path) -> Iterator[tuple[FakeEngine, str]]:
    """The engine, and its address as in DOCKER_HOST."""
    path = folder / "engine.sock"
    with _Server(str(path), _Handler) as server:
        server.engine = FakeEngine()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield server.engine, f"unix://{path}"
        finally:
            server.shutdown()
            thread.join()
