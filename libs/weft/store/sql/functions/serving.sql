-- The open jobs that serve requests, with what a router must know of each and nothing more: specifications hold secrets.
CREATE OR REPLACE VIEW open_services AS
SELECT s.id, s.tenant, s.pool, s.name, s.seq, COALESCE(s.spec ->> 'kind', 'training') AS kind,
       s.spec -> 'service' AS service, s.spec -> 'objective' AS objective,
       COALESCE((j.size ->> role.name)::int, role.want, 1) AS wanted, j.state, j.epoch, j.version, j.priority, j.placement,
       COALESCE(j.worked, '{}') <> '{}' AS served
  FROM submissions s JOIN jobs j ON j.id = s.id
       LEFT JOIN LATERAL (
           SELECT key AS name, (value -> 'replicas' ->> 'want')::int AS want
             FROM json_each(s.spec -> 'roles') LIMIT 1) role ON true   -- such a job has one role
 WHERE s.spec ->> 'service' IS NOT NULL AND j.state NOT IN ('succeeded', 'failed', 'cancelled');
