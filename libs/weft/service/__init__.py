"""How every service runs: its settings, its log, its probes and metrics, its life from start to drained."""

from weft.service.config import Connections, SettingsError, load
from weft.service.meters import Meters
from weft.service.run import Answer, AnswerRaw, Every, Listen, serve
from weft.service.start import main, stop_on_signals

__all__ = [
    "Answer",
    "AnswerRaw",
    "Connections",
    "Every",
    "Listen",
    "Meters",
    "SettingsError",
    "load",
    "main",
    "serve",
    "stop_on_signals",
]
