-- Arrays: which submissions are elements of which one. A job without an array is as it was.

ALTER TABLE submissions ADD COLUMN array_id text;  -- NULL: it is a job of its own
CREATE INDEX submissions_of_array ON submissions (array_id, seq) WHERE array_id IS NOT NULL;
-- The elements of an array are submitted at one time, so arrays are listed by the index alone.
CREATE INDEX submissions_arrays ON submissions (submitted_at, array_id) WHERE array_id IS NOT NULL;

-- Ten thousand submissions in one statement are counted once: counted row by row, each count would look through all
-- the versions of its row that the same statement has left. What it does is in functions/tenants.sql.
CREATE FUNCTION count_all_submitted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
DROP TRIGGER count_submitted ON submissions;
CREATE TRIGGER count_all_submitted AFTER INSERT ON submissions
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION count_all_submitted();
