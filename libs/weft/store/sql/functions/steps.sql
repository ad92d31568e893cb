-- Writes the steps of jobs that `after` and `step_data` computed. Whatever a scheduler believes, this function and the
-- triggers check the lease, the version of each job, the legal steps, and that no GPU is held beyond what it has. A job that
-- stops to restart with another size holds what both placements need.
--
-- `rounds` has the changed columns of the jobs' rows: first those of every job's first step, then those of the second, and
-- so on. `told` has all events in order. Returns which steps were taken (1…); a step of another version is left out.
--
-- Every row is found by its key: a plan made while a table was small would otherwise read all of it for ever.
CREATE OR REPLACE FUNCTION store_steps(
    lease_name text, lease_holder text, lease_epoch bigint, rounds jsonb, told jsonb
) RETURNS SETOF bigint LANGUAGE plpgsql SET search_path = public, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    round jsonb;
    now_taken bigint[]; now_moved text[]; now_freed text[]; now_placed text[]; now_resized text[];
    taken bigint[] := '{}'; freed text[] := '{}'; placed text[] := '{}'; resized text[] := '{}';
BEGIN
    PERFORM must_hold(lease_name, lease_holder, lease_epoch);
    FOR round IN SELECT value FROM jsonb_array_elements(rounds) LOOP
        WITH moved AS (
            UPDATE jobs SET
                   (state, last_event, version, epoch, since, priority, attempts, not_before, placement, stopping_for,
                    waiting_for, started_at, ended_at, exit_code, progress, placed_at, attained, attained_gpu_seconds,
                    nodes, size, gpu_model, worked, sized_at, next_placement, revisions, loans, failures,
                    hung_since)
                 = (SELECT state, last_event, version, epoch, since, priority, attempts, not_before, placement,
                           stopping_for, waiting_for, started_at, ended_at, exit_code, progress, placed_at, attained,
                           attained_gpu_seconds, nodes, size, gpu_model, worked, sized_at, next_placement, revisions, loans,
                           failures, hung_since
                      FROM jsonb_populate_record(jobs, step.row))
              FROM jsonb_to_recordset(round) AS step (ordinal bigint, id text, version integer, "row" jsonb)
             WHERE jobs.id = step.id AND jobs.version = step.version
               AND (now_moved IS NULL OR jobs.id = ANY (now_moved))
         RETURNING step.ordinal, jobs.id, jobs.last_event,
                   jobs.state IN ('placed', 'starting', 'running', 'stopping') AS holds,
                   jobs.last_event = 'tuned' AND (jobs.placement @? '$.allocations[*].share' OR EXISTS (
                       SELECT FROM gpu_slots WHERE job_id = jobs.id AND memory IS NOT NULL)) AS reshares
        )
        SELECT array_agg(ordinal), COALESCE(array_agg(id), '{}'), array_agg(id) FILTER (WHERE NOT holds),
               array_agg(id) FILTER (WHERE last_event = 'placed'),
               array_agg(id) FILTER (WHERE last_event IN ('resized', 'stopping', 'restarted') OR reshares)
          INTO now_taken, now_moved, now_freed, now_placed, now_resized FROM moved;
        taken := taken || now_taken; freed := freed || now_freed; placed := placed || now_placed;
        resized := resized || now_resized;
    END LOOP;
    IF freed <> '{}' THEN
        DELETE FROM gpu_slots WHERE job_id = ANY (freed);
    END IF;
    IF resized <> '{}' THEN   -- what stays as it is is left alone: it is not checked again
        DELETE FROM gpu_slots
         WHERE job_id = ANY (resized)
           AND (node_id, gpu_index, job_id, epoch, rank, part, COALESCE(memory, -1)) NOT IN (
               SELECT node_id, gpu_index, job_id, epoch, rank, part, COALESCE(memory, -1) FROM slots_of(resized));
    END IF;
    IF placed <> '{}' OR resized <> '{}' THEN
        INSERT INTO gpu_slots (node_id, gpu_index, job_id, epoch, rank, part, memory)
        SELECT node_id, gpu_index, job_id, epoch, rank, part, memory FROM slots_of(placed || resized)
         WHERE (node_id, gpu_index, job_id, epoch, rank) NOT IN (
               SELECT node_id, gpu_index, job_id, epoch, rank FROM gpu_slots WHERE job_id = ANY (resized));
    END IF;
    WITH event AS (
        SELECT * FROM jsonb_to_recordset(told) AS event (ordinal bigint, event text, at float8, ask bigint, data jsonb)
         WHERE ordinal = ANY (taken)
    ), done AS (
        DELETE FROM asks WHERE id IN (SELECT ask FROM event WHERE ask <> 0)
    ), stored AS (
        INSERT INTO events (topic, event, subject_id, version, tenant, at, data)
        SELECT 'jobs', event, data ->> 'job_id', (data ->> 'version')::int, data ->> 'tenant', to_timestamp(at), data
          FROM event ORDER BY ordinal
     RETURNING events.id, events.tenant, octet_length(events.data::text)
    )
    INSERT INTO outbox (event_id, tenant, bytes) SELECT * FROM stored;
    RETURN QUERY SELECT unnest(taken);
END $$;

-- The slots that these jobs hold by their placements.
CREATE OR REPLACE FUNCTION slots_of(job_ids text[]) RETURNS TABLE (
    node_id text, gpu_index integer, job_id text, epoch integer, rank integer, part integer, memory bigint
) LANGUAGE sql STABLE SET search_path = public, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
    WITH held AS (
        SELECT false AS next, jobs.id, jobs.epoch, allocation, gpu::int AS gpu
          FROM jobs,
               jsonb_array_elements(placement -> 'allocations') AS allocation,
               jsonb_array_elements_text(COALESCE(allocation -> 'gpus', '[]')) AS gpu
         WHERE jobs.id = ANY (job_ids) AND state IN ('placed', 'starting', 'running', 'stopping')
         UNION ALL
        SELECT true, jobs.id, jobs.epoch + 1, allocation, gpu::int
          FROM jobs,
               jsonb_array_elements(next_placement -> 'allocations') AS allocation,
               jsonb_array_elements_text(COALESCE(allocation -> 'gpus', '[]')) AS gpu
         WHERE jobs.id = ANY (job_ids) AND state = 'stopping'
    ), slot AS (
        SELECT next, id, epoch, allocation ->> 'node_id' AS node_id, gpu, (allocation ->> 'rank')::int AS rank,
               COALESCE((allocation -> 'share' ->> 'request')::int, 1000) AS part,
               (allocation -> 'share' ->> 'memory')::bigint AS memory
          FROM held
    ), beside AS (   -- what the next epoch needs of each GPU beyond what this one has of it
        SELECT id, max(epoch) AS epoch, node_id, gpu, min(rank) FILTER (WHERE next) AS rank,
               greatest(sum(part) FILTER (WHERE next) - COALESCE(sum(part) FILTER (WHERE NOT next), 0), 0)::int AS part,
               -- all its memory counts as none: what has all of a GPU leaves no time of it to others
               greatest(COALESCE(sum(memory) FILTER (WHERE next), 0)
                        - COALESCE(sum(memory) FILTER (WHERE NOT next), 0), 0)::bigint AS memory,
               bool_or(next AND memory IS NULL) AS whole_next, bool_or(NOT next AND memory IS NULL) AS whole_now,
               bool_or(NOT next) AS now
          FROM slot GROUP BY id, node_id, gpu HAVING bool_or(next)
    )
    SELECT node_id, gpu, id, epoch, rank, part, memory FROM slot WHERE NOT next
     UNION ALL
    SELECT node_id, gpu, id, epoch, rank, part, CASE WHEN whole_next AND NOT now THEN NULL ELSE memory END
      FROM beside WHERE part > 0 OR (memory > 0 AND NOT whole_now)
$$;
