"""Finds the bottleneck of each running job, and tunes its CPU, memory and network.

It also sizes services by their load: replica counts and GPU shares.

Takes: NodeSampled, ProgressSeen; ServicesServed and EndpointsSeen: requests and replicas of services.
Sends: PoolReviewed: verdicts and advice; AskStored: new limits, or the early end of an element of a sweep, were
       requested; ServiceReported.
Owns:  envelopes: the state and the trial of the tuner of each job; rungs: metrics that elements of sweeps reported;
       restart_costs: the time in which jobs of each workload restart with another size.
"""
