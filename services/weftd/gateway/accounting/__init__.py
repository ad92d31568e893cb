"""Accounts of tenants: GPU hours held, used and lost, and their cost."""
