"""Signing in with an identity provider, its roles, and every way in which a provider, a page or a person may cheat."""

import asyncio
import base64
import hashlib
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest
from aiohttp import web
from msgspec import structs

pytest.importorskip("joserfc", reason="joserfc is not installed: `make setup` installs the locked requirements")

from joserfc.jwk import RSAKey

from tests.support.builders import spec
from tests.support.gateway import Place, admitted
from tests.support.gateway_world import SETTINGS, World, error_of, opened
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider, identity_provider
from tests.support.routers import free_port
from weft.client import Client, ClientError, Refused
from weft.client.contexts import read_contexts
from weftd.cli.people import login as cli_login
from weftd.gateway.limits.cookies import COOKIE, FLOW_COOKIE, PROOF_HEADER
from weftd.gateway.oidc import provider as providers
from weftd.gateway.settings import OidcSettings

GRANTS = (
    "ml-viewers=vision:viewer",
    "ml=vision:user",
    "ml-leads=vision:tenant-admin",
    "ops=infra:operator",
    "platform=admin:admin",
)


class Cluster:
    """A gateway whose people sign in with a provider."""

    def __init__(self, world: World, provider: IdentityProvider) -> None:
        self.world, self.provider, self.url = world, provider, world.gateway.url

    async def browser(self) -> "Browser":
        return Browser(self)

    async def signed_in(self, **claims: Any) -> Client:
        """A client with the session of a person with these claims, signed in as the command line does."""
        self.provider.claims.update(claims)
        verifier = secrets.token_urlsafe(48)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        state = secrets.token_urlsafe(24)
        browser = Browser(self)
        to = await browser.back(f"?port=1&challenge={challenge}&state={state}")
        sent = parse_qs(urlsplit(to).query)
        assert (urlsplit(to).netloc, sent["state"]) == ("127.0.0.1:1", [state])
        async with self.world.gateway.client("") as nobody:
            made = await nobody.begin_session(code=sent["code"][0], verifier=verifier)
        return self.world.gateway.client(made.token, retry_seconds=0)


class Browser:
    """Follows the redirects of a sign-in by hand, with its cookies."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.http = cluster, cluster.world.http
        self.cookies: SimpleCookie = SimpleCookie()

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> tuple[int, str, bytes]:
        sent = {"Cookie": "; ".join(f"{name}={one.value}" for name, one in self.cookies.items())}
        async with self.http.get(url, headers={**sent, **(headers or {})}, allow_redirects=False) as answer:
            for name, cookie in answer.cookies.items():
                self.cookies[name] = cookie.value
            return answer.status, answer.headers.get("Location", ""), await answer.read()

    async def callback(self, query: str = "") -> str:
        """The address at which the provider sends the browser back."""
        status, to, body = await self.get(f"{self.cluster.url}/v1/oidc/login{query}")
        assert status == 302, body
        assert to.startswith(self.cluster.provider.url)
        status, back, _ = await self.get(to)
        assert (status, back.startswith(self.cluster.url)) == (302, True)
        return back

    async def back(self, query: str = "") -> str:
        """The address at which the gateway sends it on, once it is signed in."""
        status, to, body = await self.get(await self.callback(query))
        assert status == 302, body
        return to


@asynccontextmanager
async def cluster_of(servers: Place, provider: IdentityProvider, folder: Path) -> AsyncIterator[Cluster]:
    port = free_port()
    oidc = OidcSettings(
        oidc_issuer=provider.url,
        oidc_client_id=CLIENT_ID,
        oidc_gateway_url=f"http://127.0.0.1:{port}",
        oidc_grants=GRANTS,
    )
    settings = structs.replace(SETTINGS, port=port, oidc=oidc, refusals_per_second=0)
    async with opened(servers, settings, oidc_secret=CLIENT_SECRET, port=port) as world:
        yield Cluster(world, provider)


@pytest.fixture
async def provider() -> AsyncIterator[IdentityProvider]:
    async with identity_provider() as made:
        yield made


@pytest.fixture
async def cluster(servers: Place, provider: IdentityProvider, tmp_path: Path) -> AsyncIterator[Cluster]:
    async with cluster_of(servers, provider, tmp_path) as made:
        yield made


async def test_a_person_signs_in_with_a_browser_and_gets_a_session(cluster: Cluster) -> None:
    browser = Browser(cluster)
    to = await browser.back()
    assert to.startswith("/#code=code_")
    assert not browser.cookies[FLOW_COOKIE].value, "a sign-in that is over is forgotten"
    async with browser.http.post(f"{cluster.url}/v1/sessions", json={"code": to.partition("=")[2]}) as answer:
        made, cookie = await answer.json(), answer.cookies[COOKIE]
    headers = {"Cookie": f"{COOKIE}={cookie.value}", PROOF_HEADER: made["proof"]}
    async with browser.http.get(f"{cluster.url}/v1/whoami", headers=headers) as answer:
        told = await answer.json()
    assert (told["tenant"], told["label"], told["role"], told["admin"]) == ("vision", "ada@example.org", "user", False)
    (person,) = (await cluster.world.admin.people()).people
    assert (person.name, person.tenant, person.role) == ("ada@example.org", "vision", "user")
    entries = (await cluster.world.admin.audit()).entries
    hers = {one.act for one in entries if (one.who, one.person) == ("ada@example.org", person.id)}
    assert hers == {"provider", "sign-in"}


async def test_a_command_line_gets_its_code_on_127_0_0_1_and_needs_its_verifier(cluster: Cluster) -> None:
    verifier = secrets.token_urlsafe(48)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    to = await Browser(cluster).back(f"?port=4321&challenge={challenge}&state={'s' * 20}")
    assert to.startswith("http://127.0.0.1:4321/?code=code_")
    code = parse_qs(urlsplit(to).query)["code"][0]
    async with cluster.world.gateway.client("", retry_seconds=0) as nobody:
        for wrong in ("", secrets.token_urlsafe(48)):  # a thief of the address has no verifier
            with pytest.raises(Refused) as refused:
                await nobody.begin_session(code=code, verifier=wrong)
            assert refused.value.status == 401
        made = await nobody.begin_session(code=code, verifier=verifier)
        assert made.token.startswith("weft_")
    async with cluster.world.gateway.client(made.token) as ada:
        await ada.submit(spec())


FORGED = {
    "none": lambda one: setattr(one, "alg", "none"),
    "shared": lambda one: setattr(one, "alg", "HS256"),
    "another-key": lambda one: setattr(one, "signs_with", RSAKey.generate_key(2048, {"kid": "first"})),
    "unknown-key": lambda one: setattr(one, "signs_with", RSAKey.generate_key(2048, {"kid": "other"})),
    "audience": lambda one: one.changes.update(aud="another"),
    "audiences": lambda one: one.changes.update(aud=["another", CLIENT_ID]),
    "party": lambda one: one.changes.update(azp="another"),
    "issuer": lambda one: one.changes.update(iss="https://evil.example.org"),
    "expired": lambda one: one.changes.update(exp=int(time.time()) - 3600),
    "endless": lambda one: one.changes.update(exp=None),
    "future": lambda one: one.changes.update(iat=int(time.time()) + 3600),
    "nonce": lambda one: one.changes.update(nonce="of-another-sign-in"),
    "no-nonce": lambda one: one.changes.update(nonce=None),
    "no-subject": lambda one: one.changes.update(sub=None),
    "odd-subject": lambda one: one.changes.update(sub={"a": 1}),
    "odd-groups": lambda one: one.changes.update(groups={"ml": True}),
    "no-groups": lambda one: one.changes.update(groups=None),
    "other-groups": lambda one: one.changes.update(groups=["ml2", "*", "platform "]),
    "many-groups": lambda one: one.changes.update(groups=["ml"] * 1001),
}


@pytest.mark.parametrize("name", FORGED)
async def test_an_id_token_that_is_not_to_be_believed_signs_nobody_in(cluster: Cluster, name: str) -> None:
    FORGED[name](cluster.provider)
    status, to, body = await Browser(cluster).get(await (browser := Browser(cluster)).callback(), cookies_of(browser))
    assert (status, to) == (401, ""), body
    assert error_of(body)[1]
    assert not (await cluster.world.admin.people()).people
    assert not (await cluster.world.admin.sessions()).sessions
    last = (await cluster.world.admin.audit()).entries[-1]
    assert (last.outcome, last.act) == ("refused", "provider")


def cookies_of(browser: Browser) -> dict[str, str]:
    return {"Cookie": "; ".join(f"{name}={one.value}" for name, one in browser.cookies.items())}


async def test_a_code_and_a_state_are_worth_something_once_and_in_one_browser(cluster: Cluster) -> None:
    browser = Browser(cluster)
    back = await browser.callback()
    cookies = cookies_of(browser)
    victim = Browser(cluster)  # an attacker sends the address to somebody
    assert (await victim.get(back))[0] == 401
    await victim.callback()
    assert (await victim.get(back))[0] == 401, "with a sign-in of its own under way neither"
    assert (await browser.get(back.replace("state=", "state=x")))[0] == 401
    assert (await browser.get(back))[0] == 302
    assert (await browser.get(back))[0] == 401
    assert (await browser.get(back, cookies))[0] == 401, "the provider takes its code once"


async def test_the_gateway_sends_a_browser_nowhere_else(cluster: Cluster) -> None:
    browser = Browser(cluster)
    for query in (
        "?to=https://evil.example.org",
        "?redirect_uri=https://evil.example.org",
        "?port=80@evil.example.org&challenge=" + "a" * 43 + "&state=" + "s" * 20,
        "?port=0&challenge=" + "a" * 43 + "&state=" + "s" * 20,
        "?port=1",
        "?port=1&challenge=short&state=" + "s" * 20,
        "?port=1&challenge=" + "a" * 43 + "&state=s%0d%0aLocation:%20x" + "s" * 20,
    ):
        status, to, _ = await browser.get(f"{cluster.url}/v1/oidc/login{query}")
        assert (status, to) == (400, ""), query
    back = await browser.callback()
    for more in ("&to=https://evil.example.org", "&port=1", "&redirect_uri=//evil.example.org"):
        fresh = Browser(cluster)
        status, to, _ = await fresh.get(await fresh.callback() + more)
        assert to.startswith("/#code=")
    assert back


async def test_roles_allow_what_they_say(cluster: Cluster) -> None:
    job = await cluster.world.admin.submit(spec())

    async def allowed(client: Client) -> dict[str, bool]:
        found = {}
        async with client:
            acts = {
                "read": client.jobs(),
                "submit": client.submit(spec()),
                "hook": client.add_webhook(hook()),
                "audit": client.audit(),
                "drain": client.drain("node-1"),
                "token": client.make_token("vision", f"x-{secrets.token_hex(3)}"),
                "other": client.job(job.id),
            }
            for name, act in acts.items():
                try:
                    await act
                    found[name] = True
                except Refused as error:
                    found[name] = error.status not in (403, 404)
        return found

    may = {
        "ml-viewers": "read",
        "ml": "read submit",
        "ml-leads": "read submit hook audit",
        "ops": "read submit hook audit drain",
        "platform": "read submit hook audit drain token other",
    }
    for group, words in may.items():
        client = await cluster.signed_in(sub=f"of-{group}", groups=[group])
        assert {name for name, good in (await allowed(client)).items() if good} == set(words.split()), group


def hook() -> Any:
    from weft.messages.webhooks import WebhookWanted

    return WebhookWanted(url="http://127.0.0.1:9/")


async def test_a_job_is_submitted_and_cancelled_by_a_person_and_not_by_a_whole_tenant(cluster: Cluster) -> None:
    ada = await cluster.signed_in()
    async with ada:
        job = await ada.submit(spec())
        await ada.submit(spec(name="sweep", array="0-1"))
        await admitted(cluster.world.place, cluster.world.lease, job.id)
        assert {one.submitter for one in (await ada.jobs()).jobs} == {"ada@example.org"}
        assert [one.submitter for one in (await ada.arrays()).arrays] == ["ada@example.org"]
        assert (await ada.explain(job.id)).submitter == "ada@example.org"
        event, *_ = await ada.story(job.id)
        assert event.data.cause is not None
        assert event.data.cause.sentence == "submitted by ada@example.org of vision"
        await ada.cancel(job.id)
    (asked,) = await cluster.world.take_asks()
    assert asked.by == "ada@example.org of vision"
    async with cluster.world.gateway.client(cluster.world.tokens["alice"]) as program:
        other = await program.submit(spec())
        assert (await program.job(other.id)).submitter == ""


async def test_a_person_who_lost_the_group_is_signed_out_everywhere_at_the_next_sign_in(cluster: Cluster) -> None:
    ada = await cluster.signed_in()
    async with ada:
        await ada.jobs()
        cluster.provider.claims["groups"] = []
        browser = Browser(cluster)
        assert (await browser.get(await browser.callback()))[0] == 401
        with pytest.raises(Refused) as refused:
            await ada.jobs()
        assert refused.value.status == 401


async def test_a_name_with_an_escape_sequence_reaches_no_terminal(cluster: Cluster) -> None:
    async with await cluster.signed_in(email="a\x1b]0;owned\x07\u202eda@example.org") as ada:
        job = await ada.submit(spec())
        name = (await ada.job(job.id)).submitter
    assert (name.isprintable(), name.endswith("da@example.org")) == (True, True)
    assert {one.who for one in (await cluster.world.admin.audit()).entries if one.person} == {name}


async def test_another_role_counts_for_all_sessions_from_the_next_sign_in_on(cluster: Cluster) -> None:
    lead = await cluster.signed_in(groups=["ml-leads"])
    async with lead:
        await lead.audit()
        await cluster.signed_in(groups=["ml-viewers"])
        with pytest.raises(Refused) as refused:
            await lead.submit(spec())
        assert refused.value.status == 403


async def test_a_person_who_is_kept_out_loses_sessions_and_streams(cluster: Cluster) -> None:
    ada = await cluster.signed_in()
    async with ada:
        following = asyncio.create_task(followed(ada))
        await asyncio.sleep(0)
        (person,) = (await cluster.world.admin.people()).people
        await cluster.world.admin.keep_out(person.id)
        with pytest.raises(ClientError):  # cut, so that nobody takes it for the end
            await asyncio.wait_for(following, 30)
        with pytest.raises(Refused) as refused:
            await ada.jobs()
        assert refused.value.status == 401
    browser = Browser(cluster)
    assert (await browser.get(await browser.callback()))[0] == 401
    await cluster.world.admin.keep_out(person.id, disabled=False)
    assert (await Browser(cluster).back()).startswith("/#code=")


async def followed(client: Client) -> None:
    async for _ in client.follow_events():
        pass


async def test_losing_the_provider_locks_nobody_out_who_is_signed_in(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(providers, "SECONDS_MAX", 0.3)
    ada = await cluster.signed_in()
    async with ada:
        cluster.provider.hangs = True
        browser = Browser(cluster)
        began = time.monotonic()
        status, _, body = await browser.get(await browser.callback())
        assert status == 503
        assert "did not answer within" in error_of(body)[1]
        assert time.monotonic() - began < 20
        await ada.submit(spec())


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=302, headers={"Location": "https://evil.example.org"}),
        web.Response(body=b"x" * (1 << 20)),
        web.Response(body=b"[" * 100_000),
        web.Response(text="{}"),
        web.Response(text='{"id_token": 1}'),
        web.Response(text='{"id_token": "a.b.c"}'),
        web.Response(status=500),
    ],
    ids=["redirect", "large", "deep", "empty", "odd", "none", "500"],
)
async def test_a_provider_that_answers_as_none_does_signs_nobody_in(cluster: Cluster, answer: web.Response) -> None:
    cluster.provider.answer = answer
    browser = Browser(cluster)
    status, _, body = await browser.get(await browser.callback())
    assert status in (401, 503), body
    assert len(body) < 1500


async def test_a_provider_may_change_its_keys(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await Browser(cluster).back()
    monkeypatch.setattr(providers, "AGAIN_SECONDS", 0.0)
    cluster.provider.key = cluster.provider.signs_with = RSAKey.generate_key(2048, {"kid": "second"})
    await Browser(cluster).back()


async def test_forged_tokens_do_not_make_the_gateway_ask_for_keys_without_end(cluster: Cluster) -> None:
    cluster.provider.signs_with = RSAKey.generate_key(2048, {"kid": "other"})
    for _ in range(5):
        browser = Browser(cluster)
        assert (await browser.get(await browser.callback()))[0] == 401
    assert cluster.provider.asked.count("jwks") == 1


async def test_a_device_is_signed_in_once_the_person_confirmed(cluster: Cluster) -> None:
    async with cluster.world.gateway.client("", retry_seconds=0) as nobody:
        device = await nobody.begin_device()
        assert (await nobody.begin_session(device_code=device.device_code)).pending
        cluster.provider.confirmed = True
        made = await nobody.begin_session(device_code=device.device_code)
        assert (made.tenant, made.proof) == ("vision", "")
        async with cluster.world.gateway.client(made.token) as ada:
            assert (await ada.whoami()).label == "ada@example.org"


async def test_weft_login_signs_in_through_a_browser_and_keeps_the_session(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from weftd.cli.__main__ import main

    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    loop = asyncio.get_running_loop()

    def opened_browser(url: str) -> bool:
        async def follow() -> None:
            browser = Browser(cluster)
            planted = urlsplit(url).query.partition("port=")[2].partition("&")[0]
            status, _, _ = await browser.get(f"http://127.0.0.1:{planted}/?code=code_of-an-attacker&state=x")
            assert status == 400
            to = await browser.back(f"?{urlsplit(url).query}")
            assert (await browser.get(to))[0] == 200

        asyncio.run_coroutine_threadsafe(follow(), loop)
        return True

    monkeypatch.setattr("webbrowser.open", opened_browser)
    assert await asyncio.to_thread(main, ["login", cluster.url, "--name", "here"]) == 0
    kept = read_contexts(environment).contexts["here"]
    async with Client(kept.url, kept.token) as ada:
        assert (await ada.whoami()).person
    assert cli_login


@asynccontextmanager
async def mock_provider(log: Path) -> AsyncIterator[str]:
    """The issuer of an oidc-provider-mock in a process of its own."""
    if find_spec("oidc_provider_mock") is None:
        pytest.skip("oidc-provider-mock is not installed: `make setup` installs the locked requirements")
    port = free_port()
    claims = '{"sub": "grace", "email": "grace@example.org", "groups": ["ops"]}'
    with log.open("wb") as written:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-W", "ignore", "-m", "oidc_provider_mock", "--port", str(port), "--user-claims", claims),
            stdout=written,
            stderr=written,
        )
    url = f"http://127.0.0.1:{port}/.well-known/openid-configuration"
    try:
        async with aiohttp.ClientSession() as http, asyncio.timeout(60):
            while True:
                try:
                    async with http.get(url) as answer:
                        yield (await answer.json())["issuer"]
                        return
                except aiohttp.ClientConnectorError:
                    await asyncio.sleep(0.1)
    finally:
        process.terminate()
        await process.wait()


async def test_with_the_provider_of_the_package_index(servers: Place, tmp_path: Path) -> None:
    """An independent implementation: oidc-provider-mock."""
    port = free_port()
    async with mock_provider(tmp_path / "provider.log") as issuer:
        oidc = OidcSettings(
            oidc_issuer=issuer,
            oidc_client_id=CLIENT_ID,
            oidc_gateway_url=f"http://127.0.0.1:{port}",
            oidc_grants=GRANTS,
        )
        settings = structs.replace(SETTINGS, port=port, oidc=oidc)
        async with opened(servers, settings, oidc_secret=CLIENT_SECRET, port=port) as world:
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
                async with http.get(f"{world.gateway.url}/v1/oidc/login", allow_redirects=False) as answer:
                    to = answer.headers["Location"]
                async with http.post(to, data={"sub": "grace"}, allow_redirects=False) as answer:
                    back = answer.headers["Location"]
                async with http.get(back, allow_redirects=False) as answer:
                    assert answer.status == 302, await answer.text()
                    code = answer.headers["Location"].partition("=")[2]
                async with http.post(f"{world.gateway.url}/v1/sessions", json={"code": code}) as answer:
                    assert answer.status == 201
            (person,) = (await world.admin.people()).people
            assert (person.name, person.tenant, person.role) == ("grace@example.org", "infra", "operator")
