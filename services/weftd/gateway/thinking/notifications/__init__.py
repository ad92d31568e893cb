"""Notifications: addresses, signatures, times of retries, and a job's history as spans. Pure."""
