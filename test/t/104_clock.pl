# The clock of an instance steps, jumps, is wrong, or is not vouched for. A shim moves the time of day
# of all its processes at the same moment, as a kernel does; CLOCK_BOOTTIME, etcd and this test keep
# the true time. That a suspended machine, whose boot time runs on, has not jumped can't be shown
# this way.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::Utils;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually slurp tempdir_abs);

my $epoch_ms = 1767225600000;
my $pages = tempdir_abs('clocks');

sub clock
{
	my ($node, @words) = @_;
	my $out = '';
	IPC::Run::run([ "$ENV{DRILLS_PROGRAMS}/clockctl", "$pages/" . $node->name, @words ], '>', \$out, '2>&1') or die "clockctl @words: $out";
	return $out;
}

sub start
{
	my ($node) = @_;
	local $ENV{LD_PRELOAD} = "$ENV{DRILLS_PROGRAMS}/clockshim.so";
	local $ENV{CLOCKSHIM_PAGE} = "$pages/" . $node->name;
	$node->start;
	return;
}

sub create
{
	my ($name, $etcd, %settings) = @_;
	my $node = Snowflake::Instance->create($name, etcd => $etcd, settings => \%settings, start => 0);
	clock($node, 'init');
	start($node);
	$node->sql('CREATE EXTENSION snowflake');
	return $node;
}

# How far the time in an ID is ahead of the true one, in ms.
sub ahead { my ($id) = @_; return ($id >> 22) + $epoch_ms - int(time * 1000); }

sub refusal { my ($node) = @_; return ($node->try('SET snowflake.max_wait = 0; SELECT snowflake_nextval()'))[1]; }

# IDs of one client, of all its connections, in order.
sub joined
{
	my ($load) = @_;
	my $file = tempdir_abs('joined') . '/ids';
	append_to_file($file, join '', map { s/[^\n]+\z//r } map { slurp($_) } sort $load->id_files);
	return $file;
}

sub refused_since { my ($load, $moment) = @_; return grep { $_->{at} >= $moment } $load->refused; }

sub minted_since { my ($load, $moment) = @_; return eventually(20, sub { defined $load->first_success_after($moment) }); }

my $etcd = Snowflake::Etcd->new->start;
my $node = create('a', $etcd);
$node->wait_issuing;
my $worker = $node->stat('worker');
my $load = Snowflake::Load->start($node, interval => 0.005);
minted_since($load, time);

# --- back, a little ---

for my $back (0.05, 0.3, 0.95)
{
	my $at = time;
	clock($node, 'step', -$back);
	eventually(5, sub { time > $at + $back + 0.5 });
	is(scalar refused_since($load, $at), 0, "back by $back s: no call is refused");
	my ($id) = $node->mint;
	cmp_ok(abs(ahead($id) + $back * 1000), '<', 300, 'and the IDs come to follow the clock');
	# Forward by as much: followed as well.
	$at = time;
	clock($node, 'set', 0);
	minted_since($load, $at + 0.2);
	is(scalar refused_since($load, $at), 0, "and forward again by $back s: neither");
}

# --- back, too far ---

my $at = time;
clock($node, 'step', -2);
like(refusal($node), qr/ERROR:  55000: .*too far ahead of the clock.*DETAIL: .*ms.*HINT: .*set back/s, 'back by 2 s: refused, with the figures');
is($node->state, 'clock_unsafe', 'the view says so');
minted_since($load, $at + 0.5);
cmp_ok($load->first_success_after($at + 0.2) + 0.2, '<=', 1.3, 'it passes by itself within 1.1 s');
is(scalar(grep { $_->{text} !~ /too far ahead/ } refused_since($load, $at)), 0, 'each refusal says why');
clock($node, 'set', 0);
ok($node->wait_state('issuing', 5), 'set right again, it mints');
eventually(5, sub { $node->stat('reserve_left') gt '00:00:28' });

# --- an hour back, an hour ahead, right again ---

my $row = $node->stat_row;
my $log = $node->log_offset;
for my $wrong (-3600, 3600)
{
	clock($node, 'set', $wrong);
	$at = time;
	like(refusal($node), $wrong < 0 ? qr/ERROR:  55000: .*too far ahead/ : qr/ERROR:  55000: .*jumped ahead.*DETAIL: .*HINT: /s, "off by $wrong s: refused");
	# As long as the worker beats some times.
	eventually(10, sub { time > $at + 2.5 });
	my ($bad) = grep { $_->{at} > $at && $_->{at} < $at + 2.4 } $load->succeeded;
	is($bad, undef, 'as long as it lasts');
	is($node->state, 'clock_unsafe', 'the view says that the clock is not safe');
	cmp_ok($etcd->mark($worker), '<=', (time + 32) * 1000, 'the mark in etcd is not raised from it');
}
like($node->log_since($log), qr/WARNING:  the clock jumped ahead by 3\d{3}\.\d+ s/, 'the log says that the clock jumped');
$at = time;
clock($node, 'set', 0);
minted_since($load, $at);
cmp_ok($load->first_success_after($at) // 99, '<=', 2, sprintf('right again, it mints again (%.2f s)', $load->first_success_after($at) // 99));
is($node->stat('claims'), $row->{claims}, 'with the number it had');

# --- ahead ---

$at = time;
clock($node, 'step', 0.5);
minted_since($load, $at + 0.3);
is(scalar refused_since($load, $at), 0, 'ahead by 0.5 s: followed');
cmp_ok(abs(ahead($node->mint) - 500), '<', 300, 'by the IDs too');
clock($node, 'set', 0);
eventually(3, sub { $node->stat('lead_ms') == 0 });

for my $jump (2.9, 29, 31)
{
	minted_since($load, time);
	clock($node, 'step', $jump);
	$at = time;
	like(refusal($node), qr/ERROR:  55000: .*jumped ahead/, "ahead by $jump s: refused");
	eventually(5, sub { time > $at + 1.2 });
	my ($id) = map { $_->{at} - $at } grep { $_->{at} > $at } $load->succeeded;
	note("a call succeeded $id s after the jump") if defined $id;
	is(scalar(grep { $_->{at} > $at } $load->succeeded), 0, 'until it is undone');
	clock($node, 'set', 0);
	$at = time;
	minted_since($load, $at);
	my $took = $load->first_success_after($at);
	cmp_ok($took // 99, '<=', 2, sprintf('then it mints again (%.2f s)', $took // 99));
}
is($node->stat('claims'), $row->{claims}, 'with the number it had');

# --- to and fro, and slewed ---

my $times = $ENV{SNOWFLAKE_FULL} ? 1200 : 160;
$at = time;
clock($node, 'strobe', 0.2, 0.05, $times);
is(scalar refused_since($load, $at), 0, sprintf('strobing by +-200 ms for %.0f s: IDs go on', time - $at));
$at = time;
clock($node, 'slew', 0.08, $ENV{SNOWFLAKE_FULL} ? 60 : 6);
is(scalar refused_since($load, $at), 0, 'slewed by 8%: they go on');
clock($node, 'set', 0) if !$ENV{SNOWFLAKE_FULL};
if ($ENV{SNOWFLAKE_FULL})
{
	# 4.8 s ahead by now: slewed back.
	clock($node, 'slew', -0.08, 60);
	is(scalar refused_since($load, $at), 0, 'and back');
}

# --- back, and a crash at the same moment ---

for my $try (1 .. ($ENV{SNOWFLAKE_FULL} ? 20 : 6))
{
	# At full speed, so that the generator is ahead of the clock as well.
	$node->mint(200_000) if $try % 3 == 0;
	my %children = $node->children;
	my ($backend) = grep { $children{$_} =~ /\[local\]/ } keys %children;
	my $victim = $try % 2 ? $backend : $node->worker_pid;
	my $before = $node->sql('SELECT snowflake_nextval()');
	clock($node, 'step', -0.9, 'kill', 9, $victim);
	eventually(10, sub { !kill(0, $victim) }, 0.002);
	ok(defined $node->seconds_to_mint(20), "try $try: back by 0.9 s and a crash within some us: it mints again");
	cmp_ok(($node->mint)[0], '>', $before, "try $try: and higher than before");
	clock($node, 'set', 0);
	minted_since($load, time);
}
$load->stop;
my $all = joined($load);
my $found = idcheck($all);
is($found->{duplicates}, 0, "of all $found->{ids} IDs none was minted twice");
is($found->{order_violations}, 0, 'and what the client got always increased');
cmp_ok($found->{max_ms}, '<=', time * 1000 + 1100, 'none is from a time that had not come');
my ($bad) = grep { $_->{sqlstate} ne '55000' } $load->refused;
is($bad ? "$bad->{sqlstate} $bad->{text}" : undef, undef, 'calls were refused with 55000 only');

# --- back while it is down ---

for my $mode ('fast', 'immediate')
{
	$node->wait_state('issuing', 20);
	my @before = $node->mint(1000);
	my $number = $node->stat('worker');
	$node->stop($mode);
	clock($node, 'set', -20);
	start($node);
	$row = $node->wait_state('issuing', 30);
	ok($row, "back by 20 s while it is down ($mode): it mints");
	my @after = $node->mint(1000);
	my $file = "$pages/$mode.ids";
	append_to_file($file, join '', map { "$_\n" } @before, @after);
	is(idcheck('--unordered', $file, $all)->{duplicates}, 0, 'no ID is minted twice');
	ok($row->{worker} != $number || $after[0] > $before[-1], 'it took another number, or started later than all before');
	# Forward to what is right: etcd's answers vouch for it.
	$at = time;
	clock($node, 'set', 0);
	ok($node->wait_state('issuing', 10), 'set right by 20 s, with etcd\'s Date to vouch for it, it mints');
	cmp_ok(time - $at, '<=', 4, 'soon');
	cmp_ok(abs(ahead($node->mint)), '<', 1200, 'and the IDs carry the true time');
}

# --- times that no ID can carry ---

my %outside = (
	'before 2026' => $epoch_ms / 1000 - time - 3600,
	'after the last' => ($epoch_ms + 2**41) / 1000 - time + 3600);
for my $when (sort keys %outside)
{
	my $last = ($node->mint)[0];
	clock($node, 'set', $outside{$when});
	like(refusal($node), qr/ERROR:  55000: .*(?:no ID can carry|jumped ahead).*DETAIL: .*HINT: /s, "a clock $when: refused");
	is($node->state, 'clock_unsafe', 'the view says so');
	$node->stop;
	$log = $node->log_offset;
	start($node);
	ok($node->wait_state('clock_unsafe', 10), 'nor does it claim when it is started with one');
	like(refusal($node), qr/ERROR:  55000: .*DETAIL: .*no ID can carry|ERROR:  55000: .*no ID can carry/s, 'it says why');
	clock($node, 'set', 0);
	ok($node->wait_state('issuing', 10), "set right, one that was started $when mints by itself")
	  or ($node->stop, start($node), $node->wait_state('issuing', 60));
	cmp_ok(($node->mint)[0], '>', $last, 'with a later ID');
	cmp_ok(abs(ahead(($node->mint)[0])), '<', 1200, 'of the true time');
}
$node->stop;

# --- the kernel vouches for the clock, or does not ---

my $strict = Snowflake::Instance->create('strict', etcd => $etcd, settings => { max_clock_error => '10ms' }, start => 0);
clock($strict, 'init');
clock($strict, 'sync', 'never');
start($strict);
$strict->sql('CREATE EXTENSION snowflake');
my @not_good = (
	'was never synchronised' => ['never'] => qr/never synchronised/,
	'forbids to ask' => ['EPERM'] => qr/ntp_adjtime/,
	'estimates 11 ms' => [ 0, 11000, 20000, 0 ] => qr/estimated error of 11\.000 ms.*allows 10 ms/,
	'is 12 ms behind and being slewed' => [ -12000, 500, 20000, 0 ] => qr/estimated error of 12\.500 ms/,
	'has had no news for an hour' => [ 0, 500, 1_600_000, 0 ] => qr/maximum error of 1600\.000 ms/);
while (my ($what, $sync, $text) = splice @not_good, 0, 3)
{
	clock($strict, 'sync', @$sync);
	ok($strict->wait_stat(sub { $_[0]->{state} eq 'clock_unsafe' && $_[0]->{reason} =~ $text }, 5), "a kernel that $what: it waits, and the view says what was read");
	like(refusal($strict), qr/ERROR:  55000: .*clock is good enough.*DETAIL: .*HINT: .*max_clock_error/s, 'the refusal says why and what to do');
}
like($strict->log_since(0), qr/LOG:  snowflake waits for a clock.*DETAIL: .*never synchronised/s, 'the log has what was read');
is(scalar(grep { $_->{value} eq 'strict' } values %{ $etcd->under($etcd->workers_prefix) }), 0, 'meanwhile it claims nothing');
# As chronyd leaves it, with and without rtcsync, and systemd-timesyncd.
my @good = (
	chronyd => [ 0, 380, 21000, 0x2001 ],
	'chronyd without rtcsync' => [ 0, 380, 21000, 0x40 ],
	'systemd-timesyncd' => [ -1200, 0, 512000, 1 ]);
while (my ($what, $sync) = splice @good, 0, 2)
{
	clock($strict, 'sync', @$sync);
	$at = time;
	ok($strict->wait_issuing(60), "synchronised as by $what, it starts by itself");
	cmp_ok($strict->stat('clock_error_ms'), '==', (abs($sync->[0]) + $sync->[1]) / 1000, 'the view has the error');
	next if !@good;
	$strict->stop;
	clock($strict, 'sync', 'never');
	start($strict);
	ok($strict->wait_state('clock_unsafe', 10), 'not synchronised at its next start, it waits');
}
clock($strict, 'sync', 'never');
$at = time;
$load = Snowflake::Load->start($strict, interval => 0.01);
minted_since($load, $at + 2);
is(scalar $load->refused, 0, 'synchronisation lost later on is no reason to stop');

# A jump is vouched for by the kernel alone.
$at = time;
clock($strict, 'step', -20);
clock($strict, 'sync', 'good');
ok($strict->wait_stat(sub { $_[0]->{clock_error_ms} }, 5), 'a clock that is 20 s behind, for which the kernel vouches');
# A jump to what is less than a second after the last ID would be none to a session.
eventually(5, sub { time > $at + 2.5 });
$at = time;
clock($strict, 'step', 20);
eventually(5, sub { time > $at + 3 });
isnt($strict->state, 'issuing', 'set right by a jump that the kernel does not vouch for yet: not believed, whatever etcd says');
clock($strict, 'sync', 'good');
ok($strict->wait_state('issuing', 5), 'vouched for, it mints');
$load->stop;
ok(idcheck(joined($load))->{clean}, 'all its IDs increase');

done_testing();
