"""Mail to tenants, over real SMTP to servers that take it, refuse it, hang and drip; and over a real gateway."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support import receivers
from tests.support.builders import spec
from tests.support.gateway import Place
from tests.support.gateway_world import SETTINGS, World, error_of, opened
from tests.support.mail_server import Mailbox, drip, flood, mail_server, port_of
from tests.support.receivers import Behaviour, serving
from tests.support.tls import Authority
from weft.client import Refused
from weft.domain.job import Cause, CauseCode, JobEvent
from weft.messages.webhooks import WebhookWanted
from weft.store import GatewayStore
from weft.store.webhooks import WebhookKept
from weftd.gateway.notifications.dispatcher import Dispatcher
from weftd.gateway.notifications.mailing import Mailer, MailError
from weftd.gateway.settings import MailSettings, MailTls
from weftd.gateway.thinking.notifications.mails import UNASKED

SECONDS_MAX = 60.0


async def until(done: Callable[[], bool], step: Callable[[], Awaitable[None]] | None = None) -> None:
    async with asyncio.timeout(SECONDS_MAX):
        while not done():
            if step is not None:
                await step()
            await asyncio.sleep(0.02)


def settings(port: int, **fields: Any) -> MailSettings:
    given = {"mail_tls": MailTls.NONE, "mail_from": "weft@example.org", "mail_domains": ("example.org",), **fields}
    return MailSettings(mail_host="localhost", mail_port=port, **given)


def mail() -> EmailMessage:
    made = EmailMessage()
    made["From"], made["To"], made["Subject"] = "Weft <weft@example.org>", "ada@example.org", "hello"
    made.set_content(".\n.begins with a dot\n")
    return made


async def error_from(mailer: Mailer) -> MailError:
    with pytest.raises(MailError) as raised:
        await mailer.send("ada@example.org", mail())
    return raised.value


class Day:
    """A store, a duty, a clock that the test turns, and mail by one server."""

    def __init__(self, store: GatewayStore, mailer: Mailer) -> None:
        self.now = 1_767_225_600.0
        self.store = store
        self.telling = Dispatcher(
            self.store,
            poster=None,
            mailer=mailer,
            tracing=None,
            holder="one",
            now=lambda: self.now,
            clock=lambda: self.now,
            off_seconds=86_400.0,
        )

    async def wanted(self, *events: str, address: str = "ada@example.org", name: str = "w-1") -> None:
        kept = WebhookKept(
            id=name,
            tenant="alice",
            url=f"mailto:{address}",
            events=events or ("submitted",),
            all_tenants=False,
            secret="",
            created_at=self.now,
            cursor="",
        )
        assert await self.store.add_webhook(kept, most=100)

    async def known(self) -> WebhookKept:
        (kept,) = await self.store.webhooks()
        return kept

    async def submit(self, *numbers: int, tenant: str = "alice") -> None:
        for number in numbers:
            await self.store.submit(
                spec(name=f"train-{number}"), job_id=f"j-{number}", tenant=tenant, key=None, at=self.now
            )


# one mail


async def test_a_mail_is_handed_over_with_a_password_over_tls_from_a_word_or_from_the_first_byte(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("localhost", into="mail")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.cert, pair.key)
    secret = {"mail_user": "weft", "mail_password_file": "pw", "mail_ca_file": str(authority.ca_file)}
    async with mail_server(password="hunter2", tls=context) as box:
        wanted = settings(box.port, **{**secret, "mail_tls": MailTls.STARTTLS})
        await Mailer(wanted, "hunter2").send("ada@example.org", mail())
        assert box.encrypted == [True]
        assert box.envelopes[0][0].startswith("mail FROM:<weft@example.org>")
        assert box.envelopes[0][1] == "rcpt TO:<ada@example.org>"
        assert box.mails[0].get_content().splitlines() == [".", ".begins with a dot"]
        wrong = await error_from(Mailer(wanted, "guessed"))
        assert (str(wrong), wrong.final) == ("the mail server did not accept the gateway's password", False)
        stranger = msgspec.structs.replace(wanted, mail_ca_file="")
        assert "TLS with the mail server failed" in str(await error_from(Mailer(stranger, "hunter2")))
        elsewhere = msgspec.structs.replace(wanted, mail_host="127.0.0.1")
        assert "TLS with the mail server failed" in str(await error_from(Mailer(elsewhere, "hunter2")))
    async with mail_server(password="hunter2", tls=context, offers=False) as box:
        refused = await error_from(Mailer(settings(box.port, **{**secret, "mail_tls": MailTls.STARTTLS}), "hunter2"))
        assert "STARTTLS" in str(refused)
        assert not any(command.startswith("AUTH") for command in box.commands), "no password goes in clear"
    box = Mailbox(password="hunter2")
    server = await asyncio.start_server(box.serve, "localhost", 0, ssl=context)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await Mailer(settings(port, **{**secret, "mail_tls": MailTls.TLS}), "hunter2").send("ada@example.org", mail())
        assert len(box.mails) == 1


@pytest.mark.parametrize(
    ("refuses", "why", "final"),
    [
        ({"rcpt": "550 5.1.1 no such\x07 user"}, "refused the address: 550 5.1.1 no such  user", True),
        ({"rcpt": "451 try later"}, "refused the address: 451 try later", False),
        ({"mail": "550 not from inner-host.corp"}, "the mail server answered 550", False),
        ({"data": "552 full"}, "the mail server answered 552", False),
        ({"ehlo": "421 busy", "helo": "421 busy"}, "the mail server answered 421", False),
    ],
)
async def test_a_refusal_says_why_and_what_is_final_ends_it(refuses: dict[str, str], why: str, final: bool) -> None:
    async with mail_server(refuses=refuses) as box:
        error = await error_from(Mailer(settings(box.port), ""))
        assert why in str(error)
        assert "inner-host" not in str(error)
        assert error.final == final
        assert not box.mails


@pytest.mark.parametrize("behaviour", [receivers.hang, receivers.garbage, receivers.close_at_once, drip, flood])
async def test_a_hostile_server_is_left_in_time_and_holds_up_no_later_mail(behaviour: Behaviour) -> None:
    async with serving(behaviour) as url:
        mailer = Mailer(settings(port_of(url)), "", seconds_max=0.5)
        async with asyncio.timeout(SECONDS_MAX):
            errors = await asyncio.gather(*(error_from(mailer) for _ in range(10)))
        assert len({str(error) for error in errors}) >= 1
        assert not any(error.final for error in errors)


async def test_a_server_that_is_not_there_is_said_to_be_out_of_reach() -> None:
    async with mail_server() as box:
        port = box.port
    assert str(await error_from(Mailer(settings(port), ""))) == "the mail server cannot be reached"


# many events


async def test_many_ends_are_one_mail_and_the_next_comes_a_minute_later(store: GatewayStore) -> None:
    async with mail_server() as box:
        day = Day(store, Mailer(settings(box.port), ""))
        await day.wanted()
        await day.submit(*range(250))
        await day.submit(1000, tenant="bob")
        await until(lambda: len(box.mails) == 1 and not day.telling.busy, day.telling.beat)
        assert box.mails[0]["Subject"] == "[weft] 250 events: 250 submitted"
        text = box.mails[0].get_content()
        assert "train-0 (j-0)  submitted" in text
        assert "… and 150 more" in text
        assert "j-1000" not in text, "another tenant's"
        assert "weft webhook remove w-1" in text
        assert (await day.known()).delivered == 250
        await day.submit(251)
        day.now += 59
        for _ in range(5):
            await day.telling.beat()
            await until(lambda: not day.telling.busy)
        assert len(box.mails) == 1
        day.now += 2
        await until(lambda: len(box.mails) == 2, day.telling.beat)
        assert box.mails[1]["Subject"] == "[weft] train-251 (j-251) submitted"
        assert box.mails[1]["Message-ID"] != box.mails[0]["Message-ID"]
        assert box.mails[1]["Auto-Submitted"] == "auto-generated"
        await day.telling.close()


async def test_what_was_not_taken_comes_again_with_what_came_since_and_what_is_refused_for_good_ends_it(
    store: GatewayStore,
) -> None:
    async with mail_server(refuses={"data": "451 later"}) as box:
        day = Day(store, Mailer(settings(box.port), ""))
        await day.wanted()
        await day.submit(1)
        await until(lambda: "data" in box.commands and not day.telling.busy, day.telling.beat)
        kept = await day.known()
        assert (kept.failures, kept.off, kept.error) == (1, "", "the mail server answered 451")
        assert kept.not_before == day.now + 1.0
        box.refuses.clear()
        await day.submit(2)
        day.now += 61
        await until(lambda: len(box.mails) == 1 and not day.telling.busy, day.telling.beat)
        assert box.mails[0]["Subject"] == "[weft] 2 events: 2 submitted"
        assert (await day.known()).failures == 0
        box.refuses["rcpt"] = "550 no such user"
        await day.submit(3)
        day.now += 61
        await until(lambda: sum(one.startswith("rcpt") for one in box.commands) == 3, day.telling.beat)
        await until(lambda: not day.telling.busy)
        assert (await day.known()).off == "the mail server refused the address: 550 no such user"
        await day.telling.close()


async def test_what_no_mail_wants_is_passed_over_and_a_domain_that_is_allowed_no_more_gets_none(
    store: GatewayStore,
) -> None:
    async with mail_server() as box:
        day = Day(store, Mailer(settings(box.port), ""))
        await day.wanted("failed")
        await day.submit(*range(30))
        await day.telling.beat()
        await until(lambda: not day.telling.busy)
        newest = (await day.store.events(newest=True, limit=1))[-1].cursor
        assert (await day.known()).cursor == newest
        await day.store.remove_webhook("w-1")
        await day.wanted(address="ada@elsewhere.example", name="w-2")
        await day.telling.beat()
        await until(lambda: not day.telling.busy)
        assert "GATEWAY_MAIL_DOMAINS" in (await day.known()).error
        assert box.commands == []
        await day.telling.close()


# over a gateway


async def test_a_tenant_gets_mail_of_its_own_jobs_at_an_address_that_the_owner_allows(servers: Place) -> None:
    async with mail_server() as box:
        allowed = msgspec.structs.replace(SETTINGS, mail=settings(box.port))
        async with opened(servers, allowed) as world:
            made = await world.alice.add_webhook(WebhookWanted(url="mailto:Ada@Example.org"))
            assert made.secret == ""
            assert made.webhook.events == UNASKED
            await world.bob.add_webhook(WebhookWanted(url="mailto:bob@example.org"))
            with pytest.raises(Refused) as refused:
                await world.alice.add_webhook(WebhookWanted(url="mailto:ada@example.org"))
            assert refused.value.status == 409
            job = await world.running(name="train")
            await world.go(job, JobEvent.REQUEUED, cause=Cause(code=CauseCode.NODE_LOST, sentence="node-1 is silent"))
            await until(lambda: len(box.mails) >= 1)
            assert {taker for _, taker in box.envelopes} == {"rcpt TO:<Ada@Example.org>"}
            assert "train" in box.mails[0].get_content()
            (kept,) = (await world.alice.webhooks()).webhooks
            assert kept.url == "mailto:Ada@Example.org"
            await world.alice.remove_webhook(kept.id)
            for url in (
                "mailto:ada@elsewhere.example",
                "mailto:ada@sub.example.org",
                "mailto:ada@example.org,eve@example.org",
                "mailto:ada@example.org?bcc=eve@elsewhere.example",
                "mailto:ada%0d%0aRCPT@example.org",
                "mailto:eve@elsewhere.example@example.org",
                "mailto:@example.org",
                "mailto:-f@example.org",
                f"mailto:{'a' * 65}@example.org",
                "mailto:ada",
            ):
                status, answer, _ = await world.ask("POST", "/v1/webhooks", data=msgspec.json.encode({"url": url}))
                assert (status, error_of(answer)[0]) == (400, "url"), (url, answer)


async def test_without_a_server_and_domains_there_is_no_mail(world: World) -> None:
    status, answer, _ = await world.ask("POST", "/v1/webhooks", data=b'{"url": "mailto:ada@example.org"}')
    assert status == 403
    assert "GATEWAY_MAIL_HOST" in error_of(answer)[1]
