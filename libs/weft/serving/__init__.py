"""How many replicas a service needs, and how much of a GPU each: pure decisions from what routers and nodes report.

`autoscaler.py` is Weft's own rule; `policies/` has it and the rules of others, by name. The reallocator and the
simulator ask the same.
"""
