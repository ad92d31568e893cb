"""Reconciles its node: makes the running runs match the desired ones.

Takes: NodeHinted, ReadLog, ListFiles, ReadFile and DeleteFiles (files that jobs left), OpenSession, ReadSession and
       WriteSession (people in its runs), ServicesServed (so that a run finishes its requests before it is stopped),
       NodeSampled of its own node (which runs use a GPU outside their share), SpeedsMeasured (how fast GPUs are that it
       checks before a job), and NodeDesired in answer to its own reports.
Sends: NodeReported (every few seconds, and when something changed), ProgressSeen (news once a
       second at most, and every run's pace every few seconds), EndpointsSeen (the runs that serve requests; at
       each change, and once a second), FilesKept (the bytes that jobs have on its disk), ReadSecrets, ReadContext,
       ReadCheckpoint and ReadImage (before it starts a run that needs them), SessionLeft (how sessions ended that lost
       their gateway).
Owns:  nothing; it has no database access. The node's runs are its only state.
"""
