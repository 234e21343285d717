# The first instance of a region and the only one; what a DBA may say of a region; marks that somebody
# changes by hand.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::Utils;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually slurp);

my $reserve = 5;
my $pause = $reserve + 10;
my %short = (reserve => "${reserve}s", lease_ttl => '10s');

sub not_before { my ($etcd) = @_; return $etcd->get("$etcd->{prefix}/r$etcd->{region}/not_before") // 0; }

# What "mints at once" means: no pause, neither in the log nor in the time.
sub starts_without_pause
{
	my ($node, $what) = @_;
	my $offset = $node->log_offset;
	$node->start;
	my $took = $node->seconds_to_mint(40) // 99;
	cmp_ok($took, '<=', 3, sprintf('%s: it mints at once (%.1f s)', $what, $took));
	is($node->log_since($offset) =~ m{(mints no new worker number before .*)} ? $1 : q{}, q{}, "$what: no pause is in the log");
	return;
}

# --- the first install ---

my $etcd = Snowflake::Etcd->new->start;
my $solo_etcd = Snowflake::Etcd->new->start;
my $one = Snowflake::Instance->create('a', etcd => $etcd, settings => \%short);
ok($one->wait_state('quarantined'), 'the first instance of a region finds nothing that shows that etcd remembers');
like(($one->try('SELECT snowflake_nextval()'))[1], qr/HINT: .*snowflake_init_region/, 'the refusal names the way out');
$one->sql('CREATE ROLE dba_not LOGIN; GRANT pg_monitor TO dba_not');
for my $call ('snowflake_init_region()', q{snowflake_raise_marks(now() + interval '5 s')})
{
	like(($one->try("SET ROLE dba_not; SELECT $call"))[1], qr/ERROR:  42501/, "$call is for superusers");
}
my $moment = time;
$one->sql('SELECT snowflake_init_region()');
ok($one->wait_state('issuing', 5), 'snowflake_init_region() ends the pause');
cmp_ok(time - $moment, '<', 3, 'at once');
is($one->sql('SELECT snowflake_init_region()'), '', 'said of an instance that mints already it does nothing');

my $two = Snowflake::Instance->create('b', etcd => $etcd, settings => \%short);
ok($two->wait_state('issuing', 8), 'the next one mints without being told');

# --- the only one is restarted after 5 seconds; later it is once more ---

my $solo = Snowflake::Instance->create('solo', etcd => $solo_etcd, settings => \%short);
$solo->wait_issuing;
my @solo_ids = $solo->mint(10);
$solo->stop;
my $stopped = time;
eventually(20, sub { time > $stopped + 5 && time * 1000 > $solo_etcd->mark(0) });
starts_without_pause($solo, 'the only instance, after 5 s, its mark past');
push @solo_ids, $solo->mint(10);

# While etcd is away it is started and stopped once more.
my $mark = $solo_etcd->mark(0);
$solo->stop;
my $hint = slurp($solo->data_dir . '/snowflake_last_mark');
$solo_etcd->pause;
$solo->start;
is($solo->stat('state'), 'claiming', 'a start without etcd claims and waits');
$solo->stop;
$solo_etcd->resume;
eventually(20, sub { time * 1000 > $solo_etcd->mark(0) });
starts_without_pause($solo, 'restarted twice, etcd away in between');
push @solo_ids, $solo->mint(10);
$solo->wait_state('issuing', 30);
$solo->stop;
$stopped = time;

# --- every mark of a region is raised ---

my $load = Snowflake::Load->start($one, interval => 0.005);
eventually(20, sub { $load->succeeded > 20 });
# A number that nobody holds, and one that nobody ever held.
$etcd->put($etcd->mark_key(7), int(time * 1000) - 3_600_000);
my %before = (a => $one->stat_row, b => $two->stat_row);
my $dead = Snowflake::Instance->create('c', etcd => $etcd, settings => \%short, start => 0);

like(($one->try(q{SELECT snowflake_raise_marks(now() + interval '24 hours 1 minute')}))[1], qr/ERROR:  22023: .*less than a day.*DETAIL: /s,
	'marks are not raised by a day or more: such a one would be taken for a mistake');
is($etcd->mark(7) < time * 1000, 1, 'nor was any raised');
for my $bad (q{'infinity'}, q{'2025-12-31'}, q{'2200-01-01'})
{
	like(($one->try("SELECT snowflake_raise_marks($bad)"))[1], qr/ERROR:  22/, "nor to $bad");
}
my $until = int((time + 20) * 1000);
$moment = time;
$one->sql("SELECT snowflake_raise_marks(to_timestamp($until / 1000.0))");
note(sprintf 'raising took %.2f s', time - $moment);
my %marks = map { /(\d+)$/ ? ($1 => $_) : () } keys %{ $etcd->under($etcd->marks_prefix) };
is(join(' ', sort keys %marks), '000 001 007', 'there are no more marks than before');
is(join(' ', grep { $etcd->mark($_) < $until } sort keys %marks), '', 'and each is at least so high');
cmp_ok(not_before($etcd), '>=', $until, 'so is not_before');
for my $node ($one, $two)
{
	my $row = $node->stat_row;
	my $name = $node->name;
	is("$row->{state} $row->{worker} $row->{claims}", "issuing $before{$name}{worker} $before{$name}{claims}",
		"$name, which has a number, goes on with it");
	is($node->sql('SELECT abs(extract(epoch FROM snowflake_time(snowflake_nextval()) - clock_timestamp())) < 1.1'),
		't', "$name: its IDs follow the clock, not the mark");
}
my $log_of_c = $dead->log_offset // 0;
$dead->start;
$dead->sql('CREATE EXTENSION snowflake');
my $row = $dead->wait_stat(sub { $_[0]->{state} =~ /claiming|quarantined/ && $_[0]->{reason} }, 10);
ok($row, 'one that starts now waits, and the view says why');
note($row->{reason}) if $row;
ok($dead->wait_log(qr/LOG: .*\d{4}-\d\d-\d\d \d\d:\d\d:\d\d.*(?:used up|no new worker number|not mint)|(?:used up|no new worker number|not mint).*\d\d:\d\d:\d\d/, $log_of_c, 3),
	'and so does the log, with the time until which');
ok($dead->wait_state('issuing', 40), 'it mints when that time has come');
my ($first) = $dead->mint;
cmp_ok($dead->sql("SELECT extract(epoch FROM snowflake_time($first)) * 1000"), '>', $until, 'later than what the marks were raised to');
$load->stop;
is(scalar $load->refused, 0, 'who had a number refused no call meanwhile');
my %high = map { $_ => $etcd->mark($_) } sort keys %marks;
$one->sql(q{SELECT snowflake_raise_marks(now() - interval '1 hour')});
is(join(' ', grep { $etcd->mark($_) < $high{$_} } sort keys %high), '', 'raised to a time that is past, no mark falls');
$dead->stop;

# --- the own mark is changed by hand while it is held ---

my $worker = $one->stat('worker');
$load = Snowflake::Load->start($one, interval => 0.005);
eventually(20, sub { $load->succeeded > 20 });
my @tampering = (
	deleted => sub { $etcd->del($etcd->mark_key($worker)) },
	lowered => sub { $etcd->put($etcd->mark_key($worker), int(time * 1000) - 60_000) },
	'lowered a little' => sub { $etcd->put($etcd->mark_key($worker), int(time * 1000)) },
	'overwritten by what is no time' => sub { $etcd->put($etcd->mark_key($worker), 'by hand') });
while (my ($what, $do) = splice @tampering, 0, 2)
{
	my $claims = $one->stat('claims');
	my $offset = $one->log_offset;
	my $at = time;
	$do->();
	ok($one->wait_log(qr/WARNING: /, $offset, 10), "the own mark is $what: a warning is in the log");
	# Nobody takes a number whose mark is no time.
	ok($what =~ /no time/ || eventually(5, sub { not_before($etcd) >= ($at + $pause) * 1000 }), "the own mark is $what: not_before is raised");
	ok( eventually(25, sub { my $now = $one->stat_row; $now->{state} eq 'issuing' && ($etcd->mark($now->{worker}) // 0) > time * 1000 + 2000 }),
		"the own mark is $what: it goes on, with a mark ahead of the clock");
	is($one->stat('claims'), $claims, "the own mark is $what: under the same claim") if $what !~ /no time/;
}
is($etcd->mark($worker), 'by hand', 'what is no time is left to the DBA');
$etcd->del($etcd->mark_key($worker));

# A mark that is higher is as good as the own one.
$worker = $one->stat('worker');
my $claims = $one->stat('claims');
my $high = int(time * 1000) + 20_000;
$etcd->put($etcd->mark_key($worker), $high);
my $renewed = $one->stat('last_renewal');
ok($one->wait_stat(sub { $_[0]->{last_renewal} gt $renewed }, 10), 'the own mark is raised by hand: it renews');
is($one->stat('claims'), $claims, 'under the same claim');
cmp_ok($etcd->mark($worker), '>=', $high, 'and the mark does not fall');
cmp_ok($one->sql('SELECT extract(epoch FROM mark - now()) FROM pg_stat_snowflake'), '<=', $reserve + 1, 'no more is used of it than what was asked for');
$load->stop;

# Claim and mark together.
$worker = $two->stat('worker');
my $at = time;
$etcd->del($etcd->mark_key($worker));
$etcd->del($etcd->claim_key($worker));
ok(eventually(10, sub { not_before($etcd) >= ($at + $pause) * 1000 }), 'claim and mark are deleted: not_before is raised');
ok($two->wait_stat(sub { $_[0]->{claims} > $before{b}{claims} && $_[0]->{state} eq 'issuing' }, 40), 'and it mints again by itself');

# --- regions that are not new ---

$_->stop('immediate') for $one, $two;
my $lease = $etcd->lease_grant(600);
my %foreign = (
	1 => [ 'marks/005', int(time * 1000) - 3_600_000 ],
	2 => [ 'workers/005', 'another', $lease ],
	3 => [ 'not_before', int(time * 1000) - 3_600_000 ]);
for my $region (sort keys %foreign)
{
	my ($key, $value, @lease) = @{ $foreign{$region} };
	$etcd->put("$etcd->{prefix}/r$region/$key", $value, @lease);
	$one->append_conf('postgresql.conf', "snowflake.region = $region\n");
	$one->start;
	ok($one->wait_state('quarantined', 10), "a region that holds $key: the first instance pauses");
	like(($one->try('SELECT snowflake_init_region()'))[1], qr/ERROR:  55000: .*not new/, "and can't be told that it is new");
	isnt($one->state, 'issuing', 'it does not mint');
	$one->stop('immediate');
}

# --- the only instance of a region, when nothing of what it reserved is left ---

my $away = $ENV{SNOWFLAKE_FULL} ? 300 : 40;
eventually($away + 10, sub { time > $stopped + $away }, 0.2);
starts_without_pause($solo, "the only instance, after $away s");
push @solo_ids, $solo->mint(10);
is(join(' ', grep { $solo_ids[$_] <= $solo_ids[ $_ - 1 ] } 1 .. $#solo_ids), '', 'its IDs increase over all its restarts');
# A crash leaves no hint.
$solo->stop('immediate');
eventually(20, sub { !grep { $_->{value} >= time * 1000 } values %{ $solo_etcd->under($solo_etcd->marks_prefix) } });
$solo->start;
is($solo->wait_state('quarantined|issuing', 15)->{state}, 'quarantined', 'after a crash and its reserve it pauses');

done_testing();
