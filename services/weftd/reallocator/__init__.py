"""Finds what holds each running job back, and tunes its CPU, memory and network: more, less, or shared otherwise.

It also sizes services by their load: how many replicas each has, and how much of a GPU.

Takes: NodeSampled, ProgressSeen; ServicesServed and EndpointsSeen: what services get, and what replicas they have.
Sends: PoolReviewed: verdicts, and what it would do; AskStored: other limits, or the early end of an
       element of a sweep, were asked for; ServiceReported.
Owns:  envelopes: what the tuner of each job knows, and has under trial; rungs: what elements of sweeps reported;
       restart_costs: how long jobs of each workload take to restart with another size.
"""
