# A Postgres server with the extension: PostgreSQL::Test::Cluster, and what the tests ask of the
# generator.

package Snowflake::Instance;

use strict;
use warnings;

use parent -norequire, 'PostgreSQL::Test::Cluster';

use JSON::PP;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Snowflake::Process qw(eventually slurp);

# The location of pg_regress, which Cluster's init needs, when no makefile says it.
if (!$ENV{PG_REGRESS})
{
	chomp(my $pgxs = `pg_config --pgxs`);
	$pgxs =~ s{/makefiles/pgxs\.mk$}{/test/regress/pg_regress};
	$ENV{PG_REGRESS} = $pgxs;
}

# etcd: whose endpoints it gets. settings: without the prefix "snowflake.", over the tests'
# defaults. conf: further lines. preload, start, extension: all true unless said otherwise.
sub create
{
	my ($class, $name, %with) = @_;
	my $self = $class->new($name);
	$self->init(%{ $with{init} // {} });
	my $etcd = $with{etcd};
	my %settings = (
		etcd_endpoints => $etcd ? $etcd->endpoints : '',
		# No CI machine's clock is vouched for.
		max_clock_error => '0',
		holder => $name,
		%{ $with{settings} // {} });
	if ($etcd && $etcd->{tls} && !exists $settings{etcd_cacert})
	{
		$settings{etcd_cacert} = $etcd->{tls}->ca;
		$settings{etcd_cert} = $etcd->{tls}->cert('client');
		$settings{etcd_key} = $etcd->{tls}->key('client');
	}
	my $conf = <<'EOC';
log_statement = none
restart_after_crash = on
max_connections = 60
shared_buffers = 64MB
max_wal_size = 4GB
autovacuum = off
unix_socket_permissions = 0700
EOC
	$conf .= "shared_preload_libraries = 'snowflake'\n" if $with{preload} // 1;
	$conf .= "snowflake.$_ = '$settings{$_}'\n" for sort grep { defined $settings{$_} } keys %settings;
	$self->append_conf('postgresql.conf', $conf . ($with{conf} // ''));
	if ($with{start} // 1)
	{
		$self->start;
		$self->safe_psql('postgres', 'CREATE EXTENSION snowflake') if $with{extension} // 1;
	}
	return $self;
}

# --- SQL ---

sub sql { my ($self, $sql) = @_; return $self->safe_psql('postgres', $sql); }

# (stdout, stderr with SQLSTATE, DETAIL and HINT) of a statement that may fail.
sub try
{
	my ($self, $sql) = @_;
	my ($out, $err) = ('', '');
	$self->psql('postgres', $sql, stdout => \$out, stderr => \$err, extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	return ($out, $err);
}

sub set
{
	my ($self, %settings) = @_;
	for my $name (sort keys %settings)
	{
		$self->sql("ALTER SYSTEM SET snowflake.$name = '$settings{$name}'");
	}
	$self->reload;
	return;
}

# The whole row of pg_stat_snowflake, with its moments also as numbers; undef when the server can't be
# asked.
sub stat_row
{
	my ($self) = @_;
	my ($out, $err) = ('', '');
	my $failed = $self->psql('postgres', <<'EOS',
SELECT row_to_json(r) FROM (
  SELECT *, (extract(epoch FROM mark) * 1000)::bigint AS mark_ms,
         extract(epoch FROM last_renewal)::float8 AS renewed_at,
         extract(epoch FROM reserve_left)::float8 AS reserve_left_s
  FROM pg_stat_snowflake) AS r
EOS
		stdout => \$out, stderr => \$err, timeout => 30);
	return undef if $failed || $out eq '';
	return decode_json($out);
}

sub stat { my ($self, $column) = @_; my $row = $self->stat_row or return undef; return $row->{$column}; }
sub state { my ($self) = @_; return $self->stat('state') // ''; }

sub wait_stat
{
	my ($self, $test, $seconds) = @_;
	my $row;
	my $good = eventually($seconds // 30, sub { $row = $self->stat_row; $row && $test->($row) });
	return $good ? $row : undef;
}

sub wait_state
{
	my ($self, $states, $seconds) = @_;
	return $self->wait_stat(sub { $_[0]->{state} =~ /^(?:$states)$/ }, $seconds);
}

# Until it mints: an etcd that is new to IDs is one that a test's DBA vouches for.
sub wait_issuing
{
	my ($self, $seconds) = @_;
	my $row = $self->wait_state('issuing|quarantined', $seconds // 30) or return undef;
	return $row if $row->{state} eq 'issuing';
	# Several that were started at once see each other's claims: then it is not new. A living holder's
	# mark does for a witness.
	my ($out, $err) = $self->try('SELECT snowflake_init_region()');
	if ($err)
	{
		my ($prefix, $region, $reserve) = map { $self->sql($_) } 'SHOW snowflake.etcd_prefix', 'SHOW snowflake.region',
		  q{SELECT setting FROM pg_settings WHERE name = 'snowflake.reserve'};
		eval { $_->put("$prefix/r$region/marks/126", sprintf('%013d', time * 1000 + $reserve)) } for @Snowflake::Etcd::all;
	}
	return $self->wait_state('issuing', $seconds // 30);
}

sub mint { my ($self, $count) = @_; return split /\n/, $self->sql('SELECT snowflake_nextval() FROM generate_series(1, ' . ($count // 1) . ')'); }

# Seconds until a call mints, undef if none does within $seconds. Connects anew for every try.
sub seconds_to_mint
{
	my ($self, $seconds) = @_;
	my $start = time;
	my $good = eventually(
		$seconds // 30,
		sub {
			my ($out) = $self->try('SELECT snowflake_nextval()');
			return $out =~ /^\d+$/;
		},
		0.02);
	return $good ? time - $start : undef;
}

# --- processes ---

sub postmaster_pid
{
	my ($self) = @_;
	return (split /\n/, slurp($self->data_dir . '/postmaster.pid'))[0];
}

# pid => title of the postmaster's children.
sub children
{
	my ($self) = @_;
	my $postmaster = $self->postmaster_pid or return;
	my %children;
	for my $stat (glob '/proc/[0-9]*/stat')
	{
		my ($pid, $parent) = slurp($stat) =~ /^(\d+) \(.*\) \S+ (\d+) /s or next;
		next unless $parent == $postmaster;
		(my $title = slurp("/proc/$pid/cmdline")) =~ s/\0+/ /g;
		$children{$pid} = $title;
	}
	return %children;
}

sub worker_pid
{
	my ($self) = @_;
	my %children = $self->children;
	my ($pid) = grep { $children{$_} =~ /snowflake worker/ } keys %children;
	return $pid;
}

# Stops the clock of every process: the postmaster first, so that it cannot start new ones, then its
# children one by one, for each backend is a session of its own.
sub freeze
{
	my ($self) = @_;
	my $postmaster = $self->postmaster_pid;
	kill('STOP', $postmaster);
	my @children = keys %{ { $self->children } };
	kill('STOP', $_) for @children;
	$self->{frozen} = [ $postmaster, @children ];
	return;
}

sub thaw
{
	my ($self) = @_;
	kill('CONT', $_) for @{ delete $self->{frozen} // [] };
	return;
}

sub teardown_node
{
	my ($self) = @_;
	$self->thaw;
	if ($self->{_pid})
	{
		# Whatever happened, the server must go.
		kill('CONT', $self->{_pid});
		kill('QUIT', $self->{_pid});
		eventually(10, sub { !kill(0, $self->{_pid}) }) or kill('KILL', $self->{_pid});
		$self->{_pid} = undef;
	}
	return;
}

# Starts the postmaster and returns before it is up.
sub start_only
{
	my ($self) = @_;
	PostgreSQL::Test::Utils::system_log('pg_ctl', '-W', '-D', $self->data_dir, '-l', $self->logfile, 'start');
	eventually(10, sub { ($self->postmaster_pid // '') =~ /^\d+$/ }, 0.005) or die 'no postmaster';
	$self->{_pid} = $self->postmaster_pid;
	return;
}

# Stops the server and returns the seconds that it took; undef after a minute.
sub timed_stop
{
	my ($self, $mode) = @_;
	local $ENV{PGCTLTIMEOUT} = 60;
	my $start = time;
	$self->stop($mode, fail_ok => 1) or return undef;
	return time - $start;
}

# Starts it again after kill9: what is left of the old one may still hold its shared memory.
sub start_after_crash
{
	my ($self) = @_;
	my $old = $self->postmaster_pid;
	eventually(10, sub { !kill(0, $old) }, 0.01);
	# A failed start leaves the pid of a server that is gone.
	my $up = eventually(30, sub { $self->{_pid} = undef; $self->start(fail_ok => 1) });
	die 'the server does not start again' unless $up;
	return;
}

# Resident set, in kB.
sub rss { my ($self, $pid) = @_; return slurp("/proc/$pid/status") =~ /^VmRSS:\s+(\d+)/m ? $1 : undef; }

# Seconds of CPU that a process has used.
sub cpu
{
	my ($self, $pid) = @_;
	my ($user, $system) = slurp("/proc/$pid/stat") =~ /^\d+ \(.*\) \S+ (?:\S+ ){10}(\d+) (\d+) /s or return undef;
	return ($user + $system) / 100;
}

# --- log ---

sub log_offset { my ($self) = @_; return -s $self->logfile; }
sub log_since { my ($self, $offset) = @_; return substr(slurp($self->logfile), $offset // 0); }

# What the background worker has written, not the sessions with their refused calls.
sub worker_log
{
	my ($self, $offset, $pid) = @_;
	$pid //= $self->worker_pid;
	return grep { /^\S+ \S+ \S+ \[$pid\] / } split /\n/, $self->log_since($offset);
}

# Seconds between the last lines since $offset that match the two patterns, by the log's own clock: on a
# busy machine a client that asks sees more of its own slowness.
sub seconds_between
{
	my ($self, $offset, @patterns) = @_;
	my @at;
	for my $line (split /\n/, $self->log_since($offset))
	{
		my ($hours, $minutes, $seconds) = $line =~ /^\S+ (\d+):(\d+):([\d.]+) / or next;
		for my $which (0, 1) { $at[$which] = $hours * 3600 + $minutes * 60 + $seconds if $line =~ $patterns[$which]; }
	}
	return undef unless defined $at[0] && defined $at[1];
	my $took = $at[1] - $at[0];
	return $took < -43200 ? $took + 86400 : $took;
}

sub wait_log
{
	my ($self, $pattern, $offset, $seconds) = @_;
	return eventually($seconds // 30, sub { $self->log_since($offset) =~ /$pattern/ });
}

1;
