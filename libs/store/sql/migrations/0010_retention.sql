-- What is kept how long, the indexes of every query over what has ended, and events that stay in order across a restore.
-- Services of an earlier version go on: they neither read nor write any of it.

CREATE INDEX jobs_ended ON jobs (ended_at, pool) WHERE ended_at IS NOT NULL;
CREATE INDEX jobs_holding ON jobs (pool) WHERE state IN ('placed', 'starting', 'running', 'stopping');
CREATE INDEX jobs_succeeded ON jobs (tenant, ended_at) WHERE state = 'succeeded';
CREATE INDEX events_by_tenant ON events (tenant, xid, id);
CREATE INDEX curves_by_time ON curves (at);

-- How long each pool keeps the jobs that are over. Written by `forget_jobs` alone.
CREATE TABLE retention (
    pool             text PRIMARY KEY,
    seconds          double precision NOT NULL,
    forgotten_before timestamptz NOT NULL   -- a job that ended before may have been forgotten
);
GRANT SELECT ON retention TO weft_gateway;

-- By how much the `xid` of a new event is above its transaction's id. A logical dump keeps the events and not the counter
-- of transactions, so `continue_events` raises it after a restore. Written by `migrate` alone.
CREATE TABLE event_offset (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    xids     bigint NOT NULL
);
INSERT INTO event_offset (xids) VALUES (0);
GRANT SELECT ON event_offset TO weft_gateway;

-- Each deletes what it alone writes; jobs with their submissions and events go through `forget_jobs`.
GRANT DELETE ON nodes TO weft_scheduler;
GRANT DELETE ON gpu_scores TO weft_scorer;
GRANT DELETE ON tokens TO weft_gateway;
