-- A store that was restored from a backup, and how its leaders find out: docs/decisions/0006-a-store-that-went-back.md.

-- How each earlier leadership of a pool ended. Who was answered by a lease that was renewed further than it says here,
-- or by another holder, knows of a time that the store has lost.
CREATE TABLE leaderships (
    name   text NOT NULL,
    epoch  bigint NOT NULL,
    holder text NOT NULL,
    seq    bigint NOT NULL,
    PRIMARY KEY (name, epoch)
);

-- True from when a leader found out, until a leader has waited for the runs of the lost time to end.
ALTER TABLE leases ADD COLUMN went_back boolean NOT NULL DEFAULT false;

CREATE FUNCTION leadership_ends() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO leaderships (name, epoch, holder, seq) VALUES (OLD.name, OLD.epoch, OLD.holder, OLD.seq)
    ON CONFLICT DO NOTHING;
    DELETE FROM leaderships WHERE name = OLD.name AND epoch < OLD.epoch - 1000;
    RETURN NULL;
END $$;

CREATE TRIGGER leadership_ends AFTER UPDATE ON leases FOR EACH ROW
    WHEN (OLD.holder <> '' AND (NEW.holder = '' OR NEW.epoch <> OLD.epoch))
    EXECUTE FUNCTION leadership_ends();

-- Lifts a lease above every epoch that was heard of. What was known of earlier leaders is of another past: forget it.
CREATE FUNCTION raise_lease(lease_name text, lease_holder text, lease_epoch bigint, above bigint)
    RETURNS SETOF leases LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY
    UPDATE leases SET epoch = greatest(epoch, above) + 1, seq = 0, went_back = true
     WHERE name = lease_name AND holder = lease_holder AND epoch = lease_epoch
    RETURNING *;
    IF FOUND THEN
        DELETE FROM leaderships WHERE name = lease_name;
    END IF;
END $$;

GRANT SELECT, INSERT, DELETE ON leaderships TO weft_scheduler;
