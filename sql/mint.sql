-- Minting: on a server that preloads snowflake and reaches an etcd.
SET client_min_messages = warning;
CREATE EXTENSION snowflake;
SET TimeZone = 'UTC';
\set SHOW_CONTEXT never
DO $$
BEGIN
    PERFORM snowflake_init_region();
    FOR i IN 1..600 LOOP
        EXIT WHEN snowflake_ready();
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$;
SELECT snowflake_ready();

-- The error of a statement, without the figures that differ from run to run.
CREATE FUNCTION error_of(statement text) RETURNS TABLE (code text, message text, detail text, hint text)
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE statement;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
                            detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    detail := regexp_replace(detail, '[0-9.]+ s (ahead|more)', 'N s \1', 'g');
    RETURN NEXT;
END $$;

-- Increasing within a session, over statements and within them, all of one worker number, and of now.
SELECT snowflake_nextval() AS earlier \gset
SELECT snowflake_nextval() > :earlier AS later;
SELECT count(*), count(DISTINCT id) AS "distinct", bool_and(id > before) AS increasing,
       count(DISTINCT snowflake_worker(id)) AS workers, count(DISTINCT snowflake_region(id)) AS regions
FROM (SELECT id, lag(id, 1, :earlier) OVER (ORDER BY i) AS before
      FROM (SELECT i, snowflake_nextval() AS id FROM generate_series(1, 100000) i) minted) pairs;
SELECT snowflake_time(snowflake_nextval()) - clock_timestamp() BETWEEN '-1100 ms' AND '1100 ms' AS now;
SELECT snowflake_region(snowflake_nextval()) = current_setting('snowflake.region')::int AS region;

-- As a default: INSERT, INSERT of many, INSERT ... SELECT, COPY, a partitioned table.
CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), item text);
INSERT INTO orders DEFAULT VALUES;
INSERT INTO orders (item) VALUES ('tea'), ('coffee'), ('cocoa');
INSERT INTO orders SELECT snowflake_nextval(), 'water' FROM generate_series(1, 1000);
INSERT INTO orders (item) SELECT 'wine' FROM generate_series(1, 1000);
COPY orders (item) FROM stdin;
beer
cider
\.
INSERT INTO orders (item) VALUES ('again') ON CONFLICT (id) DO NOTHING;
SELECT count(*), array_agg(item ORDER BY id) FILTER (WHERE item NOT IN ('water', 'wine')) FROM orders;
CREATE TABLE events (id bigint DEFAULT snowflake_nextval(), what text) PARTITION BY RANGE (id);
CREATE TABLE events_all PARTITION OF events FOR VALUES FROM (MINVALUE) TO (MAXVALUE);
INSERT INTO events (what) VALUES ('start') RETURNING tableoid::regclass, id > :earlier AS minted;

-- One value per row, not one for all.
ALTER TABLE orders ADD COLUMN other bigint DEFAULT snowflake_nextval();
SELECT count(*) = count(DISTINCT other) AS "distinct", min(other) > max(id) AS later FROM orders;
UPDATE orders SET other = snowflake_nextval();
SELECT count(*) = count(DISTINCT other) AS "distinct", min(other) > max(id) AS later FROM orders;

-- An ID that was rolled back is gone, not reused.
BEGIN;
INSERT INTO orders (item) VALUES ('rolled back') RETURNING id AS rolled_back \gset
SAVEPOINT s;
INSERT INTO orders (item) VALUES ('rolled back to savepoint') RETURNING id AS to_savepoint \gset
ROLLBACK TO s;
SELECT snowflake_nextval() AS after_savepoint \gset
ROLLBACK;
SELECT snowflake_nextval() AS after_rollback \gset
SELECT :rolled_back < :to_savepoint AND :to_savepoint < :after_savepoint AND :after_savepoint < :after_rollback AS increasing;
SELECT count(*) FROM orders WHERE item LIKE 'rolled back%';

-- Many at once: exactly so many, consecutive, of one worker number, for every count there is.
SELECT count(*) AS calls, bool_and(t.n = i) AS exact, bool_and(t.span = i - 1) AS consecutive, bool_and(t.ordered) AS ordered,
       max(t.workers) AS workers
FROM generate_series(1, 1000) i,
     LATERAL (SELECT count(*) AS n, max(tick) - min(tick) AS span, count(DISTINCT worker) AS workers,
                     array_agg(id ORDER BY place) = array_agg(id ORDER BY id) AS ordered
              FROM (SELECT id, place, worker, extract(epoch FROM "time" - '2026-01-01')::numeric * 4096000 + sequence AS tick
                    FROM snowflake_nextvals(i) WITH ORDINALITY minted(id, place), snowflake_decode(id)) ticks) t;
SELECT count(DISTINCT id) FROM (SELECT snowflake_nextvals(1000) AS id FROM generate_series(1, 100)) minted;
SELECT count(*) FROM snowflake_nextvals(NULL);
SELECT * FROM error_of('SELECT snowflake_nextvals(0)');
SELECT * FROM error_of('SELECT * FROM snowflake_nextvals(-1)');
SELECT * FROM error_of('SELECT * FROM snowflake_nextvals(1001)');
SELECT * FROM error_of('SELECT * FROM snowflake_nextvals(2147483647)');

-- Who reads some of them only loses nothing but IDs.
BEGIN;
DECLARE thousand CURSOR FOR SELECT snowflake_nextvals(1000) AS id;
FETCH 1 FROM thousand \gset first_
MOVE 498 IN thousand;
FETCH 1 FROM thousand \gset later_
CLOSE thousand;
SELECT snowflake_nextval() AS after_cursor \gset
COMMIT;
SELECT :later_id - :first_id > 0 AND :after_cursor > :later_id AS increasing;
SELECT count(*) FROM (SELECT snowflake_nextvals(1000) LIMIT 3) minted;
SELECT count(*) FROM (SELECT * FROM snowflake_nextvals(1000) LIMIT 3) minted;
SELECT i, count(DISTINCT id) FROM generate_series(1, 3) i, LATERAL snowflake_nextvals(i * 10) id GROUP BY i ORDER BY i;

-- The planner knows how many rows will come.
CREATE FUNCTION rows_of(query text) RETURNS float LANGUAGE plpgsql AS $$
DECLARE
    plan json;
BEGIN
    EXECUTE 'EXPLAIN (FORMAT JSON) ' || query INTO plan;
    RETURN plan->0->'Plan'->>'Plan Rows';
END $$;
SELECT rows_of('SELECT * FROM snowflake_nextvals(7)') AS seven,
       rows_of('SELECT snowflake_nextvals(1000)') AS thousand,
       rows_of('SELECT * FROM snowflake_nextvals(3 * 4)') AS twelve,
       rows_of('SELECT * FROM snowflake_nextvals((SELECT 7))') AS unknown,
       rows_of('SELECT * FROM snowflake_nextvals(-5)') AS wrong;

-- Parallel workers mint from the same memory.
CREATE TABLE big AS SELECT i FROM generate_series(1, 100000) i;
ANALYZE big;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 2;
EXPLAIN (COSTS OFF) CREATE TABLE minted AS SELECT i, snowflake_nextval() AS id FROM big WHERE i % 2 = 0;
CREATE TABLE minted AS SELECT i, snowflake_nextval() AS id FROM big WHERE i % 2 = 0;
SELECT count(*), count(DISTINCT id), min(id) > :after_cursor AS later FROM minted;
SET max_parallel_workers_per_gather = 0;

-- More than 4096 IDs a millisecond can't go on: the generator runs at most a second ahead of the
-- clock. Who may not wait is refused. (A LIMIT takes 1000 IDs for one row.)
CREATE FUNCTION burst(calls int) RETURNS bigint LANGUAGE sql AS
$$ SELECT count((SELECT snowflake_nextvals(1000 + i * 0) LIMIT 1)) FROM generate_series(1, calls) i $$;
SET snowflake.max_wait = 0;
SELECT * FROM error_of('SELECT burst(100000)');
SELECT lead_ms BETWEEN 0 AND 1000 AS bounded FROM pg_stat_snowflake;
-- Who may is served: here for what takes more than a second.
SELECT waits AS waits_before, wait_time_ms AS waited_before, refused_clock AS refused_before FROM pg_stat_snowflake \gset
SET snowflake.max_wait = '10s';
SELECT clock_timestamp() AS before \gset
SELECT burst(10000);
SELECT clock_timestamp() - :'before' BETWEEN '1 s' AND '30 s' AS waited,
       snowflake_time(snowflake_nextval()) - clock_timestamp() <= '1 s' AS bounded;
SELECT waits > :waits_before AS waits, wait_time_ms > :waited_before AS waited, refused_clock - :refused_before AS refused
FROM pg_stat_snowflake;
-- Waiting ends with the statement's time.
SET statement_timeout = '300ms';
SELECT burst(1000000);
\echo :SQLSTATE
RESET statement_timeout;
RESET snowflake.max_wait;
SELECT snowflake_time(snowflake_nextval()) - clock_timestamp() <= '1 s' AS bounded;

-- The statistics count IDs, not calls.
SELECT ids_issued AS issued_before FROM pg_stat_snowflake \gset
SELECT snowflake_nextval() > 0 FROM generate_series(1, 3);
SELECT count(*) FROM snowflake_nextvals(40);
SELECT ids_issued - :issued_before AS issued FROM pg_stat_snowflake;

DROP TABLE orders, events, big, minted;
DROP FUNCTION error_of, rows_of, burst;
DROP EXTENSION snowflake;
