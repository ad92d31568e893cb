-- What a tenant may take, and how much of it is taken. Services of an earlier version go on: triggers count for them too.

-- gateway: what an administrator chose for a tenant. NULL: as the gateway's settings say.
ALTER TABLE tenants ADD COLUMN jobs_open_max bigint CHECK (jobs_open_max >= 0);
ALTER TABLE tenants ADD COLUMN spec_bytes_max bigint CHECK (spec_bytes_max >= 0);
ALTER TABLE tenants ADD COLUMN priority_max integer;
ALTER TABLE tenants ADD COLUMN may_be_unpreemptible boolean;
GRANT UPDATE (jobs_open_max, spec_bytes_max, priority_max, may_be_unpreemptible) ON tenants TO weft_gateway;

-- gateway: what a tenant has submitted, ever. In parts, so that connections seldom wait for each other's row.
CREATE TABLE tenant_submitted (
    tenant text NOT NULL,
    part   integer NOT NULL,
    jobs   bigint NOT NULL,
    bytes  bigint NOT NULL,   -- of the specifications
    PRIMARY KEY (tenant, part)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- scheduler: what of it is over, by pool, so that no two leaders write one row. A job that is requeued counts back.
CREATE TABLE tenant_ended (
    tenant text NOT NULL,
    pool   text NOT NULL,
    jobs   bigint NOT NULL,
    bytes  bigint NOT NULL,
    PRIMARY KEY (tenant, pool)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- What is open is the sum of this.
CREATE VIEW tenant_use AS
SELECT tenant, jobs, bytes FROM tenant_submitted UNION ALL SELECT tenant, -jobs, -bytes FROM tenant_ended;

GRANT SELECT, INSERT, UPDATE ON tenant_submitted TO weft_gateway;
GRANT SELECT, INSERT, UPDATE ON tenant_ended TO weft_scheduler;
GRANT SELECT ON tenant_ended, tenant_use TO weft_gateway;

-- What they do is in functions/tenants.sql.
CREATE FUNCTION count_submitted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE FUNCTION count_ended() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER count_submitted AFTER INSERT ON submissions FOR EACH ROW EXECUTE FUNCTION count_submitted();
CREATE TRIGGER count_ended AFTER UPDATE OF state ON jobs FOR EACH ROW
    WHEN ((OLD.state IN ('succeeded', 'failed', 'cancelled')) <> (NEW.state IN ('succeeded', 'failed', 'cancelled')))
    EXECUTE FUNCTION count_ended();

-- What is open already. The triggers hold their tables until this is committed, so nothing is counted twice or missed.
INSERT INTO tenant_submitted (tenant, part, jobs, bytes)
SELECT s.tenant, 0, count(*), sum(octet_length(s.spec::text))
  FROM submissions s LEFT JOIN jobs j ON j.id = s.id
 WHERE j.id IS NULL OR j.state NOT IN ('succeeded', 'failed', 'cancelled')
 GROUP BY s.tenant;

-- So that requeues that wait for the scheduler can be counted with what is open.
CREATE INDEX asks_to_requeue ON asks (tenant) WHERE kind = 'requeue';
