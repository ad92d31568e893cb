"""A reallocator's verdicts and asks: pure, with time as an input."""
