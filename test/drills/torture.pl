# Torture: three servers and three etcd members under load, with faults of every kind at random and
# in pairs that are known to hurt; at the end every ID that a session was handed is checked. Started by
# run.sh: torture.pl SECONDS, with SEED and RATE in the environment. One seed picks the same faults, but
# no two runs have the same timing.
#
# FAULTS: a regular expression; only faults whose names match take place.
#
# Exit status 0: no ID twice, no order broken, no unexpected refusal, no stop of more than 3 s that the
# faults don't explain, no crash, and all servers mint again once all is well.

use strict;
use warnings;

my $terminal;
BEGIN { open($terminal, '>&', \*STDOUT) or die $!; }    # the test library takes STDOUT away

use Digest::SHA qw(sha1_hex);
use List::Util qw(max min shuffle sum0);
use Time::HiRes qw(sleep);

use Snowflake::Process qw(eventually free_port slurp);
use Snowflake::Etcd;
use Snowflake::Proxy;
use Drills::Peers;
use Drills::Server;

# Three members whose links to each other go through a proxy.
package Drills::Etcd
{
	use parent -norequire, 'Snowflake::Etcd';

	sub new
	{
		my ($class) = @_;
		my $self = $class->SUPER::new(members => 3);
		my $token = "test-$self->{members}[0]{port}";
		my @peers;
		for my $member (@{ $self->{members} })
		{
			my ($port) = $member->{peer} =~ /(\d+)$/;
			my $target = Snowflake::Process::free_port();
			$member->{listen} = "http://127.0.0.1:$target";
			# As etcd makes it up.
			my $id = substr(Digest::SHA::sha1_hex($member->{peer} . $token), 0, 16) =~ s/^0+//r;
			push @peers, { port => $port, target => $target, id => $id };
			$member->{id} = $id;
		}
		$self->{token} = $token;
		$self->{peers} = Drills::Peers->new(@peers);
		return $self;
	}

	sub start_member
	{
		my ($self, $at) = @_;
		local $self->{args} = [
			'--listen-peer-urls', $self->{members}[$at]{listen},
			# Defaults of etcd, but for an election within the second.
			'--heartbeat-interval', 50, '--election-timeout', 500 ];
		return $self->SUPER::start_member($at);
	}

	# What replaces a member's data by a backup: a shell command.
	sub restore_command
	{
		my ($self, $at, $backup) = @_;
		my $member = $self->{members}[$at];
		my $cluster = join(',', map { "$_->{name}=$_->{peer}" } @{ $self->{members} });
		my $data = "$self->{dir}/$member->{name}";
		return "rm -rf $data" unless $backup;
		return "rm -rf $data; ETCDCTL_API=3 etcdctl snapshot restore $backup --name $member->{name} --data-dir $data"
		  . " --initial-cluster $cluster --initial-cluster-token $self->{token}"
		  . " --initial-advertise-peer-urls $member->{peer}";
	}
}

package main;

$terminal->autoflush(1);
my ($seconds) = @ARGV;
$seconds //= 300;
my $seed = $ENV{SEED} || int(rand(1_000_000_000));
my $rate = $ENV{RATE} || 150_000;
my $only = $ENV{FAULTS} || '.';
my $run = $ENV{DRILLS_RUN} // die 'start it with run.sh';
srand($seed);

# Short, so that much happens in a run; and so few numbers that they go from hand to hand.
my $reserve = 3 + int(rand(4));
my $ttl = $reserve + 1 + int(rand(3));
my $numbers = 5 + int(rand(3));
# The longest that a claim waits after etcd was found to have forgotten something.
my $pause = $reserve + 10;

sub now { return Drills::Server::now(); }
sub between { my ($least, $most) = @_; return $least + rand($most - $least); }
sub pick { my (@of) = @_; return $of[ rand @of ]; }
my $start;

# Clears its terminal line by line: this is read by people.
sub say_
{
	my ($text) = @_;
	printf $terminal "%7.1f  %s\n", $start ? now() - $start : 0, $text;
	return;
}

# --- what there is ---

my $etcd = Drills::Etcd->new->start;
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

# --- etcd by hand: any member that answers ---

sub ask
{
	my ($path, $body) = @_;
	for my $member (shuffle $etcd->all)
	{
		my $answer = $etcd->call($path, $body, member => $member, timeout => 1);
		return $answer if $answer;
	}
	return undef;
}

sub b64 { return Snowflake::Etcd::b64($_[0]); }
sub put { my ($key, $value) = @_; return ask('/v3/kv/put', { key => b64($key), value => b64($value) }); }
sub del { my ($key) = @_; return ask('/v3/kv/deleterange', { key => b64($key) }); }

# (number, lease) of the claim of a server; nothing when it has none.
sub claim_of
{
	my ($at) = @_;
	my $prefix = $etcd->workers_prefix;
	my $answer = ask('/v3/kv/range', { key => b64($prefix), range_end => b64("$prefix~") }) or return;
	for my $kv (@{ $answer->{kvs} // [] })
	{
		next unless MIME::Base64::decode_base64($kv->{value}) eq $servers[$at]->name;
		my ($number) = MIME::Base64::decode_base64($kv->{key}) =~ /(\d+)$/;
		return ($number + 0, $kv->{lease});
	}
	return;
}

# All numbers but the first few belong to others, who never give them back.
sub crowd
{
	for my $number ($numbers .. 127)
	{
		my $key = b64($etcd->claim_key($number));
		ask('/v3/kv/txn',
			{
				compare => [ { key => $key, target => 'CREATE', create_revision => '0' } ],
				success => [ { request_put => { key => $key, value => b64('others') } } ]
			});
	}
	return;
}

# --- the run's own time ---

my @queue;      # [ moment, what ], by their moments
my %held;       # what a fault is at work on => until when
my %counts;
my @windows;    # { at, from, to, kind }: when a stop of a server is its faults' doing, see explain()
my @findings;

sub later { my ($delay, $what) = @_; push @queue, [ now() + $delay, $what ]; return; }

sub poll
{
	my ($condition, $then, $deadline) = @_;
	$deadline //= now() + 60;
	return $then->() if $condition->();
	if (now() > $deadline) { push @findings, sprintf('at %.1f s: waited in vain', now() - $start); return $then->(); }
	later(0.03, sub { poll($condition, $then, $deadline) });
	return;
}

sub hold { my ($for, @what) = @_; $held{$_} = max($held{$_} // 0, now() + $for) for @what; return; }
sub is_free { my (@what) = @_; return !grep { ($held{$_} // 0) > now() } @what; }

# kinds: 'server' mints nothing from the first moment; 'etcd' out of reach: nothing once the reserve is
# used up; 'claims': new claims wait, so that it matters to whoever needs one.
sub window
{
	my ($at, $for, $kind) = @_;
	my $window = { at => $at, from => now(), to => now() + $for, kind => $kind };
	push @windows, $window;
	return $window;
}

# --- servers ---

# From now on it may be gone; at its end the server takes connections again.
sub until_ready
{
	my ($at, $then) = @_;
	my $window = window($at, 3600, 'server');
	hold(3600, "server$at");
	poll(
		sub { $servers[$at]->ready },
		sub {
			$window->{to} = now() + 0.5;
			$held{"server$at"} = now() + 1;
			$then->() if $then;
		});
	return;
}

my %falling;    # servers whose end is wanted

sub start_again
{
	my ($at, $delay, $then) = @_;
	my $server = $servers[$at];
	later(
		$delay,
		sub {
			$server->start;
			delete $falling{$at};
			my $window = window($at, 3600, 'server');
			# What is left of the old one may hold its shared memory for a moment.
			my $tries = 0;
			poll(
				sub {
					if (!$server->running && $tries++ < 100) { $server->start; }
					return $server->ready;
				},
				sub { $window->{to} = now() + 0.5; $held{"server$at"} = now() + 1; $then->() if $then; });
		});
	return;
}

# Ends it by a signal to the postmaster, and starts it again.
sub fell
{
	my ($at, $signal, $delay, $then) = @_;
	my $server = $servers[$at];
	my @children = keys %{ $server->children };
	$falling{$at} = 1;
	hold(3600, "server$at");
	my $window = window($at, 3600, 'server');
	$server->signal($signal);
	poll(
		sub { !$server->running && !grep { kill(0, $_) } @children },
		sub { $window->{to} = now() + $delay + 0.1; start_again($at, $delay, $then); });
	return;
}

sub kill_some
{
	my ($at, $title, $count) = @_;
	my @pids = (shuffle $servers[$at]->pids($title))[ 0 .. $count - 1 ];
	return grep { defined } @pids;
}

sub crash_by
{
	my ($at, $title, $count) = @_;
	my @pids = kill_some($at, $title, $count) or return;
	$servers[$at]->mark_log;
	kill('KILL', @pids);
	until_ready($at);
	return;
}

sub freeze_some
{
	my ($for, @pids) = @_;
	kill('STOP', @pids);
	later($for, sub { kill('CONT', @pids) });
	return;
}

sub worker { my ($at) = @_; my ($pid) = $servers[$at]->pids(qr/snowflake worker/); return $pid // (); }

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
	window($at, $for + 0.2, 'server') if abs $by > 0.95;
	hold($for + 1, "clock$at");
	$servers[$at]->clock('step', $by);
	later($for, sub { set_right($at) });
	return;
}

sub clockctl_meanwhile
{
	my ($at, $for, @words) = @_;
	hold($for, "clock$at");
	Snowflake::Process->spawn([ Drills::Server::program('clockctl'), $servers[$at]{page}, @words ]);
	return;
}

# --- links ---

my @broken = (
	['blackhole'], ['stall'], ['hang_connect'], ['refuse'], ['reset'], ['drop_replies'],
	['drop_requests'], [ 'delay', 400 ], [ 'delay', 2000 ], ['trickle']);

sub break_links
{
	my ($at, $for, $mode, @which) = @_;
	@which = $etcd->all unless @which;
	window($at, $for, 'etcd') if @which == 3;
	hold($for + 1, "net$at");
	$links[$at][$_]->mode(@$mode) for @which;
	later($for, sub { $links[$at][$_]->mode('pass') for @which });
	return;
}

# --- members ---

sub all_windows { my ($for, $kind) = @_; window($_, $for, $kind) for 0 .. 2; return; }

sub lose_members
{
	my ($for, $way, @which) = @_;
	# Without a quorum, and for the election after it.
	all_windows($for + 1.5, 'etcd') if @which > 1;
	hold($for + 2, 'etcd');
	if ($way eq 'freeze')
	{
		$etcd->pause_member($_) for @which;
		later($for, sub { $etcd->resume_member($_) for @which });
	}
	else
	{
		$etcd->signal_member($_, 'KILL') for @which;
		later($for, sub { $etcd->stop_member($_), $etcd->start_member($_) for @which });
	}
	return;
}

sub cut_peers
{
	my ($for, @pairs) = @_;
	hold($for + 2, 'etcd');
	$etcd->{peers}->cut(@pairs);
	later($for, sub { $etcd->{peers}->cut });
	return;
}

# Backups, the newest last: { file, at }. Good for a restore once they are older than the reserve.
my @backups;

sub back_up
{
	my ($then) = @_;
	my $file = sprintf '%s/backup.%.3f', $run, now();
	my $process = Snowflake::Process->spawn(
		[ 'env', 'ETCDCTL_API=3', 'etcdctl', '--endpoints', $etcd->endpoint(int(rand(3))), 'snapshot', 'save', $file ]);
	poll(
		sub { !$process->running },
		sub {
			return if $process->{status} != 0;
			push @backups, { file => $file, at => now() };
			unlink((shift @backups)->{file}) if @backups > 5;
			$then->($backups[-1]) if $then;
		},
		now() + 20);
	return;
}

# etcd as it was at a backup, or empty; then $then.
sub restore
{
	my ($backup, $then) = @_;
	my @all = map { window($_, 3600, 'server') } 0 .. 2;
	hold(3600, 'etcd', 'marks');
	$etcd->signal_member($_, 'KILL') for $etcd->all;
	$etcd->stop_member($_) for $etcd->all;
	my $commands = join(' & ', map { $etcd->restore_command($_, $backup && $backup->{file}) } $etcd->all);
	my $process = Snowflake::Process->spawn([ 'bash', '-c', "$commands; wait" ], log => "$run/restore.log");
	poll(
		sub { !$process->running },
		sub {
			$etcd->start_member($_) for $etcd->all;
			my $until;
			poll(
				sub {
					$until //= now() + 0.3;
					return 0 if now() < $until;
					$until = now() + 0.3;
					return defined ask('/v3/kv/range', { key => b64('a') });
				},
				sub {
					crowd();
					$_->{to} = now() + $pause + 3 for @all;
					$held{etcd} = now() + 2;
					# A second one while holders still make up for the first is a younger backup.
					$held{marks} = now() + $pause + 3;
					@backups = ();
					$then->() if $then;
				});
		});
	return;
}

sub old_backup { return (grep { now() - $_->{at} > $reserve + 1.5 } @backups)[0]; }

# --- the faults: name, weight, what it is at work on (# is the server), what it does ---

my @kill = (qr/\[local\]/, qr/snowflake worker/, qr/checkpointer|walwriter|background writer/);
my @faults = (
	[ 'kill -9 backend', 3, ['server#'], sub { crash_by($_[0], $kill[0], 1 + int(rand(2))) } ],
	[ 'kill -9 worker', 3, ['server#'], sub { crash_by($_[0], $kill[1], 1) } ],
	[ 'kill -9 checkpointer', 1, ['server#'], sub { crash_by($_[0], $kill[2], 1) } ],
	[ 'kill -9 postmaster', 2, [ 'server#', 'clock#' ], sub { fell($_[0], 'KILL', between(0, 1.5)) } ],
	[ 'restart fast', 2, [ 'server#', 'clock#' ], sub { fell($_[0], 'INT', 0) } ],
	[ 'restart immediate', 1, [ 'server#', 'clock#' ], sub { fell($_[0], 'QUIT', 0) } ],
	[ 'down for seconds', 1, [ 'server#', 'clock#' ], sub { fell($_[0], pick('INT', 'QUIT', 'KILL'), between(2, $ttl + 3)) } ],
	[ 'freeze backends', 3, ['server#'], sub {
		my ($at) = @_;
		my $for = between(0.1, $ttl + 3);
		# It may be frozen with a lock of Postgres in its hand.
		window($at, $for, 'server');
		hold($for + 1, "server$at");
		freeze_some($for, kill_some($at, qr/\[local\] (?!idle)/, 1 + int(rand(3))));
	} ],
	[ 'freeze worker', 3, ['server#'], sub {
		my ($at) = @_;
		my $for = between(0.3, $ttl + 4);
		window($at, $for, 'etcd');
		hold($for + 1, "server$at");
		freeze_some($for, worker($at));
	} ],
	[ 'freeze server', 3, ['server#'], sub {
		my ($at) = @_;
		my $for = between(0.3, $ttl + 6);
		window($at, $for, 'server');
		hold($for + 2, "server$at");
		$servers[$at]->freeze;
		later($for, sub { $servers[$at]->thaw });
	} ],
	[ 'signal storm', 1, ['server#'], sub {
		my ($at) = @_;
		hold(3, "server$at");
		later($_ / 20, sub { kill(pick('TERM', 'HUP', 'USR1'), worker($at)) }) for 1 .. 20;
	} ],

	[ 'clock 50 to 950 ms back', 3, ['clock#'], sub { wrong_clock($_[0], -between(0.05, 0.95), between(0.5, 4)) } ],
	[ 'clock 2 s back', 2, ['clock#'], sub { wrong_clock($_[0], -2, between(1, 4)) } ],
	[ 'clock far back', 1, ['clock#'], sub { wrong_clock($_[0], pick(-20, -3600), between(1, 4)) } ],
	[ 'clock ahead', 3, ['clock#'], sub { wrong_clock($_[0], pick(0.5, 2, 29, 31, 3600), between(0.5, 4)) } ],
	[ 'clock strobing', 1, ['clock#'], sub { clockctl_meanwhile($_[0], 4.5, 'strobe', 0.2, 0.05, 60) } ],
	[ 'clock slewed', 1, ['clock#'], sub {
		my ($at) = @_;
		my $way = pick(0.08, -0.08);
		clockctl_meanwhile($at, 6, 'slew', $way, 2);
		later(2.3, sub { clockctl_meanwhile($at, 3.7, 'slew', -$way, 2) });
		later(5, sub { set_right($at) });
	} ],
	[ 'clock not synchronised', 1, ['clock#'], sub {
		my ($at) = @_;
		my $for = between(1, 6);
		# Whoever starts meanwhile has to wait.
		window($at, $for, 'claims');
		hold($for, "clock$at");
		$servers[$at]->clock('sync', pick('never', 'EPERM'));
		later($for, sub { $servers[$at]->clock('sync', $at == 0 ? 'real' : 'good') });
	} ],

	[ 'links broken', 4, ['net#'], sub { break_links($_[0], between(0.3, $ttl + 3), pick(@broken)) } ],
	[ 'some links broken', 3, ['net#'], sub {
		break_links($_[0], between(1, 8), pick(@broken), (shuffle $etcd->all)[ 0 .. int(rand(2)) ]);
	} ],

	[ 'member killed', 2, ['etcd'], sub { lose_members(between(0.3, 4), 'kill', int(rand(3))) } ],
	[ 'member frozen', 2, ['etcd'], sub { lose_members(between(0.3, 6), 'freeze', int(rand(3))) } ],
	[ 'leader lost', 2, ['etcd'], sub { lose_members(between(0.3, 4), pick('kill', 'freeze'), $etcd->leader // 0) } ],
	[ 'no quorum', 2, ['etcd'], sub {
		lose_members(between(0.5, $reserve + 4), pick('kill', 'freeze'), (shuffle $etcd->all)[ 0 .. 1 + int(rand(2)) ]);
	} ],
	[ 'members parted', 2, ['etcd'], sub {
		my ($one, $two, $three) = shuffle $etcd->all;
		cut_peers(between(1, 6), pick([ [ $one, $two ] ], [ [ $one, $two ], [ $one, $three ] ])->@*);
	} ],

	[ 'lease revoked', 3, ['server#'], sub {
		my ($at) = @_;
		my (undef, $lease) = claim_of($at) or return;
		window($at, 1, 'etcd');
		ask('/v3/lease/revoke', { ID => $lease });
	} ],
	[ 'claim deleted', 2, ['server#'], sub {
		my ($at) = @_;
		my ($number) = claim_of($at) or return;
		window($at, 1, 'etcd');
		del($etcd->claim_key($number));
	} ],
	[ 'claim overwritten', 1, ['server#'], sub {
		my ($at) = @_;
		my ($number) = claim_of($at) or return;
		window($at, 1, 'etcd');
		put($etcd->claim_key($number), 'a stranger');
		later(5, sub { del($etcd->claim_key($number)) });
	} ],
	# A mark that goes under a claim that stands. Nothing else may end that claim at this moment: marks
	# deleted by hand together with claims are out of scope.
	[ 'mark changed', 1, [ 'server#', 'clock#', 'net#', 'etcd', 'marks' ], sub {
		my ($at) = @_;
		my ($number) = claim_of($at) or return;
		hold(4, "server$at", "clock$at", "net$at", 'etcd');
		hold($pause + 3, 'marks');
		@backups = ();
		all_windows($pause + 2, 'claims');
		my $key = $etcd->mark_key($number);
		my $way = pick('deleted', 'lowered', 'raised', 'garbage');
		if ($way eq 'deleted') { del($key); }
		elsif ($way eq 'lowered') { put($key, sprintf '%d', (Time::HiRes::time() - 10) * 1000); }
		elsif ($way eq 'raised') { put($key, sprintf '%d', (Time::HiRes::time() + $reserve + 2) * 1000); }
		else
		{
			put($key, 'no number');
			later(3, sub { put($key, sprintf '%d', (Time::HiRes::time() + $reserve + 2) * 1000) });
		}
	} ],
	[ 'marks raised', 1, [ 'server#', 'etcd' ], sub {
		my ($at) = @_;
		all_windows(4, 'claims');
		Snowflake::Process->spawn([ 'psql', '-XqAt', '-d', $servers[$at]->conninfo, '-c',
			q{SELECT snowflake_raise_marks(now() + interval '2 s')} ], log => "$run/raise_marks.log");
	} ],
	[ 'backup', 4, ['etcd'], sub { back_up() } ],
	[ 'etcd restored', 2, [ 'etcd', 'marks' ], sub { restore(old_backup() // return) } ],
	[ 'etcd wiped', 1, [ 'etcd', 'marks' ], sub { restore(undef) } ],

	# Pairs.
	[ 'pair: back 0.9 s and kill -9', 4, [ 'server#', 'clock#' ], sub {
		my ($at) = @_;
		my $server = $servers[$at];
		my $who = pick(@kill, undef);
		my @pids = $who ? kill_some($at, $who, 1) : ();
		return if $who && !@pids;
		my $for = between(1, 4);
		hold($for + 1, "clock$at");
		local $ENV{CLOCKCTL_VOUCHED} = 1;
		$server->mark_log;
		$server->clock('step', -0.9, @pids ? ('kill', 9, @pids) : ());
		if ($who) { until_ready($at); }
		else { fell($at, 'KILL', 0); }
		later($for, sub { set_right($at) });
	} ],
	[ 'pair: frozen and another takes its number', 4, [ 'server#', 'server+', 'clock#', 'clock+' ], sub {
		my ($at, $other) = @_;
		hold($ttl + 8, map { ("server$_", "clock$_") } $at, $other);
		my (undef, $lease) = claim_of($at);
		window($at, $ttl + 4, 'server');
		$servers[$at]->freeze;
		# When its mark is past and its lease gone, the other needs a number.
		later($reserve + between(0.5, 1), sub { ask('/v3/lease/revoke', { ID => $lease }) if $lease; });
		later($reserve + between(1.1, 1.5), sub {
			window($other, 3, 'etcd');
			kill('TERM', worker($other));
		});
		later($reserve + between(1.2, 4), sub { $servers[$at]->thaw });
	} ],
	[ 'pair: lost claim reply and crash', 2, [ 'server#', 'net#', 'clock#' ], sub {
		my ($at) = @_;
		break_links($at, 2.5, ['drop_replies']);
		hold(5, "server$at");
		kill('TERM', worker($at));
		later(between(1.2, 2.4), sub { pick(1, 0) ? crash_by($at, $kill[1], 1) : fell($at, 'QUIT', 0) });
	} ],
	[ 'pair: frozen backends and lease revoked', 3, ['server#'], sub {
		my ($at) = @_;
		my (undef, $lease) = claim_of($at) or return;
		my $for = between(1.5, 5);
		window($at, $for, 'server');
		hold($for + 1, "server$at");
		freeze_some($for, kill_some($at, qr/\[local\] (?!idle)/, 2));
		ask('/v3/lease/revoke', { ID => $lease });
	} ],
	[ 'pair: ahead and back, and lease revoked', 2, [ 'clock#', 'server#' ], sub {
		my ($at) = @_;
		hold(5, "clock$at", "server$at");
		window($at, 1, 'etcd');
		my (undef, $lease) = claim_of($at);
		$servers[$at]->clock('step', 0.9);
		later(0.3, sub { ask('/v3/lease/revoke', { ID => $lease }) if $lease });
		later(between(0.4, 2), sub { $servers[$at]->clock('step', -1.7) });
		later(3.5, sub { set_right($at) });
	} ],
	[ 'pair: links broken and restart', 2, [ 'net#', 'server#', 'clock#' ], sub {
		my ($at) = @_;
		break_links($at, between(1, 5), pick(@broken));
		later(between(0, 0.8), sub { fell($at, pick('INT', 'QUIT', 'KILL'), 0) });
	} ],
	[ 'pair: leader and worker frozen', 2, [ 'etcd', 'server#' ], sub {
		my ($at) = @_;
		hold(6, 'etcd', "server$at");
		window($at, 4, 'etcd');
		my ($leader, $pid) = ($etcd->leader // 0, worker($at));
		$etcd->pause_member($leader);
		later(between(0.05, 1), sub { kill('STOP', $pid) if $pid });
		later(2, sub { $etcd->resume_member($leader) });
		later(3, sub { kill('CONT', $pid) if $pid });
	} ],
	[ 'pair: crash in the middle of a raise', 2, [ 'net#', 'server#', 'clock#' ], sub {
		my ($at) = @_;
		break_links($at, between(1, 4), ['stall']);
		later(between(0.1, 1.2), sub { crash_by($at, $kill[1], 1) });
	} ],
	[ 'pair: late raise after the claim was lost', 2, [ 'net#', 'server#' ], sub {
		my ($at) = @_;
		my (undef, $lease) = claim_of($at) or return;
		hold(4, "server$at");
		break_links($at, 2.5, ['stall'], $etcd->all);
		later(1, sub { ask('/v3/lease/revoke', { ID => $lease }) });
	} ],
	[ 'pair: two lose their leases at once', 2, [ 'server#', 'server+' ], sub {
		window($_, 1, 'etcd') for @_;
		for my $lease (map { (claim_of($_))[1] // () } @_) { ask('/v3/lease/revoke', { ID => $lease }); }
	} ],
	[ 'pair: frozen over backup and restore', 2, [ 'etcd', 'marks', 'server#' ], sub {
		my ($at) = @_;
		hold(3600, "server$at", 'etcd', 'marks');
		my $window = window($at, 3600, 'server');
		$servers[$at]->freeze;
		back_up(sub {
			my ($backup) = @_;
			later($reserve + 2, sub {
				restore($backup, sub {
					$servers[$at]->thaw;
					$window->{to} = now() + $pause + 3;
					$held{"server$at"} = now() + 2;
				});
			});
		});
		# When there was no backup, it was for nothing.
		poll(sub { @backups || $held{etcd} < now() + 3000 }, sub {}, now() + 15);
		later(15, sub {
			return if !$servers[$at]{frozen} || grep { $_->{at} > now() - 15 } @backups or !is_restoring();
		});
	} ],
	[ 'pair: restored and started in the same second', 2, [ 'etcd', 'marks', map { ("server$_", "clock$_") } 0 .. 2 ], sub {
		my $backup = pick(old_backup(), undef);
		restore($backup, sub { fell($_, pick('INT', 'QUIT', 'KILL'), 0) for (shuffle 0 .. 2)[ 0 .. int(rand(3)) ] });
	} ],
	# The server whose clock is back claimed its number after the backup: another may get it.
	[ 'pair: clock back over a restore', 2, [ 'etcd', 'marks', 'server#', 'clock#', 'server+', 'clock+' ], sub {
		my ($at, $other) = @_;
		hold(3600, 'etcd', 'marks', map { ("server$_", "clock$_") } $at, $other);
		window($_, 40, 'server') for $at, $other;
		my $over = sub { set_right($at); $held{$_} = now() + 2 for map { ("server$_", "clock$_") } $at, $other; };
		my $began;
		back_up(sub {
			my ($backup) = @_;
			$began = 1;
			kill('TERM', worker($at));
			later($reserve + 1.5, sub {
				$servers[$at]->clock('step', -20);
				restore($backup, sub {
					kill('TERM', worker($other));
					later(between(0.3, 1.5), $over);
				});
			});
		});
		later(15, sub { if (!$began) { $held{etcd} = $held{marks} = 0; $over->(); } });
	} ]);
