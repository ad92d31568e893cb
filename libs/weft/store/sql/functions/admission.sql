-- The table `asks` is empty at one moment and has thousands of rows at the next, and a session keeps its plans. So what reads it
-- here goes by an index, however small the table was when that was planned.

-- The asks of a pool to admit submissions: the tenants in turn, the oldest of each first, so that one tenant's thousands delay
-- another's by one. Tenants are found one behind the other by the index alone, however many asks each has.
CREATE OR REPLACE FUNCTION asks_to_admit_in_turn(of_pool text, at_most integer) RETURNS TABLE (ask_id bigint, place bigint)
LANGUAGE plpgsql STABLE ROWS 50 SET search_path = public, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    oldest bigint[];
    tenants_count integer;
BEGIN
    SELECT array_agg(few.id ORDER BY few.id), count(DISTINCT few.tenant) INTO oldest, tenants_count
      FROM (SELECT asks.id, asks.tenant FROM asks WHERE pool = of_pool AND kind = 'submit' ORDER BY asks.id LIMIT at_most + 1) AS few;
    IF oldest IS NULL OR (tenants_count = 1 AND cardinality(oldest) <= at_most) THEN  -- the usual case, in which none waits
        RETURN QUERY SELECT * FROM unnest(oldest) WITH ORDINALITY;
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE tenants AS (
        (SELECT tenant FROM asks WHERE pool = of_pool AND kind = 'submit' ORDER BY tenant LIMIT 1)
        UNION ALL
        SELECT (SELECT asks.tenant FROM asks WHERE pool = of_pool AND kind = 'submit' AND asks.tenant > tenants.tenant
                 ORDER BY asks.tenant LIMIT 1)
          FROM tenants WHERE tenants.tenant IS NOT NULL
    ), first AS (
        SELECT of_tenant.id, row_number() OVER (PARTITION BY tenants.tenant ORDER BY of_tenant.id) AS number
          FROM tenants
         CROSS JOIN LATERAL (SELECT id FROM asks WHERE pool = of_pool AND kind = 'submit' AND asks.tenant = tenants.tenant
                              ORDER BY id LIMIT at_most) AS of_tenant
    )
    SELECT id, row_number() OVER (ORDER BY number, id) FROM first ORDER BY 2 LIMIT at_most;
END $$;

-- Of these the first ones, of which all but the last have fewer than `bytes_max` bytes of specifications together.
CREATE OR REPLACE FUNCTION asks_to_admit(of_pool text, at_most integer, bytes_max bigint) RETURNS bigint[]
LANGUAGE plpgsql STABLE SET search_path = public, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN (
        SELECT COALESCE(array_agg(ask_id ORDER BY place), '{}')
          FROM (SELECT ask_id, place, sum(bytes) OVER (ORDER BY place) - bytes AS bytes_before
                  FROM (SELECT ask_id, place, COALESCE(spec_bytes, octet_length(spec::text)) AS bytes
                          FROM asks_to_admit_in_turn(of_pool, at_most)
                          JOIN asks ON asks.id = ask_id JOIN submissions ON submissions.id = asks.subject_id) AS each) AS sized
         WHERE bytes_before < bytes_max);
END $$;

-- The asks of a pool for anything else, in turn likewise. What another tenant asked before about the same subject comes
-- first: until that is done, the later ask is left out.
CREATE OR REPLACE FUNCTION asks_to_do_in_turn(of_pool text, at_most integer) RETURNS TABLE (ask_id bigint, place bigint)
LANGUAGE plpgsql STABLE ROWS 50 SET search_path = public, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    oldest bigint[];
    tenants_count integer;
BEGIN
    SELECT array_agg(few.id ORDER BY few.id), count(DISTINCT few.tenant) INTO oldest, tenants_count
      FROM (SELECT asks.id, asks.tenant FROM asks WHERE pool = of_pool AND kind <> 'submit' ORDER BY asks.id LIMIT at_most + 1) AS few;
    IF oldest IS NULL OR (tenants_count = 1 AND cardinality(oldest) <= at_most) THEN  -- the usual case, in which none waits
        RETURN QUERY SELECT * FROM unnest(oldest) WITH ORDINALITY;
        RETURN;
    END IF;
    RETURN QUERY
    WITH RECURSIVE tenants AS (
        (SELECT tenant FROM asks WHERE pool = of_pool AND kind <> 'submit' ORDER BY tenant LIMIT 1)
        UNION ALL
        SELECT (SELECT asks.tenant FROM asks WHERE pool = of_pool AND kind <> 'submit' AND asks.tenant > tenants.tenant
                 ORDER BY asks.tenant LIMIT 1)
          FROM tenants WHERE tenants.tenant IS NOT NULL
    ), first AS (
        SELECT of_tenant.id, row_number() OVER (PARTITION BY tenants.tenant ORDER BY of_tenant.id) AS number
          FROM tenants
         CROSS JOIN LATERAL (
            SELECT id FROM asks WHERE pool = of_pool AND kind <> 'submit' AND asks.tenant = tenants.tenant
               AND NOT EXISTS (SELECT FROM asks AS earlier WHERE earlier.subject_id = asks.subject_id
                                  AND earlier.kind <> 'submit' AND earlier.id < asks.id AND earlier.tenant <> asks.tenant)
             ORDER BY id LIMIT at_most) AS of_tenant
    )
    SELECT id, row_number() OVER (ORDER BY number, id) FROM first ORDER BY 2 LIMIT at_most;
END $$;

-- These asks themselves, in that order: the first ones, of which all but the last have fewer than `bytes_max` together.
CREATE OR REPLACE FUNCTION asks_within(of_pool text, at_most integer, bytes_max bigint) RETURNS SETOF asks
LANGUAGE plpgsql STABLE ROWS 50 SET search_path = public, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY
    SELECT asks.*
      FROM (SELECT ask_id, ask.place, sum(bytes) OVER (ORDER BY ask.place) - bytes AS bytes_before
              FROM asks_to_do_in_turn(of_pool, at_most) AS ask JOIN asks ON asks.id = ask_id) AS sized
      JOIN asks ON asks.id = sized.ask_id
     WHERE bytes_before < bytes_max ORDER BY sized.place;
END $$;

-- Makes jobs of submissions, for the latest load of their pool only: an admission of an earlier one that lands late would make
-- jobs that its leader does not know. So would asks that the caller has not seen: it names them. The event `submitted` was
-- recorded with the submission, as version 1.
CREATE OR REPLACE FUNCTION admit_asks(
    lease_name text, lease_holder text, lease_epoch bigint, of_load bigint, of_asks bigint[]
) RETURNS SETOF text LANGUAGE plpgsql SET search_path = public, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM must_have_loaded_last(lease_name, lease_holder, lease_epoch, of_load);
    RETURN QUERY
    WITH taken AS (
        DELETE FROM asks WHERE asks.id = ANY (of_asks) AND kind = 'submit' RETURNING subject_id
    )
    INSERT INTO jobs (id, tenant, pool, state, last_event, epoch, version, priority, since)
    SELECT s.id, s.tenant, s.pool, 'queued', 'submitted', 0, 1, COALESCE((s.spec ->> 'priority')::int, 0),
           s.submitted_at
      FROM submissions s JOIN taken ON taken.subject_id = s.id
    ON CONFLICT (id) DO NOTHING
    RETURNING jobs.id;
END $$;

-- A submitted job counts as queued before the scheduler admits it: it was acknowledged. The revisions of a service are whole
-- here. `bytes`: of the specification and the revisions, by which pages of jobs are bounded.
CREATE OR REPLACE VIEW all_jobs AS
SELECT s.id, s.tenant, s.pool, s.name, s.spec, s.seq, s.submitted_at,
       COALESCE(j.state, 'queued') AS state, COALESCE(j.epoch, 0) AS epoch, COALESCE(j.version, 1) AS version,
       COALESCE(j.priority, (s.spec ->> 'priority')::int, 0) AS priority, COALESCE(j.attempts, 0) AS attempts,
       j.not_before, COALESCE(j.since, s.submitted_at) AS since, j.stopping_for, j.waiting_for, j.placement,
       j.started_at, j.ended_at, j.exit_code, j.progress, j.placed_at, COALESCE(j.attained, interval '0') AS attained,
       COALESCE(j.attained_gpu_seconds, 0) AS attained_gpu_seconds,
       CASE WHEN j.id IS NULL THEN '{}' ELSE j.nodes END AS nodes,
       j.size, j.gpu_model, j.worked, j.sized_at, j.next_placement,
       CASE WHEN j.revisions IS NOT NULL THEN (
           SELECT jsonb_agg(COALESCE(r.text, '{}') || one ORDER BY place)
             FROM jsonb_array_elements(j.revisions) WITH ORDINALITY AS given (one, place)
                  LEFT JOIN revisions r ON r.job_id = j.id AND r.number = (one ->> 'number')::integer) END AS revisions,
       j.loans, j.failures, j.hung_since,
       COALESCE(s.spec_bytes, octet_length(s.spec::text))
       + CASE WHEN j.revisions IS NOT NULL
              THEN COALESCE((SELECT sum(r.bytes) FROM revisions r WHERE r.job_id = j.id), 0)::bigint ELSE 0 END AS bytes,
       s.submitter
  FROM submissions s LEFT JOIN jobs j ON j.id = s.id;
