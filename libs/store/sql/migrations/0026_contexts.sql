-- Contexts: the packed files that jobs have as their working folder. The gateway alone writes and reads them.

CREATE TABLE contexts (
    id      text PRIMARY KEY,
    tenant  text NOT NULL REFERENCES tenants,
    digest  text NOT NULL CHECK (digest ~ '^[0-9a-f]{64}$'),  -- SHA-256 of all pieces in a row
    bytes   bigint NOT NULL CHECK (bytes > 0),
    whole   boolean NOT NULL DEFAULT false,
    used_at timestamptz NOT NULL                              -- of what is not whole: when a piece came last
);
CREATE UNIQUE INDEX contexts_whole ON contexts (tenant, digest) WHERE whole;
CREATE INDEX contexts_by_tenant ON contexts (tenant, used_at);

CREATE TABLE context_pieces (
    context text NOT NULL REFERENCES contexts ON DELETE CASCADE,
    number  integer NOT NULL CHECK (number >= 0),
    data    bytea NOT NULL CHECK (octet_length(data) <= 524288),
    PRIMARY KEY (context, number)
);
ALTER TABLE context_pieces ALTER COLUMN data SET STORAGE EXTERNAL;  -- it is compressed already

-- The jobs that name a context: few have any.
CREATE INDEX submissions_with_context ON submissions ((spec ->> 'context'), tenant) WHERE spec ->> 'context' IS NOT NULL;

GRANT SELECT, INSERT, UPDATE, DELETE ON contexts TO weft_gateway;
GRANT SELECT, INSERT ON context_pieces TO weft_gateway;
