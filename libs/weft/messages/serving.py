"""Services as those see them that carry their requests: which replicas take requests, and what each service gets."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from weft.messages import Message
from weft.messages.bounds import RUNS_MAX, Amount, Count, Epoch, JobId, Port, Rank, Time, Token, Word

SERVICES_MAX = 65_536  # of one router, in one message
REPLICAS_MAX = 4096
BUCKETS_MAX = 128
WHY_CHARS_MAX = 400
LAST_WORDS_CHARS_MAX = 1000
ENDED_MAX = 64  # replicas of one node that ended, in one message
BUCKET_GROWTH = 2**0.25
BUCKET_FIRST_SECONDS = 0.001
OPENAI_CALLS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""The paths of OpenAI's API that the router passes on by the model that a body names."""

Buckets = Annotated[dict[Annotated[int, Meta(ge=0, lt=BUCKETS_MAX)], Count], Meta(max_length=BUCKETS_MAX)]
"""How many times fell into each bucket: bucket 0 up to `BUCKET_FIRST_SECONDS`, each next one up to `BUCKET_GROWTH`
times as long, the last one all beyond. Those without any are left out."""


Why = Annotated[str, Meta(max_length=WHY_CHARS_MAX)]
LastWords = Annotated[str, Meta(max_length=LAST_WORDS_CHARS_MAX)]


class Endpoint(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run that serves requests, at its node's address: does it take requests (`ready`), or does it finish those
    that it has, before it is stopped (`draining`)? Times in seconds since the epoch, UTC. Of a run that is not ready:
    `why`, and the `last_words` of its log."""

    job_id: JobId
    epoch: Epoch
    rank: Rank
    port: Port
    ready: bool = False
    draining: bool = False
    started_at: Time | None = None
    ready_at: Time | None = None  # when it first was
    why: Why = ""
    last_words: LastWords = ""


class ReplicaEnded(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One run that served requests, or was to, and ended badly: why, and the last words of its log."""

    job_id: JobId
    epoch: Epoch
    rank: Rank
    why: Why = ""
    last_words: LastWords = ""


class EndpointsSeen(Message, frozen=True, kw_only=True):
    """Executor → routers, gateways, reallocators: all runs of this node that serve requests. At each change, and once a
    second. What `endpoints` leaves out is gone; `ended`: those that ended badly in the last seconds."""

    subject: ClassVar[str] = "weft.endpoints.{node_id}"
    node_id: Token
    incarnation: Count  # of the executor, as in `NodeReported`
    seq: Count  # grows; an older message is ignored
    at: Time
    endpoints: Annotated[tuple[Endpoint, ...], Meta(max_length=RUNS_MAX)] = ()
    ended: Annotated[tuple[ReplicaEnded, ...], Meta(max_length=ENDED_MAX)] = ()


class ReplicaServed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replica as a router sees it. `answered` and `failed` are counts since the router knows it; `busy_seconds`:
    the sum of the times that it took for the answers. By the metrics of its engine: the requests that wait there, and
    the part of its KV cache in use; None: it does not say."""

    epoch: Epoch
    rank: Rank
    in_flight: Count = 0
    answered: Count = 0
    failed: Count = 0
    busy_seconds: Amount = 0.0
    draining: bool = False  # it is given no more requests
    engine_waiting: Count | None = None
    kv_used: Annotated[float, Meta(ge=0, le=1)] | None = None


class ServiceServed(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The requests to one service at one router, counted in requests since the router began (`boot`), so that a lost
    message loses nothing.

    `arrived`: all; `answered`: by a replica; `refused`: with 429; `failed`: by the replica, or because they waited too
    long; `late`: answered, but later than the objective allows. `queued`: those that wait now.

    The buckets (as `Buckets` says, in seconds) count requests by how long they waited in the queue (`waits`), took from
    being given to a replica to the end of the answer (`services`), and took from arrival to the first byte of the
    answer (`totals`).

    A service that serves a model has more, by the answers that the front for models read: `tokens_in` of prompts, of
    which `tokens_cached` were in the engine's prefix cache, and `tokens_out`; `first_tokens`: requests by the time to
    the first token, and `token_times`: by the mean time for each token after it, both of streams. Where the objective
    is in these words, `totals` and `late` are, too.
    """

    job_id: JobId
    arrived: Count = 0
    answered: Count = 0
    refused: Count = 0
    failed: Count = 0
    late: Count = 0
    queued: Count = 0
    oldest_wait: Amount = 0.0  # seconds that the oldest of `queued` has waited
    waits: Buckets = {}
    services: Buckets = {}
    totals: Buckets = {}
    tokens_in: Count = 0
    tokens_out: Count = 0
    tokens_cached: Count = 0
    first_tokens: Buckets = {}
    token_times: Buckets = {}
    replicas: Annotated[tuple[ReplicaServed, ...], Meta(max_length=REPLICAS_MAX)] = ()


class ServicesServed(Message, frozen=True, kw_only=True):
    """Router → reallocators, executors, gateways: its services, once a second, and at once for a service of which a
    request waits and no replica is there. With many services it comes in `parts`, numbered from 0."""

    subject: ClassVar[str] = "weft.serving.{router}"
    router: Token
    boot: Word  # another one each time the router starts: counts begin again then
    seq: Count
    at: Time
    part: Count = 0
    parts: Count = 1
    services: Annotated[tuple[ServiceServed, ...], Meta(max_length=SERVICES_MAX)] = ()
