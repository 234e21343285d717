-- What the extension consists of, and how it comes, moves and goes.
CREATE EXTENSION snowflake;
SELECT extversion, extrelocatable, extnamespace::regnamespace FROM pg_extension WHERE extname = 'snowflake';

-- Its members. Types come with a view since version 17 only.
SELECT pg_describe_object(classid, objid, 0) AS member
FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND classid <> 'pg_type'::regclass
  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'snowflake')
ORDER BY 1;

-- Each of them says what it is.
SELECT pg_describe_object(classid, objid, 0) AS silent
FROM pg_depend
WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND classid <> 'pg_type'::regclass
  AND refobjid = (SELECT oid FROM pg_extension WHERE extname = 'snowflake')
  AND obj_description(objid, classid::regclass::name) IS NULL;
SELECT obj_description(oid, 'pg_extension') IS NOT NULL AS said FROM pg_extension WHERE extname = 'snowflake';

-- What the planner may do with the functions. STRICT would keep snowflake_between() from being
-- inlined; VOLATILE keeps snowflake_nextval() from being called once for all rows.
SELECT proname, provolatile AS volatile, proparallel AS parallel, proisstrict AS strict, proretset AS set,
       prosecdef AS definer, lanname AS language, prosupport AS support, proacl AS acl
FROM pg_proc JOIN pg_language l ON l.oid = prolang
WHERE proname LIKE 'snowflake%' ORDER BY proname;
SELECT oid::regprocedure AS function, pg_get_function_arguments(oid) AS arguments, pg_get_function_result(oid) AS result
FROM pg_proc
WHERE proname LIKE 'snowflake%' AND proname <> 'snowflake_stat' ORDER BY proname;

-- Everybody may use all of it but what is for superusers.
CREATE ROLE regress_snowflake_nobody;
SELECT proname FROM pg_proc
WHERE proname LIKE 'snowflake%' AND NOT has_function_privilege('regress_snowflake_nobody', oid, 'EXECUTE');
SELECT has_table_privilege('regress_snowflake_nobody', 'pg_stat_snowflake', 'SELECT') AS reads,
       has_table_privilege('regress_snowflake_nobody', 'pg_stat_snowflake', 'INSERT, UPDATE, DELETE') AS writes;
DROP ROLE regress_snowflake_nobody;

-- It moves to another schema, with tables and views that use it, and works from there unseen.
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);
CREATE VIEW recent AS SELECT * FROM orders WHERE snowflake_between(id, '2027-01-01 00:00+00', '2028-01-01 00:00+00');
INSERT INTO orders VALUES (145988105962955776, 'tea');
CREATE SCHEMA ids;
ALTER EXTENSION snowflake SET SCHEMA ids;
SELECT snowflake_floor('2027-01-01');
SELECT ids.snowflake_between(145988105962955776, '2027-01-01', '2028-01-01'), ids.snowflake_ready();
SELECT count(*) FROM ids.pg_stat_snowflake;
SELECT * FROM recent;
SELECT column_default FROM information_schema.columns WHERE table_name = 'orders' AND column_name = 'id';
ALTER EXTENSION snowflake SET SCHEMA public;

-- It goes only together with what depends on it; a table stays, without its default.
DROP EXTENSION snowflake;
\set VERBOSITY terse
DROP EXTENSION snowflake CASCADE;
\set VERBOSITY default
SELECT * FROM orders;
INSERT INTO orders (item) VALUES ('coffee');
SELECT count(*) FROM pg_proc WHERE proname LIKE 'snowflake%';

-- It comes back, to a schema of choice.
CREATE EXTENSION snowflake SCHEMA ids VERSION '1.0';
ALTER TABLE orders ALTER id SET DEFAULT ids.snowflake_nextval();
SELECT ids.snowflake_sequence(id) FROM orders;
-- A second time is told.
CREATE EXTENSION snowflake;

DROP TABLE orders;
DROP EXTENSION snowflake;
DROP SCHEMA ids;
