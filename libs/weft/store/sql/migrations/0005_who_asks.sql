-- The name of the person who asked; empty: a token did. Events of jobs say it beside the tenant.
ALTER TABLE asks ADD COLUMN who text NOT NULL DEFAULT '';
