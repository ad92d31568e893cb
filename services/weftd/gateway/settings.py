"""The gateway's settings: GATEWAY_… in the environment, and WEFT_… for what all services share."""

from enum import Enum
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from weft.domain.tenants import Allowance
from weft.messages.http import PRIORITY_MAX
from weft.messages.http.tenants import LIMIT_MAX
from weft.service import Connections
from weftd.gateway.thinking.budgets import ProcessorBudget
from weftd.gateway.thinking.notifications.addresses import networks_of
from weftd.gateway.thinking.notifications.mails import domain_of
from weftd.gateway.thinking.oidc import grant_of
from weftd.gateway.thinking.rates import Rate

LOOPBACK = ("127.0.0.1", "::1", "localhost")
PerSecond = Annotated[float, Meta(ge=0)]
Burst = Annotated[float, Meta(ge=1)]
Bound = Annotated[int, Meta(ge=0, le=LIMIT_MAX)]


class MailTls(Enum):
    """Encryption of mail on its way to the server: after a greeting in clear (STARTTLS), from the first byte, or
    none."""

    STARTTLS = "starttls"
    TLS = "tls"
    NONE = "none"


class MailSettings(Struct, frozen=True, kw_only=True):
    """The mail server. Without a host, a sender and a domain Weft sends no mail."""

    mail_host: str = ""
    mail_port: Annotated[int, Meta(ge=1, le=65535)] = 587
    mail_tls: MailTls = MailTls.STARTTLS
    mail_ca_file: str = ""  # the authority that the server's certificate is of; empty: those of the machine
    mail_user: str = ""
    mail_password_file: str = ""
    mail_from: str = ""
    mail_domains: tuple[str, ...] = ()  # domains to which mail may be sent, such as example.org
    mail_seconds: Annotated[float, Meta(ge=1)] = 60.0  # between two mails to one address

    def __post_init__(self) -> None:
        together = (self.mail_host, self.mail_from, self.mail_domains)
        if any(together) and not all(together):
            raise ValueError("GATEWAY_MAIL_HOST, GATEWAY_MAIL_FROM and GATEWAY_MAIL_DOMAINS must be set together")
        if self.mail_from and not domain_of(self.mail_from):
            raise ValueError(f"GATEWAY_MAIL_FROM: {self.mail_from} is no address such as weft@example.org")
        for domain in self.mail_domains:
            if domain_of(f"any@{domain}") != domain:
                raise ValueError(f"GATEWAY_MAIL_DOMAINS: {domain} is no domain in lower case such as example.org")
        if bool(self.mail_user) != bool(self.mail_password_file):
            raise ValueError(
                "GATEWAY_MAIL_USER and GATEWAY_MAIL_PASSWORD_FILE: a user and its password must be set together"
            )
        if self.mail_user and self.mail_tls == MailTls.NONE:
            raise ValueError("GATEWAY_MAIL_TLS: with none the password of GATEWAY_MAIL_USER would go in clear")


class OidcSettings(Struct, frozen=True, kw_only=True):
    """The identity provider with which people sign in. Without an issuer they sign in with tokens."""

    oidc_issuer: str = ""  # the name that the provider gives itself, such as https://accounts.google.com
    oidc_client_id: str = ""
    oidc_client_secret_file: str = ""
    oidc_ca_file: str = ""  # the authority that the provider's certificate is of; empty: those of the machine
    oidc_gateway_url: str = ""  # where browsers reach a gateway; the provider sends them to …/v1/oidc/callback
    oidc_scopes: tuple[str, ...] = ("openid", "email", "profile")
    oidc_name_claim: str = "email"
    oidc_groups_claim: str = "groups"
    oidc_grants: tuple[str, ...] = ()  # GROUP=TENANT:ROLE; the first that fits counts; the group `*` is everybody

    def __post_init__(self) -> None:
        if not self.oidc_issuer:
            return
        if not self.oidc_client_id or not self.oidc_gateway_url or not self.oidc_grants:
            raise ValueError(
                "GATEWAY_OIDC_ISSUER needs GATEWAY_OIDC_CLIENT_ID, GATEWAY_OIDC_GATEWAY_URL and GATEWAY_OIDC_GRANTS"
            )
        for name, url in (("ISSUER", self.oidc_issuer), ("GATEWAY_URL", self.oidc_gateway_url)):
            if not _is_address(url) or not is_safe(url):
                raise ValueError(f"GATEWAY_OIDC_{name}: {url} is no address such as https://example.org")
        for grant in self.oidc_grants:
            try:
                grant_of(grant)
            except ValueError as error:
                raise ValueError(f"GATEWAY_OIDC_GRANTS: {error}") from None


class GatewaySettings(Struct, frozen=True, kw_only=True):
    """`reads` (GET) and `changes` (all else) are counted for each tenant, `refusals` (unknown tokens) for each address;
    0 a second means no bound. `tenant_…` are limits of each tenant unless an administrator set others. With
    `tls_cert_file` and `tls_key_file` the gateway serves only HTTPS.
    """

    host: str = "127.0.0.1"
    port: int = 8470
    admin_host: str = "127.0.0.1"
    admin_port: int | None = None
    admin_token_file: str = ""
    scorer_token_file: str = ""
    default_pool: str = "default"
    volumes_allowed: tuple[str, ...] = ()
    shares: bool = True  # jobs may ask for shares of GPUs
    pg_connections: int = 8
    connections_max: int = 4096
    connections_per_address_max: Annotated[int, Meta(ge=1)] = 1024
    reads_at_once_max: Annotated[int, Meta(ge=1)] = 2
    streams_max: int = 1024
    streams_per_tenant_max: int = 256
    sessions_max: Annotated[int, Meta(ge=0)] = 256  # shells, commands and connections of people in runs
    sessions_per_tenant_max: Annotated[int, Meta(ge=0)] = 64
    sessions_off_pools: tuple[str, ...] = ()  # pools whose jobs allow no sessions
    reads_per_second: PerSecond = 2000.0
    reads_burst: Burst = 10_000.0
    changes_per_second: PerSecond = 2000.0
    changes_burst: Burst = 10_000.0
    tenant_processor_part: Annotated[float, Meta(ge=0, le=16)] = (
        0.5  # CPU share of one tenant while others are active; 0: no bound
    )
    refusals_per_second: PerSecond = 5.0
    refusals_burst: Burst = 50.0
    tokens_kept_days: Annotated[float, Meta(ge=0)] = 90.0  # after they were revoked or expired; 0: for ever
    audit_kept_days: Annotated[float, Meta(ge=0)] = 400.0  # 0: for ever; no entry of the last week is deleted
    audit_entries_max: Annotated[int, Meta(ge=0)] = 10_000_000  # 0: no bound
    session_hours: Annotated[float, Meta(gt=0, le=24 * 366)] = 12.0  # how long a browser stays signed in
    code_seconds: Annotated[float, Meta(gt=0, le=3600)] = 600.0  # how long the code of a link can be used, once
    tenant_jobs_open_max: Bound = 20_000
    tenant_spec_bytes_max: Bound = 64 << 20
    tenant_context_bytes_max: Bound = 1 << 30  # size of packed files sent with jobs
    contexts_kept_days: Annotated[float, Meta(ge=0)] = 30.0  # after they were used last; 0: for ever
    tenant_images_bytes_max: Bound = 8 << 30  # in the registry
    tenant_priority_max: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] = 0
    tenant_may_be_unpreemptible: bool = False
    tenant_idle_seconds_max: Annotated[int, Meta(ge=0)] = 0  # time for which a job may hold unused GPUs; 0: no bound
    tls_cert_file: str = ""
    tls_key_file: str = ""
    router_url: str = ""  # address of services for people: of the router, or of a proxy before it
    registry_url: str = ""  # registry for images, which only gateways reach; empty: none
    registry_address: str = ""  # host:port where the engines of the nodes reach a gateway
    prices_file: str = ""  # TOML file of hourly prices by GPU model, see docs/accounting.md; empty: no costs
    webhooks: bool = True  # tenants may post events to addresses of the Internet
    webhooks_networks: tuple[str, ...] = ()  # more networks that webhooks may reach, such as 10.1.0.0/16
    webhooks_off_hours: Annotated[float, Meta(gt=0)] = 24.0  # switched off after this time without success
    mail: MailSettings = MailSettings()
    oidc: OidcSettings = OidcSettings()
    otlp_url: str = ""  # of a collector that takes traces by OTLP over HTTP; empty: none are sent
    connections: Connections = Connections()

    def __post_init__(self) -> None:
        relative = [path for path in self.volumes_allowed if not path.startswith("/")]
        if relative:
            raise ValueError(f"GATEWAY_VOLUMES_ALLOWED: {relative[0]} is not an absolute path")
        if self.router_url and not _is_address(self.router_url):
            raise ValueError(f"GATEWAY_ROUTER_URL: {self.router_url} is no address such as http://127.0.0.1:8480")
        if self.registry_url and not _is_address(self.registry_url):
            raise ValueError(f"GATEWAY_REGISTRY_URL: {self.registry_url} is no address such as http://127.0.0.1:5000")
        if self.registry_url and not self.registry_address:
            raise ValueError("GATEWAY_REGISTRY_URL needs GATEWAY_REGISTRY_ADDRESS, where nodes reach a gateway")
        if self.registry_address and not _is_place(self.registry_address):
            raise ValueError(
                f"GATEWAY_REGISTRY_ADDRESS: {self.registry_address} is no host and port such as weft.example.org:8470"
            )
        if self.otlp_url and not _is_address(self.otlp_url):
            raise ValueError(f"GATEWAY_OTLP_URL: {self.otlp_url} is no address such as http://127.0.0.1:4318")
        try:
            networks_of(self.webhooks_networks)
        except ValueError as error:
            raise ValueError(f"GATEWAY_WEBHOOKS_NETWORKS: {error}") from None
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError(
                "GATEWAY_TLS_CERT_FILE and GATEWAY_TLS_KEY_FILE: a certificate and its key must be set together"
            )

    @property
    def reads(self) -> Rate:
        return Rate(self.reads_per_second, self.reads_burst)

    @property
    def changes(self) -> Rate:
        return Rate(self.changes_per_second, self.changes_burst)

    @property
    def processor(self) -> ProcessorBudget:
        return ProcessorBudget(part=self.tenant_processor_part)

    @property
    def refusals(self) -> Rate:
        return Rate(self.refusals_per_second, self.refusals_burst)

    @property
    def tenants(self) -> Allowance:
        return Allowance(
            jobs_open_max=self.tenant_jobs_open_max,
            spec_bytes_max=self.tenant_spec_bytes_max,
            priority_max=self.tenant_priority_max,
            may_be_unpreemptible=self.tenant_may_be_unpreemptible,
            idle_seconds_max=self.tenant_idle_seconds_max,
        )


def _is_place(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal() and "/" not in host and _is_address(f"http://{address}")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_plain = not (parts.query or parts.fragment or parts.username)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and is_plain
    except ValueError:
        return False


def is_safe(url: str) -> bool:
    """Return True if traffic to the URL is encrypted or stays on this machine."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return bool(parts.hostname) and (parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK))
