"""Admission: answers Caddy's questions, each when its request may proceed, and records the ends of requests."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from itertools import count
from math import inf

import msgspec
from msgspec import structs

from weft.messages.serving import OPENAI_CALLS
from weft.store import StoreUnavailableError
from weft.store.tenants import Access
from weftd.router.adapters import Adapters
from weftd.router.answers import (
    Question,
    admitted,
    found,
    moved,
    preflight,
    question_of,
    refused,
    refused_front,
    to_front,
)
from weftd.router.caddy import H2C, HTTP, ONCE, step_of
from weftd.router.clients import Peer
from weftd.router.connections import AdmissionConnection
from weftd.router.held import Call, EndTold, HeldQuestion, is_foreign_page, navigates, seconds_of
from weftd.router.passages import Passages
from weftd.router.thinking.backends import InFlightRequest
from weftd.router.thinking.batch import BATCH, is_batch
from weftd.router.thinking.budgets import BYTES_PER_TOKEN, TokenBudgets
from weftd.router.thinking.credentials import WEFT_TOKEN, cookie_tokens, header_token
from weftd.router.thinking.models import LIST, NO_TOKEN, described, list_of, no_model, over_budget, refusal_of
from weftd.router.thinking.origins import page_of, shown_to
from weftd.router.thinking.routes import Elsewhere, Refused, Route, client_token, route_of, unquote
from weftd.router.thinking.routing import SAFE, Answer, Routing
from weftd.router.thinking.table import RoutedService, ServiceTable
from weftd.router.thinking.usage import AnswerRead
from weftd.router.tokens import TokenCache, TooManyGuessesError

logger = logging.getLogger(__name__)

LOOKED_UP_MAX = 256  # tokens at once
UNKNOWN = "no public service has this address; a service of your tenant needs its token"
USED = "this link was used, is too old, or is for another service: `weft open` prints another"
BY_TOKEN, BY_COOKIE = "token", "cookie"
HELD_SLACK = 1000
CALLS_MAX = 100_000  # at the front for models, of which no end was heard
LEFT = 499  # the status in Caddy's log of a request whose client has left
FOREIGN = (
    "a page of another origin sent this request with the cookie of its reader; a program sends its token as"
    " 'Authorization: Bearer TOKEN'"
)


class Admission:
    """`boot`: differs at each start, to ignore requests of earlier ones. `wake` is called when a request waits without
    a replica, `drained` when a draining replica has ended its last request."""

    def __init__(
        self,
        *,
        routing: Routing,
        tokens: TokenCache,
        domains: tuple[str, ...],
        boot: str,
        clock: Callable[[], float],
        wake: Callable[[], None] = lambda: None,
        drained: Callable[[], None] = lambda: None,
        secure: bool = False,
        passages: Passages | None = None,
    ) -> None:
        self.routing = routing
        self.table = ServiceTable()
        self.adapters = Adapters()
        self.refused: dict[int, int] = {}  # requests by the status of our refusal
        self._tokens, self._domains, self._boot, self._clock = tokens, domains, boot, clock
        self._wake, self._drained, self._secure, self._passages = wake, drained, secure, passages
        self._held: dict[int, str] = {}  # the tokens of the requests that are relayed
        self._calls: dict[str, Call] = {}  # at the front for models, the oldest first
        self._budgets = TokenBudgets()
        self._loads: dict[str, asyncio.Task[Refused | None]] = {}  # by the call at the front
        self._tickets = count(1)
        self._waiting: dict[int, HeldQuestion] = {}
        self._looking_up: set[asyncio.Task[None]] = set()
        self._decoder = msgspec.json.Decoder(EndTold)

    # what is known

    def know(self, services: Iterable[RoutedService]) -> None:
        """Services that are new, or otherwise than before."""
        changed = [*services]
        for service in changed:
            self.table.put(service)
        self.tell(self.routing.know(changed, self._clock()))

    def forget(self, job_ids: Iterable[str]) -> None:
        """Services that are no more."""
        gone = [*job_ids]
        for job_id in gone:
            self.table.drop(job_id)
        self.tell(self.routing.forget(gone))

    def tell(self, answers: Iterable[Answer]) -> None:
        """Answer requests that waited."""
        for ticket, answer in answers:
            asking = self._waiting.pop(ticket, None)
            if asking is None:
                continue
            asking.connection.ticket = 0
            self._say(asking, answer)

    # questions

    def ask(self, connection: AdmissionConnection, head: bytes) -> None:
        question = question_of(head)
        if question.failed:
            self._again(connection, question)
            return
        route = route_of(question.uri, question.host, self._domains)
        if isinstance(route, Refused):
            self._refuse(HeldQuestion(connection, question, Route()), route)
        elif isinstance(route, Elsewhere):
            self._move(connection, question, route)
        elif route.front:
            self._front(HeldQuestion(connection, question, route))
        else:
            self._admit(HeldQuestion(connection, question, route))

    def _front(self, asking: HeldQuestion) -> None:
        """A request at the front for models, with a token only: no browser page sends one by itself."""
        question = asking.question
        asking.drops_authorization, asking.by = True, BY_TOKEN
        token = header_token(question.authorization) if question.authorization else ""
        if question.error and not question.call:
            self._refuse(asking, Refused(502, "the router could not pass this request on; it may have run"))
        elif (refusal := refusal_of(asking.route.front, question.method)) is not None:
            self._refuse(asking, refusal)
        elif not token:
            self._refuse(asking, Refused(401, NO_TOKEN))
        else:
            self._open(asking, [token])

    def _let_in_front(self, asking: HeldQuestion) -> None:
        """Admit a request with a valid token: list the models, have the model read from the body, or choose a replica
        for it."""
        path, question = asking.route.front, asking.question
        if question.call:
            asking.service = self.table.of_model(asking.tenant, question.model, job=asking.job)
            if asking.service is None:
                self._refuse(asking, no_model(question.model))
            else:
                self._call(asking, asking.service)
        elif path in OPENAI_CALLS:
            asking.connection.answer(to_front(asking.tenant))
        else:
            name = unquote(path.removeprefix(LIST).removeprefix("/"))
            if not name:
                services = self.table.with_models(asking.tenant)
                asking.connection.answer(found(list_of(one for one in services if asking.job in ("", one.job_id))))
            elif self.table.of_model(asking.tenant, name, job=asking.job) is not None:
                asking.connection.answer(found(described(name, asking.tenant)))
            else:
                self._refuse(asking, no_model(name))

    def _call(self, asking: HeldQuestion, service: RoutedService) -> None:
        """A request whose model is known: within its budget, give it a replica."""
        call = Call(service.job_id, batch=asking.question.priority == BATCH)
        most, now = service.tokens_per_minute, self._clock()
        if most is not None:
            queue, key = self.routing.queues[service.job_id], (service.job_id, asking.token)
            if wait := self._budgets.wait(key, most / queue.routers, now):
                over = self._budgets.over(key, most / queue.routers, now)
                self._refuse(asking, over_budget(service, over, wait))
                return
            call.token, call.spent = asking.token, queue.counts.mean_tokens
            self._budgets.spend(key, call.spent, most / queue.routers, now)
        self._calls[asking.question.call] = call
        if len(self._calls) > CALLS_MAX:
            del self._calls[next(iter(self._calls))]
        self._let_in(asking, service)

    def _read(self, call: Call, read: AnswerRead) -> None:
        """The front has read an answer, as much as came of it."""
        queue = self.routing.queues.get(call.job_id)
        if queue is None:
            return
        queue.read(read, waited=call.waited, batch=call.batch)
        most = queue.service.tokens_per_minute
        if call.token and most is not None:
            asked = read.tokens_in if read.usage else read.asked // BYTES_PER_TOKEN
            used = asked + read.tokens_out if 200 <= read.status < 300 else 0
            key = (call.job_id, call.token)
            self._budgets.spend(key, used - call.spent, most / queue.routers, self._clock())

    def _move(self, connection: AdmissionConnection, question: Question, to: Elsewhere) -> None:
        """Redirect to another address. With a code or a token in this one, only once that has opened the service, so
        that nobody can plant another token in a person's browser."""
        if not to.token and not to.code:
            connection.answer(moved(to, secure=self._secure))
        elif question.method not in ("GET", "HEAD"):
            refusal = Refused(
                400, "a code in the address works only with GET: a program sends 'Authorization: Bearer TOKEN'"
            )
            self._refuse(HeldQuestion(connection, question, Route()), refusal)
        elif is_foreign_page(question):
            self._refuse(HeldQuestion(connection, question, Route()), Refused(403, FOREIGN))
        else:
            asking = HeldQuestion(connection, question, to.route, to=to)
            asking.service = service = self.table.find(to.route)
            if service is not None and service.public:
                self._let_in_or_move(asking)
            elif to.code:
                self._start(asking, self._redeem(asking, to))
            else:
                self._open(asking, [to.token])

    def _admit(self, asking: HeldQuestion) -> None:
        """Admit the request at once, or once its token was looked up."""
        question = asking.question
        asking.service = service = self.table.find(asking.route)
        if service is not None and service.allow_origins:
            page = page_of(question.page)
            asking.shown_to = shown_to(page, service.allow_origins)
            if asking.shown_to and question.method == "OPTIONS" and page is not None and page.asks_for:
                asking.connection.answer(preflight(asking.shown_to))
                return
        token = header_token(question.authorization) if question.authorization else ""
        asking.drops_authorization = token.startswith(WEFT_TOKEN)
        named, rest = client_token(question.uri) if "?" in question.uri else ("", "")
        if named and navigates(question):
            self._move(asking.connection, question, Elsewhere(rest, named, asking.route))
            return
        asking.drops_query = bool(named)
        if service is not None and service.public:
            self._let_in(asking, service)
        elif token or named:
            asking.drops_authorization, asking.by = bool(token), BY_TOKEN
            self._open(asking, [token or named])
        elif not (tokens := cookie_tokens(question.cookie, asking.route.job)):
            self._refuse(asking, Refused(401, UNKNOWN))
        elif is_foreign_page(question):
            self._refuse(asking, Refused(403, FOREIGN))
        else:
            asking.by = BY_COOKIE
            self._open(asking, tokens)

    def _open(self, asking: HeldQuestion, tokens: Sequence[str]) -> None:
        """Admit the request by the first of its tokens that opens the service, now or after the look-up."""
        unknown, accesses = [], []
        for token in tokens:
            known, access = self._tokens.fresh(token)
            if not known:
                unknown.append(token)
            elif asking.opens(token, access):
                self._let_in_or_move(asking)
                return
            else:
                accesses.append(access)
        if not unknown:
            self._keep_out(asking, accesses)
        else:
            self._start(asking, self._look_up(asking, unknown, accesses))

    def _start(self, asking: HeldQuestion, look_up: Coroutine[None, None, None]) -> None:
        """Start a look-up in the store for a request, unless too many run."""
        if len(self._looking_up) >= LOOKED_UP_MAX:
            look_up.close()
            self._refuse(asking, Refused(503, "too many tokens are looked up at once", 1.0))
            return
        task = asyncio.create_task(look_up)
        self._looking_up.add(task)
        asking.connection.looking_up = task
        task.add_done_callback(self._looking_up.discard)

    async def _redeem(self, asking: HeldQuestion, to: Elsewhere) -> None:
        """Exchange the code in the address for a session of its service, and move the browser on with its cookie."""
        service, token = asking.service, None
        refusal = Refused(401, USED)
        try:
            if service is not None:
                token = await self._tokens.redeem(to.code, job=service.job_id, source=asking.question.remote)
        except TooManyGuessesError:
            refusal = Refused(429, "too many unknown codes come from this address", 1.0)
        except StoreUnavailableError:
            refusal = Refused(503, "the database is unavailable, so the code was not checked", 1.0)
        cookies = cookie_tokens(asking.question.cookie, asking.route.job)
        if token is None and refusal.status == 401 and cookies:  # a reload of the link
            self._open(asking, cookies)
        elif token is None:
            self._refuse(asking, refusal)
        else:
            asking.connection.answer(moved(structs.replace(to, token=token), secure=self._secure, keeps=True))

    async def _look_up(self, asking: HeldQuestion, tokens: Sequence[str], accesses: list[Access | None]) -> None:
        """`accesses`: accesses of its other tokens, which do not open the service."""
        refusal = None
        for token in tokens:
            try:
                access = await self._tokens.of(token, source=asking.question.remote)
            except TooManyGuessesError:
                refusal = Refused(429, "too many unknown tokens come from this address", 1.0)
                continue
            except StoreUnavailableError:
                refusal = Refused(503, "the database does not answer, and this router does not know the token yet", 1.0)
                continue
            asking.service = (
                None if asking.route.front else self.table.find(asking.route)
            )  # it may have changed meanwhile
            if asking.opens(token, access):
                self._let_in_or_move(asking)
                return
            accesses.append(access)
        if refusal is not None:
            self._refuse(asking, refusal)
        else:
            self._keep_out(asking, accesses)

    def _keep_out(self, asking: HeldQuestion, accesses: Iterable[Access | None]) -> None:
        refusal = Refused(401, "this token is not known, was revoked, or has expired")
        if any(access is not None for access in accesses):
            refusal = Refused(404, "there is no such service of this tenant")
        self._refuse(asking, refusal)

    def _let_in_or_move(self, asking: HeldQuestion) -> None:
        service, asking.may_see = asking.service, True
        if asking.route.front:
            self._let_in_front(asking)
            return
        assert service is not None, "no token opens a service that is not there"
        if asking.to is None:
            self._let_in(asking, service)
        else:
            asking.connection.answer(moved(asking.to, secure=self._secure, keeps=not service.public))

    def _let_in(self, asking: HeldQuestion, service: RoutedService) -> None:
        question = asking.question
        if isinstance(batch := is_batch(question.priority), Refused):
            self._refuse(asking, batch)
            return
        ticket, upgraded, call, prompt = next(self._tickets), bool(question.upgrade), question.call, question.prompt
        answer = self.routing.ask(
            ticket, service, self._clock(), upgraded=upgraded, call=call, prompt=prompt, batch=batch
        )
        self._follow(ticket, asking, answer)

    def _again(self, connection: AdmissionConnection, question: Question) -> None:
        """Admit again a request that could not be passed on. Its path and headers are already rewritten."""
        number, ticket = self._number(question.failed), next(self._tickets)
        request = self.routing.requests.get(number)
        service = None if request is None else self.routing.queues[request.job_id].service
        status = int(question.status) if question.status.isdigit() else 502
        answer, others = self.routing.failed(
            number, ticket, self._clock(), method=question.method, error=question.error, status=status
        )
        route = Route(front=question.call)
        asking = HeldQuestion(connection, question, route, service, ends_with=self._held.pop(number, ""))
        if service is not None and service.allow_origins:
            asking.shown_to = shown_to(page_of(question.page), service.allow_origins)
        self._follow(ticket, asking, answer)
        self.tell(others)

    def _follow(self, ticket: int, asking: HeldQuestion, answer: InFlightRequest | Refused | None) -> None:
        if answer is not None:
            self._say(asking, answer)
            return
        asking.connection.ticket = ticket
        self._waiting[ticket] = asking
        if asking.service is not None and self.routing.queues[asking.service.job_id].wants_replica:
            self._wake()

    def _say(self, asking: HeldQuestion, answer: InFlightRequest | Refused) -> None:
        if isinstance(answer, Refused):
            if answer.unready and asking.may_see and asking.service is not None:
                answer = _with_trouble(answer, self.table.services.get(asking.service.job_id))
            self._refuse(asking, answer)
            return
        service = asking.service
        assert service is not None, "only a request for a service is given a replica"
        if (call := self._calls.get(answer.call)) is not None:
            call.waited = answer.granted - answer.arrived
        model, left = asking.question.model, answer.deadline - self._clock()
        then = partial(self._loaded, asking, answer)
        if (loading := self.adapters.loading(service, answer, model, seconds=left, then=then)) is not None:
            answer.granted = inf  # until Caddy passes it on, so that `settle` does not miss it there
            asking.connection.looking_up = self._loads[asking.question.call] = loading
            return
        moves = not asking.question.failed
        kept = HTTP if asking.question.method in SAFE else ONCE
        whole = asking.route.by_host or bool(asking.route.front)  # the path stays whole
        strip = "" if not moves else "1" if not whole else "0" if service.prefix else ""
        asking.connection.answer(
            admitted(
                to=self._way(asking, service, answer),
                request_id=f"{self._boot}.{answer.number}",
                step=step_of(H2C if service.h2c else kept, answer.deadline - answer.granted),
                strip=strip,
                prefix=service.prefix,
                drops_authorization=asking.drops_authorization,
                shown_to=asking.shown_to,
                drops_query=asking.drops_query,
                by=asking.by,
            )
        )

    def _loaded(self, asking: HeldQuestion, request: InFlightRequest, refusal: Refused | None) -> None:
        """The adapter of a request is at its replica. `refusal`: it is not, and the place there is free again."""
        del self._loads[asking.question.call]
        request.granted = self._clock()
        if refusal is None:
            self._say(asking, request)
        else:
            self.tell(self.routing.ended(request.number, self._clock(), status=LEFT, first=None, took=None))
            self._refuse(asking, refusal)

    def _way(self, asking: HeldQuestion, service: RoutedService, request: InFlightRequest) -> str:
        """The address to which Caddy passes the request on: the replica's, or one that the relay can cut."""
        to = request.backend.replica.address
        if not asking.ends_with or self._passages is None:
            return to
        if len(self._held) > 2 * len(self.routing.requests) + HELD_SLACK:  # the ends of some were lost
            self._held = {one: token for one, token in self._held.items() if one in self.routing.requests}
        self._held[request.number] = asking.ends_with
        return self._passages.through(to, token=asking.ends_with, job_id=service.job_id, tenant=service.tenant)

    def _refuse(self, asking: HeldQuestion, refusal: Refused) -> None:
        self.refused[refusal.status] = self.refused.get(refusal.status, 0) + 1
        answer = refused_front(refusal) if asking.route.front else None
        asking.connection.answer(answer or refused(refusal, asking.question.accept, asking.shown_to))

    def left(self, connection: AdmissionConnection) -> None:
        """The client or Caddy has left: nobody waits for the answer."""
        if connection.looking_up is not None:
            connection.looking_up.cancel()
        if connection.ticket:
            self._waiting.pop(connection.ticket, None)
            self.routing.gone(connection.ticket)

    def waiting_clients(self) -> dict[Peer, list[int]]:
        """Tickets of waiting requests, by the client's address."""
        found: dict[Peer, list[int]] = {}
        for ticket, asking in self._waiting.items():
            question = asking.question
            if question.remote and question.port.isdigit():
                found.setdefault((question.remote, int(question.port)), []).append(ticket)
        return found

    def leave(self, tickets: Iterable[int]) -> None:
        """Note that the clients of these requests have left."""
        for ticket in tickets:
            asking = self._waiting.pop(ticket, None)
            if asking is not None:
                asking.connection.ticket = 0
                self.routing.gone(ticket)
                # Caddy would ask again if the connection were closed.
                asking.connection.answer(refused(Refused(503, "the client has left"), ""))

    def leave_call(self, call: str) -> None:
        """Note that the client of a call at the front for models has left."""
        self.leave([ticket for ticket, asking in self._waiting.items() if asking.question.call == call])
        if (loading := self._loads.get(call)) is not None:
            loading.cancel()

    # ends

    def hear_end(self, line: bytes) -> None:
        try:
            told = self._decoder.decode(line)
        except msgspec.DecodeError:
            return
        if told.left:
            self.leave_call(told.left)
        if told.read is not None and (call := self._calls.pop(told.call, None)) is not None:
            self._read(call, told.read)
        number = self._number(told.request_id or "")
        if not number:
            return
        self._held.pop(number, None)
        first, took = (seconds_of(ms) for ms in (told.first_ms, told.took_ms))
        request = self.routing.requests.get(number)
        if request is not None and not request.backend.replica.takes and len(request.backend.requests) == 1:
            self._drained()
        self.tell(self.routing.ended(number, self._clock(), status=told.status, first=first, took=took))

    def _number(self, request_id: str) -> int:
        boot, _, number = request_id.partition(".")
        return int(number) if boot == self._boot and number.isdigit() else 0


def _with_trouble(refusal: Refused, service: RoutedService | None) -> Refused:
    if service is None or not service.trouble:
        return refusal
    return structs.replace(refusal, sentence=f"{refusal.sentence}: {service.trouble}")
