# Endpoints whose name lookup hangs, as when the name servers can't be reached. LD_PRELOAD gives every
# process of the server such a lookup for one name (test/drills/slowdns.c).

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually);

my $etcd = Snowflake::Etcd->new->start;
my $good = $etcd->endpoint;
my $hanging = 'http://hangs.invalid:2379';

# Each lookup of the hanging name takes $seconds.
sub start
{
	my ($node, $seconds) = @_;
	local $ENV{LD_PRELOAD} = "$ENV{DRILLS_PROGRAMS}/slowdns.so";
	local $ENV{SLOWDNS_SECONDS} = $seconds;
	my $from = time;
	$node->start;
	return time - $from;
}

sub create
{
	my ($name, %settings) = @_;
	return Snowflake::Instance->create($name, start => 0,
		settings => { lease_ttl => '6s', reserve => '4s', renew_interval => '500ms', %settings });
}

sub threads { my ($node) = @_; my @tasks = glob '/proc/' . $node->worker_pid . '/task/*'; return scalar @tasks; }

# The most threads of the worker within some seconds.
sub most_threads
{
	my ($node, $seconds) = @_;
	my $most = 0;
	my $end = time + $seconds;
	while (time < $end)
	{
		my $now = threads($node);
		$most = $now if $now > $most;
		sleep 0.1;
	}
	return $most;
}

sub stops
{
	my ($node, $what) = @_;
	my $took = $node->timed_stop('fast') // 99;
	cmp_ok($took, '<=', 2, sprintf('%s: stop -m fast is quick (%.2f s)', $what, $took));
	return;
}

# --- nothing but a name that hangs ---

my $alone = create('alone', etcd_endpoints => $hanging);
my $took = start($alone, 60);
cmp_ok($took, '<=', 5, sprintf('with nothing but an endpoint whose name lookup hangs the server starts (%.2f s)', $took));
$alone->sql('CREATE EXTENSION snowflake');
my $pid = $alone->worker_pid;
my $row = $alone->wait_stat(sub { $_[0]->{last_error} }, 10);
ok($row, 'there is a last error');
like($row->{last_error} // '', qr/\Q$hanging\E: Resolving timed out/, 'which names the endpoint and says that the time was up');
note($row->{last_error} // '');
is($row->{state}, 'claiming', 'the view says that a number is being claimed');
my ($out, $err) = $alone->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000: .*DETAIL:.*HINT:/s, 'a call is refused with 55000');
note('threads of the worker while each lookup takes a minute: ' . most_threads($alone, 5));
is($alone->worker_pid, $pid, 'the background worker lives');
stops($alone, 'while a name is being looked up');

# A lookup that nobody waits for any more goes on in its thread. With lookups of 5 s there are as many
# after 5 s as there will ever be.
start($alone, 5);
ok($alone->wait_stat(sub { $_[0]->{last_error} }, 10), 'the same with lookups of 5 s');
my $first = most_threads($alone, 8);
my $then = most_threads($alone, 8);
cmp_ok($then, '<=', $first + 1, "the worker's threads do not become more ($first, then $then)");
cmp_ok($then, '<=', 20, 'and are few');
stops($alone, 'with lookups that end');

# --- a good endpoint after it ---

my $node = create('a', etcd_endpoints => "$hanging,$good");
$took = start($node, 60);
cmp_ok($took, '<=', 5, sprintf('with a good endpoint after it the server starts (%.2f s)', $took));
my $from = time;
$node->sql('CREATE EXTENSION snowflake');
$row = $node->wait_issuing(15);
$took = time - $from;
ok($row, 'it mints');
cmp_ok($took, '<=', 8, sprintf('after some seconds (%.2f s)', $took));
is($row->{endpoint}, $good, 'by way of the good endpoint');
$pid = $node->worker_pid;

my $load = Snowflake::Load->start($node, sessions => 2, interval => 0.01);
eventually(10, sub { $load->succeeded > 20 });
my $most = most_threads($node, 6);
ok($node->wait_stat(sub { $_[0]->{reserve_left_s} && $_[0]->{reserve_left_s} > 3 }, 5), 'for longer than the reserve, which is whole');

# Every reload begins with the first endpoint again.
for my $round (1 .. 3)
{
	$from = time;
	$node->set(renew_interval => $round % 2 ? '400ms' : '500ms');
	$row = $node->wait_stat(sub { $_[0]->{renewed_at} > $from + 0.5 && $_[0]->{endpoint} eq $good }, 4);
	ok($row, sprintf('reload %d: it comes to the good endpoint again (%.1f s)', $round, time - $from));
	my $now = most_threads($node, 1.5);
	$most = $now if $now > $most;
}
# Without the good one the two take turns.
$etcd->pause;
$node->wait_stat(sub { $_[0]->{endpoint} eq $hanging }, 10);
sleep 1;
$etcd->resume;
$from = time;
$row = $node->wait_stat(sub { $_[0]->{renewed_at} > $from && $_[0]->{endpoint} eq $good }, 10);
$took = time - $from;
ok($row, 'the good endpoint pauses for a while and wakes: it renews again');
cmp_ok($took, '<=', 4, sprintf('after some seconds (%.2f s)', $took));
my $now = most_threads($node, 1);
$most = $now if $now > $most;
cmp_ok($most, '<=', 20, "the worker had few threads through all this ($most)");
is($node->worker_pid, $pid, 'it lives');
is($node->stat('claims'), 1, 'the first claim stands');
$load->stop;
my @calls = $load->calls;
cmp_ok(scalar @calls, '>', 500, 'the load was one (' . @calls . ' calls)');
is(scalar(grep { $_->{sqlstate} ne '00000' } @calls), 0, 'not one call was refused');
ok(idcheck($load->id_files)->{clean}, 'and all IDs are distinct and in order');

# --- a reload in the middle of a lookup ---

$node->set(etcd_endpoints => $hanging);
ok($node->wait_state('fenced', 15), 'nothing but the name that hangs: the reserve runs out');
$from = time;
$node->set(etcd_endpoints => $good);
$took = $node->seconds_to_mint(20) // 99;
cmp_ok($took, '<=', 2, sprintf('another endpoint and a reload: it mints (%.2f s)', $took));
$node->set(etcd_endpoints => "$hanging,$good");
sleep 0.5;
stops($node, 'after a reload, while the name is being looked up');

done_testing();
