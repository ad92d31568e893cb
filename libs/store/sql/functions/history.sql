-- How many bytes of bodies a pool's history has had so far, the dropped records included.
CREATE OR REPLACE FUNCTION history_bytes(of_pool text) RETURNS bigint LANGUAGE sql STABLE
    SET search_path = public, pg_temp
AS $$
    SELECT COALESCE(
        (SELECT bytes_until FROM decisions WHERE pool = of_pool ORDER BY epoch DESC, number DESC LIMIT 1),
        -- An earlier version wrote the newest record: continue from the last stored count.
        (SELECT bytes_until FROM decisions WHERE pool = of_pool AND begins AND bytes_until IS NOT NULL
          ORDER BY epoch DESC, number DESC LIMIT 1),
        0)
$$;
