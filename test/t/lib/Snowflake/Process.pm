# Children of a test that are no Postgres servers: etcd members, proxies, load clients. Whatever
# way the test ends, none of them outlives it: the kernel kills them when the test process is gone
# (setpriv --pdeathsig), and END does so in order.

package Snowflake::Process;

use strict;
use warnings;

use File::Spec;
use IO::Socket::INET;
use POSIX qw(WNOHANG);
use Time::HiRes qw(sleep time);

# First, so that our END runs before the servers' and everything finds its temporary directory.
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

use Exporter 'import';
our @EXPORT_OK = qw(eventually free_port log_file tempdir_abs slurp);

my %running;    # pid => 1
my %ports;

# Calls $condition until it is true, at most $seconds long. Returns its last value.
sub eventually
{
	my ($seconds, $condition, $pause) = @_;
	my $deadline = time + $seconds;
	while (1)
	{
		my $value = $condition->();
		return $value if $value || time > $deadline;
		sleep($pause // 0.05);
	}
}

# A loopback port that nobody listens on, below the range that outgoing connections take theirs
# from: it stays free while its server is down.
sub free_port
{
	for (1 .. 1000)
	{
		my $port = 12000 + int(rand(20000));
		next if $ports{$port};
		my $probe = IO::Socket::INET->new(
			LocalAddr => '127.0.0.1', LocalPort => $port, Proto => 'tcp', Listen => 1, ReuseAddr => 1)
		  or next;
		close $probe;
		$ports{$port} = 1;
		return $port;
	}
	die "no free port";
}

sub tempdir_abs
{
	my ($name) = @_;
	return File::Spec->rel2abs(PostgreSQL::Test::Utils::tempdir($name));
}

# Beside the servers' logs, and like them kept when a test fails.
sub log_file
{
	my ($name) = @_;
	(my $test = $0) =~ s{.*/|\.pl$}{}g;
	return File::Spec->rel2abs("$PostgreSQL::Test::Utils::log_path/${test}_$name.log");
}

sub slurp
{
	my ($path) = @_;
	open my $file, '<', $path or return '';
	local $/;
	my $text = <$file>;
	return $text // '';
}

# Starts a program. log: the file that takes its output; out: another for its standard output;
# keep: a handle that it inherits.
sub spawn
{
	my ($class, $command, %how) = @_;
	my $log = $how{log} // '/dev/null';
	my $pid = fork() // die "fork: $!";
	if ($pid == 0)
	{
		$SIG{$_} = 'DEFAULT' for qw(PIPE INT TERM);
		if ($how{keep})
		{
			require Fcntl;
			fcntl($how{keep}, Fcntl::F_SETFD(), 0);
		}
		POSIX::close(0);
		POSIX::open('/dev/null', POSIX::O_RDONLY());
		my $flags = POSIX::O_WRONLY() | POSIX::O_CREAT() | POSIX::O_APPEND();
		my $fd = POSIX::open($log, $flags, 0600);
		POSIX::dup2($fd, 1);
		POSIX::dup2($fd, 2);
		POSIX::dup2(POSIX::open($how{out}, $flags, 0600), 1) if $how{out};
		{
			no warnings 'exec';
			exec('setpriv', '--pdeathsig', 'KILL', '--', @$command);
		}
		POSIX::_exit(127);
	}
	$running{$pid} = 1;
	return bless { pid => $pid, name => $command->[0] }, $class;
}

sub pid { return $_[0]->{pid}; }

sub signal
{
	my ($self, $signal) = @_;
	kill($signal, $self->{pid}) if $self->running;
	return;
}

sub running
{
	my ($self) = @_;
	return 0 unless $running{ $self->{pid} };
	if (waitpid($self->{pid}, WNOHANG) == $self->{pid})
	{
		$self->{status} = $?;
		delete $running{ $self->{pid} };
		return 0;
	}
	return 1;
}

# Waits for its end and returns its wait status, undef if it still runs after $seconds.
sub wait
{
	my ($self, $seconds) = @_;
	eventually($seconds // 180, sub { !$self->running }, 0.02) or return undef;
	return $self->{status};
}

# Ends it: politely first, by force after $seconds.
sub stop
{
	my ($self, $signal, $seconds) = @_;
	return unless $self->running;
	$self->signal('CONT');
	$self->signal($signal // 'TERM');
	return if defined $self->wait($seconds // 10);
	$self->signal('KILL');
	$self->wait(10);
	return;
}

$SIG{$_} //= sub { exit 1 } for qw(INT TERM HUP);

END
{
	my $status = $?;
	kill('KILL', keys %running);
	waitpid($_, 0) for keys %running;
	$? = $status;
}

1;
