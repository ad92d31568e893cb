-- People in runs: what a job's story says of them. A scheduler of an earlier version has no such ask: schedulers are
-- replaced before gateways are.

ALTER TABLE asks ADD COLUMN entry jsonb;  -- with the kind enter
ALTER TABLE asks DROP CONSTRAINT asks_kind_check;
ALTER TABLE asks ADD CONSTRAINT asks_kind_check CHECK (kind IN
    ('submit', 'cancel', 'requeue', 'prioritise', 'drain', 'resume', 'tune', 'scale', 'share', 'update', 'enter'));
ALTER TABLE asks ADD CONSTRAINT asks_entry_check CHECK ((kind = 'enter') = (entry IS NOT NULL));

INSERT INTO job_steps (from_state, event, to_state) VALUES
    ('starting', 'entered', 'starting'),
    ('running', 'entered', 'running'),
    ('stopping', 'entered', 'stopping');
