"""The systems that act on jobs by themselves, and which of them a cluster's settings switch on. Needs no extra."""

from collections.abc import Mapping

SYSTEMS = {
    "placement by measured GPU speed": ("scorer", "SCORER_BENCHMARKS"),
    "tuning of running jobs": ("reallocator", "REALLOCATOR_TUNING"),
    "services sized by their load": ("reallocator", "REALLOCATOR_SERVING"),
    "sizes of elastic jobs": ("reallocator", "REALLOCATOR_PARTITION"),
}
"""Each system: the service and the setting that switches it. Each is on by default."""


def systems(settings: Mapping[str, Mapping[str, str]]) -> str:
    """Which of the systems are on. `settings`: by service, as it will read them."""
    states: dict[str, list[str]] = {}
    for system, (service, setting) in SYSTEMS.items():
        states.setdefault(settings[service].get(setting, "on"), []).append(system)
    words = {"on": "on", "advise": "only advised", "off": "off"}
    return "; ".join(f"{words.get(state, state)}: {', '.join(names)}" for state, names in states.items())
