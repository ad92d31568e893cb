-- Which nodes a job was ever placed on, in which rack a node is, and that a queued job may fail.
-- Services of an earlier version go on: the function that takes steps keeps the nodes, whichever version calls.

ALTER TABLE jobs ADD COLUMN nodes text[];   -- NULL: the job is from before this was kept, and any node may have had it
ALTER TABLE jobs ALTER COLUMN nodes SET DEFAULT '{}';

ALTER TABLE nodes ADD COLUMN rack text NOT NULL DEFAULT '';

INSERT INTO job_steps (from_state, event, to_state) VALUES ('queued', 'failed', 'failed');
