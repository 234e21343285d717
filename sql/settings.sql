-- The settings: what they are, and what they refuse.
SELECT name, vartype AS type, unit, boot_val AS default, min_val AS min, max_val AS max, context
FROM pg_settings WHERE name LIKE 'snowflake.%' AND name <> 'snowflake.holder' ORDER BY name;
SELECT name, vartype AS type, context, boot_val ~ '^.+:\d+$' AS host_and_port
FROM pg_settings WHERE name = 'snowflake.holder';
SELECT name FROM pg_settings WHERE name LIKE 'snowflake.%' AND coalesce(short_desc, '') = '';

-- As people read them
SHOW snowflake.lease_ttl;
SHOW snowflake.reserve;
SHOW snowflake.renew_interval;
SHOW snowflake.max_wait;
SHOW snowflake.etcd_prefix;
SHOW snowflake.region;
SHOW snowflake.on_standby;

-- Endpoints: a list of scheme, host and port.
ALTER SYSTEM SET snowflake.etcd_endpoints = 'etcd1:2379';
\echo :SQLSTATE
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://etcd1';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://etcd1:2379,';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://etcd1:2379,,http://etcd2:2379';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'https://etcd1:2379/';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'https://etcd1:2379/v3';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://etcd1:0';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://etcd1:65536';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://etcd1:port';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'ftp://etcd1:2379';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://user:secret@etcd1:2379';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://:2379';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://[::1:2379';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://etcd 1:2379';
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://etcd1:2379 http://etcd2:2379';

-- Files: there, and readable by the server.
ALTER SYSTEM SET snowflake.etcd_cacert = '/nonexistent/ca.crt';
\echo :SQLSTATE
ALTER SYSTEM SET snowflake.etcd_cert = '/nonexistent/client.crt';
ALTER SYSTEM SET snowflake.etcd_key = '/nonexistent/client.key';
ALTER SYSTEM SET snowflake.etcd_password_file = '/nonexistent/password';

-- The prefix of the keys
ALTER SYSTEM SET snowflake.etcd_prefix = 'idgen';
\echo :SQLSTATE
ALTER SYSTEM SET snowflake.etcd_prefix = '/idgen/';
ALTER SYSTEM SET snowflake.etcd_prefix = '/';
ALTER SYSTEM SET snowflake.etcd_prefix = '';
ALTER SYSTEM SET snowflake.etcd_prefix = '/id gen';

-- Numbers
ALTER SYSTEM SET snowflake.region = 8;
\echo :SQLSTATE
ALTER SYSTEM SET snowflake.region = -1;
ALTER SYSTEM SET snowflake.region = 'eu';
ALTER SYSTEM SET snowflake.max_wait = '5 parsecs';
ALTER SYSTEM SET snowflake.on_standby = 'maybe';

-- No setting by a name that is none, so that a misspelt one is noticed.
SET snowflake.max_weight = '1s';
\echo :SQLSTATE
ALTER SYSTEM SET snowflake.endpoints = 'http://etcd1:2379';
\echo :SQLSTATE

-- Nothing of that has been written.
SELECT name, setting, error FROM pg_file_settings WHERE name LIKE 'snowflake.%' AND sourcefile LIKE '%postgresql.auto.conf';

-- What is right is taken. None of it is loaded here.
ALTER SYSTEM SET snowflake.etcd_endpoints = 'http://etcd1:2379 , https://10.0.0.2:2379,http://[::1]:2379';
ALTER SYSTEM SET snowflake.etcd_cacert = 'PG_VERSION';
ALTER SYSTEM SET snowflake.etcd_prefix = '/ids/of-this_fleet';
ALTER SYSTEM SET snowflake.region = 7;
ALTER SYSTEM SET snowflake.lease_ttl = '2min';
SELECT name, setting FROM pg_file_settings
WHERE name LIKE 'snowflake.%' AND sourcefile LIKE '%postgresql.auto.conf' ORDER BY name;
ALTER SYSTEM RESET snowflake.etcd_endpoints;
ALTER SYSTEM RESET snowflake.etcd_cacert;
ALTER SYSTEM RESET snowflake.etcd_prefix;
ALTER SYSTEM RESET snowflake.region;
ALTER SYSTEM RESET snowflake.lease_ttl;

-- A session may only say how long it waits.
SET snowflake.max_wait = 0;
SET snowflake.max_wait = '2s';
SHOW snowflake.max_wait;
SET snowflake.etcd_endpoints = 'http://127.0.0.1:2379';
SET snowflake.lease_ttl = '1min';
