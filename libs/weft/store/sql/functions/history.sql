-- How many bytes of bodies a pool's history has had so far, the dropped records included.
CREATE OR REPLACE FUNCTION history_bytes(of_pool text) RETURNS bigint LANGUAGE sql STABLE
    SET search_path = public, pg_temp
AS $$
    SELECT COALESCE(
        (SELECT bytes_until FROM decisions WHERE pool = of_pool ORDER BY epoch DESC, number DESC LIMIT 1), 0)
$$;

-- Raises unless a record begins, or the one before it is stored: without that, the store went back in time since.
CREATE OR REPLACE FUNCTION must_follow(of_pool text, of_epoch bigint, of_number int, of_begins boolean) RETURNS void LANGUAGE plpgsql
    SET search_path = public, pg_temp AS $$
BEGIN
    IF NOT of_begins AND NOT EXISTS (
        SELECT FROM decisions WHERE pool = of_pool AND epoch = of_epoch AND number = of_number - 1) THEN
        RAISE EXCEPTION 'record % of epoch % of % is not stored any more', of_number - 1, of_epoch, of_pool USING ERRCODE = 'WL003';
    END IF;
END $$;
