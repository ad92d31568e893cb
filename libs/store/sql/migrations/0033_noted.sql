-- What the node of a job saw that the job may not show itself, such as a process that was killed for memory.

INSERT INTO job_steps (from_state, event, to_state) VALUES ('running', 'noted', 'running');
