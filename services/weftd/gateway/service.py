"""I/O of the gateway: serves HTTP and NATS requests, keeps the newest messages of nodes, and stops in order."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from weft.bus import Bus, RawRequest
from weft.messages.asks import SubmitAnswered
from weft.messages.contexts import ContextRead, ReadContext
from weft.messages.files import CheckpointRead, FilesKept, ReadCheckpoint
from weft.messages.images import ImageRead, ReadImage
from weft.messages.nodes import ProgressSeen, ReadSecrets, SecretsRead
from weft.messages.serving import EndpointsSeen, ServicesServed
from weft.messages.sessions import SessionLeft
from weft.messages.signals import NodeSampled, PoolReviewed, ServiceReported
from weft.service import Answer, AnswerRaw, Every, Listen, SettingsError, serve
from weft.service.keys import ServerCertificate
from weft.store import GatewayStore, StoreUnavailableError
from weftd.gateway.api.tokens import ADMIN_TENANT, keep_file_token
from weftd.gateway.api.uploads import forgetting_contexts
from weftd.gateway.app import application
from weftd.gateway.checkpoints import read_checkpoint
from weftd.gateway.errors import RejectedError, unavailable
from weftd.gateway.gateway import HEARTBEAT_SECONDS, Gateway
from weftd.gateway.limits.access import must_change
from weftd.gateway.limits.connections import listening
from weftd.gateway.limits.cpu_budget import PaidThreads, no_time
from weftd.gateway.notifications.dispatcher import BEAT_SECONDS, Dispatcher
from weftd.gateway.notifications.mailing import Mailer
from weftd.gateway.notifications.posting import Poster
from weftd.gateway.notifications.tracing import Tracing
from weftd.gateway.registry.pinning import read_image
from weftd.gateway.schedules import BEAT_SECONDS as SCHEDULES_SECONDS
from weftd.gateway.schedules import Schedules
from weftd.gateway.secret_provider import read, read_context
from weftd.gateway.settings import GatewaySettings
from weftd.gateway.thinking.notifications.addresses import networks_of
from weftd.gateway.thinking.rings import FINE_SECONDS

logger = logging.getLogger(__name__)
STREAMS_SECONDS = 1.0  # between two checks of the tokens of open streams
FORGET_SECONDS = 3600.0
THREADS_MAX = 4
FORESEE_SECONDS = 1.0  # minimum time between two updates of the data for estimates
RENEW_SECONDS = 5.0  # between two checks of the certificate's files
FORGET_AUDIT_MAX = 50_000  # entries at once
SUBMIT_SUBJECT = "weft.submit"
SUBMITS_AT_ONCE = 256  # all tenants together, each with its specification in memory; more wait in the bus
NATS_SOURCE = "NATS"  # a request over NATS has no source address: its connection's inbox stands for that


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


def forgetting_audit(store: GatewayStore, *, kept_days: float, entries_max: int) -> Callable[[], Awaitable[None]]:
    async def forget() -> None:
        count = await store.forget_audit(
            kept_seconds=kept_days * 86400.0, entries_max=entries_max, at_most=FORGET_AUDIT_MAX
        )
        if count:
            logger.info("%d old entries of the audit log were deleted", count)

    return forget


def _telling(
    settings: GatewaySettings,
    store: GatewayStore,
    *,
    now: Callable[[], float],
    clock: Callable[[], float],
    characters: Callable[[int], str],
    mail_password: str,
) -> Dispatcher | None:
    """None: nothing is told outside."""
    if not settings.webhooks and not settings.otlp_url and not settings.mail.mail_host:
        return None
    allowed = networks_of(settings.webhooks_networks)
    return Dispatcher(
        store,
        poster=Poster(allowed) if settings.webhooks else None,
        mailer=Mailer(settings.mail, mail_password) if settings.mail.mail_host else None,
        tracing=Tracing(store, Poster(None), settings.otlp_url) if settings.otlp_url else None,
        holder=characters(20),
        now=now,
        clock=clock,
        off_seconds=settings.webhooks_off_hours * 3600.0,
    )


async def run(
    settings: GatewaySettings,
    *,
    bus: Bus,
    store: GatewayStore,
    stop: asyncio.Event,
    now: Callable[[], float],
    clock: Callable[[], float],
    characters: Callable[[int], str],
    tokens: Mapping[str, str],
    mail_password: str = "",
    oidc_secret: str = "",
    certificate: ServerCertificate | None = None,
    listens_on: Callable[[int], None] | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    processor: Callable[[], float] | None = None,
) -> None:
    """Run until `stop` is set. `tokens`: tokens from files, by tenant; "" is none.

    With a `certificate` the gateway serves HTTPS. `listens_on` is called with the port. `processor` is the processor's
    time of the calling thread; without it no tenant is held to its part of the processor.
    """
    gateway = Gateway(
        store=store,
        bus=bus,
        now=now,
        clock=clock,
        characters=characters,
        settings=settings,
        heartbeat_seconds=heartbeat_seconds,
        processor=processor or no_time,
        ticket_secret=tokens.get(ADMIN_TENANT, ""),
        oidc_secret=oidc_secret,
    )
    if processor is not None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(PaidThreads(gateway.cpu_budgets, loop, processor, most=THREADS_MAX))
    telling = _telling(settings, store, now=now, clock=clock, characters=characters, mail_password=mail_password)
    schedules = Schedules(store, gateway.submissions, gateway.wakeups, holder=characters(20), now=now, clock=clock)
    for tenant, token in tokens.items():
        if token:
            await keep_file_token(store, token, tenant=tenant, at=now())

    async def submit(asked: RawRequest) -> SubmitAnswered:
        return await answer_submit(gateway, asked)

    async def read_secrets(asked: ReadSecrets) -> SecretsRead:
        return await read(store, asked)

    async def give_context(asked: ReadContext) -> ContextRead:
        return await read_context(store, asked, at=now())

    async def give_checkpoint(asked: ReadCheckpoint) -> CheckpointRead:
        return await read_checkpoint(store, bus, asked)

    async def give_image(asked: ReadImage) -> ImageRead:
        return await read_image(store, gateway.registry, asked)

    forget_contexts = forgetting_contexts(store, now, kept_days=settings.contexts_kept_days)
    loops = [Every(STREAMS_SECONDS, gateway.end_refused_streams, retry_on=(StoreUnavailableError,), name="streams")]
    # An error here must not stop the gateway: only the next explanation takes longer.
    loops.append(Every(FORESEE_SECONDS, gateway.foresee, retry_on=(Exception,), name="estimates"))
    loops.append(Every(FINE_SECONDS, gateway.sample, retry_on=(StoreUnavailableError,), name="samples"))
    # A mistake about one schedule must end no gateway: its run is tried again, and those of the others go on.
    loops.append(Every(SCHEDULES_SECONDS, schedules.beat, retry_on=(Exception,), name="schedules"))
    if telling is not None:
        loops.append(Every(BEAT_SECONDS, telling.beat, retry_on=(StoreUnavailableError,), name="telling"))
    if settings.tokens_kept_days:
        forget = forgetting_tokens(store, now, kept_seconds=settings.tokens_kept_days * 86400.0)
        loops.append(Every(FORGET_SECONDS, forget, retry_on=(StoreUnavailableError,), name="tokens"))
    if settings.audit_kept_days or settings.audit_entries_max:
        forget_audit = forgetting_audit(
            store, kept_days=settings.audit_kept_days, entries_max=settings.audit_entries_max
        )
        loops.append(Every(FORGET_SECONDS, forget_audit, retry_on=(StoreUnavailableError,), name="audit"))
    loops.append(Every(FORGET_SECONDS, forget_contexts, retry_on=(StoreUnavailableError,), name="contexts"))
    if certificate is not None:
        loops.append(Every(RENEW_SECONDS, renewing(certificate), retry_on=(SettingsError,), name="certificate"))
    async with listening(
        application(gateway),
        host=settings.host,
        port=settings.port,
        connections_max=settings.connections_max,
        per_address_max=settings.connections_per_address_max,
        tls=None if certificate is None else certificate.context,
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
                    Listen(FilesKept, gateway.kept.hear, group=""),
                    Listen(NodeSampled, gateway.cluster.hear_sample, group=""),
                    Listen(PoolReviewed, gateway.cluster.hear_review, group=""),
                    Listen(EndpointsSeen, gateway.cluster.serving.hear_endpoints, group=""),
                    Listen(ServicesServed, gateway.cluster.serving.hear_served, group=""),
                    Listen(ServiceReported, gateway.processes.hear, group=""),
                ],
                answers=[
                    AnswerRaw(SUBMIT_SUBJECT, submit, at_once=SUBMITS_AT_ONCE),
                    Answer(ReadSecrets, read_secrets),
                    Answer(ReadContext, give_context),
                    Answer(ReadCheckpoint, give_checkpoint),
                    Answer(ReadImage, give_image),
                    Answer(SessionLeft, gateway.entries.reported),
                ],
                loops=loops,
                registry=gateway.meters.registry,
                admin_host=settings.admin_host,
                reports=True,
                admin_port=settings.admin_port,
            )
        finally:
            await schedules.close()
            if telling is not None:
                await telling.close()
            await gateway.streams.close()
            await gateway.entries.close()
            await gateway.live.close()
            if gateway.registry is not None:
                await gateway.registry.close()
            if gateway.provider is not None:
                await gateway.provider.close()
            await gateway.queue_estimates.close()
            await gateway.feed.close()


async def answer_submit(gateway: Gateway, asked: RawRequest) -> SubmitAnswered:
    """Answer a request on `weft.submit`. Its tenant waits as over HTTP: for its CPU budget and for a slot."""
    headers = {name.lower(): value for name, value in asked.headers.items()}
    try:
        try:
            who = await gateway.access.of(headers.get("authorization"), source=f"{NATS_SOURCE} {asked.sender}")
            gateway.count(who, changes=True)
            must_change(who)
            async with gateway.over_nats.one(who.tenant):
                await gateway.cpu_budgets.go(who.tenant)
                async with gateway.at_work.one(who.tenant):
                    work = gateway.submissions.submit(
                        who,
                        asked.payload,
                        content_type=headers.get("content-type", ""),
                        key=headers.get("idempotency-key"),
                    )
                    submitted = await gateway.cpu_budgets.paid(who.tenant, work)
        except StoreUnavailableError:
            raise unavailable() from None
    except RejectedError as error:
        later = error.retry_after if error.status in (429, 503) else 0.0
        return SubmitAnswered(error=error.reason, field=error.field, retry_after=later)
    return SubmitAnswered(job_id=submitted.id, created=submitted.created)
