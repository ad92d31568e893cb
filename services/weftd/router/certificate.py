"""Reload of a certificate that is renewed while the router runs."""

import asyncio
import logging
from pathlib import Path

from weft.service.config import SettingsError
from weft.service.keys import ServerCertificate

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
LOAD_SECONDS_MAX = 30.0


class Certificate:
    """Watches the certificate files; without files it does nothing."""

    def __init__(self, cert_file: str, key_file: str, *, admin: Path, written: Path) -> None:
        self._files = ServerCertificate(cert_file, key_file) if cert_file else None
        self._admin, self._written = admin, written

    async def keep(self) -> None:
        if self._files is None:
            await asyncio.Event().wait()
            return
        due = False
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                due = await asyncio.to_thread(self._files.renew) or due
            except SettingsError as error:
                logger.warning("the certificate is not renewed yet: %s", error)
                continue
            if due and await self._loaded():
                due = False
                logger.info("the certificate was renewed")

    async def _loaded(self) -> bool:
        """True if Caddy has read everything again; requests at replicas go on meanwhile."""
        body = self._written.read_bytes()
        head = (
            f"POST /load HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Cache-Control: must-revalidate\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            async with asyncio.timeout(LOAD_SECONDS_MAX):
                reader, writer = await asyncio.open_unix_connection(str(self._admin))
                try:
                    writer.write(head.encode() + body)
                    line = await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            logger.warning("the renewed certificate cannot be sent to Caddy: %s", error)
            return False
        if b" 200 " not in line:
            logger.warning("Caddy refuses the renewed certificate: %s", line.decode("latin-1").strip())
            return False
        return True
