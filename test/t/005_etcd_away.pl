# etcd goes away and comes back, under load: one instance with the default reserve, which bridges it,
# and one with a short reserve, which can't.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually);

my $etcd = Snowflake::Etcd->new->start;
my $long = Snowflake::Instance->create('long', etcd => $etcd);
my $short = Snowflake::Instance->create('short', etcd => $etcd,
	settings => { lease_ttl => '10s', reserve => '5s' });
$_->wait_issuing for $long, $short;
my %before = (long => $long->stat_row, short => $short->stat_row);
my %postmaster = (long => $long->postmaster_pid, short => $short->postmaster_pid);
my %log = (long => $long->log_offset, short => $short->log_offset);

my $on_long = Snowflake::Load->start($long, sessions => 4, interval => 0.005);
my $on_short = Snowflake::Load->start($short, sessions => 2, interval => 0.02);
eventually(10, sub { $on_long->succeeded > 50 && $on_short->succeeded > 50 });

# --- 20 seconds ---

my $gone = time;
$etcd->stop;

my $fenced = $short->wait_state('fenced', 15);
ok($fenced, 'without etcd an instance with a reserve of 5 s is fenced some time later');
my $mark = $fenced->{mark_ms} / 1000;

my ($out, $err) = $short->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000: .*reserved time.*used up/, 'a call is then refused with 55000 and says that the reserved time is used up');
like($err, qr/DETAIL:.*\d\d:\d\d:\d\d.*HINT:.*by itself/s, 'it says when, and that it will pass by itself');
is($short->sql('SELECT snowflake_ready()'), 'f', 'the instance is not ready');
is($long->sql('SELECT snowflake_ready()'), 't', 'the one with the default reserve is');
my $outage = $long->stat_row;
cmp_ok($outage->{renewal_failures}, '>', $before{long}{renewal_failures}, 'failed renewals are counted');
like($outage->{last_error}, qr/127\.0\.0\.1/, 'the last error names the endpoint');
isnt($outage->{last_error_at}, undef, 'and has its moment');

eventually(30, sub { time - $gone >= 20 }, 0.1);
my $start = time;
$etcd->start;
my $back = time;

ok($short->wait_state('issuing', 10), 'with etcd back the fenced instance mints again');
my $took = $on_short->first_success_after($back) // 99;
eventually(5, sub { defined($took = $on_short->first_success_after($back)) });
cmp_ok($took, '<=', 2, sprintf('within 2 s of etcd being healthy (%.2f s)', $took));
ok(eventually(10, sub { $long->stat('reserve_left_s') > 25 }), 'and the other has its whole reserve again');
$_->stop for $on_long, $on_short;

my @calls = $on_long->calls;
cmp_ok(scalar @calls, '>', 2000, 'the load on the default reserve was one (' . @calls . ' calls)');
is(scalar(grep { $_->{sqlstate} ne '00000' } @calls), 0, 'etcd was away for 20 s, and not one call was refused');

my @refused = $on_short->refused;
my @late = grep { $_->{at} + $_->{took} > $mark + 0.05 && $_->{at} + $_->{took} < $start } $on_short->succeeded;
is(scalar @late, 0, 'no ID was minted after the mark');
my ($first_refused) = map { $_->{at} + $_->{took} } @refused;
cmp_ok(abs($first_refused - $mark), '<', 0.5, 'refusals begin at the mark, and not before');
is(scalar(grep { $_->{sqlstate} ne '55000' } @refused), 0, 'each is 55000');
is(scalar(grep { $_->{text} !~ /reserved time/ } @refused), 0, 'each says that the reserved time is used up');
is(scalar $on_short->lost, 0, 'no connection was lost');
my $after = $short->stat_row;
is($after->{refused_fence} - $before{short}{refused_fence}, @refused + 1, 'the view counts each refusal');
is($long->stat('refused_fence'), 0, 'and none for the other');

for my $node ($long, $short)
{
	my $name = $node->name;
	is($node->postmaster_pid, $postmaster{$name}, "$name: the server was not restarted");
	is($node->stat('pid'), $before{$name}{pid}, "$name: nor its background worker");
	is($node->stat('worker'), $before{$name}{worker}, "$name: it has its worker number still");
	my $lines = () = $node->worker_log($log{$name});
	cmp_ok($lines, '<', 20, "$name: it writes few lines to the log ($lines)");
}
like($short->log_since($log{short}), qr/WARNING:  snowflake can mint for another/, 'a warning came before the mark');
like($short->log_since($log{short}), qr/LOG:  snowflake mints again/, 'and a line when it was over');
my $found = idcheck($on_long->id_files, $on_short->id_files);
ok($found->{clean}, 'no ID was minted twice, and each session\'s increase');

# --- a frozen etcd, which accepts connections and answers nothing ---

my $on_frozen = Snowflake::Load->start($short, interval => 0.02);
eventually(10, sub { $on_frozen->succeeded > 20 });
$etcd->pause;
ok($short->wait_state('fenced', 15), 'a frozen etcd lets the reserve run out too');
$etcd->resume;
$back = time;
eventually(10, sub { defined($took = $on_frozen->first_success_after($back)) });
cmp_ok($took, '<=', 2, sprintf('when it wakes, minting is back within 2 s (%.2f s)', $took));
$on_frozen->stop;
is($short->stat('pid'), $before{short}{pid}, 'the background worker is the same');
ok(idcheck($on_frozen->id_files)->{clean}, 'and all IDs increase');

done_testing();
