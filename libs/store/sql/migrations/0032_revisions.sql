-- What a tenant sends counts in bytes where it is stored, and the text of a revision of a service is stored once.
-- Services of an earlier version go on: they write whole revisions, which a trigger divides, and bytes that are 0 or NULL.

-- The bytes that an ask takes of what its tenant may have, while it waits and once it is done.
ALTER TABLE asks ADD COLUMN bytes bigint NOT NULL DEFAULT 0 CHECK (bytes >= 0);
ALTER TABLE asks ALTER COLUMN update SET STORAGE EXTERNAL;  -- it is there for a moment: to compress it takes longest
CREATE INDEX asks_with_bytes ON asks (tenant) INCLUDE (bytes) WHERE bytes > 0;

-- The length of a specification, so that no page of jobs has to be read to be bounded. NULL: from an earlier version.
ALTER TABLE submissions ADD COLUMN spec_bytes integer CHECK (spec_bytes > 0);

-- scheduler: the image, the command and the environment of the revisions in `jobs.revisions`, which has their numbers.
CREATE TABLE revisions (
    job_id text NOT NULL REFERENCES jobs ON DELETE CASCADE,
    number integer NOT NULL CHECK (number > 0),
    text   jsonb NOT NULL,
    bytes  bigint NOT NULL CHECK (bytes >= 0),
    PRIMARY KEY (job_id, number)
);
ALTER TABLE revisions ALTER COLUMN text SET STORAGE EXTERNAL;
GRANT SELECT, INSERT, DELETE ON revisions TO weft_scheduler;

-- What it does is in functions/revisions.sql.
CREATE FUNCTION divide_revisions() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER divide_revisions BEFORE UPDATE OF revisions ON jobs FOR EACH ROW
    WHEN (NEW.revisions IS DISTINCT FROM OLD.revisions) EXECUTE FUNCTION divide_revisions();
