"""Signing in to the dashboard with an identity provider."""

from pathlib import Path

import pytest
from msgspec import structs
from playwright.async_api import Browser, expect

pytest.importorskip("joserfc", reason="joserfc is not installed: `make setup` installs the locked requirements")

from tests.support.dashboard import dashboard
from tests.support.gateway import Place
from tests.support.gateway_world import SETTINGS, opened
from tests.support.identity_provider import CLIENT_ID, CLIENT_SECRET, identity_provider
from tests.support.routers import free_port
from weftd.gateway.settings import OidcSettings


async def test_a_person_signs_in_by_one_click_and_a_link_of_another_still_needs_one(
    browser: Browser, servers: Place, tmp_path: Path
) -> None:
    port = free_port()
    async with identity_provider() as provider:
        oidc = OidcSettings(
            oidc_issuer=provider.url,
            oidc_client_id=CLIENT_ID,
            oidc_gateway_url=f"http://127.0.0.1:{port}",
            oidc_grants=("ml=vision:user",),
        )
        settings = structs.replace(SETTINGS, port=port, oidc=oidc)
        async with (
            opened(servers, settings, oidc_secret=CLIENT_SECRET, port=port) as world,
            dashboard(browser, world.gateway.url) as window,
        ):
            await window.page.goto(f"{window.url}/")
            await window.button("Sign in with single sign-on").click()
            await window.is_live()
            await expect(window.page.get_by_role("banner")).to_contain_text("vision")
            await window.page.reload()
            await window.is_live()
            await window.account("Sign out")
            code = (await world.bob.make_code()).code
            await window.page.goto(f"{window.url}/#code={code}")
            await expect(window.button("Sign in")).to_be_visible()
            await window.page.wait_for_timeout(300)
            assert not (await world.bob.sessions()).sessions
            own = [fault for fault in window.watch.faults if provider.url not in fault]
            window.watch.faults[:] = own  # the provider is another host, which is meant here
