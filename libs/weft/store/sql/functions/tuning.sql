-- Stores the tuner's state and asks for the limits that follow, in one statement. False: nothing was written.
CREATE OR REPLACE FUNCTION ask_tune(of_job text, of_pool text, of_epoch integer, what jsonb, known jsonb, asked_at timestamptz)
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

-- Stores the tuner's state and asks for the size that follows, in one statement. False: nothing was written.
CREATE OR REPLACE FUNCTION ask_scale(of_job text, of_pool text, of_epoch integer, what jsonb, known jsonb, asked_at timestamptz)
    RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO asks (kind, pool, subject_id, tenant, at, scale)
    SELECT 'scale', of_pool, of_job, 'weft', asked_at, what FROM jobs
     WHERE id = of_job AND pool = of_pool AND epoch = of_epoch AND state = 'running'
    ON CONFLICT (subject_id) WHERE kind = 'scale' AND tenant = 'weft' DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO envelopes (job_id, pool, epoch, state, at) VALUES (of_job, of_pool, of_epoch, known, asked_at)
    ON CONFLICT (job_id) DO UPDATE
       SET pool = excluded.pool, epoch = excluded.epoch, state = excluded.state, at = excluded.at;
    RETURN true;
END $$;

-- Asks for the sizes of several jobs, as `{"job": …, "scale": …}`; returns the jobs asked for. A job that is over, or whose
-- last ask of the planner or of its tuner is not done yet, is left out.
CREATE OR REPLACE FUNCTION ask_sizes(of_pool text, sizes jsonb, asked_at timestamptz)
    RETURNS SETOF text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    INSERT INTO asks (kind, pool, subject_id, tenant, at, scale)
    SELECT 'scale', of_pool, jobs.id, 'weft', asked_at, asked -> 'scale'
      FROM jsonb_array_elements(sizes) AS asked JOIN jobs ON jobs.id = asked ->> 'job'
     WHERE jobs.pool = of_pool AND jobs.state NOT IN ('succeeded', 'failed', 'cancelled')
     ORDER BY jobs.id
    ON CONFLICT (subject_id) WHERE kind = 'scale' AND tenant = 'weft' DO NOTHING
    RETURNING subject_id
$$;

-- Asks for the shares of several jobs, as `{"job": …, "share": …}`; returns the jobs asked for. A job that does not run, or
-- whose last ask of the reallocator is not done yet, is left out.
CREATE OR REPLACE FUNCTION ask_shares(of_pool text, shares jsonb, asked_at timestamptz)
    RETURNS SETOF text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    INSERT INTO asks (kind, pool, subject_id, tenant, at, share)
    SELECT 'share', of_pool, jobs.id, 'weft', asked_at, asked -> 'share'
      FROM jsonb_array_elements(shares) AS asked JOIN jobs ON jobs.id = asked ->> 'job'
     WHERE jobs.pool = of_pool AND jobs.state = 'running'
     ORDER BY jobs.id
    ON CONFLICT (subject_id) WHERE kind = 'share' AND tenant = 'weft' DO NOTHING
    RETURNING subject_id
$$;

-- Stores what an element of an array reported at a rung and, with a cause, asks to cancel it, in one statement. False: nothing
-- was written, since that is known already, or there is no such element.
CREATE OR REPLACE FUNCTION reach_rung(of_job text, of_array text, of_rung integer, reached double precision, of_pool text,
                                      cause jsonb, reached_at timestamptz)
    RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO rungs (array_id, job_id, rung, value)
    SELECT array_id, id, of_rung, reached FROM submissions
     WHERE id = of_job AND array_id = of_array AND pool = of_pool
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO asks (kind, pool, subject_id, tenant, at, why)
    SELECT 'cancel', of_pool, of_job, 'weft', reached_at, cause FROM jobs
     WHERE id = of_job AND cause IS NOT NULL AND state NOT IN ('succeeded', 'failed', 'cancelled');
    RETURN true;
END $$;
