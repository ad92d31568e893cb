"""How every service runs: its settings, its log, its probes and metrics, its life from start to drained."""

from libs.service.config import Connections, SettingsError, load
from libs.service.meters import Meters
from libs.service.run import Answer, AnswerRaw, Every, Listen, serve
from libs.service.start import main, stop_on_signals

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
