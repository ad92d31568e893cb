-- Secrets: the values that jobs name. The gateway alone writes and reads them; no other role sees this table.

CREATE TABLE secrets (
    tenant     text NOT NULL REFERENCES tenants,
    name       text NOT NULL CHECK (name ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    value      text NOT NULL CHECK (octet_length(value) <= 32768),
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    PRIMARY KEY (tenant, name)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON secrets TO weft_gateway;
