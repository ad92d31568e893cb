-- Exchanges a one-time code for a session, in one statement: of two callers one gets it. No row: the code is unknown, was
-- used, is too old, is for another job, or its token is not in force.
CREATE OR REPLACE FUNCTION redeem_code(code_hash bytea, session_hash bytea, of_job text, redeemed_at timestamptz, source text,
                                       request text)
    RETURNS TABLE (id text, tenant text, admin boolean, expires_at double precision)
    LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    WITH used AS (
        UPDATE sign_ins code SET used_at = redeemed_at, ended_at = redeemed_at FROM tokens root
         WHERE code.hash = code_hash AND code.kind = 'code' AND code.job = of_job AND code.ended_at IS NULL
           AND code.expires_at > redeemed_at AND root.hash = code.parent AND root.revoked_at IS NULL
           AND (root.expires_at IS NULL OR root.expires_at > redeemed_at)
        RETURNING code.tenant, code.parent, code.job, code.session_ends_at, root.admin, root.label
    ), made AS (
        INSERT INTO sign_ins AS session (hash, kind, tenant, parent, job, created_at, expires_at)
        SELECT session_hash, 'session', used.tenant, used.parent, used.job, redeemed_at, used.session_ends_at FROM used
        RETURNING session.id, session.tenant, session.expires_at
    )
    SELECT made.id, made.tenant, used.admin, extract(epoch FROM made.expires_at)::float8
      FROM made, used
     WHERE write_audit(request, 'done', 'sign-in', made.tenant, used.label, made.id, source,
                       CASE WHEN of_job = '' THEN '' ELSE 'for ' || of_job END, redeemed_at) > 0;
$$;
