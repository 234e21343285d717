# etcd is restored from a backup, wiped, or replaced, and so forgets claims and marks that living
# instances still use. No ID is minted twice; what it costs is a pause, which explains itself.

use strict;
use warnings;

use File::Path qw(rmtree);
use Test::More;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually tempdir_abs);
use Snowflake::Proxy;

my $reserve = 5;
my $pause = $reserve + 10;
my %short = (reserve => "${reserve}s", lease_ttl => '10s');

my $etcd = Snowflake::Etcd->new;
my $data = "$etcd->{dir}/$etcd->{members}[0]{name}";

# Each has a gate to etcd of its own: closed, it is cut off.
my (%node, %gate);
for my $name (qw(a b c d))
{
	$gate{$name} = Snowflake::Proxy->new($etcd->port);
	$node{$name} = Snowflake::Instance->create($name, start => 0,
		settings => { %short, etcd_endpoints => $gate{$name}->endpoint });
}

# --- what the rounds are made of ---

our $TODO;
my $round = 0;
my (%load, %log, @stalled);

# A round begins with an empty etcd, whose raft term is as low as that of a restored one, and in a
# region of its own.
sub new_round
{
	my ($title) = @_;
	$round++;
	note("--- round $round: $title");
	rmtree($data);
	$etcd->{region} = $round;
	$etcd->start;
	$_->append_conf('postgresql.conf', "snowflake.region = $round\n") for values %node;
	return;
}

# Starts it, and calls that go on to the end of the round.
sub up
{
	my ($name) = @_;
	$log{$name} = $node{$name}->log_offset // 0;
	$node{$name}->start;
	$node{$name}->sql('CREATE EXTENSION IF NOT EXISTS snowflake');
	$load{$name} = [ @{ $load{$name} // [] }, Snowflake::Load->start($node{$name}, interval => 0.002,
			sql => 'SELECT snowflake_nextval() FROM generate_series(1, 1000)') ];
	return;
}

# The first of a region; later ones mint at once, since it is there.
sub first_up { my ($name) = @_; up($name); $node{$name}->wait_issuing; return; }

sub next_up
{
	my ($name) = @_;
	up($name);
	my $row = $node{$name}->wait_state('issuing', $pause - 5);
	ok($row, "round $round: $name mints at once, since it finds a living instance");
	return $row->{worker};
}

# Runs already, and claims in the very second in which etcd is back.
sub at_the_gate { my ($name) = @_; $gate{$name}->mode('refuse'); up($name); return; }

# The background worker stands still: it neither renews nor learns anything, but backends may use
# what is reserved. The hardest case: what is reserved of a forgotten number is in use.
sub stall
{
	my (@names) = @_;
	push @stalled, my @pids = map { $node{$_}->worker_pid } @names;
	kill('STOP', @pids);
	return;
}
sub unstall { kill('CONT', splice @stalled); return; }

# --- backup and restore ---

# An etcdctl snapshot, or a copy of the data directory, as a snapshot of a disk or of a virtual
# machine is.
sub backup
{
	my ($kind) = @_;
	my $backup = { kind => $kind, path => tempdir_abs('backup') . '/backup' };
	if ($kind eq 'copy')
	{
		$etcd->pause;
		PostgreSQL::Test::RecursiveCopy::copypath($data, $backup->{path});
		$etcd->resume;
	}
	else
	{
		etcdctl('--endpoints', $etcd->endpoint, 'snapshot', 'save', $backup->{path});
	}
	$backup->{at} = time;
	return $backup;
}

sub etcdctl
{
	my (@arguments) = @_;
	local $ENV{ETCDCTL_API} = 3;
	IPC::Run::run([ 'etcdctl', @arguments ], '>&', '/dev/null') or die "etcdctl @arguments";
	return;
}

# Lays out beforehand what etcd comes back with. ids: 'same' (name, URLs and token, hence cluster and
# member id), or 'other'.
sub prepare
{
	my ($backup, $ids) = @_;
	my $member = $etcd->{members}[0];
	my $prepared = tempdir_abs('prepared') . '/data';
	if ($backup->{kind} eq 'copy')
	{
		PostgreSQL::Test::RecursiveCopy::copypath($backup->{path}, $prepared);
		return $prepared;
	}
	etcdctl('snapshot', 'restore', $backup->{path}, '--name', $member->{name}, '--data-dir', $prepared,
		'--initial-cluster', "$member->{name}=$member->{peer}",
		'--initial-advertise-peer-urls', $member->{peer},
		'--initial-cluster-token', $ids eq 'same' ? "test-$member->{port}" : 'another');
	return $prepared;
}

# etcd is away for a moment, and comes back with this, or with nothing. Returns when it began to.
sub swap
{
	my ($prepared) = @_;
	$etcd->kill9;
	rmtree($data);
	if (defined $prepared) { rename($prepared, $data) or die "rename: $!"; }
	my $back = time;
	$etcd->start;
	return $back;
}

# A younger backup is out of scope.
sub aged { my ($backup) = @_; return eventually(60, sub { time > $backup->{at} + $reserve + 1 }); }

sub header { return $etcd->call('/v3/kv/range', { key => Snowflake::Etcd::b64('x') })->{header}; }

# --- what is expected ---

sub refused_text { my ($node) = @_; return ($node->try('SET snowflake.max_wait = 0; SELECT snowflake_nextval()'))[1]; }

# It claims and does not mint: it lacks a witness (quarantined), or one has raised not_before. Either
# way the view, the refusal and the log say why, and until when.
sub explains_itself
{
	my ($name) = @_;
	my $moment = qr/\d{4}-\d\d-\d\d \d\d:\d\d:\d\d/;
	my $row = $node{$name}->wait_stat(sub { $_[0]->{state} =~ /^(?:quarantined|claiming)$/ && $_[0]->{reason} }, 10);
	ok($row, "round $round: $name pauses") or return;
	note("$row->{state}: $row->{reason}");
	like($row->{reason}, qr/nothing shows that etcd remembers|$moment/, "round $round: the view says why");
	like(refused_text($node{$name}), qr/ERROR:  55000: .*$moment.*HINT: .*by itself/s, "round $round: so does the refusal, and until when");
	ok($node{$name}->wait_log(qr/\] LOG:  [^\n]*snowflake[^\n]*$moment/, $log{$name}, 3), "round $round: and the log");
	return;
}

# It has no witness at all.
sub quarantined
{
	my ($name) = @_;
	is($node{$name}->wait_state('quarantined|issuing', 10)->{state}, 'quarantined', "round $round: $name pauses");
	like(refused_text($node{$name}), qr/DETAIL: .*restored from a backup.*HINT: .*snowflake_init_region/s, "round $round: the refusal says what may be the matter");
	ok($node{$name}->wait_log(qr/LOG:  snowflake mints no new worker number before .*DETAIL: .*restored.*HINT: /s, $log{$name}, 3),
		"round $round: and so does the log");
	return;
}

# It mints by itself when all that etcd can have forgotten is past (at most a second, the lead, before
# not_before), and not much later.
sub mints_after_pause
{
	my ($name, $back) = @_;
	my $took;
	eventually($pause + 20, sub { defined($took = $load{$name}[-1]->first_success_after($back)) });
	cmp_ok($took // 0, '>=', $pause - 1, sprintf('round %d: %s mints after the pause (%.1f s)', $round, $name, $took // -1));
	cmp_ok($took // 99, '<=', $pause + 6, "round $round: and soon after it");
	return;
}

sub warns
{
	my ($back, @names) = @_;
	ok($node{$_}->wait_log(qr/WARNING:  etcd has forgotten what it had confirmed.*\n.*DETAIL: .*restored/, $log{$_}, 10),
		"round $round: $_ warns that etcd has forgotten")
	  for @names;
	my $key = "$etcd->{prefix}/r$etcd->{region}/not_before";
	my $not_before;
	ok( eventually(10, sub { $not_before = $etcd->get($key); ($not_before // '') =~ /^\d{13}$/ && $not_before / 1000 > $back + $pause }),
		"round $round: and raises not_before past all that it can have forgotten");
	return;
}

# The end of a round, when those that are named mint.
sub no_id_twice
{
	my (@names) = @_;
	for my $name (@names)
	{
		ok($node{$name}->wait_state('issuing', $pause + 20), "round $round: $name mints in the end");
	}
	my @numbers = map { $node{$_}->stat('worker') } @names;
	my %distinct = map { $_ => 1 } @numbers;
	is(scalar keys %distinct, scalar @numbers, "round $round: each with a number of its own");
	my @loads = map { @$_ } values %load;
	$_->stop for @loads;
	my $found = idcheck(map { $_->id_files } @loads);
	cmp_ok($found->{ids}, '>', 100_000, "round $round: $found->{ids} IDs were minted");
	is($found->{duplicates}, 0, "round $round: none of them twice");
	is($found->{order_violations}, 0, "round $round: and those of each session increase");
	my ($bad) = grep { $_->{sqlstate} ne '55000' } map { $_->refused } @loads;
	is($bad ? "$bad->{sqlstate} $bad->{text}" : undef, undef, "round $round: calls were refused with 55000 only");
	%load = ();
	unstall();
	$_->{_pid} and $_->stop('immediate') for values %node;
	$_->mode('pass') for values %gate;
	$etcd->kill9;
	return;
}

my ($backup, $prepared, $back);
my %rounds;

# --- the same name and URLs, so that every id looks right ---

$rounds{same} = sub {
	new_round('a snapshot, the same ids');
	first_up('a');
	$backup = backup('snapshot');
	next_up($_) for qw(b c);
	aged($backup);
	$prepared = prepare($backup, 'same');
	my $before = header();
	at_the_gate('d');
	$node{c}->stop;
	at_the_gate('c');
	stall('b');
	$back = swap($prepared);
	$gate{$_}->mode('pass') for qw(c d);
	my $after = header();
	is($after->{$_}, $before->{$_}, "round $round: the restored etcd has the same $_") for qw(cluster_id member_id);
	warns($back, 'a');
	explains_itself('d');
	isnt($node{c}->state, 'issuing', "round $round: one whose number is forgotten does not mint when it is started again");
	is($node{a}->stat('claims'), 1, "round $round: an instance whose claim is in the backup keeps it");
	is($node{a}->state, 'issuing', "round $round: and mints what it had reserved, then above not_before");
	mints_after_pause('d', $back);
	unstall();
	ok($node{b}->wait_log(qr/lost its worker number/, $log{b}, 10), "round $round: one that was stalled meanwhile notices");
	no_id_twice(qw(a b c d));
};

# --- a hint from before the backup is found as it was left ---

$rounds{hint} = sub {
	my ($kind, $ids) = @_;
	local $TODO = 'a copy of the data directory brings the raft term with it' if $kind eq 'copy';
	new_round("a $kind, $ids ids, and an instance that was stopped before it");
	first_up('a');
	next_up('c');
	$node{a}->stop;
	my $mark = $etcd->mark(0);
	$backup = backup($kind);
	eventually(20, sub { time * 1000 > $mark });
	is(next_up('b'), 0, "round $round: after the backup another takes the number of the one that was stopped");
	aged($backup);
	$prepared = prepare($backup, $ids);
	at_the_gate($_) for qw(a d);
	stall(qw(b c));
	$back = swap($prepared);
	$gate{$_}->mode('pass') for qw(a d);
	quarantined($_) for qw(a d);
	eventually(20, sub { time > $back + $pause });
	no_id_twice(qw(a d));
};

# --- one frozen since before the backup finds its claim and its mark as they were ---

$rounds{frozen} = sub {
	my ($kind, $ids) = @_;
	local $TODO = 'a copy of the data directory brings the raft term with it' if $kind eq 'copy';
	new_round("a $kind, $ids ids, and an instance that was frozen since before it");
	first_up('a');
	next_up('c');
	$node{a}->freeze;
	$backup = backup($kind);
	next_up('b');
	aged($backup);
	$prepared = prepare($backup, $ids);
	at_the_gate('d');
	stall(qw(b c));
	$back = swap($prepared);
	$node{a}->thaw;
	my $mark = $etcd->mark(0);
	eventually(3, sub { $etcd->mark(0) ne $mark });
	$gate{d}->mode('pass');
	eventually(3, sub { $node{d}->state eq 'issuing' }, 0.1);
	isnt($node{d}->state, 'issuing', "round $round: d does not mint: the frozen one is no witness that etcd remembers");
	eventually(20, sub { time > $back + $pause });
	no_id_twice(qw(a d));
};

# --- nothing is left ---

$rounds{wiped} = sub {
	new_round('wiped');
	first_up('a');
	next_up($_) for qw(b c);
	at_the_gate('d');
	stall('b');
	$back = swap(undef);
	$gate{d}->mode('pass');
	warns($back, qw(a c));
	explains_itself('d');
	my ($out, $err) = $node{d}->try('SELECT snowflake_init_region()');
	like($err, qr/ERROR:  55000: .*not new/, "round $round: nor can it be told that this etcd is new");
	mints_after_pause('d', $back);
	no_id_twice(qw(a c d));
};

# --- another cluster ---

$rounds{elsewhere} = sub {
	new_round('endpoints of another cluster, by reload');
	my $other = Snowflake::Etcd->new(region => $round)->start;
	first_up('a');
	next_up($_) for qw(b c);
	stall('c');
	$node{$_}->set(etcd_endpoints => $other->endpoints) for qw(a b);
	$back = time;
	$node{d}->append_conf('postgresql.conf', "snowflake.etcd_endpoints = '" . $other->endpoints . "'\n");
	up('d');
	my $here = $etcd;
	$etcd = $other;
	warns($back, qw(a b));
	isnt($node{d}->state, 'issuing', "round $round: a new one does not mint there at once");
	mints_after_pause('d', $back);
	no_id_twice(qw(a b d));
	$etcd = $here;
	$here->kill9;
};

# --- a forgotten one with a longer reserve than the new one ---

$rounds{mixed} = sub {
	new_round('wiped, and reserves that differ');
	local $TODO = 'the pause is as long as the own reserve demands, not that of others';
	$node{a}->append_conf('postgresql.conf', "snowflake.reserve = 40s\nsnowflake.lease_ttl = 60s\n");
	first_up('a');
	at_the_gate('d');
	stall('a');
	$back = swap(undef);
	$gate{d}->mode('pass');
	ok($node{d}->wait_state('issuing', $pause + 5), "round $round: d mints after its own pause");
	eventually(5, sub { time > $back + $pause + 5 });
	unstall();
	no_id_twice(qw(a d));
	$node{a}->append_conf('postgresql.conf', join('', map { "snowflake.$_ = $short{$_}\n" } sort keys %short));
};

# --- a new one whose clock is behind ---

$rounds{slow} = sub {
	new_round('wiped, and a clock that is behind');
	local $TODO = 'without marks nothing but the clock keeps a new one from times that are used';
	first_up('a');
	my $minted = time;
	eventually(20, sub { time > $minted + 10 });
	$node{a}->stop;
	$back = swap(undef);
	my $page = tempdir_abs('clock') . '/d';
	local $ENV{CLOCKSHIM_PAGE} = $page;
	my $behind = $back + $pause - $minted - 3;
	IPC::Run::run([ "$ENV{DRILLS_PROGRAMS}/clockctl", $page, 'set', -$behind ]) or die;
	{
		local $ENV{LD_PRELOAD} = "$ENV{DRILLS_PROGRAMS}/clockshim.so";
		$node{d}->start;
	}
	$node{d}->sql('CREATE EXTENSION IF NOT EXISTS snowflake');
	$load{d} = [ Snowflake::Load->start($node{d}, interval => 0.002, sql => 'SELECT snowflake_nextval() FROM generate_series(1, 1000)') ];
	ok($node{d}->wait_state('issuing', $pause + 10), "round $round: d mints after the pause, its clock $behind s behind");
	my $at = time;
	eventually(5, sub { time > $at + 4 });
	no_id_twice('d');
};

my @rounds = qw(same hint:snapshot:other frozen:snapshot:same wiped elsewhere);
push @rounds, qw(hint:copy:same frozen:copy:same) if $ENV{SNOWFLAKE_FULL};
push @rounds, qw(mixed) if $ENV{SNOWFLAKE_FULL};
push @rounds, qw(slow) if $ENV{SNOWFLAKE_FULL} && $ENV{DRILLS_PROGRAMS};
for my $chosen ($ENV{SNOWFLAKE_ROUNDS} ? split / /, $ENV{SNOWFLAKE_ROUNDS} : @rounds)
{
	my ($name, @how) = split /:/, $chosen;
	$rounds{$name}->(@how);
}

done_testing();
