# Everything but minting works in a server that does not preload the library.

use strict;
use warnings;

use File::Spec;
use Test::More;

use PostgreSQL::Test::Utils;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Process qw(tempdir_abs slurp);

my $etcd = Snowflake::Etcd->new->start;
my $dir = tempdir_abs('dumps');

# A server that mints, with a table to dump.
my $source = Snowflake::Instance->create('source', etcd => $etcd);
$source->wait_issuing;
$source->sql(<<'EOS');
CREATE TABLE t (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), k int);
INSERT INTO t (k) SELECT generate_series(1, 1000);
CREATE TABLE parts (id bigint NOT NULL DEFAULT snowflake_nextval(), k int) PARTITION BY RANGE (id);
CREATE TABLE parts_2026 PARTITION OF parts
	FOR VALUES FROM (snowflake_floor('2026-01-01 00:00+00')) TO (snowflake_floor('2030-01-01 00:00+00'));
INSERT INTO parts (k) SELECT generate_series(1, 1000);
CREATE VIEW recent AS SELECT * FROM t WHERE snowflake_between(id, '2026-01-01 00:00+00', '2090-01-01 00:00+00');
EOS
my $sums = $source->sql('SELECT sum(id::numeric), count(*) FROM t');

my $node = Snowflake::Instance->create('plain', preload => 0, settings => { map { $_ => undef } qw(etcd_endpoints max_clock_error holder) });
is($node->sql('SELECT extversion FROM pg_extension WHERE extname = \'snowflake\''), '1.0', 'CREATE EXTENSION works');

# --- minting says what to set ---

for my $call ('SELECT snowflake_nextval()', 'SELECT * FROM snowflake_nextvals(3)')
{
	my ($out, $err) = $node->try($call);
	is($out, '', "$call gives nothing");
	like($err, qr/ERROR:  55000: .*HINT:.*shared_preload_libraries/s, "$call is refused with 55000 and says what to set");
}
is($node->sql('SELECT snowflake_ready()'), 'f', 'the server is not ready');
is($node->sql('SELECT state FROM pg_stat_snowflake'), 'disabled', 'the view has its row');

# --- decoding and DDL ---

my $id = '121209451741974082';
is($node->sql("SELECT snowflake_make(snowflake_time($id), snowflake_region($id), snowflake_worker($id), snowflake_sequence($id))"), $id, 'IDs are decoded and made');
$node->sql('CREATE TABLE own (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), k int)');
$node->sql('INSERT INTO own VALUES (1, 1)');
my ($out, $err) = $node->try('INSERT INTO own (k) VALUES (2)');
like($err, qr/ERROR:  55000:/, 'a table with the default can be made; a row without an ID is refused');
$node->sql('ALTER TABLE own ALTER id DROP DEFAULT; ALTER TABLE own ALTER id SET DEFAULT snowflake_nextval()');

# --- LOAD ---

is( $node->sql("LOAD 'snowflake'; SELECT snowflake_worker($id)"),
	$node->sql("SELECT snowflake_worker($id)"), 'LOAD in a session breaks nothing');
($out, $err) = $node->try("LOAD 'snowflake'; SELECT snowflake_nextval()");
like($err, qr/ERROR:  55000: .*shared_preload_libraries/s, 'and does not make it mint');
($out, $err) = $node->try("LOAD 'snowflake'; SET snowflake.max_wait = '1s'; SHOW snowflake.max_wait");
is($out, '1s', 'its settings can be read and set');
($out, $err) = $source->try("LOAD 'snowflake'; SELECT snowflake_nextval()");
like($out, qr/^\d+$/, 'nor does LOAD harm a server that has preloaded it');
is($node->stat_row->{pid}, undef, 'there is no background worker');

# --- dump and restore ---

my $from = $source->connstr('postgres');
command_ok([ 'pg_dump', '-Fc', '-f', "$dir/custom", '-d', $from ], 'pg_dump of a server that mints');
command_ok([ 'pg_dump', '-f', "$dir/plain.sql", '-d', $from ], 'also as a script');
like(slurp("$dir/plain.sql"), qr/DEFAULT public\.snowflake_nextval\(\)/, 'the default is in it');
unlike(slurp("$dir/plain.sql"), qr/CREATE FUNCTION.*snowflake_nextval/, 'the functions are the extension\'s');

$node->sql("CREATE DATABASE $_") for qw(custom plain);
command_ok([ 'pg_restore', '-e', '-d', $node->connstr('custom'), "$dir/custom" ], 'pg_restore into a server that does not preload');
command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('plain'), '-f', "$dir/plain.sql" ], 'and the script');
for my $database (qw(custom plain))
{
	is($node->safe_psql($database, 'SELECT sum(id::numeric), count(*) FROM t'), $sums, "$database: all IDs are there");
	is($node->safe_psql($database, 'SELECT count(*) FROM recent'), 1000, "$database: so is the view");
	is($node->safe_psql($database, 'SELECT count(*) FROM parts_2026'), 1000, "$database: and the partition");
	is( $node->safe_psql($database, q{SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef WHERE adrelid = 't'::regclass}),
		'snowflake_nextval()', "$database: and the default");
}
$node->safe_psql('plain', 'DROP EXTENSION snowflake CASCADE');
pass('DROP EXTENSION works');

# --- the way out ---

# Everything but the library's own message would do nothing.
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'snowflake'\nsnowflake.max_clock_error = 0\nsnowflake.etcd_endpoints = '" . $etcd->endpoints . "'");
$node->restart;
$node->wait_issuing;
is($node->safe_psql('custom', 'INSERT INTO t (k) VALUES (0) RETURNING id > (SELECT max(id) FROM t)'), 't', 'with what the hint says the restored table takes rows');

# --- pg_upgrade ---

$node->stop('fast');
my $claims = () = $etcd->claimed;
system_or_bail('pg_ctl', '-w', '-D', $node->data_dir, '-l', $node->logfile, '-o', '-b', 'start');
my %children = $node->children;
ok(%children > 0, 'the server runs in the mode that pg_upgrade uses');
is(scalar(grep { /snowflake/ } values %children), 0, 'and has no background worker of ours');
($out, $err) = $node->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000:/, 'minting is refused there');
is($node->safe_psql('custom', 'SELECT count(*) FROM recent'), 1001, 'reading is not');
is(scalar(() = $etcd->claimed), $claims, 'no worker number was claimed');
system_or_bail('pg_ctl', '-w', '-D', $node->data_dir, 'stop');

my $new = Snowflake::Instance->create('new', etcd => $etcd, start => 0);
chomp(my $bindir = `pg_config --bindir`);
# pg_config knows the place it was built for; the programs in use are the first in PATH.
($bindir) = grep { -x "$_/pg_upgrade" && -x "$_/postgres" } split(/:/, $ENV{PATH}), $bindir;
my $here = tempdir_abs('upgrade');
my $log = '';
$ENV{PGHOST} = $new->host;
my $ok = IPC::Run::run([ 'sh', '-c', 'cd "$0" && exec "$@"', $here, 'pg_upgrade', '-b', $bindir, '-B', $bindir,
		'-d', File::Spec->rel2abs($node->data_dir), '-D', File::Spec->rel2abs($new->data_dir), '-s', $here,
		'-p', $node->port, '-P', $new->port ], '>', \$log, '2>&1');
diag($log) unless $ok;
ok($ok, 'pg_upgrade takes the cluster over');
SKIP:
{
	skip 'no upgraded cluster', 2 unless $ok;
	$new->start;
	$new->wait_issuing;
	is($new->safe_psql('custom', 'SELECT count(*) FROM recent'), 1001, 'with all its rows');
	is($new->safe_psql('custom', 'INSERT INTO t (k) VALUES (0) RETURNING id > (SELECT max(id) FROM t)'), 't', 'and mints');
}

done_testing();
