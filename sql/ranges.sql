-- Ranges of time over IDs: with indexes, with partitions, and in definitions that need IMMUTABLE.
SET client_min_messages = warning;
CREATE EXTENSION snowflake;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO, MDY';
SET IntervalStyle = 'postgres';
\set SHOW_CONTEXT never

-- The smallest and the largest ID of a millisecond, wherever in it the time lies.
SELECT t AS "time", snowflake_floor(t), snowflake_ceil(t)
FROM (VALUES (timestamptz '2026-01-01 00:00:00+00'), ('2026-01-01 00:00:00.000999+00'),
             ('2026-01-01 00:00:00.001+00'), ('2026-01-01 00:00:00.0015+00'),
             ('2095-09-07 15:47:35.551+00'), ('2095-09-07 15:47:35.551999+00')) v(t)
ORDER BY t;
-- All 22 bits below the time lie between them, and the next millisecond follows without a gap.
SELECT bool_and(snowflake_ceil(t) - snowflake_floor(t) = 4194303) AS whole,
       bool_and(snowflake_floor(t + interval '1 ms') - snowflake_ceil(t) = 1) AS adjacent,
       bool_and(snowflake_decode(snowflake_floor(t)) = ROW(date_trunc('milliseconds', t), 0, 0, 0)) AS first,
       bool_and(snowflake_decode(snowflake_ceil(t)) = ROW(date_trunc('milliseconds', t), 7, 127, 4095)) AS last
FROM generate_series(timestamptz '2026-02-03 04:05:06.0007', '2095-01-01', '1 year 1 day 1.0003 s') t;

-- Half open: the lower bound belongs to it, the upper does not.
SELECT t AS "time", snowflake_between(snowflake_floor(t), '2027-01-01', '2027-01-02') AS smallest,
       snowflake_between(snowflake_ceil(t), '2027-01-01', '2027-01-02') AS largest
FROM (VALUES (timestamptz '2026-12-31 23:59:59.999'), ('2027-01-01'), ('2027-01-01 00:00:00.001'),
             ('2027-01-01 23:59:59.999'), ('2027-01-02')) v(t)
ORDER BY t;
-- Adjacent ranges share no ID and leave none out, also when they meet within a millisecond.
SELECT t AS "time", snowflake_between(snowflake_make(t, 3, 5, 7), '2027-01-01', '2027-01-01 00:00:00.0015') AS before,
       snowflake_between(snowflake_make(t, 3, 5, 7), '2027-01-01 00:00:00.0015', '2027-01-02') AS after
FROM (VALUES (timestamptz '2027-01-01'), ('2027-01-01 00:00:00.001'), ('2027-01-01 00:00:00.002')) v(t)
ORDER BY t;
-- An empty range, one the wrong way round, and bounds that are unknown.
SELECT snowflake_between(id, '2027-01-01', '2027-01-01') AS empty,
       snowflake_between(id, '2027-01-02', '2027-01-01') AS turned,
       snowflake_between(NULL, '2027-01-01', '2027-01-02') AS no_id,
       snowflake_between(id, NULL, '2027-01-02') AS no_from,
       snowflake_between(id, '2027-01-01', NULL) AS no_upto
FROM snowflake_make('2027-01-01', 0, 0, 0) id;
SELECT snowflake_floor(NULL) IS NULL AS floor, snowflake_ceil(NULL) IS NULL AS ceil;

-- Times that no ID carries
SELECT snowflake_floor('2025-12-31 23:59:59.999999+00');
\echo :SQLSTATE
SELECT snowflake_ceil('2095-09-07 15:47:35.552+00');
\echo :SQLSTATE
SELECT snowflake_floor('-infinity');
\echo :SQLSTATE
SELECT snowflake_ceil('infinity');
\echo :SQLSTATE
SELECT snowflake_between(0, '2026-01-01', '2096-01-01');
\echo :SQLSTATE

-- The primary key serves a range of time: snowflake_between() is no function to the planner but two
-- comparisons, with bounds known beforehand, known at execution, or parameters.
CREATE TABLE orders (id bigint PRIMARY KEY, item text);
INSERT INTO orders
SELECT snowflake_make(timestamptz '2027-01-01' + i * interval '1 minute', i % 8, i % 128, i % 4096), 'tea'
FROM generate_series(0, 59999) i;
ANALYZE orders;
EXPLAIN (COSTS OFF)
SELECT * FROM orders WHERE snowflake_between(id, '2027-01-10 00:00+00', '2027-01-10 06:00+00');
SELECT count(*), min(snowflake_time(id)), max(snowflake_time(id))
FROM orders WHERE snowflake_between(id, '2027-01-10 00:00+00', '2027-01-10 06:00+00');
EXPLAIN (COSTS OFF)
SELECT * FROM orders WHERE snowflake_between(id, now() - interval '1 day', now());
EXPLAIN (COSTS OFF)
SELECT * FROM orders WHERE id >= snowflake_floor(now() - interval '1 day') ORDER BY id LIMIT 10;
SET plan_cache_mode = force_generic_plan;
PREPARE day_of (timestamptz) AS
SELECT count(*) FROM orders WHERE snowflake_between(id, $1, $1 + interval '1 day');
EXPLAIN (COSTS OFF) EXECUTE day_of ('2027-01-10');
EXECUTE day_of ('2027-01-10');
DEALLOCATE day_of;

-- Named arguments; "from" is a key word, so it is quoted.
SELECT count(*) FROM orders
WHERE snowflake_between(id => id, "from" => '2027-01-01 00:00+00', upto => '2027-01-01 01:00+00');

-- Partitions by month: bounds from snowflake_floor(), and only the months asked for are read.
CREATE TABLE events (id bigint PRIMARY KEY, what text) PARTITION BY RANGE (id);
CREATE TABLE events_past PARTITION OF events
    FOR VALUES FROM (MINVALUE) TO (snowflake_floor('2027-01-01 00:00+00'));
CREATE TABLE events_2027_01 PARTITION OF events
    FOR VALUES FROM (snowflake_floor('2027-01-01 00:00+00')) TO (snowflake_floor('2027-02-01 00:00+00'));
CREATE TABLE events_2027_02 PARTITION OF events
    FOR VALUES FROM (snowflake_floor('2027-02-01 00:00+00')) TO (snowflake_floor('2027-03-01 00:00+00'));
CREATE TABLE events_future PARTITION OF events
    FOR VALUES FROM (snowflake_floor('2027-03-01 00:00+00')) TO (MAXVALUE);
SELECT inhrelid::regclass AS partition, pg_get_expr(relpartbound, oid) AS bounds
FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = 'events'::regclass ORDER BY oid;
INSERT INTO events
SELECT snowflake_make(t, region, 127 * (region / 7), 4095 * (region / 7)), t::text
FROM unnest('{2026-12-31 23:59:59.999, 2027-01-01 00:00, 2027-01-31 23:59:59.999, 2027-02-01 00:00,
              2027-02-28 23:59:59.999, 2027-03-01 00:00}'::timestamptz[]) t, unnest('{0, 7}'::int[]) region;
SELECT tableoid::regclass AS partition, what, count(*) FROM events GROUP BY 1, 2 ORDER BY 2;
ANALYZE events;
SET enable_seqscan = off;
EXPLAIN (COSTS OFF)
SELECT * FROM events WHERE snowflake_between(id, '2027-01-31 00:00+00', '2027-02-01 00:00+00');
EXPLAIN (COSTS OFF)
SELECT * FROM events WHERE snowflake_between(id, '2027-01-31 00:00+00', '2027-02-02 00:00+00');
PREPARE span (timestamptz, timestamptz) AS SELECT * FROM events WHERE snowflake_between(id, $1, $2);
EXPLAIN (COSTS OFF) EXECUTE span ('2027-02-03', '2027-02-04');
DEALLOCATE span;
RESET enable_seqscan;
RESET plan_cache_mode;
SELECT count(*) FROM events WHERE snowflake_between(id, '2027-01-31 00:00+00', '2027-02-02 00:00+00');

-- Where Postgres takes IMMUTABLE functions only: generated columns, indexes, checks, partition keys.
CREATE TABLE places (
    id bigint PRIMARY KEY CHECK (snowflake_region(id) = 3),
    made timestamptz GENERATED ALWAYS AS (snowflake_time(id)) STORED,
    worker int GENERATED ALWAYS AS ((snowflake_decode(id)).worker) STORED,
    sequence int GENERATED ALWAYS AS (snowflake_sequence(id)) STORED,
    today boolean GENERATED ALWAYS AS (snowflake_between(id, '2027-02-07 00:00+00', '2027-02-08 00:00+00')) STORED);
INSERT INTO places VALUES (snowflake_make('2027-02-07 20:24:36.789+00', 3, 42, 1024)) RETURNING *;
INSERT INTO places VALUES (snowflake_make('2027-02-07 20:24:36.789+00', 4, 42, 1024));
CREATE INDEX ON orders (snowflake_time(id));
CREATE INDEX ON orders (snowflake_region(id), snowflake_worker(id), snowflake_sequence(id));
CREATE INDEX ON orders (((snowflake_decode(id)).worker)) WHERE id < snowflake_ceil('2028-01-01 00:00+00');
CREATE INDEX ON orders (snowflake_floor(snowflake_time(id)), snowflake_ceil(snowflake_time(id)),
                        snowflake_make(snowflake_time(id), 0, 0, 0));
ANALYZE orders;
EXPLAIN (COSTS OFF) SELECT * FROM orders WHERE snowflake_time(id) = '2027-01-10 00:00+00';
SELECT id, item FROM orders WHERE snowflake_time(id) = '2027-01-10 00:00+00';
CREATE TABLE by_region (id bigint) PARTITION BY LIST (snowflake_region(id));
CREATE TABLE by_region_3 PARTITION OF by_region FOR VALUES IN (3);
INSERT INTO by_region SELECT id FROM places RETURNING tableoid::regclass, id;
INSERT INTO by_region VALUES (0);

DROP TABLE orders, events, places, by_region;
DROP EXTENSION snowflake;
