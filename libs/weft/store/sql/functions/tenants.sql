-- What a tenant has open, counted with the statement that changes it. The triggers are in its migration, …_tenants.sql.

-- One of the tenant's parts in which no other transaction counts: while there is one, a slow submission keeps no other
-- one waiting. It is this transaction's until its end.
CREATE OR REPLACE FUNCTION free_part(of_tenant text) RETURNS integer LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    parts CONSTANT integer := 16;
BEGIN
    FOR part IN pg_backend_pid() % parts .. pg_backend_pid() % parts + parts - 1 LOOP
        IF pg_try_advisory_xact_lock(hashtextextended(of_tenant, part % parts)) THEN
            RETURN part % parts;
        END IF;
    END LOOP;
    RETURN pg_backend_pid() % parts;
END $$;

CREATE OR REPLACE FUNCTION count_all_submitted() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO tenant_submitted AS known (tenant, part, jobs, bytes)
    SELECT tenant, free_part(tenant), count(*), sum(octet_length(spec::text)) FROM added GROUP BY tenant
     ORDER BY tenant
    ON CONFLICT (tenant, part) DO UPDATE SET jobs = known.jobs + excluded.jobs, bytes = known.bytes + excluded.bytes;
    RETURN NULL;
END $$;

-- A requeued job is open again: it is taken off the ended jobs. The bytes of its revisions count with it.
CREATE OR REPLACE FUNCTION count_ended() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    sign integer := CASE WHEN NEW.state IN ('succeeded', 'failed', 'cancelled') THEN 1 ELSE -1 END;
BEGIN
    INSERT INTO tenant_ended AS known (tenant, pool, jobs, bytes)
    SELECT NEW.tenant, NEW.pool, sign,
           sign * (octet_length(spec::text)
                   + COALESCE((SELECT sum(bytes) FROM revisions WHERE job_id = NEW.id), 0)::bigint)
      FROM submissions WHERE id = NEW.id
    ON CONFLICT (tenant, pool) DO UPDATE SET jobs = known.jobs + excluded.jobs, bytes = known.bytes + excluded.bytes;
    RETURN NULL;
END $$;

-- The sum per tenant is what it has open: its jobs and their revisions, and what it asked for that is not done yet.
CREATE OR REPLACE VIEW tenant_use AS
SELECT tenant, jobs, bytes FROM tenant_submitted
 UNION ALL SELECT tenant, -jobs, -bytes FROM tenant_ended
 UNION ALL SELECT tenant, 0, bytes FROM asks WHERE bytes > 0;
