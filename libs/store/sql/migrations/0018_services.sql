-- Services: what their replicas run from an update on, what they borrowed, and the router's own role.
-- Services of an earlier version go on: they write none of these columns, and a job without them is as it was.

ALTER TABLE jobs ADD COLUMN revisions jsonb;  -- of a service; NULL: it was never updated
ALTER TABLE jobs ADD COLUMN loans jsonb;      -- what a service has of other jobs; NULL: nothing

ALTER TABLE asks ADD COLUMN update jsonb;     -- with the kind of that name
ALTER TABLE asks DROP CONSTRAINT asks_kind_check;
ALTER TABLE asks ADD CONSTRAINT asks_kind_check
    CHECK (kind IN ('submit', 'cancel', 'requeue', 'prioritise', 'drain', 'resume', 'tune', 'scale', 'share', 'update'));
ALTER TABLE asks ADD CONSTRAINT asks_update_check CHECK ((kind = 'update') = (update IS NOT NULL));

INSERT INTO job_steps (from_state, event, to_state) VALUES
    ('queued', 'updated', 'queued'),
    ('placed', 'updated', 'placed'),
    ('starting', 'updated', 'starting'),
    ('running', 'updated', 'running');

-- Jobs that serve requests are few among all that are kept.
CREATE INDEX submissions_serve ON submissions (id) WHERE spec ->> 'service' IS NOT NULL;

-- What a router knows of jobs: no command, image or environment. Its current text is in functions/serving.sql.
CREATE VIEW open_services AS SELECT NULL::text AS id WHERE false;
GRANT USAGE ON SCHEMA public TO weft_router;
GRANT SELECT ON open_services, nodes TO weft_router;
GRANT SELECT (hash, tenant, admin, expires_at, revoked_at) ON tokens TO weft_router;
GRANT SELECT (id, jobs_open_max, spec_bytes_max, priority_max, may_be_unpreemptible) ON tenants TO weft_router;
