# etcd's database is full: it refuses whatever would write until somebody compacts it, gives the space
# back and takes its alarm off.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually);

my $etcd = Snowflake::Etcd->new(args => [ '--quota-backend-bytes', 4 << 20 ])->start;
my $node = Snowflake::Instance->create('a', etcd => $etcd, settings => { lease_ttl => '10s', reserve => '5s' });
my $before = $node->wait_issuing;
my $postmaster = $node->postmaster_pid;

# One key whose old values take up the space.
sub fill
{
	my $value = Snowflake::Etcd::b64('x' x 200_000);
	for (1 .. 100)
	{
		$etcd->call('/v3/kv/put', { key => Snowflake::Etcd::b64('/filler'), value => $value }) or last;
	}
	like($etcd->ctl('alarm', 'list'), qr/NOSPACE/, 'etcd is full') or BAIL_OUT('etcd can\'t be filled');
	return;
}

# As etcd's manual says. Returns the moment at which it takes writes again.
sub make_room
{
	my $revision = $etcd->call('/v3/kv/range', { key => Snowflake::Etcd::b64('/filler') })->{header}{revision};
	$etcd->ctl('compact', $revision, '--physical=true');
	$etcd->ctl('defrag');
	$etcd->ctl('alarm', 'disarm');
	return time;
}

sub full_says
{
	my ($what) = @_;
	my $row = $node->wait_stat(sub { ($_[0]->{last_error} // '') =~ /database space exceeded/ }, 10);
	ok($row, "$what: the last error says \"database space exceeded\"") or diag($node->stat('last_error'));
	note($row->{last_error}) if $row;
	return;
}

# --- full under load, and room again ---

my $log = $node->log_offset;
my $load = Snowflake::Load->start($node, sessions => 2, interval => 0.01);
eventually(10, sub { $load->succeeded > 50 });
fill();
my $full = time;
full_says('an instance that mints');
my $row = $node->stat_row;
is($row->{state}, 'issuing', 'IDs go on');
cmp_ok($row->{renewal_failures}, '>', $before->{renewal_failures}, 'failed renewals are counted');
$row = $node->wait_state('fenced', 15);
ok($row, 'until the reserve is used up');
my $mark = $row->{mark_ms} / 1000;
my ($out, $err) = $node->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000: .*reserved time.*used up.*DETAIL:.*HINT:.*by itself/s, 'then a call is refused with 55000, and says why');
is($node->sql('SELECT snowflake_ready()'), 'f', 'and the instance is not ready');
# As long as the lease would have lasted without keepalives.
eventually(20, sub { time - $full > 11 }, 0.1);
is($etcd->claim($row->{worker})->{value}, 'a', 'meanwhile its lease is kept alive, and the claim with it');

my $room = make_room();
my $took;
eventually(10, sub { defined($took = $load->first_success_after($room)) });
cmp_ok($took // 99, '<=', 2, sprintf('etcd has room again: it mints within 2 s (%.2f s)', $took // 99));
ok(eventually(5, sub { $node->stat('reserve_left_s') > 4 }), 'and its reserve is whole');
$load->stop;
$row = $node->stat_row;
is($row->{state}, 'issuing', 'the view says so');
is($row->{pid}, $before->{pid}, 'the background worker is the same');
is($node->postmaster_pid, $postmaster, 'and the server');
is($row->{claims}, 1, 'the first claim stood through all this');

my @ended = map { { %$_, end => $_->{at} + $_->{took} } } $load->calls;
my @late = grep { $_->{sqlstate} eq '00000' && $_->{end} > $mark + 0.05 && $_->{end} < $room } @ended;
is(scalar @late, 0, 'no ID was minted after the mark');
my @refused = grep { $_->{sqlstate} ne '00000' } @ended;
cmp_ok(scalar @refused, '>', 50, scalar(@refused) . ' calls were refused');
is(scalar(grep { $_->{sqlstate} ne '55000' || $_->{text} !~ /reserved time/ } @refused), 0, 'each with 55000 and the reason');
is(scalar(grep { $_->{end} < $mark - 0.2 } @refused), 0, 'none before the mark');
ok(idcheck($load->id_files)->{clean}, 'all IDs are distinct and in order');
my $lines = () = $node->worker_log($log);
cmp_ok($lines, '<', 20, "it writes few lines to the log ($lines)");
like($node->log_since($log), qr/database space exceeded/, 'the log has the reason, too');

# --- a stop and a start while it is full ---

fill();
$node->wait_state('fenced', 15);
my $number = $node->stat('worker');
$took = $node->timed_stop('fast') // 99;
cmp_ok($took, '<=', 2, sprintf('etcd is full and the reserve used up: stop -m fast is quick (%.2f s)', $took));
is($etcd->claim($number), undef, 'the number is given back all the same');
$node->start;
full_says('an instance that starts');
is($node->state, 'claiming', 'it has no worker number');
($out, $err) = $node->try('SELECT snowflake_nextval()');
like($err, qr/ERROR:  55000: .*no worker number.*DETAIL:.*HINT:/s, 'a call is refused with 55000, and says why');
$took = $node->timed_stop('fast') // 99;
cmp_ok($took, '<=', 2, sprintf('without a number, too, stop -m fast is quick (%.2f s)', $took));
$node->start;
full_says('it starts again');
$room = make_room();
$took = $node->seconds_to_mint(20);
ok(defined $took, 'etcd has room again: it claims a number and mints');
cmp_ok(time - $room, '<=', 2, sprintf('within 2 s (%.2f s)', time - $room));

# --- full, and a stop before the reserve is used up ---

fill();
full_says('an instance that mints');
is($node->state, 'issuing', 'it still does');
$took = $node->timed_stop('fast') // 99;
cmp_ok($took, '<=', 2, sprintf('stop -m fast is quick (%.2f s)', $took));
unlike($node->log_since(0), qr/PANIC|signal 11|signal 6|terminating any other active server processes/, 'nothing crashed on the way');

done_testing();
