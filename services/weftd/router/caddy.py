"""Caddy's one static configuration. It names no service and no replica: admission says for each request where it goes.

A request passes three stages. *Clean*: headers that only the admission process may set are removed. *Ask*: the
admission process is asked, by a GET without the body; with its answer 200 the request proceeds; the client gets any
other answer. *Pass*: the request goes to the address that the admission process named. If that fails before the answer
began, the admission process is asked again, with the id of the failed request, and decides about another try.
"""

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from weftd.router.answers import FRONT_STEP
from weftd.router.thinking.batch import PRIORITY
from weftd.router.thinking.credentials import COOKIE, SET_COOKIE, SET_DOMAIN
from weftd.router.thinking.routes import CLIENT_KEY

Json = dict[str, Any]

TRIES = 32  # tries of one request at replicas; the admission process decides about each further try
SILENCE_SECONDS = (0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 450, 600, 900, 1800, 3600)
"""How long a replica may take until its answer begins. Each step is a handler of its own, since the configuration is
static; the admission process names the step."""
USUAL_SECONDS = 60  # timeout of a service that sets none

HTTP, ONCE, H2C = "http", "once", "h2c"
"""How a request is passed on: over a connection that is kept, over one of its own, or as HTTP/2 without TLS. What must
not run twice has a connection of its own: of one that is kept and breaks, nobody knows whether its replica had ended
before."""

ADMISSION_SECONDS = "15s"  # wait of a request for a restarting admission process
DIAL_SECONDS = "2s"
IDLE_SECONDS = "1s"  # shorter than servers keep an idle connection: none is used in the moment in which it is closed
FLUSHED = "2ms"  # delay of sending, so that a short answer goes in one piece with its head
HEADER_BYTES_MAX = 64 << 10
NO_PROXY: Json = {"network_proxy": {"from": "none"}, "compression": False}
LET_IN_BY = "X-Weft-Auth"  # to a replica: `token` (in a header or the query), `cookie` or `public`
OF_FRONT = ("X-Weft-Call", "X-Weft-Model", "X-Weft-Prompt")  # by the front for models, to admission alone
NO_TOKEN = {"search_regexp": COOKIE, "replace": ""}
OF_OTHERS: Json = {  # what a replica may not set: the router's cookies, and cookies of other services. Deferred, since
    # that alone holds for an answer that switches protocols, too.
    "handler": "headers",
    "response": {
        "deferred": True,
        "replace": {"Set-Cookie": [{"search_regexp": find, "replace": ""} for find in (SET_COOKIE, SET_DOMAIN)]},
    },
}
PAGE = (
    *("header.Sec-Fetch-Site", "header.Sec-Fetch-Mode", "header.Sec-Fetch-Dest"),
    *("header.Access-Control-Request-Method", "hostport", "header.Origin"),
)
VISIT_TOLD: Json = {  # early: where a client or a replica breaks off, Caddy runs nothing of this chain afterwards
    "handler": "log_append",
    "key": "request_id",
    "value": "{http.vars.weft_request_id}",
    "early": True,
}
SHOWN: Json = {  # for pages of the origin that the admission process names, whatever the replica sets
    "handler": "headers",
    "response": {
        "deferred": True,
        "set": {
            "Access-Control-Allow-Origin": ["{http.vars.weft_cors}"],
            "Access-Control-Expose-Headers": ["*"],
        },
        "add": {"Vary": ["Origin"]},
        "delete": ["Access-Control-Allow-Credentials"],
    },
}
BODY_UNREAD: Json = {  # of a refused request. Go's server (issue 68560) then closes a connection of HTTP/1 after the
    # answer, untold; told, no client sends its next request there.
    "match": [
        {
            "not": [
                {"protocol": "http/2+"},
                {"header": {"Content-Length": ["0"]}},
                {"method": ["GET", "HEAD", "OPTIONS", "TRACE"], "header": {"Content-Length": None}},
            ]
        }
    ],
    "handle": [{"handler": "headers", "response": {"set": {"Connection": ["close"]}}}],
}
NO_STATUS: Json = {  # for a status below 100: Caddy would close the connection and skip this chain
    "match": {"status_code": [0]},
    "routes": [{"handle": [{"handler": "error", "status_code": 502, "error": "invalid HTTP status"}]}],
}

UNASKED_UPGRADE: Json = {  # Caddy would make an empty 200 of it
    "match": {"status_code": [101]},
    "routes": [
        {
            "match": [{"not": [{"header": {"Upgrade": ["*"]}}]}],
            "handle": [{"handler": "error", "status_code": 502, "error": "it switched to a protocol not asked for"}],
        },
        {"handle": [{"handler": "copy_response"}]},
    ],
}


class Proxy(Struct, frozen=True, kw_only=True):
    """Where Caddy listens (`fd/3`, or a host and port), asks, tells its ends of requests, and is asked itself. `front`:
    the process that reads the model from a body; it sends the request on to `listen_inside`."""

    listen: str
    listen_inside: str
    admission: Path
    admin: Path
    front: Path
    log_port: int
    tls_cert_file: str = ""
    tls_key_file: str = ""
    drain_seconds: float = 10.0
    body_seconds_max: float = 3600.0


def step_of(route: str, seconds: float) -> str:
    """The name of the handler that waits at least this long for an answer to begin; the longest wait is the last
    step."""
    index = min(bisect_left(SILENCE_SECONDS, seconds), len(SILENCE_SECONDS) - 1)
    return f"{route}-{SILENCE_SECONDS[index]:g}"


def configuration(proxy: Proxy) -> Json:
    servers = {"weft": _server(proxy), "inside": _inside(proxy)}
    apps: Json = {"http": {"grace_period": _seconds(proxy.drain_seconds), "servers": servers}}
    if proxy.tls_cert_file:
        apps["tls"] = {
            "certificates": {"load_files": [{"certificate": proxy.tls_cert_file, "key": proxy.tls_key_file}]}
        }
    return {
        "admin": {"listen": f"unix/{proxy.admin}|0600", "config": {"persist": False}},
        "logging": _logging(proxy),
        "apps": apps,
    }


def _server(proxy: Proxy) -> Json:
    server: Json = {
        "listen": [proxy.listen],
        "automatic_https": {"disable": True},
        "protocols": ["h1", "h2"] if proxy.tls_cert_file else ["h1", "h2c"],
        "read_header_timeout": "10s",
        "read_timeout": _seconds(proxy.body_seconds_max),
        "idle_timeout": "120s",
        "max_header_bytes": HEADER_BYTES_MAX,
        "enable_full_duplex": True,  # an answer may begin before the body has ended, and costs nothing of it
        "logs": {"default_logger_name": "weft"},
        "routes": [{"handle": [*_told(), *_clean(), _tried(TRIES)]}],
        "named_routes": {
            "ask": {"handle": [_ask(proxy, again=False)]},
            "ask-again": {"handle": [_ask(proxy, again=True)]},
            "pass": {"handle": [{"handler": "subroute", "routes": [_to_front(proxy), *_pass()]}]},
        },
    }
    if proxy.tls_cert_file:
        server["tls_connection_policies"] = [{}]
    return server


def _inside(proxy: Proxy) -> Json:
    """The route for the front for models: its headers about a request are trusted, and go only to admission."""
    server = _server(structs.replace(proxy, listen=proxy.listen_inside, tls_cert_file=""))
    server["routes"] = [{"handle": [*_told(), _tried(TRIES)]}]
    return server


def _logging(proxy: Proxy) -> Json:
    """Ends of requests over UDP, without what clients and replicas wrote: a datagram is small, and a reader that stalls
    stops nothing. Caddy's own mistakes on its standard error, few a second however many there are, without it too:
    Caddy encodes a request for every log, also for those that leave it out, and twice for each request."""
    fields = {name: {"filter": "delete"} for name in ("request", "resp_headers", "user_id")}
    encoder: Json = {"format": "filter", "wrap": {"format": "json"}, "fields": fields}
    return {
        "logs": {
            "default": {
                "level": "ERROR",
                "exclude": ["http.log"],
                "sampling": {"interval": 1_000_000_000, "first": 5, "thereafter": 1000},
                "encoder": encoder,
            },
            "ends": {
                "level": "INFO",
                "include": ["http.log.access"],
                "writer": {"output": "net", "address": f"udp/127.0.0.1:{proxy.log_port}", "soft_start": True},
                "encoder": encoder,
            },
        }
    }


def _told() -> list[Json]:
    """Values that the end of a request reports besides its status and duration. A request that breaks off during its
    answer reports none of them."""
    told = {
        "first_ms": "{http.reverse_proxy.upstream.latency_ms}",
        "took_ms": "{http.reverse_proxy.upstream.duration_ms}",
    }
    return [{"handler": "log_append", "key": key, "value": value} for key, value in told.items()]


def _clean() -> list[Json]:
    return [{"handler": "headers", "request": {"delete": ["X-Weft-*"]}}]


def _tried(tries: int, *, ask: str = "ask") -> Json:
    """Ask and pass; if that fails, repeat both, often enough that the last answer is a refusal by admission."""
    tried: Json = {"handler": "subroute", "routes": [_invoke(ask)]}
    if tries:
        tried["routes"].append(_invoke("pass"))
        tried["errors"] = {"routes": [{"handle": [_tried(tries - 1, ask="ask-again")]}]}
    return tried


def _invoke(name: str) -> Json:
    return {"handle": [{"handler": "invoke", "name": name}]}


def _ask(proxy: Proxy, *, again: bool) -> Json:
    said = {
        **{name: [f"{{http.request.header.{name}}}"] for name in ("Authorization", "Cookie", "Accept")},
        "X-Weft-Uri": ["{http.request.orig_uri}"],
        "X-Weft-Method": ["{http.request.orig_method}"],
        "X-Weft-Host": ["{http.request.host}"],
        "X-Weft-Remote": ["{http.request.remote.host}"],
        "X-Weft-Port": ["{http.request.remote.port}"],
        "X-Weft-Upgrade": ["{http.request.header.Upgrade}"],
        **{name: [f"{{http.request.header.{name}}}"] for name in (*OF_FRONT, PRIORITY)},
        "X-Weft-Page": ["|".join(f"{{http.request.{name}}}" for name in PAGE)],  # one line to read for six values
    }
    if again:
        said |= {
            "X-Weft-Failed": ["{http.vars.weft_request_id}"],
            "X-Weft-Error": ["{http.error.message}"],
            "X-Weft-Status": ["{http.error.status_code}"],
        }
    answer = "{{http.reverse_proxy.header.X-Weft-{}}}"
    names = {
        "to": "To",
        "request_id": "Request-Id",
        "prefix": "Prefix",
        "strip": "Strip",
        "step": "Step",
        "auth": "Auth",
        "cors": "Cors",
        **({} if again else {"query": "Query", "by": "By"}),  # as at the first try
    }
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": f"unix/{proxy.admission}"}],
        "rewrite": {"method": "GET", "uri": "/"},
        "load_balancing": {"try_duration": ADMISSION_SECONDS, "try_interval": "50ms"},
        "transport": {
            "protocol": "http",
            **NO_PROXY,
            "versions": ["1.1"],
            "keep_alive": {"max_idle_conns_per_host": 1024, "idle_timeout": "30s"},
        },
        "headers": {
            "request": {"delete": ["*"], "set": said}
        },  # the admission process reads nothing else of a client's headers
        "handle_response": [
            {
                "match": {"status_code": [200], "headers": {"X-Weft-To": ["*"]}},
                "routes": [
                    {"handle": [{"handler": "vars", **{f"weft_{key}": answer.format(of) for key, of in names.items()}}]}
                ],
            },
            {"routes": [BODY_UNREAD, {"handle": [{"handler": "copy_response"}]}]},
        ],
    }


def _to_front(proxy: Proxy) -> Json:
    """A request whose model is not known yet. Its address differs from that of all that goes to replicas, by which
    Caddy counts them. The client's own headers are passed on as they are, with the tenant, whose bodies are bounded."""
    return {
        "match": [{"vars": {"weft_step": [FRONT_STEP]}}],
        "handle": [
            {
                "handler": "reverse_proxy",
                "upstreams": [{"dial": f"unix/{proxy.front}"}],
                "load_balancing": {"try_duration": ADMISSION_SECONDS, "try_interval": "50ms"},
                "flush_interval": FLUSHED,  # with -1 Caddy would read on for a client that has left
                "headers": {"request": {"set": {"X-Weft-Tenant": ["{http.vars.weft_by}"]}}},
                "transport": {
                    "protocol": "http",
                    **NO_PROXY,
                    "versions": ["1.1"],
                    "keep_alive": {"enabled": False},
                },
            }
        ],
        "terminal": True,
    }


def _pass() -> list[Json]:
    return [
        {"handle": [VISIT_TOLD, OF_OTHERS]},
        {"match": [{"vars": {"weft_strip": ["1"]}}], "handle": [_moved("^/s/[^/]+")]},
        {"match": [{"vars": {"weft_strip": ["0"]}}], "handle": [_moved("^")]},
        {
            "match": [{"vars": {"weft_auth": ["1"]}}],
            "handle": [{"handler": "headers", "request": {"delete": ["Authorization"]}}],
        },
        {
            "match": [{"vars": {"weft_query": ["1"]}}],
            "handle": [{"handler": "rewrite", "query": {"delete": [CLIENT_KEY]}}],
        },
        {"match": [{"not": [{"vars": {"weft_cors": [""]}}]}], "handle": [SHOWN]},
        *_steps([USUAL_SECONDS]),
        {"handle": [{"handler": "subroute", "routes": _steps(set(SILENCE_SECONDS) - {USUAL_SECONDS})}]},
    ]


def _steps(silences: Iterable[float]) -> list[Json]:
    """A route for each path and timeout. Caddy prepares all routes of one list for each request, so rarely needed
    routes are in their own list."""
    return [
        {"match": [{"vars": {"weft_step": [step_of(route, seconds)]}}], "handle": [_proxy(route, seconds)]}
        for seconds in sorted(silences)
        for route in (HTTP, ONCE, H2C)
    ]


def _moved(find: str) -> Json:
    return {"handler": "rewrite", "path_regexp": [{"find": find, "replace": "{http.vars.weft_prefix}"}]}


def _proxy(route: str, seconds: float) -> Json:
    kept: Json = {"max_idle_conns_per_host": 256, "idle_timeout": IDLE_SECONDS}
    return {
        "handler": "reverse_proxy",
        "upstreams": [{"dial": "{http.vars.weft_to}"}],
        "flush_interval": FLUSHED,
        "headers": {
            "request": {
                "replace": {"Cookie": [NO_TOKEN]},
                "set": {LET_IN_BY: ["{http.vars.weft_by}"]},
                "delete": [*OF_FRONT, PRIORITY],
            }
        },
        "handle_response": [NO_STATUS, UNASKED_UPGRADE],
        "transport": {
            "protocol": "http",
            **NO_PROXY,
            "versions": ["h2c"] if route == H2C else ["1.1"],
            "dial_timeout": DIAL_SECONDS,
            "response_header_timeout": _seconds(seconds),
            "keep_alive": {"enabled": False} if route == ONCE else kept,
        },
    }


def _seconds(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"
