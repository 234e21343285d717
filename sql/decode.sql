-- Decoding and its inverse. A field may never decode differently from what is frozen here.
SET client_min_messages = warning;
CREATE EXTENSION snowflake;
SET TimeZone = 'UTC';
SET DateStyle = 'ISO, MDY';

CREATE TEMP TABLE golden (what text, id bigint, "time" timestamptz, region int, worker int, sequence int);
INSERT INTO golden VALUES
    ('the epoch',             0,                   '2026-01-01 00:00:00+00',     0, 0,   0),
    ('sequence 1',            1,                   '2026-01-01 00:00:00+00',     0, 0,   1),
    ('sequence 4095',         4095,                '2026-01-01 00:00:00+00',     0, 0,   4095),
    ('worker 1',              4096,                '2026-01-01 00:00:00+00',     0, 1,   0),
    ('worker 127',            520192,              '2026-01-01 00:00:00+00',     0, 127, 0),
    ('region 1',              524288,              '2026-01-01 00:00:00+00',     1, 0,   0),
    ('region 7',              3670016,             '2026-01-01 00:00:00+00',     7, 0,   0),
    ('the first ms, full',    4194303,             '2026-01-01 00:00:00+00',     7, 127, 4095),
    ('1 ms',                  4194304,             '2026-01-01 00:00:00.001+00', 0, 0,   0),
    ('1 ms, each field 1',    4722689,             '2026-01-01 00:00:00.001+00', 1, 1,   1),
    ('last safe in doubles',  9007199254740991,    '2026-01-25 20:31:23.647+00', 7, 127, 4095),
    ('2^53',                  9007199254740992,    '2026-01-25 20:31:23.648+00', 0, 0,   0),
    ('a day of use',          145988105962955776,  '2027-02-07 20:24:36.789+00', 3, 42,  1024),
    ('the last ms, empty',    9223372036850581504, '2095-09-07 15:47:35.551+00', 0, 0,   0),
    ('all ones',              9223372036854775807, '2095-09-07 15:47:35.551+00', 7, 127, 4095);

SELECT g.what, d.*
FROM golden g, snowflake_decode(g.id) d
ORDER BY g.id;

-- Every function agrees with what was written down, in both directions.
SELECT g.*
FROM golden g
WHERE (snowflake_time(g.id), snowflake_region(g.id), snowflake_worker(g.id), snowflake_sequence(g.id))
      IS DISTINCT FROM (g."time", g.region, g.worker, g.sequence)
   OR snowflake_decode(g.id) IS DISTINCT FROM ROW(g."time", g.region, g.worker, g.sequence)
   OR snowflake_make(g."time", g.region, g.worker, g.sequence) IS DISTINCT FROM g.id;

-- Every region and worker, with sequences from end to end, comes back; so does each of the 63 bits.
SELECT count(*)
FROM generate_series(0, 7) region, generate_series(0, 127) worker, generate_series(0, 4095, 455) sequence,
     LATERAL snowflake_make('2061-06-07 08:09:10.111+00', region, worker, sequence) id
WHERE snowflake_decode(id) = ROW(timestamptz '2061-06-07 08:09:10.111+00', region, worker, sequence);
SELECT count(*)
FROM generate_series(0, 62) bit, LATERAL (SELECT 1::bigint << bit) b(id), snowflake_decode(id) d
WHERE snowflake_make(d."time", d.region, d.worker, d.sequence) = id;

-- IDs sort as their fields do.
SELECT array_agg(what ORDER BY id) = array_agg(what ORDER BY "time", region, worker, sequence) AS sorted
FROM golden;

-- What is shorter than a millisecond is cut off.
SELECT snowflake_make('2026-01-01 00:00:00.001999+00', 1, 1, 1) AS id;

-- The time zone changes what is shown, never the ID.
SET TimeZone = 'Asia/Kolkata';
SELECT snowflake_time(145988105962955776), snowflake_make('2027-02-07 20:24:36.789+00', 3, 42, 1024);
SELECT snowflake_make('2027-02-08 01:54:36.789', 3, 42, 1024), snowflake_floor('2026-01-01 05:30');
SET TimeZone = 'UTC';

-- Unknown stays unknown.
SELECT snowflake_time(NULL) IS NULL AS "time", snowflake_region(NULL) IS NULL AS region,
       snowflake_worker(NULL) IS NULL AS worker, snowflake_sequence(NULL) IS NULL AS sequence,
       snowflake_make(NULL, 0, 0, 0) IS NULL AS make_time,
       snowflake_make('2027-01-01', NULL, 0, 0) IS NULL AS make_region,
       snowflake_make('2027-01-01', 0, NULL, 0) IS NULL AS make_worker,
       snowflake_make('2027-01-01', 0, 0, NULL) IS NULL AS make_sequence;
SELECT * FROM snowflake_decode(NULL);

-- A negative number is no ID.
SELECT snowflake_time(-1);
\echo :SQLSTATE
SELECT snowflake_region(-1);
\echo :SQLSTATE
SELECT snowflake_worker(-9223372036854775808);
\echo :SQLSTATE
SELECT snowflake_sequence(-9223372036854775807);
\echo :SQLSTATE
SELECT * FROM snowflake_decode(-4194304);
\echo :SQLSTATE

-- Fields that don't fit are refused, never cut.
SELECT snowflake_make('2027-01-01', 8, 0, 0);
\echo :SQLSTATE
SELECT snowflake_make('2027-01-01', -1, 0, 0);
\echo :SQLSTATE
SELECT snowflake_make('2027-01-01', 0, 128, 0);
\echo :SQLSTATE
SELECT snowflake_make('2027-01-01', 0, -1, 0);
\echo :SQLSTATE
SELECT snowflake_make('2027-01-01', 0, 0, 4096);
\echo :SQLSTATE
SELECT snowflake_make('2027-01-01', 0, 0, -2147483648);
\echo :SQLSTATE

-- So are times that no ID carries.
SELECT snowflake_make('2025-12-31 23:59:59.999999+00', 0, 0, 0);
\echo :SQLSTATE
SELECT snowflake_make('2095-09-07 15:47:35.552+00', 0, 0, 0);
\echo :SQLSTATE
SELECT snowflake_make('infinity', 0, 0, 0);
\echo :SQLSTATE
SELECT snowflake_make('-infinity', 0, 0, 0);
\echo :SQLSTATE
SELECT snowflake_make('4714-11-24 00:00+00 BC', 0, 0, 0);
\echo :SQLSTATE
SELECT snowflake_make('294276-12-31 23:59:59.999999+00', 0, 0, 0);
\echo :SQLSTATE
SELECT snowflake_make('2095-09-07 15:47:35.551999+00', 0, 0, 0) AS last_one;

DROP EXTENSION snowflake;
