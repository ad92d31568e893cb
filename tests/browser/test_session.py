"""Signing in and out: where the token is, where it is not, and what becomes of the page when it ends."""

import asyncio
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Route, expect

from tests.support.dashboard import Dashboard, dashboard
from tests.support.gateway_world import World
from tests.support.proxy import Proxy
from tests.support.steps import placement
from tests.support.tier import some

REFUSED = "status of 401"  # the line that Chromium itself writes for such an answer
STORED = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state])"
CUT = "ERR_INCOMPLETE_CHUNKED_ENCODING"  # and for a stream that the gateway ends
BROKEN = ("ERR_CONNECTION_RESET", "ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", CUT)  # and where it is not there
REVOKED_MS_MAX = 15_000
SILENCE_MS_MAX = 45_000  # of a live stream, until the page takes it for cut


async def stored(window: Dashboard) -> str:
    return str(await window.page.evaluate(STORED))


async def test_a_token_that_is_not_in_force_is_refused_with_a_sentence(browser: Browser, world: World) -> None:
    async with dashboard(browser, world.gateway.url) as window:
        window.watch.expect(REFUSED)
        await window.page.goto(window.url)
        await window.submit_token("weft_not-in-force")
        await expect(window.page.get_by_role("alert")).to_contain_text("does not know this token")
        await expect(window.page.get_by_label("Token", exact=True)).to_be_focused()
        await window.submit_token("weft_ü with spaces")
        await expect(window.page.get_by_role("alert")).to_contain_text("no spaces")


async def test_a_reload_keeps_the_session_of_which_scripts_see_no_token(browser: Browser, world: World) -> None:
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        (cookie,) = await window.page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/v1")
        for secret in (world.tokens["alice"], cookie["value"]):
            assert secret not in await stored(window)
        await window.page.reload()
        await window.is_live()
        other = await window.page.context.new_page()  # a link that a colleague sends opens a new tab
        await other.goto(f"{window.url}/#/queue")
        await expect(other.get_by_role("heading", name="Queue")).to_be_visible()
        await window.account("Sign out")
        await expect(window.button("Sign in")).to_be_visible()
        assert not await window.page.context.cookies()
        assert not (await world.alice.sessions()).sessions
        await window.page.reload()
        await expect(window.button("Sign in")).to_be_visible()


async def test_a_link_may_fill_the_form_in_but_does_not_sign_in_and_leaves_the_address(
    browser: Browser, world: World
) -> None:
    async with dashboard(browser, world.gateway.url) as window:
        for client in (world.alice, world.bob):  # on a new page, then on one that is open
            code = (await client.make_code()).code
            await window.page.goto(f"{window.url}/#code={code}")
            await expect(window.page.get_by_label("Token", exact=True)).to_have_value(code)
            assert code not in await stored(window)
            await expect(window.button("Sign in")).to_be_visible()
        assert not any("/v1/" in asked and "/v1/oidc" not in asked for asked in window.watch.asked)
        await window.button("Sign in").click()
        await window.is_live()
        await expect(window.page.get_by_role("banner")).to_contain_text("bob")


async def test_a_link_that_was_used_says_so(browser: Browser, world: World) -> None:
    async with dashboard(browser, world.gateway.url) as window:
        window.watch.expect(REFUSED)
        code = (await world.alice.make_code()).code
        async with world.http.post(f"{world.gateway.url}/v1/sessions", json={"code": code}) as answer:
            assert answer.status == 201
        await window.page.goto(f"{window.url}/#code={code}")
        await window.button("Sign in").click()
        await expect(window.page.get_by_role("alert")).to_contain_text("This link was used, or is too old")


async def test_a_link_does_not_sign_a_person_in_as_another(browser: Browser, world: World) -> None:
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        code = (await world.bob.make_code()).code
        await window.page.evaluate("code => { location.hash = `#code=${code}` }", code)
        await window.page.wait_for_timeout(300)
        assert code not in await stored(window)
        await window.is_live()
        await expect(window.page.get_by_role("banner")).to_contain_text("alice")


async def test_a_cookie_that_another_page_planted_is_not_used(browser: Browser, world: World) -> None:
    """A page on another port of this host can set the cookie; it cannot store the proof where this page reads it."""
    async with dashboard(browser, world.gateway.url) as window:
        token = (await session_of(world, "bob"))[1]
        planted = {"name": "weft_token-~", "value": token, "url": f"{window.url}/v1/live"}
        await window.page.context.add_cookies([planted])  # type: ignore[list-item]
        await window.page.goto(f"{window.url}/")
        await expect(window.button("Sign in")).to_be_visible()
        await window.submit_token(world.tokens["alice"])
        await window.is_live()
        await expect(window.page.get_by_role("banner")).to_contain_text("alice")


async def session_of(world: World, tenant: str) -> tuple[dict[str, str], str]:
    """A session of a tenant as the gateway answers it, and the token in its cookie."""
    headers = {"Authorization": f"Bearer {world.tokens[tenant]}"}
    async with world.http.post(f"{world.gateway.url}/v1/sessions", json={}, headers=headers) as answer:
        assert answer.status == 201
        return await answer.json(), answer.cookies["weft_token-~"].value


async def test_a_token_that_is_revoked_ends_the_session_and_says_so(browser: Browser, world: World) -> None:
    await world.running(name="mine")
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        window.watch.expect(REFUSED, CUT)
        await world.admin.revoke("alice", "test")
        said = window.page.get_by_role("alert")
        await expect(said).to_contain_text("revoked or has expired", timeout=REVOKED_MS_MAX)
        await expect(window.button("Sign in")).to_be_visible()
        assert "mine" not in await window.main.inner_text()


async def test_a_page_outlives_a_restart_of_the_gateway(browser: Browser, world: World) -> None:
    await world.running(name="before")
    async with dashboard(browser, world.gateway.url, world.tokens["alice"]) as window:
        window.watch.expect(*BROKEN)
        await expect(window.main.get_by_text("before").first).to_be_attached()  # live before the page's parts are here
        await world.gateway.stop()
        await expect(window.status).to_have_text("not live")
        await expect(window.page.get_by_role("alert").get_by_text("Connection lost")).to_be_visible()
        assert "before" in await window.text()  # what was known stays, and is called old
        await asyncio.sleep(0.5)
        await world.gateway.start()
        await window.is_live()
        await world.running(name="after", placement=placement(("node-1", 1)))
        await expect(window.main.get_by_text("after").first).to_be_attached()


@pytest.mark.parametrize("name", some(1, ["app.js", "session.js", "style.css", "*"]))
async def test_a_part_of_the_dashboard_that_does_not_come_is_asked_for_again(
    browser: Browser, world: World, name: str
) -> None:
    """`*`: no file but the page itself, as when the machine's network changes at that moment."""
    async with dashboard(browser, world.gateway.url) as window:
        window.watch.expect("ERR_FAILED", "the dashboard did not load", "Failed to fetch dynamically imported")
        window.watch.expect("inter.woff2 was preloaded")  # for the style sheet that did not come
        lost: dict[str, int] = {}

        async def lose(route: Route) -> None:
            url = route.request.url
            lost[url] = lost.get(url, 0) + 1
            if lost[url] <= (2 if url.endswith(".js") else 1):
                await route.abort()
            else:
                await route.continue_()

        await window.page.route(f"**/face/**/{name}", lose)
        await window.sign_in(world.tokens["alice"])
        assert lost
        sheets = "[...document.querySelectorAll('link[rel=stylesheet]')].every(link => link.sheet)"
        await window.page.wait_for_function(sheets)


async def test_a_stream_that_is_cut_comes_back_and_goes_on(browser: Browser, world: World) -> None:
    async with Proxy(port_of(world)) as link, dashboard(browser, url_of(link), world.tokens["alice"]) as window:
        window.watch.expect(*BROKEN)
        await window.go("cluster")
        await expect(window.map).to_be_visible()
        link.refuse()
        link.reset()
        await expect(window.status).to_have_text("not live")
        await expect(window.page.get_by_role("alert").get_by_text("Connection lost")).to_be_visible()
        link.mend()
        await window.is_live()
        await world.running(name="after")
        await expect(window.main.get_by_role("link", name="after").first).to_be_visible()


async def test_a_page_that_did_not_come_over_a_broken_line_comes_with_it(browser: Browser, world: World) -> None:
    async with Proxy(port_of(world)) as link, dashboard(browser, url_of(link), world.tokens["alice"]) as window:
        window.watch.expect(*BROKEN, "Failed to fetch dynamically imported module")
        await window.go("cluster")
        await expect(window.map).to_be_visible()
        link.refuse()
        link.reset()
        await expect(window.status).to_have_text("not live")
        await window.page.evaluate("location.hash = '#/tenants'")
        await expect(window.main.get_by_role("heading", name="This page failed")).to_be_visible()
        link.mend()
        await window.is_live()
        await expect(window.main.get_by_role("heading", name="Tenants")).to_be_visible()


async def test_a_line_that_falls_silent_is_noticed_and_told(browser: Browser, world: World) -> None:
    """Nothing ends a connection of which the other end has vanished: the page misses the gateway's beat."""
    async with Proxy(port_of(world)) as link, dashboard(browser, url_of(link)) as window:
        window.watch.expect("ERR_")
        await window.page.clock.install()
        await window.sign_in(world.tokens["alice"])
        link.cut()
        await window.page.clock.fast_forward(SILENCE_MS_MAX)
        await expect(window.status).to_have_text("not live")
        await expect(window.page.get_by_role("alert").get_by_text("Connection lost")).to_be_visible()
        link.mend()
        link.reset()
        await window.page.clock.fast_forward(SILENCE_MS_MAX)
        await window.is_live()


def port_of(world: World) -> int:
    port = urlsplit(world.gateway.url).port
    assert port is not None
    return port


def url_of(link: Proxy) -> str:
    return f"http://{link.host}:{link.port}"
