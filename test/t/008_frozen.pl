# A whole instance stands still for longer than its lease lives, while another takes its number.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually);

my %short = (lease_ttl => '5s', reserve => '3s');

my $etcd = Snowflake::Etcd->new->start;
my $first = Snowflake::Instance->create('first', etcd => $etcd, settings => \%short);
my $second = Snowflake::Instance->create('second', etcd => $etcd, settings => \%short, start => 0);
my $number = $first->wait_issuing->{worker};

my @on_first = (
	Snowflake::Load->start($first, sessions => 3, interval => 0, sql => 'SELECT snowflake_nextval() FROM generate_series(1, 20000)'),
	Snowflake::Load->start($first, sessions => 3, interval => 0.001));
my @on_second;

for my $round (1 .. ($ENV{SNOWFLAKE_FULL} ? 10 : 2))
{
	my ($frozen, $taker) = $round % 2 ? ($first, $second) : ($second, $first);
	my $loads = $round % 2 ? \@on_first : \@on_second;
	$taker->stop if $taker->postmaster_pid;
	$number = $frozen->wait_issuing->{worker};
	my $moment = time;
	eventually(20, sub { !grep { !defined $_->first_success_after($moment) } @$loads });
	my $worker_pid = $frozen->stat('pid');
	my $claims = $frozen->stat('claims');

	$frozen->freeze;
	ok(eventually(30, sub { !$etcd->claim($number) }), "round $round: the frozen instance's lease ends");
	my $mark = $etcd->mark($number);
	ok(eventually(30, sub { time * 1000 > $mark }), "round $round: its mark passes");
	$taker->start;
	$taker->sql('CREATE EXTENSION IF NOT EXISTS snowflake');
	is($taker->wait_issuing->{worker}, $number, "round $round: another instance takes its number $number");
	@on_second = (
		Snowflake::Load->start($second, sessions => 3, interval => 0, sql => 'SELECT snowflake_nextval() FROM generate_series(1, 20000)'),
		Snowflake::Load->start($second, sessions => 3, interval => 0.001)) if !@on_second;
	my $minted = $round % 2 ? $on_second[1] : $on_first[1];
	$moment = time;
	eventually(20, sub { defined $minted->first_success_after($moment) });

	my $thawed = time;
	$frozen->thaw;
	my $row = $frozen->wait_stat(sub { $_[0]->{state} eq 'issuing' && $_[0]->{worker} != $number }, 15);
	ok($row, "round $round: awake again, the first moves to another number by itself");
	isnt($etcd->claim($number), undef, "round $round: the number stays with the other");
	is($taker->stat('worker'), $number, "round $round: which holds it still");
	is($frozen->stat('pid'), $worker_pid, "round $round: the background worker is the same");
	my $back = $loads->[1]->first_success_after($thawed);
	eventually(10, sub { defined($back = $loads->[1]->first_success_after($thawed)) });
	cmp_ok($back, '<=', 2, sprintf('round %d: it mints within 2 s (%.2f s)', $round, $back));
	like($frozen->log_since(0), qr/lost its worker number/, "round $round: the log says why");
}

my @loads = (@on_first, @on_second);
$_->stop for @loads;
my $found = idcheck(map { $_->id_files } @loads);
cmp_ok($found->{ids}, '>', 1_000_000, "$found->{ids} IDs were minted on both");
is($found->{duplicates}, 0, 'none of them twice');
is($found->{order_violations}, 0, 'and those of each session increase');
is(scalar(grep { $_->{sqlstate} ne '55000' } map { $_->refused } @loads), 0, 'calls were refused with 55000 only');

# --- one backend frozen inside a call, while the instance moves to another number ---

my $load = Snowflake::Load->start($first, sessions => 4, interval => 0, sql => 'SELECT snowflake_nextval() FROM generate_series(1, 20000)');
my $moment = time;
eventually(20, sub { defined $load->first_success_after($moment) });
for my $round (1 .. 5)
{
	my %children = $first->children;
	my @backends = grep { $children{$_} =~ /\[local\] SELECT/ } keys %children;
	kill('STOP', $_) for @backends;
	my $row = $first->stat_row;
	$etcd->lease_revoke($row->{lease_id});
	$first->wait_stat(sub { $_[0]->{claims} > $row->{claims} && $_[0]->{state} eq 'issuing' }, 10);
	$first->mint(1000);
	kill('CONT', $_) for @backends;
	$moment = time;
	eventually(20, sub { defined $load->first_success_after($moment) });
}
$load->stop;
$found = idcheck($load->id_files, map { $_->id_files } @loads);
ok($found->{clean}, 'backends frozen inside a call while the number changes mint nothing twice, and in order');

done_testing();
