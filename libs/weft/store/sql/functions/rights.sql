-- Revokes rights that Postgres gives to every role and no Weft role needs. The migrations grant those to tables.

-- A temporary table hides a table of the same name from the role that made it, so no role may make one.
DO $$
BEGIN
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
END $$;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;

-- Large objects belong to no table, so no right to a table keeps a role from filling the disk with them. Where the owner
-- of the database is no superuser, Postgres warns here and revokes nothing.
REVOKE EXECUTE ON FUNCTION pg_catalog.lo_creat(integer), pg_catalog.lo_create(oid), pg_catalog.lo_from_bytea(oid, bytea)
    FROM PUBLIC;
