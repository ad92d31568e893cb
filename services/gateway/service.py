"""The gateway's shell: it serves HTTP and requests, keeps the newest messages of nodes, and stops in order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from libs.bus import Bus, RawRequest
from libs.messages.asks import SubmitAnswered
from libs.messages.nodes import ProgressSeen
from libs.messages.signals import NodeSampled, PoolReviewed
from libs.service import AnswerRaw, Every, Listen, SettingsError, serve
from libs.service.keys import ServerCertificate
from libs.store import GatewayStore, StoreUnavailableError
from services.gateway.app import application
from services.gateway.gateway import Gateway, GatewayLimits
from services.gateway.listening import listening
from services.gateway.submissions import answer_submit
from services.gateway.tokens import ADMIN_TENANT, OWN_TENANT, keep_file_token

logger = logging.getLogger(__name__)

SUBMIT_SUBJECT = "weft.submit"
STREAMS_SECONDS = 1.0  # between two checks of the tokens of open streams
FORGET_SECONDS = 3600.0
RENEW_SECONDS = 5.0  # between two looks at the certificate's files


def renewing(certificate: ServerCertificate) -> Callable[[], Awaitable[None]]:
    async def renew() -> None:
        if await asyncio.to_thread(certificate.renew):
            logger.info("the certificate was renewed")

    return renew


def forgetting_tokens(
    store: GatewayStore, now: Callable[[], float], *, kept_seconds: float
) -> Callable[[], Awaitable[None]]:
    async def forget() -> None:
        if count := await store.forget_tokens(before=now() - kept_seconds):
            logger.info("%d tokens that ended long ago were forgotten", count)

    return forget


async def run(
    *,
    bus: Bus,
    store: GatewayStore,
    stop: asyncio.Event,
    now: Callable[[], float],
    clock: Callable[[], float],
    characters: Callable[[int], str],
    host: str = "127.0.0.1",
    port: int = 8470,
    default_pool: str = "default",
    volumes_allowed: tuple[str, ...] = (),
    admin_token: str = "",
    scorer_token: str = "",
    admin_host: str = "127.0.0.1",
    admin_port: int | None = None,
    limits: GatewayLimits | None = None,
    tokens_kept_seconds: float | None = None,
    certificate: ServerCertificate | None = None,
    listens_on: Callable[[int], None] | None = None,
) -> None:
    """Run until `stop` is set. With a `certificate` it serves HTTPS. `listens_on` is called with the port.

    `tokens_kept_seconds`: for how long revoked and expired tokens are listed; None: for ever.
    """
    gateway = Gateway(
        store=store,
        bus=bus,
        now=now,
        clock=clock,
        characters=characters,
        default_pool=default_pool,
        volumes_allowed=volumes_allowed,
        limits=limits,
    )
    for tenant, token in ((ADMIN_TENANT, admin_token), (OWN_TENANT, scorer_token)):
        if token:
            await keep_file_token(store, token, tenant=tenant, at=now())

    async def submit(asked: RawRequest) -> SubmitAnswered:
        return await answer_submit(
            gateway.submissions, gateway.access, lambda who: gateway.count(who, changes=True), asked
        )

    loops = [Every(STREAMS_SECONDS, gateway.end_refused_streams, retry_on=(StoreUnavailableError,), name="streams")]
    if tokens_kept_seconds is not None:
        forget = forgetting_tokens(store, now, kept_seconds=tokens_kept_seconds)
        loops.append(Every(FORGET_SECONDS, forget, retry_on=(StoreUnavailableError,), name="tokens"))
    if certificate is not None:
        loops.append(Every(RENEW_SECONDS, renewing(certificate), retry_on=(SettingsError,), name="certificate"))
    app, within = application(gateway), gateway.limits
    tls = None if certificate is None else certificate.context
    async with listening(
        app,
        host=host,
        port=port,
        connections_max=within.connections_max,
        per_address_max=within.connections_per_address_max,
        tls=tls,
    ) as served:
        if listens_on is not None:
            listens_on(served)
        try:
            await serve(
                "gateway",
                bus=bus,
                stop=stop,
                listens=[
                    Listen(ProgressSeen, gateway.cluster.hear_progress, group=""),
                    Listen(NodeSampled, gateway.cluster.hear_sample, group=""),
                    Listen(PoolReviewed, gateway.cluster.hear_review, group=""),
                ],
                answers=[AnswerRaw(SUBMIT_SUBJECT, submit)],
                loops=loops,
                registry=gateway.meters.registry,
                admin_host=admin_host,
                admin_port=admin_port,
            )
        finally:
            await gateway.streams.close()
            await gateway.feed.close()
