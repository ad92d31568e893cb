-- Early stopping of sweeps: what each element reported at each step of comparison. The reallocator alone has them written.

CREATE TABLE rungs (
    array_id text NOT NULL,
    job_id   text NOT NULL REFERENCES submissions ON DELETE CASCADE,
    rung     integer NOT NULL CHECK (rung BETWEEN 0 AND 63),
    value    double precision NOT NULL,
    PRIMARY KEY (array_id, job_id, rung)
);
CREATE INDEX rungs_by_job ON rungs (job_id);
GRANT SELECT ON rungs TO weft_reallocator;

ALTER TABLE asks ADD COLUMN why jsonb;  -- of a cancel that no user asked for

-- Its current text is in functions/tuning.sql.
CREATE FUNCTION reach_rung(of_job text, of_array text, of_rung integer, reached double precision, of_pool text,
                           cause jsonb, reached_at timestamptz)
    RETURNS boolean LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS 'SELECT false';
REVOKE ALL ON FUNCTION reach_rung FROM PUBLIC;
GRANT EXECUTE ON FUNCTION reach_rung TO weft_reallocator;
