-- A user, or the reallocator, asks for another share of a GPU for the ranks of a running job.

ALTER TABLE asks ADD COLUMN share jsonb;  -- with the kind of that name
ALTER TABLE asks DROP CONSTRAINT asks_kind_check;
ALTER TABLE asks ADD CONSTRAINT asks_kind_check
    CHECK (kind IN ('submit', 'cancel', 'requeue', 'prioritise', 'drain', 'resume', 'tune', 'scale', 'share'));
ALTER TABLE asks ADD CONSTRAINT asks_share_check CHECK ((kind = 'share') = (share IS NOT NULL));
-- The reallocator has one at a time of each job.
CREATE UNIQUE INDEX asks_share_once ON asks (subject_id) WHERE kind = 'share' AND tenant = 'weft';

-- Asks for the shares of several jobs, as `{"job": …, "share": …}`; returns the jobs asked for. Its current text is in
-- functions/tuning.sql.
CREATE FUNCTION ask_shares(of_pool text, shares jsonb, asked_at timestamptz)
    RETURNS SETOF text LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS 'SELECT NULL::text LIMIT 0';
REVOKE ALL ON FUNCTION ask_shares FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ask_shares TO weft_reallocator;
