# Several endpoints of which some do not serve, and other ones while the server runs.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually free_port);
use Snowflake::Proxy;

my $etcd = Snowflake::Etcd->new->start;
my $good = $etcd->endpoint;

# --- wrong ones at first ---

my $nobody = 'http://127.0.0.1:' . free_port();
my $node = Snowflake::Instance->create('a', settings => { etcd_endpoints => $nobody });
my $row = $node->wait_stat(sub { $_[0]->{last_error} }, 10);
is($row->{state}, 'claiming', 'without an etcd that answers the instance tries to claim a number');
like($row->{last_error}, qr/\Q$nobody\E/, 'the last error names the endpoint');
my ($out, $err) = $node->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000: .*no worker number.*DETAIL:.*HINT:/s, 'a call is refused with 55000 and says why');
my $pid = $row->{pid};
my $postmaster = $node->postmaster_pid;

$node->set(etcd_endpoints => $good);
my $took = $node->seconds_to_mint(20);
cmp_ok($took, '<=', 2, sprintf('ALTER SYSTEM and a reload are enough to mint (%.2f s)', $took));
$row = $node->wait_issuing;
is($row->{pid}, $pid, 'the background worker is the same');
is($row->{endpoint}, $good, 'the view shows the endpoint');

# --- one that does not serve in front of one that does ---

my $load = Snowflake::Load->start($node, sessions => 2, interval => 0.005);

# Renewed by way of the good endpoint.
sub renewed_within
{
	my ($seconds, $what, $wanted) = @_;
	my $from = time;
	my $good_row = $node->wait_stat(
		sub {
			my ($now) = @_;
			return 0 unless $now->{last_renewal} && $now->{reserve_left} && $now->{endpoint} eq $wanted;
			return $now->{renewed_at} > $from;
		},
		$seconds);
	my $seconds_taken = time - $from;
	ok($good_row, sprintf('%s: the next endpoint serves (%.1f s)', $what, $seconds_taken))
	  or diag(explain($node->stat_row));
	return;
}

my $refusing = Snowflake::Proxy->new($etcd->port);
$refusing->mode('refuse');
my $resetting = Snowflake::Proxy->new($etcd->port);
$resetting->mode('reset');
my $silent = Snowflake::Proxy->new($etcd->port);
$silent->mode('blackhole');
my $unreachable = Snowflake::Proxy->new($etcd->port);
$unreachable->mode('hang_connect');
my $mute = Snowflake::Proxy->new($etcd->port);
$mute->mode('drop_replies');
my $leaderless = Snowflake::Etcd->new(members => 3)->start;
$leaderless->kill9_member($_) for 1, 2;

my %bad = (
	'one where nobody listens' => $nobody,
	'one that refuses' => $refusing->endpoint,
	'one that resets' => $resetting->endpoint,
	'one that accepts and says nothing' => $silent->endpoint,
	'one that does not even take connections' => $unreachable->endpoint,
	'one whose answers are lost' => $mute->endpoint,
	'a member without a leader' => $leaderless->endpoint(0),
	'a name that is none' => 'http://no-such-host.invalid:2379',
	'one that speaks TLS only' => $etcd->endpoint =~ s/^http:/https:/r,
);
for my $what (sort keys %bad)
{
	$node->set(etcd_endpoints => "$bad{$what},$good");
	renewed_within(4, $what, $good);
}
$node->set(etcd_endpoints => join(',', (map { $bad{$_} } sort keys %bad), $good));
renewed_within(12, 'all of them in front of one that serves', $good);
$row = $node->stat_row;
is($row->{claims}, 1, 'through all this the first claim stood');
is($row->{pid}, $pid, 'and the background worker lived');
$leaderless->stop;

# A stop with the worst of them in use.
$node->set(etcd_endpoints => $unreachable->endpoint);
$node->wait_stat(sub { ($_[0]->{endpoint} // '') eq $unreachable->endpoint }, 10);

# --- no endpoints ---

my $number = $row->{worker};
$node->set(etcd_endpoints => $good);
renewed_within(5, 'back again', $good);
$load->stop;
is(scalar(grep { $_->{sqlstate} ne '00000' } $load->calls), 0, 'not one call was refused so far');
ok(idcheck($load->id_files)->{clean}, 'and all IDs are distinct and in order');

$node->set(etcd_endpoints => '');
is($node->wait_state('disabled', 10)->{state}, 'disabled', 'without endpoints the instance is disabled');
ok(eventually(5, sub { !$etcd->claim($number) }), 'and gives its number back');
($out, $err) = $node->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000: .*snowflake\.etcd_endpoints.*HINT:/s, 'a call says what to set');
$node->set(etcd_endpoints => $good);
$took = $node->seconds_to_mint(10);
cmp_ok($took, '<=', 2, sprintf('with endpoints again it mints (%.2f s)', $took));
is($node->postmaster_pid, $postmaster, 'no restart was needed');

# --- three members, one of which hears its leader and is not heard ---

my $three = Snowflake::Etcd->new(members => 3, peer_proxies => 1)->start;
my $leader = $three->leader;
my ($cut_off, $other) = grep { $_ != $leader } $three->all;
my $b = Snowflake::Instance->create('b',
	settings => { etcd_endpoints => join(',', map { $three->endpoint($_) } $cut_off, $other, $leader) });
$b->wait_issuing;
is($b->stat('endpoint'), $three->endpoint($cut_off), 'an instance works through a follower');
$load = Snowflake::Load->start($b, sessions => 2, interval => 0.005);
my $renewed = $b->stat('last_renewal');
$three->cut_off($cut_off, 'blackhole');
$row = $b->wait_stat(sub { $_[0]->{endpoint} ne $three->endpoint($cut_off) && $_[0]->{last_renewal} gt $renewed }, 10);
ok($row, 'the follower is cut off from its peers: the next endpoint serves');
for my $round (1 .. 2)
{
	my $frozen = eventually(20, sub { my $at = $three->leader(not => $cut_off); defined $at ? $at + 1 : 0 }) - 1;
	$renewed = $b->stat('last_renewal');
	$three->cut_off($cut_off, 'pass');
	$three->wait_healthy;
	$three->kill9_member($frozen);
	ok($b->wait_stat(sub { $_[0]->{last_renewal} gt $renewed && $_[0]->{reserve_left_s} > 28 }, 20),
		"round $round: the leader is killed, and the instance renews at another member");
	$three->start_member($frozen);
	$three->wait_healthy;
}
$load->stop;
is(scalar(grep { $_->{sqlstate} ne '00000' } $load->calls), 0, 'not one call was refused');
ok(idcheck($load->id_files)->{clean}, 'and all IDs are distinct and in order');

done_testing();
