-- What Postgres gives to every role and no role of ours needs. The rights to each table are in the migrations.

-- A temporary table stands before a table of the same name for whoever made it, so nobody makes one.
DO $$
BEGIN
    EXECUTE format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', current_database());
END $$;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;

-- Large objects belong to no table, so no right to a table keeps a role from filling the disk with them. Where the owner
-- of the database is no superuser, Postgres warns here and revokes nothing.
REVOKE EXECUTE ON FUNCTION pg_catalog.lo_creat(integer), pg_catalog.lo_create(oid), pg_catalog.lo_from_bytea(oid, bytea)
    FROM PUBLIC;
