-- How much a job has had, where its size differs from try to try: GPU-seconds, not seconds times what it asks for.
-- Services of an earlier version go on: the function that takes steps counts it, whichever version calls.

ALTER TABLE jobs ADD COLUMN attained_gpu_seconds double precision NOT NULL DEFAULT 0;
