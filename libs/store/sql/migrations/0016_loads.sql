-- How often leaders began to load a pool. An admission names the load that it belongs to, and is refused after the next one.
-- A scheduler of an earlier version counts no loads, and admits with `admit_jobs`, as before.

ALTER TABLE leases ADD COLUMN loads bigint NOT NULL DEFAULT 0;
