"""How a scorer turns samples and benchmarks into scores: pure, with time as an input."""
