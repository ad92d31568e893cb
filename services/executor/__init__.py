"""Makes what runs on its node match what the node should run.

Takes: NodeHinted, ReadLog, and NodeDesired in answer to its own reports.
Sends: NodeReported (every few seconds, and when something changed), ProgressSeen (news once a
       second at most, and every run's pace every few seconds).
Owns:  nothing; it has no database access. What runs on the node is its only state.
"""
