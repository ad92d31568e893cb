-- For how many seconds a job of the pool runs at least before it is pre-empted: estimates and advice count with it.

ALTER TABLE policies ADD COLUMN preemption_after double precision NOT NULL DEFAULT 0;
