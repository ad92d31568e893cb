"""The NATS server's `authorization` fragment for a set of users."""

from collections.abc import Mapping

import msgspec

from weft.credentials.permissions import Permissions, inbox_prefix

HEAD = "# Written by weft from the folder it lies in; changes made here are lost.\n"


def render(permissions: Mapping[str, Permissions], passwords: Mapping[str, str]) -> str:
    users = "".join(_user(user, passwords[user], permissions[user]) for user in permissions)
    return f"{HEAD}authorization {{\n  users = [\n{users}  ]\n}}\n"


def _user(user: str, password: str, may: Permissions) -> str:
    assert may.publish, f"{user}: a user without a publish rule may publish anything"
    rules = [
        f"publish: {{ allow: {_quoted(may.publish)} }}",
        f"subscribe: {{ allow: {_quoted((*may.subscribe, inbox_prefix(user) + '.>'))} }}",
    ]
    if may.answers:
        rules.append("allow_responses: true")
    body = "".join(f"        {rule}\n" for rule in rules)
    return f"    {{ user: {_quoted(user)}, password: {_quoted(password)}, permissions: {{\n{body}    }} }}\n"


def _quoted(value: str | tuple[str, ...]) -> str:
    return msgspec.json.encode(value).decode()
