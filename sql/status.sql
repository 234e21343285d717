-- pg_stat_snowflake and snowflake_ready() on a server that mints.
SET client_min_messages = warning;
CREATE EXTENSION snowflake;
SET TimeZone = 'UTC';
DO $$
BEGIN
    PERFORM snowflake_init_region();
    FOR i IN 1..600 LOOP
        EXIT WHEN snowflake_ready();
        PERFORM pg_sleep(0.1);
    END LOOP;
END $$;

SELECT attname AS column, format_type(atttypid, atttypmod) AS type
FROM pg_attribute WHERE attrelid = 'pg_stat_snowflake'::regclass AND attnum > 0 ORDER BY attnum;

-- One row, of a number that is held and renewed.
SELECT count(*) FROM pg_stat_snowflake;
SELECT snowflake_nextval() AS id \gset
SELECT state, snowflake_ready() AS ready,
       region = snowflake_region(:id) AS region, worker = snowflake_worker(:id) AS worker,
       holder = current_setting('snowflake.holder') AS holder, lease_id <> 0 AS lease,
       claimed_at BETWEEN pg_postmaster_start_time() AND clock_timestamp() AS claimed,
       last_renewal BETWEEN claimed_at AND clock_timestamp() AS renewed,
       mark > last_renewal AS reserved, reserve_left BETWEEN '1 s' AND '30 s' AS reserve_left,
       endpoint = current_setting('snowflake.etcd_endpoints') AS endpoint,
       lead_ms BETWEEN 0 AND 1000 AS lead, coalesce(clock_error_ms >= 0, true) AS clock_error,
       claims >= 1 AS claims, reason
FROM pg_stat_snowflake;
SELECT renewal_failures, last_error, last_error_at, refused_fence FROM pg_stat_snowflake;
-- The background worker serves no database, so it is in no list of sessions.
SELECT pid > 0 AS there, (SELECT count(*) FROM pg_stat_activity a WHERE a.pid = s.pid) AS sessions FROM pg_stat_snowflake s;

-- The mark moves on by itself, and no claim is needed for it.
SELECT mark AS mark_before, claims AS claims_before, claimed_at AS claimed_before FROM pg_stat_snowflake \gset
DO $$
DECLARE
    before CONSTANT timestamptz := (SELECT mark FROM pg_stat_snowflake);
BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN (SELECT mark > before FROM pg_stat_snowflake);
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
SELECT mark > :'mark_before' AS raised, claims = :claims_before AS same_claim, claimed_at = :'claimed_before' AS same_time
FROM pg_stat_snowflake;

-- It counts what all sessions do, also those that are gone.
SELECT ids_issued AS issued_before FROM pg_stat_snowflake \gset
SELECT count(snowflake_nextval()) FROM generate_series(1, 1000);
\c -
SELECT count(*) FROM snowflake_nextvals(234);
SELECT ids_issued - :issued_before AS issued FROM pg_stat_snowflake;
SELECT snowflake_ready() FROM generate_series(1, 2);
SELECT ids_issued - :issued_before AS issued FROM pg_stat_snowflake;

DROP EXTENSION snowflake;
