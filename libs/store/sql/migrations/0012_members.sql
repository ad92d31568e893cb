-- What a leader has pledged for the time in which it cannot reach the store: docs/decisions/0012-a-store-that-is-away.md.
-- A leader of an earlier version pledges nothing, and leaves the pledge of the leader before it as it is.

ALTER TABLE leases ADD COLUMN holds_seconds double precision NOT NULL DEFAULT 0;  -- from its latest renewal on, at most
ALTER TABLE leases ADD COLUMN members text[] NOT NULL DEFAULT '{}';  -- schedulers without whose denial it does not hold
ALTER TABLE leases ADD COLUMN nats text NOT NULL DEFAULT '';  -- the NATS server without whose connection it does not hold
