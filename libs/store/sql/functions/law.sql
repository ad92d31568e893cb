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
