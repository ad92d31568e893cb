"""Which running job should get more or less. In this version it watches and reports, and changes nothing.

Hears: NodeSampled.
Says:  PoolReviewed: what it would have to do.
Owns:  nothing yet; envelopes and loans later.
"""
