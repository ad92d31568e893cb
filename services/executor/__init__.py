"""Reconciles its node: makes the running runs match the desired ones.

Takes: NodeHinted, ReadLog, and NodeDesired in answer to its own reports.
Sends: NodeReported (every few seconds, and when something changed), ProgressSeen (news once a
       second at most, and every run's pace every few seconds).
Owns:  nothing; it has no database access. The node's runs are its only state.
"""
