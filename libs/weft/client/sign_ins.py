"""Requests about one-time codes, the sessions of browsers, and the audit log."""

import msgspec

from weft.client import seldom
from weft.client.paths import path_part, without_empty
from weft.client.wire import JSON_HEADERS, Wire


class SignInRequests:
    """The part of a client that makes one-time codes for links, lists and ends sessions, and reads the audit log."""

    _wire: Wire

    async def make_code(self, job: str = "") -> "seldom.CodeMade":
        """A code that signs a browser in once: at the dashboard, or at the service of `job`."""
        body = msgspec.json.encode(without_empty({"job": job}))
        return await self._wire.ask("POST", "/v1/codes", seldom.CodeMade, body=body, headers=JSON_HEADERS)

    async def provider(self) -> "seldom.ProviderView":
        """The identity provider with which people sign in; its issuer is empty where there is none."""
        return await self._wire.ask("GET", "/v1/oidc", seldom.ProviderView)

    async def begin_session(self, *, code: str = "", verifier: str = "", device_code: str = "") -> "seldom.SessionMade":
        """Exchange a one-time code, with the verifier of this program, or ask whether a device was confirmed."""
        body = msgspec.json.encode(without_empty({"code": code, "verifier": verifier, "device_code": device_code}))
        return await self._wire.ask(
            "POST", "/v1/sessions", seldom.SessionMade, body=body, headers=JSON_HEADERS, once=True
        )

    async def begin_device(self) -> "seldom.DeviceView":
        """Begin a sign-in from a machine without a browser."""
        return await self._wire.ask("POST", "/v1/oidc/device", seldom.DeviceView, once=True)

    async def people(self, *, tenant: str = "") -> "seldom.PeopleView":
        """The people who signed in with the identity provider."""
        return await self._wire.ask("GET", "/v1/people", seldom.PeopleView, query=without_empty({"tenant": tenant}))

    async def keep_out(self, person: str, *, disabled: bool = True) -> "seldom.PersonWanted":
        """Keep a person out and end their sessions, or let them in again."""
        body = msgspec.json.encode(seldom.PersonWanted(disabled=disabled))
        path = f"/v1/people/{path_part(person)}"
        return await self._wire.ask("PATCH", path, seldom.PersonWanted, body=body, headers=JSON_HEADERS)

    async def whoami(self) -> "seldom.IdentityView":
        """The caller that the gateway takes this client for."""
        return await self._wire.ask("GET", "/v1/whoami", seldom.IdentityView)

    async def sessions(self, *, tenant: str = "") -> "seldom.SessionsView":
        """The sessions in force of this token's tenant; for an administrator those of `tenant`, or all."""
        return await self._wire.ask("GET", "/v1/sessions", seldom.SessionsView, query=without_empty({"tenant": tenant}))

    async def end_session(self, session: str) -> "seldom.SessionEnded":
        return await self._wire.ask("DELETE", f"/v1/sessions/{path_part(session)}", seldom.SessionEnded, once=True)

    async def audit(
        self, *, tenant: str = "", after: int | None = None, before: int | None = None, limit: int = 100
    ) -> "seldom.AuditLogView":
        """A page of the audit log, in order: the first entries behind `after`, the last before `before`, or of all."""
        asked = {"after": after, "before": before, "limit": limit}
        query = {name: str(value) for name, value in asked.items() if value is not None}
        return await self._wire.ask(
            "GET", "/v1/audit", seldom.AuditLogView, query=query | without_empty({"tenant": tenant})
        )
