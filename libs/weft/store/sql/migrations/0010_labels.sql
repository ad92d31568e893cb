-- Labels and taints of nodes, as they are now, and what operators changed of those that a node's own settings give.
ALTER TABLE nodes ADD COLUMN labels jsonb NOT NULL DEFAULT '{}';
ALTER TABLE nodes ADD COLUMN taints jsonb NOT NULL DEFAULT '{}';
ALTER TABLE nodes ADD COLUMN marking jsonb NOT NULL DEFAULT '{}';

ALTER TABLE asks ADD COLUMN marking jsonb;   -- with the kind mark
ALTER TABLE asks DROP CONSTRAINT asks_kind_check;
ALTER TABLE asks ADD CONSTRAINT asks_kind_check CHECK (kind IN
    ('submit', 'cancel', 'requeue', 'prioritise', 'drain', 'resume', 'return', 'tune', 'scale', 'share', 'update', 'enter', 'mark'));
ALTER TABLE asks ADD CONSTRAINT asks_marking_check CHECK ((kind = 'mark') = (marking IS NOT NULL));
