"""Finds what holds each running job back, and tunes its CPU, memory and network: more, less, or shared otherwise.

Takes: NodeSampled, ProgressSeen.
Sends: PoolReviewed: verdicts, and what it would do; AskStored: other limits were asked for.
Owns:  envelopes: what the tuner of each job knows, and has under trial.
"""
