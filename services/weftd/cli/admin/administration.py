"""The commands of administrators and tenants about tenants, tokens, quotas, webhooks and secrets, from one table: each
noun with its verbs, and each verb with its options, its request and what is printed of the answer."""

import argparse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from msgspec import UNSET, UnsetType, structs
from rich.table import Table

from weft.client import Client
from weft.domain.quantity import duration_seconds, size_bytes
from weft.domain.quotas import GPUS_MAX
from weft.domain.text import plural
from weft.messages.http.quotas import QuotasView, QuotaView, QuotaWanted
from weft.messages.http.tenants import EXPIRES_SECONDS_MAX, TenantWanted, TokenMade
from weft.messages.webhooks import WebhookMade, WebhookWanted
from weftd.cli import connection, page
from weftd.cli.admin.secret import secret_value
from weftd.cli.cli_error import CliError
from weftd.cli.formatting import clock, zone_name
from weftd.cli.rendering import administration as drawing
from weftd.cli.rendering.context import RenderContext

T = TypeVar("T")
Request = Callable[[Client], Awaitable[Any]]
Show = Callable[[argparse.Namespace, Any], None]

DEFAULT = "default"  # resets a limit of a tenant
NONE = "none"  # removes a bound of a quota


def option(*names: str, **how: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The arguments of `add_argument`."""
    return names, how


class Verb(NamedTuple):
    """`request` makes the request of the command line, or raises `CliError` before a cluster is looked for."""

    help: str
    request: Callable[[argparse.Namespace], Request]
    show: Show
    options: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = ()
    status: Callable[[Any], int] = lambda _: 0
    parser: Mapping[str, Any] = MappingProxyType({})


class Noun(NamedTuple):
    help: str
    description: str
    verbs: dict[str, Verb]
    parser: Mapping[str, Any] = MappingProxyType({})


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    for name, noun in NOUNS.items():
        parser = commands.add_parser(name, help=noun.help, description=noun.description, **noun.parser)
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="|".join(noun.verbs))
        for word, verb in noun.verbs.items():
            each = verbs.add_parser(word, help=verb.help, **verb.parser)
            for names, how in verb.options:
                each.add_argument(*names, **how)
            connection.options(each)
            each.set_defaults(func=_command(verb))


def _command(verb: Verb) -> Callable[[argparse.Namespace], Awaitable[int]]:
    async def command(args: argparse.Namespace) -> int:
        request = verb.request(args)
        async with connection.connected(args) as client:
            answer = await request(client)
        verb.show(args, answer)
        return verb.status(answer)

    return command


def _rows(rows: Callable[[Any], Sequence[Any]], draw: Callable[[Any, RenderContext], Table], none: str = "") -> Show:
    """Print a table; `none`: the note in place of an empty one."""

    return lambda args, answer: page.drawn(
        args, answer, lambda context: draw(rows(answer), context), "" if rows(answer) else none
    )


def _sentence(text: Callable[[Any], str]) -> Show:
    return lambda args, answer: page.answered(args, answer, text(answer))


def _one(answer: T) -> tuple[T]:
    return (answer,)


def _change_tenant(args: argparse.Namespace) -> Request:
    wanted = TenantWanted(
        jobs_open_max=_chosen(args.jobs_open, int, "--jobs-open"),
        spec_bytes_max=_chosen(args.spec_bytes, _size, "--spec-bytes"),
        priority_max=_chosen(args.priority, int, "--priority"),
        may_be_unpreemptible=_chosen(args.unpreemptible, _yes, "--unpreemptible"),
        idle_seconds_max=_chosen(args.idle_stop, _seconds, "--idle-stop"),
    )
    if wanted == TenantWanted():
        raise CliError("no change is given: see `weft tenant set --help`", status=2)
    return lambda client: client.change_tenant(args.tenant, wanted)


def _chosen(text: str | None, read: Callable[[str], T], name: str) -> T | UnsetType | None:
    """The change: empty without the option, None for the default."""
    if text is None:
        return UNSET
    if text == DEFAULT:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise CliError(f"{error}, or `{DEFAULT}`", field=name, status=2) from None


def _size(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else size_bytes(text)


def _seconds(text: str) -> int:
    return int(duration_seconds(text))


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(f"expected yes or no, got {text!r}")
    return text == "yes"


def _lifetime(text: str) -> int:
    try:
        seconds = int(duration_seconds(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 1 <= seconds <= EXPIRES_SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"{text}: from one second to ten years")
    return seconds


def _show_token(args: argparse.Namespace, made: TokenMade) -> None:
    page.answered(args, made, made.token)
    until = "" if made.expires_at is None else f", until {clock(made.expires_at, now=0)} {zone_name(made.expires_at)}"
    page.note(f"for {made.tenant}, label {made.label}{until}; keep it: only its hash is stored")


def _show_quotas(args: argparse.Namespace, found: QuotasView) -> None:
    if args.json or found.quotas:
        _rows(lambda answer: answer.quotas, drawing.quota_table)(args, found)
    else:
        page.show(f"no quota is set in pool {args.pool}: every tenant may hold all free GPUs")


def _change_quota(args: argparse.Namespace) -> Request:
    if args.guaranteed is args.limit is args.weight is args.group is None and not args.is_group:
        raise CliError("no setting is given: see `weft quota set --help`", status=2)
    changed: dict[str, Any] = {}
    for name, bounds in (("guaranteed", args.guaranteed), ("limit", args.limit)):
        if bounds is not None:
            models = _bounds(f"--{name}", bounds)
            changed |= {name: models.pop("", None), f"{name}_models": models}
    if args.weight is not None:
        changed["weight"] = args.weight
    if args.group is not None:
        changed["group"] = "" if args.group == NONE else args.group
    if args.is_group:
        changed["is_group"] = True

    async def request(client: Client) -> QuotaView:
        known = (await client.quotas(pool=args.pool)).quotas
        before = next((_as_wanted(one) for one in known if one.name == args.name), QuotaWanted(pool=args.pool))
        return await client.set_quota(args.name, structs.replace(before, **changed))

    return request


def _as_wanted(quota: QuotaView) -> QuotaWanted:
    return QuotaWanted(**{name: getattr(quota, name) for name in QuotaWanted.__struct_fields__})


def _bounds(name: str, given: list[str]) -> dict[str, float]:
    """GPUs by model, empty: of all models."""
    found: dict[str, float] = {}
    for text in given:
        model, _, number = text.rpartition("=")
        if text == NONE:
            continue
        try:
            gpus = float(number)
        except ValueError:
            gpus = -1.0
        if not 0 <= gpus <= GPUS_MAX:
            expected = f"expected a number of GPUs, MODEL=NUMBER or `{NONE}`, got {text!r}"
            raise CliError(expected, field=name, status=2)
        if model in found:
            what = f"GPUs of {model}" if model else "GPUs of all models"
            raise CliError(f"{what} are given twice", field=name, status=2)
        found[model] = gpus
    return found


def _add_webhook(args: argparse.Namespace) -> Request:
    events = tuple(name.strip() for name in args.events.split(",") if name.strip())
    wanted = WebhookWanted(url=args.address, events=events, all_tenants=args.all_tenants)
    return lambda client: client.add_webhook(wanted)


def _show_webhook(args: argparse.Namespace, made: WebhookMade) -> None:
    if args.json:
        page.json_line(made)
    elif not made.secret:
        page.show(f"id      {made.webhook.id}")
    else:
        page.show(f"id      {made.webhook.id}\nsecret  {made.secret}")
        page.note("the secret signs each post; it is not shown again")


def _set_secret(args: argparse.Namespace) -> Request:
    value = secret_value(args.name, args.source)
    return lambda client: client.set_secret(args.name, value)


_TENANT = Noun(
    help="show and set the limits of tenants",
    description="`weft tenant`: show the limits and the use of each tenant, and change limits. For administrators.",
    verbs={
        "list": Verb(
            help="list tenants with their limits and use",
            request=lambda _: lambda client: client.tenants(),
            show=_rows(lambda answer: answer.tenants, drawing.tenant_table),
        ),
        "set": Verb(
            help="change the limits of a tenant",
            parser={"epilog": f"`{DEFAULT}` instead of a value resets a limit to the gateway's setting."},
            options=(
                option("tenant", metavar="TENANT"),
                option("--jobs-open", metavar="N", help="maximum number of open jobs"),
                option(
                    "--spec-bytes",
                    metavar="SIZE",
                    help="maximum size of the specifications of open jobs, such as 64MiB",
                ),
                option("--priority", metavar="N", help="highest priority that its jobs may request"),
                option("--unpreemptible", metavar="yes|no", help="allow its jobs to be non-preemptible: yes or no"),
                option(
                    "--idle-stop",
                    metavar="DURATION",
                    help="maximum time that a job may hold unused GPUs, such as 8h; 0s: no bound",
                ),
            ),
            request=_change_tenant,
            show=_rows(_one, drawing.tenant_table),
        ),
    },
)

_TOKEN = Noun(
    help="create, list and revoke access tokens",
    description="""`weft token`: create, list and revoke access tokens. For administrators.

To change a tenant's token: create another with another label, use it, and revoke the first.
""",
    parser={"formatter_class": argparse.RawDescriptionHelpFormatter},
    verbs={
        "create": Verb(
            help="make a token; it is shown only once",
            parser={"aliases": ["make"]},
            options=(
                option("tenant", metavar="TENANT", help="tenant that uses it; created with its first token"),
                option("--label", default="default", help="name of the token within the tenant (default: default)"),
                option("--admin", action="store_true", help="give it the rights of an administrator"),
                option("--expires", type=_lifetime, metavar="30d", help="lifetime of the token"),
            ),
            request=lambda args: (
                lambda client: client.make_token(args.tenant, args.label, admin=args.admin, expires_in=args.expires)
            ),
            show=_show_token,
        ),
        "list": Verb(
            help="list the labels of tokens and their last use; tokens are not shown",
            options=(
                option("tenant", nargs="?", default="", metavar="TENANT", help="tenant to list (default: all)"),
                option("--all", action="store_true", help="include revoked and expired tokens"),
            ),
            request=lambda args: lambda client: client.tokens(tenant=args.tenant, every=args.all),
            show=_rows(lambda answer: answer.tokens, drawing.token_table),
        ),
        "revoke": Verb(
            help="revoke tokens",
            options=(
                option("tenant", metavar="TENANT"),
                option("--label", default="default", help="name of the token (default: default)"),
            ),
            request=lambda args: lambda client: client.revoke(args.tenant, args.label),
            show=_sentence(lambda answer: f"{plural(answer.revoked, 'token')} revoked"),
            status=lambda answer: 0 if answer.revoked else 1,
        ),
    },
)

_SESSION = Noun(
    help="list and end the sessions of browsers",
    description="`weft session`: list who is signed in to the dashboard or a service by browser, and sign them out.",
    verbs={
        "list": Verb(
            help="list the sessions of your tenant; administrators see all, or those of one tenant",
            options=(option("tenant", nargs="?", default="", metavar="TENANT", help="for administrators"),),
            request=lambda args: lambda client: client.sessions(tenant=args.tenant),
            show=_rows(
                lambda answer: answer.sessions, drawing.session_table, "nobody is signed in; `weft open` prints a link"
            ),
        ),
        "end": Verb(
            help="sign a browser out",
            options=(option("session", metavar="ID"),),
            request=lambda args: lambda client: client.end_session(args.session),
            show=_sentence(lambda answer: f"{answer.id} has ended"),
        ),
    },
)

_PERSON = option("person", metavar="ID")
_USER = Noun(
    help="list people, keep them out and let them in",
    description="`weft user`: the people who signed in with the identity provider. For administrators.",
    verbs={
        "list": Verb(
            help="list people with their tenants and roles as of their last sign-in",
            options=(option("tenant", nargs="?", default="", metavar="TENANT", help="tenant to list (default: all)"),),
            request=lambda args: lambda client: client.people(tenant=args.tenant),
            show=_rows(lambda answer: answer.people, drawing.people_table, "nobody has signed in yet"),
        ),
        "disable": Verb(
            help="keep a person out, and end their sessions",
            options=(_PERSON,),
            request=lambda args: lambda client: client.keep_out(args.person),
            show=lambda args, answer: page.answered(args, answer, f"{args.person} is kept out"),
        ),
        "enable": Verb(
            help="let a person sign in again",
            options=(_PERSON,),
            request=lambda args: lambda client: client.keep_out(args.person, disabled=False),
            show=lambda args, answer: page.answered(args, answer, f"{args.person} may sign in again"),
        ),
    },
)

_POOL = option("--pool", default="default")
_QUOTA = Noun(
    help="show and set guarantees and limits of tenants",
    description="`weft quota`: show and set guarantees and limits of tenants and groups.",
    verbs={
        "list": Verb(
            help="list quotas and the GPUs held under them",
            options=(_POOL,),
            request=lambda args: lambda client: client.quotas(pool=args.pool),
            show=_show_quotas,
        ),
        "set": Verb(
            help="set or change a quota; missing options stay unchanged",
            parser={
                "epilog": f"`{NONE}` instead of GPUs: no guarantee, or no limit. GPUS is a number, or MODEL=NUMBER, and"
                " may be repeated: `--guaranteed 8 --guaranteed H100=4`."
            },
            options=(
                option("name", metavar="NAME", help="tenant, or group with --is-group"),
                option("--guaranteed", metavar="GPUS", action="append", help="guaranteed number of GPUs"),
                option("--limit", metavar="GPUS", action="append", help="maximum number of GPUs"),
                option("--weight", metavar="N", type=int, help="weight when it borrows GPUs, relative to others"),
                option("--group", metavar="GROUP", help=f"the group it belongs to, or `{NONE}`"),
                option("--is-group", action="store_true", help="make it a group of tenants"),
                _POOL,
            ),
            request=_change_quota,
            show=_rows(_one, drawing.quota_table),
        ),
        "delete": Verb(
            help="delete a quota",
            options=(option("name", metavar="NAME"), _POOL),
            request=lambda args: lambda client: client.delete_quota(args.name, pool=args.pool),
            show=_sentence(lambda answer: f"the quota of {answer.deleted} is gone"),
        ),
    },
)

_WEBHOOK_ID = option("webhook", metavar="ID")
_WEBHOOK = Noun(
    help="post events to a URL",
    description="""\
`weft webhook`: post events of jobs to a URL, signed and at least once, or send them by mail. docs/telling.md.

`--events` takes begin, end, fail, requeue, and every name of docs/events.md. The signing secret is shown once.
With mailto:ADDRESS as the URL, one mail has several events: begin, end and requeue unless `--events` names others.
""",
    verbs={
        "add": Verb(
            help="post events to a URL, or mail them to mailto:ADDRESS, from now on; prints the secret",
            options=(
                option("address", metavar="URL"),
                option(
                    "--events",
                    default="",
                    metavar="NAMES",
                    help="events to post, such as begin,end,fail (default: all; by mail begin,end,requeue)",
                ),
                option(
                    "--all-tenants",
                    action="store_true",
                    help="post events of all jobs and of nodes; for administrators",
                ),
            ),
            request=_add_webhook,
            show=_show_webhook,
        ),
        "list": Verb(
            help="list the webhooks and their deliveries",
            request=lambda _: lambda client: client.webhooks(),
            show=_rows(
                lambda answer: answer.webhooks, drawing.webhook_table, "no webhooks; `weft webhook add URL` makes one"
            ),
        ),
        "on": Verb(
            help="switch a webhook on again",
            options=(_WEBHOOK_ID,),
            request=lambda args: lambda client: client.switch_webhook_on(args.webhook),
            show=_sentence(lambda answer: f"{answer.id} is on: {answer.url}"),
        ),
        "remove": Verb(
            help="remove a webhook",
            options=(_WEBHOOK_ID,),
            request=lambda args: lambda client: client.remove_webhook(args.webhook),
            show=_sentence(lambda answer: f"{answer.id} is removed: {answer.url}"),
        ),
    },
)

_SECRET_NAME = option("name", metavar="NAME")
_SECRET = Noun(
    help="store secrets for jobs",
    description="""`weft secret`: store values that jobs use by name. Weft never shows a stored value. docs/secrets.md.

The value of `set` comes from the terminal (it is not echoed), from a pipe, or from a file; never from the command line,
which the shell keeps and other users of the machine see. One newline at its end is left out.
""",
    verbs={
        "set": Verb(
            help="store a secret, or replace its value",
            options=(
                option("--from", dest="source", metavar="FILE", help="file with the value"),
                _SECRET_NAME,
            ),
            request=_set_secret,
            show=_sentence(lambda answer: f"{answer.name} is stored"),
        ),
        "list": Verb(
            help="list the names of secrets; values are not shown",
            request=lambda _: lambda client: client.secrets(),
            show=_rows(
                lambda answer: answer.secrets, drawing.secret_table, "no secrets; `weft secret set NAME` stores one"
            ),
        ),
        "delete": Verb(
            help="delete a secret",
            options=(_SECRET_NAME,),
            request=lambda args: lambda client: client.delete_secret(args.name),
            show=_sentence(lambda answer: f"{answer.deleted} is deleted"),
        ),
    },
)

NOUNS = {
    "tenant": _TENANT,
    "token": _TOKEN,
    "session": _SESSION,
    "user": _USER,
    "quota": _QUOTA,
    "webhook": _WEBHOOK,
    "secret": _SECRET,
}
