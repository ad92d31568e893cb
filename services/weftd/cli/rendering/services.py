"""Services: their replicas, requests, updates and loans, in words and as a table of endpoints."""

from rich.console import Group, RenderableType
from rich.text import Text

from weft.domain.job import Cause
from weft.domain.spec import Objective
from weft.domain.text import gpu_text, plural
from weft.messages.http.services import (
    EndpointsView,
    EndpointView,
    LoanView,
    RequestsView,
    ServiceView,
    TokensView,
    UnreadyView,
)
from weftd.cli.formatting import ago, clean, number, span
from weftd.cli.rendering.context import RenderContext, plain, table

_LOANS_SHOWN = 5


def service_short(view: ServiceView) -> str:
    """`2/3 ready, 41.2/s, p99 120ms`: the cell of a list."""
    parts = [ready_text(view)]
    if view.update is not None:
        parts.append(f"update {view.update.replaced}/{view.update.replicas}")
    if view.requests is not None:
        parts.append(f"{number(round(view.requests.rate_now, 1))}/s")
        parts += [f"p99 {latency_text(view.requests.p99)}"] if view.requests.p99 is not None else []
        parts += [f"{view.requests.queued} queued"] if view.requests.queued else []
    if view.kept is False or view.unattainable:
        parts.append("objective not kept" if view.kept is False else "objective out of reach")
    return ", ".join(parts)


def ready_text(view: ServiceView) -> str:
    """`2/3 ready`: of the replicas that it should have."""
    if not view.wanted and not view.granted:
        return "at zero"
    return f"{'?' if view.ready is None else view.ready}/{view.wanted} ready"


def service_lines(view: ServiceView, context: RenderContext) -> list[tuple[str, str]]:
    """The facts of a service by name, the most wanted first."""
    lines = [("url", view.url + (" (public)" if view.public else ""))] if view.url else []
    lines.append(("replicas", _replicas(view)))
    if view.sized_for is not None:
        lines.append(("sized for", _cause(view.sized_for)))
    if view.update is not None:
        lines.append(("update", _update(view, context)))
    elif view.revision:
        lines.append(("revision", number(view.revision)))
    if view.requests is not None:
        lines.append(("requests", requests_text(view.requests)))
        if view.requests.tokens is not None:
            lines.append(("tokens", tokens_text(view.requests.tokens)))
    if view.objective is not None:
        lines.append(("objective", _objective(view, view.objective)))
    lines += [("not ready", unready_text(one, context)) for one in view.unready]
    if view.unattainable:
        lines.append(("out of reach", clean(view.unattainable)))
    if view.shedding:
        lines.append(("sheds", clean(view.shedding)))
    if view.loans:
        lines.append(("borrowed", _loans(view.loans, context)))
    return lines


def unready_text(one: UnreadyView, context: RenderContext) -> str:
    """`replica 0 for 12s: connection refused at port 62285; it listens on port 8000`."""
    waits = f" for {span(max(0.0, context.now - one.since))}" if one.since is not None else ""
    return clean(f"replica {one.rank}{waits}: {one.why}")


def _replicas(view: ServiceView) -> str:
    has = f"{view.granted} of {view.wanted}" if view.granted != view.wanted else f"{view.wanted}"
    ready = "unknown number ready" if view.ready is None else f"{view.ready} ready"
    parts = [f"{has} ({view.least} … {view.most})", ready]
    parts += [f"{view.draining} finish their requests"] if view.draining else []
    return ", ".join(parts)


def _update(view: ServiceView, context: RenderContext) -> str:
    assert view.update is not None, "only an update under way is told"
    update = view.update
    told = f"{update.replaced} of {plural(update.replicas, 'replica')} run revision {update.revision}"
    back = "" if update.back_to is None else f"; if none of it becomes ready, revision {update.back_to} comes back"
    alone = view.granted == 1 and not update.replaced
    room = "; the only replica stays until a new one beside it is ready, which needs room" if alone else ""
    return f"{told}, asked for {ago(context.now - update.since)}{room}{back}"


def requests_text(requests: RequestsView) -> str:
    """`41.2/s in the last 60s, 12 in flight, 3 queued; p50 20ms, p99 120ms; 4 refused`."""
    parts = [f"{number(round(requests.rate, 1))}/s in the last {span(requests.seconds)}"]
    if round(requests.rate_now, 1) != round(requests.rate, 1):
        parts.insert(0, f"{number(round(requests.rate_now, 1))}/s now")
    parts.append(f"{requests.in_flight} in flight, {requests.queued} queued")
    if requests.p50 is not None and requests.p99 is not None:
        parts.append(f"p50 {latency_text(requests.p50)}, p99 {latency_text(requests.p99)} to the first byte")
    bad = {"refused": requests.refused, "failed": requests.failed, "late": requests.late}
    parts += (
        [", ".join(f"{how_many} {what}" for what, how_many in bad.items() if how_many)] if any(bad.values()) else []
    )
    return "; ".join(parts)


def tokens_text(tokens: TokensView) -> str:
    """`820/s in, 140/s out; first token 310ms, then 22ms each; 64 % of prompts cached; KV cache 71 % used, 3 wait`."""
    parts = [f"{number(round(tokens.rate_in))}/s in, {number(round(tokens.rate_out))}/s out"]
    if tokens.ttft is not None:
        then = f", then {latency_text(tokens.tpot)} each" if tokens.tpot is not None else ""
        parts.append(f"first token {latency_text(tokens.ttft)}{then}")
    if tokens.cached is not None:
        parts.append(f"{number(round(100 * tokens.cached))} % of prompts cached")
    engine = [f"KV cache {number(round(100 * tokens.kv_used))} % used"] if tokens.kv_used is not None else []
    engine += [f"{tokens.waiting} wait in engines"] if tokens.waiting is not None else []
    return "; ".join([*parts, *([", ".join(engine)] if engine else [])])


def _objective(view: ServiceView, objective: Objective) -> str:
    promise = f"{number(objective.percentile)} % {_promised(objective)} at {number(objective.rate)}/s"
    if view.kept is None:
        return f"{promise}: nothing arrived lately"
    has = None if view.requests is None else view.requests.objective
    took = f" ({number(objective.percentile)} % within {latency_text(has)})" if has is not None else ""
    return f"{promise}: {'kept' if view.kept else 'not kept'} in the last minute{took}"


def _promised(objective: Objective) -> str:
    if objective.ttft is None:
        return f"within {objective.latency}"
    each = f", {objective.tpot} for each further one," if objective.tpot is not None else ""
    return f"with the first token within {objective.ttft}{each}"


def _loans(loans: tuple[LoanView, ...], context: RenderContext) -> str:
    told = [_loan(loan, context) for loan in loans[:_LOANS_SHOWN]]
    more = f" and {len(loans) - _LOANS_SHOWN} more" if len(loans) > _LOANS_SHOWN else ""
    return "; ".join(told) + more


def _loan(loan: LoanView, context: RenderContext) -> str:
    lender = f"{clean(loan.name)} ({clean(loan.lender)})" if loan.name else clean(loan.lender)
    gave = f"{plural(loan.ranks, 'rank')} of it left" if loan.ranks else "which waits until the loan ends"
    since = f", {ago(context.now - loan.since)}" if loan.since else ""
    return f"{gpu_text(loan.gpus)} of {lender}, {gave}{since}"


def latency_text(seconds: float | None) -> str:
    """`4ms`, `1.2s`."""
    if seconds is None:
        return "?"
    return f"{seconds * 1000:.3g}ms" if seconds < 1 else f"{seconds:.3g}s"


def _cause(cause: Cause) -> str:
    return clean(f"{cause.code}{': ' * bool(cause.sentence)}{cause.sentence}")


def endpoints_table(view: EndpointsView, context: RenderContext) -> RenderableType:
    """The URL, and a line for each replica that listens."""
    name, url = plain(view.name, "bold"), plain(view.url) if view.url else Text("no router", "dim")
    head = Text.assemble(name, "  ", plain(view.job_id, "dim"), "  ", url)
    if not view.endpoints:
        return Group(head, Text("no replica listens now", "dim"))
    made = table(
        "RANK", "STATE", "ADDRESS", "NODE", "REVISION", "SINCE", context=context, right=("RANK",), flexible="ADDRESS"
    )
    for each in view.endpoints:
        since = "-" if each.since is None else ago(context.now - each.since)
        made.add_row(
            number(each.rank),
            _state(each),
            plain(f"{host(each.address)}:{each.port}"),
            plain(each.node_id),
            number(each.revision),
            since,
        )
    why = [
        Text(f"{number(each.rank)} is not ready: {clean(each.why)}", "yellow") for each in view.endpoints if each.why
    ]
    return Group(head, made, *why)


def _state(endpoint: EndpointView) -> Text:
    if endpoint.draining:
        return Text("draining", "magenta")
    return Text("ready", "green") if endpoint.ready else Text("starting", "yellow")


def host(address: str) -> str:
    """An address of IPv6 in brackets, as it stands before a port."""
    return f"[{address}]" if ":" in address else address
