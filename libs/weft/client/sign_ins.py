"""Requests about one-time codes, the sessions of browsers, and the audit log."""

import msgspec

from weft.client.paths import path_part, without_empty
from weft.client.wire import JSON_HEADERS, Wire
from weft.messages.http.audit import AuditLogView
from weft.messages.http.sign_ins import CodeMade, IdentityView, SessionEnded, SessionsView


class SignInRequests:
    """The part of a client that makes one-time codes for links, lists and ends sessions, and reads the audit log."""

    _wire: Wire

    async def make_code(self, job: str = "") -> CodeMade:
        """A code that signs a browser in once: at the dashboard, or at the service of `job`."""
        body = msgspec.json.encode(without_empty({"job": job}))
        return await self._wire.ask("POST", "/v1/codes", CodeMade, body=body, headers=JSON_HEADERS)

    async def whoami(self) -> IdentityView:
        """The caller that the gateway takes this client for."""
        return await self._wire.ask("GET", "/v1/whoami", IdentityView)

    async def sessions(self, *, tenant: str = "") -> SessionsView:
        """The sessions in force of this token's tenant; for an administrator those of `tenant`, or all."""
        return await self._wire.ask("GET", "/v1/sessions", SessionsView, query=without_empty({"tenant": tenant}))

    async def end_session(self, session: str) -> SessionEnded:
        return await self._wire.ask("DELETE", f"/v1/sessions/{path_part(session)}", SessionEnded, once=True)

    async def audit(
        self, *, tenant: str = "", after: int | None = None, before: int | None = None, limit: int = 100
    ) -> AuditLogView:
        """A page of the audit log, in order: the first entries behind `after`, the last before `before`, or of all."""
        asked = {"after": after, "before": before, "limit": limit}
        query = {name: str(value) for name, value in asked.items() if value is not None}
        return await self._wire.ask("GET", "/v1/audit", AuditLogView, query=query | without_empty({"tenant": tenant}))
