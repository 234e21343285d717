# Every way in which Postgres makes rows: an ID is an ID, never twice.

use strict;
use warnings;

use Test::More;

use PostgreSQL::Test::Utils;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually tempdir_abs);

my $etcd = Snowflake::Etcd->new->start;
my $conf = "max_prepared_transactions = 10\nmax_worker_processes = 12\n";
my $node = Snowflake::Instance->create('a', etcd => $etcd, conf => $conf, init => { allows_streaming => 'logical' });
$node->wait_issuing;

# --- a parallel plan ---

$node->sql('CREATE TABLE big AS SELECT g FROM generate_series(1, 1000000) g');
$node->sql('ANALYZE big');
my $plan = $node->sql(<<'EOS');
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET max_parallel_workers_per_gather = 3;
EXPLAIN (ANALYZE, VERBOSE, COSTS OFF, TIMING OFF) CREATE TABLE minted AS SELECT snowflake_nextval() AS id FROM big;
EOS
like($plan, qr/Gather.*Parallel Seq Scan on public\.big [^\n]*\n\s+Output: snowflake_nextval\(\)/s,
	'the IDs are minted below the Gather node of a parallel plan');
like($plan, qr/Workers Launched: [1-9]/, 'parallel workers were launched');
is($node->sql('SELECT count(*), count(DISTINCT id) FROM minted'), '1000000|1000000', 'their IDs are all distinct');

# --- a rewrite ---

$node->sql('ALTER TABLE big ADD COLUMN id bigint DEFAULT snowflake_nextval()');
is($node->sql('SELECT count(*), count(DISTINCT id) FROM big'),
	'1000000|1000000', 'ADD COLUMN with the default gives a million rows distinct IDs');
is($node->sql('SELECT count(*) FROM big JOIN minted USING (id)'), 0, 'and none of those minted before');

# --- COPY and triggers ---

$node->sql(<<'EOS');
CREATE TABLE t (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), k int, note text);
CREATE TABLE log (id bigint PRIMARY KEY, of bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN INSERT INTO log VALUES (snowflake_nextval(), NEW.id); RETURN NEW; END$$;
CREATE FUNCTION set_id() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN NEW.id := snowflake_nextval(); RETURN NEW; END$$;
CREATE TRIGGER note AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION note();
EOS
my $rows = join('', map { "$_\n" } 1 .. 20000);
$node->safe_psql('postgres', "COPY t (k) FROM STDIN;\n$rows\\.\n");
$node->sql('CREATE TRIGGER set_id BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION set_id()');
$node->safe_psql('postgres', "COPY t (k) FROM STDIN;\n$rows\\.\n");
$node->sql('INSERT INTO t (k) SELECT g FROM generate_series(1, 10000) g');
is($node->sql('SELECT count(*), count(DISTINCT id) FROM (SELECT id FROM t UNION ALL SELECT id FROM log) AS u'),
	'100000|100000', 'COPY, BEFORE and AFTER triggers get distinct IDs');
is($node->sql('SELECT count(*) FROM t JOIN log ON log.of = t.id WHERE log.id <= t.id'),
	0, 'an ID minted in a trigger of a row is higher than the row\'s');

# --- what was rolled back ---

my $dir = tempdir_abs('ids');
my $round = <<'EOS';
BEGIN;
INSERT INTO t (k) VALUES (1), (2) RETURNING id;
SAVEPOINT s;
INSERT INTO t (k) VALUES (3) RETURNING id;
ROLLBACK TO s;
INSERT INTO t (k) VALUES (4) RETURNING id;
ROLLBACK;
INSERT INTO t (k) VALUES (5) RETURNING id;
DO $$ BEGIN PERFORM snowflake_nextval(); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN PERFORM snowflake_nextval(); END $$;
EOS
my $ids = $node->sql($round x 200);
append_to_file("$dir/rolled_back.ids", "$ids\n");
my $found = idcheck("$dir/rolled_back.ids");
is($found->{ids}, 1000, 'IDs were minted in transactions and savepoints, most rolled back');
ok($found->{clean}, 'none comes again after the rollback, and all increase');

# --- prepared transactions, over a crash ---

$node->sql(<<'EOS');
BEGIN; INSERT INTO t (k, note) SELECT g, 'kept' FROM generate_series(1, 100) g; PREPARE TRANSACTION 'kept';
BEGIN; INSERT INTO t (k, note) SELECT g, 'dropped' FROM generate_series(1, 100) g; PREPARE TRANSACTION 'dropped';
EOS
$node->kill9;
$node->start_after_crash;
$node->wait_issuing;
$node->sql("INSERT INTO t (k, note) SELECT g, 'later' FROM generate_series(1, 100) g");
$node->sql("COMMIT PREPARED 'kept'");
$node->sql("ROLLBACK PREPARED 'dropped'");
is( $node->sql("SELECT note, count(DISTINCT id) FROM t WHERE note IS NOT NULL GROUP BY note ORDER BY note"),
	"kept|100\nlater|100", 'a prepared transaction keeps its IDs over a crash, and nobody else gets them');

# --- logical replication ---

my $subscriber = Snowflake::Instance->create('b', etcd => $etcd);
$subscriber->wait_issuing;
$node->sql('CREATE TABLE r (k int PRIMARY KEY); INSERT INTO r SELECT generate_series(1, 1000)');
$node->sql('CREATE PUBLICATION p FOR TABLE r');
$subscriber->sql('CREATE TABLE r (k int PRIMARY KEY, id bigint DEFAULT snowflake_nextval())');
(my $from = $node->connstr('postgres')) =~ s/'/''/g;
$subscriber->sql("CREATE SUBSCRIPTION s CONNECTION '$from' PUBLICATION p");
$node->sql("INSERT INTO r SELECT generate_series(1001, 2000)");
ok( eventually(60, sub { $subscriber->sql('SELECT count(*) FROM r') == 2000 }),
	'rows arrive by logical replication');
is($subscriber->sql('SELECT count(DISTINCT id), count(DISTINCT snowflake_worker(id)) FROM r'),
	'2000|1', 'rows copied and applied on the subscriber get distinct IDs of its own worker number');
$subscriber->sql('DROP SUBSCRIPTION s');

done_testing();
