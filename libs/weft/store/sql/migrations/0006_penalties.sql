-- How many times as long gangs of a workload take across nodes as on one node. The scorer alone writes it.
CREATE TABLE workload_penalties (
    pool       text NOT NULL,
    workload   text NOT NULL,
    penalty    double precision NOT NULL CHECK (penalty >= 1 AND penalty <= 100),
    confidence double precision NOT NULL CHECK (confidence >= 0 AND confidence <= 1),
    points     jsonb NOT NULL,
    at         timestamptz NOT NULL,
    PRIMARY KEY (pool, workload)
);
CREATE INDEX workload_penalties_by_time ON workload_penalties (pool, at);

GRANT SELECT ON workload_penalties TO weft_gateway, weft_scheduler;
GRANT SELECT, INSERT, UPDATE, DELETE ON workload_penalties TO weft_scorer;
