# A Postgres server with the extension whose clock is ours, and whose processes a drill may kill and
# freeze. Only make_template and the wait_... functions wait: a drill goes on while servers start.

package Drills::Server;

use strict;
use warnings;

use Time::HiRes qw(sleep clock_gettime CLOCK_MONOTONIC);

use Snowflake::Process qw(eventually slurp);

# Where the programs of this folder were built.
my $programs = $ENV{DRILLS_PROGRAMS} // die 'DRILLS_PROGRAMS is not set';

sub program { my ($name) = @_; return "$programs/$name"; }
sub now { return clock_gettime(CLOCK_MONOTONIC); }

# Runs a program to its end; dies of its failure. Returns what it printed.
sub command
{
	my (@command) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run(\@command, '<', \undef, '>', \$out, '2>', \$err) or die "@command: $err$out";
	return $out;
}

my $setup = <<'SQL';
CREATE EXTENSION snowflake;
CREATE TABLE minted (id bigint PRIMARY KEY DEFAULT snowflake_nextval());
CREATE TABLE rows (n int) WITH (parallel_workers = 2);
INSERT INTO rows SELECT generate_series(1, 20000);
ANALYZE rows;
CHECKPOINT;
SQL

# One data directory, made once: servers start from copies of it, as clones of each other.
sub make_template
{
	my ($dir) = @_;
	my $template = "$dir/template";
	command('initdb', '-A', 'trust', '-U', 'postgres', '-N', '-D', $template);
	my $process = Snowflake::Process->spawn(
		[ 'postgres', '-D', $template, '-c', 'listen_addresses=', '-k', $dir ],
		log => "$dir/template.log");
	my @psql = ('psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-h', $dir, '-U', 'postgres', '-d', 'postgres');
	eventually(60, sub { IPC::Run::run([ @psql, '-c', 'SELECT 1' ], '>', '/dev/null', '2>', '/dev/null') })
	  or die 'the template does not start: ' . slurp("$dir/template.log");
	IPC::Run::run(\@psql, '<', \$setup, '2>', "$dir/setup.err") or die slurp("$dir/setup.err");
	$process->stop('INT', 30);
	return;
}

# dir: of the run, with the template in it. settings: of the extension, without their prefix.
sub new
{
	my ($class, $name, $dir, %settings) = @_;
	my $self = bless {
		name => $name, dir => $dir, data => "$dir/$name", log => "$dir/$name.log",
		page => "$dir/ids/$name.clock"
	}, $class;
	mkdir $_ for "$dir/ids", "$dir/socket.$name";
	command('cp', '-a', "$dir/template", $self->{data});
	open my $conf, '>>', "$self->{data}/postgresql.conf" or die $!;
	print $conf <<"CONF";
shared_preload_libraries = 'snowflake'
listen_addresses = ''
unix_socket_directories = '$dir/socket.$name'
log_line_prefix = '%m [%p] %b '
log_min_error_statement = panic
max_connections = 60
max_prepared_transactions = 20
shared_buffers = 32MB
max_wal_size = 256MB
fsync = off
autovacuum = off
min_parallel_table_scan_size = 0
parallel_setup_cost = 0
parallel_tuple_cost = 0
snowflake.holder = '$name'
CONF
	print $conf "snowflake.$_ = '$settings{$_}'\n" for sort keys %settings;
	close $conf;
	$self->clock('init');
	return $self;
}

sub name { return $_[0]->{name}; }
sub conninfo { my ($self) = @_; return "host=$self->{dir}/socket.$self->{name} user=postgres dbname=postgres"; }

# --- life ---

sub start
{
	my ($self) = @_;
	$self->mark_log;
	local $ENV{LD_PRELOAD} = program('clockshim.so');
	local $ENV{CLOCKSHIM_PAGE} = $self->{page};
	$self->{process} = Snowflake::Process->spawn([ 'postgres', '-D', $self->{data} ], log => $self->{log});
	return;
}

sub running { my ($self) = @_; return $self->{process} && $self->{process}->running; }
sub signal { my ($self, $signal) = @_; $self->{process}->signal($signal); return; }

# Marks the log: ready() tells whether the server has said since then that it takes connections.
sub mark_log { my ($self) = @_; $self->{log_at} = -s $self->{log} // 0; return; }

sub log_since
{
	my ($self) = @_;
	open my $log, '<', $self->{log} or return '';
	seek $log, $self->{log_at} // 0, 0;
	local $/;
	return <$log> // '';
}

sub ready { my ($self) = @_; return $self->log_since =~ /ready to accept connections/; }

sub wait_ready
{
	my ($self, $seconds) = @_;
	eventually($seconds // 60, sub { $self->ready })
	  or die "$self->{name} does not start: " . $self->log_since;
	return;
}

# --- processes ---

# pid => title of the postmaster's children.
sub children
{
	my ($self) = @_;
	return {} unless $self->running;
	my $postmaster = $self->{process}->pid;
	my %children;
	opendir(my $proc, '/proc') or die $!;
	for my $pid (grep { /^\d/ } readdir $proc)
	{
		my ($parent) = slurp("/proc/$pid/stat") =~ /^\d+ \(.*\) \S+ (\d+) /s or next;
		next unless $parent == $postmaster;
		(my $title = slurp("/proc/$pid/cmdline")) =~ s/\0+/ /g;
		$children{$pid} = $title;
	}
	return \%children;
}

# The pids of those whose title matches.
sub pids
{
	my ($self, $title) = @_;
	my $all = $self->children;
	return grep { $all->{$_} =~ $title } sort { $a <=> $b } keys %$all;
}

# Stops every process: the postmaster first, so that it starts no new ones, then its children one
# by one, for each backend is a session of its own.
sub freeze
{
	my ($self) = @_;
	kill('STOP', $self->{process}->pid);
	my @children = keys %{ $self->children };
	kill('STOP', @children);
	$self->{frozen} = [ $self->{process}->pid, @children ];
	return;
}

sub thaw { my ($self) = @_; kill('CONT', @{ delete $self->{frozen} // [] }); return; }

# --- clock ---

# Returns the moment of the last change.
sub clock
{
	my ($self, @words) = @_;
	command(program('clockctl'), $self->{page}, @words);
	my ($after) = slurp("$self->{page}.log") =~ /(\d+) \S+\n\z/;
	return $after / 1e9;
}

# --- SQL ---

# What a statement prints; undef when it fails. Waits 5 s at most for the connection.
sub sql
{
	my ($self, $sql) = @_;
	my ($out, $err) = ('', '');
	local $ENV{PGCONNECT_TIMEOUT} = 5;
	my $good = IPC::Run::run(
		[ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $self->conninfo, '-c', $sql ],
		'<', \undef, '>', \$out, '2>', \$err);
	chomp $out;
	return $good ? $out : undef;
}

sub state { my ($self) = @_; return $self->sql('SELECT state FROM pg_stat_snowflake') // 'no answer'; }
sub worker { my ($self) = @_; return $self->sql('SELECT worker FROM pg_stat_snowflake') // ''; }

# Until it mints. An etcd that is new to IDs is one that the drill vouches for.
sub wait_issuing
{
	my ($self, $seconds) = @_;
	return eventually(
		$seconds // 30,
		sub {
			my $state = $self->state;
			$self->sql('SELECT snowflake_init_region()') if $state eq 'quarantined';
			return $state eq 'issuing';
		});
}

# --- load ---

# specs: as mint's; it runs until stop_load.
sub start_load
{
	my ($self, @specs) = @_;
	$self->{load} = Snowflake::Process->spawn(
		[
			program('mint'), "$self->{dir}/ids", $self->{name},
			$self->conninfo . q{ options='-c log_min_messages=log'}, @specs
		],
		log => "$self->{dir}/$self->{name}.mint.log");
	return;
}

sub stop_load
{
	my (@servers) = @_;
	$_->{load}->signal('TERM') for grep { $_->{load} } @servers;
	for my $server (grep { $_->{load} } @servers)
	{
		my $status = $server->{load}->wait(60) // die "mint for $server->{name} does not end";
		die "mint for $server->{name} failed: " . slurp("$server->{dir}/$server->{name}.mint.log")
		  if $status != 0;
		delete $server->{load};
	}
	return;
}

# (whether all is well, the lines of the report, whose moments count from $start)
sub audit
{
	my ($dir, $start) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run([ program('audit'), "$dir/ids", int($start * 1e9) ], '>', \$out, '2>', \$err);
	my $status = $? >> 8;
	die "audit: $err" if $status > 1 || $? & 127;
	return ($status == 0, split /\n/, $out);
}

# The states that the load has seen from $from to $upto, each change once: [moment, state, worker].
sub states
{
	my ($self, $from, $upto) = @_;
	my @states;
	for my $line (split /\n/, slurp("$self->{dir}/ids/$self->{name}.states"))
	{
		my ($ns, undef, $state, $worker) = split /\t/, $line;
		next if !defined $state || $ns < $from * 1e9 || $ns > $upto * 1e9;
		$worker //= '';
		next if @states && $states[-1][1] eq $state && $states[-1][2] eq $worker;
		push @states, [ $ns / 1e9, $state, $worker ];
	}
	return @states;
}

1;
