-- What administrators did, and who signed in and out. Nobody changes or deletes an entry: `write_audit` of
-- sql/functions/audit.sql alone adds one, and no role has any other right.
CREATE TABLE audit (
    seq     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL,
    request text NOT NULL,   -- joins the entries of one request
    outcome text NOT NULL CHECK (outcome IN ('asked', 'done', 'refused')),
    act     text NOT NULL,   -- sign-in, sign-out, code, or method and path of a request
    tenant  text NOT NULL,   -- of whoever did it; empty: nobody knows
    who     text NOT NULL,   -- within the tenant: the label of the token
    session text NOT NULL,   -- the id of the session; empty: a token was used
    source  text NOT NULL,   -- the address that the request came from
    detail  text NOT NULL
);
CREATE INDEX audit_by_tenant ON audit (tenant, seq);
GRANT SELECT ON audit TO weft_gateway;

CREATE FUNCTION write_audit(of_request text, outcome text, act text, tenant text, who text, session text, source text,
                            detail text, at timestamptz)
    RETURNS bigint LANGUAGE sql AS 'SELECT 0::bigint';
REVOKE ALL ON FUNCTION write_audit FROM PUBLIC;
GRANT EXECUTE ON FUNCTION write_audit TO weft_gateway;

CREATE FUNCTION audit_stays() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_stays();
