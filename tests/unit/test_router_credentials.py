"""Which tokens the router takes from a request, what it lets a replica see and set, and which pages it refuses."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weftd.gateway.limits.cookies import COOKIE as COOKIE_OF_DASHBOARD
from weftd.gateway.limits.cookies import HOST_COOKIE as HOST_COOKIE_OF_DASHBOARD
from weftd.router.thinking.credentials import (
    COOKIE,
    SET_COOKIE,
    SET_DOMAIN,
    TOKENS_MAX,
    cookie_name,
    cookie_tokens,
)
from weftd.router.thinking.origins import is_foreign, page_of

ODD_PARTS = ["weft_token", "__Host-", "-j-1", "=T", "a=b", ";", ",", " ", "\t", "\x85", "\xa0", "=", "\x0b", "x"]


@given(st.lists(st.sampled_from(ODD_PARTS), max_size=12).map("".join))
def test_no_token_that_opens_a_service_is_in_the_cookies_that_a_replica_sees(cookie: str) -> None:
    seen = re.sub(COOKIE, "", cookie)
    assert (cookie_tokens(seen, "j-1"), cookie_tokens(seen)) == ([], [])


@pytest.mark.parametrize(
    ("cookie", "tokens"),
    [
        ("a=1; weft_token=T; b=2", ["T"]),
        ("a=1;\tweft_token=T,weft_token=U", ["T", "U"]),
        ("a=b;\xa0weft_token=T", []),
        ("a=b,\x85weft_token=T", []),
        ("weft_token=A; weft_token=B; __Host-weft_token-j-1=H; __Host-weft_token-j-2=X", ["H", "A", "B"]),
        ("; ".join(f"weft_token={number}" for number in range(9)), ["0", "1", "2", "3"]),
        ("weft_token=; xweft_token=T; weft_token =T", []),
    ],
)
def test_every_token_of_a_service_is_tried_and_the_safest_first(cookie: str, tokens: list[str]) -> None:
    assert cookie_tokens(cookie, "j-1") == tokens
    assert len(tokens) <= TOKENS_MAX


def test_over_tls_the_cookie_has_a_name_that_no_other_host_can_set() -> None:
    assert [cookie_name("j-1", secure=True), cookie_name("", secure=True)] == [
        "__Host-weft_token-j-1",
        "__Host-weft_token",
    ]
    assert cookie_tokens(f"{cookie_name('j-1', secure=True)}=T", "j-1") == ["T"]
    assert cookie_tokens(f"{cookie_name('', secure=True)}=T") == ["T"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("a=1; Path=/", "a=1; Path=/"),
        ("a=1; Domain=example.org; Path=/; Secure", "a=1; Path=/; Secure"),
        ("a=1;domain = .example.org", "a=1"),
        ("weft_token=T; Path=/s/", ""),
        ("=weft_token=T", ""),
        (" \tWEFT_TOKEN=T", ""),
        ("__Host-weft_token-j-1=T; Path=/; Secure", ""),
        (f"{COOKIE_OF_DASHBOARD}=T; Path=/v1", ""),
        (f"{HOST_COOKIE_OF_DASHBOARD}=T; Path=/; Secure", ""),
        ("my_weft_token=1", "my_weft_token=1"),
    ],
)
def test_a_replica_sets_cookies_of_its_own_alone(given: str, kept: str) -> None:
    assert re.sub(SET_DOMAIN, "", re.sub(SET_COOKIE, "", given)) == kept


def test_the_dashboards_cookie_is_taken_away_and_opens_no_service() -> None:
    for name in (COOKIE_OF_DASHBOARD, HOST_COOKIE_OF_DASHBOARD):
        assert re.sub(COOKIE, "", f"a=1; {name}=T; b=2") == "a=1; b=2"
        assert cookie_tokens(f"{name}=T", "j-1") == []


HOST = "chat.alice.example.org:8480"


@pytest.mark.parametrize(
    ("said", "method", "upgraded", "foreign"),
    [
        (f"||||{HOST}|", "POST", False, False),  # no browser
        (f"||||{HOST}|http://{HOST}", "POST", False, False),
        (f"||||{HOST}|http://evil.beta.example.org:8480", "POST", False, True),
        (f"||||{HOST}|http://evil.beta.example.org:8480", "GET", True, True),
        (f"||||{HOST}|null", "POST", False, True),
        ("||||a.example.org|https://a.example.org", "POST", False, False),
        ("||||a.example.org:443|https://A.example.org", "POST", False, False),
        ("||||a.example.org|https://a.example.org:8443", "POST", False, True),
        (f"same-origin|cors|empty||{HOST}|http://before.example.org", "POST", False, False),  # a proxy's own host
        (f"none|navigate|document||{HOST}|", "GET", False, False),
        (f"same-site|cors|empty||{HOST}|", "GET", False, True),
        (f"cross-site|no-cors|image||{HOST}|", "GET", False, True),
        (f"cross-site|navigate|document||{HOST}|", "GET", False, False),
        (f"cross-site|navigate|iframe||{HOST}|", "GET", False, True),
        (f"cross-site|navigate|document||{HOST}|null", "POST", False, True),
        (f"same-site|websocket|empty||{HOST}|", "GET", True, True),
    ],
)
def test_a_page_of_another_origin_cannot_use_a_cookie(said: str, method: str, upgraded: bool, foreign: bool) -> None:
    assert is_foreign(page_of(said), method, upgraded=upgraded) is foreign
