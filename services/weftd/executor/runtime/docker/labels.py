"""The labels by which Weft recognises its containers."""

import math
import signal
from collections.abc import Mapping

from weftd.executor.runs import RunKey

STOP_SIGNAL = "weft.stop-signal"
FIRST_PROCESS = "weft.first-process"
NEVER_HANDLED = (signal.SIGKILL, signal.SIGSTOP)


def labels(key: RunKey, *, node_id: str, cluster: str, grace: float, named: bool) -> dict[str, str]:
    return {
        "weft.job": key.job_id,
        "weft.epoch": str(key.epoch),
        "weft.rank": str(key.rank),
        "weft.node": node_id,
        "weft.cluster": cluster,
        "weft.grace": str(grace),
        "weft.named": str(int(named)),
    }


def of_node(*, node_id: str, cluster: str) -> dict[str, list[str]]:
    """The engine's filter for this node's containers only."""
    return {"label": [f"weft.node={node_id}", f"weft.cluster={cluster}"]}


def key_of(found: Mapping[str, str]) -> RunKey | None:
    """The run that a container's labels name."""
    try:
        return RunKey(found["weft.job"], int(found["weft.epoch"]), int(found["weft.rank"]))
    except (KeyError, ValueError):
        return None


def grace_of(found: Mapping[str, str]) -> float:
    try:
        grace = float(found.get("weft.grace", 0.0))
    except ValueError:
        return 0.0
    return grace if 0.0 <= grace < math.inf else 0.0


def stop_signal_of(found: Mapping[str, str]) -> str:
    """The signal that asks the container to stop."""
    return found.get(STOP_SIGNAL, "SIGTERM")


def signal_number(name: str) -> int | None:
    """The number of a signal as an image names it: `SIGQUIT`, `QUIT`, `3`, `SIGRTMIN+3`; None for anything else."""
    text = name.upper().removeprefix("SIG")
    base, plus, more = text.partition("+")
    if base == "RTMIN" and (more.isdecimal() if plus else True):
        number = signal.SIGRTMIN + int(more or 0)
    elif text.isdecimal():
        number = int(text)
    else:
        number = getattr(signal, f"SIG{text}", 0) if text.isalnum() else 0
    return int(number) if 0 < number <= signal.SIGRTMAX and number not in NEVER_HANDLED else None


def named_of(found: Mapping[str, str]) -> bool:
    """True if the other ranks reach this one by the name of its container."""
    return found.get("weft.named") == "1"
