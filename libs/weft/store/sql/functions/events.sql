-- The horizon: events below it are committed, and no event will be added below it.
CREATE OR REPLACE FUNCTION events_horizon() RETURNS xid8 LANGUAGE sql STABLE SET search_path = public, pg_temp AS $$
    SELECT (pg_snapshot_xmin(pg_current_snapshot())::text::bigint + COALESCE((SELECT xids FROM event_offset), 0))::text::xid8
$$;

-- For a restored logical dump: the new cluster's transaction ids are below those of the stored events. Sets an offset
-- that lifts the `xid` of every later event above them all, and returns it. `migrate` calls it before any service
-- writes.
CREATE OR REPLACE FUNCTION continue_events() RETURNS bigint LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
DECLARE
    behind bigint;
    total  bigint;
BEGIN
    SELECT newest.xid::text::bigint + 1 - (pg_snapshot_xmax(pg_current_snapshot())::text::bigint + event_offset.xids)
      INTO behind
      FROM event_offset, (SELECT xid FROM events ORDER BY xid DESC, id DESC LIMIT 1) newest;
    IF behind IS NULL OR behind <= 0 THEN
        RETURN 0;
    END IF;
    UPDATE event_offset SET xids = xids + behind RETURNING xids INTO total;
    EXECUTE format('ALTER TABLE events ALTER COLUMN xid'
                   ' SET DEFAULT ((pg_current_xact_id()::text::bigint + %s)::text::xid8)', total);
    RETURN behind;
END $$;
REVOKE ALL ON FUNCTION continue_events FROM PUBLIC;
