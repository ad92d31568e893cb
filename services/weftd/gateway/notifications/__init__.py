"""Webhooks, mail and traces: how events leave the cluster."""
