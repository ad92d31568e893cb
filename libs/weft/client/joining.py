"""The request of a new node: its join token for its sealed credentials."""

import ssl
import time

import msgspec

from weft.client.paths import path_part
from weft.client.wire import JSON_HEADERS, Wire
from weft.messages.http.joining import JoinWanted, NodeJoined


class _TrustingWire(Wire):
    """Accepts any certificate. A join token's public part is of no use but to end the token, and the answer opens with
    the token alone: who pretends to be the gateway learns nothing and gives nothing. So a new node needs no file with
    the authority of the cluster."""

    async def open(self) -> None:
        await super().open()
        if self._tls is not None:
            self._tls.check_hostname = False
            self._tls.verify_mode = ssl.CERT_NONE


async def exchange(url: str, node: str, public_part: str, *, seconds: float) -> NodeJoined:
    """Use a join token, at most once: a lost answer is not asked for again. Raises ClientError."""
    wire = _TrustingWire(url, "", retry_seconds=seconds, first_seconds=seconds, clock=time.monotonic)
    await wire.open()
    try:
        body = msgspec.json.encode(JoinWanted(public_part=public_part))
        path = f"/v1/nodes/{path_part(node)}/join"
        return await wire.ask("POST", path, NodeJoined, body=body, headers=JSON_HEADERS, once=True)
    finally:
        await wire.close()
