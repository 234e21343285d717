/* snowflake--1.0.sql: IDs without a duplicate */

-- complain if the script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION snowflake" to load this file. \quit

-- Minting

-- VOLATILE: STABLE would give ADD COLUMN ... DEFAULT one value for all rows. PARALLEL SAFE: all
-- state is in memory that every process of the server shares.
CREATE FUNCTION snowflake_nextval() RETURNS bigint
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_nextval() IS
'next snowflake ID: never given out before by any server, increasing on this one';

CREATE FUNCTION snowflake_nextvals_support(internal) RETURNS internal
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_nextvals_support(internal) IS
'planner support for snowflake_nextvals';

CREATE FUNCTION snowflake_nextvals(count int) RETURNS SETOF bigint
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL SAFE
ROWS 100 SUPPORT snowflake_nextvals_support;
COMMENT ON FUNCTION snowflake_nextvals(int) IS
'exactly count snowflake IDs, 1 to 1000, increasing and all of one worker number';

CREATE FUNCTION snowflake_ready() RETURNS boolean
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_ready() IS
'whether snowflake_nextval() would succeed now; for health checks';

-- Decoding

CREATE FUNCTION snowflake_time(id bigint) RETURNS timestamptz
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_time(bigint) IS
'millisecond in which a snowflake ID was minted';

CREATE FUNCTION snowflake_region(id bigint) RETURNS int
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_region(bigint) IS
'region of the server that minted a snowflake ID, 0 to 7';

CREATE FUNCTION snowflake_worker(id bigint) RETURNS int
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_worker(bigint) IS
'worker number, within its region, of the server that minted a snowflake ID, 0 to 127';

CREATE FUNCTION snowflake_sequence(id bigint) RETURNS int
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_sequence(bigint) IS
'sequence of a snowflake ID within its millisecond and worker number, 0 to 4095';

CREATE FUNCTION snowflake_decode(id bigint,
    OUT "time" timestamptz, OUT region int, OUT worker int, OUT sequence int)
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_decode(bigint) IS
'all fields of a snowflake ID in one row';

CREATE FUNCTION snowflake_make("time" timestamptz, region int, worker int, sequence int)
RETURNS bigint
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_make(timestamptz, int, int, int) IS
'snowflake ID with these fields: the inverse of snowflake_decode';

-- Ranges of time

CREATE FUNCTION snowflake_floor("time" timestamptz) RETURNS bigint
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_floor(timestamptz) IS
'smallest snowflake ID of the millisecond of a time; for ranges and partition bounds';

CREATE FUNCTION snowflake_ceil("time" timestamptz) RETURNS bigint
AS 'MODULE_PATHNAME' LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION snowflake_ceil(timestamptz) IS
'largest snowflake ID of the millisecond of a time; for ranges and partition bounds';

-- Not STRICT, which would keep the planner from inlining it.
CREATE FUNCTION snowflake_between(id bigint, "from" timestamptz, upto timestamptz)
RETURNS boolean LANGUAGE SQL IMMUTABLE PARALLEL SAFE
RETURN id >= snowflake_floor("from") AND id < snowflake_floor(upto);
COMMENT ON FUNCTION snowflake_between(bigint, timestamptz, timestamptz) IS
'whether a snowflake ID lies in the half-open range of time [from, upto); uses indexes on id';

-- Administration

CREATE FUNCTION snowflake_init_region() RETURNS void
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL UNSAFE;
REVOKE EXECUTE ON FUNCTION snowflake_init_region() FROM PUBLIC;
COMMENT ON FUNCTION snowflake_init_region() IS
'says that the region''s etcd never held IDs, so that the first server of all mints without a pause';

CREATE FUNCTION snowflake_raise_marks(until timestamptz) RETURNS void
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE STRICT PARALLEL UNSAFE;
REVOKE EXECUTE ON FUNCTION snowflake_raise_marks(timestamptz) FROM PUBLIC;
COMMENT ON FUNCTION snowflake_raise_marks(timestamptz) IS
'raises every mark of the region, so that a worker number claimed from now on mints only later than that';

-- State

CREATE FUNCTION snowflake_stat(
    OUT state text, OUT region int, OUT worker int, OUT holder text, OUT lease_id bigint,
    OUT claimed_at timestamptz, OUT mark timestamptz, OUT reserve_left_ms bigint,
    OUT last_renewal timestamptz, OUT renewal_failures bigint,
    OUT last_error text, OUT last_error_at timestamptz, OUT endpoint text,
    OUT lead_ms bigint, OUT clock_error_ms double precision, OUT ids_issued bigint,
    OUT refused_clock bigint, OUT refused_fence bigint, OUT refused_no_claim bigint,
    OUT waits bigint, OUT wait_time_ms double precision, OUT claims bigint, OUT pid int,
    OUT reason text)
AS 'MODULE_PATHNAME' LANGUAGE C VOLATILE PARALLEL RESTRICTED;
COMMENT ON FUNCTION snowflake_stat() IS
'source of pg_stat_snowflake';

CREATE VIEW pg_stat_snowflake AS
SELECT state, region, worker, holder, lease_id, claimed_at, mark,
       reserve_left_ms * interval '1 millisecond' AS reserve_left,
       last_renewal, renewal_failures, last_error, last_error_at, endpoint, lead_ms,
       clock_error_ms, ids_issued, refused_clock, refused_fence, refused_no_claim,
       waits, wait_time_ms, claims, pid, reason
FROM snowflake_stat();
COMMENT ON VIEW pg_stat_snowflake IS
'state of this server''s ID generator; holder, lease_id, last_error, endpoint, pid and reason are for pg_monitor';
GRANT SELECT ON pg_stat_snowflake TO PUBLIC;
