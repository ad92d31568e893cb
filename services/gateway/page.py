"""The API as one page for people, made from the OpenAPI document. It needs nothing from anywhere else."""

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

Json = dict[str, Any]

STYLE = files(__package__).joinpath("page.css").read_text()
SCRIPT = files(__package__).joinpath("page.js").read_text()
TITLE = "Weft API"


def sha256_source(text: bytes) -> str:
    """What a Content-Security-Policy calls a script or a style within a page."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"


_STYLES, _SCRIPTS = sha256_source(STYLE.encode()), sha256_source(SCRIPT.encode())
SECURITY = {
    "Content-Security-Policy": f"default-src 'none'; style-src {_STYLES}; script-src {_SCRIPTS}; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def render(document: Json) -> str:
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    groups = [tag["name"] for tag in document["tags"]]
    schemas = document["components"]["schemas"]
    sections = "".join(
        f'<section><h2 id="group-{group}">{group.title()}</h2>'
        + "".join(_operation(*each) for each in operations if group in each[2]["tags"])
        + "</section>"
        for group in groups
    )
    navigation = "".join(
        f"<h3>{group.title()}</h3><ul>{''.join(_link(*each) for each in operations if group in each[2]['tags'])}</ul>"
        for group in groups
    )
    types = "".join(_schema(name, schema) for name, schema in schemas.items())
    type_links = "".join(f'<li><a href="#type-{escape(name)}">{escape(name)}</a></li>' for name in schemas)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{TITLE}</title>
<style>{STYLE}</style>
</head>
<body>
<nav><h1><a href="#top">Weft</a></h1>{navigation}<h3>Types</h3><ul class="types">{type_links}</ul></nav>
<main id="top">
<header>
<h1>{TITLE} <small>v{escape(document["info"]["version"])}</small></h1>
<p>{_prose(document["info"]["description"])}</p>
<p class="bar"><label>Token <input id="token" type="password" autocomplete="off" spellcheck="false"
 placeholder="weft_… (stays in this page)"></label> <a href="/v1/openapi.json">openapi.json</a></p>
</header>
{sections}
<section><h2 id="types">Types</h2>{types}</section>
</main>
<script>{SCRIPT}</script>
</body>
</html>
"""


def _link(method: str, path: str, operation: Json) -> str:
    return (
        f'<li><a href="#{operation["operationId"]}"><b class="{method}">{method.upper()}</b>'
        f"<span>{escape(operation['summary'])}</span></a></li>"
    )


def _operation(method: str, path: str, operation: Json) -> str:
    open_to_all = operation.get("security") == []
    lock = "" if open_to_all else '<span class="lock" title="needs a token">token</span>'
    return f"""<article id="{operation["operationId"]}">
<h3><b class="{method}">{method.upper()}</b> <code>{_path(path)}</code> {lock}</h3>
<p class="summary">{escape(operation["summary"])}</p>
<p>{_prose(operation.get("description", ""))}</p>
{_parameters(operation["parameters"])}{_body(operation)}{_responses(operation["responses"])}
<div class="curl"><pre><code>{escape(operation["x-curl"])}</code></pre><button type="button" class="copy">copy</button>
</div>
{_form(method, path, operation)}
</article>"""


def _path(path: str) -> str:
    return escape(path).replace("{", "<i>{").replace("}", "}</i>")


def _parameters(parameters: list[Json]) -> str:
    if not parameters:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(each['name'])}</code> <small>{each['in']}</small></td>"
        f"<td>{_type(each['schema'])}</td><td>{_prose(each.get('description', ''))}</td></tr>"
        for each in parameters
    )
    return f"<h4>Parameters</h4><table>{rows}</table>"


def _body(operation: Json) -> str:
    if "requestBody" not in operation:
        return ""
    content = operation["requestBody"]["content"]
    schema = next(iter(content.values()))["schema"]
    return f"<h4>Body</h4><p>{_type(schema)} <small>as {escape(', '.join(content))}</small></p>"


def _responses(responses: Json) -> str:
    rows = "".join(
        f'<tr class="s{status[0]}"><td><b>{status}</b></td><td>{_contents(response.get("content", {}))}</td>'
        f"<td>{_prose(response['description'])}</td></tr>"
        for status, response in responses.items()
    )
    return f"<h4>Answers</h4><table>{rows}</table>"


def _contents(content: Json) -> str:
    return "<br>".join(
        f"{_type(each['schema'])} <small>{'' if media == 'application/json' else escape(media)}</small>"
        for media, each in content.items()
    )


def _form(method: str, path: str, operation: Json) -> str:
    """Try it here, with the token of the page."""
    names = [each for each in operation["parameters"] if each["in"] in ("path", "query")]
    inputs = "".join(
        f'<label>{escape(each["name"])} <input name="{escape(each["name"])}" data-in="{each["in"]}"'
        f"{' required' if each['required'] else ''}></label>"
        for each in names
    )
    body = '<label class="wide">body <textarea rows="4" spellcheck="false"></textarea></label>'
    return f"""<details class="try"><summary>Try it</summary>
<form data-method="{method.upper()}" data-path="{escape(path)}">{inputs}{body if "requestBody" in operation else ""}
<button>Send</button> <output></output></form><pre class="answer" hidden></pre></details>"""


def _schema(name: str, schema: Json) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{'' if field in required else ' <small>optional</small>'}</td>"
        f"<td>{_type(of_one)}</td><td>{_prose(of_one.get('description', ''))}</td></tr>"
        for field, of_one in schema.get("properties", {}).items()
    )
    described = f"<p>{_prose(schema.get('description', ''))}</p>"
    inside = f"<table>{rows}</table>" if rows else f"<p>{_type(schema)}</p>"
    return f'<article class="type" id="type-{escape(name)}"><h3>{escape(name)}</h3>{described}{inside}</article>'


def _type(schema: Json) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rsplit("/", 1)[-1])
        words = f'<a href="#type-{name}">{name}</a>'
    elif "anyOf" in schema:
        words = " or ".join(_type(part) for part in schema["anyOf"])
    elif "enum" in schema:
        words = " · ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
    elif schema.get("type") == "array":
        words = f"list of {_type(schema['items'])}" if schema.get("items") else "list"
    elif schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        words = f"map to {_type(schema['additionalProperties'])}"
    else:
        words = escape(str(schema.get("type", "anything")))
    return words + "".join(f" <small>{escape(note)}</small>" for note in _notes(schema))


def _notes(schema: Json) -> Iterable[str]:
    for key, sign in (("minimum", "≥"), ("maximum", "≤"), ("exclusiveMinimum", ">"), ("exclusiveMaximum", "<")):
        if key in schema:
            yield f"{sign} {schema[key]:g}"
    if "pattern" in schema:
        yield schema["pattern"]
    default = schema.get("default")
    if default not in (None, "", [], {}):
        yield f"default {msgspec.json.encode(default).decode()}"


def _prose(text: str) -> str:
    """Plain text in which `this` is code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
