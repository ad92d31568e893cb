-- Exchanges a one-time code for a session, in one statement: of two callers one gets it. No row: the code is unknown, was
-- used, is too old, is for another job or another command line, or its token or its person is not in force.
CREATE OR REPLACE FUNCTION redeem_code(code_hash bytea, session_hash bytea, of_job text, redeemed_at timestamptz, source text,
                                       request text, of_challenge text)
    RETURNS TABLE (id text, tenant text, admin boolean, expires_at double precision)
    LANGUAGE sql SECURITY DEFINER SET search_path = public, pg_temp AS $$
    WITH found AS (
        SELECT code.hash, root.admin, root.label FROM sign_ins code JOIN tokens root ON root.hash = code.parent
         WHERE code.hash = code_hash AND root.revoked_at IS NULL
           AND (root.expires_at IS NULL OR root.expires_at > redeemed_at)
         UNION ALL
        SELECT code.hash, people.role = 'admin', people.name FROM sign_ins code JOIN people ON people.id = code.person
         WHERE code.hash = code_hash AND people.disabled_at IS NULL
    ), used AS (
        UPDATE sign_ins code SET used_at = redeemed_at, ended_at = redeemed_at FROM found
         WHERE code.hash = found.hash AND code.kind = 'code' AND code.job = of_job AND code.challenge = of_challenge
           AND code.ended_at IS NULL AND code.expires_at > redeemed_at
        RETURNING code.tenant, code.parent, code.person, code.job, code.session_ends_at, found.admin, found.label
    ), made AS (
        INSERT INTO sign_ins AS session (hash, kind, tenant, parent, person, job, created_at, expires_at)
        SELECT session_hash, 'session', used.tenant, used.parent, used.person, used.job, redeemed_at, used.session_ends_at
          FROM used
        RETURNING session.id, session.tenant, session.expires_at
    )
    SELECT made.id, made.tenant, used.admin, extract(epoch FROM made.expires_at)::float8
      FROM made, used
     WHERE add_audit(request, 'done', 'sign-in', made.tenant, used.label, made.id, source,
                       CASE WHEN of_job = '' THEN '' ELSE 'for ' || of_job END, redeemed_at, COALESCE(used.person, '')) > 0;
$$;
