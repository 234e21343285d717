# Sessions that mint in the background. Each connection's IDs go, in order, to a file of its own;
# each call leaves a line with its moment and outcome.

package Snowflake::Load;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IPC::Open2;
use Time::HiRes qw(sleep time);

use Exporter 'import';
our @EXPORT_OK = qw(idcheck bulk);

my $lib = abs_path(dirname(__FILE__) . '/..');

# --- the test's side ---

# sessions (1), interval: seconds between calls (0.01), sql: one statement that returns IDs,
# setup: statements run first on each connection.
sub start
{
	my ($class, $node, %with) = @_;
	require Snowflake::Process;
	my $dir = Snowflake::Process::tempdir_abs('load');
	my $self = bless { dir => $dir, sessions => $with{sessions} // 1, processes => [] }, $class;
	for my $at (1 .. $self->{sessions})
	{
		push @{ $self->{processes} },
		  Snowflake::Process->spawn(
			[
				$^X, "-I$lib", '-MSnowflake::Load', '-e', 'Snowflake::Load::client(@ARGV)',
				"$dir/s$at", $node->connstr('postgres'), $with{interval} // 0.01,
				$with{sql} // 'SELECT snowflake_nextval()', $with{setup} // ''
			],
			log => "$dir/s$at.err");
	}
	return $self;
}

# Ends all sessions; their files stay.
sub stop
{
	my ($self) = @_;
	$_->signal('TERM') for @{ $self->{processes} };
	for my $process (@{ $self->{processes} })
	{
		$process->stop('KILL') unless defined $process->wait(20);
	}
	return $self;
}

sub id_files { my ($self) = @_; return glob "$self->{dir}/s*.ids"; }

# Every call so far: { at, took, sqlstate, text }, in the order of the moments at which they began.
# sqlstate is 00000 for success and 'lost' when the connection was.
sub calls
{
	my ($self) = @_;
	my @calls;
	for my $at (1 .. $self->{sessions})
	{
		for my $line (split /\n/, Snowflake::Process::slurp("$self->{dir}/s$at.calls"))
		{
			my ($moment, $took, $sqlstate, $text) = split /\t/, $line, 4;
			next unless defined $text;
			push @calls, { at => $moment, took => $took, sqlstate => $sqlstate, text => $text };
		}
	}
	return sort { $a->{at} <=> $b->{at} } @calls;
}

sub succeeded { my ($self) = @_; return grep { $_->{sqlstate} eq '00000' } $self->calls; }
sub refused { my ($self) = @_; return grep { $_->{sqlstate} !~ /^(?:00000|lost)$/ } $self->calls; }
sub lost { my ($self) = @_; return grep { $_->{sqlstate} eq 'lost' } $self->calls; }

# Seconds from $moment to the end of the first success that began after it; undef if none.
sub first_success_after
{
	my ($self, $moment) = @_;
	my ($first) = sort { $a <=> $b } map { $_->{at} + $_->{took} } grep { $_->{at} >= $moment } $self->succeeded;
	return defined $first ? $first - $moment : undef;
}

# A large number of IDs in several sessions at once, at full speed: returns the files. sql is given
# the count as %d.
sub bulk
{
	my (@parts) = @_;    # { node, sessions, count, sql }
	require Snowflake::Process;
	my $dir = Snowflake::Process::tempdir_abs('bulk');
	my (@files, @processes);
	my $part_no = 0;
	for my $part (@parts)
	{
		$part_no++;
		my $query = sprintf($part->{sql} // 'SELECT snowflake_nextval() FROM generate_series(1, %d)', $part->{count});
		for my $session (1 .. $part->{sessions} // 1)
		{
			my $file = "$dir/p${part_no}s$session.ids";
			push @files, $file;
			push @processes,
			  Snowflake::Process->spawn(
				[ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $part->{node}->connstr('postgres'),
					'-c', "COPY ($query) TO STDOUT (NULL '')" ],
				out => $file, log => "$dir/err");
		}
	}
	for my $process (@processes)
	{
		my $status = $process->wait(600);
		die 'bulk minting failed: ' . Snowflake::Process::slurp("$dir/err") if !defined $status || $status != 0;
	}
	return @files;
}

# Runs idcheck and returns what it found, with its complaints in 'findings' and its verdict in 'clean'.
sub idcheck
{
	my (@arguments) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run([ $ENV{IDCHECK} // 'idcheck', @arguments ], '>', \$out, '2>', \$err);
	my $status = $? >> 8;
	die "idcheck: $err" if $status > 1;
	my %found = map { split /=/, $_, 2 } split ' ', $out;
	require Test::More;
	Test::More::diag("idcheck: $out$err") if $err ne '';
	Test::More::note("idcheck: $out");
	return { %found, clean => $status == 0, findings => $err };
}

# --- the client's side ---

sub client
{
	my ($base, $connstr, $interval, $sql, $setup) = @_;
	my $ending = 0;
	$SIG{TERM} = sub { $ending = 1; };
	$SIG{PIPE} = 'IGNORE';
	open(my $calls, '>', "$base.calls") or die "$base.calls: $!";
	$calls->autoflush(1);
	my $connection = 0;
	until ($ending)
	{
		my $file = sprintf('%s.%04d.ids', $base, ++$connection);
		open(my $ids, '>', $file) or die "$file: $!";
		$ids->autoflush(1);
		my $began = time;
		my $pid = open2(my $from, my $to, 'psql', '-XqAt', '-d', $connstr);
		$to->autoflush(1);
		print $to "$setup;\n" if $setup ne '';
		my $answered = 1;
		until ($ending || !$answered)
		{
			$began = time;
			print $to "$sql;\n\\echo = :SQLSTATE :LAST_ERROR_MESSAGE\n";
			$answered = 0;
			while (defined(my $line = <$from>))
			{
				if ($line =~ /^= (\S*) ?(.*)$/)
				{
					# psql lives on without its connection, and then knows of no SQLSTATE.
					last if $1 eq '';
					printf $calls "%.4f\t%.4f\t%s\t%s\n", $began, time - $began, $1,
					  $1 eq '00000' ? '' : $2;
					$answered = 1;
					last;
				}
				print $ids $line;
			}
			sleep($interval) if $answered && $interval > 0;
		}
		printf $calls "%.4f\t%.4f\tlost\t\n", $began, time - $began unless $answered;
		close $to;
		close $from;
		waitpid($pid, 0);
		close $ids;
		unlink $file if -z $file;
		sleep(0.02) unless $answered;
	}
	return;
}

1;
