-- Asks are taken in by tenants in turn: each tenant's oldest first.
CREATE INDEX asks_to_admit_in_turn ON asks (pool, tenant, id) WHERE kind = 'submit';
CREATE INDEX asks_to_do_in_turn ON asks (pool, tenant, id) WHERE kind <> 'submit';
CREATE INDEX asks_of_subject ON asks (subject_id, id) WHERE kind <> 'submit';
