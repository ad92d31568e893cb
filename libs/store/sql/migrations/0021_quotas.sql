-- gateway: what an administrator guarantees tenants and groups of them, and how much each may hold at most.
-- The scheduler of the pool reads them. `quota` is a Quota of libs/domain/quotas.py; amounts are thousandths of GPUs.
CREATE TABLE quotas (
    pool  text NOT NULL,
    name  text NOT NULL,
    quota jsonb NOT NULL,
    PRIMARY KEY (pool, name)
);

GRANT SELECT, INSERT, UPDATE, DELETE ON quotas TO weft_gateway;
GRANT SELECT ON quotas TO weft_scheduler;
