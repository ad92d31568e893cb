-- The schema. Each table names its one writer; a queue table is filled by one and emptied by another. Functions and views
-- have their current text in sql/functions: here are only the first forms that triggers and rights need.

-- gateway ------------------------------------------------------------------------------------------------------------

-- The limits are those that an administrator chose for a tenant. NULL: as the gateway's settings say.
CREATE TABLE tenants (
    id                   text PRIMARY KEY CHECK (id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    created_at           timestamptz NOT NULL,
    jobs_open_max        bigint CHECK (jobs_open_max >= 0),
    spec_bytes_max       bigint CHECK (spec_bytes_max >= 0),
    priority_max         integer,
    may_be_unpreemptible boolean,
    idle_seconds_max     bigint CHECK (idle_seconds_max >= 0)
);

CREATE TABLE tokens (
    hash       bytea PRIMARY KEY CHECK (length(hash) = 32),   -- SHA-256 of the token; the token itself is nowhere
    tenant     text NOT NULL REFERENCES tenants,
    admin      boolean NOT NULL DEFAULT false,
    label      text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL,
    revoked_at timestamptz,
    expires_at timestamptz,
    used_at    timestamptz   -- about: noted once a minute at most
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
    array_id     text,            -- NULL: it is a job of its own
    spec_bytes   integer CHECK (spec_bytes > 0),   -- its length, so that no page of jobs has to be read to be bounded
    UNIQUE (tenant, key)
);
CREATE INDEX submissions_by_name ON submissions (name, seq);
CREATE INDEX submissions_by_tenant ON submissions (tenant, seq);
CREATE INDEX submissions_of_array ON submissions (array_id, seq) WHERE array_id IS NOT NULL;
-- The elements of an array are submitted at one time, so arrays are listed by the index alone.
CREATE INDEX submissions_arrays ON submissions (submitted_at, array_id) WHERE array_id IS NOT NULL;
-- Jobs that serve requests are few among all that are kept, and so are those that name a context.
CREATE INDEX submissions_serve ON submissions (id) WHERE spec ->> 'service' IS NOT NULL;
-- Without it, Postgres takes nearly every job for one that serves, and reads them all.
CREATE STATISTICS submissions_service ON (spec ->> 'service') FROM submissions;
CREATE INDEX submissions_with_context ON submissions ((spec ->> 'context'), tenant) WHERE spec ->> 'context' IS NOT NULL;

-- What users ask, until the scheduler has done it: filled by the gateway, and by the reallocator through the functions of
-- sql/functions/tuning.sql alone; emptied by the scheduler.
-- No number comes twice, not even after the database was restored from a backup, when a sequence alone would begin again: a
-- scheduler that hung meanwhile drops an ask by its number once it goes on.
CREATE SEQUENCE asks_in_a_microsecond;
CREATE TABLE asks (
    id         bigint PRIMARY KEY
               DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000 + nextval('asks_in_a_microsecond') % 1000,
    kind       text NOT NULL CHECK (kind IN
                   ('submit', 'cancel', 'requeue', 'prioritise', 'drain', 'resume', 'return', 'tune', 'scale', 'share', 'update', 'enter')),
    pool       text NOT NULL,
    subject_id text NOT NULL,
    tenant     text NOT NULL,
    priority   integer NOT NULL DEFAULT 0,
    at         timestamptz NOT NULL,
    tune       jsonb,   -- each of these with the kind of that name
    scale      jsonb,
    share      jsonb,
    update     jsonb,
    entry      jsonb,   -- with the kind enter
    why        jsonb,   -- of a cancel that no user asked for
    drain      jsonb CHECK (drain IS NULL OR kind = 'drain'),
    gpu        integer CHECK (gpu IS NULL OR kind = 'return'),   -- NULL: the node and all of its GPUs
    bytes      bigint NOT NULL DEFAULT 0 CHECK (bytes >= 0),   -- of what its tenant may have, while it waits and once done
    CONSTRAINT asks_tune_check CHECK ((kind = 'tune') = (tune IS NOT NULL)),
    CONSTRAINT asks_scale_check CHECK ((kind = 'scale') = (scale IS NOT NULL)),
    CONSTRAINT asks_share_check CHECK ((kind = 'share') = (share IS NOT NULL)),
    CONSTRAINT asks_update_check CHECK ((kind = 'update') = (update IS NOT NULL)),
    CONSTRAINT asks_entry_check CHECK ((kind = 'enter') = (entry IS NOT NULL))
);
ALTER TABLE asks ALTER COLUMN update SET STORAGE EXTERNAL;  -- it is there for a moment: to compress it takes longest
CREATE INDEX asks_to_admit ON asks (pool, id) WHERE kind = 'submit';
CREATE INDEX asks_to_do ON asks (pool, id) WHERE kind <> 'submit';
-- Asks are taken in by tenants in turn: each tenant's oldest first.
CREATE INDEX asks_to_admit_in_turn ON asks (pool, tenant, id) WHERE kind = 'submit';
CREATE INDEX asks_to_do_in_turn ON asks (pool, tenant, id) WHERE kind <> 'submit';
CREATE INDEX asks_of_subject ON asks (subject_id, id) WHERE kind <> 'submit';
-- So that requeues that wait for the scheduler can be counted with what is open.
CREATE INDEX asks_to_requeue ON asks (tenant) WHERE kind = 'requeue';
CREATE INDEX asks_with_bytes ON asks (tenant) INCLUDE (bytes) WHERE bytes > 0;
-- The partition planner and the tuner together have one at a time of each job.
CREATE UNIQUE INDEX asks_tune_once ON asks (subject_id) WHERE kind = 'tune';
CREATE UNIQUE INDEX asks_scale_once ON asks (subject_id) WHERE kind = 'scale' AND tenant = 'weft';
CREATE UNIQUE INDEX asks_share_once ON asks (subject_id) WHERE kind = 'share' AND tenant = 'weft';

-- What a tenant has submitted, ever. In parts, so that connections seldom wait for each other's row.
CREATE TABLE tenant_submitted (
    tenant text NOT NULL,
    part   integer NOT NULL,
    jobs   bigint NOT NULL,
    bytes  bigint NOT NULL,   -- of the specifications
    PRIMARY KEY (tenant, part)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What an administrator guarantees tenants and groups of them, and how much each may hold at most. The scheduler of the
-- pool reads them. `quota` is a Quota of libs/weft/domain/quotas.py; amounts are thousandths of GPUs.
CREATE TABLE quotas (
    pool  text NOT NULL,
    name  text NOT NULL,
    quota jsonb NOT NULL,
    PRIMARY KEY (pool, name)
);

-- Where a tenant's events are posted. The gateway alone writes and reads them.
CREATE TABLE webhooks (
    id            text PRIMARY KEY CHECK (id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    tenant        text NOT NULL REFERENCES tenants,
    url           text NOT NULL,
    events        text[] NOT NULL,            -- empty: all
    all_tenants   boolean NOT NULL,           -- of an administrator: the events of all jobs, and of nodes
    secret        text NOT NULL,              -- signs what is posted: it has to be known, so no hash of it
    created_at    timestamptz NOT NULL,
    cursor        text NOT NULL,              -- the last event that was delivered, or passed over
    delivered     bigint NOT NULL DEFAULT 0,
    delivered_at  timestamptz,
    failures      integer NOT NULL DEFAULT 0, -- in a row
    failing_since timestamptz,
    not_before    timestamptz,                -- of the next try
    error         text NOT NULL DEFAULT '',   -- of the last try that failed
    off           text NOT NULL DEFAULT ''    -- why nothing is delivered any more; empty: it is
);
CREATE INDEX webhooks_by_tenant ON webhooks (tenant);

-- What one gateway of several does, until it has not said for so long that it still does.
CREATE TABLE duties (
    name       text PRIMARY KEY,
    holder     text NOT NULL,
    held_until timestamptz NOT NULL           -- by the clock of the database
);

-- The values that jobs name. The gateway alone writes and reads them; no other role sees this table.
CREATE TABLE secrets (
    tenant     text NOT NULL REFERENCES tenants,
    name       text NOT NULL CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    value      text NOT NULL CHECK (octet_length(value) <= 32768),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
);

-- The packed files that jobs have as their working folder. The gateway alone writes and reads them.
CREATE TABLE contexts (
    id      text PRIMARY KEY,
    tenant  text NOT NULL REFERENCES tenants,
    digest  text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'),  -- SHA-256 of all pieces in a row
    bytes   bigint NOT NULL CHECK (bytes > 0),
    whole   boolean NOT NULL DEFAULT false,
    used_at timestamptz NOT NULL                              -- of what is not whole: when a piece came last
);
CREATE UNIQUE INDEX contexts_whole ON contexts (tenant, digest) WHERE whole;
CREATE INDEX contexts_by_tenant ON contexts (tenant, used_at);

CREATE TABLE context_pieces (
    context text NOT NULL REFERENCES contexts ON DELETE CASCADE,
    number  integer NOT NULL CHECK (number >= 0),
    data    bytea NOT NULL CHECK (octet_length(data) <= 524288),
    PRIMARY KEY (context, number)
);
ALTER TABLE context_pieces ALTER COLUMN data SET STORAGE EXTERNAL;  -- it is compressed already

-- scheduler ----------------------------------------------------------------------------------------------------------

-- What a leader has pledged for the time in which it cannot reach the store: docs/decisions/0012-keep-jobs-running-without-postgres.md.
CREATE TABLE leases (
    name          text PRIMARY KEY,
    holder        text NOT NULL,   -- empty: free
    epoch         bigint NOT NULL,
    seq           bigint NOT NULL,
    went_back     boolean NOT NULL DEFAULT false,  -- from when a leader finds out that the store went back, until it has
                                                   -- waited for the runs of the lost time to end
    holds_seconds double precision NOT NULL DEFAULT 0,  -- from its latest renewal on, at most
    members       text[] NOT NULL DEFAULT '{}',    -- schedulers without whose denial it does not hold
    nats          text NOT NULL DEFAULT '',        -- the NATS server without whose connection it does not hold
    loads         bigint NOT NULL DEFAULT 0        -- how often leaders began to load the pool: an admission names the load
                                                   -- that it belongs to, and is refused after the next one
);

-- How each earlier leadership of a pool ended. Who was answered by a lease that was renewed further than it says here,
-- or by another holder, knows of a time that the store has lost: docs/decisions/0006-detect-a-restored-database.md.
CREATE TABLE leaderships (
    name   text NOT NULL,
    epoch  bigint NOT NULL,
    holder text NOT NULL,
    seq    bigint NOT NULL,
    PRIMARY KEY (name, epoch)
);

CREATE TABLE policies (
    pool             text PRIMARY KEY,
    policy           text NOT NULL,  -- order, placement and backfill of its last leader
    preemption_after double precision NOT NULL DEFAULT 0,  -- seconds that a job runs before it is pre-empted
    spares           integer NOT NULL DEFAULT 0  -- nodes of each kind that are kept for gangs whose hardware failed
);

-- The legal steps, as libs/weft/domain/job.py and docs/job-states.md have them.
CREATE TABLE job_steps (
    from_state text NOT NULL,
    event      text NOT NULL,
    to_state   text NOT NULL,
    PRIMARY KEY (from_state, event)
);
INSERT INTO job_steps (from_state, event, to_state) VALUES
    ('queued',    'waiting',       'queued'),
    ('queued',    'reprioritised', 'queued'),
    ('queued',    'scaled',        'queued'),
    ('queued',    'updated',       'queued'),
    ('queued',    'placed',        'placed'),
    ('queued',    'cancelled',     'cancelled'),
    ('queued',    'failed',        'failed'),
    ('placed',    'reprioritised', 'placed'),
    ('placed',    'scaled',        'placed'),
    ('placed',    'updated',       'placed'),
    ('placed',    'starting',      'starting'),
    ('placed',    'stopping',      'stopping'),
    ('placed',    'requeued',      'queued'),
    ('placed',    'failed',        'failed'),
    ('starting',  'reprioritised', 'starting'),
    ('starting',  'scaled',        'starting'),
    ('starting',  'updated',       'starting'),
    ('starting',  'entered',       'starting'),
    ('starting',  'started',       'running'),
    ('starting',  'stopping',      'stopping'),
    ('starting',  'requeued',      'queued'),
    ('starting',  'failed',        'failed'),
    ('running',   'reprioritised', 'running'),
    ('running',   'tuned',         'running'),
    ('running',   'scaled',        'running'),
    ('running',   'resized',       'running'),
    ('running',   'updated',       'running'),
    ('running',   'entered',       'running'),
    ('running',   'noted',         'running'),
    ('running',   'stopping',      'stopping'),
    ('running',   'requeued',      'queued'),
    ('running',   'succeeded',     'succeeded'),
    ('running',   'failed',        'failed'),
    ('stopping',  'reprioritised', 'stopping'),
    ('stopping',  'scaled',        'stopping'),
    ('stopping',  'entered',       'stopping'),
    ('stopping',  'stopping',      'stopping'),
    ('stopping',  'restarted',     'placed'),
    ('stopping',  'requeued',      'queued'),
    ('stopping',  'succeeded',     'succeeded'),
    ('stopping',  'failed',        'failed'),
    ('stopping',  'cancelled',     'cancelled'),
    ('succeeded', 'requeued',      'queued'),
    ('failed',    'requeued',      'queued'),
    ('cancelled', 'requeued',      'queued');

CREATE TABLE jobs (
    id             text PRIMARY KEY REFERENCES submissions,
    tenant         text NOT NULL,
    pool           text NOT NULL,
    state          text NOT NULL CHECK (state IN
                       ('queued', 'placed', 'starting', 'running', 'stopping', 'succeeded', 'failed', 'cancelled')),
    last_event     text NOT NULL,
    epoch          integer NOT NULL CHECK (epoch >= 0),
    version        integer NOT NULL CHECK (version >= 1),
    priority       integer NOT NULL,
    attempts       integer NOT NULL DEFAULT 0,
    not_before     timestamptz,
    since          timestamptz NOT NULL,
    stopping_for   jsonb,
    waiting_for    jsonb,
    placement      jsonb,
    started_at     timestamptz,
    ended_at       timestamptz,
    exit_code      integer,
    progress       jsonb,
    placed_at      timestamptz,                    -- since when it holds its GPUs
    attained       interval NOT NULL DEFAULT '0',  -- how long it held them in its epochs before
    attained_gpu_seconds double precision NOT NULL DEFAULT 0,  -- where its size differs from try to try
    nodes          text[] NOT NULL DEFAULT '{}',   -- every node it was ever placed on
    size           jsonb,         -- replicas by role; NULL: as its specification wants
    gpu_model      text,          -- of its GPUs, as the partition planner chose; NULL or empty: it chose none
    worked         jsonb,         -- replicas by role before the last change; NULL: it never changed
    sized_at       timestamptz,   -- since when it holds as many GPUs as now, if not since placed_at
    next_placement jsonb,         -- of a stopping job: held for it until it restarts there
    revisions      jsonb,         -- of a service; NULL: it was never updated
    loans          jsonb,         -- what a service has of other jobs; NULL: nothing
    failures       jsonb,         -- of its tries, the last ones; NULL: none
    hung_since     timestamptz,   -- since when a running job counts as hung
    CHECK ((state IN ('placed', 'starting', 'running', 'stopping')) <= (placement IS NOT NULL)),
    CHECK ((state = 'stopping') = (stopping_for IS NOT NULL))
) WITH (fillfactor = 70);
CREATE INDEX jobs_open ON jobs (pool) WHERE state NOT IN ('succeeded', 'failed', 'cancelled');
CREATE INDEX jobs_holding ON jobs (pool) WHERE state IN ('placed', 'starting', 'running', 'stopping');
CREATE INDEX jobs_ended ON jobs (ended_at, pool) WHERE ended_at IS NOT NULL;
CREATE INDEX jobs_succeeded ON jobs (tenant, ended_at) WHERE state = 'succeeded';

-- The image, the command and the environment of the revisions in `jobs.revisions`, which has their numbers.
CREATE TABLE revisions (
    job_id text NOT NULL REFERENCES jobs ON DELETE CASCADE,
    number integer NOT NULL CHECK (number > 0),
    text   jsonb NOT NULL,
    bytes  bigint NOT NULL CHECK (bytes >= 0),
    PRIMARY KEY (job_id, number)
);
ALTER TABLE revisions ALTER COLUMN text SET STORAGE EXTERNAL;

-- What jobs hold of GPUs. A trigger lets no GPU be held beyond its time and its memory, whatever any scheduler believes.
CREATE TABLE gpu_slots (
    node_id   text NOT NULL,
    gpu_index integer NOT NULL CHECK (gpu_index >= 0),
    job_id    text NOT NULL REFERENCES jobs,
    epoch     integer NOT NULL,
    rank      integer NOT NULL,
    part      integer NOT NULL DEFAULT 1000,   -- thousandths of its time
    memory    bigint,                          -- bytes; NULL: all of it
    PRIMARY KEY (node_id, gpu_index, job_id, epoch, rank),
    CONSTRAINT gpu_slots_part_check CHECK (part >= 0 AND memory >= 0 AND (memory IS NOT NULL OR part >= 1000))
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
    drain        jsonb,   -- NULL: it takes new work
    version      integer NOT NULL,
    seen_at      timestamptz NOT NULL,
    rack         text NOT NULL DEFAULT '',
    health       jsonb NOT NULL DEFAULT '[]'   -- of the node and of its GPUs
);

-- What of `tenant_submitted` is over, by pool, so that no two leaders write one row. A job that is requeued counts back.
CREATE TABLE tenant_ended (
    tenant text NOT NULL,
    pool   text NOT NULL,
    jobs   bigint NOT NULL,
    bytes  bigint NOT NULL,
    PRIMARY KEY (tenant, pool)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- Every decision with what it was decided from. Written with the steps that follow; read by the gateway.
CREATE TABLE decisions (
    pool   text NOT NULL,
    epoch  bigint NOT NULL,       -- of the leader's lease
    number integer NOT NULL,      -- counts one leader's records; they may come to be stored in another order
    format integer NOT NULL,      -- of the body
    begins boolean NOT NULL,      -- opens with all that the leader knew
    at     timestamptz NOT NULL,
    until  timestamptz NOT NULL,
    cycles integer NOT NULL,
    steps  integer NOT NULL,
    body   bytea NOT NULL,        -- compressed already
    bytes_until bigint NOT NULL,  -- of the bodies of its pool up to this one, those of dropped records included
    PRIMARY KEY (pool, epoch, number)
);
ALTER TABLE decisions ALTER COLUMN body SET STORAGE EXTERNAL;
CREATE INDEX decisions_beginnings ON decisions (pool, epoch, number) WHERE begins;

-- How long each pool keeps the jobs that are over. Written by `forget_jobs` alone.
CREATE TABLE retention (
    pool             text PRIMARY KEY,
    seconds          double precision NOT NULL,
    forgotten_before timestamptz NOT NULL   -- a job that ended before may have been forgotten
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
CREATE INDEX events_by_tenant ON events (tenant, xid, id);
-- Events are added in the order of their time, very nearly: this index costs next to nothing, and finds what was at a time.
CREATE INDEX events_by_time ON events USING brin (at) WITH (autosummarize = on);

-- Events not yet published: filled with the event, emptied by the relay, which serves tenants in turn.
CREATE TABLE outbox (
    event_id bigint PRIMARY KEY REFERENCES events,
    entry    bigint GENERATED BY DEFAULT AS IDENTITY,   -- another one each time that the event is put here: an answer that
                                                        -- was given up and lands late takes out no event that is here again
    tenant   text NOT NULL DEFAULT '',
    bytes    bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
CREATE INDEX outbox_in_turn ON outbox (tenant, event_id) INCLUDE (entry, bytes);

-- The stream of events that what is not in `outbox` was published to. A stream that was made anew, or a database that
-- came back as an older copy, is found by it: the events are published again. The scheduler alone writes and reads it.
CREATE TABLE event_stream (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    id       text NOT NULL CHECK (length(id) BETWEEN 1 AND 100)
);

-- By how much the `xid` of a new event is above its transaction's id. A logical dump keeps the events and not the counter
-- of transactions, so `continue_events` raises it after a restore. Written by `migrate` alone.
CREATE TABLE event_offset (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    xids     bigint NOT NULL
);
INSERT INTO event_offset (xids) VALUES (0);

-- scorer -------------------------------------------------------------------------------------------------------------

CREATE TABLE gpu_scores (
    node_id    text NOT NULL,
    gpu_index  integer NOT NULL,
    job_class  text NOT NULL,
    score      double precision NOT NULL CHECK (score > 0),
    at         timestamptz NOT NULL,
    confidence double precision NOT NULL DEFAULT 1,   -- 0 to 1
    source     text NOT NULL DEFAULT '',
    measured_at timestamptz,
    samples    integer NOT NULL DEFAULT 0,
    quarantined_until timestamptz,
    PRIMARY KEY (node_id, gpu_index, job_class)
);

-- Which class the jobs of a workload belong to.
CREATE TABLE workload_classes (
    pool      text NOT NULL,
    workload  text NOT NULL,
    job_class text NOT NULL,
    compute   double precision NOT NULL,
    memory    double precision NOT NULL,
    samples   integer NOT NULL,
    at        timestamptz NOT NULL,
    PRIMARY KEY (pool, workload)
);

-- Speed against replicas and CPUs, of a job (`job:<id>`) or of a workload (`workload:<workload>`).
CREATE TABLE curves (
    pool    text NOT NULL,
    subject text NOT NULL,
    points  jsonb NOT NULL,
    at      timestamptz NOT NULL,
    PRIMARY KEY (pool, subject)
);
CREATE INDEX curves_by_time ON curves (at);

-- How much longer a GPU takes for a step of a job beside a job of another class in its own share.
CREATE TABLE class_slowdowns (
    job_class  text NOT NULL CHECK (job_class IN ('compute', 'mixed', 'memory')),
    beside     text NOT NULL CHECK (beside IN ('compute', 'mixed', 'memory')),
    slowdown   double precision NOT NULL CHECK (slowdown > 0 AND slowdown < 100),
    confidence double precision NOT NULL CHECK (confidence >= 0 AND confidence <= 1),
    workloads  integer NOT NULL CHECK (workloads > 0),
    at         timestamptz NOT NULL,
    PRIMARY KEY (job_class, beside)
);

-- reallocator --------------------------------------------------------------------------------------------------------

-- What the tuner of a job knows: what it tries, what it has tried in vain. Without it a restart would try it all again,
-- and nobody would roll back what was tried when it died.
CREATE TABLE envelopes (
    job_id text PRIMARY KEY REFERENCES submissions,
    pool   text NOT NULL,
    epoch  integer NOT NULL,
    state  jsonb NOT NULL,
    at     timestamptz NOT NULL
);

-- Early stopping of sweeps: what each element reported at each step of comparison. Written by `reach_rung` alone.
CREATE TABLE rungs (
    array_id text NOT NULL,
    job_id   text NOT NULL REFERENCES submissions ON DELETE CASCADE,
    rung     integer NOT NULL CHECK (rung BETWEEN 0 AND 63),
    value    double precision NOT NULL,
    PRIMARY KEY (array_id, job_id, rung)
);
CREATE INDEX rungs_by_job ON rungs (job_id);

-- How long jobs of a workload took when one last restarted with another size, from its stop until it ran again.
CREATE TABLE restart_costs (
    pool     text NOT NULL,
    workload text NOT NULL CHECK (length(workload) BETWEEN 1 AND 253),
    seconds  double precision NOT NULL CHECK (seconds >= 0 AND seconds <= 86400),
    measured bigint NOT NULL CHECK (measured > 0),  -- restarts
    at       timestamptz NOT NULL,                  -- when the last one ran again
    PRIMARY KEY (pool, workload)
);

-- the law ------------------------------------------------------------------------------------------------------------

CREATE FUNCTION job_step_is_legal() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER job_step_is_legal BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION job_step_is_legal();

CREATE FUNCTION job_begins_queued() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER job_begins_queued BEFORE INSERT ON jobs FOR EACH ROW
    WHEN (NEW.state <> 'queued' OR NEW.last_event <> 'submitted' OR NEW.version <> 1 OR NEW.epoch <> 0)
    EXECUTE FUNCTION job_begins_queued();

CREATE FUNCTION leadership_ends() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER leadership_ends AFTER UPDATE ON leases FOR EACH ROW
    WHEN (OLD.holder <> '' AND (NEW.holder = '' OR NEW.epoch <> OLD.epoch))
    EXECUTE FUNCTION leadership_ends();

CREATE FUNCTION gpu_slots_fit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER gpu_slots_fit AFTER INSERT ON gpu_slots REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION gpu_slots_fit();

-- Ten thousand submissions in one statement are counted once: counted row by row, each count would look through all
-- the versions of its row that the same statement has left.
CREATE FUNCTION count_all_submitted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER count_all_submitted AFTER INSERT ON submissions
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION count_all_submitted();

CREATE FUNCTION count_ended() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER count_ended AFTER UPDATE OF state ON jobs FOR EACH ROW
    WHEN ((OLD.state IN ('succeeded', 'failed', 'cancelled')) <> (NEW.state IN ('succeeded', 'failed', 'cancelled')))
    EXECUTE FUNCTION count_ended();

CREATE FUNCTION divide_revisions() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE TRIGGER divide_revisions BEFORE UPDATE OF revisions ON jobs FOR EACH ROW
    WHEN (NEW.revisions IS DISTINCT FROM OLD.revisions) EXECUTE FUNCTION divide_revisions();

-- who may do what: one writer per table ----------------------------------------------------------------------------------

CREATE VIEW all_jobs AS SELECT NULL::text AS id WHERE false;
CREATE VIEW tenant_use AS SELECT NULL::text AS tenant WHERE false;
CREATE VIEW open_services AS SELECT NULL::text AS id WHERE false;

GRANT USAGE ON SCHEMA public TO weft_gateway, weft_scheduler, weft_scorer, weft_reallocator, weft_router;

GRANT SELECT ON tenants, tokens, submissions, asks, tenant_ended, quotas, policies, jobs, gpu_slots, nodes, decisions,
    retention, events, event_offset, gpu_scores, workload_classes, curves, class_slowdowns, envelopes, all_jobs, tenant_use
    TO weft_gateway;
GRANT INSERT ON tenants, tokens, submissions, asks, events, outbox TO weft_gateway;
GRANT USAGE ON SEQUENCE asks_in_a_microsecond TO weft_gateway;
GRANT UPDATE (jobs_open_max, spec_bytes_max, priority_max, may_be_unpreemptible, idle_seconds_max) ON tenants TO weft_gateway;
GRANT UPDATE (revoked_at, used_at), DELETE ON tokens TO weft_gateway;
GRANT SELECT, INSERT, UPDATE ON tenant_submitted, duties TO weft_gateway;
GRANT INSERT, UPDATE, DELETE ON quotas TO weft_gateway;
GRANT SELECT, INSERT, UPDATE, DELETE ON webhooks, secrets, contexts TO weft_gateway;
GRANT SELECT, INSERT ON context_pieces TO weft_gateway;

GRANT SELECT ON submissions, asks, leases, job_steps, jobs, gpu_slots, nodes, events, outbox, gpu_scores, workload_classes,
    curves, class_slowdowns, quotas, all_jobs TO weft_scheduler;
GRANT INSERT, UPDATE ON leases, jobs TO weft_scheduler;
GRANT INSERT, UPDATE, DELETE ON nodes TO weft_scheduler;
GRANT DELETE ON asks TO weft_scheduler;
GRANT INSERT, DELETE ON gpu_slots TO weft_scheduler;
GRANT INSERT ON events TO weft_scheduler;
GRANT INSERT, DELETE, UPDATE ON outbox TO weft_scheduler;
GRANT SELECT, INSERT, DELETE ON leaderships, revisions, decisions TO weft_scheduler;
GRANT SELECT, INSERT, UPDATE ON policies, tenant_ended, event_stream TO weft_scheduler;

GRANT SELECT ON nodes, jobs, submissions, all_jobs, gpu_scores TO weft_scorer;
GRANT INSERT, UPDATE, DELETE ON gpu_scores TO weft_scorer;
GRANT SELECT, INSERT, UPDATE, DELETE ON workload_classes, curves, class_slowdowns TO weft_scorer;

GRANT SELECT ON nodes, jobs, submissions, all_jobs, gpu_slots, gpu_scores, events, workload_classes, curves, quotas, rungs
    TO weft_reallocator;
GRANT SELECT, INSERT, UPDATE, DELETE ON envelopes, restart_costs TO weft_reallocator;

-- What a router knows of jobs: no command, image or environment.
GRANT SELECT ON open_services, nodes TO weft_router;
GRANT SELECT (hash, tenant, admin, expires_at, revoked_at) ON tokens TO weft_router;
GRANT SELECT (id, jobs_open_max, spec_bytes_max, priority_max, may_be_unpreemptible, idle_seconds_max) ON tenants TO weft_router;

-- What the reallocator asks for, and stores with it.
CREATE FUNCTION ask_tune(of_job text, of_pool text, of_epoch integer, what jsonb, known jsonb, asked_at timestamptz)
    RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE FUNCTION ask_scale(of_job text, of_pool text, of_epoch integer, what jsonb, known jsonb, asked_at timestamptz)
    RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE FUNCTION ask_sizes(of_pool text, sizes jsonb, asked_at timestamptz)
    RETURNS SETOF text LANGUAGE sql AS 'SELECT NULL::text LIMIT 0';
CREATE FUNCTION ask_shares(of_pool text, shares jsonb, asked_at timestamptz)
    RETURNS SETOF text LANGUAGE sql AS 'SELECT NULL::text LIMIT 0';
CREATE FUNCTION reach_rung(of_job text, of_array text, of_rung integer, reached double precision, of_pool text,
                           cause jsonb, reached_at timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT false';
REVOKE ALL ON FUNCTION ask_tune, ask_scale, ask_sizes, ask_shares, reach_rung FROM PUBLIC;
GRANT EXECUTE ON FUNCTION ask_tune, ask_scale, ask_sizes, ask_shares, reach_rung TO weft_reallocator;

-- What a gateway shows of the database.
CREATE FUNCTION database_status(most integer)
    RETURNS TABLE (bytes bigint, connections integer, connections_max integer, version text, ran text[],
                   asks integer, unsent integer)
    LANGUAGE sql AS 'SELECT NULL::bigint, 0, 0, NULL::text, NULL::text[], 0, 0 LIMIT 0';
REVOKE ALL ON FUNCTION database_status FROM PUBLIC;
GRANT EXECUTE ON FUNCTION database_status TO weft_gateway;
