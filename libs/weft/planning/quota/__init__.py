"""Quotas: who may start a job inside its guarantee or by borrowing, and whose jobs give back what was borrowed."""
