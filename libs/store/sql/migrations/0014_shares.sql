-- A slot holds a part of a GPU: thousandths of its time, bytes of its memory. A slot of before holds all of it, and so does
-- one that a service of an earlier version adds.

ALTER TABLE gpu_slots ADD COLUMN part integer NOT NULL DEFAULT 1000;
ALTER TABLE gpu_slots ADD COLUMN memory bigint;  -- NULL: all of it
ALTER TABLE gpu_slots ADD CONSTRAINT gpu_slots_part_check
    CHECK (part >= 0 AND memory >= 0 AND (memory IS NOT NULL OR part >= 1000));
ALTER TABLE gpu_slots DROP CONSTRAINT gpu_slots_pkey;
ALTER TABLE gpu_slots ADD PRIMARY KEY (node_id, gpu_index, job_id, epoch, rank);

-- Refuses slots that are more than their GPU. Its current text is in functions/law.sql.
CREATE FUNCTION gpu_slots_fit() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp
    AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER gpu_slots_fit AFTER INSERT ON gpu_slots REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION gpu_slots_fit();

-- The slots that jobs hold by their placements. Its current text is in functions/steps.sql.
CREATE FUNCTION slots_of(job_ids text[]) RETURNS TABLE (
    node_id text, gpu_index integer, job_id text, epoch integer, rank integer, part integer, memory bigint
) LANGUAGE sql STABLE SET search_path = public, pg_temp
    AS 'SELECT NULL::text, 0, NULL::text, 0, 0, 0, 0::bigint LIMIT 0';
