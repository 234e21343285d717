# Hot standbys, with and without a worker number of their own, through promotion; and the old primary
# that lives on.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::Utils;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually);

my %short = (reserve => '5s', lease_ttl => '10s');

my $etcd = Snowflake::Etcd->new->start;
my $primary = Snowflake::Instance->create('primary', etcd => $etcd, settings => \%short, init => { allows_streaming => 1 });
$primary->wait_issuing;
$primary->sql('CREATE TABLE t (id bigint PRIMARY KEY DEFAULT snowflake_nextval())');
$primary->backup('b');

my @loads;

sub standby
{
	my ($name, %settings) = @_;
	my $node = Snowflake::Instance->new($name);
	$node->init_from_backup($primary, 'b', has_streaming => 1);
	$settings{holder} = $name;
	$node->append_conf('postgresql.conf', join('', map { "snowflake.$_ = '$settings{$_}'\n" } sort keys %settings));
	$node->start;
	return $node;
}

sub load { my ($node, %with) = @_; push @loads, Snowflake::Load->start($node, %with); return $loads[-1]; }

sub holders { my $claims = $etcd->under($etcd->workers_prefix); return join ' ', sort map { $_->{value} } values %$claims; }

# Promotes it, and returns the moments between which recovery ended.
sub promoted
{
	my ($node) = @_;
	my $before = time;
	is($node->sql('SELECT pg_promote()'), 't', $node->name . ' is promoted');
	return ($before, time);
}

# --- on_standby = off ---

my $quiet = standby('quiet');
my $loud = standby('loud', on_standby => 'on');

ok($quiet->wait_state('standby'), 'with on_standby off a standby says that it is one');
my ($out, $err) = $quiet->try('SELECT snowflake_nextval()');
is($out, '', 'and mints nothing');
like($err, qr/ERROR:  55000: .*standby mints no IDs.*DETAIL: .*recovery.*on_standby.*HINT: .*primary/s, 'it says why, and what to do');
is($quiet->sql('SELECT snowflake_ready()'), 'f', 'it is not ready');
is($quiet->sql('SELECT snowflake_worker(max(id)) FROM t'), '', 'decoding works there');
is($quiet->stat('lease_id'), undef, 'it holds no lease');

# --- on_standby = on ---

my $row = $loud->wait_state('issuing');
ok($row, 'with on_standby on a standby mints');
is(holders(), 'loud primary', 'the two that mint hold a number each, and the other standby none');
is($loud->sql('SHOW transaction_read_only; SELECT snowflake_worker(snowflake_nextval())'), "on\n$row->{worker}",
	'it mints in a read-only transaction, with a number of its own');
isnt($row->{worker}, $primary->stat('worker'), 'which is not the primary\'s');

my $on_primary = load($primary, interval => 0.002, sql => 'INSERT INTO t SELECT FROM generate_series(1, 20) RETURNING id');
my $on_quiet = load($quiet, interval => 0.002);
my $on_loud = load($loud, interval => 0.002);
eventually(20, sub { $on_primary->succeeded > 50 && $on_loud->succeeded > 50 });

# Off and on again, by reload.
$loud->append_conf('postgresql.conf', "snowflake.on_standby = off\n");
my $moment = time;
$loud->reload;
ok(eventually(5, sub { holders() eq 'primary' }, 0.02), 'set to off by reload, it gives its number back');
cmp_ok(time - $moment, '<', 1, sprintf('at once (%.2f s)', time - $moment));
is($loud->wait_state('standby', 5) && $loud->stat('lease_id'), undef, 'and says that it is a standby');
($out, $err) = $loud->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000: .*standby mints no IDs/, 'it refuses from then on');
$loud->append_conf('postgresql.conf', "snowflake.on_standby = on\n");
$loud->reload;
$row = $loud->wait_state('issuing');
ok($row, 'set to on again, it mints again');
eventually(10, sub { defined $on_loud->first_success_after($moment) });
my $minting = time;
my $lease = $row->{lease_id};

# --- promotion of the one that mints; the old primary lives on ---

$moment = time;
promoted($loud);
is($loud->sql('SELECT pg_is_in_recovery()'), 'f', 'it is a primary now');
$moment = time;
eventually(10, sub { defined $on_loud->first_success_after($moment) });
is($loud->stat('lease_id'), $lease, 'its lease is the same as before');
is($loud->stat('claims'), $row->{claims}, 'and so is its claim');
my ($refused_later) = grep { $_->{at} > $minting } $on_loud->refused;
is($refused_later && $refused_later->{text}, undef, 'through its promotion under load not one call was refused');

# --- promotion of the one that does not ---

my ($before, $after) = promoted($quiet);
my $took;
eventually(10, sub { defined($took = $on_quiet->first_success_after($before)) });
$took = $before + ($took // 99) - $after;
cmp_ok($took, '<=', 1, sprintf('it mints within 1 s of its promotion (%.2f s)', $took));
is($quiet->state, 'issuing', 'and says so');
is(holders(), 'loud primary quiet', 'three primaries of one history hold three numbers');

# All three write: the same history, and no ID in common.
$moment = time;
for my $node ($quiet, $loud)
{
	load($node, interval => 0.002, sql => 'INSERT INTO t SELECT FROM generate_series(1, 20) RETURNING id');
	load($node, interval => 0.005, sql => 'SELECT snowflake_nextval() FROM generate_series(1, 2000)');
}
load($primary, interval => 0.005, sql => 'SELECT snowflake_nextval() FROM generate_series(1, 2000)');
eventually(20, sub { !grep { !defined $_->first_success_after($moment + 1) } @loads });
$_->stop for @loads;
my $found = idcheck(map { $_->id_files } @loads);
cmp_ok($found->{ids}, '>', 100_000, "$found->{ids} IDs were minted by the old primary and the promoted ones");
is($found->{duplicates}, 0, 'none of them twice');
is($found->{order_violations}, 0, 'and those of each session increase');
my ($bad) = grep { $_->{sqlstate} ne '55000' } map { $_->refused } @loads;
is($bad ? "$bad->{sqlstate} $bad->{text}" : undef, undef, 'calls were refused with 55000 only');
@loads = ();

# --- a failover some time after the region's only instance died ---

$_->stop('immediate') for $quiet, $loud;
$primary->sql('CHECKPOINT');
my $heir = standby('heir');
$heir->wait_state('standby');
# The primary has to be the only one whose mark a newcomer can see.
ok(eventually(30, sub { holders() eq 'primary' }), 'the claims of dead instances go with their leases');
$on_primary = load($primary, interval => 0.002);
eventually(20, sub { $on_primary->succeeded > 20 });
my $on_heir = load($heir, interval => 0.002);
$primary->kill9;
ok(eventually(60, sub { !grep { $_->{value} >= time * 1000 } values %{ $etcd->under($etcd->marks_prefix) } }),
	'the primary is dead, and its mark past');
($before, $after) = promoted($heir);
eventually(40, sub { defined($took = $on_heir->first_success_after($before)) });
$took = $before + ($took // 99) - $after;
cmp_ok($took, '<=', 1, sprintf('its heir mints within 1 s of its promotion, since it watched etcd until then (%.2f s)', $took));
$_->stop for @loads;
is(idcheck(map { $_->id_files } @loads)->{duplicates}, 0, 'and no ID of the dead one is minted again');

done_testing();
