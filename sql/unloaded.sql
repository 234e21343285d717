-- Without shared_preload_libraries: everything works but minting, and that says what to set.
SET client_min_messages = warning;
CREATE EXTENSION snowflake;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO, MDY';
SHOW shared_preload_libraries;

-- Tables can be defined, filled with IDs of elsewhere, and read.
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);
INSERT INTO orders VALUES (145988105962955776, 'tea');
COPY orders FROM stdin;
145988105962955777	coffee
\.
SELECT o.item, d.* FROM orders o, snowflake_decode(o.id) d ORDER BY o.id;
SELECT item FROM orders
WHERE snowflake_between(id, '2027-02-07 20:00+00', '2027-02-07 21:00+00') ORDER BY id;
ALTER TABLE orders ALTER id DROP DEFAULT;
ALTER TABLE orders ALTER id SET DEFAULT snowflake_nextval();

-- Minting is refused.
SELECT snowflake_nextval();
\echo :SQLSTATE
SELECT * FROM snowflake_nextvals(3);
\echo :SQLSTATE
SELECT snowflake_nextvals(3);
\echo :SQLSTATE
INSERT INTO orders (item) VALUES ('cocoa');
\echo :SQLSTATE
ALTER TABLE orders ADD COLUMN other bigint DEFAULT snowflake_nextval();
\echo :SQLSTATE
-- What is wrong anyway is said first.
SELECT snowflake_nextvals(0);
\echo :SQLSTATE
SELECT count(*) FROM snowflake_nextvals(NULL);
SELECT count(*) FROM orders;

-- Health checks and monitoring get answers, not errors.
SELECT snowflake_ready();
\pset null (null)
\x on
SELECT * FROM pg_stat_snowflake;
\x off

-- Loading the library in a session changes nothing, for this session or the next.
LOAD 'snowflake';
SELECT snowflake_ready(), state FROM pg_stat_snowflake;
SELECT snowflake_nextval();
\echo :SQLSTATE
SELECT snowflake_worker(145988105962955776);
ALTER DATABASE :"DBNAME" SET session_preload_libraries = 'snowflake';
\c -
SELECT snowflake_nextval();
\echo :SQLSTATE
SELECT snowflake_ready(), snowflake_worker(145988105962955776);
ALTER DATABASE :"DBNAME" RESET session_preload_libraries;

DROP TABLE orders;
DROP EXTENSION snowflake;
