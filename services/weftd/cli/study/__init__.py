"""Commands that study a cluster: simulate, what-if, replay, and the trace for them."""
