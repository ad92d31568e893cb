"""The answer of an engine that was asked to load an adapter, as vLLM gives it. Pure."""

import msgspec

from weftd.router.thinking.routes import Refused

LOAD_PATH = "/v1/load_lora_adapter"
LOADED_ALREADY = "has already been loaded"
SHOWN_MAX = 300  # characters of the engine's reason
NO_SUCH_PATH = "its engine has no /v1/load_lora_adapter: vLLM has it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"


def refusal_of(name: str, status: int, body: bytes) -> Refused | None:
    """Why requests for the adapter cannot be answered; None: it is loaded."""
    reason = _reason(body)
    if 200 <= status < 300 or (status == 400 and LOADED_ALREADY in reason):
        return None
    words = f"the adapter {name!r} could not be loaded"
    if status >= 500:
        return Refused(502, f"{words}: the engine answered {status}: {reason}", param="model")
    if status == 405 or (status == 404 and reason in ("", "Not Found")):
        reason = NO_SUCH_PATH
    return Refused(404, f"{words}: {reason}", code="model_not_found", param="model")


def _reason(body: bytes) -> str:
    """The sentence in an error of OpenAI's form, or of FastAPI's; else the beginning of the text."""
    text = body.decode(errors="replace")
    try:
        told = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told = None
    if isinstance(told, dict):
        error = told.get("error", told)
        if isinstance(error, dict):
            error = error.get("message", error.get("detail", ""))
        text = error if isinstance(error, str) else ""
    shown = "".join(char if char.isprintable() else " " for char in text).strip()
    return shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}…"
