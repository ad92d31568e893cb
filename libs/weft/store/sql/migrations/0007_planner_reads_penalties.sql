-- The partition planner expects a gang that no node holds to be slower by what its workload loses across nodes.
GRANT SELECT ON workload_penalties TO weft_reallocator;
