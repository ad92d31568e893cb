-- How long jobs of a workload took when one last restarted with another size, from its stop until it ran again. The
-- reallocator alone writes and reads it.

CREATE TABLE restart_costs (
    pool     text NOT NULL,
    workload text NOT NULL CHECK (length(workload) BETWEEN 1 AND 253),
    seconds  double precision NOT NULL CHECK (seconds >= 0 AND seconds <= 86400),
    measured bigint NOT NULL CHECK (measured > 0),  -- restarts
    at       timestamptz NOT NULL,                  -- when the last one ran again
    PRIMARY KEY (pool, workload)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON restart_costs TO weft_reallocator;
