-- Who may do what: everybody mints, decodes and sees how it goes; where etcd is, and what it said,
-- is for those who monitor.
SET client_min_messages = warning;
CREATE EXTENSION snowflake;
DO $$
BEGIN
    PERFORM snowflake_init_region();
    FOR i IN 1..600 LOOP
        EXIT WHEN snowflake_ready();
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$;
CREATE ROLE regress_snowflake_user;
CREATE ROLE regress_snowflake_monitor IN ROLE pg_monitor;
CREATE ROLE regress_snowflake_stats IN ROLE pg_read_all_stats;
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);
GRANT INSERT, SELECT ON orders TO regress_snowflake_user;
-- The texts of these errors differ between versions.
CREATE FUNCTION code_of(statement text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
    RETURN 'none';
EXCEPTION WHEN OTHERS THEN
    RETURN SQLSTATE;
END $$;

SET ROLE regress_snowflake_user;
INSERT INTO orders (item) VALUES ('tea') RETURNING item;
SELECT count(snowflake_nextval()) + count(*) AS minted FROM snowflake_nextvals(3);
SELECT worker BETWEEN 0 AND 127 AS worker FROM orders, snowflake_decode(id);
SELECT snowflake_ready();
SELECT state, region, worker IS NOT NULL AS worker, mark IS NOT NULL AS mark, ids_issued > 0 AS ids,
       last_renewal IS NOT NULL AS renewal, holder, lease_id, last_error, endpoint, pid, reason
FROM pg_stat_snowflake;
-- No way round the view
SELECT holder, lease_id, last_error, endpoint, pid, reason FROM snowflake_stat();
-- Where etcd is and how to get in is not for everybody, nor the setting of it.
SELECT name, code_of('SHOW ' || name) AS show
FROM unnest('{snowflake.etcd_endpoints, snowflake.etcd_cacert, snowflake.etcd_cert, snowflake.etcd_key, snowflake.etcd_user,
              snowflake.etcd_password_file, snowflake.region, snowflake.max_wait}'::text[]) name;
SELECT name FROM pg_settings WHERE name LIKE 'snowflake.%' ORDER BY name;
\set VERBOSITY sqlstate
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://127.0.0.1:1';
\set VERBOSITY default
SET snowflake.max_wait = '1s';
SHOW snowflake.max_wait;
RESET snowflake.max_wait;
SET snowflake.region = 1;
\echo :SQLSTATE
SET snowflake.max_clock_error = 0;
\echo :SQLSTATE
RESET ROLE;

-- Those who monitor see all of it.
SET ROLE regress_snowflake_monitor;
SELECT holder IS NOT NULL AS holder, lease_id IS NOT NULL AS lease, endpoint LIKE 'http://%' AS endpoint, pid > 0 AS pid
FROM pg_stat_snowflake;
SET ROLE regress_snowflake_stats;
SELECT holder IS NOT NULL AS holder, lease_id IS NOT NULL AS lease, endpoint LIKE 'http://%' AS endpoint, pid > 0 AS pid
FROM pg_stat_snowflake;
RESET ROLE;

-- What was granted can be taken back, and a table's DEFAULT then needs it.
REVOKE EXECUTE ON FUNCTION snowflake_nextval() FROM PUBLIC;
SET ROLE regress_snowflake_user;
INSERT INTO orders (item) VALUES ('coffee');
\echo :SQLSTATE
RESET ROLE;

DROP TABLE orders;
DROP FUNCTION code_of;
DROP ROLE regress_snowflake_user, regress_snowflake_monitor, regress_snowflake_stats;
DROP EXTENSION snowflake;
