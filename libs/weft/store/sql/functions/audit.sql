-- Adds an entry to the audit log. One at a time: so the order of `seq` is that in which entries can be read, and a reader
-- that goes on behind the last entry that it saw misses none.
CREATE OR REPLACE FUNCTION add_audit(of_request text, outcome text, act text, tenant text, who text, session text,
                                       source text, detail text, at timestamptz, person text)
    RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    added bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('audit'));
    INSERT INTO audit (at, request, outcome, act, tenant, who, session, source, detail, person)
    VALUES (add_audit.at, left(of_request, 63), add_audit.outcome, left(add_audit.act, 500), left(add_audit.tenant, 63),
            left(add_audit.who, 255), left(add_audit.session, 63), left(add_audit.source, 63),
            left(add_audit.detail, 2000), left(add_audit.person, 63))
    RETURNING seq INTO added;
    RETURN added;
END $$;

-- The form that gateways of version 0.1 call.
CREATE OR REPLACE FUNCTION write_audit(of_request text, outcome text, act text, tenant text, who text, session text,
                                       source text, detail text, at timestamptz)
    RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT add_audit($1, $2, $3, $4, $5, $6, $7, $8, $9, '');
$$;

-- Deletes the oldest entries, at most `at_most`: those that are older than `kept_seconds`, and those beyond the newest
-- `entries_max`; 0: no such bound. Returns how many. No entry that is younger than a week by the database's own clock is
-- deleted, whoever calls, and an entry of its own says what was. Of several gateways one deletes.
CREATE OR REPLACE FUNCTION forget_audit(kept_seconds float8, entries_max bigint, at_most integer)
    RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    week    timestamptz := now() - interval '7 days';
    expired timestamptz := CASE WHEN kept_seconds > 0 THEN now() - make_interval(secs => kept_seconds) ELSE '-infinity' END;
    surplus bigint := CASE WHEN entries_max > 0 THEN (SELECT max(seq) FROM audit) - entries_max END;
    told    text;
    deleted bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('audit retention')) THEN
        RETURN 0;
    END IF;
    PERFORM set_config('weft.audit_retention', 'on', true);
    WITH gone AS (
        DELETE FROM audit
         WHERE seq IN (SELECT oldest.seq FROM audit oldest ORDER BY oldest.seq LIMIT at_most)
           AND audit.at < week AND (audit.at < expired OR audit.seq <= surplus)
        RETURNING audit.seq, audit.at
    )
    SELECT count(*), format('deleted %s entries, %s to %s, the last of %s', count(*), min(seq), max(seq),
                            to_char(max(gone.at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
      INTO deleted, told FROM gone;
    PERFORM set_config('weft.audit_retention', '', true);
    IF deleted > 0 THEN
        PERFORM add_audit('', 'done', 'retention', '', '', '', '', told, now(), '');
    END IF;
    RETURN deleted;
END $$;

-- No entry of the audit log is changed, and none is deleted but by `forget_audit`; the owner is held to this, too.
CREATE OR REPLACE FUNCTION audit_stays() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('weft.audit_retention', true) = 'on' THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'the audit log is only added to' USING ERRCODE = 'restrict_violation';
END $$;
