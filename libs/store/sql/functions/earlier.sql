-- Functions that only services of the version before this one call. They may go with the next version.

-- Takes steps in order. Each is one statement: guard, move, GPUs, event, outbox, ask. Returns which were taken (1…).
CREATE OR REPLACE FUNCTION take_steps(lease_name text, lease_holder text, lease_epoch bigint, steps jsonb)
    RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    s record;
BEGIN
    PERFORM must_hold(lease_name, lease_holder, lease_epoch);
    FOR s IN
        SELECT (step ->> 'job_id') AS job_id, (step ->> 'version')::int AS version, step ->> 'event' AS event,
               step ->> 'to' AS to_state, to_timestamp((step ->> 'at')::float8) AS at, step -> 'cause' AS cause,
               (step ->> 'epoch')::int AS epoch, (step ->> 'priority')::int AS priority,
               (step ->> 'attempts')::int AS attempts, to_timestamp((step ->> 'not_before')::float8) AS not_before,
               step -> 'placement' AS placement, (step ->> 'exit_code')::int AS exit_code,
               (step ->> 'attained_seconds')::float8 AS attained_seconds,
               (step ->> 'attained_gpu_seconds')::float8 AS attained_gpu_seconds,
               step -> 'progress' AS progress, COALESCE((step ->> 'ask')::bigint, 0) AS ask, ordinality
          FROM jsonb_array_elements(steps) WITH ORDINALITY AS element (step, ordinality)
         ORDER BY ordinality
    LOOP
        WITH given_back AS (   -- for how long the job held its GPUs, and how many, if this step gives them back
            SELECT CASE WHEN state IN ('placed', 'starting', 'running', 'stopping')
                             AND s.to_state NOT IN ('placed', 'starting', 'running', 'stopping')
                        THEN greatest(s.at - COALESCE(placed_at, started_at, since), interval '0')
                        ELSE interval '0' END AS held,
                   (SELECT COALESCE(sum(jsonb_array_length(COALESCE(allocation -> 'gpus', '[]'))), 0)
                      FROM jsonb_array_elements(placement -> 'allocations') AS allocation) AS gpus
              FROM jobs WHERE id = s.job_id
        ), moved AS (
            UPDATE jobs SET
                   state        = s.to_state,
                   last_event   = s.event,
                   version      = jobs.version + 1,
                   epoch        = s.epoch,
                   since        = CASE WHEN state = s.to_state THEN since ELSE s.at END,
                   priority     = COALESCE(s.priority, priority),
                   attempts     = COALESCE(s.attempts, attempts),
                   not_before   = COALESCE(s.not_before, not_before),
                   placement    = CASE WHEN s.to_state = 'queued' THEN NULL ELSE COALESCE(s.placement, placement) END,
                   stopping_for = CASE WHEN s.event = 'stopping' THEN s.cause
                                       WHEN s.to_state = 'stopping' THEN stopping_for END,
                   waiting_for  = CASE WHEN s.event = 'waiting' THEN s.cause
                                       WHEN s.event = 'reprioritised' THEN waiting_for END,
                   started_at   = CASE WHEN s.event = 'started' THEN s.at
                                       WHEN s.event = 'requeued' THEN NULL ELSE started_at END,
                   ended_at     = CASE WHEN s.to_state IN ('succeeded', 'failed', 'cancelled') THEN s.at END,
                   exit_code    = CASE WHEN s.event = 'placed' THEN NULL ELSE COALESCE(s.exit_code, exit_code) END,
                   progress     = COALESCE(s.progress, progress),
                   placed_at    = CASE WHEN s.event = 'placed' THEN s.at
                                       WHEN s.to_state IN ('placed', 'starting', 'running', 'stopping') THEN placed_at END,
                   attained     = COALESCE(make_interval(secs => s.attained_seconds), attained) + given_back.held,
                   attained_gpu_seconds = COALESCE(s.attained_gpu_seconds, attained_gpu_seconds)
                                        + extract(epoch FROM given_back.held)::float8 * given_back.gpus,
                   nodes        = CASE WHEN s.event <> 'placed' OR jobs.nodes IS NULL THEN jobs.nodes ELSE ARRAY(
                       SELECT DISTINCT node COLLATE "C" FROM (
                           SELECT unnest(jobs.nodes) AS node
                            UNION ALL SELECT allocation ->> 'node_id'
                                        FROM jsonb_array_elements(s.placement -> 'allocations') AS allocation) had
                        ORDER BY 1) END
              FROM given_back
             WHERE id = s.job_id AND version = s.version
         RETURNING jobs.*
        ), freed AS (
            DELETE FROM gpu_slots USING moved
             WHERE gpu_slots.job_id = moved.id AND moved.state NOT IN ('placed', 'starting', 'running', 'stopping')
        ), given AS (
            INSERT INTO gpu_slots (node_id, gpu_index, job_id, epoch, rank)
            SELECT allocation ->> 'node_id', gpu::int, moved.id, moved.epoch, (allocation ->> 'rank')::int
              FROM moved,
                   jsonb_array_elements(moved.placement -> 'allocations') AS allocation,
                   jsonb_array_elements_text(COALESCE(allocation -> 'gpus', '[]')) AS gpu
             WHERE s.event = 'placed'
        ), done AS (
            DELETE FROM asks USING moved WHERE asks.id = s.ask
        ), told AS (
            INSERT INTO events (topic, event, subject_id, version, tenant, at, data)
            SELECT 'jobs', s.event, moved.id, moved.version, moved.tenant, s.at, jsonb_strip_nulls(jsonb_build_object(
                       'job_id', moved.id, 'name', submissions.name, 'tenant', moved.tenant, 'pool', moved.pool,
                       'state', moved.state, 'epoch', moved.epoch, 'version', moved.version,
                       'priority', moved.priority, 'cause', s.cause,
                       'placement', s.placement, 'exit_code', s.exit_code, 'progress', s.progress,
                       'attempts', s.attempts, 'not_before', extract(epoch FROM s.not_before)))
              FROM moved JOIN submissions ON submissions.id = moved.id
         RETURNING id
        )
        INSERT INTO outbox (event_id) SELECT id FROM told;
        IF FOUND THEN
            RETURN NEXT s.ordinality;
        END IF;
    END LOOP;
END $$;

-- Makes jobs of submissions. The event `submitted` was recorded with the submission, as version 1.
CREATE OR REPLACE FUNCTION admit_jobs(
    lease_name text, lease_holder text, lease_epoch bigint, of_pool text, at_most integer
) RETURNS SETOF text LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM must_hold(lease_name, lease_holder, lease_epoch);
    RETURN QUERY
    WITH taken AS (
        DELETE FROM asks WHERE asks.id IN (
            SELECT asks.id FROM asks WHERE pool = of_pool AND kind = 'submit' ORDER BY asks.id LIMIT at_most)
        RETURNING subject_id
    )
    INSERT INTO jobs (id, tenant, pool, state, last_event, epoch, version, priority, since)
    SELECT s.id, s.tenant, s.pool, 'queued', 'submitted', 0, 1, COALESCE((s.spec ->> 'priority')::int, 0),
           s.submitted_at
      FROM submissions s JOIN taken ON taken.subject_id = s.id
    ON CONFLICT (id) DO NOTHING
    RETURNING jobs.id;
END $$;

-- Counted each submission by itself; its trigger is gone, and `count_all_submitted` counts those of a statement.
CREATE OR REPLACE FUNCTION count_submitted() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO tenant_submitted AS known (tenant, part, jobs, bytes)
    VALUES (NEW.tenant, pg_backend_pid() % 16, 1, octet_length(NEW.spec::text))
    ON CONFLICT (tenant, part) DO UPDATE SET jobs = known.jobs + 1, bytes = known.bytes + excluded.bytes;
    RETURN NULL;
END $$;

-- Makes jobs of the oldest submissions of a pool.
CREATE OR REPLACE FUNCTION admit_submissions(
    lease_name text, lease_holder text, lease_epoch bigint, of_load bigint, of_pool text, at_most integer
) RETURNS SETOF text LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM must_have_loaded_last(lease_name, lease_holder, lease_epoch, of_load);
    RETURN QUERY
    WITH taken AS (
        DELETE FROM asks WHERE asks.id IN (
            SELECT asks.id FROM asks WHERE pool = of_pool AND kind = 'submit' ORDER BY asks.id LIMIT at_most)
        RETURNING subject_id
    )
    INSERT INTO jobs (id, tenant, pool, state, last_event, epoch, version, priority, since)
    SELECT s.id, s.tenant, s.pool, 'queued', 'submitted', 0, 1, COALESCE((s.spec ->> 'priority')::int, 0),
           s.submitted_at
      FROM submissions s JOIN taken ON taken.subject_id = s.id
    ON CONFLICT (id) DO NOTHING
    RETURNING jobs.id;
END $$;

-- The asks of a pool, however large they are.
CREATE OR REPLACE FUNCTION asks_to_do(of_pool text, at_most integer) RETURNS SETOF asks
LANGUAGE plpgsql STABLE ROWS 50 SET search_path = public, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY SELECT asks.* FROM asks_to_do_in_turn(of_pool, at_most) JOIN asks ON asks.id = ask_id ORDER BY place;
END $$;
