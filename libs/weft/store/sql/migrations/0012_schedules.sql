-- Jobs that run again and again, each by its own times. The gateways alone write and read them. A run is claimed before it
-- is submitted: `firing_at` is when it was due, and its submission has a key of the schedule and this time, so that it is
-- submitted once whatever dies in between.
CREATE TABLE schedules (
    id         text PRIMARY KEY CHECK (id ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    tenant     text NOT NULL REFERENCES tenants,
    name       text NOT NULL,
    spec       json NOT NULL,                  -- not jsonb, which would forget the order of its roles
    spec_hash  bytea NOT NULL,
    submitter  text NOT NULL DEFAULT '',       -- the name of the person; empty: a token did
    created_at timestamptz NOT NULL,
    next_at    timestamptz NOT NULL,           -- when the next run is due
    firing_at  timestamptz,                    -- when the run was due that is being submitted
    try_at     timestamptz,                    -- when a gateway looks at it next; NULL: it is paused
    paused_at  timestamptz,
    last_at    timestamptz,                    -- when the newest run was due that was submitted
    last_job   text NOT NULL DEFAULT '',
    runs       text[] NOT NULL DEFAULT '{}',   -- its runs that may not be over
    note       text NOT NULL DEFAULT '',       -- why a run was not submitted, the newest one
    noted_at   timestamptz,                    -- when that run was due
    UNIQUE (tenant, name)
);
CREATE INDEX schedules_to_try ON schedules (try_at) WHERE try_at IS NOT NULL;
GRANT SELECT, INSERT, UPDATE, DELETE ON schedules TO weft_gateway;
