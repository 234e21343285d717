# Many IDs in one call.

use strict;
use warnings;

use Test::More;

use PostgreSQL::Test::Utils;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(bulk idcheck);
use Snowflake::Process qw(tempdir_abs);

my $etcd = Snowflake::Etcd->new->start;
my $node = Snowflake::Instance->create('a', etcd => $etcd);
$node->wait_issuing;

is( $node->sql(<<'EOS'),
WITH minted AS (
  SELECT n, id, position,
         lag(id) OVER (PARTITION BY n ORDER BY position) AS before
  FROM generate_series(1, 1000) AS n, snowflake_nextvals(n) WITH ORDINALITY AS t(id, position)
), calls AS (
  SELECT n, count(*) AS got, bool_and(coalesce(id > before, true)) AS increasing,
         count(DISTINCT id & (1023 << 12)) AS nodes
  FROM minted GROUP BY n
)
SELECT count(*), bool_and(got = n), bool_and(increasing), max(nodes), (SELECT count(DISTINCT id) FROM minted)
FROM calls
EOS
	'1000|t|t|1|500500',
	'every count from 1 to 1000 gives exactly so many, increasing, of one worker number, never one twice');

for my $count (0, -1, 1001, 2147483647)
{
	my ($out, $err) = $node->try("SELECT snowflake_nextvals($count)");
	is($out, '', "a count of $count gives nothing");
	like($err, qr/ERROR:  22(?:023|003):.*$count.*DETAIL:.*1.*1000/s, "a count of $count is an error that says what is allowed");
}
is($node->sql('SELECT count(*) FROM snowflake_nextvals(NULL)'), 0, 'a count of NULL gives no row');

like($node->sql('EXPLAIN SELECT * FROM snowflake_nextvals(250)'), qr/rows=250 /, 'the planner knows how many rows come');

# Single calls between bulk calls, many in each millisecond.
is( $node->sql(<<'EOS'),
WITH minted AS MATERIALIZED (
  SELECT g, bulk, single
  FROM generate_series(1, 5000) AS g, LATERAL (SELECT array_agg(id) AS bulk FROM snowflake_nextvals(5 + 0 * g) AS id) AS b,
       LATERAL (SELECT snowflake_nextval() AS single WHERE bulk IS NOT NULL) AS s
), ids AS (
  SELECT unnest(bulk) AS id FROM minted UNION ALL SELECT single FROM minted
)
SELECT count(*), count(DISTINCT id) FROM ids
EOS
	'30000|30000',
	'a single call right after a bulk call gets none of its IDs');

# A caller that reads only some of the rows loses nothing but IDs.
my $dir = tempdir_abs('ids');
my $partial = <<'EOS';
BEGIN;
DECLARE c CURSOR FOR SELECT snowflake_nextvals(1000);
FETCH 3 FROM c;
SELECT snowflake_nextval();
FETCH 2 FROM c;
CLOSE c;
COMMIT;
SELECT * FROM snowflake_nextvals(1000) LIMIT 4;
SELECT snowflake_nextvals(1000) LIMIT 4;
BEGIN;
DECLARE d SCROLL CURSOR FOR SELECT * FROM snowflake_nextvals(10);
FETCH 5 FROM d;
ROLLBACK;
EOS
append_to_file("$dir/partial.ids", $node->sql($partial x 50) . "\n");
my $found = idcheck('--unordered', "$dir/partial.ids");
is($found->{ids}, 50 * 19, 'cursors and LIMIT give the rows asked for');
is($found->{duplicates}, 0, 'and what they left unread never comes again');

# Bulk and single calls side by side.
my @files = bulk(
	{ node => $node, sessions => 2, count => 500_000 },
	{ node => $node, sessions => 2, count => 500, sql => 'SELECT id FROM generate_series(1, %d) AS g, snowflake_nextvals(1000 + 0 * g) AS id' },
	{ node => $node, sessions => 2, count => 2000, sql => 'SELECT snowflake_nextvals(1 + g %% 500) FROM generate_series(1, %d) AS g' });
$found = idcheck(@files);
ok($found->{clean}, 'sessions that mint in bulk and one by one never share an ID, and each increases');
cmp_ok($found->{ids}, '>', 2_000_000, 'they minted more than two million');

my ($out, $err) = $node->try('SET snowflake.max_wait = 0; SELECT count(*) FROM generate_series(1, 3000) AS g, snowflake_nextvals(1000 + 0 * g) AS id');
ok($out =~ /^3000000$/m || $err =~ /ERROR:  55000:.*DETAIL:.*HINT:/s,
	'a burst beyond the ceiling without waiting is served or refused, never wrong');
note($err);

done_testing();
