-- One-time codes of links, and the sessions that browsers keep in a cookie. The gateway writes them; a router exchanges a
-- code for a session through `redeem_code` of sql/functions/sign_ins.sql alone.
CREATE TABLE sign_ins (
    hash            bytea PRIMARY KEY CHECK (length(hash) = 32),  -- SHA-256 of the code, or of the token in the cookie
    kind            text NOT NULL CHECK (kind IN ('code', 'session')),
    id              text NOT NULL UNIQUE GENERATED ALWAYS AS ('s-' || left(encode(hash, 'hex'), 12)) STORED,
    tenant          text NOT NULL REFERENCES tenants,
    parent          bytea NOT NULL REFERENCES tokens ON DELETE CASCADE,  -- the token that it was made with, and ends with
    job             text NOT NULL DEFAULT '',  -- the job whose service it opens, and nothing else; empty: as its token
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL,
    session_ends_at timestamptz,               -- of a code: when the session that it is exchanged for expires
    used_at         timestamptz,               -- of a session about: noted once a minute at most
    ended_at        timestamptz,               -- a code was exchanged, a session was signed out or ended
    CONSTRAINT sign_ins_code_check CHECK ((kind = 'code') = (session_ends_at IS NOT NULL))
);
CREATE INDEX sign_ins_by_tenant ON sign_ins (tenant, expires_at);
CREATE INDEX sign_ins_by_parent ON sign_ins (parent);
CREATE INDEX sign_ins_by_expiry ON sign_ins (expires_at);

GRANT SELECT, INSERT, DELETE ON sign_ins TO weft_gateway;
GRANT UPDATE (used_at, ended_at) ON sign_ins TO weft_gateway;
GRANT SELECT (hash, kind, id, tenant, parent, job, expires_at, ended_at) ON sign_ins TO weft_router;
GRANT SELECT (label) ON tokens TO weft_router;

CREATE FUNCTION redeem_code(code_hash bytea, session_hash bytea, of_job text, redeemed_at timestamptz, source text,
                            request text, of_challenge text)
    RETURNS TABLE (id text, tenant text, admin boolean, expires_at double precision)
    LANGUAGE sql AS 'SELECT NULL::text, NULL::text, NULL::boolean, NULL::double precision LIMIT 0';
REVOKE ALL ON FUNCTION redeem_code FROM PUBLIC;
GRANT EXECUTE ON FUNCTION redeem_code TO weft_gateway, weft_router;
