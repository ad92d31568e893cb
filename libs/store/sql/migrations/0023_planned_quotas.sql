-- reallocator: the partition planner divides GPUs between jobs by what their tenants are due.
GRANT SELECT ON quotas TO weft_reallocator;
