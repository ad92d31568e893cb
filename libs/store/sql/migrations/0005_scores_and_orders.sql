-- What orders and placements go by: how long a job has held its GPUs, how sure a score is, which policy a pool is led by.
-- Services of an earlier version go on: they neither read nor write any of it.

ALTER TABLE jobs ADD COLUMN placed_at timestamptz;   -- since when it holds its GPUs
ALTER TABLE jobs ADD COLUMN attained interval NOT NULL DEFAULT '0';   -- how long it held them in its epochs before

ALTER TABLE gpu_scores ADD COLUMN confidence double precision NOT NULL DEFAULT 1;   -- 0 to 1
ALTER TABLE gpu_scores ADD COLUMN source text NOT NULL DEFAULT '';
ALTER TABLE gpu_scores ADD COLUMN measured_at timestamptz;

CREATE TABLE policies (
    pool   text PRIMARY KEY,
    policy text NOT NULL   -- order, placement and backfill of who led it last
);
GRANT SELECT, INSERT, UPDATE ON policies TO weft_scheduler;
GRANT SELECT ON policies TO weft_gateway;

-- As in 0001, and counts how long GPUs were held: with the step that gives them back.
CREATE OR REPLACE FUNCTION take_steps(lease_name text, lease_holder text, lease_epoch bigint, steps jsonb)
    RETURNS SETOF bigint LANGUAGE plpgsql AS $$
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
               step -> 'progress' AS progress, COALESCE((step ->> 'ask')::bigint, 0) AS ask, ordinality
          FROM jsonb_array_elements(steps) WITH ORDINALITY AS element (step, ordinality)
         ORDER BY ordinality
    LOOP
        WITH moved AS (
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
                   attained     = COALESCE(make_interval(secs => s.attained_seconds), attained) + CASE
                       WHEN state IN ('placed', 'starting', 'running', 'stopping')
                            AND s.to_state NOT IN ('placed', 'starting', 'running', 'stopping')
                       THEN greatest(s.at - COALESCE(placed_at, started_at, since), interval '0')
                       ELSE interval '0' END
             WHERE id = s.job_id AND version = s.version
         RETURNING *
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

CREATE OR REPLACE VIEW all_jobs AS
SELECT s.id, s.tenant, s.pool, s.name, s.spec, s.seq, s.submitted_at,
       COALESCE(j.state, 'queued') AS state, COALESCE(j.epoch, 0) AS epoch, COALESCE(j.version, 1) AS version,
       COALESCE(j.priority, (s.spec ->> 'priority')::int, 0) AS priority, COALESCE(j.attempts, 0) AS attempts,
       j.not_before, COALESCE(j.since, s.submitted_at) AS since, j.stopping_for, j.waiting_for, j.placement,
       j.started_at, j.ended_at, j.exit_code, j.progress, j.placed_at, COALESCE(j.attained, interval '0') AS attained
  FROM submissions s LEFT JOIN jobs j ON j.id = s.id;
