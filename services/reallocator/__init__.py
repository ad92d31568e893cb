"""What holds each running job back, and what is tried about it: more, less or otherwise shared CPU, memory and network.

Hears: NodeSampled, ProgressSeen.
Says:  PoolReviewed: verdicts, and what it would do; AskStored: other limits were asked for.
Owns:  envelopes: what the tuner of each job knows, and has under trial.
"""
