# What an ID costs, and how many a second one server mints. Other load on the machine shows here first, so
# the promised figures are asked for with SNOWFLAKE_FULL=1 only, and wider bounds without.

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Process qw(eventually log_file slurp);

my $full = $ENV{SNOWFLAKE_FULL};
my $ceiling = 4_096_000;

my $etcd = Snowflake::Etcd->new->start;
my $node = Snowflake::Instance->create('a', etcd => $etcd);
$node->wait_issuing;

# --- the cost of an ID against nextval's, each net of what makes the rows ---

my $rows = $full ? 5_000_000 : 1_000_000;
my $rounds = $full ? 7 : 11;
my @kinds = ('nothing', 'nextval', 'snowflake');
my %function = (nothing => 'i', nextval => q{nextval('s')}, snowflake => 'snowflake_nextval()');

sub median { my @sorted = sort { $a <=> $b } @_; return $sorted[ @sorted / 2 ]; }

# Shared machines run at one speed now and at another a second later, so the three alternate and each round
# gives a figure. While the other two run the generator falls back to the clock, so that no call has to wait.
$node->sql('CREATE SEQUENCE s CACHE 1');
my $before = $node->stat_row;
my $script = join("\n", '\timing on', map { "SELECT count($function{$_}) FROM generate_series(1, $rows) i;" } @kinds);
my $out = $node->sql(join("\n", ($script) x ($rounds + 1)));
my @times = $out =~ /^Time: ([\d.]+) ms/mg;
is(scalar @times, 3 * ($rounds + 1), "$rounds rounds with $rows rows, and one to warm up");
splice @times, 0, 3;
my (%took, %net, @ratios);
for my $round (0 .. $rounds - 1)
{
	my %of;
	@of{@kinds} = @times[ 3 * $round .. 3 * $round + 2 ];
	push @{ $took{$_} }, $of{$_} for @kinds;
	push @{ $net{$_} }, ($of{$_} - $of{nothing}) / $rows * 1e6 for 'nextval', 'snowflake';
	push @ratios, $net{snowflake}[-1] / $net{nextval}[-1];
	note(sprintf('rows %.0f ms, nextval %.0f ms, snowflake %.0f ms: %.3f', @of{@kinds}, $ratios[-1]));
}
note(sprintf('medians: rows %.0f ms, nextval %.0f ms, snowflake %.0f ms', map { median(@{ $took{$_} }) } @kinds));
my $ratio = median(@ratios);
my $bound = $full ? 0.2 : 0.4;
cmp_ok($ratio, '<=', $bound,
	sprintf('an ID costs %.0f ns, nextval %.0f: %.3f of it, at most %s', median(@{ $net{snowflake} }), median(@{ $net{nextval} }), $ratio, $bound));
my $after = $node->stat_row;
is($after->{ids_issued} - $before->{ids_issued}, $rows * ($rounds + 1), 'each of them was minted');
is($after->{waits}, $before->{waits}, 'none had to wait');

# --- the rate ---

my $statement = 'SELECT count(snowflake_nextval()) FROM generate_series(1, 10000) a, generate_series(1, 10000) b';
my $running = "FROM pg_stat_activity WHERE state = 'active' AND query = '$statement'";
my $seconds = $full ? 15 : 5;

# Seconds of CPU of every process of the server, by pid.
sub cpu_of_all
{
	my %children = $node->children;
	return { map { $_ => $node->cpu($_) // 0 } keys %children, $node->postmaster_pid };
}

# IDs and moment by the server's own view, at the same moment, and the CPU used.
sub sample
{
	my ($ids, $moment) = split /\|/, $node->sql('SELECT ids_issued, extract(epoch FROM clock_timestamp()) FROM pg_stat_snowflake');
	return { ids => $ids, at => $moment, cpu => cpu_of_all() };
}

my $least = $full ? 0.98 : 0.85;
for my $sessions (1, 2, 8)
{
	ok(eventually(10, sub { $node->stat('lead_ms') == 0 }), 'the generator is with the clock') or next;
	$before = $node->stat_row;
	my @clients = map {
		my $log = log_file("rate_${sessions}_$_");
		{ log => $log, process => Snowflake::Process->spawn([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', $statement ], log => $log) };
	} 1 .. $sessions;
	ok(eventually(10, sub { $node->sql("SELECT count(*) $running") == $sessions }), "$sessions sessions mint");
	# A burst of up to a second's worth of IDs comes first, and would be counted as rate. It is over when
	# calls wait, which is never where the machine is too slow for the most.
	eventually(5, sub { $node->stat('waits') > $before->{waits} });
	my $from = sample();
	sleep $seconds;
	my $upto = sample();
	$after = $node->stat_row;
	is($node->sql("SELECT count(pg_cancel_backend(pid)) $running"), $sessions, 'all the time');
	$_->{process}->wait(20) for @clients;
	is(scalar(grep { slurp($_->{log}) !~ /\AERROR:  canceling statement due to user request\n\z/ } @clients), 0, 'without an error, until they are told to stop')
	  or diag(map { slurp($_->{log}) } @clients);

	my $rate = ($upto->{ids} - $from->{ids}) / ($upto->{at} - $from->{at});
	my $cpu = 0;
	$cpu += $upto->{cpu}{$_} - ($from->{cpu}{$_} // 0) for keys %{ $upto->{cpu} };
	$cpu /= $upto->{at} - $from->{at};
	my $waits = $after->{waits} - $before->{waits};
	my $figures = sprintf('%d sessions: %.0f IDs a second, %.1f%% of the most, %.2f cores busy, %d waits of %.1f ms',
		$sessions, $rate, $rate / $ceiling * 100, $cpu, $waits, $waits && ($after->{wait_time_ms} - $before->{wait_time_ms}) / $waits);
	note($figures);
	cmp_ok($rate, '>=', $least * $ceiling, sprintf('%s of them: %.1f%% of 4,096,000 a second', $sessions, $rate / $ceiling * 100));
	is(scalar(grep { $after->{$_} != $before->{$_} } qw(refused_clock refused_fence refused_no_claim)), 0, 'not one call was refused');
	cmp_ok($after->{lead_ms}, '<=', 1000, 'no ID is more than a second ahead of the clock');
	cmp_ok($cpu, '<', 1, sprintf('with %.2f cores busy in all', $cpu)) if $full;
}

done_testing();
