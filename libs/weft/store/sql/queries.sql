-- part: bounded
-- Of the jobs of a `page`, the newest of which all but the last have fewer than `most` bytes together.
sized AS (
    SELECT id, most, sum(bytes) OVER (ORDER BY seq DESC) - bytes AS before FROM page
)
SELECT {job} FROM all_jobs WHERE id IN (SELECT id FROM sized WHERE before < most) ORDER BY seq DESC;

-- columns: job
id, tenant, spec, seq, extract(epoch FROM submitted_at)::float8 AS submitted_at, state, epoch, version, priority,
       attempts, extract(epoch FROM not_before)::float8 AS not_before, extract(epoch FROM since)::float8 AS since,
       stopping_for, waiting_for, placement, extract(epoch FROM started_at)::float8 AS started_at,
       extract(epoch FROM ended_at)::float8 AS ended_at, exit_code, progress,
       extract(epoch FROM placed_at)::float8 AS placed_at, extract(epoch FROM attained)::float8 AS attained_seconds,
       attained_gpu_seconds, nodes, size, gpu_model, worked, extract(epoch FROM sized_at)::float8 AS sized_at, next_placement,
       revisions, loans, failures, extract(epoch FROM hung_since)::float8 AS hung_since, submitter;

-- columns: event
id, xid::text::bigint AS xid, topic, event, subject_id, version, tenant, extract(epoch FROM at)::float8 AS at, data;

-- part: outgoing
events.id, events.tenant, octet_length(events.data::text);

-- part: paged
(SELECT told.* FROM page CROSS JOIN LATERAL (SELECT * FROM events WHERE id = page.id OFFSET 0) told
         WHERE number > 0) told;

-- gateway

-- name: submit
-- Stores each submission, its event and the ask to admit it: all three, or none if its key was used before or its tenant
-- has too much open. The tenant's earlier submissions in this statement count as open, those of a concurrent one
-- are not seen. Keys are taken in one order, so that no two statements deadlock. A gateway whose clock is ahead stores none
-- in the future: what comes after it would count as later still, and what a job held until then as nothing.
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[],
                         $8::float8[], $9::bigint[], $10::bigint[], $11::text[], $12::text[]) WITH ORDINALITY
               AS given (id, tenant, key, pool, name, spec, spec_hash, at, jobs_max, bytes_max, event, submitter, ordinal)
), used AS MATERIALIZED (
    SELECT tenant, sum(jobs)::bigint AS jobs, sum(bytes)::bigint AS bytes
      FROM tenant_use WHERE tenant = ANY ($2::text[]) GROUP BY tenant
), counted AS (
    SELECT given.*, COALESCE(jobs, 0) + count(*) OVER so_far AS jobs,
           COALESCE(bytes, 0) + sum(octet_length(spec)) OVER so_far AS bytes
      FROM given LEFT JOIN used USING (tenant)
    WINDOW so_far AS (PARTITION BY tenant ORDER BY ordinal)
), stored AS (
    INSERT INTO submissions (id, tenant, key, pool, name, spec, spec_bytes, spec_hash, submitted_at, submitter)
    SELECT id, tenant, key, pool, name, spec::json, octet_length(spec), spec_hash, least(to_timestamp(at), clock_timestamp()),
           submitter
      FROM counted
     WHERE jobs_max IS NULL OR (jobs <= jobs_max AND bytes <= bytes_max)
     ORDER BY tenant, key, ordinal
    ON CONFLICT (tenant, key) DO NOTHING
    RETURNING *
), asked AS (
    INSERT INTO asks (kind, pool, subject_id, tenant, at)
    SELECT 'submit', pool, id, tenant, submitted_at FROM stored ORDER BY seq
), told AS (
    INSERT INTO events (topic, event, subject_id, version, tenant, at, data)
    SELECT 'jobs', 'submitted', stored.id, 1, stored.tenant, submitted_at, given.event::jsonb
      FROM stored JOIN given USING (id) ORDER BY seq
 RETURNING {outgoing}
), put AS (
    INSERT INTO outbox (event_id, tenant, bytes) SELECT * FROM told
)
SELECT stored.id IS NOT NULL AS stored, COALESCE(jobs, 0) AS jobs, COALESCE(bytes, 0) AS bytes
  FROM given LEFT JOIN stored USING (id) LEFT JOIN used ON used.tenant = given.tenant
 ORDER BY ordinal;

-- name: submit_array
-- Stores all elements of an array, as `submit` stores one job, or none of them. The first has the key of the array. Sent as
-- one row each they take long to read, so what is the same of all is sent once.
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY
               AS given (id, name, spec, event, ordinal)
), size AS (
    SELECT count(*) AS jobs, sum(octet_length(spec)) AS bytes FROM given
), used AS MATERIALIZED (
    SELECT COALESCE(sum(jobs), 0)::bigint AS jobs, COALESCE(sum(bytes), 0)::bigint AS bytes
      FROM tenant_use WHERE tenant = $5
), head AS (
    INSERT INTO submissions (id, tenant, key, pool, name, spec, spec_bytes, spec_hash, submitted_at, array_id, submitter)
    SELECT id, $5, $6, $7, name, spec::json, octet_length(spec), $8::bytea, least(to_timestamp($9::float8), clock_timestamp()),
           $10, $13
      FROM given, used, size
     WHERE ordinal = 1 AND ($11::bigint IS NULL OR (used.jobs + size.jobs <= $11 AND used.bytes + size.bytes <= $12::bigint))
    ON CONFLICT (tenant, key) DO NOTHING
    RETURNING id, seq, submitted_at
), others AS (
    INSERT INTO submissions (id, tenant, pool, name, spec, spec_bytes, spec_hash, submitted_at, array_id, submitter)
    SELECT given.id, $5, $7, name, spec::json, octet_length(spec), $8::bytea, head.submitted_at, $10, $13 FROM given, head
     WHERE ordinal > 1 ORDER BY ordinal
    RETURNING id, seq, submitted_at
), stored AS (
    SELECT * FROM head UNION ALL SELECT * FROM others
), asked AS (
    INSERT INTO asks (kind, pool, subject_id, tenant, at)
    SELECT 'submit', $7, id, $5, submitted_at FROM stored ORDER BY seq
), told AS (
    INSERT INTO events (topic, event, subject_id, version, tenant, at, data)
    SELECT 'jobs', 'submitted', stored.id, 1, $5, submitted_at, given.event::jsonb
      FROM stored JOIN given USING (id) ORDER BY seq
 RETURNING {outgoing}
), put AS (
    INSERT INTO outbox (event_id, tenant, bytes) SELECT * FROM told
)
SELECT EXISTS (SELECT FROM head) AS stored, used.jobs, used.bytes FROM used;

-- name: submitted_before
-- Where a standby must confirm each commit, this statement commits something too: the submission may be stored here and
-- not there, when the first try of its caller was cancelled while it waited for the standby. It waits for both.
SELECT COALESCE(array_id, id) AS id, spec_hash,
       CASE WHEN current_setting('synchronous_standby_names') <> ''
            THEN pg_logical_emit_message(true, 'weft', 'acknowledged') END AS confirmed
  FROM submissions WHERE tenant = $1 AND key = $2;

-- name: ask
-- Stores an ask of $11 bytes, unless its tenant would have more than $12 then, or asks of $13 bytes and more wait already. An
-- ask of no bytes is always stored.
WITH used AS MATERIALIZED (
    SELECT COALESCE(sum(bytes), 0)::bigint AS bytes FROM tenant_use WHERE tenant = $4 AND $11::bigint > 0 AND $12::bigint IS NOT NULL
), waits AS MATERIALIZED (
    SELECT COALESCE(sum(bytes), 0)::bigint AS waiting FROM asks
     WHERE tenant = $4 AND bytes > 0 AND $12 IS NOT NULL AND $13::bigint IS NOT NULL
), asked AS (
    INSERT INTO asks (kind, pool, subject_id, tenant, priority, at, scale, share, update, entry, bytes, gpu, who, drain, marking)
    SELECT $1, $2, $3, $4, $5, to_timestamp($6::float8), $7::text::jsonb, $8::text::jsonb, $9::text::jsonb,
           $10::text::jsonb, $11::bigint, $14::integer, $15::text, $16::text::jsonb, $17::text::jsonb
      FROM used, waits
     WHERE $11 = 0 OR $12 IS NULL OR (used.bytes + $11 <= $12 AND ($13 IS NULL OR waiting < $13))
    RETURNING 1
)
SELECT EXISTS (SELECT FROM asked) AS asked, bytes, waiting FROM used, waits;

-- name: ask_requeue
-- Requeues an ended job: it counts as open for its tenant again, and so do the jobs asked for before it.
WITH used AS (
    SELECT COALESCE(sum(jobs), 0)::bigint AS jobs, COALESCE(sum(bytes), 0)::bigint AS bytes
      FROM (SELECT jobs, bytes FROM tenant_use WHERE tenant = $3
             UNION ALL
            SELECT 1, all_jobs.bytes FROM asks JOIN all_jobs ON all_jobs.id = subject_id
             WHERE kind = 'requeue' AND all_jobs.tenant = $3 AND asks.tenant = $3) open_and_asked
), asked AS (
    INSERT INTO asks (kind, pool, subject_id, tenant, at, who)
    SELECT 'requeue', $1, $2, $3, to_timestamp($4::float8), $7 FROM used, all_jobs
     WHERE all_jobs.id = $2 AND used.jobs < $5::bigint AND used.bytes + all_jobs.bytes <= $6::bigint
    RETURNING 1
)
SELECT EXISTS (SELECT FROM asked) AS asked, jobs, bytes,
       (SELECT bytes FROM all_jobs WHERE id = $2) AS spec_bytes FROM used;

-- name: access
SELECT tenant, admin, label, '' AS session, '' AS job, '' AS role, '' AS person,
       jobs_open_max, spec_bytes_max, priority_max, may_be_unpreemptible, idle_seconds_max
  FROM tokens JOIN tenants ON tenants.id = tokens.tenant
 WHERE hash = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > to_timestamp($2::float8))
 UNION ALL
SELECT root.tenant, root.admin, root.label, sign_ins.id, sign_ins.job,
       '', '',
       jobs_open_max, spec_bytes_max, priority_max, may_be_unpreemptible, idle_seconds_max
  FROM sign_ins JOIN tokens root ON root.hash = sign_ins.parent JOIN tenants ON tenants.id = root.tenant
 WHERE sign_ins.hash = $1 AND sign_ins.kind = 'session' AND sign_ins.ended_at IS NULL
   AND sign_ins.expires_at > to_timestamp($2::float8) AND root.revoked_at IS NULL
   AND (root.expires_at IS NULL OR root.expires_at > to_timestamp($2::float8))
 UNION ALL
SELECT people.tenant, people.role = 'admin', people.name, sign_ins.id, sign_ins.job, people.role, people.id,
       jobs_open_max, spec_bytes_max, priority_max, may_be_unpreemptible, idle_seconds_max
  FROM sign_ins JOIN people ON people.id = sign_ins.person JOIN tenants ON tenants.id = people.tenant
 WHERE sign_ins.hash = $1 AND sign_ins.kind = 'session' AND sign_ins.ended_at IS NULL
   AND sign_ins.expires_at > to_timestamp($2::float8) AND people.disabled_at IS NULL;

-- name: add_token
WITH born AS (
    INSERT INTO tenants (id, created_at) VALUES ($2, to_timestamp($5::float8)) ON CONFLICT DO NOTHING
)
INSERT INTO tokens (hash, tenant, admin, label, created_at, expires_at)
SELECT $1, $2, $3, $4, to_timestamp($5::float8), to_timestamp($6::float8)
 WHERE NOT $7 OR NOT EXISTS (
    SELECT FROM tokens WHERE tenant = $2 AND label = $4 AND revoked_at IS NULL
       AND (expires_at IS NULL OR expires_at > to_timestamp($5::float8)))
ON CONFLICT DO NOTHING
RETURNING 1;

-- name: token_used
WITH session AS (
    UPDATE sign_ins SET used_at = to_timestamp($2::float8)
     WHERE hash = $1 AND (used_at IS NULL OR used_at < to_timestamp($3::float8))
)
UPDATE tokens SET used_at = to_timestamp($2::float8)
 WHERE hash = $1 AND (used_at IS NULL OR used_at < to_timestamp($3::float8));

-- name: tokens
SELECT tenant, label, admin, extract(epoch FROM created_at)::float8 AS created_at,
       extract(epoch FROM expires_at)::float8 AS expires_at, extract(epoch FROM used_at)::float8 AS used_at,
       extract(epoch FROM revoked_at)::float8 AS revoked_at
  FROM tokens WHERE $1::text IS NULL OR tenant = $1
 ORDER BY tokens.created_at DESC, label LIMIT $2;

-- name: revoke_tokens
UPDATE tokens SET revoked_at = to_timestamp($3::float8)
 WHERE tenant = $1 AND label = $2 AND revoked_at IS NULL
RETURNING 1;

-- name: add_sign_in
WITH made_with AS (
    SELECT parent AS root, person, expires_at FROM sign_ins
     WHERE hash = $3 AND kind = 'session' AND job = '' AND ended_at IS NULL AND expires_at > to_timestamp($5::float8)
     UNION ALL
    SELECT hash, NULL, expires_at FROM tokens WHERE hash = $3
), held AS (
    SELECT root.hash, NULL::text AS person, root.tenant, root.admin, least(made_with.expires_at, root.expires_at) AS until
      FROM made_with JOIN tokens root ON root.hash = made_with.root
     WHERE root.revoked_at IS NULL AND (root.expires_at IS NULL OR root.expires_at > to_timestamp($5::float8))
     UNION ALL
    SELECT NULL, people.id, people.tenant, people.role = 'admin', made_with.expires_at
      FROM made_with JOIN people ON people.id = made_with.person WHERE people.disabled_at IS NULL
), made AS (
    INSERT INTO sign_ins (hash, kind, tenant, parent, person, job, created_at, expires_at, session_ends_at)
    SELECT $1::bytea, $2::text, tenant, hash, person, $4::text, to_timestamp($5::float8),
           least(to_timestamp($6::float8), until), CASE WHEN $2::text = 'code' THEN least(to_timestamp($7::float8), until) END
      FROM held
     WHERE (SELECT count(*) FROM (SELECT FROM sign_ins WHERE sign_ins.tenant = held.tenant AND ended_at IS NULL
                                     AND expires_at > to_timestamp($5::float8) LIMIT $8) AS open) < $8
    RETURNING id, tenant, expires_at
)
SELECT made.id, made.tenant, held.admin, extract(epoch FROM made.expires_at)::float8 AS expires_at,
       add_audit($12, 'done', CASE WHEN $2::text = 'code' THEN 'code' ELSE 'sign-in' END, made.tenant, $9::text,
                   CASE WHEN $2::text = 'code' THEN $10::text ELSE made.id END, $11::text,
                   CASE WHEN $4::text = '' THEN '' ELSE 'for ' || $4::text END, to_timestamp($5::float8),
                   COALESCE(held.person, '')) AS seq
  FROM made, held;

-- name: redeem_code
SELECT id, tenant, admin, expires_at FROM redeem_code($1, $2, $3, to_timestamp($4::float8), $5, $6, $7);

-- name: sign_person_in
WITH born AS (
    INSERT INTO tenants (id, created_at) VALUES ($5, to_timestamp($7::float8)) ON CONFLICT DO NOTHING
), known AS (
    INSERT INTO people AS before (id, issuer, subject, name, tenant, role, signed_in_at)
    VALUES ($1, $2, $3, $4, $5, $6, to_timestamp($7::float8))
    ON CONFLICT (id) DO UPDATE SET name = excluded.name, tenant = excluded.tenant, role = excluded.role,
                                   signed_in_at = excluded.signed_in_at
    RETURNING before.id, before.tenant, before.role, before.disabled_at
), made AS (
    INSERT INTO sign_ins (hash, kind, tenant, person, challenge, created_at, expires_at, session_ends_at)
    SELECT $8::bytea, 'code', tenant, id, $9::text, to_timestamp($7::float8), to_timestamp($10::float8), to_timestamp($11::float8)
      FROM known WHERE disabled_at IS NULL
       AND (SELECT count(*) FROM sign_ins open WHERE open.person = $1 AND open.ended_at IS NULL
                                                 AND open.expires_at > to_timestamp($7::float8)) < $12
    RETURNING id, tenant, expires_at
)
SELECT made.id, made.tenant, known.role = 'admin' AS admin, extract(epoch FROM made.expires_at)::float8 AS expires_at,
       add_audit($14, 'done', 'provider', made.tenant, $4, '', $13, known.role, to_timestamp($7::float8), known.id) AS seq
  FROM made, known;

-- name: end_sessions_of
WITH ended AS (
    UPDATE sign_ins SET ended_at = to_timestamp($2::float8) WHERE person = $1 AND ended_at IS NULL RETURNING 1
)
SELECT count(*) AS count FROM ended;

-- name: people
SELECT id, name, tenant, role, extract(epoch FROM signed_in_at)::float8 AS signed_in_at,
       extract(epoch FROM disabled_at)::float8 AS disabled_at
  FROM people WHERE $1::text IS NULL OR tenant = $1 ORDER BY name, id LIMIT $2;

-- name: disable_person
UPDATE people SET disabled_at = to_timestamp($2::float8) WHERE id = $1 RETURNING tenant;

-- name: write_audit
SELECT add_audit($1, $2, $3, $4, $5, $6, $7, $8, to_timestamp($9::float8), $10);

-- name: forget_audit
SELECT forget_audit($1::float8, $2::bigint, $3::integer) AS count;

-- name: audit_before
SELECT seq, extract(epoch FROM at)::float8 AS at, request, outcome, act, tenant, who, session, source, detail, person FROM audit
 WHERE ($1::text IS NULL OR tenant = $1) AND ($2::bigint IS NULL OR seq < $2) ORDER BY seq DESC LIMIT $3;

-- name: audit_after
SELECT seq, extract(epoch FROM at)::float8 AS at, request, outcome, act, tenant, who, session, source, detail, person FROM audit
 WHERE ($1::text IS NULL OR tenant = $1) AND seq > $2::bigint ORDER BY seq LIMIT $3;

-- name: sessions
SELECT sign_ins.id, sign_ins.tenant, COALESCE(root.label, people.name) AS label,
       COALESCE(root.admin, people.role = 'admin') AS admin, sign_ins.job, COALESCE(sign_ins.person, '') AS person,
       extract(epoch FROM sign_ins.created_at)::float8 AS created_at,
       extract(epoch FROM sign_ins.expires_at)::float8 AS expires_at,
       extract(epoch FROM sign_ins.used_at)::float8 AS used_at
  FROM sign_ins LEFT JOIN tokens root ON root.hash = sign_ins.parent LEFT JOIN people ON people.id = sign_ins.person
 WHERE ($1::text IS NULL OR sign_ins.tenant = $1) AND ($4 = '' OR sign_ins.person = $4) AND sign_ins.kind = 'session'
   AND sign_ins.ended_at IS NULL AND sign_ins.expires_at > to_timestamp($2::float8) AND root.revoked_at IS NULL
   AND (root.expires_at IS NULL OR root.expires_at > to_timestamp($2::float8)) AND people.disabled_at IS NULL
 ORDER BY sign_ins.created_at DESC, sign_ins.id LIMIT $3;

-- name: end_session
UPDATE sign_ins SET ended_at = to_timestamp($3::float8)
 WHERE id = $1 AND kind = 'session' AND ended_at IS NULL AND ($2::text IS NULL OR tenant = $2)
   AND ($9 = '' OR person = $9)
RETURNING tenant, add_audit($8, 'done', 'sign-out', $4, $5, $6, $7, id || ' of ' || tenant, to_timestamp($3::float8), $10)
          AS seq;

-- name: tenants
SELECT id, extract(epoch FROM created_at)::float8 AS created_at, jobs_open_max, spec_bytes_max, priority_max,
       may_be_unpreemptible, idle_seconds_max, COALESCE(used.jobs, 0)::bigint AS jobs, COALESCE(used.bytes, 0)::bigint AS bytes
  FROM tenants LEFT JOIN (SELECT tenant, sum(jobs) AS jobs, sum(bytes) AS bytes FROM tenant_use GROUP BY tenant) used
       ON used.tenant = tenants.id
 WHERE $1::text IS NULL OR id = $1
 ORDER BY id LIMIT $2;

-- name: change_tenant
-- Each limit comes with whether it is to be changed.
UPDATE tenants SET jobs_open_max = CASE WHEN $2::boolean THEN $3::bigint ELSE jobs_open_max END,
                   spec_bytes_max = CASE WHEN $4::boolean THEN $5::bigint ELSE spec_bytes_max END,
                   priority_max = CASE WHEN $6::boolean THEN $7::integer ELSE priority_max END,
                   may_be_unpreemptible = CASE WHEN $8::boolean THEN $9::boolean ELSE may_be_unpreemptible END,
                   idle_seconds_max = CASE WHEN $10::boolean THEN $11::bigint ELSE idle_seconds_max END
 WHERE id = $1;

-- name: quotas
SELECT quota::text FROM quotas WHERE $1::text IS NULL OR pool = $1 ORDER BY pool, name;

-- name: decayed_use
-- Of each job what it held, as one stretch that ended when it last gave back its GPUs. Older than 30 half-lives is nothing.
SELECT tenant, sum(attained_gpu_seconds / held * $3::float8 / ln(2.0::float8)
                   * (1 - power(2::float8, -held / $3::float8)) * power(2::float8, -greatest(0, $2::float8 - ended) / $3))
           ::float8 AS used
  FROM (SELECT tenant, attained_gpu_seconds, extract(epoch FROM attained)::float8 AS held,
               extract(epoch FROM CASE WHEN placed_at IS NOT NULL AND ended_at IS NULL AND state <> 'queued'
                                       THEN placed_at ELSE COALESCE(ended_at, since) END)::float8 AS ended
          FROM jobs WHERE pool = $1 AND attained_gpu_seconds > 0 AND attained > interval '0') had
 WHERE ended > $2::float8 - least(30 * $3::float8, 1e9)
 GROUP BY tenant ORDER BY tenant;

-- name: set_quota
INSERT INTO quotas (pool, name, quota) VALUES ($1, $2, $3::text::jsonb)
ON CONFLICT (pool, name) DO UPDATE SET quota = excluded.quota;

-- name: delete_quota
DELETE FROM quotas WHERE pool = $1 AND name = $2 RETURNING 1;

-- name: job
SELECT {job} FROM all_jobs WHERE id = $1;

-- name: jobs
WITH page AS (
    SELECT id, seq, bytes, $6::bigint AS most FROM all_jobs
     WHERE ($1::text IS NULL OR tenant = $1) AND (cardinality($2::text[]) = 0 OR state = ANY ($2))
       AND ($3 = '' OR name = $3) AND seq < $4
     ORDER BY seq DESC LIMIT $5
), {bounded};

-- name: jobs_open
-- For states that are not final. The page is found first, among the open jobs alone, however long the history is: OFFSET 0
-- keeps Postgres from reading all submissions instead of one for each open job.
WITH page AS (
    SELECT id, seq, bytes, $6::bigint AS most FROM all_jobs
     WHERE id IN (SELECT id FROM (
               SELECT jobs.id, seq
                 FROM jobs, LATERAL (SELECT name, seq FROM submissions WHERE submissions.id = jobs.id OFFSET 0) AS own
                WHERE state NOT IN ('succeeded', 'failed', 'cancelled') AND state = ANY ($2::text[])
                  AND ($1::text IS NULL OR jobs.tenant = $1) AND ($3 = '' OR name = $3) AND seq < $4
               UNION ALL
               SELECT submissions.id, seq FROM asks JOIN submissions ON submissions.id = asks.subject_id
                WHERE asks.kind = 'submit' AND 'queued' = ANY ($2::text[])
                  AND ($1::text IS NULL OR submissions.tenant = $1) AND ($3 = '' OR name = $3) AND seq < $4
                ORDER BY seq DESC LIMIT $5) AS open)
     ORDER BY seq DESC
), {bounded};

-- columns: selected
($1::text IS NULL OR tenant = $1) AND state = ANY ($2::text[]) AND seq < $3 AND ($5 = '' OR name LIKE $5)
   AND ($6 = '' OR starts_with(id, $6))
   AND NOT EXISTS (SELECT FROM unnest($7::text[], $8::text[]) AS wanted(label, value)
                    WHERE spec -> 'labels' ->> wanted.label IS NULL
                       OR spec -> 'labels' ->> wanted.label <> wanted.value)
   AND (cardinality($9::text[]) = 0 OR COALESCE(spec ->> 'kind', 'training') = ANY ($9))
   AND ($10 = '' OR placement -> 'allocations' @> jsonb_build_array(jsonb_build_object('node_id', $10::text)))
   AND ($11::float8 IS NULL OR submitted_at >= to_timestamp($11))
   AND ($12::boolean OR (spec -> 'labels' ->> 'weft/benchmark') IS DISTINCT FROM '1')
   AND ($13::boolean OR spec ->> 'element' IS NULL)
 ORDER BY seq DESC LIMIT $4;

-- name: jobs_selected
-- Jobs that meet the conditions of a Selection. Every job of the tenant, or of all, is looked at until enough are found.
WITH page AS (
    SELECT id, seq, bytes, $14::bigint AS most FROM all_jobs WHERE {selected}
), {bounded};

-- name: jobs_selected_open
WITH page AS (
    SELECT id, seq, bytes, $14::bigint AS most FROM all_jobs
     WHERE id IN (SELECT id FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'cancelled')
                  UNION ALL SELECT subject_id FROM asks WHERE kind = 'submit')
       AND {selected}
), {bounded};

-- name: ask_selected
-- Asks $14 of the open jobs that meet the conditions of a Selection, the newest $4 of those that it is not asked of yet.
WITH wanted AS (
    SELECT id, pool, seq FROM all_jobs
     WHERE id IN (SELECT id FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'cancelled')
                  UNION ALL SELECT subject_id FROM asks WHERE kind = 'submit')
       AND id NOT IN (SELECT subject_id FROM asks WHERE kind = $14)  -- hashed, as there may be very many
       AND {selected}
), asked AS (
    INSERT INTO asks (kind, pool, subject_id, tenant, at, who)
    SELECT $14, pool, id, $15, to_timestamp($16::float8), $17 FROM wanted ORDER BY seq
    RETURNING pool
)
SELECT pool, count(*) AS jobs FROM asked GROUP BY pool;

-- name: ids_beginning
-- The ids of jobs that begin so, the newest first.
SELECT id FROM submissions WHERE ($1::text IS NULL OR tenant = $1) AND starts_with(id, $2) ORDER BY seq DESC LIMIT $3;

-- name: array_jobs
SELECT {job} FROM all_jobs
 WHERE id IN (SELECT id FROM submissions WHERE array_id = $1 AND seq > $3 ORDER BY seq LIMIT $4)
   AND (cardinality($2::text[]) = 0 OR state = ANY ($2))
 ORDER BY seq;

-- name: jobs_apart
-- As `jobs`, without the elements of arrays.
WITH page AS (
    SELECT id, seq, bytes, $6::bigint AS most FROM all_jobs
     WHERE ($1::text IS NULL OR tenant = $1) AND (cardinality($2::text[]) = 0 OR state = ANY ($2))
       AND ($3 = '' OR name = $3) AND seq < $4 AND spec ->> 'element' IS NULL
     ORDER BY seq DESC LIMIT $5
), {bounded};

-- name: jobs_apart_open
-- As `jobs_open`, without the elements of arrays.
WITH page AS (
    SELECT id, seq, bytes, $6::bigint AS most FROM all_jobs
     WHERE id IN (SELECT submissions.id
                    FROM (SELECT id FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'cancelled')
                           UNION ALL SELECT subject_id FROM asks WHERE kind = 'submit') AS going
                    JOIN submissions ON submissions.id = going.id
                   WHERE array_id IS NULL)
       AND ($1::text IS NULL OR tenant = $1) AND state = ANY ($2::text[]) AND ($3 = '' OR name = $3) AND seq < $4
     ORDER BY seq DESC LIMIT $5
), {bounded};

-- name: arrays_newest
-- The newest arrays of a tenant, or of all, and of one name if it is not empty. Each is found behind the one before by
-- the index alone, however many elements they have, and the newest 10,000 are looked through.
WITH RECURSIVE found AS (
    (SELECT submitted_at, array_id FROM submissions WHERE array_id IS NOT NULL
      ORDER BY submitted_at DESC, array_id DESC LIMIT 1)
     UNION ALL
    SELECT earlier.* FROM found CROSS JOIN LATERAL (
        SELECT submitted_at, array_id FROM submissions
         WHERE array_id IS NOT NULL AND (submitted_at, array_id) < (found.submitted_at, found.array_id)
         ORDER BY submitted_at DESC, array_id DESC LIMIT 1) earlier
)
SELECT array_id AS id
  FROM (SELECT * FROM found LIMIT 10000) newest
 CROSS JOIN LATERAL (SELECT tenant, spec FROM submissions WHERE array_id = newest.array_id ORDER BY seq LIMIT 1) first
 WHERE ($1::text IS NULL OR tenant = $1) AND ($3 = '' OR spec -> 'element' ->> 'name' = $3) LIMIT $2;

-- name: arrays_open
-- The arrays with an element that is not over, the newest first.
SELECT array_id AS id
  FROM (SELECT id FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'cancelled')
         UNION ALL SELECT subject_id FROM asks WHERE kind = 'submit') AS going
  JOIN submissions ON submissions.id = going.id
 WHERE array_id IS NOT NULL AND ($1::text IS NULL OR tenant = $1)
 GROUP BY array_id ORDER BY max(submitted_at) DESC, array_id DESC LIMIT $2;

-- name: arrays
-- How many elements each array has in each state, and one of them that shows the rest: what waits shows why. The first ones,
-- of which all but the last have fewer than $2 bytes of specifications together.
WITH found AS (
    SELECT wanted.id, wanted.ordinal, first.seq, first.tenant, first.pool, first.spec, first.submitted_at, first.submitter,
           sum(first.size) OVER (ORDER BY wanted.ordinal) - first.size AS before
      FROM unnest($1::text[]) WITH ORDINALITY AS wanted (id, ordinal)
     CROSS JOIN LATERAL (
        SELECT *, COALESCE(spec_bytes, octet_length(spec::text)) AS size FROM submissions
         WHERE array_id = wanted.id ORDER BY seq LIMIT 1) first
)
SELECT found.id, found.seq, found.tenant, found.pool, found.spec, found.submitter,
       extract(epoch FROM found.submitted_at)::float8 AS submitted_at,
       counted.states, counted.counts, counted.started_at, counted.ended_at, waits.waiting_for
  FROM found
 CROSS JOIN LATERAL (
    SELECT array_agg(state) AS states, array_agg(count) AS counts, min(started_at) AS started_at, max(ended_at) AS ended_at
      FROM (SELECT COALESCE(jobs.state, 'queued') AS state, count(*) AS count,
                   extract(epoch FROM min(jobs.started_at))::float8 AS started_at,
                   extract(epoch FROM max(jobs.ended_at))::float8 AS ended_at
              FROM submissions LEFT JOIN jobs ON jobs.id = submissions.id
             WHERE submissions.array_id = found.id GROUP BY 1) each) counted
  LEFT JOIN LATERAL (
    SELECT waiting_for::text AS waiting_for FROM submissions JOIN jobs ON jobs.id = submissions.id
     WHERE submissions.array_id = found.id AND jobs.state = 'queued' AND jobs.waiting_for IS NOT NULL
     ORDER BY seq LIMIT 1) waits ON true
 WHERE found.before < $2::bigint
 ORDER BY found.ordinal;

-- name: ask_elements
-- Asks the same for the elements of an array that are in one of these states: of all, or of those that are named.
-- A requeue of elements that are over makes them count as open for their tenant again: all of them, or none.
WITH wanted AS (
    SELECT submissions.id, submissions.pool, COALESCE(jobs.state, 'queued') AS state, octet_length(spec::text) AS bytes
      FROM submissions LEFT JOIN jobs ON jobs.id = submissions.id
     WHERE array_id = $2 AND COALESCE(jobs.state, 'queued') = ANY ($3::text[])
       AND (cardinality($4::text[]) = 0 OR submissions.id = ANY ($4))
       AND submissions.id NOT IN (SELECT subject_id FROM asks WHERE kind = $1)  -- hashed, as there may be very many
     ORDER BY seq
), more AS (
    SELECT count(*) AS jobs, COALESCE(sum(bytes), 0)::bigint AS bytes FROM wanted
     WHERE state IN ('succeeded', 'failed', 'cancelled')
), used AS (
    SELECT COALESCE(sum(jobs), 0)::bigint AS jobs, COALESCE(sum(bytes), 0)::bigint AS bytes
      FROM (SELECT jobs, bytes FROM tenant_use WHERE tenant = $5
             UNION ALL
            SELECT 1, octet_length(spec::text) FROM asks JOIN submissions ON submissions.id = subject_id
             WHERE kind = 'requeue' AND submissions.tenant = $5 AND asks.tenant = $5) open_and_asked
), asked AS (
    INSERT INTO asks (kind, pool, subject_id, tenant, at, who)
    SELECT $1, pool, wanted.id, $5, to_timestamp($6::float8), $9 FROM wanted, used, more
     WHERE $7::bigint IS NULL OR more.jobs = 0
           OR (used.jobs + more.jobs <= $7 AND used.bytes + more.bytes <= $8::bigint)
    RETURNING 1
)
SELECT (SELECT count(*) FROM asked) AS asked, (SELECT count(*) FROM wanted) AS wanted, used.jobs, used.bytes,
       more.bytes AS spec_bytes
  FROM used, more;

-- name: story_after
-- A page of a job's events, in order: at most $4 of them, all but the last with fewer than $5 bytes together. The statement
-- goes from event to event: however many follow, and however large they are, it reads none beyond the page.
WITH RECURSIVE page AS (
    SELECT 0::bigint AS id, 0 AS version, 0::bigint AS bytes, 0::bigint AS number
     UNION ALL
    SELECT next.id, next.version, page.bytes + next.bytes, number + 1
      FROM page CROSS JOIN LATERAL (
           SELECT id, version, octet_length(data::text) AS bytes FROM events
            WHERE topic = 'jobs' AND subject_id = $1 AND events.version > page.version
              AND (xid, events.id) > ($2::bigint::text::xid8, $3::bigint)
              AND (cardinality($6::text[]) = 0 OR event = ANY ($6))
            ORDER BY events.version LIMIT 1) next
     WHERE number < $4::bigint AND page.bytes < $5::bigint
)
SELECT {event}
  FROM {paged}
 ORDER BY version;

-- name: story_newest
-- As `story_after`, from the last event before a cursor backwards.
WITH RECURSIVE page AS (
    SELECT 0::bigint AS id, 2147483647 AS version, 0::bigint AS bytes, 0::bigint AS number
     UNION ALL
    SELECT next.id, next.version, page.bytes + next.bytes, number + 1
      FROM page CROSS JOIN LATERAL (
           SELECT id, version, octet_length(data::text) AS bytes FROM events
            WHERE topic = 'jobs' AND subject_id = $1 AND events.version < page.version
              AND (xid, events.id) < ($2::bigint::text::xid8, $3::bigint)
              AND (cardinality($6::text[]) = 0 OR event = ANY ($6))
            ORDER BY events.version DESC LIMIT 1) next
     WHERE number < $4::bigint AND page.bytes < $5::bigint
)
SELECT {event}
  FROM {paged}
 ORDER BY version;

-- name: last_told
SELECT last.* FROM unnest($2::text[]) AS subject(subject)
 CROSS JOIN LATERAL (
    SELECT {event} FROM events
     WHERE topic = $1 AND subject_id = subject.subject AND event = ANY ($3::text[])
     ORDER BY version DESC LIMIT 1) AS last;

-- name: events_after
-- Uncommitted events are at or above the horizon: reading stops there, so that none is skipped. A page has at most $3
-- events, all but the last of them with fewer than $4 bytes together. The statement goes from event to event: it reads
-- none beyond the page.
WITH RECURSIVE horizon AS MATERIALIZED (SELECT events_horizon() AS xid), page AS (
    SELECT $1::bigint::text::xid8 AS xid, $2::bigint AS id, 0::bigint AS bytes, 0::bigint AS number
     UNION ALL
    SELECT next.xid, next.id, page.bytes + next.bytes, number + 1
      FROM page CROSS JOIN LATERAL (
           SELECT xid, id, octet_length(data::text) AS bytes FROM events
            WHERE (events.xid, events.id) > (page.xid, page.id) AND xid < (SELECT xid FROM horizon)
            ORDER BY events.xid, events.id LIMIT 1) next
     WHERE number < $3::bigint AND page.bytes < $4::bigint
)
SELECT {event}
  FROM {paged}
 ORDER BY told.xid, id;

-- name: events_newest
-- As `events_after`, from the last event before ($5, $6) backwards, as far as ($1, $2).
WITH RECURSIVE horizon AS MATERIALIZED (SELECT events_horizon() AS xid), page AS (
    SELECT $5::bigint::text::xid8 AS xid, $6::bigint AS id, 0::bigint AS bytes, 0::bigint AS number
     UNION ALL
    SELECT next.xid, next.id, page.bytes + next.bytes, number + 1
      FROM page CROSS JOIN LATERAL (
           SELECT xid, id, octet_length(data::text) AS bytes FROM events
            WHERE (events.xid, events.id) < (page.xid, page.id)
              AND (events.xid, events.id) > ($1::bigint::text::xid8, $2::bigint)
              AND xid < (SELECT xid FROM horizon)
            ORDER BY events.xid DESC, events.id DESC LIMIT 1) next
     WHERE number < $3::bigint AND page.bytes < $4::bigint
)
SELECT {event}
  FROM {paged}
 ORDER BY told.xid, id;

-- name: events_of_tenant_after
-- As `events_after`, of one tenant. Compared with the tenant first, so that only the index by tenant has the order that is
-- wanted: with `tenant = $5`, a plan for all tenants goes through everything that the largest has.
WITH RECURSIVE horizon AS MATERIALIZED (SELECT events_horizon() AS xid), page AS (
    SELECT $1::bigint::text::xid8 AS xid, $2::bigint AS id, 0::bigint AS bytes, 0::bigint AS number
     UNION ALL
    SELECT next.xid, next.id, page.bytes + next.bytes, number + 1
      FROM page CROSS JOIN LATERAL (
           SELECT xid, id, octet_length(data::text) AS bytes FROM events
            WHERE (tenant, events.xid, events.id) > ($5, page.xid, page.id)
              AND (tenant, events.xid) < ($5, (SELECT xid FROM horizon))
            ORDER BY tenant, events.xid, events.id LIMIT 1) next
     WHERE number < $3::bigint AND page.bytes < $4::bigint
)
SELECT {event}
  FROM {paged}
 ORDER BY told.xid, id;

-- name: events_of_tenant_newest
WITH RECURSIVE horizon AS MATERIALIZED (SELECT events_horizon() AS xid), page AS (
    SELECT $5::bigint::text::xid8 AS xid, $6::bigint AS id, 0::bigint AS bytes, 0::bigint AS number
     UNION ALL
    SELECT next.xid, next.id, page.bytes + next.bytes, number + 1
      FROM page CROSS JOIN LATERAL (
           SELECT xid, id, octet_length(data::text) AS bytes FROM events
            WHERE (tenant, events.xid, events.id) < ($7, page.xid, page.id)
              AND (tenant, events.xid, events.id) > ($7, $1::bigint::text::xid8, $2::bigint)
              AND (tenant, events.xid) < ($7, (SELECT xid FROM horizon))
            ORDER BY tenant DESC, events.xid DESC, events.id DESC LIMIT 1) next
     WHERE number < $3::bigint AND page.bytes < $4::bigint
)
SELECT {event}
  FROM {paged}
 ORDER BY told.xid, id;

-- name: jobs_kept
SELECT pool, seconds, extract(epoch FROM forgotten_before)::float8 AS forgotten_before FROM retention ORDER BY pool;

-- name: database_status
SELECT bytes, connections, connections_max, version, ran, asks, unsent FROM database_status($1::integer);

-- name: forget_tokens
WITH old AS (
    DELETE FROM sign_ins WHERE expires_at < to_timestamp($1::float8) OR (kind = 'code' AND expires_at < now() - interval '1 day')
), gone AS (
    DELETE FROM tokens
     WHERE (revoked_at < to_timestamp($1::float8) OR expires_at < to_timestamp($1::float8)) AND NOT label LIKE $2
 RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: policy
SELECT policy, preemption_after, spares FROM policies WHERE pool = $1;

-- name: nodes
SELECT id, pool, address, capacity, runtime, not_enforced, ready, drain,
       extract(epoch FROM seen_at)::float8 AS seen_at, rack, health, labels, taints, marking
  FROM nodes WHERE $1::text IS NULL OR pool = $1 ORDER BY id;

-- name: holding_jobs
-- A page of them, as `jobs_in`, by the index of the jobs that hold something.
WITH page AS (
    SELECT all_jobs.id, all_jobs.seq, all_jobs.bytes
      FROM jobs JOIN all_jobs ON all_jobs.id = jobs.id
     WHERE jobs.pool = $1 AND jobs.state IN ('placed', 'starting', 'running', 'stopping') AND seq > $2
     ORDER BY seq LIMIT $3
), sized AS (
    SELECT id, sum(bytes) OVER (ORDER BY seq) - bytes AS before FROM page
)
SELECT {job} FROM all_jobs WHERE id IN (SELECT id FROM sized WHERE before < $4) ORDER BY seq;

-- name: ended_last
-- The index of ended jobs, read backwards, answers it.
SELECT id FROM jobs
 WHERE pool = $1 AND ended_at IS NOT NULL AND ended_at >= to_timestamp($2::float8) ORDER BY ended_at DESC LIMIT $3;

-- name: queued_versions
-- As one text, in no order: of ten thousand jobs that is read in a tenth of the time that as many rows take.
SELECT string_agg(id || ' ' || version, ' ') AS versions FROM jobs
 WHERE pool = $1 AND state NOT IN ('succeeded', 'failed', 'cancelled') AND state = 'queued';

-- name: first_queued_versions
SELECT string_agg(id || ' ' || version, ' ') AS versions FROM (
    SELECT jobs.id, version
      FROM jobs, LATERAL (SELECT seq FROM submissions WHERE submissions.id = jobs.id OFFSET 0) AS own
     WHERE pool = $1 AND state NOT IN ('succeeded', 'failed', 'cancelled') AND state = 'queued'
     ORDER BY seq LIMIT $2) AS first;

-- name: service_versions
SELECT jobs.id, version FROM jobs JOIN submissions ON submissions.id = jobs.id
 WHERE jobs.pool = $1 AND state IN ('placed', 'starting', 'running', 'stopping')
   AND submissions.spec ->> 'kind' = 'inference' AND submissions.spec ->> 'service' IS NOT NULL ORDER BY seq;

-- name: jobs_in
-- A page of jobs behind a `seq`, bounded in jobs and in bytes of specifications and revisions, at least one job.
WITH page AS (
    SELECT all_jobs.id, all_jobs.seq, all_jobs.bytes
      FROM jobs JOIN all_jobs ON all_jobs.id = jobs.id
     WHERE jobs.pool = $1 AND jobs.state NOT IN ('succeeded', 'failed', 'cancelled') AND jobs.state = ANY ($2::text[])
       AND seq > $3
     ORDER BY seq LIMIT $4
), sized AS (
    SELECT id, sum(bytes) OVER (ORDER BY seq) - bytes AS before FROM page
)
SELECT {job} FROM all_jobs WHERE id IN (SELECT id FROM sized WHERE before < $5) ORDER BY seq;

-- name: time_of
SELECT extract(epoch FROM at)::float8 AS at FROM events
 WHERE (xid, id) <= ($1::bigint::text::xid8, $2::bigint) ORDER BY events.xid DESC, id DESC LIMIT 1;

-- name: told_until
-- $4 is about the time of the moment. A job that was not over then is open, or ended since: at the time of its last event,
-- from which $4 differs by $5 seconds at most. It was submitted before then, but for the hour by which clocks may differ.
-- OFFSET 0 has each job's events read by the index, however many jobs are expected.
WITH ended_since AS (
    SELECT jobs.id
      FROM jobs JOIN submissions ON submissions.id = jobs.id
           CROSS JOIN LATERAL (SELECT * FROM events WHERE topic = 'jobs' AND subject_id = jobs.id
                                                      AND events.version = jobs.version OFFSET 0) last
     WHERE jobs.ended_at > to_timestamp($4::float8) - $5::float8 * interval '1 second'
       AND submissions.submitted_at < to_timestamp($4::float8) + interval '1 hour'
       AND (last.at > to_timestamp($1::float8) OR (last.xid, last.id) > ($2::bigint::text::xid8, $3::bigint))
), open_then AS (
    SELECT id FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'cancelled')
     UNION ALL SELECT subject_id FROM asks WHERE kind = 'submit'
     UNION ALL SELECT id FROM ended_since
), told AS (
    SELECT story.*
      FROM open_then CROSS JOIN LATERAL (
               SELECT version FROM events
                WHERE topic = 'jobs' AND subject_id = open_then.id
                  AND at <= to_timestamp($1::float8) AND (xid, id) <= ($2::bigint::text::xid8, $3::bigint)
                ORDER BY version DESC LIMIT 1) last
           CROSS JOIN LATERAL (SELECT * FROM events WHERE topic = 'jobs' AND subject_id = open_then.id
                                                      AND version <= last.version OFFSET 0) story
     UNION ALL
    (SELECT DISTINCT ON (subject_id) * FROM events
      WHERE topic = 'nodes' AND at <= to_timestamp($1::float8) AND (xid, id) <= ($2::bigint::text::xid8, $3::bigint)
      ORDER BY subject_id, version DESC)
)
SELECT {event}
  FROM told ORDER BY topic, subject_id, version;

-- name: jobs_between
-- Every job that may have waited or held GPUs since $1, of which at most $2 are named. By the hour, in which clocks may
-- differ, jobs are found by when they ended.
SELECT COALESCE(array_agg(id), '{}') AS ids
  FROM (SELECT id FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'cancelled')
         UNION ALL SELECT subject_id FROM asks WHERE kind = 'submit'
         UNION ALL SELECT id FROM jobs WHERE ended_at > to_timestamp($1::float8) - interval '1 hour'
         LIMIT $2) found;

-- name: job_facts
-- `wanted`: in thousandths of GPUs, by the size that the job should have now.
SELECT s.id, s.tenant, s.pool, s.name, COALESCE(s.spec ->> 'kind', 'training') AS kind, s.spec -> 'labels' AS labels,
       s.spec -> 'checkpoints' AS checkpoints,
       (SELECT COALESCE(sum(COALESCE((jobs.size ->> role.key)::bigint,
                                     (role.value -> 'replicas' ->> 'want')::bigint, 1)
                            * COALESCE(round((role.value -> 'share' ->> 'request')::numeric * 1000)::bigint,
                                       1000 * (role.value ->> 'gpus')::bigint, 0)), 0)::bigint
          FROM json_each(s.spec -> 'roles') AS role) AS wanted
  FROM submissions s LEFT JOIN jobs ON jobs.id = s.id WHERE s.id = ANY ($1::text[]) ORDER BY s.id;

-- name: accounts
-- The events that tell what the jobs $3 held and waited for from $1 until $2 (microseconds since 1970). `last` is the last
-- event of a job before $1, `base` the last event until then that states by itself what the job held. OFFSET 0 has each
-- job's events read by the index.
WITH begun AS (
    SELECT wanted.id AS job_id, COALESCE(base.version, 0) AS base, COALESCE(epoch.version, 0) AS since
      FROM unnest($3::text[]) AS wanted (id)
           LEFT JOIN LATERAL (
               SELECT version FROM events
                WHERE topic = 'jobs' AND subject_id = wanted.id
                  AND at < timestamptz 'epoch' + $1::bigint * interval '1 microsecond'
                ORDER BY version DESC LIMIT 1) last ON true
           LEFT JOIN LATERAL (
               SELECT version FROM events
                WHERE topic = 'jobs' AND subject_id = wanted.id AND version <= last.version
                  AND event IN ('submitted', 'placed', 'tuned', 'resized', 'restarted', 'requeued', 'succeeded', 'failed',
                                'cancelled')
                ORDER BY version DESC LIMIT 1) base ON true
           LEFT JOIN LATERAL (
               SELECT version FROM events
                WHERE topic = 'jobs' AND subject_id = wanted.id AND version <= base.version
                  AND event IN ('submitted', 'requeued', 'restarted')
                ORDER BY version DESC LIMIT 1) epoch ON true
)
SELECT {event}
  FROM begun
       CROSS JOIN LATERAL (
           SELECT * FROM events
            WHERE topic = 'jobs' AND subject_id = begun.job_id AND version >= begun.since
              AND at < timestamptz 'epoch' + $2::bigint * interval '1 microsecond'
              AND event IN ('submitted', 'waiting', 'placed', 'tuned', 'resized', 'restarted', 'stopping', 'requeued',
                            'succeeded', 'failed', 'cancelled')
              AND (version >= begun.base OR event IN ('submitted', 'requeued', 'placed', 'restarted')) OFFSET 0) told
 ORDER BY subject_id, version;

-- name: node_stories
SELECT {event} FROM events told
 WHERE topic = 'nodes' AND at < timestamptz 'epoch' + $2::bigint * interval '1 microsecond'
   AND version >= COALESCE((SELECT max(version) FROM events earlier
                             WHERE earlier.topic = 'nodes' AND earlier.subject_id = told.subject_id
                               AND earlier.at < timestamptz 'epoch' + $1::bigint * interval '1 microsecond'), 0)
 ORDER BY subject_id, version;

-- name: take_duty
INSERT INTO duties AS known (name, holder, held_until) VALUES ($1, $2, now() + make_interval(secs => $3::float8))
ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, held_until = excluded.held_until
 WHERE known.holder = excluded.holder OR known.held_until < now()
RETURNING 1;

-- name: leave_duty
UPDATE duties SET held_until = '-infinity' WHERE name = $1 AND holder = $2;

-- name: add_webhook
INSERT INTO webhooks (id, tenant, url, events, all_tenants, secret, created_at, cursor)
SELECT $1, $2, $3, $4::text[], $5, $6, to_timestamp($7::float8), $8
 WHERE (SELECT count(*) FROM webhooks WHERE tenant = $2) < $9
RETURNING 1;

-- name: webhooks
SELECT id, tenant, url, events, all_tenants, secret, extract(epoch FROM created_at)::float8 AS created_at, cursor,
       delivered, extract(epoch FROM delivered_at)::float8 AS delivered_at, failures,
       extract(epoch FROM failing_since)::float8 AS failing_since, extract(epoch FROM not_before)::float8 AS not_before,
       error, off
  FROM webhooks WHERE $1::text IS NULL OR tenant = $1 ORDER BY id LIMIT $2;

-- name: remove_webhook
DELETE FROM webhooks WHERE id = $1 RETURNING 1;

-- name: switch_on
UPDATE webhooks SET off = '', failures = 0, failing_since = NULL, not_before = NULL WHERE id = $1;

-- name: webhook_delivered
UPDATE webhooks SET cursor = $2, delivered = delivered + $3::integer,
                    delivered_at = CASE WHEN $3::integer > 0 THEN to_timestamp($4::float8) ELSE delivered_at END,
                    failures = CASE WHEN $3::integer > 0 THEN 0 ELSE failures END,
                    failing_since = CASE WHEN $3::integer > 0 THEN NULL ELSE failing_since END,
                    not_before = CASE WHEN $3::integer > 0 THEN NULL ELSE not_before END,
                    error = CASE WHEN $3::integer > 0 THEN '' ELSE error END
 WHERE id = $1 AND EXISTS (SELECT FROM duties WHERE name = $5 AND holder = $6)
RETURNING 1;

-- name: webhook_failed
UPDATE webhooks SET failures = failures + 1, failing_since = COALESCE(failing_since, to_timestamp($3::float8)),
                    not_before = to_timestamp($4::float8), error = $2, off = $5
 WHERE id = $1 AND EXISTS (SELECT FROM duties WHERE name = $6 AND holder = $7)
RETURNING 1;

-- name: add_schedule
INSERT INTO schedules (id, tenant, name, spec, spec_hash, submitter, created_at, next_at, try_at)
SELECT $1, $2, $3, $4::text::json, $5, $6, to_timestamp($7::float8), to_timestamp($8::float8), to_timestamp($8::float8)
 WHERE (SELECT count(*) FROM schedules WHERE tenant = $2) < $9
ON CONFLICT (tenant, name) DO NOTHING
RETURNING 1;

-- name: schedule_named
SELECT id, spec_hash FROM schedules WHERE tenant = $1 AND name = $2;

-- columns: schedule
schedules.id, schedules.tenant, schedules.name, schedules.spec, schedules.submitter,
       extract(epoch FROM schedules.created_at)::float8 AS created_at, extract(epoch FROM next_at)::float8 AS next_at,
       extract(epoch FROM firing_at)::float8 AS firing_at, extract(epoch FROM paused_at)::float8 AS paused_at,
       extract(epoch FROM last_at)::float8 AS last_at, last_job, note, extract(epoch FROM noted_at)::float8 AS noted_at

-- name: schedules
SELECT {schedule},
       CASE WHEN last.id IS NULL THEN '' ELSE COALESCE(jobs.state, 'queued') END AS last_state
  FROM schedules LEFT JOIN submissions last ON last.id = last_job LEFT JOIN jobs ON jobs.id = last.id
 WHERE ($1::text IS NULL OR schedules.tenant = $1) AND ($2 = '' OR schedules.id = $2 OR schedules.name = $2)
   AND schedules.id > $3
 ORDER BY schedules.id LIMIT $4;

-- name: remove_schedule
DELETE FROM schedules WHERE id = $1 RETURNING 1;

-- name: pause_schedule
UPDATE schedules SET paused_at = COALESCE(paused_at, to_timestamp($2::float8)),
                     try_at = CASE WHEN firing_at IS NOT NULL THEN try_at END
 WHERE id = $1;

-- name: resume_schedule
UPDATE schedules SET paused_at = NULL, next_at = to_timestamp($2::float8),
                     try_at = CASE WHEN firing_at IS NULL THEN to_timestamp($2::float8) ELSE try_at END
 WHERE id = $1 AND paused_at IS NOT NULL;

-- name: schedules_to_try
WITH waiting AS (
    SELECT id, try_at, row_number() OVER (PARTITION BY tenant ORDER BY try_at, id) AS place
      FROM schedules WHERE try_at <= to_timestamp($1::float8)
)
SELECT {schedule}
  FROM schedules JOIN (SELECT id, place, try_at AS since FROM waiting ORDER BY place, try_at, id LIMIT $2) few USING (id)
 ORDER BY place, since, id;

-- name: claim_run
UPDATE schedules SET firing_at = to_timestamp($3::float8), next_at = to_timestamp($4::float8),
                     try_at = CASE WHEN $3::float8 IS NULL THEN to_timestamp($4::float8) ELSE to_timestamp($5::float8) END,
                     note = COALESCE($6, note), noted_at = COALESCE(to_timestamp($7::float8), noted_at)
 WHERE id = $1 AND next_at = to_timestamp($2::float8) AND firing_at IS NULL AND paused_at IS NULL
RETURNING 1;

-- name: open_runs
SELECT ARRAY(SELECT submissions.id FROM submissions LEFT JOIN jobs ON jobs.id = submissions.id
              WHERE submissions.id = ANY (schedules.runs) AND COALESCE(jobs.state, 'queued') = ANY ($3::text[])
              ORDER BY submissions.seq) AS open
  FROM schedules WHERE id = $1 AND firing_at = to_timestamp($2::float8);

-- name: postpone_run
UPDATE schedules SET try_at = to_timestamp($3::float8) WHERE id = $1 AND firing_at = to_timestamp($2::float8);

-- name: finish_run
UPDATE schedules SET last_at = CASE WHEN $3 = '' THEN last_at ELSE firing_at END, last_job = CASE WHEN $3 = '' THEN last_job ELSE $3 END,
                     runs = $4::text[], note = COALESCE($5, note), noted_at = COALESCE(to_timestamp($6::float8), noted_at),
                     firing_at = NULL, try_at = CASE WHEN paused_at IS NULL THEN next_at END
 WHERE id = $1 AND firing_at = to_timestamp($2::float8)
RETURNING 1;

-- name: set_secret
INSERT INTO secrets (tenant, name, value, created_at, updated_at)
SELECT $1, $2, $3, to_timestamp($4::float8), to_timestamp($4::float8)
 WHERE (SELECT count(*) FROM secrets WHERE tenant = $1 AND name <> $2) < $5
ON CONFLICT (tenant, name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at
RETURNING 1;

-- name: secrets
SELECT name, extract(epoch FROM created_at)::float8 AS created_at, extract(epoch FROM updated_at)::float8 AS updated_at
  FROM secrets WHERE tenant = $1 ORDER BY name;

-- name: secret_values
SELECT name, value FROM secrets WHERE tenant = $1 AND name = ANY($2::text[]);

-- name: delete_secret
DELETE FROM secrets WHERE tenant = $1 AND name = $2 RETURNING 1;

-- name: use_context
UPDATE contexts SET used_at = greatest(used_at, to_timestamp($3::float8)) WHERE tenant = $1 AND digest = $2 AND whole
RETURNING digest, bytes, extract(epoch FROM used_at)::float8 AS used_at;

-- name: begin_context
INSERT INTO contexts (id, tenant, digest, bytes, used_at)
SELECT $1, $2, $3, $4::bigint, to_timestamp($5::float8)
 WHERE (SELECT coalesce(sum(bytes), 0) FROM contexts WHERE tenant = $2) + $4::bigint <= $6::bigint
RETURNING 1;

-- name: add_context_piece
WITH begun AS (UPDATE contexts SET used_at = to_timestamp($4::float8) WHERE id = $1 AND NOT whole RETURNING id)
INSERT INTO context_pieces (context, number, data) SELECT id, $2::int, $3::bytea FROM begun RETURNING 1;

-- name: finish_context
UPDATE contexts SET whole = true, used_at = to_timestamp($2::float8) WHERE id = $1;

-- name: drop_context
DELETE FROM contexts WHERE id = $1;

-- name: context_piece
SELECT p.data, c.bytes FROM contexts c JOIN context_pieces p ON p.context = c.id
 WHERE c.tenant = $1 AND c.digest = $2 AND c.whole AND p.number = $3::int;

-- name: forget_contexts
DELETE FROM contexts WHERE id IN (
    SELECT id FROM contexts c
     WHERE ($3::text IS NULL OR tenant = $3)
       AND CASE WHEN whole THEN used_at < to_timestamp($1::float8)
                    AND NOT EXISTS (SELECT 1 FROM submissions s LEFT JOIN jobs j ON j.id = s.id
                                     WHERE s.spec ->> 'context' = c.digest AND s.tenant = c.tenant
                                       AND (j.id IS NULL OR j.state NOT IN ('succeeded', 'failed', 'cancelled')))
                ELSE used_at < to_timestamp($2::float8) END
     ORDER BY used_at LIMIT $4::int)
RETURNING 1;

-- name: history
SELECT epoch, number, format, begins, extract(epoch FROM at)::float8 AS at, extract(epoch FROM until)::float8 AS until,
       cycles, steps, body
  FROM (SELECT *, sum(octet_length(body)) OVER (ORDER BY epoch, number) - octet_length(body) AS before
          FROM (SELECT * FROM decisions WHERE pool = $1 AND (epoch, number) > ($2::bigint, $3::int)
                 ORDER BY epoch, number LIMIT $4) page) page
 WHERE before < $5 ORDER BY epoch, number;

-- scheduler

-- name: lease
SELECT name, holder, epoch, seq, went_back, holds_seconds, members, nats FROM leases WHERE name = $1;

-- name: take_lease
INSERT INTO leases AS held (name, holder, epoch, seq) VALUES ($1, $2, 1, 0)
ON CONFLICT (name) DO UPDATE SET holder = $2, epoch = held.epoch + 1, seq = 0
 WHERE held.holder = '' OR (held.epoch = $3 AND held.seq = $4)
RETURNING name, holder, epoch, seq, went_back, holds_seconds, members, nats;

-- name: renew_lease
UPDATE leases SET seq = seq + 1, holds_seconds = coalesce($4, holds_seconds), members = coalesce($5::text[], members),
       nats = coalesce($6, nats)
 WHERE name = $1 AND holder = $2 AND epoch = $3
RETURNING name, holder, epoch, seq, went_back, holds_seconds, members, nats;

-- name: release_lease
UPDATE leases SET holder = '', holds_seconds = CASE WHEN $4::boolean THEN 0 ELSE holds_seconds END
 WHERE name = $1 AND holder = $2 AND epoch = $3;

-- name: raise_lease
SELECT name, holder, epoch, seq, went_back, holds_seconds, members, nats
  FROM raise_lease($1, $2, $3, $4);

-- name: settle_lease
UPDATE leases SET went_back = false WHERE name = $1 AND holder = $2 AND epoch = $3
RETURNING name, holder, epoch, seq, went_back, holds_seconds, members, nats;

-- name: lead_by
-- The update waits for an admission under way, whose jobs the reads of the load then find.
WITH loading AS (
    UPDATE leases SET loads = loads + 1 WHERE name = $1 AND holder = $2 AND epoch = $3 RETURNING loads
), told AS (
    INSERT INTO policies (pool, policy, preemption_after, spares)
    SELECT $1::text, $4::text, $5::double precision, $6::integer FROM loading
    ON CONFLICT (pool) DO UPDATE
       SET policy = excluded.policy, preemption_after = excluded.preemption_after, spares = excluded.spares
)
SELECT loads FROM loading;

-- name: leaderships
SELECT name, holder, epoch, seq FROM leaderships WHERE name = $1 ORDER BY epoch;

-- name: admit
-- Admits at most $6 jobs, and $7 bytes of specifications. A new job is as `all_jobs` shows its submission.
-- OFFSET 0 has each read by the index, however many are expected.
SELECT job.*
  FROM admit_asks($1, $2, $3, $4, asks_to_admit($5, $6, $7)) AS admitted (id)
 CROSS JOIN LATERAL (SELECT {job} FROM all_jobs WHERE all_jobs.id = admitted.id OFFSET 0) AS job
 ORDER BY seq;

-- name: jobs_of
-- A page of them, as of `jobs_in`.
WITH page AS (
    SELECT id, seq, bytes FROM all_jobs WHERE id = ANY ($1::text[]) AND seq > $2 ORDER BY seq LIMIT $3
), sized AS (
    SELECT id, sum(bytes) OVER (ORDER BY seq) - bytes AS before FROM page
)
SELECT {job} FROM all_jobs WHERE id IN (SELECT id FROM sized WHERE before < $4) ORDER BY seq;

-- name: specifications
WITH sized AS (
    SELECT id, spec, sum(bytes) OVER (ORDER BY id COLLATE "C") - bytes AS before FROM all_jobs WHERE id = ANY ($1::text[])
)
SELECT id, spec FROM sized WHERE before < $2 ORDER BY id COLLATE "C";

-- name: ends_of_jobs
SELECT wanted.id, (submissions.id IS NOT NULL)::int AS total, (j.state IN ('succeeded', 'failed', 'cancelled'))::int AS ended,
       (j.state = 'succeeded')::int AS ok, (j.state IN ('failed', 'cancelled') AND j.started_at IS NOT NULL)::int AS bad,
       (j.started_at IS NOT NULL)::int AS began
  FROM unnest($1::text[]) AS wanted (id) LEFT JOIN submissions ON submissions.id = wanted.id
       LEFT JOIN jobs j ON j.id = wanted.id;

-- name: ends_of_arrays
SELECT wanted.id, counted.*
  FROM unnest($1::text[]) AS wanted (id) CROSS JOIN LATERAL (
    SELECT count(*) AS total, count(*) FILTER (WHERE j.state IN ('succeeded', 'failed', 'cancelled')) AS ended,
           count(*) FILTER (WHERE j.state = 'succeeded') AS ok,
           count(*) FILTER (WHERE j.state IN ('failed', 'cancelled') AND j.started_at IS NOT NULL) AS bad,
           count(j.started_at) AS began
      FROM submissions LEFT JOIN jobs j ON j.id = submissions.id WHERE array_id = wanted.id) counted;

-- name: asks
SELECT id, kind, subject_id, tenant, priority, extract(epoch FROM at)::float8 AS at, tune::text AS tune, scale::text AS scale,
       share::text AS share, update::text AS update, entry::text AS entry, why::text AS why, gpu, who, drain::text AS drain,
       marking::text AS marking
  FROM asks_within($1, $2, $3) WITH ORDINALITY
 ORDER BY ordinality;

-- name: drop_asks
WITH held AS (SELECT must_hold($1, $2, $3))
DELETE FROM asks USING held WHERE id = ANY ($4::bigint[]);

-- name: take
SELECT ordinal FROM store_steps($1, $2, $3, $4::jsonb, $5::jsonb) AS ordinal;

-- name: take_recorded
-- Stores steps and the record of their decision in one statement, so that neither is stored without the other.
WITH held AS (
    SELECT must_hold($1, $2, $3)
), follows AS (
    SELECT must_follow($1, $6::bigint, $7::int, $9::boolean) FROM held
), recorded AS (
    INSERT INTO decisions (pool, epoch, number, format, begins, at, until, cycles, steps, body, bytes_until)
    SELECT $1::text, $6::bigint, $7::int, $8::int, $9::boolean, to_timestamp($10::float8), to_timestamp($11::float8), $12::int,
           $13::int, $14::bytea, history_bytes($1) + octet_length($14::bytea)
      FROM follows
)
SELECT ordinal FROM store_steps($1, $2, $3, $4::jsonb, $5::jsonb) AS ordinal;

-- name: record
WITH held AS (SELECT must_hold($1, $2, $3)), follows AS (SELECT must_follow($1, $4::bigint, $5::int, $7::boolean) FROM held)
INSERT INTO decisions (pool, epoch, number, format, begins, at, until, cycles, steps, body, bytes_until)
SELECT $1::text, $4::bigint, $5::int, $6::int, $7::boolean, to_timestamp($8::float8), to_timestamp($9::float8), $10::int, $11::int,
       $12::bytea, history_bytes($1) + octet_length($12::bytea)
  FROM follows;

-- name: history_cut
-- Cuts at a record that begins: the last that is too old itself, or the first with few enough bytes behind it.
WITH beginnings AS (
    SELECT epoch, number, at, history_bytes($1) - bytes_until + octet_length(body) AS behind
      FROM decisions WHERE pool = $1 AND begins
), cut AS (
    (SELECT epoch, number FROM beginnings WHERE at <= to_timestamp($2::float8) ORDER BY epoch DESC, number DESC LIMIT 1)
     UNION ALL
    (SELECT epoch, number FROM beginnings WHERE behind <= $3::bigint ORDER BY epoch, number LIMIT 1)
     UNION ALL
    (SELECT epoch, number FROM beginnings WHERE NOT EXISTS (SELECT FROM beginnings WHERE behind <= $3::bigint)
      ORDER BY epoch DESC, number DESC LIMIT 1)
)
SELECT epoch, number FROM cut ORDER BY epoch DESC, number DESC LIMIT 1;

-- name: trim_history
-- The oldest records before the cut: at most $6 of them, and about $7 bytes of bodies. A large one takes long to delete.
WITH held AS (
    SELECT must_hold($1, $2, $3)
), oldest AS (
    SELECT epoch, number, octet_length(body) AS bytes FROM decisions
     WHERE pool = $1 AND (epoch, number) < ($4::bigint, $5::int) ORDER BY epoch, number LIMIT $6
), part AS (
    SELECT epoch, number FROM (SELECT *, sum(bytes) OVER (ORDER BY epoch, number) - bytes AS before FROM oldest) sized
     WHERE before < $7::bigint
), gone AS (
    DELETE FROM decisions USING held, part
     WHERE decisions.pool = $1 AND decisions.epoch = part.epoch AND decisions.number = part.number
 RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: save_node
WITH held AS (
    SELECT must_have_loaded_last($1, $2, $3, $18)
), saved AS (
    INSERT INTO nodes AS node
           (id, pool, address, capacity, runtime, not_enforced, ready, drain, version, seen_at, rack, health,
            labels, taints, marking)
    SELECT $4, $5, $6, $7::jsonb, $8, $9::jsonb, $10, $11::jsonb, 1, to_timestamp($12::float8), $17, $19::jsonb,
           $20::jsonb, $21::jsonb, $22::jsonb FROM held
    ON CONFLICT (id) DO UPDATE SET
        pool = excluded.pool, address = excluded.address, capacity = excluded.capacity, runtime = excluded.runtime,
        not_enforced = excluded.not_enforced, ready = excluded.ready, drain = excluded.drain,
        version = node.version + ($13::text <> '')::integer, -- it counts the events of the node, so that readers miss none
        seen_at = excluded.seen_at, rack = excluded.rack, health = excluded.health,
        labels = excluded.labels, taints = excluded.taints, marking = excluded.marking
    RETURNING *
), done AS (
    DELETE FROM asks USING saved WHERE asks.id = $15::bigint
), told AS (
    INSERT INTO events (topic, event, subject_id, version, at, data)
    SELECT 'nodes', $13::text, id, version, to_timestamp($16::float8), jsonb_build_object(
               'node_id', id, 'pool', pool, 'address', address, 'ready', ready, 'drained', drain IS NOT NULL,
               'runtime', runtime, 'capacity', capacity, 'version', version, 'sentence', $14::text)
      FROM saved WHERE $13::text <> ''
 RETURNING {outgoing}
)
INSERT INTO outbox (event_id, tenant, bytes) SELECT * FROM told;

-- name: remove_node
WITH held AS (
    SELECT must_have_loaded_last($1, $2, $3, $7)
), gone AS (
    DELETE FROM nodes USING held WHERE id = $4 RETURNING nodes.*
), told AS (
    INSERT INTO events (topic, event, subject_id, version, at, data)
    SELECT 'nodes', 'removed', id, version + 1, to_timestamp($6::float8), jsonb_build_object(
               'node_id', id, 'pool', pool, 'address', address, 'ready', ready, 'drained', drain IS NOT NULL,
               'runtime', runtime, 'capacity', capacity, 'version', version + 1, 'sentence', $5::text)
      FROM gone
 RETURNING {outgoing}
)
INSERT INTO outbox (event_id, tenant, bytes) SELECT * FROM told;

-- name: forget_jobs
SELECT forget_jobs($1, $2, $3, to_timestamp($4::float8), $5, $6) AS count;

-- name: touch_nodes
WITH held AS (SELECT must_hold($1, $2, $3))
UPDATE nodes SET seen_at = to_timestamp($5::float8) FROM held WHERE id = ANY ($4::text[]);

-- name: scores
SELECT node_id, gpu_index, job_class, score, confidence, source, extract(epoch FROM measured_at)::float8 AS measured_at,
       samples, extract(epoch FROM quarantined_until)::float8 AS quarantined_until
  FROM gpu_scores WHERE node_id IN (SELECT id FROM nodes WHERE pool = $1)
   AND (at >= to_timestamp($2::float8) OR node_id = ANY ($3::text[])) ORDER BY node_id, gpu_index, job_class;

-- relay

-- name: unsent
-- Of all tenants in turn: an event comes before another one if its tenant has fewer bytes to publish up to it. At most $1
-- events, all but the last with fewer than $2 bytes together, and the oldest of all, so that none waits for ever. OFFSET 0
-- reads event by event: few events wait, and a plan that reads all events is never wanted.
WITH RECURSIVE tenants AS (
    (SELECT tenant FROM outbox ORDER BY tenant LIMIT 1)
     UNION ALL
    SELECT (SELECT outbox.tenant FROM outbox WHERE outbox.tenant > tenants.tenant ORDER BY outbox.tenant LIMIT 1)
      FROM tenants WHERE tenants.tenant IS NOT NULL
), queued AS (
    SELECT queue.*, sum(bytes) OVER (PARTITION BY tenants.tenant ORDER BY event_id) AS up_to_it
      FROM tenants CROSS JOIN LATERAL (
           SELECT event_id, entry, bytes FROM outbox WHERE outbox.tenant = tenants.tenant ORDER BY event_id LIMIT $1) queue
), ordered AS (
    SELECT *, row_number() OVER in_turn AS number, sum(bytes) OVER in_turn - bytes AS before, min(event_id) OVER () AS oldest
      FROM queued WINDOW in_turn AS (ORDER BY up_to_it, event_id)
)
SELECT entry, event.*
  FROM ordered CROSS JOIN LATERAL (SELECT {event} FROM events WHERE id = event_id OFFSET 0) AS event
 WHERE (number <= $1 AND before < $2::bigint) OR event_id = oldest ORDER BY event_id;

-- name: unsent_count
SELECT count(*) AS count FROM outbox;

-- name: sent
-- One that lands after a `resend` finds other entries, and leaves them: their events are to be published again.
DELETE FROM outbox USING unnest($1::bigint[], $2::bigint[]) AS published (event_id, entry)
 WHERE outbox.event_id = published.event_id AND outbox.entry = published.entry;

-- name: resend
WITH again AS (
    INSERT INTO outbox (event_id, tenant, bytes)
    SELECT {outgoing}
      FROM (SELECT id AS again FROM events WHERE at >= to_timestamp($1::float8) UNION SELECT event_id FROM outbox) every
           CROSS JOIN LATERAL (SELECT * FROM events WHERE id = again OFFSET 0) events ORDER BY 1
    ON CONFLICT (event_id) DO UPDATE SET entry = DEFAULT, tenant = excluded.tenant, bytes = excluded.bytes
    RETURNING event_id
)
SELECT count(*) AS count FROM again   -- those that waited before, as the statement found the table, are not counted
 WHERE NOT EXISTS (SELECT FROM outbox WHERE outbox.event_id = again.event_id);

-- name: fill_stream
WITH other AS (
    INSERT INTO event_stream AS known (id) SELECT $1::text WHERE NOT EXISTS (SELECT FROM event_stream WHERE id = $1)
    ON CONFLICT (only_row) DO UPDATE SET id = excluded.id WHERE known.id <> excluded.id RETURNING id
), again AS (
    INSERT INTO outbox (event_id, tenant, bytes)
    SELECT {outgoing}
      FROM (SELECT id AS again FROM events WHERE at >= to_timestamp($2::float8) UNION SELECT event_id FROM outbox) every
           CROSS JOIN LATERAL (SELECT * FROM events WHERE id = again OFFSET 0) events
     WHERE EXISTS (SELECT FROM other) ORDER BY 1
    ON CONFLICT (event_id) DO UPDATE SET entry = DEFAULT, tenant = excluded.tenant, bytes = excluded.bytes
    RETURNING event_id
)
SELECT count(*) AS count FROM again   -- as in `resend`
 WHERE NOT EXISTS (SELECT FROM outbox WHERE outbox.event_id = again.event_id);

-- scorer

-- name: save_scores
INSERT INTO gpu_scores AS known (node_id, gpu_index, job_class, score, confidence, source, measured_at, samples,
                                 quarantined_until, at)
SELECT node_id, gpu_index, job_class, score, confidence, source, to_timestamp(measured_at), samples,
       to_timestamp(quarantined_until), to_timestamp($10::float8)
  FROM unnest($1::text[], $2::int[], $3::text[], $4::float8[], $5::float8[], $6::text[], $7::float8[], $8::int[],
              $9::float8[])
       AS new (node_id, gpu_index, job_class, score, confidence, source, measured_at, samples, quarantined_until)
ON CONFLICT (node_id, gpu_index, job_class) DO UPDATE
   SET score = excluded.score, confidence = excluded.confidence, source = excluded.source,
       measured_at = excluded.measured_at, samples = excluded.samples,
       quarantined_until = excluded.quarantined_until, at = excluded.at
 WHERE known.at <= excluded.at;

-- name: ended_jobs
-- An index of each tenant's jobs answers the inner query.
SELECT {job} FROM all_jobs
 WHERE id IN (SELECT ended.id
                FROM unnest($1::text[]) AS wanted (tenant) CROSS JOIN LATERAL (
                     SELECT jobs.id FROM jobs
                      WHERE jobs.tenant = wanted.tenant AND jobs.state = 'succeeded'
                        AND jobs.ended_at >= to_timestamp($2::float8) AND jobs.ended_at < to_timestamp($3::float8)) ended)
   AND spec #>> ARRAY['labels', $4::text] = '1'
 ORDER BY ended_at, seq;

-- name: save_classes
INSERT INTO workload_classes AS known (pool, workload, job_class, compute, memory, samples, at)
SELECT $1, workload, job_class, compute, memory, samples, to_timestamp(at)
  FROM unnest($2::text[], $3::text[], $4::float8[], $5::float8[], $6::int[], $7::float8[])
       AS new (workload, job_class, compute, memory, samples, at)
ON CONFLICT (pool, workload) DO UPDATE
   SET job_class = excluded.job_class, compute = excluded.compute, memory = excluded.memory,
       samples = excluded.samples, at = excluded.at
 WHERE known.at <= excluded.at;

-- name: classes
SELECT workload, job_class, compute, memory, samples, extract(epoch FROM at)::float8 AS at
  FROM workload_classes WHERE pool = $1 AND at >= to_timestamp($2::float8) ORDER BY workload;

-- name: forget_classes
DELETE FROM workload_classes WHERE pool = $1 AND at < to_timestamp($2::float8);

-- name: save_slowdowns
-- What one scorer is less sure of than another was lately replaces nothing: what is known counts half after each day.
INSERT INTO class_slowdowns AS known (job_class, beside, slowdown, confidence, workloads, at)
SELECT job_class, beside, slowdown, confidence, workloads, to_timestamp(at)
  FROM unnest($1::text[], $2::text[], $3::float8[], $4::float8[], $5::int[], $6::float8[])
       AS new (job_class, beside, slowdown, confidence, workloads, at)
ON CONFLICT (job_class, beside) DO UPDATE
   SET slowdown = excluded.slowdown, confidence = excluded.confidence, workloads = excluded.workloads, at = excluded.at
 WHERE known.at <= excluded.at
   AND known.confidence * 0.5 ^ (extract(epoch FROM excluded.at - known.at)::float8 / 86400) <= excluded.confidence;

-- name: slowdowns
SELECT job_class, beside, slowdown, confidence, workloads, extract(epoch FROM at)::float8 AS at
  FROM class_slowdowns ORDER BY job_class, beside;

-- name: forget_slowdowns
WITH gone AS (DELETE FROM class_slowdowns WHERE at < to_timestamp($1::float8) RETURNING 1)
SELECT count(*) AS count FROM gone;

-- name: save_penalties
INSERT INTO workload_penalties AS known (pool, workload, penalty, confidence, points, at)
SELECT $1, workload, penalty, confidence, points::jsonb, to_timestamp(at)
  FROM unnest($2::text[], $3::float8[], $4::float8[], $5::text[], $6::float8[])
       AS new (workload, penalty, confidence, points, at)
ON CONFLICT (pool, workload) DO UPDATE
   SET penalty = excluded.penalty, confidence = excluded.confidence, points = excluded.points, at = excluded.at
 WHERE known.at <= excluded.at;

-- name: penalties
-- Without the points that show them: a scheduler reads every workload.
SELECT workload, penalty, confidence, extract(epoch FROM at)::float8 AS at
  FROM workload_penalties
 WHERE pool = $1 AND at >= to_timestamp($2::float8) AND confidence > 0 ORDER BY at, workload;

-- name: penalties_of
SELECT workload, penalty, confidence, points::text AS points, extract(epoch FROM at)::float8 AS at
  FROM workload_penalties WHERE pool = $1 AND workload = ANY ($2::text[]) ORDER BY workload;

-- name: forget_penalties
WITH gone AS (DELETE FROM workload_penalties WHERE at < to_timestamp($1::float8) RETURNING 1)
SELECT count(*) AS count FROM gone;

-- name: forget_curves
WITH gone AS (DELETE FROM curves WHERE at < to_timestamp($1::float8) RETURNING 1) SELECT count(*) AS count FROM gone;

-- name: forget_scores
WITH gone AS (
    DELETE FROM gpu_scores s
     WHERE at < to_timestamp($1::float8) AND NOT EXISTS (SELECT FROM nodes n WHERE n.id = s.node_id) RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: save_curves
INSERT INTO curves AS known (pool, subject, points, at)
SELECT pool, subject, points::jsonb, to_timestamp(at)
  FROM unnest($1::text[], $2::text[], $3::text[], $4::float8[]) AS new (pool, subject, points, at)
ON CONFLICT (pool, subject) DO UPDATE SET points = excluded.points, at = excluded.at WHERE known.at <= excluded.at;

-- name: curves
SELECT pool, subject, points::text AS points, extract(epoch FROM at)::float8 AS at
  FROM curves WHERE pool = $1 AND subject = ANY ($2::text[]) ORDER BY subject;

-- name: curves_of_models
SELECT pool, subject, points::text AS points, extract(epoch FROM at)::float8 AS at
  FROM (SELECT * FROM curves
         WHERE pool = $1 AND at >= to_timestamp($2::float8) AND subject LIKE 'workload:%'
           AND (SELECT count(DISTINCT point ->> 'model') FROM jsonb_array_elements(points) AS point) > 1
         ORDER BY at DESC, subject DESC LIMIT $3) AS newest
 ORDER BY at, subject;

-- router

-- name: open_services
SELECT id, tenant, pool, name, seq, kind, service::text AS service, objective::text AS objective, wanted, state, epoch,
       version, priority, placement::text AS placement, served
  FROM open_services WHERE $1::text[] IS NULL OR id = ANY ($1) ORDER BY seq;

-- reallocator

-- name: envelopes
SELECT e.job_id, e.pool, e.epoch, e.state::text AS state
  FROM envelopes e JOIN jobs j ON j.id = e.job_id
 WHERE e.pool = $1 AND j.state NOT IN ('succeeded', 'failed', 'cancelled') ORDER BY e.job_id;

-- name: save_envelope
INSERT INTO envelopes (job_id, pool, epoch, state, at)
VALUES ($1, $2, $3, $4::text::jsonb, to_timestamp($5::float8))
ON CONFLICT (job_id) DO UPDATE
   SET pool = excluded.pool, epoch = excluded.epoch, state = excluded.state, at = excluded.at;

-- name: save_restart_costs
-- A restart that another reallocator stored is not counted again. Rows are locked in one order.
INSERT INTO restart_costs AS known (pool, workload, seconds, measured, at)
SELECT $1, workload, seconds, measured, to_timestamp(at)
  FROM unnest($2::text[], $3::float8[], $4::bigint[], $5::float8[]) AS new (workload, seconds, measured, at)
 ORDER BY workload
ON CONFLICT (pool, workload) DO UPDATE
   SET seconds = excluded.seconds, measured = known.measured + excluded.measured, at = excluded.at
 WHERE known.at < excluded.at;

-- name: restart_costs
SELECT workload, seconds, measured, extract(epoch FROM r.at)::float8 AS at
  FROM restart_costs r WHERE pool = $1 ORDER BY r.at DESC, workload LIMIT $2;

-- name: forget_restart_costs
WITH gone AS (
    DELETE FROM restart_costs
     WHERE pool = $1
       AND (at < to_timestamp($2::float8)
            OR workload IN (SELECT workload FROM restart_costs WHERE pool = $1 ORDER BY at DESC, workload OFFSET $3))
    RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: ask_sizes
SELECT job_id FROM ask_sizes($1, $2::text::jsonb, to_timestamp($3::float8)) AS asked (job_id) ORDER BY job_id;

-- name: ask_shares
SELECT job_id FROM ask_shares($1, $2::text::jsonb, to_timestamp($3::float8)) AS asked (job_id) ORDER BY job_id;

-- name: ask_scale
SELECT ask_scale($1, $2, $3, $4::text::jsonb, $5::text::jsonb, to_timestamp($6::float8)) AS asked;

-- name: rungs
SELECT array_id AS array, job_id, rung, value FROM rungs WHERE array_id = ANY($1::text[]) ORDER BY array_id, rung, job_id;

-- name: reach_rung
SELECT reach_rung($1, $2, $3, $4::float8, $5, $6::text::jsonb, to_timestamp($7::float8)) AS reached;

-- name: ask_tune
SELECT ask_tune($1, $2, $3, $4::text::jsonb, $5::text::jsonb, to_timestamp($6::float8)) AS asked;

-- name: drop_envelopes
WITH gone AS (
    DELETE FROM envelopes e USING jobs j
     WHERE j.id = e.job_id AND e.pool = $1 AND j.state IN ('succeeded', 'failed', 'cancelled') RETURNING 1
)
SELECT count(*) AS count FROM gone;

-- name: set_join_token
WITH old AS (
    DELETE FROM join_tokens WHERE expires_at < to_timestamp($4::float8) - interval '7 days' AND node_id <> $1
)
INSERT INTO join_tokens (node_id, hash, sealed, created_at, expires_at)
SELECT $1, $2, $3, to_timestamp($4::float8), to_timestamp($5::float8)
 WHERE (SELECT count(*) FROM join_tokens
         WHERE node_id <> $1 AND expires_at >= to_timestamp($4::float8) - interval '7 days') < $6
ON CONFLICT (node_id) DO UPDATE
   SET hash = excluded.hash, sealed = excluded.sealed, created_at = excluded.created_at,
       expires_at = excluded.expires_at, used_at = NULL
RETURNING 1;

-- name: use_join_token
WITH found AS (
    SELECT node_id, sealed, expires_at, used_at FROM join_tokens WHERE hash = $1 FOR UPDATE
), used AS (
    UPDATE join_tokens SET used_at = to_timestamp($3::float8), sealed = ''
      FROM found
     WHERE join_tokens.node_id = found.node_id AND found.node_id = $2 AND found.used_at IS NULL
       AND found.expires_at > to_timestamp($3::float8)
    RETURNING 1
)
SELECT node_id, CASE WHEN EXISTS (SELECT FROM used) THEN sealed ELSE '' END AS sealed,
       extract(epoch FROM expires_at)::float8 AS expires_at, extract(epoch FROM used_at)::float8 AS used_at
  FROM found;
