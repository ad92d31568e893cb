"""Generates the OpenAPI document from the table of operations and their types."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from weft.messages.http import ErrorView
from weft.messages.problems import PROBLEM
from weftd.gateway.http.route import JSON, Audience, Header, Route, RouteAnswer

Json = dict[str, Any]

VERSION = "1"
REF = "#/components/schemas/{name}"
PATH_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
PATH_WORDS = {
    "digest": "The SHA-256 of the ZIP file, as 64 hexadecimal digits.",
    "job": "A job's id, or a name: then the newest job of that name.",
    "array": "An array's id, or a name: then the newest array of that name.",
    "node": "A node's id.",
    "tenant": "A tenant's name.",
    "name": "A tenant's name, or that of a group of tenants.",
    "label": "The label that its tokens were made with.",
    "webhook": "A webhook's id.",
    "schedule": "Id or name of a schedule.",
    "session": "A session's id.",
    "person": "A person's id.",
}
ERRORS = {
    400: "The request has a mistake: `field` names its place, `reason` its cause. Nothing was stored.",
    401: "The token is missing or not valid.",
    403: "This token may not do this.",
    404: "It does not exist, or belongs to another tenant.",
    409: "It conflicts with the current state; the reason names the conflict.",
    408: "The body did not arrive in time.",
    410: "The join token was used, or has expired.",
    411: "The request needs a Content-Length.",
    413: "The body is too large.",
    415: "The content type is not supported.",
    416: "The log or the file is shorter than the requested range.",
    422: "The request is valid but impossible on this cluster.",
    426: "The path is a WebSocket, and the request does not ask for an upgrade.",
    429: "A limit is exceeded: retry after `Retry-After` seconds. Nothing was done.",
    503: "Not available now: ask again after `Retry-After` seconds.",
}
NEEDS = {
    Audience.ADMIN: "an administrator's token",
    Audience.OPERATOR: "an administrator's token, or the role operator",
}
_ALLOWED_IN_PART = (
    "/v1/jobs",
    "/v1/jobs/{job}/requeue",
    "/v1/jobs/{job}/priority",
    "/v1/arrays",
    "/v1/arrays/{array}/requeue",
    "/v1/audit",
    "/v1/queue",
    "/v1/sessions",
    "/v1/usage",
    "/v1/webhooks",
)
_NAMES_ONE_THING = (  # the thing is named in the query or the body, or not every cluster has it
    "/v1/trace",
    "/v1/what-if",
    "/v1/codes",
    "/v1/sessions",
    "/v1/oidc/login",
    "/v1/oidc/callback",
    "/v1/oidc/device",
)
_CREDENTIALS = {  # public, but they refuse bad credentials
    ("POST", "/v1/sessions"),
    ("GET", "/v1/oidc/callback"),
    ("POST", "/v1/nodes/{node}/join"),
}
_CONFLICTS = (
    ("POST", "/v1/jobs"),
    ("POST", "/v1/tokens"),
    ("POST", "/v1/webhooks"),
    ("PUT", "/v1/secrets/{name}"),
    ("PUT", "/v1/contexts/{digest}"),
    ("PUT", "/v1/images/{digest}"),
    ("PUT", "/v1/nodes/{node}/join-token"),
    ("DELETE", "/v1/jobs/{job}/files"),
)
ABOUT = """Weft shares a cluster of GPUs among containerised ML jobs. Send `Authorization: Bearer TOKEN` with every \
request. Every error is `application/problem+json` (RFC 9457) with the field and the reason beside: \
`{"type": "about:blank", "title": …, "status": …, "detail": …, "error": {"field": …, "reason": …, "status": …}}`; what \
got a 4xx has changed nothing. A JSON answer to a `GET` has an `ETag`, and is 304 to an `If-None-Match` that names \
it; a list that goes on says where in `Link`. Every event is also told on NATS at `weft.events.jobs.<event>` and \
`weft.events.nodes.<event>`, and a request on `weft.submit`, whose payload is the specification and whose headers are \
those of `POST /v1/jobs`, submits a job."""


def document(routes: Sequence[Route[Any]]) -> Json:
    types = [kind for route in routes for kind in _types(route)]
    schemas, components = msgspec.json.schema_components(types, ref_template=REF)
    schema_of = {_key(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    queries = {route.query.__name__ for route in routes}
    paths: Json = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema_of, components)
    described: Json = {
        "openapi": "3.1.0",
        "info": {"title": "Weft", "version": VERSION, "description": ABOUT, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "tags": [{"name": name} for name in dict.fromkeys(route.group for route in routes)],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {name: schema for name, schema in sorted(components.items()) if name not in queries},
        },
    }
    plain: Json = msgspec.json.decode(msgspec.json.encode(described))  # Defaults may be tuples.
    return plain


def _types(route: Route[Any]) -> Iterable[Any]:
    yield ErrorView
    yield route.query
    if route.body not in (None, bytes):
        yield route.body
    for answer in route.answers.values():
        if _is_typed(answer):
            yield answer.type
        yield from answer.streamed


def _is_typed(answer: RouteAnswer) -> bool:
    return answer.type is not None and answer.type not in (bytes, str)


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(route: Route[Any], schema_of: Json, components: Json) -> Json:
    operation: Json = {
        "tags": [route.group],
        "summary": route.summary,
        "operationId": _operation_id(route),
        "parameters": [
            *(_path_parameter(name) for name in re.findall(r"{(\w+)}", route.path)),
            *_query_parameters(components[route.query.__name__]),
            *(_header_parameter(header) for header in route.headers if not header.of_answer),
        ],
        "responses": _responses(route, schema_of),
    }
    if route.description:
        operation["description"] = route.description
    if route.body is not None:
        binary = {"type": "string", "format": "binary"}
        schema = binary if route.body is bytes else schema_of[_key(route.body)]
        operation["requestBody"] = {
            "required": True,
            "content": {media: {"schema": schema} for media in route.body_media},
        }
    if route.who is Audience.ANYONE:
        operation["security"] = []
    if route.who in (Audience.ADMIN, Audience.OPERATOR):
        operation["description"] = f"{route.description} Needs {NEEDS[route.who]}.".strip()
    operation["x-curl"] = curl(route)
    return operation


def curl(route: Route[Any]) -> str:
    """An example to paste into a shell."""
    words = ["curl"]
    if route.who is not Audience.ANYONE:
        words.append('-H "Authorization: Bearer $WEFT_TOKEN"')
    if route.method not in ("GET", "POST") or (route.method == "POST" and route.body is None):
        words.append(f"-X {route.method}")
    path = route.path.replace("{job}", "hello").replace("{node}", "node-1").replace("{array}", "a-k3f9x2m7q1")
    path = path.replace("{tenant}", "vision").replace("{label}", "ci")
    query = route.example if route.example.startswith("?") else ""
    if "follow=1" in query or any(answer.streamed for answer in route.answers.values()):
        words[0] = "curl -N"
    if route.body is not None:
        words += [f"-H 'Content-Type: {route.body_media[0]}'", route.example]
    return " ".join([*words, f'"$WEFT_URL{path}{query}"'])


def _operation_id(route: Route[Any]) -> str:
    words = re.sub(r"[{}]", "", route.path.removeprefix("/v1")).strip("/").replace(".", "-").replace("/", "-")
    return f"{route.method.lower()}-{words or 'dashboard'}"


def _path_parameter(name: str) -> Json:
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": PATH_WORDS[name],
        "schema": {"type": "string", "pattern": PATH_PATTERN},
    }


def _query_parameters(schema: Json) -> Iterable[Json]:
    for name, of_one in schema.get("properties", {}).items():
        words = of_one.get("description") or next(
            (part["description"] for part in of_one.get("anyOf", ()) if "description" in part), ""
        )
        parameter = {"name": name, "in": "query", "required": False, "schema": of_one}
        yield {**parameter, "description": words} if words else parameter


def _header_parameter(header: Header) -> Json:
    return {
        "name": header.name,
        "in": "header",
        "required": False,
        "description": header.description,
        "schema": {"type": "string"},
    }


def _responses(route: Route[Any], schema_of: Json) -> Json:
    responses = {str(status): _response(route, answer, schema_of) for status, answer in sorted(route.answers.items())}
    error = {"content": {PROBLEM: {"schema": schema_of[_key(ErrorView)]}}}
    for status in _errors(route):
        responses.setdefault(str(status), {"description": ERRORS[status], **error})
    return responses


def _response(route: Route[Any], answer: RouteAnswer, schema_of: Json) -> Json:
    response: Json = {"description": answer.description}
    if answer.type is not None:
        schema = schema_of[_key(answer.type)] if _is_typed(answer) else {"type": "string"}
        streamed: Json = {"type": "string", "description": "Server-sent events, each `data` one of the list."}
        if answer.streamed:
            of_data = {"anyOf": [schema_of[_key(kind)] for kind in answer.streamed]}
            streamed = {
                "type": "string",
                "description": "Server-sent events; `event` says what its `data` are.",
                "contentMediaType": JSON,
                "contentSchema": of_data,
            }
        response["content"] = {
            media: {"schema": streamed if media == "text/event-stream" else schema} for media in answer.media
        }
    headers = [header for header in route.headers if header.of_answer]
    if headers:
        response["headers"] = {
            header.name: {"description": header.description, "schema": {"type": "string"}} for header in headers
        }
    return response


def _errors(route: Route[Any]) -> Iterable[int]:
    if route.group == "about":
        return
    yield 400
    if route.who is not Audience.ANYONE or (route.method, route.path) in _CREDENTIALS:
        yield 401
    if route.who in NEEDS or route.method != "GET" or route.path in _ALLOWED_IN_PART:
        yield 403
    submits = route.path == "/v1/jobs" and route.method == "POST"
    of_one_thing = "{" in route.path or route.method == "DELETE" or route.path == "/v1/samples"
    if of_one_thing or submits or route.path in _NAMES_ONE_THING or route.group == "images":
        yield 404
    changes_a_job = route.method == "POST" and ("{job}" in route.path or "{array}" in route.path)
    if changes_a_job or route.path.endswith("/endpoints") or (route.method, route.path) in _CONFLICTS:
        yield 409
    if route.body is not None:
        yield from (413, 415)
    if route.body is bytes:
        yield from (408, 411)
    if submits or route.path.endswith(("/update", "/what-if")):
        yield 422
    if route.path.endswith(("/logs", "/file")):
        yield 416
    if route.path.endswith("/join"):
        yield 410
    if route.path.endswith("/attach"):
        yield from (403, 409, 426)
    yield from (429, 503)
