# Two instances at one etcd.

use strict;
use warnings;

use Test::More;

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(bulk idcheck);

my $count = 10_000_000;
my $sessions = 2;

my $etcd = Snowflake::Etcd->new->start;
my $a = Snowflake::Instance->create('a', etcd => $etcd);
my $b = Snowflake::Instance->create('b', etcd => $etcd);
my ($of_a, $of_b) = ($a->wait_issuing, $b->wait_issuing);

isnt($of_a->{worker}, $of_b->{worker}, 'two instances hold different worker numbers');
is_deeply([ $etcd->claimed ], [ 0, 1 ], 'they took the lowest two');

my @files = bulk(map { { node => $_, sessions => $sessions, count => $count / $sessions } } $a, $b);
my $found = idcheck(@files);
is($found->{ids}, 2 * $count, "both minted $count IDs at the same time");
is($found->{duplicates}, 0, 'no ID is a duplicate');
is($found->{order_violations}, 0, 'the IDs of each session increase');
is($found->{nodes}, '0/0,0/1', 'each ID carries one of the two worker numbers');
is($_->stat('claims'), 1, 'instance ' . $_->name . ' kept its worker number') for $a, $b;

# Order across instances: an ID minted later elsewhere is at most a second lower.
my $worst = 0;
for (1 .. 10)
{
	my ($first) = $a->mint;
	my ($second) = $b->mint;
	my $behind = ($first >> 22) - ($second >> 22);
	$worst = $behind if $behind > $worst;
}
cmp_ok($worst, '<=', 1100, 'an ID minted later on the other instance is not much lower');

done_testing();
