"""Estimates of starts and ends of jobs, and changes that would let a job start sooner."""
