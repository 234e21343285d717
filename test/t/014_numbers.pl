# Which worker number is taken, and when there is none.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually);

my $etcd = Snowflake::Etcd->new->start;

sub in_ms { my ($seconds) = @_; return sprintf '%d', (time + $seconds) * 1000; }

# One of the others lives: etcd remembers.
sub witness { $etcd->put($etcd->mark_key(127), in_ms(50)); return; }

# --- all numbers are held by others ---

my $lease = $etcd->lease_grant(3600);
$etcd->put($etcd->claim_key(77), 'another', $lease);
$etcd->put_many(map { ($etcd->claim_key($_) => 'another') } grep { $_ != 77 } 0 .. 127);

my $node = Snowflake::Instance->create('a', etcd => $etcd);
is($node->wait_state('no_worker_free', 15)->{state}, 'no_worker_free', 'all 128 numbers are held: the view says so');
my ($out, $err) = $node->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  53400: .*no worker number.*DETAIL:.*128.*HINT:/s, 'a call is refused with 53400 and says so');
is($node->sql('SELECT snowflake_ready()'), 'f', 'the instance is not ready');
my $postmaster = $node->postmaster_pid;
witness();
my $free = time;
$etcd->lease_revoke($lease);
my $row = $node->wait_state('issuing', 10);
is($row->{worker}, 77, 'one becomes free: it is taken');
my $took = time - $free;
cmp_ok($took, '<=', 3, sprintf('soon (%.1f s)', $took));
is($node->postmaster_pid, $postmaster, 'without a restart');

# Its claim goes to another: what is reserved is used, and then there is no number.
my $offset = $node->log_offset;
$node->stop('fast');
is($etcd->claim(77), undef, 'a stop gives it back');

# --- marks that can't be trusted ---

my %mark = (
	0 => 'not a number',
	1 => '',
	2 => '123',
	3 => '17961241549190',
	4 => '179612415491x',
	5 => in_ms(86400 + 600),
	6 => '9999999999999',
	7 => '-767225600000',
	8 => ' 179612415491',
);
$etcd->put($etcd->mark_key($_), $mark{$_}) for grep { $mark{$_} ne '' && $mark{$_} !~ /^-/ } keys %mark;
$etcd->put_many($etcd->mark_key(1) => '', $etcd->mark_key(7) => $mark{7});
$mark{9} = in_ms(3000);    # far ahead, but somebody's
$etcd->put($etcd->mark_key(9), $mark{9});
$mark{10} = in_ms(-5);
$etcd->put($etcd->mark_key(10), $mark{10});
$etcd->del($etcd->claim_key($_)) for 0 .. 11;

witness();
$node->start;
$row = $node->wait_state('issuing', 10);
is($row->{worker}, 10, 'the lowest free number whose mark is past is taken');
like($node->log_since($offset), qr/WARNING:  snowflake skips worker number 0 .*DETAIL:.*no number.*HINT:.*marks\/000/s,
	'a number with a mark that can\'t be trusted is skipped with a warning');
my ($first) = $node->mint;
cmp_ok(($first >> 22) + 1767225600000, '>', $mark{10}, 'the first ID is later than the mark that was found');
for my $at (sort { $a <=> $b } keys %mark)
{
	next if $at == 10;
	is($etcd->mark($at), $mark{$at}, "mark $at stays as it was: \"$mark{$at}\"");
}
my $lines = () = $node->worker_log($offset);
cmp_ok($lines, '<', 20, "the log stays short ($lines lines)");
$node->stop('fast');
is($etcd->claim(10), undef, 'the number is given back');

# --- a restart takes another number rather than wait ---

for (1 .. 3)
{
	witness();
	$node->start;
	$took = $node->seconds_to_mint(10);
	cmp_ok($took, '<=', 1, sprintf('a restart mints within 1 s (%.2f s)', $took));
	$node->stop('fast');
}

# --- only numbers whose marks are still to pass ---

# 9's passes in 50 minutes, so let 20's be the nearest.
$etcd->put_many(map { ($etcd->claim_key($_) => 'another') } 10 .. 127);
$etcd->del($etcd->claim_key($_)) for 20, 21, 22;
$etcd->put($etcd->mark_key(20), in_ms(60));
my $mark = in_ms(10);
$etcd->put($etcd->mark_key(21), $mark);
$etcd->put($etcd->mark_key(22), in_ms(30));
witness();
$node->start;
ok($node->wait_stat(sub { $etcd->claim(21) }, 10), 'of numbers whose marks are ahead, the one that passes first is claimed');
$row = $node->stat_row;
is($row->{state}, 'claiming', 'and nothing is minted before');
($out, $err) = $node->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000:.*DETAIL:.*21.*used up.*HINT:/s, 'a call says until when');
$row = $node->wait_state('issuing', 20);
cmp_ok(time * 1000, '>', $mark - 1100, 'it mints when the clock is at most a second behind the mark');
($first) = $node->mint;
cmp_ok(($first >> 22) + 1767225600000, '>', $mark, 'the first ID is later than the mark');
is($row->{worker}, 21, 'of that number');
cmp_ok(abs(($first >> 22) + 1767225600000 - time * 1000), '<', 1100, 'and close to the clock');
$node->stop('fast');

# --- not_before ---

$etcd->del($etcd->mark_key(22));
my $not_before = in_ms(5);
$etcd->put("$etcd->{prefix}/r0/not_before", $not_before);
witness();
$node->start;
$row = $node->wait_state('issuing', 15);
($first) = $node->mint;
cmp_ok(($first >> 22) + 1767225600000, '>', $not_before, 'no ID is earlier than not_before');
cmp_ok($etcd->mark($row->{worker}), '>=', $not_before, 'nor is the mark');
$node->stop('fast');
$etcd->put("$etcd->{prefix}/r0/not_before", 'nonsense');
witness();
$node->start;
$row = $node->wait_stat(sub { $_[0]->{state} eq 'claiming' && $_[0]->{reason} }, 10);
like($row->{reason}, qr/not_before/, 'a not_before that is no number: no claim, and the view says why');
$etcd->del($etcd->claim_key(23));
$etcd->del("$etcd->{prefix}/r0/not_before");
ok($node->wait_state('issuing', 10), 'without it minting starts');

# --- regions are apart ---

my $elsewhere = Snowflake::Instance->create('b', etcd => $etcd, settings => { region => 7 });
$row = $elsewhere->wait_issuing;
is($row->{worker}, 0, 'another region has numbers of its own');
is($elsewhere->sql('SELECT snowflake_region(snowflake_nextval())'), 7, 'and its IDs say so');

done_testing();
