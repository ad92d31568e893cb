-- The first schema. Each table names its one writer; a queue table is filled by one and emptied by another.

-- gateway ------------------------------------------------------------------------------------------------------------

CREATE TABLE tenants (
    id         text PRIMARY KEY CHECK (id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    created_at timestamptz NOT NULL
);

CREATE TABLE tokens (
    hash       bytea PRIMARY KEY CHECK (length(hash) = 32),   -- SHA-256 of the token; the token itself is nowhere
    tenant     text NOT NULL REFERENCES tenants,
    admin      boolean NOT NULL DEFAULT false,
    label      text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    revoked_at timestamptz
);

CREATE TABLE submissions (
    id           text PRIMARY KEY CHECK (id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    seq          bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    tenant       text NOT NULL,
    key          text,
    pool         text NOT NULL,
    name         text NOT NULL,
    spec         json NOT NULL,   -- not jsonb, which would forget the order of its roles
    spec_hash    bytea NOT NULL,
    submitted_at timestamptz NOT NULL,
    UNIQUE (tenant, key)
);
CREATE INDEX submissions_by_name ON submissions (name, seq);
CREATE INDEX submissions_by_tenant ON submissions (tenant, seq);

-- What users ask, until the scheduler has done it: filled by the gateway, emptied by the scheduler.
CREATE TABLE asks (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind       text NOT NULL CHECK (kind IN ('submit', 'cancel', 'requeue', 'prioritise', 'drain', 'resume')),
    pool       text NOT NULL,
    subject_id text NOT NULL,
    tenant     text NOT NULL,
    priority   integer NOT NULL DEFAULT 0,
    at         timestamptz NOT NULL
);
CREATE INDEX asks_to_admit ON asks (pool, id) WHERE kind = 'submit';
CREATE INDEX asks_to_do ON asks (pool, id) WHERE kind <> 'submit';

-- scheduler ----------------------------------------------------------------------------------------------------------

CREATE TABLE leases (
    name   text PRIMARY KEY,
    holder text NOT NULL,   -- empty: free
    epoch  bigint NOT NULL,
    seq    bigint NOT NULL
);

-- The legal steps, as libs/domain/job.py and docs/job-states.md have them.
CREATE TABLE job_steps (
    from_state text NOT NULL,
    event      text NOT NULL,
    to_state   text NOT NULL,
    PRIMARY KEY (from_state, event)
);
INSERT INTO job_steps (from_state, event, to_state) VALUES
    ('queued',    'waiting',       'queued'),
    ('queued',    'reprioritised', 'queued'),
    ('queued',    'placed',        'placed'),
    ('queued',    'cancelled',     'cancelled'),
    ('placed',    'reprioritised', 'placed'),
    ('placed',    'starting',      'starting'),
    ('placed',    'stopping',      'stopping'),
    ('placed',    'requeued',      'queued'),
    ('placed',    'failed',        'failed'),
    ('starting',  'reprioritised', 'starting'),
    ('starting',  'started',       'running'),
    ('starting',  'stopping',      'stopping'),
    ('starting',  'requeued',      'queued'),
    ('starting',  'failed',        'failed'),
    ('running',   'reprioritised', 'running'),
    ('running',   'stopping',      'stopping'),
    ('running',   'requeued',      'queued'),
    ('running',   'succeeded',     'succeeded'),
    ('running',   'failed',        'failed'),
    ('stopping',  'reprioritised', 'stopping'),
    ('stopping',  'stopping',      'stopping'),
    ('stopping',  'requeued',      'queued'),
    ('stopping',  'succeeded',     'succeeded'),
    ('stopping',  'failed',        'failed'),
    ('stopping',  'cancelled',     'cancelled'),
    ('succeeded', 'requeued',      'queued'),
    ('failed',    'requeued',      'queued'),
    ('cancelled', 'requeued',      'queued');

CREATE TABLE jobs (
    id           text PRIMARY KEY REFERENCES submissions,
    tenant       text NOT NULL,
    pool         text NOT NULL,
    state        text NOT NULL CHECK (state IN
                     ('queued', 'placed', 'starting', 'running', 'stopping', 'succeeded', 'failed', 'cancelled')),
    last_event   text NOT NULL,
    epoch        integer NOT NULL CHECK (epoch >= 0),
    version      integer NOT NULL CHECK (version >= 1),
    priority     integer NOT NULL,
    attempts     integer NOT NULL DEFAULT 0,
    not_before   timestamptz,
    since        timestamptz NOT NULL,
    stopping_for jsonb,
    waiting_for  jsonb,
    placement    jsonb,
    started_at   timestamptz,
    ended_at     timestamptz,
    exit_code    integer,
    progress     jsonb,
    CHECK ((state IN ('placed', 'starting', 'running', 'stopping')) <= (placement IS NOT NULL)),
    CHECK ((state = 'stopping') = (stopping_for IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX jobs_open ON jobs (pool) WHERE state NOT IN ('succeeded', 'failed', 'cancelled');

-- A GPU has at most one owner, whatever any scheduler believes.
CREATE TABLE gpu_slots (
    node_id   text NOT NULL,
    gpu_index integer NOT NULL CHECK (gpu_index >= 0),
    job_id    text NOT NULL REFERENCES jobs,
    epoch     integer NOT NULL,
    rank      integer NOT NULL,
    PRIMARY KEY (node_id, gpu_index)
);
CREATE INDEX gpu_slots_by_job ON gpu_slots (job_id);

CREATE TABLE nodes (
    id           text PRIMARY KEY CHECK (id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    pool         text NOT NULL,
    address      text NOT NULL,
    capacity     jsonb NOT NULL,
    runtime      text NOT NULL,
    not_enforced jsonb NOT NULL,
    ready        boolean NOT NULL,
    drained      boolean NOT NULL,
    version      integer NOT NULL,
    seen_at      timestamptz NOT NULL
);

-- the story: appended with the step that it tells, by that step's writer ------------------------------------------------

CREATE TABLE events (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic      text NOT NULL CHECK (topic IN ('jobs', 'nodes')),
    event      text NOT NULL,
    subject_id text NOT NULL,
    version    integer NOT NULL,
    tenant     text NOT NULL DEFAULT '',
    at         timestamptz NOT NULL,
    data       jsonb NOT NULL,
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),   -- lets a reader stop before what is not yet committed
    UNIQUE (topic, subject_id, version)
);
CREATE INDEX events_in_order ON events (xid, id);

-- Events not yet published: filled with the event, emptied by the relay.
CREATE TABLE outbox (
    event_id bigint PRIMARY KEY REFERENCES events
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- scorer -------------------------------------------------------------------------------------------------------------

CREATE TABLE gpu_scores (
    node_id   text NOT NULL,
    gpu_index integer NOT NULL,
    job_class text NOT NULL,
    score     double precision NOT NULL CHECK (score > 0),
    at        timestamptz NOT NULL,
    PRIMARY KEY (node_id, gpu_index, job_class)
);

-- the law ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION job_step_is_legal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.version <> OLD.version + 1 THEN
        RAISE EXCEPTION 'job %: version % after %', OLD.id, NEW.version, OLD.version USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.epoch <> OLD.epoch + (NEW.last_event = 'requeued')::int THEN
        RAISE EXCEPTION 'job %: epoch % after % by %', OLD.id, NEW.epoch, OLD.epoch, NEW.last_event
            USING ERRCODE = 'check_violation';
    END IF;
    PERFORM 1 FROM job_steps
      WHERE from_state = OLD.state AND event = NEW.last_event AND to_state = NEW.state;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job %: % is no step from % to %', OLD.id, NEW.last_event, OLD.state, NEW.state
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER job_step_is_legal BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION job_step_is_legal();

CREATE FUNCTION job_begins_queued() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job %: begins as % in version % and epoch %', NEW.id, NEW.state, NEW.version, NEW.epoch
        USING ERRCODE = 'check_violation';
END $$;

CREATE TRIGGER job_begins_queued BEFORE INSERT ON jobs FOR EACH ROW
    WHEN (NEW.state <> 'queued' OR NEW.last_event <> 'submitted' OR NEW.version <> 1 OR NEW.epoch <> 0)
    EXECUTE FUNCTION job_begins_queued();

-- Raises unless `holder` owns the lease in this epoch; held until the transaction ends.
CREATE FUNCTION must_hold(lease_name text, lease_holder text, lease_epoch bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM leases WHERE name = lease_name AND holder = lease_holder AND epoch = lease_epoch FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease % is no longer held by % in epoch %', lease_name, lease_holder, lease_epoch
            USING ERRCODE = 'WL001';
    END IF;
END $$;

-- Takes steps in order. Each is one statement: guard, move, GPUs, event, outbox, ask. Returns which were taken (1…).
CREATE FUNCTION take_steps(lease_name text, lease_holder text, lease_epoch bigint, steps jsonb)
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
                   progress     = COALESCE(s.progress, progress)
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

-- Makes jobs of what was submitted. The event `submitted` was told with the submission, as version 1.
CREATE FUNCTION admit_jobs(
    lease_name text, lease_holder text, lease_epoch bigint, of_pool text, at_most integer
) RETURNS SETOF text LANGUAGE plpgsql AS $$
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

-- A submitted job that the scheduler has not admitted yet is queued already: it was acknowledged.
CREATE VIEW all_jobs AS
SELECT s.id, s.tenant, s.pool, s.name, s.spec, s.seq, s.submitted_at,
       COALESCE(j.state, 'queued') AS state, COALESCE(j.epoch, 0) AS epoch, COALESCE(j.version, 1) AS version,
       COALESCE(j.priority, (s.spec ->> 'priority')::int, 0) AS priority, COALESCE(j.attempts, 0) AS attempts,
       j.not_before, COALESCE(j.since, s.submitted_at) AS since, j.stopping_for, j.waiting_for, j.placement,
       j.started_at, j.ended_at, j.exit_code, j.progress
  FROM submissions s LEFT JOIN jobs j ON j.id = s.id;

-- who may do what: one writer per table ----------------------------------------------------------------------------------

GRANT USAGE ON SCHEMA public TO weft_gateway, weft_scheduler, weft_scorer, weft_reallocator;
GRANT SELECT ON tenants, tokens, submissions, asks, jobs, gpu_slots, nodes, events, gpu_scores, all_jobs TO weft_gateway;
GRANT INSERT ON tenants, submissions, asks, events, outbox TO weft_gateway;
GRANT INSERT ON tokens TO weft_gateway;
GRANT UPDATE (revoked_at) ON tokens TO weft_gateway;

GRANT SELECT ON submissions, asks, leases, job_steps, jobs, gpu_slots, nodes, events, outbox, gpu_scores, all_jobs
    TO weft_scheduler;
GRANT INSERT, UPDATE ON leases, jobs, nodes TO weft_scheduler;
GRANT DELETE ON asks TO weft_scheduler;
GRANT INSERT, DELETE ON gpu_slots TO weft_scheduler;
GRANT INSERT ON events TO weft_scheduler;
GRANT INSERT, DELETE, UPDATE ON outbox TO weft_scheduler;

GRANT SELECT ON nodes, jobs, submissions, all_jobs, gpu_scores TO weft_scorer;
GRANT INSERT, UPDATE ON gpu_scores TO weft_scorer;

GRANT SELECT ON nodes, jobs, submissions, all_jobs, gpu_slots, gpu_scores, events TO weft_reallocator;
