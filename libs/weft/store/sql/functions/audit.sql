-- Adds an entry to the audit log. One at a time: so the order of `seq` is that in which entries can be read, and a reader
-- that goes on behind the last entry that it saw misses none.
CREATE OR REPLACE FUNCTION write_audit(of_request text, outcome text, act text, tenant text, who text, session text,
                                       source text, detail text, at timestamptz)
    RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    added bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('audit'));
    INSERT INTO audit (at, request, outcome, act, tenant, who, session, source, detail)
    VALUES (write_audit.at, left(of_request, 63), write_audit.outcome, left(write_audit.act, 500), left(write_audit.tenant, 63),
            left(write_audit.who, 255), left(write_audit.session, 63), left(write_audit.source, 63),
            left(write_audit.detail, 2000))
    RETURNING seq INTO added;
    RETURN added;
END $$;

-- No entry of the audit log is changed or deleted, by its owner neither.
CREATE OR REPLACE FUNCTION audit_stays() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is only added to' USING ERRCODE = 'restrict_violation';
END $$;
