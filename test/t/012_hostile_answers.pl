# Every odd answer ends as a logged error and a retry: the same background worker, no wrong mark, and
# minting that goes on. Several instances at one etcd, each behind a proxy that lies, take turns
# through all kinds of answers (see Snowflake::Proxy).

use strict;
use warnings;

use Test::More;
use Time::HiRes qw(sleep time);

use Snowflake::Etcd;
use Snowflake::Instance;
use Snowflake::Load qw(idcheck);
use Snowflake::Process qw(eventually);
use Snowflake::Proxy;

my $etcd = Snowflake::Etcd->new->start;
my @kinds = Snowflake::Proxy::kinds();
# The true answers in odd clothes: no error may come of these.
my %harmless = map { $_ => 1 } qw(truth chunked_odd no_length);

# Those that no retry within the beat can hide.
my %logged = map { $_ => 1 }
  qw(half_body html not_found big_body binary empty_body json_list server_error unavailable no_space);

my @places;
for my $name (qw(a b c d))
{
	my $proxy = Snowflake::Proxy->new($etcd->port);
	my $node = Snowflake::Instance->create($name,
		settings => { etcd_endpoints => $proxy->endpoint, renew_interval => '200ms', reserve => '60s', lease_ttl => '120s' });
	push @places, { name => $name, proxy => $proxy, node => $node };
}
for my $place (@places)
{
	my $row = $place->{node}->wait_issuing;
	$place->{pid} = $row->{pid};
	$place->{load} = Snowflake::Load->start($place->{node}, interval => 0.02);
	$place->{log} = $place->{node}->log_offset;
	$place->{rss} = $place->{node}->rss($place->{pid});
}

# What has gone wrong with the mark that backends may use, '' for nothing.
sub mark_fault
{
	my ($row) = @_;
	my $stored = $etcd->mark($row->{worker});
	return "etcd has no such mark: $row->{mark_ms}, it has $stored" if $stored !~ /^\d{13}$/ || $row->{mark_ms} > $stored;
	return "a mark too far ahead: $row->{mark_ms}" if $row->{mark_ms} > time * 1000 + 60_000 + 1000;
	return '';
}

# The row of a place that has renewed after $from.
sub renewed
{
	my ($place, $from, $seconds) = @_;
	return $place->{node}->wait_stat(sub { $_[0]->{renewed_at} > $from && $_[0]->{state} eq 'issuing' }, $seconds);
}

# The answers to a holder, whose beats are keepalives and raises; then those to a claimant, each kind
# at one step of the way to a claim.
my @paths = ('/lease/grant', '/kv/range', '/kv/txn');
for my $phase (qw(holder claimant))
{
	my @left = @kinds;
	my $turn = 0;
	while (my @batch = splice(@left, 0, scalar @places))
	{
		$turn++;
		my @busy;
		for my $at (0 .. $#batch)
		{
			my $place = $places[$at];
			$place->{kind} = $batch[$at];
			$place->{path} = $phase eq 'holder' ? '' : $paths[ ($turn + $at) % @paths ];
			$place->{before} = $place->{node}->stat_row;
			push @busy, $place;
			$place->{proxy}->mode('answer', $batch[$at], $place->{path} eq '' ? () : $place->{path});
			# The next raise finds out, and the claim starts.
			$etcd->lease_revoke($place->{before}{lease_id}) if $phase eq 'claimant';
		}
		for my $place (@busy)
		{
			my $enough = $phase eq 'holder' ? 3 : 1;
			ok(eventually(15, sub { $place->{proxy}->counts->{answered} >= $enough }),
				"$phase, $place->{kind}$place->{path}: such answers were given");
			my $row = $place->{node}->stat_row;
			is(mark_fault($row), '', "$phase, $place->{kind}$place->{path}: the mark is one that etcd holds");
			if ($phase eq 'holder')
			{
				my $failures = $row->{renewal_failures} - $place->{before}{renewal_failures};
				is($failures, 0, "$phase, $place->{kind}: which is no failure") if $harmless{ $place->{kind} };
				isnt($row->{last_error_at}, $place->{before}{last_error_at}, "$phase, $place->{kind}: the view tells of it")
				  if $logged{ $place->{kind} };
				note("$place->{kind}: $failures failures, last error " . ($row->{last_error} // 'none'));
			}
		}
		my $from = time;
		$_->{proxy}->mode('pass') for @busy;
		for my $place (@busy)
		{
			my $row = renewed($place, $from, 4);
			ok($row, "$phase, $place->{kind}$place->{path}: it renews within 4 s when the answers are right again")
			  or diag(explain($place->{node}->stat_row));
			$row //= $place->{node}->stat_row;
			is(mark_fault($row), '', "$phase, $place->{kind}$place->{path}: with a mark that etcd holds");
			cmp_ok($row->{claims}, '>', $place->{before}{claims}, "$phase, $place->{kind}$place->{path}: it has a new claim")
			  if $phase eq 'claimant';
		}
	}
}

for my $place (@places)
{
	my $node = $place->{node};
	is($node->stat('pid'), $place->{pid}, "$place->{name}: the background worker is the same as at the start");
	is($node->worker_pid, $place->{pid}, "$place->{name}: and it is that process");
	my $grown = $node->rss($place->{pid}) - $place->{rss};
	cmp_ok($grown, '<', 20_000, "$place->{name}: which has not grown much ($grown kB)");
	my $lines = () = $node->worker_log($place->{log});
	cmp_ok($lines, '<', 12 * @kinds, "$place->{name}: the log stays bounded ($lines lines)");
	unlike($node->log_since($place->{log}), qr/PANIC|TRAP|terminated by signal/, "$place->{name}: nothing crashed");
	$place->{load}->stop;
	is(scalar(grep { $_->{sqlstate} ne '00000' } $place->{load}->calls), 0, "$place->{name}: not one call was refused");
}
my $found = idcheck(map { $_->{load}->id_files } @places);
ok($found->{clean}, 'no ID was minted twice, and each session\'s increase');

# --- a byte a second, for as long as it takes ---

my ($place) = @places;
$place->{proxy}->mode('trickle');
my $failures = $place->{node}->stat('renewal_failures');
ok($place->{node}->wait_stat(sub { $_[0]->{renewal_failures} > $failures }, 10), 'answers that come a byte a second are given up');
my $from = time;
$place->{proxy}->mode('pass');
ok(renewed($place, $from, 4), 'and it renews when they come as they should');

# --- a lost reply ---

for my $path ('/kv/txn', '/lease/grant')
{
	my $before = $place->{node}->stat_row;
	$etcd->lease_revoke($before->{lease_id});
	$place->{proxy}->mode('answer', 'no_answer', $path);
	ok(eventually(15, sub { $place->{proxy}->counts->{answered} >= 2 }), "the reply to $path is lost");
	$from = time;
	$place->{proxy}->mode('pass');
	ok(renewed($place, $from, 4), 'and it claims and renews when they arrive again');
	cmp_ok(scalar(() = $etcd->claimed), '<=', @places + 1, 'no worker number is left behind');
}

done_testing();
