"""An emulated engine of a language model, in virtual time: continuous batching, by the costs of a published GPU.

One prompt at a time is computed, and stops the decoding of all others meanwhile; each step then makes one token of each
running request. The costs are the roofline of NVIDIA's data sheet of the H100 SXM (3.35 TB/s, 989 TFLOP/s in bf16) for
Llama 3.1 8B (8.03 G parameters, 131,072 bytes of KV cache a token) at the efficiencies below. Prompts whose beginning
is cached cost what is left of them. No real engine ran: whatever quotes this says that it is emulated.
"""

from collections import OrderedDict, deque
from heapq import heappop, heappush

from msgspec import Struct

BYTES_PER_S, FLOP_PER_S = 3.35e12 * 0.7, 989e12 * 0.5
PARAMETERS, KV_BYTES = 8.03e9, 131_072
STEP_S = 0.002 + 2 * PARAMETERS / BYTES_PER_S  # one request alone: all weights are read, 8.9 ms
PREFILL_S = 2 * PARAMETERS / FLOP_PER_S  # a token of a prompt, 32 µs
KV_TOKENS = int((80e9 * 0.9 - 2 * PARAMETERS) / KV_BYTES)  # 427,000


class Ask(Struct, kw_only=True):
    """One request. `session`: those with the same one continue one prompt, of which `shared` tokens at its beginning
    are those of all sessions. Times when it came, when its first token did, and its last."""

    number: int
    at: float
    tokens_in: int
    tokens_out: int
    session: int = -1
    shared: int = 0
    cached: int = 0
    first: float = 0.0
    ended: float = 0.0

    @property
    def each(self) -> float:
        return (self.ended - self.first) / (self.tokens_out - 1) if self.tokens_out > 1 else 0.0


class EmulatedEngine:
    """`take` gives it a request; `run` returns those that ended until then, in order. `cache_tokens`: the size of the
    prefix cache, whose least recently used session leaves first."""

    def __init__(self, *, cache_tokens: int = KV_TOKENS // 2) -> None:
        self.now = 0.0
        self.running: list[tuple[float, int, Ask]] = []  # by how far all have decoded when it ends
        self._prompts: deque[Ask] = deque()
        self._prompt_ends = 0.0
        self._decoded = 0.0  # tokens of each running request, since the beginning
        self._context = 0  # tokens of all running requests
        self._cache: OrderedDict[int, int] = OrderedDict()  # tokens, by session; -1: the beginning that all share
        self._cached, self._cache_tokens = 0, cache_tokens

    @property
    def load(self) -> int:
        return len(self.running) + len(self._prompts)

    @property
    def kv_used(self) -> float:
        return min(1.0, self._context / KV_TOKENS)

    def take(self, ask: Ask, now: float) -> list[Ask]:
        ended = self.run(now)
        self._prompts.append(ask)
        if len(self._prompts) == 1:
            self._begin()
        return ended

    def next_at(self) -> float:
        """When the next request ends or has its first token; infinite: none is here."""
        if self._prompts:
            return self._prompt_ends
        return self.now + (self.running[0][0] - self._decoded) * self._step if self.running else float("inf")

    def run(self, until: float) -> list[Ask]:
        ended: list[Ask] = []
        while (at := self.next_at()) <= until:
            if self._prompts:
                self.now = at
                ended += self._prefilled(self._prompts.popleft())
            else:
                self._decoded, self.now = self.running[0][0], at
                ended.append(self._end())
        if not self._prompts and self.running and until > self.now:
            self._decoded += (until - self.now) / self._step
        self.now = max(self.now, until)
        return ended

    @property
    def _step(self) -> float:
        return STEP_S + self._context * KV_BYTES / BYTES_PER_S

    def _begin(self) -> None:
        """Compute the prompt that is first."""
        ask = self._prompts[0]
        here = self._cache.get(ask.session, 0) if ask.session >= 0 else 0
        ask.cached = min(ask.tokens_in - 1, max(here, min(ask.shared, self._cache.get(-1, 0))))
        self._prompt_ends = max(self.now, ask.at) + (ask.tokens_in - ask.cached) * PREFILL_S + STEP_S

    def _prefilled(self, ask: Ask) -> list[Ask]:
        ask.first = self.now
        self._keep(ask.session, ask.tokens_in + ask.tokens_out)
        if ask.shared:
            self._keep(-1, ask.shared)
        self._context += ask.tokens_in + ask.tokens_out // 2
        heappush(self.running, (self._decoded + ask.tokens_out - 1, ask.number, ask))
        if self._prompts:
            self._begin()
        return [self._end()] if ask.tokens_out <= 1 else []

    def _end(self) -> Ask:
        _, _, ask = heappop(self.running)
        ask.ended = self.now
        self._context -= ask.tokens_in + ask.tokens_out // 2
        return ask

    def _keep(self, session: int, tokens: int) -> None:
        if session < -1 or tokens > self._cache_tokens:
            return
        self._cached += tokens - self._cache.pop(session, 0)
        self._cache[session] = tokens
        while self._cached > self._cache_tokens:
            _, gone = self._cache.popitem(last=False)
            self._cached -= gone
