"""Decides which waiting job starts where, and advances every job from step to step.

Takes: AskStored, NodeReported (and answers it with NodeDesired), GpusScored, ClassesLearnt, OutboxFilled,
       LeadershipTold.
Sends: NodeHinted, OutboxFilled, LeadershipTold, ServiceReported, and every event in the outbox, on the stream of
       events.
Owns:  jobs, gpu_slots, nodes, leases, policies, decisions, tenant_ended (by a trigger on jobs);
       empties asks and the outbox.
"""
