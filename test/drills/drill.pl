# Drills: what happens to callers when a clock goes wrong or a server stands still, shown on real
# servers of the drill's own. Started by run.sh; names on the command line pick some of the drills.
# Exit status 0: no ID twice, no order broken, no refusal but the expected ones.

use strict;
use warnings;

my $terminal;
BEGIN { open($terminal, '>&', \*STDOUT) or die $!; }    # the test library takes STDOUT away

use List::Util qw(max sum0);
use Time::HiRes qw(sleep);

use Snowflake::Process qw(eventually slurp);
use Snowflake::Proxy;
use Drills::Etcd;
use Drills::Server;

$terminal->autoflush(1);
my $run = $ENV{DRILLS_RUN} // die 'start it with run.sh';
my $etcd;
my ($dir, $start, @events, @faults);

my @drills = (
	back => [ 'the clock goes 2 s back under load', \&back ],
	forward => [ 'the clock jumps 0.5, 2 and 31 s ahead, and back each time', \&forward ],
	hour => [ 'the clock goes an hour back, is right again, goes an hour ahead, is right again', \&hour ],
	crash => [ 'the clock goes 0.9 s back, and a process is killed within 5 ms', \&crash ],
	sync => [ "the kernel's clock loses its synchronisation", \&sync ],
	restore => [ 'etcd is restored from a backup, while the clock of a server is 20 s back', \&restore ],
	witness => [ 'etcd is restored, and the only server that vouches for its memory stood still since the backup', \&witness ],
	returner => [ 'etcd is restored, and the only server that vouches for its memory was stopped before the backup', \&returner ],
	freeze => [ 'a server stands still for 90 s, and a new one takes its number (2 minutes)', \&freeze ]);

# --- what the drills share ---

sub happens
{
	my ($text, $moment) = @_;
	push @events, [ $moment // Drills::Server::now, $text ];
	return $events[-1][0];
}

sub expect
{
	my ($good, $text) = @_;
	push @faults, $text unless $good;
	return $good;
}

# A server. etcd: or a link to it. settings: over the defaults, which are the product's own.
sub serve
{
	my ($name, $etcd_, %settings) = @_;
	my $server = Drills::Server->new($name, $dir,
		etcd_endpoints => $etcd_->can('endpoints') ? $etcd_->endpoints : $etcd_->endpoint, %settings);
	# Machines for tests are often not synchronised: the drill says that this one is.
	$server->clock('sync', 'good');
	$server->start;
	$server->wait_ready;
	return $server;
}

sub load
{
	my ($server) = @_;
	$server->start_load(
		('copy:5000:50000') x 2, 'batches:20000:100000', 'parallel:5000:20000',
		('call:1:400') x 4, 'batch:500:50000', 'insert:1:100');
	return;
}

# All calls of a server that ended so far, by their beginnings: { begin, end, ids, text }.
sub calls
{
	my ($server) = @_;
	my $base = "$dir/ids/" . $server->name;
	my @texts = split /\n/, slurp("$base.texts");
	my @calls;
	for my $file (glob "$base.s*.calls")
	{
		my $bytes = slurp($file);
		for (my $at = 0; $at < length $bytes; $at += 32)
		{
			my ($begin, $end, $ids, $outcome, $kind) = unpack('q<q<L<S<C', substr($bytes, $at, 32));
			push @calls,
			  { begin => $begin / 1e9, end => $end / 1e9, ids => $ids, text => $outcome ? $texts[$outcome] : '' };
		}
	}
	return sort { $a->{begin} <=> $b->{begin} } @calls;
}

# Of those that lie within: how many brought IDs; the texts of those refused, each once.
sub granted { my ($from, $upto, @calls) = @_; return scalar grep { $_->{ids} && $_->{begin} >= $from && $_->{end} <= $upto } @calls; }

sub texts
{
	my ($from, $upto, @calls) = @_;
	my %texts = map { $_->{text} => 1 } grep { $_->{text} ne '' && $_->{end} >= $from && $_->{begin} <= $upto } @calls;
	return sort keys %texts;
}

# From $moment to the end of the first call begun after it that brought an ID.
sub until_granted
{
	my ($moment, @calls) = @_;
	my ($first) = sort { $a <=> $b } map { $_->{end} } grep { $_->{ids} && $_->{begin} >= $moment } @calls;
	return defined $first ? $first - $moment : 1e9;
}

sub longest_gap
{
	my ($from, $upto, @calls) = @_;
	my ($last, $longest) = ($from, 0);
	for my $end ((sort { $a <=> $b } map { $_->{end} } grep { $_->{ids} && $_->{end} > $from && $_->{end} < $upto } @calls), $upto)
	{
		$longest = max($longest, $end - $last);
		$last = $end;
	}
	return $longest;
}

# --- the drills ---

sub back
{
	my $a = serve('a', $etcd);
	$a->wait_issuing or die 'a does not mint';
	load($a);
	sleep 5;
	my $moment = happens('the clock of a is set 2 s back', $a->clock('step', -2));
	$a->clock('sync', 'good');
	sleep 6;
	my $right = happens('the clock of a is set right', $a->clock('step', 2));
	$a->clock('sync', 'good');
	sleep 4;
	my $end = happens('the end');
	$a->stop_load;
	my @calls = calls($a);
	my $gap = longest_gap($moment - 1, $right - 0.5, @calls);
	expect($gap < 2, sprintf('no ID for %.2f s; 1 s and max_wait were expected', $gap));
	expect(longest_gap($right + 2, $end, @calls) < 1, 'IDs do not go on after the clock is right again');
	my @other = grep { !/^55000\t(?:the last ID is too far ahead|the clock jumped ahead)/ } texts(0, 1e12, @calls);
	expect(!@other, "refused otherwise: $_") for @other;
	return $a;
}

sub forward
{
	my $a = serve('a', $etcd);
	$a->wait_issuing or die 'a does not mint';
	load($a);
	sleep 2;
	for my $by (0.5, 2, 31)
	{
		my $moment = happens("the clock of a is set $by s ahead", $a->clock('step', $by));
		sleep 2;
		my $right = happens('and right again', $a->clock('step', -$by));
		$a->clock('sync', 'good');
		sleep 3;
		my @calls = calls($a);
		if ($by <= 1)
		{
			my $gap = longest_gap($moment, $moment + 4, @calls);
			expect($gap < 1, sprintf('%s s ahead: no ID for %.2f s; none was expected to notice', $by, $gap));
		}
		else
		{
			my $count = granted($moment, $right, @calls);
			expect(!$count, "$count calls got IDs from a clock $by s ahead");
			my $wait = until_granted($right, @calls);
			expect($wait < 2, sprintf('%s s ahead: IDs again only %.2f s after it was set right', $by, $wait));
		}
	}
	happens('the end');
	$a->stop_load;
	my @other = grep { !/^55000\tthe clock jumped ahead/ } texts(0, 1e12, calls($a));
	expect(!@other, "refused otherwise: $_") for @other;
	return $a;
}

sub hour
{
	my $a = serve('a', $etcd);
	$a->wait_issuing or die 'a does not mint';
	load($a);
	sleep 2;
	for my $by (-3600, 3600)
	{
		my $moment = happens('the clock of a is set an hour ' . ($by < 0 ? 'back' : 'ahead'), $a->clock('step', $by));
		sleep 4;
		my $right = happens('and right again', $a->clock('step', -$by));
		$a->clock('sync', 'good');
		sleep 4;
		my @calls = calls($a);
		my $count = granted($moment, $right, @calls);
		expect(!$count, "$count calls got IDs from a clock an hour wrong");
		my $wait = until_granted($right, @calls);
		expect($wait < 2, sprintf('IDs again only %.2f s after it was set right', $wait));
	}
	happens('the end');
	$a->stop_load;
	my @other = grep { !/^55000\tthe (?:clock jumped ahead|last ID is too far)/ } texts(0, 1e12, calls($a));
	expect(!@other, "refused otherwise: $_") for @other;
	return $a;
}

sub crash
{
	my $a = serve('a', $etcd);
	$a->wait_issuing or die 'a does not mint';
	load($a);
	for my $victim ('a session', 'the background worker', 'a session', 'the background worker')
	{
		sleep 2;
		my ($pid) = reverse $a->pids($victim eq 'a session' ? qr/\[local\]/ : qr/snowflake worker/);
		$a->mark_log;
		# As of a time service that says at once that its step was right.
		local $ENV{CLOCKCTL_VOUCHED} = 1;
		happens("the clock of a goes 0.9 s back, and $victim is killed (kill -9)",
			$a->clock('step', -0.9, 'kill', 9, $pid));
		eventually(20, sub { $a->ready }, 0.01) or expect(0, 'the server does not come back');
		my $up = happens('a takes connections again');
		sleep 2.5;
		my $wait = until_granted($up, calls($a));
		expect($wait < 2, sprintf('IDs again only %.2f s after the server was up', $wait));
		happens('its clock is set right', $a->clock('step', 0.9));
	}
	sleep 1;
	happens('the end');
	$a->stop_load;
	return $a;
}

sub sync
{
	my $a = serve('a', $etcd);
	$a->wait_issuing or die 'a does not mint';
	load($a);
	sleep 2;
	$a->clock('sync', 'never');
	my $moment = happens("the kernel's clock of a is not synchronised any more");
	sleep 3;
	my $gap = longest_gap($moment, $moment + 3, calls($a));
	expect($gap < 1, sprintf('no ID for %.2f s; it should go on with the number that it has', $gap));
	happens('a is restarted');
	$a->signal('INT');
	eventually(20, sub { !$a->running });
	$a->start;
	$a->wait_ready;
	my $up = Drills::Server::now;
	sleep 3;
	my $again = happens("the kernel's clock of a is synchronised again");
	$a->clock('sync', 'good');
	sleep 3;
	happens('the end');
	$a->stop_load;
	my @calls = calls($a);
	my $count = granted($up, $again, @calls);
	expect(!$count, "$count calls got IDs from a server that started with an unsynchronised clock");
	my $wait = until_granted($again, @calls);
	expect($wait < 2, sprintf('IDs only %.2f s after the clock was synchronised', $wait));
	return $a;
}

# With the settings as they come: a lease of 60 s, a reserve of 30 s.
sub freeze
{
	my $a = serve('a', $etcd);
	$a->wait_issuing or die 'a does not mint';
	my $b = serve('b', $etcd);
	$b->wait_issuing or die 'b does not mint';
	load($_) for $a, $b;
	sleep 3;
	my $number = $a->worker;
	my $moment = happens("all processes of a are stopped (SIGSTOP); it holds worker number $number");
	$a->freeze;
	eventually(80, sub { !$etcd->claim($number) }, 0.25);
	happens("etcd lets a's lease end: number $number is free");
	my $c = serve('c', $etcd);
	$c->wait_issuing or expect(0, 'c does not mint');
	happens('a new server c mints as worker number ' . $c->worker);
	expect($c->worker eq $number, 'c took another number than that of a');
	load($c);
	sleep max(1, $moment + 90 - Drills::Server::now);
	my $thaw = happens('a goes on (SIGCONT), after 90 s');
	$a->thaw;
	sleep 6;
	happens('the end');
	Drills::Server::stop_load($a, $b, $c);
	my @calls = calls($a);
	expect($a->worker ne $number && $a->state eq 'issuing', 'a did not move to another number by itself');
	my $wait = until_granted($thaw, @calls);
	expect($wait < 3, sprintf('IDs of a only %.2f s after it went on', $wait));
	for my $other ($b, $c)
	{
		my $gap = longest_gap($thaw - 5, $thaw + 5, calls($other));
		expect($gap < 1, sprintf('%s had no ID for %.2f s meanwhile', $other->name, $gap));
	}
	my @other = grep { !/^55000\t(?:the reserved time|the clock jumped|this server has no worker)/ } texts(0, 1e12, @calls);
	expect(!@other, "a refused otherwise: $_") for @other;
	return ($a, $b, $c);
}

# The number that a has was claimed after the backup: etcd forgets it, and may give it to another.
sub restore
{
	my $a = serve('a', $etcd);
	$a->wait_issuing or die 'a does not mint';
	my $b = serve('b', $etcd);
	$b->wait_issuing or die 'b does not mint';
	load($_) for $a, $b;
	sleep 3;
	happens("a backup of etcd is made");
	$etcd->back_up("$dir/backup");
	my $number = move($a);
	# A backup that is younger than the reserve is out of scope.
	sleep 32;
	happens('the clock of a is set 20 s back', $a->clock('step', -20));
	$etcd->restore("$dir/backup");
	happens("etcd is back, from the backup, in which number $number is free");
	my $c = serve('c', $etcd);
	load($c);
	eventually(3, sub { $c->state eq 'issuing' });
	happens('the clock of a is set right', $a->clock('step', 20));
	$a->clock('sync', 'good');
	eventually(60, sub { $c->state eq 'issuing' }) or expect(0, 'c does not mint within a minute');
	sleep 3;
	happens('the end');
	Drills::Server::stop_load($a, $b, $c);
	return ($a, $b, $c);
}

# A restart of its background worker makes a server claim another number.
sub move
{
	my ($server) = @_;
	my $number = $server->worker;
	kill('TERM', $server->pids(qr/snowflake worker/));
	eventually(20, sub { $server->state eq 'issuing' && $server->worker ne $number })
	  or expect(0, $server->name . ' kept its number');
	$number = $server->worker;
	happens("after a restart of its background worker " . $server->name . " mints as worker number $number");
	return $number;
}

sub term { return $etcd->ask('/v3/maintenance/status', {})->{raftTerm}; }

# While b cannot be told of it. A backup younger than the reserve would be out of scope.
sub restore_behind
{
	my ($link, $number) = @_;
	my $term = term();
	$link->mode('blackhole');
	happens('b is cut off from etcd');
	$etcd->restore("$dir/backup");
	happens("etcd is back, from the backup, in which number $number is free (raft term " . term() . ", was $term)");
	return;
}

# a cannot tell from its own mark that etcd forgot the number of b; b cannot reach etcd, and mints on; c
# must not take that number before b's reserve is used up.
sub witness
{
	my $a = serve('a', $etcd);
	$a->wait_issuing or die 'a does not mint';
	my $link = Snowflake::Proxy->new($etcd->port);
	my $b = serve('b', $link);
	$b->wait_issuing or die 'b does not mint';
	load($b);
	sleep 2;
	happens('all processes of a are stopped (SIGSTOP)');
	$a->freeze;
	$etcd->back_up("$dir/backup");
	happens('a backup of etcd is made');
	my $number = move($b);
	sleep 32;
	restore_behind($link, $number);
	happens('a goes on (SIGCONT)');
	$a->thaw;
	my $c = serve('c', $etcd);
	load($c);
	load($a);
	sleep 15;
	happens('b reaches etcd again');
	$link->mode('pass');
	eventually(60, sub { $c->state eq 'issuing' }) or expect(0, 'c does not mint within a minute');
	sleep 3;
	happens('the end');
	Drills::Server::stop_load($a, $b, $c);
	return ($a, $b, $c);
}

# The same of a server that finds its own last mark as its clean stop left it.
sub returner
{
	my $link = Snowflake::Proxy->new($etcd->port);
	my $b = serve('b', $link);
	$b->wait_issuing or die 'b does not mint';
	my $a = serve('a', $etcd);
	$a->wait_issuing or die 'a does not mint';
	load($b);
	move($b);
	happens('a is stopped');
	$a->signal('INT');
	eventually(20, sub { !$a->running });
	$etcd->back_up("$dir/backup");
	happens('a backup of etcd is made');
	sleep 32;
	my $number = move($b);
	restore_behind($link, $number);
	happens('a is started');
	$a->start;
	$a->wait_ready;
	load($a);
	sleep 15;
	happens('b reaches etcd again');
	$link->mode('pass');
	eventually(60, sub { $a->state eq 'issuing' }) or expect(0, 'a does not mint within a minute');
	sleep 3;
	happens('the end');
	Drills::Server::stop_load($a, $b);
	return ($a, $b);
}

# --- one after the other ---

sub print_story
{
	my (@servers) = @_;
	my @story = map { [ $_->[0], $_->[1] ] } @events;
	my $end = $events[-1][0];
	for my $server (@servers)
	{
		for my $change ($server->states($start, $end))
		{
			my ($moment, $state, $worker) = @$change;
			my $text = $state eq 'issuing' ? "mints as worker number $worker"
			  : $state eq 'no answer' ? 'takes no connections' : "mints nothing: $state";
			push @story, [ $moment, "    " . $server->name . " $text" ];
		}
	}
	printf $terminal "  %+7.1f s  %s\n", $_->[0] - $start, $_->[1] for sort { $a->[0] <=> $b->[0] } @story;
	return;
}

my @chosen = @ARGV ? @ARGV : map { $drills[ 2 * $_ ] } 0 .. $#drills / 2;
my %known = @drills;
for my $name (@chosen) { die "no drill is named $name\n" unless $known{$name}; }

Drills::Server::make_template($run);
my $failed = 0;
for my $name (@chosen)
{
	my ($title, $drill) = @{ $known{$name} };
	print $terminal "$name: $title\n";
	$dir = "$run/$name";
	mkdir $dir or die "$dir: $!";
	rename("$run/template", "$dir/template") or die $!;
	$etcd = Drills::Etcd->new(1)->start;
	$start = Drills::Server::now;
	@events = @faults = ();
	my @servers = eval { $drill->() };
	push @faults, "it broke off: $@" if $@;
	if (@servers)
	{
		my ($good, @report) = Drills::Server::audit($dir, $start);
		print_story(@servers);
		print $terminal "  $_\n" for @report;
		push @faults, 'see the report above' unless $good;
	}
	print $terminal "  NOT AS EXPECTED: $_\n" for @faults;
	print $terminal @faults ? "\n" : "  as expected\n\n";
	$failed++ if @faults;
	$_->signal('INT') for grep { $_->running } @servers;
	$_->{process}->wait(20) for @servers;
	$etcd->stop;
	rename("$dir/template", "$run/template") or die $!;
}
print $terminal $failed ? "$failed of " . @chosen . " drills went wrong\n" : @chosen . " drills, all as expected\n";
exit($failed ? 1 : 0);
