"""What a mail says, whatever names and causes there are; which addresses and settings are let through."""

from typing import Any

import msgspec
import pytest

from weft.messages.events import Event
from weft.service import SettingsError, load
from weftd.gateway.settings import GatewaySettings, MailTls
from weftd.gateway.thinking.notifications.mails import LINES_MAX, Gathered, domain_of, mistaken_address, plain_words

AT = 1_767_225_600.0
GOOD = {
    "GATEWAY_MAIL_HOST": "mail.example.org",
    "GATEWAY_MAIL_FROM": "weft@example.org",
    "GATEWAY_MAIL_DOMAINS": "example.org, lab.example",
}


def event(number: int, kind: str = "succeeded", **data: Any) -> Event:
    told = {"version": 3, "pool": "default", "job_id": f"j-{number}", "name": "train", "tenant": "alice", **data}
    return Event(
        id=number,
        topic="jobs",
        event=kind,
        subject_id=f"j-{number}",
        version=3,
        at=AT,
        tenant="alice",
        data=msgspec.Raw(msgspec.json.encode(told)),
    )


def message(*events: Event) -> Any:
    gathered = Gathered()
    for each in events:
        gathered.take(each)
    return gathered.message(to="ada@example.org", sender="weft@example.org", webhook="w-1", tenant="alice", at=AT)


def test_a_line_says_when_what_and_why() -> None:
    mail = message(event(1, "failed", exit_code=137, cause={"code": "exit", "sentence": "rank 1 ran out of memory"}))
    assert mail["Subject"] == "[weft] train (j-1) failed"
    assert mail.get_content().splitlines()[0] == (
        "2026-01-01 00:00:00  train (j-1)  failed, exit status 137: rank 1 ran out of memory"
    )


def test_a_name_with_line_breaks_adds_no_header_and_no_line() -> None:
    evil = "x\r\nBcc: eve@elsewhere.example\r\n\r\n.\r\nMAIL FROM:<eve@elsewhere.example>\u2028\u202e\x1b[31m\x00"
    hostile = event(1, "failed", name=evil, cause={"code": "exit", "sentence": evil})
    mail = message(hostile)
    raw = mail.as_bytes()
    assert mail["Bcc"] is None
    assert sorted(mail.keys()) == sorted(
        [
            *("From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted"),
            *("Content-Type", "Content-Transfer-Encoding", "MIME-Version"),
        ]
    )
    assert not any(line.startswith(("Bcc", "MAIL")) for line in raw.decode("ascii").splitlines())
    assert all(len(line) <= 998 for line in raw.splitlines())
    assert "\x1b" not in mail.get_content()
    assert len(mail.get_content().splitlines()) == len(message(event(1)).get_content().splitlines())


def test_what_is_long_is_cut_and_many_are_counted() -> None:
    assert len(plain_words("y" * 10_000)) == 300
    long = event(0, cause={"code": "exit", "sentence": "z" * 100_000})
    mail = message(*[long] * 5000)
    assert mail["Subject"] == "[weft] 5000 events: 5000 succeeded"
    assert f"… and {5000 - LINES_MAX} more" in mail.get_content()
    assert len(mail.as_bytes()) < 100_000


def test_the_same_events_have_the_same_message_id_and_others_another() -> None:
    assert message(event(1), event(2))["Message-ID"] == message(event(1), event(2))["Message-ID"]
    assert message(event(1), event(2))["Message-ID"] != message(event(1), event(3))["Message-ID"]


@pytest.mark.parametrize(
    "address",
    [
        *("", "ada", "@example.org", "ada@", "ada@@example.org", "a b@example.org", "ada@example.org\n", "<a>@b.c"),
        *("ada@exa_mple.org", "ada%x@example.org", "ada!x@example.org", '"a"@example.org', ".a@example.org"),
        *("-a@example.org", "ädä@example.org", f"{'a' * 65}@example.org", f"a@{'b' * 300}"),
    ],
)
def test_what_is_no_plain_address_has_no_domain(address: str) -> None:
    assert domain_of(address) == ""
    assert mistaken_address(f"mailto:{address}", ("example.org", "b.c"))


def test_a_domain_is_the_whole_domain() -> None:
    assert mistaken_address("mailto:Ada+x@EXAMPLE.org", ("example.org",)) == ""
    assert "sub.example.org" in mistaken_address("mailto:ada@sub.example.org", ("example.org",))
    assert mistaken_address("mailto:ada@example.org", ())


def test_settings_of_mail_are_read_and_none_of_them_sends_none() -> None:
    none = load(GatewaySettings, prefix="GATEWAY_", environ={})
    assert (none.mail.mail_host, none.mail.mail_domains) == ("", ())
    found = load(GatewaySettings, prefix="GATEWAY_", environ=GOOD).mail
    assert (found.mail_port, found.mail_tls) == (587, MailTls.STARTTLS)
    assert found.mail_domains == ("example.org", "lab.example")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"GATEWAY_MAIL_DOMAINS": ""}, "GATEWAY_MAIL_DOMAINS"),
        ({"GATEWAY_MAIL_DOMAINS": "*.example.org"}, "GATEWAY_MAIL_DOMAINS"),
        ({"GATEWAY_MAIL_DOMAINS": "Example.org"}, "GATEWAY_MAIL_DOMAINS"),
        ({"GATEWAY_MAIL_FROM": "weft"}, "GATEWAY_MAIL_FROM"),
        ({"GATEWAY_MAIL_FROM": "Weft <weft@example.org>"}, "GATEWAY_MAIL_FROM"),
        ({"GATEWAY_MAIL_PORT": "0"}, "GATEWAY_MAIL_PORT"),
        ({"GATEWAY_MAIL_PORT": "70000"}, "GATEWAY_MAIL_PORT"),
        ({"GATEWAY_MAIL_TLS": "ssl"}, "GATEWAY_MAIL_TLS"),
        ({"GATEWAY_MAIL_USER": "weft"}, "GATEWAY_MAIL_PASSWORD_FILE"),
        ({"GATEWAY_MAIL_USER": "w", "GATEWAY_MAIL_PASSWORD_FILE": "f", "GATEWAY_MAIL_TLS": "none"}, "in clear"),
        ({"GATEWAY_MAIL_SECONDS": "0"}, "GATEWAY_MAIL_SECONDS"),
    ],
)
def test_a_setting_that_fits_nothing_is_named(changed: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        load(GatewaySettings, prefix="GATEWAY_", environ={**GOOD, **changed})
