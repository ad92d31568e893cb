-- People who signed in with the identity provider, each within one tenant and with one role: by the grant of a group of
-- theirs at their last sign-in. The gateway alone writes them.
CREATE TABLE people (
    id           text PRIMARY KEY CHECK (id ~ '^u-[0-9a-f]{12}$'),  -- begins SHA-256 of issuer and subject
    issuer       text NOT NULL,
    subject      text NOT NULL,
    name         text NOT NULL,
    tenant       text NOT NULL REFERENCES tenants,
    role         text NOT NULL CHECK (role IN ('viewer', 'user', 'tenant-admin', 'operator', 'admin')),
    signed_in_at timestamptz NOT NULL,
    disabled_at  timestamptz,              -- an administrator keeps this person out
    UNIQUE (issuer, subject)
);
GRANT SELECT, INSERT ON people TO weft_gateway;
GRANT UPDATE (name, tenant, role, signed_in_at, disabled_at) ON people TO weft_gateway;
GRANT SELECT (id, name, tenant, role, disabled_at) ON people TO weft_router;

-- A code or a session is of a token or of a person. `challenge`: of a command line that proves with its verifier (PKCE,
-- S256) that it is the one that began; empty: of a browser.
ALTER TABLE sign_ins ALTER COLUMN parent DROP NOT NULL;
ALTER TABLE sign_ins ADD COLUMN person text REFERENCES people ON DELETE CASCADE;
ALTER TABLE sign_ins ADD COLUMN challenge text NOT NULL DEFAULT '';
ALTER TABLE sign_ins ADD CONSTRAINT sign_ins_of_check CHECK ((parent IS NULL) <> (person IS NULL));
CREATE INDEX sign_ins_by_person ON sign_ins (person) WHERE person IS NOT NULL;
GRANT SELECT (person) ON sign_ins TO weft_router;
