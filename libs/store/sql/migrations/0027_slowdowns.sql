-- How much longer a GPU takes for a step of a job beside a job of another class in its own share. The scorer writes it.

CREATE TABLE class_slowdowns (
    job_class  text NOT NULL CHECK (job_class IN ('compute', 'mixed', 'memory')),
    beside     text NOT NULL CHECK (beside IN ('compute', 'mixed', 'memory')),
    slowdown   double precision NOT NULL CHECK (slowdown > 0 AND slowdown < 100),
    confidence double precision NOT NULL CHECK (confidence >= 0 AND confidence <= 1),
    workloads  integer NOT NULL CHECK (workloads > 0),
    at         timestamptz NOT NULL,
    PRIMARY KEY (job_class, beside)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON class_slowdowns TO weft_scorer;
GRANT SELECT ON class_slowdowns TO weft_scheduler, weft_gateway;
