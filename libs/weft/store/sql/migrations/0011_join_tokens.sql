-- Join tokens of nodes: each is good for one node, once, until it expires. `sealed` has the node's credentials, encrypted
-- with a key that only the token has; the gateway keeps them and can not read them.
CREATE TABLE join_tokens (
    node_id    text PRIMARY KEY,
    hash       bytea NOT NULL UNIQUE CHECK (length(hash) = 32),  -- SHA-256 of the token's public part
    sealed     text NOT NULL,                                    -- empty once it was used
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    used_at    timestamptz,
    CONSTRAINT join_tokens_used_check CHECK (used_at IS NULL OR sealed = '')
);

GRANT SELECT, INSERT, UPDATE, DELETE ON join_tokens TO weft_gateway;
