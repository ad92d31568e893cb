"""Limits that protect the gateway: access, request rates, connections, concurrent requests and CPU time."""
