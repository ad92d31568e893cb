-- The text of a revision is stored once, when it comes with a step, and dropped once its job does not name it any more: what
-- is left in the job's row are numbers and times. The bytes count for the tenant as long as the job is open: `tenant_ended` is
-- what is taken off what it submitted.
CREATE OR REPLACE FUNCTION divide_revisions() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    before bigint := (SELECT COALESCE(sum(bytes), 0) FROM revisions WHERE job_id = NEW.id);
    after  bigint;
BEGIN
    DELETE FROM revisions WHERE job_id = NEW.id AND number <> ALL (
        SELECT (one ->> 'number')::integer FROM jsonb_array_elements(COALESCE(NEW.revisions, '[]')) AS one);
    INSERT INTO revisions (job_id, number, text, bytes)
    SELECT DISTINCT ON (number) NEW.id, number, text, octet_length(text::text)
      FROM (SELECT (one ->> 'number')::integer AS number, one - ARRAY['number', 'at', 'back_to'] AS text
              FROM jsonb_array_elements(COALESCE(NEW.revisions, '[]')) AS one) AS given
     WHERE text <> '{}' AND number > 0
     ORDER BY number
    ON CONFLICT DO NOTHING;
    NEW.revisions := (
        SELECT jsonb_agg(one - ARRAY['image', 'command', 'env'] ORDER BY place)
          FROM jsonb_array_elements(NEW.revisions) WITH ORDINALITY AS given (one, place));
    after := (SELECT COALESCE(sum(bytes), 0) FROM revisions WHERE job_id = NEW.id);
    IF after <> before THEN
        INSERT INTO tenant_ended AS known (tenant, pool, jobs, bytes) VALUES (NEW.tenant, NEW.pool, 0, before - after)
        ON CONFLICT (tenant, pool) DO UPDATE SET bytes = known.bytes + excluded.bytes;
    END IF;
    RETURN NEW;
END $$;
