# A raise of the mark that times out at a follower of a frozen leader can be applied when that leader
# wakes, after a newer mark was confirmed. It must not lower it.

use strict;
use warnings;

use HTTP::Tiny;
use JSON::PP;
use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually);

my $tries = $ENV{SNOWFLAKE_FULL} ? 24 : 8;

my $etcd = Snowflake::Etcd->new(members => 3)->start;

sub b64 { return Snowflake::Etcd::b64($_[0]); }

# The raise of the mark as one transaction; without the second compare for the demonstration.
sub raise
{
	my ($number, $lease, $mark, $second_compare, $member, $timeout) = @_;
	my ($claim, $key) = (b64($etcd->claim_key($number)), b64($etcd->mark_key($number)));
	my @compare = ({ key => $claim, target => 'LEASE', result => 'EQUAL', lease => "$lease" });
	push @compare, { key => $key, target => 'VALUE', result => 'LESS', value => b64($mark) } if $second_compare;
	my $answer = $etcd->call('/v3/kv/txn',
		{ compare => \@compare, success => [ { request_put => { key => $key, value => b64($mark) } } ] },
		member => $member, timeout => $timeout);
	return $answer && $answer->{succeeded};
}

sub falls
{
	my (@marks) = @_;
	return scalar grep { $marks[$_] lt $marks[ $_ - 1 ] } 1 .. $#marks;
}

# --- the protocol, by hand: number 100 raised without the second compare, 101 with it ---

my $lease = $etcd->lease_grant(600);
$etcd->put($etcd->claim_key($_), 'by hand', $lease) for 100, 101;
my $mark = 1_900_000_000_000;
$etcd->put($etcd->mark_key($_), $mark) for 100, 101;

my $late_without = 0;
for my $try (1 .. $tries)
{
	my $frozen = $etcd->leader;
	my ($follower, $other) = grep { $_ != $frozen } $etcd->all;
	my $old = $mark + 1;
	my $new = $mark + 2;
	$mark += 10;

	$etcd->pause_member($frozen);
	# Sent at a follower that still believes in the frozen leader; nobody answers within the deadline.
	for my $number (100, 101)
	{
		raise($number, $lease, $old, $number == 101, $follower, 0.4) and fail('a frozen leader confirms nothing');
	}
	eventually(20, sub { defined $etcd->leader(not => $frozen) }) or die 'no new leader';
	for my $number (100, 101)
	{
		eventually(20, sub { $etcd->mark($number) eq $new || raise($number, $lease, $new, 1, $other, 2) }) or die 'no raise is confirmed';
	}
	$etcd->resume_member($frozen);
	$etcd->wait_healthy;
	# What was held back by the old leader arrives in order before what is sent through it now.
	for my $member ($etcd->all)
	{
		eventually(20, sub { $etcd->call('/v3/kv/put', { key => b64('/barrier'), value => b64($try) }, member => $member, timeout => 2) });
	}
	eventually(1, sub { $etcd->mark(100) lt $new }, 0.1);
	$late_without = falls($etcd->history($etcd->mark_key(100)));
	is(falls($etcd->history($etcd->mark_key(101))), 0, "try $try: with the second compare the mark did not fall");
	last if $late_without && $try >= 3 && !$ENV{SNOWFLAKE_FULL};
}
cmp_ok($late_without, '>', 0, "without it, a mark that was confirmed later fell ($late_without times)");
$etcd->lease_revoke($lease);

# --- the same happens to an instance ---

my $frozen_first = $etcd->leader;
# Its first endpoint is a follower.
my @order = sort { ($a == $frozen_first) <=> ($b == $frozen_first) } $etcd->all;
my $node = Snowflake::Instance->create('a',
	settings => { etcd_endpoints => join(',', map { $etcd->endpoint($_) } @order), renew_interval => '200ms' });
$node->wait_issuing;
my $load = Snowflake::Load->start($node, sessions => 2, interval => 0.005);

my $at_follower = 0;
for my $try (1 .. ($ENV{SNOWFLAKE_FULL} ? 12 : 4))
{
	my $frozen = $etcd->leader;
	my $row = $node->stat_row;
	$at_follower++ if $row->{endpoint} ne $etcd->endpoint($frozen);
	my $renewed = $row->{last_renewal};
	$etcd->pause_member($frozen);
	# A newer mark than that of the raise which timed out is confirmed elsewhere.
	ok($node->wait_stat(sub { $_[0]->{last_renewal} gt $renewed && $_[0]->{renewal_failures} > $row->{renewal_failures} }, 25),
		"try $try: with the leader frozen a raise times out, and a later one is confirmed elsewhere");
	$etcd->resume_member($frozen);
	$etcd->wait_healthy;
	sleep 0.5;
}
cmp_ok($at_follower, '>', 0, "the raise was sent to a follower of the frozen leader $at_follower times");
$load->stop;

my $row = $node->stat_row;
my @marks = $etcd->history($etcd->mark_key($row->{worker}));
cmp_ok(scalar @marks, '>', 20, 'the mark has a history');
is(falls(@marks), 0, 'in which it never falls');
is($row->{state}, 'issuing', 'the instance mints');
is($row->{claims}, 1, 'under its first claim');
is(scalar(grep { $_->{sqlstate} ne '00000' } $load->calls), 0, 'not one call was refused');
ok(idcheck($load->id_files)->{clean}, 'no ID was minted twice, and each session\'s increase');

done_testing();
