# kill -9 of a backend, of the background worker and of the postmaster, under load.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually);

my @rounds = $ENV{SNOWFLAKE_FULL} ? 1 .. 100 : 1 .. 20;

my $etcd = Snowflake::Etcd->new->start;
my $node = Snowflake::Instance->create('a', etcd => $etcd);
$node->wait_issuing;

# Some mint thousands a call, so that the generator runs ahead of the clock when it dies.
my @loads = (
	Snowflake::Load->start($node, sessions => 2, interval => 0.01, sql => 'SELECT snowflake_nextval() FROM generate_series(1, 5000)'),
	Snowflake::Load->start($node, sessions => 2, interval => 0.002));

my %kill = (
	backend => sub {
		my %children = $node->children;
		my ($pid) = grep { $children{$_} =~ /\[local\]/ } keys %children;
		kill('KILL', $pid) if $pid;
		return $pid;
	},
	worker => sub { my $pid = $node->worker_pid; kill('KILL', $pid) if $pid; return $pid; },
	postmaster => sub { my $pid = $node->postmaster_pid; $node->kill9; $node->start_after_crash; return $pid; },
);

my (%killed, @slow, $slowest, $most_claims);
$slowest = $most_claims = 0;
for my $round (@rounds)
{
	my $victim = (qw(backend worker backend worker postmaster))[ $round % 5 ];
	my $postmaster = $node->postmaster_pid;
	# All sessions mint before it falls.
	my $moment = time;
	eventually(20, sub { defined $loads[0]->first_success_after($moment) && defined $loads[1]->first_success_after($moment) });

	my $pid = eventually(10, sub { $kill{$victim}->() }) or next;
	$killed{$victim}++;
	eventually(20, sub { !kill(0, $pid) }, 0.005);
	# The server is up when it takes connections.
	eventually(60, sub { ($node->try('SELECT 1'))[0] eq '1' }, 0.01);
	my $up = time;
	my $took = $node->seconds_to_mint(20) // 99;
	$slowest = $took if $took > $slowest;
	push @slow, sprintf('%s: %.1f s', $victim, $took) if $took > 2;
	is($node->postmaster_pid, $postmaster, "round $round: the postmaster outlives its $victim") if $victim ne 'postmaster';
	my $claims = () = $etcd->claimed;
	$most_claims = $claims if $claims > $most_claims;
}
$_->stop for @loads;
note(join(' ', map { "$_=$killed{$_}" } sort keys %killed), sprintf(' slowest=%.2f s most_claims=%d', $slowest, $most_claims));

my $all = 0;
$all += $_ for values %killed;
is($all, scalar @rounds, "$all processes were killed");
is_deeply(\@slow, [], sprintf('each time IDs came again within 2 s of the server being up (slowest %.2f s)', $slowest));

my @files = map { $_->id_files } @loads;
my $found = idcheck(@files);
cmp_ok($found->{ids}, '>', 100_000, "$found->{ids} IDs were minted on the way");
is($found->{duplicates}, 0, 'none of them twice');
is($found->{order_violations}, 0, 'and those of each session increase');

# A dead backend or worker costs no number, a dead postmaster its own until the lease ends.
my $now_claimed = () = $etcd->claimed;
cmp_ok($now_claimed, '<=', 1 + $killed{postmaster}, "few worker numbers are held at the end ($now_claimed)");
my $leases = () = $etcd->lease_list;
cmp_ok($leases, '<=', 1 + $killed{postmaster}, "and few leases ($leases)");

my ($bad) = grep { $_->{sqlstate} !~ /^(?:00000|lost|55000|57P0[1-3])$/ } map { $_->calls } @loads;
is($bad ? "$bad->{sqlstate} $bad->{text}" : undef, undef, 'calls succeed, are refused with 55000, or lose their connection');

done_testing();
