-- The name of the person who submitted the job; empty: a token did. The gateway alone writes it, as all of a submission.
ALTER TABLE submissions ADD COLUMN submitter text NOT NULL DEFAULT '';
