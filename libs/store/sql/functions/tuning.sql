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
