# Torture: three servers and three etcd members under load, with faults of every kind at random and
# in pairs that are known to hurt; at the end every ID that a session was handed is checked. Started by
# run.sh: torture.pl SECONDS, with SEED and RATE in the environment. One seed picks the same faults, but
# no two runs have the same timing.
#
# FAULTS: a regular expression; only faults whose names match take place. EVERY: seconds between them on
# the average (0.7); when they stand alone, a stop that they don't explain shows better.
#
# Exit status 0: no ID twice, no order broken, no unexpected refusal, no stop of more than 3 s that the
# faults don't explain, no crash, and all servers mint again once all is well.

use strict;
use warnings;

my $terminal;
BEGIN { open($terminal, '>&', \*STDOUT) or die $!; }    # the test library takes STDOUT away

use List::Util qw(max min shuffle sum0);
use Time::HiRes qw(sleep);

use Snowflake::Process qw(eventually slurp);
use Snowflake::Proxy;
use Drills::Etcd;
use Drills::Server;

$terminal->autoflush(1);
my $seconds = shift // 300;
my $seed = $ENV{SEED} || int(rand(1_000_000_000));
my $rate = $ENV{RATE} || 150_000;
my $only = $ENV{FAULTS} || '.';
my $every = $ENV{EVERY} || 0.7;
my $run = $ENV{DRILLS_RUN} // die 'start it with run.sh';
srand($seed);

# Short, so that much happens; and so few numbers that they go from hand to hand.
my $reserve = 4 + int(rand(4));
my $ttl = $reserve + 1 + int(rand(3));
my $numbers = 3 + int(rand(4));
# As long a new claim may wait after etcd was found to have forgotten something.
my $pause = $reserve + 10;

sub now { return Drills::Server::now(); }
sub between { my ($least, $most) = @_; return $least + rand($most - $least); }
sub pick { my (@of) = @_; return $of[ rand @of ]; }

my $start = now();
sub report { my (@text) = @_; printf $terminal "%7.1f  %s\n", now() - $start, join('', @text); return; }
sub note { my (@text) = @_; printf "%7.1f  %s\n", now() - $start, join('', @text); return; }

my $etcd = Drills::Etcd->new(3)->start;
$etcd->ids_are_right or die 'the ids of the etcd members are not what was expected';
Drills::Server::make_template($run);
my (@servers, @links);
for my $at (0 .. 2)
{
	$links[$at] = [ map { Snowflake::Proxy->new($etcd->port($_)) } $etcd->all ];
	# One believes etcd's Date, the others the kernel.
	my $server = Drills::Server->new(
		('a' .. 'c')[$at], $run,
		etcd_endpoints => join(',', map { $_->endpoint } shuffle @{ $links[$at] }),
		lease_ttl => "${ttl}s", reserve => "${reserve}s", max_clock_error => $at == 0 ? '0' : '10ms');
	$server->clock('sync', 'good') unless $at == 0;
	push @servers, $server;
}

# --- the run's own time ---

my @queue;       # [ moment, what to do ], by their moments
my %held;        # what a fault is at work on => until when
my $skipped;     # the fault found nothing to do
my (%counts, @windows, @findings);

sub later
{
	my ($delay, $what) = @_;
	my $moment = now() + $delay;
	my $at = @queue;
	$at-- while $at > 0 && $queue[ $at - 1 ][0] > $moment;
	splice(@queue, $at, 0, [ $moment, $what ]);
	return;
}

sub poll
{
	my ($condition, $then, $deadline) = @_;
	$deadline //= now() + 60;
	return $then->() if $condition->();
	if (now() > $deadline)
	{
		push @findings, sprintf('%.1f s: something was waited for in vain', now() - $start);
		return $then->();
	}
	later(0.03, sub { poll($condition, $then, $deadline) });
	return;
}

sub hold { my ($for, @what) = @_; $held{$_} = max($held{$_} // 0, now() + $for) for @what; return; }
sub let_go { my ($after, @what) = @_; $held{$_} = now() + $after for @what; return; }
sub skip { $skipped = 1; return; }

# When a stop of a server is the doing of its faults, see explain(). kinds: 'server': it mints nothing
# from the first moment; 'etcd': out of reach, so nothing once the reserve is used up; 'claims': new
# claims wait, which matters to whoever needs one.
sub window
{
	my ($at, $kind, $for) = @_;
	my $window = { at => $at, from => now(), to => now() + ($for // 3600), kind => $kind };
	push @windows, $window;
	return $window;
}
sub windows_of_all { my ($kind, $for) = @_; return map { window($_, $kind, $for) } 0 .. 2; }

# Undoes a fault after so long; only then its windows end.
sub cure
{
	my ($after, $windows, $what) = @_;
	later($after, sub { $what->(); $_->{to} = now() + 0.5 for @$windows; });
	return;
}

# --- servers ---

my %down;    # servers whose end is wanted

# The server was hit; once it takes connections again all is said.
sub until_ready
{
	my ($at) = @_;
	my $window = window($at, 'server');
	hold(3600, "server$at");
	poll(sub { $servers[$at]->ready }, sub { $window->{to} = now() + 0.5; let_go(1, "server$at"); });
	return;
}

# Ends it by a signal to the postmaster, and starts it again after a while.
sub fall
{
	my ($at, $signal, $delay) = @_;
	my $server = $servers[$at];
	my @children = keys %{ $server->children };
	my $window = window($at, 'server');
	$down{$at} = 1;
	hold(3600, "server$at");
	$server->signal($signal);
	my $start_again = sub {
		$server->start;
		$down{$at} = 0;
		poll(sub { $server->ready }, sub { $window->{to} = now() + 0.5; let_go(1, "server$at"); });
	};
	# What is left of the old one holds its shared memory.
	poll(sub { !$server->running && !grep { kill(0, $_) } @children }, sub { later($delay, $start_again) });
	return;
}

sub some
{
	my ($at, $title, $count) = @_;
	return grep { defined } (shuffle $servers[$at]->pids($title))[ 0 .. ($count // 1) - 1 ];
}
my $session = qr/\[local\]/;
my $busy_session = qr/\[local\] (?!idle)/;
my $worker = qr/snowflake worker/;
my $other = qr/checkpointer|walwriter|background writer/;

sub crash
{
	my ($at, $title, $count) = @_;
	my @pids = some($at, $title, $count) or return skip();
	$servers[$at]->mark_log;
	kill('KILL', @pids);
	return until_ready($at);
}

sub freeze_for
{
	my ($for, $windows, @pids) = @_;
	kill('STOP', @pids);
	cure($for, $windows, sub { kill('CONT', @pids) });
	return;
}

# --- clocks ---

sub set_right
{
	my ($at) = @_;
	$servers[$at]->clock('set', 0);
	$servers[$at]->clock('sync', 'good') unless $at == 0;
	return;
}

# Off by so much, for a while.
sub wrong_clock
{
	my ($at, $by, $for) = @_;
	my @window = abs $by > 0.95 ? window($at, 'server') : ();
	hold($for + 1, "clock$at");
	# Whoever starts meanwhile has to wait.
	push @window, window($at, 'claims');
	$servers[$at]->clock('step', $by);
	cure($for, \@window, sub { set_right($at) });
	return;
}

sub clockctl_meanwhile
{
	my ($at, @words) = @_;
	local $ENV{CLOCKCTL_VOUCHED} = 1;
	Snowflake::Process->spawn([ Drills::Server::program('clockctl'), $servers[$at]{page}, @words ]);
	return;
}

# --- links and members ---

my @broken = (
	['blackhole'], ['stall'], ['hang_connect'], ['refuse'], ['reset'], ['drop_replies'],
	['drop_requests'], [ 'delay', 400 ], [ 'delay', 2000 ], ['trickle']);

sub break_links
{
	my ($at, $for, $mode, @which) = @_;
	my @window = @which ? () : window($at, 'etcd');
	@which = $etcd->all unless @which;
	hold($for + 1, "net$at");
	$links[$at][$_]->mode(@$mode) for @which;
	cure($for, \@window, sub { $links[$at][$_]->mode('pass') for @which });
	return;
}

sub lose_members
{
	my ($for, $way, @which) = @_;
	my @window = @which > 1 ? windows_of_all('etcd') : ();
	hold($for + 2, 'etcd');
	if ($way eq 'freeze')
	{
		$etcd->pause_member($_) for @which;
		cure($for, \@window, sub { $etcd->resume_member($_) for @which });
	}
	else
	{
		$etcd->signal_member($_, 'KILL') for @which;
		cure($for, \@window, sub { $etcd->stop_member($_), $etcd->start_member($_) for @which });
	}
	return;
}

# Backups, the newest last: { file, at }. Good for a restore once they are older than the reserve.
my @backups;

sub back_up
{
	my ($then, $otherwise) = @_;
	my $file = sprintf '%s/backup.%.3f', $run, now();
	my $process = Snowflake::Process->spawn(
		[ 'env', 'ETCDCTL_API=3', 'etcdctl', '--endpoints', $etcd->endpoint(int(rand(3))), 'snapshot', 'save', $file ]);
	poll(
		sub { !$process->running || now() > $start + $seconds + 20 },
		sub {
			if ($process->running || $process->{status} != 0) { $otherwise->() if $otherwise; return; }
			push @backups, { file => $file, at => now() };
			unlink((shift @backups)->{file}) if @backups > 5;
			$then->($backups[-1]) if $then;
		});
	return;
}

# etcd as it was at a backup, or empty. $then comes in the moment in which it answers again.
sub restore
{
	my ($backup, $then) = @_;
	my @window = windows_of_all('server');
	hold(3600, 'etcd', 'marks');
	$etcd->signal_member($_, 'KILL') for $etcd->all;
	$etcd->stop_member($_) for $etcd->all;
	my $commands = join(' & ', map { '(' . $etcd->restore_command($_, $backup && $backup->{file}) . ')' } $etcd->all);
	my $process = Snowflake::Process->spawn([ 'bash', '-c', "$commands & wait" ], log => "$run/restore.log");
	my $is_back = sub {
		$then->() if $then;
		$etcd->crowd($numbers);
		# Claims may wait as long; and a second restore before holders have made up for the first is
		# one of a backup that is too young.
		$_->{to} = now() + $pause + 3 for @window;
		let_go(2, 'etcd');
		let_go($pause + 3, 'marks');
		unlink $_->{file} for @backups;
		@backups = ();
	};
	poll(
		sub { !$process->running },
		sub {
			$etcd->start_member($_) for $etcd->all;
			poll(sub { defined $etcd->ask('/v3/kv/range', { key => 'YQ==' }) }, $is_back);
		});
	return;
}

sub old_backup { return (grep { now() - $_->{at} > $reserve + 1.5 } @backups)[0]; }

# Ends what keeps a claim, so that the server needs a new one.
sub lose_claim
{
	my ($at, $lease) = @_;
	window($at, 'etcd', 1);
	$etcd->revoke_quickly($lease) if defined $lease;
	return;
}
sub claim_of { my ($at) = @_; return $etcd->claim_of($servers[$at]->name); }
sub lease_of { my ($at) = @_; return (claim_of($at))[1]; }

# --- the faults: name, weight, what it is at work on (# is a server, + another), what it does ---

my @faults = (
	[ 'kill -9 backend', 3, ['server#'], sub { crash($_[0], $session, 1 + int(rand(2))) } ],
	[ 'kill -9 worker', 3, ['server#'], sub { crash($_[0], $worker) } ],
	[ 'kill -9 checkpointer', 1, ['server#'], sub { crash($_[0], $other) } ],
	[ 'kill -9 postmaster', 2, [ 'server#', 'clock#' ], sub { fall($_[0], 'KILL', between(0, 1.5)) } ],
	[ 'restart fast', 2, [ 'server#', 'clock#' ], sub { fall($_[0], 'INT', 0) } ],
	[ 'restart immediate', 1, [ 'server#', 'clock#' ], sub { fall($_[0], 'QUIT', 0) } ],
	[ 'down for seconds', 1, [ 'server#', 'clock#' ], sub {
		fall($_[0], pick('INT', 'QUIT', 'KILL'), between(2, $ttl + 3));
	} ],
	[ 'backends frozen', 3, ['server#'], sub {
		my ($at) = @_;
		my $for = between(0.1, $ttl + 3);
		hold($for + 1, "server$at");
		# One may be frozen with a lock of Postgres in its hand.
		freeze_for($for, [ window($at, 'server') ], some($at, $busy_session, 1 + int(rand(3))));
	} ],
	[ 'worker frozen', 3, ['server#'], sub {
		my ($at) = @_;
		my $for = between(0.3, $ttl + 4);
		hold($for + 1, "server$at");
		freeze_for($for, [ window($at, 'etcd') ], some($at, $worker));
	} ],
	[ 'server frozen', 3, ['server#'], sub {
		my ($at) = @_;
		my $for = between(0.3, $ttl + 6);
		hold($for + 2, "server$at");
		$servers[$at]->freeze;
		cure($for, [ window($at, 'server') ], sub { $servers[$at]->thaw });
	} ],
	[ 'storm of signals', 1, ['server#'], sub {
		my ($at) = @_;
		hold(3, "server$at");
		later($_ / 20, sub { kill(pick('TERM', 'HUP', 'USR1'), some($at, $worker)) }) for 1 .. 20;
	} ],

	[ 'clock 50 to 950 ms back', 3, ['clock#'], sub { wrong_clock($_[0], -between(0.05, 0.95), between(0.5, 4)) } ],
	[ 'clock 2 s back', 2, ['clock#'], sub { wrong_clock($_[0], -2, between(1, 4)) } ],
	[ 'clock far back', 1, ['clock#'], sub { wrong_clock($_[0], pick(-20, -3600), between(1, 4)) } ],
	[ 'clock ahead', 3, ['clock#'], sub { wrong_clock($_[0], pick(0.5, 2, 29, 31, 3600), between(0.5, 4)) } ],
	[ 'clock strobing', 1, ['clock#'], sub {
		hold(4.5, "clock$_[0]");
		clockctl_meanwhile($_[0], 'strobe', 0.2, 0.05, 60);
	} ],
	[ 'clock slewed', 1, ['clock#'], sub {
		my ($at) = @_;
		my $way = pick(0.08, -0.08);
		hold(7, "clock$at");
		clockctl_meanwhile($at, 'slew', $way, 2);
		later(2.5, sub { clockctl_meanwhile($at, 'slew', -$way, 2) });
		later(5.5, sub { set_right($at) });
	} ],
	[ 'clock not synchronised', 1, ['clock#'], sub {
		my ($at) = @_;
		my $for = between(1, 6);
		hold($for + 1, "clock$at");
		$servers[$at]->clock('sync', pick('never', 'EPERM'));
		cure($for, [ window($at, 'claims') ], sub { $servers[$at]->clock('sync', $at == 0 ? 'real' : 'good') });
	} ],

	[ 'links broken', 4, ['net#'], sub { break_links($_[0], between(0.3, $ttl + 3), pick(@broken)) } ],
	[ 'some links broken', 3, ['net#'], sub {
		break_links($_[0], between(1, 8), pick(@broken), (shuffle $etcd->all)[ 0 .. int(rand(2)) ]);
	} ],

	[ 'member killed', 2, ['etcd'], sub { lose_members(between(0.3, 4), 'kill', int(rand(3))) } ],
	[ 'member frozen', 2, ['etcd'], sub { lose_members(between(0.3, 6), 'freeze', int(rand(3))) } ],
	[ 'leader lost', 2, ['etcd'], sub { lose_members(between(0.3, 4), pick('kill', 'freeze'), $etcd->leader_now) } ],
	[ 'no quorum', 2, ['etcd'], sub {
		lose_members(between(0.5, $reserve + 4), pick('kill', 'freeze'), (shuffle $etcd->all)[ 0 .. 1 + int(rand(2)) ]);
	} ],
	[ 'members parted', 2, ['etcd'], sub {
		my ($one, $two, $three) = shuffle $etcd->all;
		my $for = between(1, 6);
		hold($for + 2, 'etcd');
		$etcd->cut_peers([ $one, $two ], rand() < 0.7 ? [ $one, $three ] : ());
		cure($for, [], sub { $etcd->cut_peers });
	} ],

	[ 'lease revoked', 3, ['server#'], sub { lose_claim($_[0], lease_of($_[0]) // return skip()) } ],
	[ 'claim deleted', 2, ['server#'], sub {
		my ($at) = @_;
		my ($number) = claim_of($at) or return skip();
		window($at, 'etcd', 1);
		$etcd->del_quickly($etcd->claim_key($number));
	} ],
	[ 'claim overwritten', 1, ['server#'], sub {
		my ($at) = @_;
		my ($number) = claim_of($at) or return skip();
		window($at, 'etcd', 1);
		$etcd->put_quickly($etcd->claim_key($number), 'a stranger');
		later(5, sub { $etcd->del_quickly($etcd->claim_key($number)) });
	} ],
	# The mark of a claim that stands. Nothing else may end that claim at this moment: a mark and its
	# claim deleted by hand together are out of scope.
	[ 'mark changed', 1, [ 'server#', 'clock#', 'net#', 'etcd', 'marks' ], sub {
		my ($at) = @_;
		my ($number) = claim_of($at) or return skip();
		hold(4, "server$at", "clock$at", "net$at", 'etcd');
		hold($pause + 3, 'marks');
		@backups = ();
		windows_of_all('claims', $pause + 2);
		my $key = $etcd->mark_key($number);
		my $ms = sub { return sprintf '%d', (Time::HiRes::time() + $_[0]) * 1000 };
		my $way = pick('deleted', 'lowered', 'raised', 'spoilt');
		note("mark of $number $way");
		if ($way eq 'deleted') { $etcd->del_quickly($key); }
		elsif ($way eq 'lowered') { $etcd->put_quickly($key, $ms->(-10)); }
		elsif ($way eq 'raised') { $etcd->put_quickly($key, $ms->($reserve + 2)); }
		else
		{
			$etcd->put_quickly($key, 'no number');
			later(3, sub { $etcd->put_quickly($key, $ms->($reserve + 2)) });
		}
	} ],
	[ 'marks raised', 1, [ 'server#', 'etcd' ], sub {
		windows_of_all('claims', 5);
		Snowflake::Process->spawn(
			[ 'psql', '-XqAt', '-d', $servers[ $_[0] ]->conninfo, '-c',
				q{SELECT snowflake_raise_marks(now() + interval '2 s')} ],
			log => "$run/raise_marks.log");
	} ],
	[ 'backup', 4, ['etcd'], sub { hold(1, 'etcd'); back_up(); } ],
	[ 'etcd restored', 2, [ 'etcd', 'marks' ], sub { restore(old_backup() // return skip()) } ],
	[ 'etcd wiped', 1, [ 'etcd', 'marks' ], sub { restore(undef) } ],

	[ 'pair: back 0.9 s, kill -9', 4, [ 'server#', 'clock#' ], sub {
		my ($at) = @_;
		my $title = pick($session, $worker, $other, undef);
		my @pids = $title ? some($at, $title) : ();
		return skip() if $title && !@pids;
		my $for = between(1, 4);
		hold($for + 1, "clock$at");
		local $ENV{CLOCKCTL_VOUCHED} = 1;
		$servers[$at]->mark_log;
		$servers[$at]->clock('step', -0.9, @pids ? ('kill', 9, @pids) : ());
		$title ? until_ready($at) : fall($at, 'KILL', 0);
		later($for, sub { set_right($at) });
	} ],
	[ 'pair: frozen, another takes its number', 4, [ 'server#', 'server+', 'clock#', 'clock+' ], sub {
		my ($at, $taker) = @_;
		my $lease = lease_of($at) // return skip();
		my $thaw = $reserve + between(1.2, 4);
		hold($thaw + 2, map { ("server$_", "clock$_") } $at, $taker);
		$servers[$at]->freeze;
		cure($thaw, [ window($at, 'server') ], sub { $servers[$at]->thaw });
		# Its mark is past, its lease gone, and the other needs a number.
		later($reserve + between(0.5, 1), sub { $etcd->revoke_quickly($lease) });
		later($reserve + 1.1, sub { window($taker, 'etcd', 3); kill('TERM', some($taker, $worker)); });
	} ],
	[ 'pair: lost claim reply, crash', 2, [ 'server#', 'net#', 'clock#' ], sub {
		my ($at) = @_;
		hold(5, "server$at");
		break_links($at, 2.5, ['drop_replies']);
		kill('TERM', some($at, $worker));
		later(between(1.2, 2.4), sub { rand() < 0.5 ? crash($at, $worker) : fall($at, 'QUIT', 0) });
	} ],
	[ 'pair: frozen backends, lease revoked', 3, ['server#'], sub {
		my ($at) = @_;
		my $lease = lease_of($at) // return skip();
		my $for = between(1.5, 5);
		hold($for + 1, "server$at");
		freeze_for($for, [ window($at, 'server') ], some($at, $busy_session, 2));
		lose_claim($at, $lease);
	} ],
	[ 'pair: ahead and back, lease revoked', 2, [ 'clock#', 'server#' ], sub {
		my ($at) = @_;
		my $lease = lease_of($at) // return skip();
		hold(5, "clock$at", "server$at");
		$servers[$at]->clock('step', 0.9);
		later(0.3, sub { lose_claim($at, $lease) });
		my $window = window($at, 'server');
		later(between(0.4, 2), sub { $servers[$at]->clock('step', -1.7) });
		cure(3.5, [$window], sub { set_right($at) });
	} ],
	[ 'pair: links broken, restart', 2, [ 'net#', 'server#', 'clock#' ], sub {
		my ($at) = @_;
		hold(2, "server$at");
		break_links($at, between(1, 5), pick(@broken));
		later(between(0, 0.8), sub { fall($at, pick('INT', 'QUIT', 'KILL'), 0) });
	} ],
	[ 'pair: leader and worker frozen', 2, [ 'etcd', 'server#' ], sub {
		my ($at) = @_;
		hold(6, 'etcd', "server$at");
		my ($leader, @pid) = ($etcd->leader_now, some($at, $worker));
		$etcd->pause_member($leader);
		later(between(0.05, 1), sub { kill('STOP', @pid) });
		later(2, sub { $etcd->resume_member($leader) });
		cure(3, [ window($at, 'etcd') ], sub { kill('CONT', @pid) });
	} ],
	[ 'pair: crash in the middle of a raise', 2, [ 'net#', 'server#', 'clock#' ], sub {
		my ($at) = @_;
		hold(2, "server$at");
		break_links($at, between(1, 4), ['stall']);
		later(between(0.1, 1.2), sub { crash($at, $worker) });
	} ],
	[ 'pair: claim lost, raise late', 2, [ 'net#', 'server#' ], sub {
		my ($at) = @_;
		my $lease = lease_of($at) // return skip();
		hold(4, "server$at");
		break_links($at, 2.5, ['stall']);
		later(1, sub { $etcd->revoke_quickly($lease) });
	} ],
	# They may get each other's numbers, whose marks are still to come.
	[ 'pair: two lose their leases at once', 3, [ 'server#', 'server+' ], sub {
		my @leases = map { [ $_, lease_of($_) // return skip() ] } @_;
		lose_claim(@$_) for @leases;
	} ],
	[ 'pair: frozen over backup and restore', 2, [ 'etcd', 'marks', 'server#' ], sub {
		my ($at) = @_;
		my @mine = ("server$at", 'etcd', 'marks');
		hold(3600, @mine);
		my $window = window($at, 'server');
		my $thaw = sub {
			$servers[$at]->thaw;
			$window->{to} = now() + 1;
			let_go(2, "server$at");
		};
		$servers[$at]->freeze;
		back_up(
			sub { my ($backup) = @_; later($reserve + 2, sub { restore($backup, $thaw) }); },
			sub { $thaw->(); let_go(0, @mine); });
	} ],
	# What it sees of its own is as it left it; the number of the other was claimed after the backup.
	[ 'pair: restored, its witness frozen since the backup', 2, [ 'etcd', 'marks', (map { "server$_" } 0 .. 2), 'net+' ], sub {
		my ($at, $holder) = @_;
		my ($taker) = grep { $_ != $at && $_ != $holder } 0 .. 2;
		my @mine = ('etcd', 'marks', map { "server$_" } 0 .. 2);
		hold(3600, @mine);
		my $window = window($at, 'server');
		my $thaw = sub {
			$servers[$at]->thaw;
			$window->{to} = now() + 1;
			let_go(2, map { "server$_" } 0 .. 2);
		};
		$servers[$at]->freeze;
		back_up(
			sub {
				my ($backup) = @_;
				lose_claim($holder, lease_of($holder));
				later($reserve + 2, sub {
					break_links($holder, $reserve + 3, ['blackhole']);
					window($taker, 'etcd', 3);
					kill('TERM', some($taker, $worker));
					restore($backup, $thaw);
				});
			},
			sub { $thaw->(); let_go(0, @mine); });
	} ],
	[ 'pair: restored, started in the same second', 2, [ 'etcd', 'marks', map { ("server$_", "clock$_") } 0 .. 2 ], sub {
		my @fallen = (shuffle 0 .. 2)[ 0 .. int(rand(3)) ];
		hold(3600, map { "server$_" } @fallen);
		restore(pick(old_backup(), undef), sub { fall($_, pick('INT', 'QUIT', 'KILL'), 0) for @fallen; });
	} ],
	# The holder uses what is reserved, and cannot tell the new etcd of it; the other needs a number.
	[ 'pair: restored, holder cut off, another claims', 3, [ 'etcd', 'marks', 'server#', 'net#', 'server+' ], sub {
		my ($at, $taker) = @_;
		hold($reserve + 3, "server$at");
		hold(3600, "server$taker");
		break_links($at, $reserve + 2, ['blackhole']);
		kill('TERM', some($taker, $worker));
		restore(pick(old_backup(), undef), sub { let_go(3, "server$taker") });
	} ],
	# Whose clock is back claimed its number after the backup, so that another may be given it.
	[ 'pair: clock back over a restore', 2, [ 'etcd', 'marks', map { ("server$_", "clock$_") } '#', '+' ], sub {
		my ($at, $taker) = @_;
		my @mine = ('etcd', 'marks', map { ("server$_", "clock$_") } $at, $taker);
		hold(3600, @mine);
		my @window = map { window($_, 'server') } $at, $taker;
		my $over = sub {
			set_right($at);
			$_->{to} = now() + 1 for @window;
			let_go(2, grep { /\d/ } @mine);
		};
		back_up(
			sub {
				my ($backup) = @_;
				kill('TERM', some($at, $worker));
				later(
					$reserve + 1.5,
					sub {
						$servers[$at]->clock('step', -20);
						restore($backup, sub {
							kill('TERM', some($taker, $worker));
							later(between(0.3, 1.5), $over);
						});
					});
			},
			sub { $over->(); let_go(0, @mine); });
	} ]);
@faults = grep { $_->[0] =~ /$only/ } @faults or die "no fault matches $only\n";
my $weight = sum0(map { $_->[1] } @faults);

# One of the faults whose servers and so on no other is at work on.
sub strike
{
	for (1 .. 30)
	{
		my $at = rand($weight);
		my $fault;
		for (@faults) { $fault = $_; last if ($at -= $_->[1]) < 0; }
		my ($name, undef, $needs, $do) = @$fault;
		my ($one, $two) = shuffle 0 .. 2;
		my @needs = map { s/#/$one/r =~ s/\+/$two/r } @$needs;
		next if grep { ($held{$_} // 0) > now() } @needs;
		note("$name: @needs");
		hold(0.3, @needs);
		$skipped = 0;
		$do->($one, $two);
		next if $skipped;
		$counts{$name}++;
		return;
	}
	return;
}

# When nobody mints, since nobody can know what etcd has forgotten, one server is left in peace until
# it does. Else the run would soon be a long silence: a claim that is lost in this pause starts it anew.
my $spared = 0;

sub spare_one
{
	return if now() < $spared;
	my @states = map { (split /\t/, (split /\n/, last_bytes("$run/ids/" . $_->name . '.states', 2000))[-1] // '')[2] // '' } @servers;
	my ($one) = shuffle grep { $states[$_] eq 'quarantined' } 0 .. 2;
	return if !defined $one || grep { $_ eq 'issuing' } @states;
	$spared = now() + $pause + 2;
	hold($pause + 2, "server$one", "clock$one", "net$one", 'etcd');
	note($servers[$one]->name . ' is spared');
	return;
}

sub last_bytes
{
	my ($path, $count) = @_;
	open my $file, '<', $path or return '';
	seek $file, -$count, 2 or seek $file, 0, 0;
	local $/;
	return <$file> // '';
}

# --- what explains a stop ---

# Writes NAME.windows. What the server itself says is believed for three pauses that are meant: no sign
# that etcd remembers, a mark or not_before still ahead, all numbers taken. Returns a line on them.
sub explain
{
	my ($at) = @_;
	my @mine = grep { $_->{at} == $at } @windows;
	my @out;
	for my $window (@mine)
	{
		my ($from, $to) = @$window{qw(from to)};
		my @others = grep { $_ != $window && $_->{from} < $to + 4 && $_->{to} > $from - 4 } @mine;
		next if $window->{kind} eq 'claims';
		$to = max($to, map { $_->{to} } grep { $_->{kind} eq 'claims' } @others);
		$to += 1 if $window->{kind} eq 'etcd';
		# Alone, nobody notices before the reserve is used up.
		$from += $reserve - 1.5 if $window->{kind} eq 'etcd' && !@others;
		push @out, [ $from, $to ] if $to > $from;
	}
	my %pauses;
	my $last = '';
	for my $line (split /\n/, slurp("$run/ids/" . $servers[$at]->name . '.states'))
	{
		my ($ns, undef, $state, undef, undef, undef, undef, $reason) = split /\t/, $line;
		next unless defined $state;
		my $kind = $state =~ /^(?:quarantined|no_worker_free)$/ ? $state
		  : $state =~ /^(?:claiming|fenced)$/ && ($reason // '') =~ /its time is used up to/ ? 'claimed, its time to come' : '';
		if ($kind ne '')
		{
			push @{ $pauses{$kind} }, [ $ns / 1e9 - 0.4, $ns / 1e9 ] if $kind ne $last;
			$pauses{$kind}[-1][1] = $ns / 1e9 + 0.4;
		}
		$last = $kind;
	}
	push @out, map { @$_ } values %pauses;
	open my $file, '>', "$run/ids/" . $servers[$at]->name . '.windows' or die $!;
	printf $file "%d %d\n", $_->[0] * 1e9, $_->[1] * 1e9 for @out;
	close $file;
	my @lines;
	for my $kind (sort keys %pauses)
	{
		my @lengths = map { $_->[1] - $_->[0] } @{ $pauses{$kind} };
		push @lines, sprintf '%s %d times, %.0f s at most', $kind, scalar @lengths, max(@lengths);
		push @findings, $servers[$at]->name . ": $lines[-1]" if max(@lengths) > 2 * $pause + 5;
	}
	return @lines ? join('; ', @lines) : 'no pauses';
}

# How its processes ended, from its log.
sub ends
{
	my ($at) = @_;
	my $log = slurp($servers[$at]{log});
	my %ends;
	while ($log =~ /LOG:  (.*?) \(PID \d+\) (was terminated by signal \d+|exited with exit code \d+)/g)
	{
		my ($who, $how) = ($1, $2);
		$ends{"$who $how"}++;
		push @findings, $servers[$at]->name . ": $who $how"
		  unless $how =~ /(?:signal 9|exit code [12])$/;
	}
	push @findings, $servers[$at]->name . ": $1" while $log =~ /((?:PANIC|TRAP|\*\*\* ).*)/g;
	return join('; ', map { "$_ ($ends{$_})" } sort keys %ends);
}

# --- the run ---

report("seed $seed: $seconds s, $rate ids/s asked of each server; lease_ttl $ttl s, reserve $reserve s, $numbers worker numbers");
$_->start for @servers;
$_->wait_ready for @servers;
$servers[0]->wait_issuing or die 'a does not mint';
$etcd->crowd($numbers);
for (@servers) { $_->wait_issuing or die $_->name . ' does not mint'; }
$_->start_load(
	(map { sprintf '%s:%.0f', $_, $rate * 0.27 } 'copy:20000', 'copy:2000', 'batches:20000'),
	sprintf('parallel:10000:%.0f', $rate * 0.1),
	('call:1:400') x 4, sprintf('batch:500:%.0f', $rate * 0.09), 'insert:1:100') for @servers;
srand($seed);
$start = now();
my $end = $start + $seconds;
my $next = $start + 2;
my $told = $start;
while (now() < $end || @queue)
{
	while (@queue && $queue[0][0] <= now()) { (shift @queue)->[1]->(); }
	if (now() >= $next && now() < $end)
	{
		strike();
		# Close together or far apart.
		$next = now() - $every * log(1 - rand());
		spare_one();
	}
	for my $at (grep { !$down{$_} && !$servers[$_]->running } 0 .. 2)
	{
		push @findings, sprintf('%.1f s: the postmaster of %s ended', now() - $start, $servers[$at]->name);
		$servers[$at]->start;
	}
	if (now() - $told >= 30)
	{
		$told = now();
		report(sprintf('%d faults, %.1f million ids', sum0(values %counts), sum0(map { -s } glob "$run/ids/*.ids") / 8e6));
	}
	sleep(max(0.001, min(0.02, (@queue ? $queue[0][0] : $next) - now())));
}

# All is well again, and nobody does anything about it.
for my $at (0 .. 2)
{
	set_right($at);
	$servers[$at]->clock('sync', $at == 0 ? 'real' : 'good');
	$_->mode('pass') for @{ $links[$at] };
}
my $well = now();
my @waiting = @servers;
while (@waiting && now() < $well + $pause + 15) { @waiting = grep { $_->state ne 'issuing' } @waiting; sleep 0.1; }
push @findings, $_->name . ' does not mint after the run: ' . $_->state for @waiting;
report(sprintf('all servers mint %.1f s after the last fault', now() - $well)) unless @waiting;
sleep 2;
Drills::Server::stop_load(@servers);
my @pauses = map { explain($_) } 0 .. 2;
my @ends = map { ends($_) } 0 .. 2;
my ($good, @report) = Drills::Server::audit($run, $start);

print $terminal "\nfaults (", sum0(values %counts), "):\n";
printf $terminal "%6d  %s\n", $counts{$_}, $_ for sort keys %counts;
print $terminal "\npauses that are meant:\n";
printf $terminal "  %s: %s\n", $servers[$_]->name, $pauses[$_] for 0 .. 2;
print $terminal "processes that ended:\n";
printf $terminal "  %s: %s\n", $servers[$_]->name, $ends[$_] for 0 .. 2;
print $terminal "\nseed $seed\n", map { "$_\n" } @report;
print $terminal "NOT AS EXPECTED: $_\n" for @findings;
print $terminal $good && !@findings ? "all as expected\n" : "NOT all as expected: seed $seed\n";
exit($good && !@findings ? 0 : 1);
