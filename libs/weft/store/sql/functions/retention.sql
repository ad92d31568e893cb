-- Deletes jobs of the lease's pool that ended before `before`, with their submissions, events and envelopes, and the
-- events of nodes that are older. At most `at_most` of each; returns how many jobs and node events were deleted.
--
-- Nothing younger than `kept_seconds` by the database's own clock is deleted, whatever the leader's clock. A job stays
-- while an ask for it is open, or while one of its events is not published.
CREATE OR REPLACE FUNCTION forget_jobs(
    lease_name text, lease_holder text, lease_epoch bigint, before timestamptz, kept_seconds float8, at_most integer
) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    until timestamptz := least(before, now() - make_interval(secs => kept_seconds));
    ids   text[];
    told  integer;
BEGIN
    PERFORM must_hold(lease_name, lease_holder, lease_epoch);
    INSERT INTO retention AS known (pool, seconds, forgotten_before) VALUES (lease_name, kept_seconds, until)
    ON CONFLICT (pool) DO UPDATE
       SET seconds = excluded.seconds, forgotten_before = greatest(known.forgotten_before, excluded.forgotten_before);
    ids := ARRAY(
        SELECT j.id FROM jobs j
         WHERE j.pool = lease_name AND j.ended_at < until
           AND NOT EXISTS (SELECT FROM asks a WHERE a.pool = lease_name AND a.kind <> 'submit' AND a.subject_id = j.id)
           AND NOT EXISTS (SELECT FROM events e JOIN outbox o ON o.event_id = e.id
                            WHERE e.topic = 'jobs' AND e.subject_id = j.id)
         ORDER BY j.ended_at LIMIT at_most FOR UPDATE OF j SKIP LOCKED);
    DELETE FROM events WHERE topic = 'jobs' AND subject_id = ANY (ids);
    DELETE FROM envelopes WHERE job_id = ANY (ids);
    DELETE FROM jobs WHERE id = ANY (ids);
    DELETE FROM submissions WHERE id = ANY (ids);
    -- The newest event before `until` of a node that is still there stays: it holds the node's state at that time.
    DELETE FROM events WHERE id IN (
        SELECT e.id FROM events e
         WHERE e.topic = 'nodes' AND e.at < until AND e.data ->> 'pool' = lease_name
           AND (EXISTS (SELECT FROM events newer WHERE newer.topic = 'nodes' AND newer.subject_id = e.subject_id
                                                   AND newer.version > e.version AND newer.at < until)
                OR NOT EXISTS (SELECT FROM nodes WHERE nodes.id = e.subject_id))
           AND NOT EXISTS (SELECT FROM outbox o WHERE o.event_id = e.id)
         LIMIT at_most);
    GET DIAGNOSTICS told = ROW_COUNT;
    RETURN cardinality(ids) + told;
END $$;
REVOKE ALL ON FUNCTION forget_jobs FROM PUBLIC;
GRANT EXECUTE ON FUNCTION forget_jobs TO weft_scheduler;

-- A node that was removed and joins again goes on counting: no two of its events have one version.
CREATE OR REPLACE FUNCTION node_goes_on() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    NEW.version := greatest(NEW.version, (SELECT max(version) + 1 FROM events
                                           WHERE topic = 'nodes' AND subject_id = NEW.id));
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER node_goes_on BEFORE INSERT ON public.nodes
    FOR EACH ROW EXECUTE FUNCTION node_goes_on();
