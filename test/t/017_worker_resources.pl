# What the background worker costs.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Process qw(eventually);

my $seconds = $ENV{SNOWFLAKE_FULL} ? 600 : 30;

my $etcd = Snowflake::Etcd->new->start;
my $idle = Snowflake::Instance->create('idle', etcd => $etcd);
my $busy = Snowflake::Instance->create('busy', etcd => $etcd, settings => { renew_interval => '50ms' });
# Without an answer it tries again and again.
my $alone = Snowflake::Instance->create('alone', settings => { etcd_endpoints => 'http://127.0.0.1:1', renew_interval => '50ms' });
$_->wait_issuing for $idle, $busy;
ok($alone->wait_stat(sub { $_[0]->{last_error} }, 10), 'one instance has no etcd');

my %pid = map { $_->name => $_->worker_pid } $idle, $busy, $alone;
is($idle->stat('pid'), $pid{idle}, 'the view shows the pid of the background worker');
# What the first beats need is there after some.
sleep 3;
my %cpu = map { $_->name => $_->cpu($pid{ $_->name }) } $idle, $busy, $alone;
my $start = time;
my %sizes = map { $_->name => [] } $busy, $alone;
while (time - $start < $seconds)
{
	push @{ $sizes{ $_->name } }, $_->rss($pid{ $_->name }) for $busy, $alone;
	sleep($seconds / 60);
}
my $took = time - $start;
my %used = map { $_->name => ($_->cpu($pid{ $_->name }) - $cpu{ $_->name }) / $took * 100 } $idle, $busy, $alone;

cmp_ok($used{idle}, '<', 0.5, sprintf('at the default settings it uses %.2f%% of a core', $used{idle}));
cmp_ok($used{alone}, '<', 2, sprintf('without etcd %.2f%%', $used{alone}));
note(sprintf('at 20 beats a second %.2f%%', $used{busy}));

for my $name (qw(busy alone))
{
	my @sizes = @{ $sizes{$name} };
	my $half = int(@sizes / 2);
	my ($first) = sort { $b <=> $a } @sizes[ 0 .. $half - 1 ];
	my ($second) = sort { $b <=> $a } @sizes[ $half .. $#sizes ];
	cmp_ok($second - $first, '<=', 64, sprintf('%s: its memory does not grow (%d kB, then %d kB)', $name, $first, $second));
}
my $renewals = $etcd->under($etcd->mark_key($busy->stat('worker')));
note('revision of the last renewal: ' . (values %$renewals)[0]->{mod_revision});
cmp_ok((values %$renewals)[0]->{mod_revision}, '>', $took * 10, 'meanwhile there were hundreds of renewals');
for my $node ($idle, $busy, $alone)
{
	my $lines = () = $node->worker_log(0);
	cmp_ok($lines, '<', 20, $node->name . ": it writes $lines lines to the log");
	is($node->worker_pid, $pid{ $node->name }, $node->name . ': it lives');
}

done_testing();
