"""The gateway: the only service that users reach. It stores their jobs and asks, and shows them the cluster.

Takes: HTTP; requests on `weft.submit`; ReadSecrets, ReadContext, ReadCheckpoint and ReadImage, from a node that
       starts a run; SessionLeft, from one whose session lost its gateway; `weft.progress.*`, `weft.telemetry.*`,
       `weft.kept.*`, `weft.findings.*`, `weft.endpoints.*`, `weft.serving.*`, `weft.services.*` (the newest of each
       is kept in memory);
       `weft.events.>` (while events are read: a hint to read the store).
Sends: `weft.asks.<pool>` and `weft.outbox` (look now), `weft.logs.<node>` (a request: bytes of a log),
       `weft.files.<node>.list`, `.read` and `.delete` (requests: what jobs left there),
       `weft.sessions.<node>.open`, `.read` and `.write` (requests: people in runs); ServiceReported; events to the
       webhooks of tenants and by mail, and traces to a collector.
Owns:  tenants, tokens, submissions, tenant_submitted (what each has submitted), secrets, webhooks, schedules, duties
       (which gateway tells webhooks, and which submits the runs of schedules), and the asks that the scheduler takes
       away. Any number may run; none has state.
"""
