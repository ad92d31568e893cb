"""Reads control groups of both versions: where a process belongs, what its group uses, and what it is held to.

The executor makes groups and writes limits (services/weftd/executor/runtime/limits); telemetry only reads.
"""
