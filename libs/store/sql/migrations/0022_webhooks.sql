-- Webhooks: where a tenant's events are posted. The gateway alone writes and reads them.

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

GRANT SELECT, INSERT, UPDATE, DELETE ON webhooks TO weft_gateway;
GRANT SELECT, INSERT, UPDATE ON duties TO weft_gateway;
