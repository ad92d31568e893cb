-- A user asks for another share of a GPU for the ranks of a running job.

ALTER TABLE asks ADD COLUMN share jsonb;  -- with the kind of that name
ALTER TABLE asks DROP CONSTRAINT asks_kind_check;
ALTER TABLE asks ADD CONSTRAINT asks_kind_check
    CHECK (kind IN ('submit', 'cancel', 'requeue', 'prioritise', 'drain', 'resume', 'tune', 'scale', 'share'));
ALTER TABLE asks ADD CONSTRAINT asks_share_check CHECK ((kind = 'share') = (share IS NOT NULL));
