# Many sessions of one instance at full speed.

use strict;
use warnings;

use Test::More;

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(bulk idcheck);

my $sessions = 8;
my $count = 2_000_000;

my $etcd = Snowflake::Etcd->new->start;
my $node = Snowflake::Instance->create('a', etcd => $etcd);
my $before = $node->wait_issuing;
ok($before, 'an instance with etcd behind it mints by itself');

# Every ID, and for some of them the clock at the moment of minting.
my $sql = <<'EOS';
SELECT id, CASE WHEN snowflake_sequence(id) % 512 = 0
                THEN (extract(epoch FROM clock_timestamp()) * 1000)::bigint END
FROM (SELECT snowflake_nextval() AS id FROM generate_series(1, %d) OFFSET 0) AS minted
EOS
my @files = bulk({ node => $node, sessions => $sessions, count => $count, sql => $sql });
my $found = idcheck(@files);

is($found->{ids}, $sessions * $count, "$sessions sessions minted $count IDs each");
is($found->{duplicates}, 0, 'no ID is a duplicate');
is($found->{order_violations}, 0, 'the IDs of each session increase');
is($found->{nodes}, "$before->{region}/$before->{worker}", 'all IDs carry the worker number of the view');
cmp_ok($found->{clock_samples}, '>', 1000, 'the time in the IDs was held against the clock');
cmp_ok($found->{ahead_max_ms}, '<=', 1100, 'no ID is more than 1,100 ms ahead of the clock');
cmp_ok($found->{behind_max_ms}, '<=', 1100, 'no ID is more than 1,100 ms behind the clock');

my $after = $node->stat_row;
is($after->{ids_issued} - $before->{ids_issued}, $sessions * $count, 'the view counts every ID');
is($after->{state}, 'issuing', 'the view says so');
is($after->{$_}, 0, "$_ is 0: sessions at full speed wait rather than refuse")
  for qw(refused_clock refused_fence refused_no_claim);
is($after->{claims}, 1, 'one claim was made');
is($after->{renewal_failures}, 0, 'no renewal failed');
is($after->{last_error}, undef, 'there was no error');

# The main job: a table, and what is in it.
$node->sql('CREATE TABLE t (id bigint PRIMARY KEY DEFAULT snowflake_nextval(), k int)');
is($node->sql('INSERT INTO t (k) SELECT g FROM generate_series(1, 1000) g RETURNING id') =~ tr/\n//,
	999, 'a table with the default takes rows');
is( $node->sql(
		q{SELECT DISTINCT d.region, d.worker, abs(extract(epoch FROM d.time - now())) < 60
		  FROM t, snowflake_decode(id) AS d}),
	"$after->{region}|$after->{worker}|t",
	'its IDs decode to this instance and this minute');
is( $node->sql('SELECT count(*) FROM t WHERE snowflake_make(snowflake_time(id), snowflake_region(id),
	snowflake_worker(id), snowflake_sequence(id)) = id'),
	1000, 'decoding and making are inverse');

# etcd's side of it.
my $claim = $etcd->claim($after->{worker});
is($claim->{value}, 'a', 'the claim names the holder');
is($claim->{lease}, $after->{lease_id}, 'the claim hangs on the lease of the view');
like($etcd->mark($after->{worker}), qr/^\d{13}$/, 'the mark is 13 digits');
is($etcd->under($etcd->mark_key($after->{worker}))->{ $etcd->mark_key($after->{worker}) }{lease},
	0, 'the mark hangs on no lease');

done_testing();
