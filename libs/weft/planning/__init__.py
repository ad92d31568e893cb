"""The decisions: order, placement, preemption, and why a job waits. Pure; called live, by `explain`, and by replay."""
