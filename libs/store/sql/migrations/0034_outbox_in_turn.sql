-- Whose event waits to be published, and how many bytes it has: the relay serves tenants in turn. A service of the version
-- before writes neither; its events count as those of nobody, without bytes.

ALTER TABLE outbox ADD COLUMN tenant text NOT NULL DEFAULT '', ADD COLUMN bytes bigint NOT NULL DEFAULT 0;
UPDATE outbox SET tenant = events.tenant, bytes = octet_length(events.data::text) FROM events WHERE events.id = event_id;
CREATE INDEX outbox_in_turn ON outbox (tenant, event_id) INCLUDE (entry, bytes);
