-- Leases: every write of a scheduler carries the epoch of its lease, and a stale one is refused.

-- Raises unless `holder` owns the lease in this epoch; locks the lease until the transaction ends.
CREATE OR REPLACE FUNCTION must_hold(lease_name text, lease_holder text, lease_epoch bigint) RETURNS void LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM 1 FROM leases WHERE name = lease_name AND holder = lease_holder AND epoch = lease_epoch FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease % is no longer held by % in epoch %', lease_name, lease_holder, lease_epoch
            USING ERRCODE = 'WL001';
    END IF;
END $$;

-- As `must_hold`, and raises unless this load of the pool is its latest (NULL: whichever is). The lock is taken before the load is
-- read: a load that begins meanwhile waits for this transaction to end, or this one for it, and then sees it.
CREATE OR REPLACE FUNCTION must_have_loaded_last(lease_name text, lease_holder text, lease_epoch bigint, of_load bigint)
    RETURNS void LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    PERFORM must_hold(lease_name, lease_holder, lease_epoch);
    IF of_load IS NOT NULL AND NOT EXISTS (SELECT FROM leases WHERE name = lease_name AND loads = of_load) THEN
        RAISE EXCEPTION 'load % of % is not its latest', of_load, lease_name USING ERRCODE = 'WL002';
    END IF;
END $$;

-- Stores how a leadership ended. The trigger is in 0001_first.sql.
CREATE OR REPLACE FUNCTION leadership_ends() RETURNS trigger LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    INSERT INTO leaderships (name, epoch, holder, seq) VALUES (OLD.name, OLD.epoch, OLD.holder, OLD.seq)
    ON CONFLICT DO NOTHING;
    DELETE FROM leaderships WHERE name = OLD.name AND epoch < OLD.epoch - 1000;
    RETURN NULL;
END $$;

-- Lifts a lease above every epoch that was heard of, and forgets the leaders before it: they belong to a lost past.
CREATE OR REPLACE FUNCTION raise_lease(lease_name text, lease_holder text, lease_epoch bigint, above bigint)
    RETURNS SETOF leases LANGUAGE plpgsql SET search_path = public, pg_temp AS $$
BEGIN
    RETURN QUERY
    UPDATE leases SET epoch = greatest(epoch, above) + 1, seq = 0, went_back = true
     WHERE name = lease_name AND holder = lease_holder AND epoch = lease_epoch
    RETURNING *;
    IF FOUND THEN
        DELETE FROM leaderships WHERE name = lease_name;
    END IF;
END $$;
