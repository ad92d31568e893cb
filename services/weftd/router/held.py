"""A request that waits for its answer at the admission process, and the reported ends of requests."""

from msgspec import Struct

from weft.store.tenants import Access
from weftd.router.answers import Question
from weftd.router.connections import AdmissionConnection
from weftd.router.thinking.origins import is_foreign, page_of
from weftd.router.thinking.routes import Elsewhere, Route
from weftd.router.thinking.table import RoutedService
from weftd.router.thinking.usage import AnswerRead
from weftd.router.tokens import opens

EVENT_STREAM = "text/event-stream"


class EndTold(Struct):
    """One line of Caddy's log, or of the front for models. What is not known is empty or None. `left`: the call at the
    front whose client has left; `call`: one whose answer has ended, as `read` says."""

    status: int = 0
    request_id: str | None = None
    first_ms: float | str | None = None
    took_ms: float | str | None = None
    left: str = ""
    call: str = ""
    read: AnswerRead | None = None


class Call(Struct):
    """A request at the front for models, until the front reports its answer. `waited`: seconds for a replica;
    `token`: the client's, where it has a budget, of which the request took `spent` tokens beforehand."""

    job_id: str
    waited: float = 0.0
    token: str = ""
    spent: float = 0.0
    batch: bool = False


class HeldQuestion(Struct):
    """A request that the admission process has not answered."""

    connection: AdmissionConnection
    question: Question
    route: Route
    service: RoutedService | None = None
    drops_authorization: bool = False
    drops_query: bool = False  # the token of a Jupyter client
    by: str = "public"  # how it was let in, for the replica
    shown_to: str = ""  # the origin whose pages may read the answer
    may_see: bool = False  # a token of the tenant, or of an administrator, came with it
    tenant: str = ""  # the token's, at the front for models
    job: str = ""  # the only one that the token opens, there
    token: str = ""  # itself, there
    to: Elsewhere | None = None  # where a browser goes whose token was in the address
    ends_with: str = ""  # the token with which the request must end; empty: it ends by itself

    def opens(self, token: str, access: Access | None) -> bool:
        """Return True if the token opens the service, or the front for models. A request of a person's session ends
        with the session, and a request that may last ends with its token."""
        service = self.service
        if access is None:
            return False
        if self.route.front:
            self.tenant, self.job, self.token = access.tenant, access.job, token
            if not opens(access, access.job, access.tenant):
                return False
        elif service is None or not opens(access, service.job_id, service.tenant):
            return False
        if access.session or self.question.upgrade or EVENT_STREAM in self.question.accept:
            self.ends_with = token
        return True


def navigates(question: Question) -> bool:
    page = page_of(question.page)
    return page is not None and page.mode == "navigate" and question.method in ("GET", "HEAD")


def is_foreign_page(question: Question) -> bool:
    return is_foreign(page_of(question.page), question.method, upgraded=bool(question.upgrade))


def seconds_of(milliseconds: float | str | None) -> float | None:
    return milliseconds / 1000.0 if isinstance(milliseconds, float) else None
