"""The load of an engine by its own metrics in Prometheus' text format: its requests and its KV cache, by the names that
vLLM, SGLang and llama.cpp give them. A job writes this text: a number that cannot be counts as absent."""

import math
import re
from itertools import islice

from msgspec import Struct

TEXT_BYTES_MAX = 512 << 10  # a longer text counts as nothing
LINES_MAX = 2000  # with these names
QUEUE_MAX = 1_000_000

NAMES = {  # the place of each metric here; the newer names first
    b"num_requests_running": "running",
    b"num_running_reqs": "running",
    b"requests_processing": "running",
    b"num_requests_waiting": "waiting",
    b"num_queue_reqs": "waiting",
    b"requests_deferred": "waiting",
    b"kv_cache_usage_perc": "kv_used",
    b"gpu_cache_usage_perc": "kv_used",
    b"token_usage": "kv_used",
    b"kv_cache_usage_ratio": "kv_used",
}
_LINE = re.compile(
    rb"^(?:vllm|sglang|llamacpp):(%b)(?:\{[^\n]*\})?[ \t]+([0-9.eE+-]{1,32})[ \t\r]*$" % b"|".join(NAMES), re.MULTILINE
)
LARGEST = frozenset({"kv_used"})  # several with one name and other labels: the largest counts, else their sum


class EngineLoad(Struct, frozen=True, kw_only=True):
    """An engine now. `running` and `waiting`: requests; `kv_used`: the part of its KV cache in use. None: not said."""

    running: int | None = None
    waiting: int | None = None
    kv_used: float | None = None


NOTHING = EngineLoad()


def engine_load(text: bytes) -> EngineLoad:
    """`NOTHING` if none of the names is there with a number that can be."""
    found: dict[str, float] = {}
    for match in islice(_LINE.finditer(text), LINES_MAX) if len(text) <= TEXT_BYTES_MAX else ():
        place, value = NAMES[match[1]], _number(match[2])
        if value is None or (place == "kv_used" and value > 1.0):
            continue
        before = found.get(place, 0.0)
        found[place] = max(before, value) if place in LARGEST else min(before + value, QUEUE_MAX)
    return EngineLoad(
        running=int(found["running"]) if "running" in found else None,
        waiting=int(found["waiting"]) if "waiting" in found else None,
        kv_used=found.get("kv_used"),
    )


def _number(text: bytes) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0.0 else None
