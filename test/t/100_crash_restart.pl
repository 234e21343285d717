# An instance whose processes crash again and again, under load: it uses up no worker numbers, its
# IDs go on increasing, and its data directory carries no identity.

use strict;
use warnings;

use File::Find;
use Test::More;
use Time::HiRes qw(sleep time);

use PostgreSQL::Test::Utils;
use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually slurp tempdir_abs);

my $crashes = 30;

my $etcd = Snowflake::Etcd->new->start;
# A number that was used is free again when its mark is past.
my $node = Snowflake::Instance->create('a', etcd => $etcd, settings => { reserve => '10s', lease_ttl => '20s' });
$node->wait_issuing;

# Joins the files of one client's connections: an instance's IDs increase over its crashes too.
sub joined
{
	my (@loads) = @_;
	my $dir = tempdir_abs('joined');
	my %text;
	for my $load (@loads)
	{
		for my $file (sort $load->id_files)
		{
			my ($client) = $file =~ m{^(.*/s\d+)\.} or die $file;
			# A last line without its end was cut by the crash.
			(my $ids = slurp($file)) =~ s/[^\n]+\z//;
			$text{$client} .= $ids;
		}
	}
	my @files;
	for my $client (sort keys %text)
	{
		push @files, "$dir/" . @files . '.ids';
		append_to_file($files[-1], $text{$client});
	}
	return @files;
}

# Files below the data directory that contain one of the byte strings.
sub files_with
{
	my (@needles) = @_;
	my @found;
	find(
		{
			no_chdir => 1,
			wanted => sub {
				return unless -f $_;
				my $text = slurp($_);
				for my $needle (@needles)
				{
					push @found, $_ if index($text, $needle) >= 0;
				}
			}
		},
		$node->data_dir);
	return @found;
}

# A lease id as anyone may write it.
sub spellings
{
	my ($lease) = @_;
	return ("$lease", sprintf('%x', $lease), sprintf('%X', $lease), pack('q<', $lease), pack('q>', $lease));
}

sub has_lease { my ($lease) = @_; return scalar grep { $_ eq sprintf('%x', $lease) } $etcd->lease_list; }

# --- 30 crashes, in less than a minute if the machine is fast enough ---

my @loads = (
	Snowflake::Load->start($node, interval => 0.002),
	Snowflake::Load->start($node, sessions => 2, interval => 0.01, sql => 'SELECT snowflake_nextval() FROM generate_series(1, 5000)'));
my $postmaster = $node->postmaster_pid;
my ($slowest, $most_claims, @kept) = (0, 0);
my $begun = time;
for my $crash (1 .. $crashes)
{
	my $moment = time;
	eventually(20, sub { !grep { !defined $_->first_success_after($moment) } @loads });
	my $lease = $node->stat('lease_id');
	my $pid;
	if ($crash % 3 == 0)
	{
		$pid = $node->worker_pid;
	}
	else
	{
		my %children = $node->children;
		($pid) = grep { $children{$_} =~ /\[local\]/ } keys %children;
	}
	kill('KILL', $pid) if $pid;
	my $killed = time;
	eventually(20, sub { !defined $pid || !kill(0, $pid) }, 0.005);
	my $took = $node->seconds_to_mint(30) // 99;
	$slowest = $took if $took > $slowest;
	push @kept, $crash if has_lease($lease);
	my $claims = () = $etcd->claimed;
	$most_claims = $claims if $claims > $most_claims;
	my $left = $begun + $crash - time;
	sleep $left if $left > 0;
}
my $lasted = time - $begun;
$_->stop for @loads;

is($node->postmaster_pid, $postmaster, sprintf('%d crashes in %.0f s, and the postmaster is the same', $crashes, $lasted));
is("@kept", '', 'each time the lease of the life before was revoked when the next one minted');
cmp_ok($most_claims, '<=', 2, "at no time were more than 2 worker numbers held ($most_claims)");
my @claimed = $etcd->claimed;
is(scalar @claimed, 1, 'afterwards one number is held');
is(scalar(my @leases = $etcd->lease_list), 1, 'on the only lease');
my @marks = sort keys %{ $etcd->under($etcd->marks_prefix) };
cmp_ok(scalar @marks, '<=', 20, 'few numbers were ever used: no more than fit in the reserve (' . @marks . ')');
note(sprintf 'slowest return %.2f s, numbers used: %d', $slowest, scalar @marks);
cmp_ok($slowest, '<=', 5, sprintf('IDs came again soon (slowest %.1f s)', $slowest));

my $found = idcheck(map { $_->id_files } @loads);
cmp_ok($found->{ids}, '>', 100_000, "$found->{ids} IDs were minted on the way");
is($found->{duplicates}, 0, 'none of them twice');
cmp_ok(scalar(split /,/, $found->{nodes}), '>', 1, 'they carry several worker numbers');
is(idcheck(joined(@loads))->{order_violations}, 0, 'and what one client got increases over all crashes');

# --- a generator that runs ahead of the clock when it dies ---

for (1 .. 2)
{
	$node->wait_issuing;
	my $last = $node->sql('SELECT max(snowflake_nextval()) FROM generate_series(1, 4000000)');
	kill('KILL', $node->worker_pid);
	my $first;
	eventually(30, sub { ($first) = $node->try('SELECT snowflake_nextval()'); $first =~ /^\d+$/ }, 0.02);
	cmp_ok($first, '>', $last, 'after a crash at full speed the first ID follows the last one');
}

# --- etcd is away when it crashes ---

$node->wait_issuing;
my $lease = $node->stat('lease_id');
$etcd->pause;
for (1 .. 3)
{
	my $pid = $node->worker_pid;
	kill('KILL', $pid);
	eventually(20, sub { my $new = $node->worker_pid; $new && $new != $pid && ($node->try('SELECT 1'))[0] eq '1' });
}
my ($out, $err) = $node->try('SELECT snowflake_nextval()');
is($out, '', 'without etcd a new life mints nothing: it has no claim');
like($err, qr/ERROR:  55000: .*no worker number yet.*DETAIL.*HINT/s, 'and says so');
$etcd->resume;
ok($node->wait_issuing(10), 'with etcd back it mints');
ok(!has_lease($lease), 'and the lease of the life before the outage is revoked, three crashes later');
is(scalar(@claimed = $etcd->claimed), 1, 'one number is held');

# --- its clock is not good enough when it crashes ---

# Demands more of the clock than can be had: it is judged when a worker begins.
SKIP:
{
	$lease = $node->stat('lease_id');
	$node->set(max_clock_error => 1);
	kill('KILL', $node->worker_pid);
	my $row = $node->wait_state('clock_unsafe|issuing', 30);
	skip 'this machine has a very good clock', 2 if $row->{state} eq 'issuing';
	is($node->stat('reason') =~ /clock/, 1, 'a worker that finds the clock not good enough waits, and says why');
	$node->set(max_clock_error => 0);
	$node->wait_issuing;
	ok(!has_lease($lease), 'when it claims at last, the lease of the life before is revoked');
}
$node->set(max_clock_error => 0);
$node->wait_issuing;

# --- nothing in the data directory says who it is ---

my $row = $node->stat_row;
$node->sql('CREATE TABLE t AS SELECT snowflake_nextval() FROM generate_series(1, 1000); CHECKPOINT');
is(join(' ', files_with(spellings($row->{lease_id}))), '', 'no file of a running instance contains the lease');
is(join(' ', glob $node->data_dir . '/snowflake*'), '', 'no file there is the extension\'s');
$node->stop;
is(join(' ', files_with(spellings($row->{lease_id}))), '', 'nor does one of a stopped instance');
my @left = glob $node->data_dir . '/snowflake*';
is(join(' ', map { m{([^/]+)$} } @left), 'snowflake_last_mark', 'a clean stop leaves its hint');
is(slurp($left[0]) =~ /^(\d+) (\d{13}) \d+ \d+ -?\d+\n$/ ? "$1 $2" : '', "$row->{worker} " . $etcd->mark($row->{worker}),
	'which tells its last mark, and no more');
is(scalar(@claimed = $etcd->claimed), 0, 'and gives the number back');
$node->start;
is(join(' ', glob $node->data_dir . '/snowflake*'), '', 'the hint is gone when it runs again') if $node->wait_state('issuing');

# After an immediate stop there is none, and the number stays until its lease ends.
$node->stop('immediate');
is(join(' ', glob $node->data_dir . '/snowflake*'), '', 'an immediate stop leaves nothing');

done_testing();
