-- The size of a job: what it should have, what it ran with before, and where it restarts with another size.
-- Services of an earlier version go on: they write none of these columns, and a job without them is as it was.

ALTER TABLE jobs ADD COLUMN size jsonb;            -- replicas by role; NULL: as its specification wants
ALTER TABLE jobs ADD COLUMN worked jsonb;          -- replicas by role before the last change; NULL: it never changed
ALTER TABLE jobs ADD COLUMN sized_at timestamptz;  -- since when it holds as many GPUs as now, if not since placed_at
ALTER TABLE jobs ADD COLUMN next_placement jsonb;  -- of a stopping job: held for it until it restarts there

ALTER TABLE asks ADD COLUMN scale jsonb;           -- with the kind of that name
ALTER TABLE asks DROP CONSTRAINT asks_kind_check;
ALTER TABLE asks ADD CONSTRAINT asks_kind_check
    CHECK (kind IN ('submit', 'cancel', 'requeue', 'prioritise', 'drain', 'resume', 'tune', 'scale'));
ALTER TABLE asks ADD CONSTRAINT asks_scale_check CHECK ((kind = 'scale') = (scale IS NOT NULL));
-- The partition planner and the tuner together have one at a time of each job.
CREATE UNIQUE INDEX asks_scale_once ON asks (subject_id) WHERE kind = 'scale' AND tenant = 'weft';

-- Asks for the sizes of several jobs, as `{"job": …, "scale": …}`; returns the jobs asked for. Its current text is in
-- functions/tuning.sql.
CREATE FUNCTION ask_sizes(of_pool text, sizes jsonb, asked_at timestamptz)
    RETURNS SETOF text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS 'SELECT NULL::text LIMIT 0';
REVOKE ALL ON FUNCTION ask_sizes FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ask_sizes TO weft_reallocator;

-- Stores what the tuner of a job knows and asks for the job's size with it. Its current text is in functions/tuning.sql.
CREATE FUNCTION ask_scale(of_job text, of_pool text, of_epoch integer, what jsonb, known jsonb, asked_at timestamptz)
    RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS 'BEGIN RETURN false; END';
REVOKE ALL ON FUNCTION ask_scale FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ask_scale TO weft_reallocator;

INSERT INTO job_steps (from_state, event, to_state) VALUES
    ('queued', 'scaled', 'queued'),
    ('placed', 'scaled', 'placed'),
    ('starting', 'scaled', 'starting'),
    ('running', 'scaled', 'running'),
    ('stopping', 'scaled', 'stopping'),
    ('running', 'resized', 'running'),
    ('stopping', 'restarted', 'placed');
