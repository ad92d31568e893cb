-- What is learnt of GPUs and workloads while jobs run, and what running jobs get other than they asked for.
-- Services of an earlier version go on: they neither read nor write any of it.

-- scorer -------------------------------------------------------------------------------------------------------------

ALTER TABLE gpu_scores ADD COLUMN samples integer NOT NULL DEFAULT 0;
ALTER TABLE gpu_scores ADD COLUMN quarantined_until timestamptz;

-- Which class the jobs of a workload belong to.
CREATE TABLE workload_classes (
    pool      text NOT NULL,
    workload  text NOT NULL,
    job_class text NOT NULL,
    compute   double precision NOT NULL,
    memory    double precision NOT NULL,
    samples   integer NOT NULL,
    at        timestamptz NOT NULL,
    PRIMARY KEY (pool, workload)
);

-- Speed against replicas and CPUs, of a job (`job:<id>`) or of a workload (`workload:<workload>`).
CREATE TABLE curves (
    pool    text NOT NULL,
    subject text NOT NULL,
    points  jsonb NOT NULL,
    at      timestamptz NOT NULL,
    PRIMARY KEY (pool, subject)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON workload_classes, curves TO weft_scorer;
GRANT SELECT ON workload_classes, curves TO weft_gateway, weft_scheduler, weft_reallocator;

-- reallocator --------------------------------------------------------------------------------------------------------

-- What the tuner of a job knows: what it tries, what it has tried in vain. Without it a restart would try it all again,
-- and nobody would roll back what was tried when it died.
CREATE TABLE envelopes (
    job_id text PRIMARY KEY REFERENCES submissions,
    pool   text NOT NULL,
    epoch  integer NOT NULL,
    state  jsonb NOT NULL,
    at     timestamptz NOT NULL
);
GRANT SELECT, INSERT, UPDATE, DELETE ON envelopes TO weft_reallocator;
GRANT SELECT ON envelopes TO weft_gateway;

-- Filled by the gateway with what users ask, and by the reallocator, through `ask_tune` alone, with what jobs should get.
ALTER TABLE asks DROP CONSTRAINT asks_kind_check;
ALTER TABLE asks ADD CONSTRAINT asks_kind_check
    CHECK (kind IN ('submit', 'cancel', 'requeue', 'prioritise', 'drain', 'resume', 'tune'));
ALTER TABLE asks ADD COLUMN tune jsonb;
ALTER TABLE asks ADD CONSTRAINT asks_tune_check CHECK ((kind = 'tune') = (tune IS NOT NULL));
CREATE UNIQUE INDEX asks_tune_once ON asks (subject_id) WHERE kind = 'tune';   -- one at a time of each job

-- Remembers what the tuner knows and asks for the limits that follow, in one statement. False: it asks already.
CREATE FUNCTION ask_tune(of_job text, of_pool text, of_epoch integer, what jsonb, known jsonb, asked_at timestamptz)
    RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO asks (kind, pool, subject_id, tenant, at, tune)
    SELECT 'tune', of_pool, of_job, 'weft', asked_at, what FROM jobs
     WHERE id = of_job AND pool = of_pool AND epoch = of_epoch AND state = 'running'
    ON CONFLICT (subject_id) WHERE kind = 'tune' DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO envelopes (job_id, pool, epoch, state, at) VALUES (of_job, of_pool, of_epoch, known, asked_at)
    ON CONFLICT (job_id) DO UPDATE
       SET pool = excluded.pool, epoch = excluded.epoch, state = excluded.state, at = excluded.at;
    RETURN true;
END $$;
REVOKE ALL ON FUNCTION ask_tune FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ask_tune TO weft_reallocator;

-- the law ------------------------------------------------------------------------------------------------------------

INSERT INTO job_steps (from_state, event, to_state) VALUES ('running', 'tuned', 'running');
