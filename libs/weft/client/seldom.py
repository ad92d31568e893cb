"""Messages of requests that few commands send. A name is imported when it is first used: all together are slow to
import."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.messages.accounts import UsageGrouping as UsageGrouping
    from weft.messages.contexts import ContextView as ContextView
    from weft.messages.http.audit import AuditLogView as AuditLogView
    from weft.messages.http.joining import JoinTokenMade as JoinTokenMade
    from weft.messages.http.people import DeviceView as DeviceView
    from weft.messages.http.people import PeopleView as PeopleView
    from weft.messages.http.people import PersonWanted as PersonWanted
    from weft.messages.http.people import ProviderView as ProviderView
    from weft.messages.http.quotas import QuotaDeleted as QuotaDeleted
    from weft.messages.http.quotas import QuotasView as QuotasView
    from weft.messages.http.quotas import QuotaView as QuotaView
    from weft.messages.http.quotas import QuotaWanted as QuotaWanted
    from weft.messages.http.schedules import SchedulesView as SchedulesView
    from weft.messages.http.schedules import ScheduleView as ScheduleView
    from weft.messages.http.sign_ins import CodeMade as CodeMade
    from weft.messages.http.sign_ins import IdentityView as IdentityView
    from weft.messages.http.sign_ins import SessionEnded as SessionEnded
    from weft.messages.http.sign_ins import SessionMade as SessionMade
    from weft.messages.http.sign_ins import SessionsView as SessionsView
    from weft.messages.http.status import StatusView as StatusView
    from weft.messages.http.tenants import TenantsView as TenantsView
    from weft.messages.http.tenants import TenantView as TenantView
    from weft.messages.http.tenants import TenantWanted as TenantWanted
    from weft.messages.http.tenants import TokenMade as TokenMade
    from weft.messages.http.tenants import TokensRevoked as TokensRevoked
    from weft.messages.http.tenants import TokensView as TokensView
    from weft.messages.images import ImageDeleted as ImageDeleted
    from weft.messages.images import ImagesView as ImagesView
    from weft.messages.live import LiveDelta as LiveDelta
    from weft.messages.live import LiveSnapshot as LiveSnapshot
    from weft.messages.live import QueueView as QueueView
    from weft.messages.secrets import SecretDeleted as SecretDeleted
    from weft.messages.secrets import SecretsView as SecretsView
    from weft.messages.secrets import SecretView as SecretView
    from weft.messages.secrets import SecretWanted as SecretWanted
    from weft.messages.series import UsageView as UsageView
    from weft.messages.webhooks import WebhookMade as WebhookMade
    from weft.messages.webhooks import WebhooksView as WebhooksView
    from weft.messages.webhooks import WebhookView as WebhookView
    from weft.messages.webhooks import WebhookWanted as WebhookWanted
    from weft.messages.whatif import WhatIfView as WhatIfView
    from weft.messages.whatif import WhatIfWanted as WhatIfWanted

_MODULES = {
    "weft.messages.accounts": ("UsageGrouping",),
    "weft.messages.contexts": ("ContextView",),
    "weft.messages.http.audit": ("AuditLogView",),
    "weft.messages.http.joining": ("JoinTokenMade",),
    "weft.messages.http.people": (
        "DeviceView",
        "PeopleView",
        "PersonWanted",
        "ProviderView",
    ),
    "weft.messages.http.quotas": (
        "QuotaDeleted",
        "QuotaView",
        "QuotaWanted",
        "QuotasView",
    ),
    "weft.messages.http.schedules": ("ScheduleView", "SchedulesView"),
    "weft.messages.http.sign_ins": (
        "CodeMade",
        "IdentityView",
        "SessionEnded",
        "SessionMade",
        "SessionsView",
    ),
    "weft.messages.http.status": ("StatusView",),
    "weft.messages.http.tenants": (
        "TenantView",
        "TenantWanted",
        "TenantsView",
        "TokenMade",
        "TokensRevoked",
        "TokensView",
    ),
    "weft.messages.images": (
        "ImageDeleted",
        "ImagesView",
    ),
    "weft.messages.live": (
        "LiveDelta",
        "LiveSnapshot",
        "QueueView",
    ),
    "weft.messages.secrets": (
        "SecretDeleted",
        "SecretView",
        "SecretWanted",
        "SecretsView",
    ),
    "weft.messages.series": ("UsageView",),
    "weft.messages.webhooks": (
        "WebhookMade",
        "WebhookView",
        "WebhookWanted",
        "WebhooksView",
    ),
    "weft.messages.whatif": (
        "WhatIfView",
        "WhatIfWanted",
    ),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
