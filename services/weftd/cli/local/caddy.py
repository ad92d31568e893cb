"""Whether this machine has Caddy, without which no router runs, and so no service can be reached."""

import shutil
import sysconfig
from collections.abc import Mapping
from pathlib import Path


def has_caddy(environment: Mapping[str, str]) -> bool:
    """As the router looks for it: ROUTER_CADDY, else beside Python's own programs, else in PATH."""
    if chosen := environment.get("ROUTER_CADDY"):
        return shutil.which(chosen) is not None
    return (Path(sysconfig.get_path("scripts")) / "caddy").exists() or shutil.which("caddy") is not None
