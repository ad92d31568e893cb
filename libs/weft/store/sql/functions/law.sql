-- Rules for every change of a job, whatever a scheduler believes. The triggers are in 0001_first.sql.

CREATE OR REPLACE FUNCTION job_step_is_legal() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    IF NEW.version <> OLD.version + 1 THEN
        RAISE EXCEPTION 'job %: version % after %', OLD.id, NEW.version, OLD.version USING ERRCODE = 'check_violation';
    END IF;
    IF NEW.epoch <> OLD.epoch + (NEW.last_event IN ('requeued', 'restarted'))::int THEN
        RAISE EXCEPTION 'job %: epoch % after % by %', OLD.id, NEW.epoch, OLD.epoch, NEW.last_event
            USING ERRCODE = 'check_violation';
    END IF;
    PERFORM 1 FROM job_steps
      WHERE from_state = OLD.state AND event = NEW.last_event AND to_state = NEW.state;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job %: % is no step from % to %', OLD.id, NEW.last_event, OLD.state, NEW.state
            USING ERRCODE = 'check_violation';
    END IF;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION job_begins_queued() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'job %: begins as % in version % and epoch %', NEW.id, NEW.state, NEW.version, NEW.epoch
        USING ERRCODE = 'check_violation';
END $$;

-- No GPU has more slots than it has time and memory, whatever any scheduler believes. Of two transactions that add slots on
-- one node the second waits here for the first, and then sees what that one added: hence not where a transaction goes on
-- seeing the past. A node is locked as one of 64, so that a large cluster needs no more locks than a server has. The memory
-- of a GPU that its node does not have any more is not known, and not checked.
CREATE OR REPLACE FUNCTION gpu_slots_fit() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp
    SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    lock_number integer;
    full_gpu record;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'slots of GPUs are added by transactions that read what is committed'
            USING ERRCODE = 'invalid_transaction_state';
    END IF;
    FOR lock_number IN SELECT DISTINCT hashtext(node_id) & 63 FROM added ORDER BY 1 LOOP
        PERFORM pg_advisory_xact_lock(hashtext('gpu_slots'), lock_number);
    END LOOP;
    SELECT node_id, gpu_index, sum(part) AS part, sum(memory) AS memory, string_agg(DISTINCT job_id, ', ') AS jobs
      INTO full_gpu
      FROM (SELECT DISTINCT node_id, gpu_index FROM added) AS touched JOIN gpu_slots USING (node_id, gpu_index)
     GROUP BY node_id, gpu_index
    HAVING sum(part) > 1000
        OR CASE WHEN sum(memory) > 0 THEN sum(memory) > (
               SELECT (gpu ->> 'memory')::bigint FROM nodes, jsonb_array_elements(capacity -> 'gpus') AS gpu
                WHERE nodes.id = node_id AND (gpu ->> 'index')::integer = gpu_index) END
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'GPU % of % would have % thousandths of its time and % bytes of its memory held, by %',
            full_gpu.gpu_index, full_gpu.node_id, full_gpu.part, COALESCE(full_gpu.memory, 0), full_gpu.jobs
            USING ERRCODE = 'unique_violation', TABLE = TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;
