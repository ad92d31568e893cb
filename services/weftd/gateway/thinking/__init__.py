"""Which submissions a gateway accepts, and how many at once: pure, with time as an input."""
