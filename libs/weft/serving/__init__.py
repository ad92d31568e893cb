"""Replica counts and GPU shares of services: pure decisions from reports of routers and nodes.

`autoscaler.py` is Weft's own rule; `policies.py` has its variants by name. The reallocator and the simulator call the
same code.
"""
