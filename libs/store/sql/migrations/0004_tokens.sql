-- A token may end by itself, and tells when it was used last. A gateway of an earlier version goes on: it looks at neither.

ALTER TABLE tokens ADD COLUMN expires_at timestamptz;
ALTER TABLE tokens ADD COLUMN used_at timestamptz;   -- about: noted once a minute at most

GRANT UPDATE (used_at) ON tokens TO weft_gateway;
