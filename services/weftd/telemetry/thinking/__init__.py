"""Makes samples from readings, and attributes GPU processes to runs: pure, with time as an input."""
