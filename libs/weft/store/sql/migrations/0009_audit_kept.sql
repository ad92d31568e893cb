-- The id of the person who acted; empty: a token was used. A label of a token may read as the name of a person.
ALTER TABLE audit ADD COLUMN person text NOT NULL DEFAULT '';

CREATE FUNCTION add_audit(of_request text, outcome text, act text, tenant text, who text, session text, source text,
                            detail text, at timestamptz, person text)
    RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';
REVOKE ALL ON FUNCTION add_audit FROM PUBLIC;
GRANT EXECUTE ON FUNCTION add_audit TO weft_gateway;

-- Retention: the one way in which entries are deleted, see sql/functions/audit.sql.
CREATE FUNCTION forget_audit(kept_seconds float8, entries_max bigint, at_most integer)
    RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';
REVOKE ALL ON FUNCTION forget_audit FROM PUBLIC;
GRANT EXECUTE ON FUNCTION forget_audit TO weft_gateway;
