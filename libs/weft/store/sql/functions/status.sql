-- How the database is: its size, its connections, the migrations that ran, and what waits to be taken in or published,
-- each counted up to `most`. A gateway has no right to read these tables.
CREATE OR REPLACE FUNCTION database_status(most integer)
    RETURNS TABLE (bytes bigint, connections integer, connections_max integer, version text, ran text[],
                   asks integer, unsent integer)
    LANGUAGE sql STABLE SECURITY DEFINER SET search_path = public, pg_temp AS $$
    SELECT pg_database_size(current_database()),
           (SELECT count(*)::integer FROM pg_stat_activity WHERE backend_type = 'client backend'),
           current_setting('max_connections')::integer,
           current_setting('server_version'),
           ARRAY(SELECT name FROM migrations ORDER BY name),
           (SELECT count(*)::integer FROM (SELECT FROM asks LIMIT most) a),
           (SELECT count(*)::integer FROM (SELECT FROM outbox LIMIT most) o);
$$;
